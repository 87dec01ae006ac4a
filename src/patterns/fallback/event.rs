//! Events of a fallback.
use std::time::Duration;

use crate::{
    observe::Traced,
    outcome::{Cause, FailureKind},
};

/// An event of a [`Fallback`](super::Fallback). A call that succeeds causes none.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FallbackEvent {
    /// The call returned the fallback's value.
    FellBack {
        /// The failure or rejection that it replaced.
        after: Cause<FailureKind>,
    },
    /// The fallback also failed: the call returns its own failure.
    Failed {
        /// The failure or rejection that it should have replaced.
        after: Cause<FailureKind>,
        /// Kind of the fallback's failure; `None` if its error was not judged a failure.
        kind: Option<FailureKind>,
    },
    /// The fallback timed out and was dropped: the call returns its own failure.
    TimedOut {
        /// The failure or rejection that it should have replaced.
        after: Cause<FailureKind>,
        /// Time that it was given.
        given: Duration,
    },
}

impl Traced for FallbackEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::fallback", tracing::Level::DEBUG)
    }

    fn trace(&self, source: &str) {
        const TARGET: &str = "steadfast::fallback";
        match self {
            Self::FellBack { after } => tracing::debug!(target: TARGET, fallback = source, %after, "fell back"),
            Self::Failed { after, kind } => {
                tracing::debug!(target: TARGET, fallback = source, %after, ?kind, "the fallback also failed");
            }
            Self::TimedOut { after, given } => {
                tracing::debug!(target: TARGET, fallback = source, %after, ?given, "the fallback timed out");
            }
        }
    }
}
