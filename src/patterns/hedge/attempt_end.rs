//! The pure decision at the end of an attempt: start another one, wait for others, or end the call.
//! It uses neither async nor a clock. The timer of the delay is in `race`.
use std::time::Duration;

use super::{HedgeConfig, event::SuppressReason};
use crate::{
    outcome::{Cause, FailureKind, Hint, Outcome},
    time::{Instant, nanos},
};

/// Longest time for which one hint stops hedging: equal to the wait that a retry allows by default.
/// One server does not speak for all, and a wrong hint must not last.
const LONGEST_QUIET: Duration = Duration::from_secs(60);

/// The end of one attempt.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    /// Parts that only a failure or a rejection has, if the hedge needs them: boxed, so that a
    /// success moves 16 bytes.
    pub(super) failure: Option<Box<FailureParts>>,
}

/// The parts of a failed or rejected attempt.
#[derive(Debug)]
pub(super) struct FailureParts {
    /// The server's hint; none after a rejection.
    pub(super) hint: Hint,
    pub(super) cause: Cause<FailureKind>,
}

/// The consequence of the end of an attempt.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// The outcome is the call's: all other attempts are dropped.
    Over,
    /// Another attempt may start at once.
    Next(FailureKind),
    /// No other may start; those in flight continue.
    Wait(SuppressReason),
}

impl Ended {
    /// Returns `true` if the attempt neither failed nor was rejected.
    #[inline]
    pub(super) fn is_good(&self) -> bool {
        !self.outcome.is_failure() && self.outcome != Outcome::Rejected
    }

    fn hint(&self) -> Hint {
        self.failure.as_ref().map_or(Hint::None, |failure| failure.hint)
    }

    /// Returns the cause of the failure or rejection, for events. Its kind alone, if no event was
    /// wanted when the attempt ended.
    pub(super) fn cause(&self) -> Cause<FailureKind> {
        let unknown = || Cause::Operation(self.outcome.kind().unwrap_or(FailureKind::Other));
        self.failure.as_ref().map_or_else(unknown, |failure| failure.cause.clone())
    }

    pub(super) fn then(&self, config: &HedgeConfig) -> Then {
        match self.outcome {
            // An inner policy says "stop asking"; attempts in flight may still succeed.
            Outcome::Rejected => Then::Wait(SuppressReason::Rejected),
            outcome => match outcome.kind() {
                Some(kind) if config.hedge_on.contains(kind) => match self.hint() {
                    Hint::None => Then::Next(kind),
                    _ => Then::Wait(SuppressReason::PushedBack),
                },
                _ => Then::Over,
            },
        }
    }

    /// Returns the time until which the other side asked for a pause, in nanoseconds of the clock,
    /// at most [`LONGEST_QUIET`] from now.
    pub(super) fn quiet_until(&self, now: Instant) -> u64 {
        self.hint().retry_after().map_or(0, |wait| now.as_nanos().saturating_add(nanos(wait.min(LONGEST_QUIET))))
    }
}

/// The number of attempts of one call.
#[derive(Debug)]
pub(super) struct Plan {
    started: u32,
    max: u32,
    held: bool,
}

impl Plan {
    /// Creates the plan of a call whose first attempt has started.
    pub(super) const fn new(max: u32) -> Self {
        Self { started: 1, max, held: false }
    }

    /// Returns `true` if another attempt may start.
    pub(super) const fn is_open(&self) -> bool {
        !self.held && self.started < self.max
    }

    /// Stops further attempts. Returns `true` if another could have started before.
    pub(super) const fn hold(&mut self) -> bool {
        let news = self.is_open();
        self.held = true;
        news
    }

    /// Counts another attempt. Returns its number, from 1.
    pub(super) const fn start(&mut self) -> u32 {
        self.started += 1;
        self.started - 1
    }

    pub(super) const fn started(&self) -> u32 {
        self.started
    }
}
