//! Events of a retry.
use std::time::Duration;

use crate::{
    observe::Traced,
    outcome::{FailureKind, StopReason},
};

/// An event of a [`Retry`](super::Retry). An operation that succeeds at once causes none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryEvent {
    /// An attempt failed, and another follows.
    Retrying {
        /// Number of the failed attempt, from 1.
        attempt: u32,
        /// Kind of failure; `None` if a policy rejected the attempt.
        kind: Option<FailureKind>,
        /// Wait before the next attempt.
        delay: Duration,
    },
    /// An attempt succeeded after others had failed.
    Recovered {
        /// Number of attempts.
        attempts: u32,
    },
    /// The last attempt failed, and none follows.
    GaveUp {
        /// Number of attempts.
        attempts: u32,
        /// Kind of the last failure; `None` if a policy rejected the attempt.
        kind: Option<FailureKind>,
        /// Reason why none follows.
        stop: StopReason,
    },
}

impl Traced for RetryEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::retry", tracing::Level::INFO)
    }

    fn trace(&self, source: &str) {
        match self {
            Self::Retrying { attempt, kind, delay } => {
                tracing::info!(target: "steadfast::retry", retry = source, attempt, ?kind, ?delay, "retrying");
            }
            Self::Recovered { attempts } => {
                tracing::info!(target: "steadfast::retry", retry = source, attempts, "recovered");
            }
            // The outer retry reports the final result.
            Self::GaveUp { attempts, kind, stop: stop @ StopReason::Nested } => {
                tracing::debug!(target: "steadfast::retry", retry = source, attempts, ?kind, %stop, "gave up");
            }
            Self::GaveUp { attempts, kind, stop } => {
                tracing::warn!(target: "steadfast::retry", retry = source, attempts, ?kind, %stop, "gave up");
            }
        }
    }
}
