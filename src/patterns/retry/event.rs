//! Events of a retry.
use std::time::Duration;

use crate::{
    observe::Traced,
    outcome::{Cause, FailureKind, StopReason},
};

/// An event of a [`Retry`](super::Retry). An operation that succeeds at once causes none.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryEvent {
    /// An attempt failed, and another follows.
    Retrying {
        /// Number of the failed attempt, from 1.
        attempt: u32,
        /// Cause: the kind of the operation's failure, the rejection by a policy, or the time-out.
        cause: Cause<FailureKind>,
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
        /// Cause of the last failure.
        cause: Cause<FailureKind>,
        /// Reason why none follows.
        stop: StopReason,
    },
}

impl Traced for RetryEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::retry", tracing::Level::DEBUG)
    }

    // All are parts of a call, which reports its outcome itself.
    fn trace(&self, source: &str) {
        const TARGET: &str = "steadfast::retry";
        match self {
            Self::Retrying { attempt, cause, delay } => {
                let kind = cause.kind();
                tracing::debug!(target: TARGET, retry = source, attempt, ?kind, %cause, ?delay, "retrying");
            }
            Self::Recovered { attempts } => {
                tracing::debug!(target: TARGET, retry = source, attempts, "recovered");
            }
            Self::GaveUp { attempts, cause, stop } => {
                let kind = cause.kind();
                tracing::debug!(target: TARGET, retry = source, attempts, ?kind, %cause, %stop, "gave up");
            }
        }
    }
}
