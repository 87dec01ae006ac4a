//! What a fallback tells.
use std::time::Duration;

use crate::{
    observe::Traced,
    outcome::{FailureKind, PolicyKind},
};

/// Something a [`Fallback`](super::Fallback) did. A call that succeeds is no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FallbackEvent {
    /// The call's value is its substitute's.
    FellBack {
        /// What it stands in the place of.
        after: Setback,
    },
    /// The substitute failed, too: the call comes to what it was before.
    Failed {
        /// What it should have taken the place of.
        after: Setback,
        /// How the substitute failed; nothing where its error was not judged a failure.
        kind: Option<FailureKind>,
    },
    /// The substitute took too long and was dropped: the call comes to what it was before.
    TimedOut {
        /// What it should have taken the place of.
        after: Setback,
        /// How long it was given.
        given: Duration,
    },
}

/// What a call fell back after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Setback {
    /// A failure of this kind.
    Failure(FailureKind),
    /// A refusal by this kind of policy.
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
