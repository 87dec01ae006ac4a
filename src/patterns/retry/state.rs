//! The pure decision: again or not, and after how long. Knows neither async nor a clock.
use std::time::Duration;

use super::RetryConfig;
use crate::{
    backoff::{Jitter, scaled},
    outcome::{FailureKind, Hint, StopReason},
    time::Instant,
};

/// What is known when an attempt has failed.
pub(super) struct FailedAttempt {
    /// The number of the attempt that failed, from 1.
    pub(super) attempt: u32,
    pub(super) kind: Option<FailureKind>,
    pub(super) hint: Hint,
    /// Of a refusal, the time to come back, where it is known.
    pub(super) refused: Option<Option<Duration>>,
    /// The operation cannot be run again.
    pub(super) spent: bool,
    /// Whether the operation may run twice, by its mark or else by the settings.
    pub(super) idempotent: bool,
}

impl RetryConfig {
    /// Whether another attempt may follow at all, and the wait that somebody asked for.
    pub(super) fn may_follow(&self, failed: &FailedAttempt) -> Result<Option<Duration>, StopReason> {
        let asked = match failed.refused {
            Some(Some(wait)) if self.retry_rejections => Some(wait),
            Some(_) => return Err(StopReason::NotRetryable),
            None => {
                let kind = failed.kind.unwrap_or(FailureKind::Other);
                if !self.retry_on.contains(kind) {
                    return Err(StopReason::NotRetryable);
                }
                // Only a connection that never stood proves that nothing was sent.
                if !failed.idempotent && kind != FailureKind::Connect {
                    return Err(StopReason::NotIdempotent);
                }
                if failed.hint == Hint::DoNotRetry {
                    return Err(StopReason::DoNotRetry);
                }
                failed.hint.retry_after()
            }
        };
        if failed.attempt >= self.max_attempts {
            return Err(StopReason::Attempts);
        }
        if failed.spent {
            return Err(StopReason::Spent);
        }
        match asked {
            Some(wait) if wait > self.max_hint => Err(StopReason::HintTooLong),
            asked => Ok(asked),
        }
    }

    /// Returns the wait before the next attempt: the back-off's or what was asked for, whichever is longer. Jitter only adds to what was
    /// asked for: `spread`, between 0 and 1, is the part of its bound, a tenth of the wait or the first delay, that is added.
    pub(super) fn delay(&self, backoff: Duration, asked: Option<Duration>, spread: f64) -> Duration {
        let Some(asked) = asked else { return backoff };
        let bound =
            if self.backoff.jitter == Jitter::None { Duration::ZERO } else { self.backoff.base.min(asked / 10) };
        backoff.max(asked.saturating_add(scaled(bound, spread)))
    }

    /// Whether an attempt at `at` would start within the total time and before the deadline.
    pub(super) fn fits(&self, started: Instant, at: Instant, deadline: Option<Instant>) -> Result<(), StopReason> {
        if self.max_elapsed.is_some_and(|total| at - started > total) {
            return Err(StopReason::TotalTime);
        }
        if deadline.is_some_and(|deadline| at >= deadline) {
            return Err(StopReason::Deadline);
        }
        Ok(())
    }
}
