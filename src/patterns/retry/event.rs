//! What a retry tells.
use std::time::Duration;

use crate::{
    observe::Traced,
    outcome::{FailureKind, StopReason},
};

/// Something a [`Retry`](super::Retry) did. An operation that succeeds at once is no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryEvent {
    /// An attempt failed, and another follows.
    Retrying {
        /// The number of the attempt that failed, from 1.
        attempt: u32,
        /// How it failed; nothing where a policy refused it.
        kind: Option<FailureKind>,
        /// The wait before the next.
        delay: Duration,
    },
    /// An attempt succeeded after others had failed.
    Recovered {
        /// How many attempts it took.
        attempts: u32,
    },
    /// The last attempt failed, and none follows.
    GaveUp {
        /// How many attempts were made.
        attempts: u32,
        /// How the last failed; nothing where a policy refused it.
        kind: Option<FailureKind>,
        /// Why none follows.
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
            // The retry around it tells what comes of it.
            Self::GaveUp { attempts, kind, stop: stop @ StopReason::Nested } => {
                tracing::debug!(target: "steadfast::retry", retry = source, attempts, ?kind, %stop, "gave up");
            }
            Self::GaveUp { attempts, kind, stop } => {
                tracing::warn!(target: "steadfast::retry", retry = source, attempts, ?kind, %stop, "gave up");
            }
        }
    }
}
