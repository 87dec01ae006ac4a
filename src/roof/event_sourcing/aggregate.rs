//! Aggregates: state that events change, and the answers to their commands.
use super::{Token, error::CommitError};
use crate::port::{Failure, PortError};

/// State that is the fold of the events of a stream. `Default` is the state before the first one.
///
/// ```
/// use steadfast::event_sourcing::Aggregate;
///
/// #[derive(Default, Clone)]
/// struct Seats { booked: u32 }
/// struct Booked(u32);
///
/// impl Aggregate for Seats {
///     type Command = u32;
///     type Event = Booked;
///     type Error = &'static str;
///
///     fn decide(&self, seats: &u32) -> Result<Vec<Booked>, &'static str> {
///         if self.booked + seats > 100 { Err("sold out") } else { Ok(vec![Booked(*seats)]) }
///     }
///
///     fn evolve(&mut self, event: &Booked) {
///         self.booked += event.0;
///     }
/// }
/// ```
pub trait Aggregate: Default + Clone + Send + Sync + 'static {
    /// A request to change the state.
    type Command: Send + Sync + 'static;
    /// A change that happened.
    type Event: Send + Sync + 'static;
    /// The reason for which a command is rejected.
    type Error: Send + 'static;

    /// Returns the events of a command, or rejects it. Pure: after a conflict it is called again.
    ///
    /// # Errors
    /// The rejection of the command.
    fn decide(&self, command: &Self::Command) -> Result<Vec<Self::Event>, Self::Error>;

    /// Applies an event that happened. Pure, and cannot fail.
    fn evolve(&mut self, event: &Self::Event);
}

/// The answer to a command that was not rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Executed {
    /// A place in the log that covers the command. `None` if it had no events.
    pub token: Option<Token>,
    /// The version of the aggregate behind the command. `None` if it [is
    /// repeated](Self::is_repeated).
    pub version: Option<u64>,
    /// `true` if the command was accepted before, and nothing was written now.
    pub is_repeated: bool,
    /// Number of conflicts with other writers that it met: other processes, and commits that this
    /// process made by itself.
    pub conflicts: u32,
}

/// Error of a command.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ExecuteError<E> {
    /// The aggregate rejected the command, on the state of a moment during the call.
    #[error("the command was rejected: {0:?}")]
    Rejected(E),
    /// Other writers were faster in each attempt. Nothing was written.
    #[error("the stream {stream:?} has version {actual}, and {expected} was expected, in {attempts} attempts")]
    Conflict {
        /// The stream.
        stream: String,
        /// The version on which the last attempt decided.
        expected: u64,
        /// The version that the stream had.
        actual: u64,
        /// Number of attempts.
        attempts: u32,
    },
    /// The commit was refused for another cause.
    #[error(transparent)]
    Refused(CommitError),
    /// The store failed, or an event cannot be decoded. If the error says that the command
    /// [may have been applied](PortError::may_have_been_applied), repeat it with the same id.
    #[error(transparent)]
    Store(PortError),
}

impl<E> From<CommitError> for ExecuteError<E> {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Store(error) => Self::Store(error),
            error => Self::Refused(error),
        }
    }
}

impl<E: std::fmt::Debug> Failure for ExecuteError<E> {
    fn backend(&self) -> Option<&PortError> {
        match self {
            Self::Store(error) => Some(error),
            Self::Refused(error) => error.backend(),
            Self::Rejected(_) | Self::Conflict { .. } => None,
        }
    }
}
