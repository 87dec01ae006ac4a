//! Errors of commits.
use std::error::Error;

use crate::port::{Failure, PortError};

/// Error of a commit.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// A stream has another version than the one that the commit expects. Nothing was written.
    #[error("the stream {stream:?} has version {actual}, and {expected} was expected")]
    Conflict {
        /// The stream.
        stream: String,
        /// The version that the commit expected.
        expected: u64,
        /// The version that the stream has.
        actual: u64,
    },
    /// Another commit holds the claim. Nothing was written.
    #[error("the claim {claim:?} is held by the stream {by:?}")]
    Taken {
        /// The claim.
        claim: String,
        /// First stream of the commit that holds it.
        by: String,
    },
    /// The precondition or the fencing token of a row does not hold. Nothing was written.
    #[error("the row {row:?} has another version than the commit requires")]
    RowConflict {
        /// The row.
        row: String,
    },
    /// The id of the command was used for another stream. Nothing was written.
    #[error("the command {command:?} was used for the stream {by:?} before")]
    CommandReused {
        /// The id of the command.
        command: String,
        /// First stream of the commit that used it.
        by: String,
    },
    /// The commit violates a rule. Nothing was sent.
    #[error(transparent)]
    Invalid(PortError),
    /// The store failed. The error says whether the commit
    /// [may have been applied](PortError::may_have_been_applied): repeat it with the same id.
    #[error(transparent)]
    Store(PortError),
}

impl Failure for CommitError {
    fn backend(&self) -> Option<&PortError> {
        match self {
            Self::Invalid(error) | Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

/// The cause of an error that its kind does not tell: the source of the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Cause {
    /// Code of the user panicked.
    #[error("a panic")]
    Panicked,
    /// The log was built without the queue of a message.
    #[error("the log was built without it")]
    Undeclared,
    /// Each request was lost, and nothing was applied.
    #[error("the time is over")]
    GivenUp,
}

impl Cause {
    /// Returns the cause of an error, if it has one.
    pub(super) fn of(error: &PortError) -> Option<Self> {
        error.source().and_then(|source| source.downcast_ref().copied())
    }
}
