//! Errors of views.
use super::AsOf;
use crate::{
    port::{ErrorClass, Failure, PortError},
    stream::Position,
};

/// Error of a view.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// This version of the view has not caught up with its sources yet. If it stays so, no process
    /// [runs](super::View::run) it, or its run has ended with an error.
    #[error("the view is being built: it has {as_of}, and the sources have {head}")]
    Building {
        /// The place up to which it is built.
        as_of: AsOf,
        /// The ends of the sources.
        head: AsOf,
    },
    /// The view did not reach the token in time.
    #[error("the view is behind: it has {as_of}")]
    Behind {
        /// The place that it has.
        as_of: AsOf,
    },
    /// A source has another event than the one that was folded: it was restored from a backup. The
    /// view stays as it is until a rebuild.
    #[error("the topic {topic:?} has another event at {position} than the view was built from")]
    Diverged {
        /// Name of the topic.
        topic: String,
        /// The place of the event.
        position: Position,
    },
    /// Events of a source were trimmed before they were folded.
    #[error("the topic {topic:?} was trimmed to {first}, and the view needs earlier events")]
    Trimmed {
        /// Name of the topic.
        topic: String,
        /// The first event that is kept.
        first: Position,
    },
    /// One record changes more rows than a batch of the store holds.
    #[error("the record of {topic:?} at {position} changes {rows} rows, and a page holds at most {most}")]
    TooWide {
        /// Name of the topic.
        topic: String,
        /// The place of the record.
        position: Position,
        /// Number of rows that it changes.
        rows: usize,
        /// Maximum number of rows of a page.
        most: usize,
    },
    /// An event does not decode, or changes a row whose key the store refuses.
    #[error("the event of {topic:?} at {position} does not decode, or its keys are refused: {reason}")]
    Undecodable {
        /// Name of the topic.
        topic: String,
        /// The place of the event.
        position: Position,
        /// The error of the codec, or the rule for keys.
        reason: PortError,
    },
    /// This version of the view was retired.
    #[error("this version of the view was retired")]
    Retired,
    /// Another rebuild has taken the place of this one.
    #[error("another rebuild of the view has begun")]
    Replaced,
    /// An argument violates a rule. Nothing was sent.
    #[error(transparent)]
    Invalid(PortError),
    /// The store or a source failed.
    #[error(transparent)]
    Store(PortError),
}

impl Failure for ViewError {
    fn backend(&self) -> Option<&PortError> {
        match self {
            Self::Invalid(error) | Self::Store(error) => Some(error),
            _ => None,
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            Self::Building { .. } | Self::Behind { .. } => ErrorClass::Transient,
            _ => self.backend().map_or(ErrorClass::Permanent, PortError::class),
        }
    }
}
