//! The pure decision: again or not, and after how long. Knows neither async nor a clock.
use std::time::Duration;

use super::RetryConfig;
use crate::{
    backoff::Jitter,
    outcome::{FailureKind, Hint, Rejected, Stop},
    time::Instant,
};

/// What is known when an attempt has failed.
pub(super) struct Failed<'a> {
    /// The number of the attempt that failed, from 1.
    pub(super) attempt: u32,
    pub(super) kind: Option<FailureKind>,
    pub(super) hint: Hint,
    pub(super) rejection: Option<&'a Rejected>,
    /// Whether the operation may run twice, by its mark or else by the settings.
    pub(super) idempotent: bool,
}

impl RetryConfig {
    /// Whether another attempt may follow at all, and the wait that somebody asked for.
    pub(super) fn may_follow(&self, failed: &Failed<'_>) -> Result<Option<Duration>, Stop> {
        let asked = match failed.rejection {
            Some(rejected) => match rejected.retry_after() {
                Some(wait) if self.retry_rejections => Some(wait),
                _ => return Err(Stop::NotRetryable),
            },
            None => {
                let kind = failed.kind.unwrap_or(FailureKind::Other);
                if !self.retry_on.contains(kind) {
                    return Err(Stop::NotRetryable);
                }
                // Only a connection that never stood proves that nothing was sent.
                if !failed.idempotent && kind != FailureKind::Connect {
                    return Err(Stop::NotIdempotent);
                }
                if failed.hint == Hint::DoNotRetry {
                    return Err(Stop::ToldNotTo);
                }
                failed.hint.retry_after()
            }
        };
        if failed.attempt >= self.max_attempts {
            return Err(Stop::Attempts);
        }
        match asked {
            Some(wait) if wait > self.max_hint => Err(Stop::HintTooLong),
            asked => Ok(asked),
        }
    }

    /// The wait before the next attempt: what was asked for, with the back-off's jitter only on top.
    pub(super) fn delay(&self, backoff: Duration, asked: Option<Duration>) -> Duration {
        match asked {
            None => backoff,
            Some(asked) if self.backoff.jitter == Jitter::None => backoff.max(asked),
            Some(asked) => asked.saturating_add(backoff),
        }
    }

    /// Whether an attempt at `at` would start within the total time and before the deadline.
    pub(super) fn fits(&self, started: Instant, at: Instant, deadline: Option<Instant>) -> Result<(), Stop> {
        if self.max_elapsed.is_some_and(|total| at - started > total) {
            return Err(Stop::TotalTime);
        }
        if deadline.is_some_and(|deadline| at >= deadline) {
            return Err(Stop::Deadline);
        }
        Ok(())
    }
}
