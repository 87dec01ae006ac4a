//! Events of a fallback.
use std::time::Duration;

use crate::{
    observe::Traced,
    outcome::{FailureKind, PolicyKind},
};

/// An event of a [`Fallback`](super::Fallback). A call that succeeds causes none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FallbackEvent {
    /// The call returned the fallback's value.
    FellBack {
        /// The outcome that it replaced.
        after: Setback,
    },
    /// The fallback also failed: the call returns its own failure.
    Failed {
        /// The outcome that it should have replaced.
        after: Setback,
        /// Kind of the fallback's failure; `None` if its error was not judged a failure.
        kind: Option<FailureKind>,
    },
    /// The fallback timed out and was dropped: the call returns its own failure.
    TimedOut {
        /// The outcome that it should have replaced.
        after: Setback,
        /// Time that it was given.
        given: Duration,
    },
}

/// The outcome after which a call fell back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Setback {
    /// A failure of this kind.
    Failure(FailureKind),
    /// A rejection by this kind of policy.
    Rejection(PolicyKind),
}

impl Traced for FallbackEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::fallback", tracing::Level::WARN)
    }

    fn trace(&self, source: &str) {
        const TARGET: &str = "steadfast::fallback";
        match self {
            Self::FellBack { after } => tracing::info!(target: TARGET, fallback = source, ?after, "fell back"),
            Self::Failed { after, kind } => {
                tracing::warn!(target: TARGET, fallback = source, ?after, ?kind, "the fallback also failed");
            }
            Self::TimedOut { after, given } => {
                tracing::warn!(target: TARGET, fallback = source, ?after, ?given, "the fallback timed out");
            }
        }
    }
}
