//! The pure part of the decision: retry or stop, and after which delay. It uses neither async nor a
//! clock. `policy` checks the budget, the end of custom delays and nesting.
use std::time::Duration;

use super::RetryConfig;
use crate::{
    backoff::{Jitter, scaled},
    outcome::{FailureKind, Hint, StopReason},
    time::Instant,
};

/// The facts about a failed attempt.
pub(super) struct FailedAttempt {
    /// Number of the attempt, from 1.
    pub(super) attempt: u32,
    pub(super) kind: Option<FailureKind>,
    pub(super) hint: Hint,
    /// `Some` for a rejection; the inner value is its retry time, if stated.
    pub(super) refused: Option<Option<Duration>>,
    /// `true` if the operation cannot run again.
    pub(super) spent: bool,
    /// `true` if the operation may run twice, by its mark or else by the settings.
    pub(super) idempotent: bool,
}

impl RetryConfig {
    /// Checks if another attempt may follow. Returns the wait that the server or the rejecting
    /// policy asked for.
    pub(super) fn may_follow(&self, failed: &FailedAttempt) -> Result<Option<Duration>, StopReason> {
        let asked = match failed.refused {
            Some(Some(wait)) if self.retry_rejections => Some(wait),
            Some(_) => return Err(StopReason::NotRetryable),
            None => {
                let kind = failed.kind.unwrap_or(FailureKind::Other);
                if !self.retry_on.contains(kind) {
                    return Err(StopReason::NotRetryable);
                }
                // Only a connection that was never established proves that nothing was sent.
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

    /// Returns the wait before the next attempt: the back-off's delay or the requested one,
    /// whichever is longer.
    ///
    /// Jitter only adds to the requested one. At most a tenth of it, or the first delay if that is
    /// less, is added; `spread`, between 0 and 1, is the share of that.
    pub(super) fn delay(&self, backoff: Duration, asked: Option<Duration>, spread: f64) -> Duration {
        let Some(asked) = asked else { return backoff };
        let bound =
            if self.backoff.jitter == Jitter::None { Duration::ZERO } else { self.backoff.base.min(asked / 10) };
        backoff.max(asked.saturating_add(scaled(bound, spread)))
    }

    /// Checks that an attempt at `at` would start within the total time and before the deadline.
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
