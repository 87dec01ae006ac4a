//! The pure decision: whether another attempt starts. Knows neither async nor a clock.
use std::time::Duration;

use super::{HedgeConfig, event::SuppressReason};
use crate::{
    outcome::{FailureKind, Hint, Outcome},
    time::{Instant, nanos},
};

/// The longest time for which one answer stops hedging: as long as the wait that a retry grants by default. One server's word is not
/// another's, and a wrong one must not last.
const LONGEST_QUIET: Duration = Duration::from_secs(60);

/// How one attempt ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    /// The server's word, where it failed.
    pub(super) hint: Hint,
}

/// What follows from the end of an attempt.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// It is the call's result: all others are dropped.
    Over,
    /// Another may start at once.
    Next(FailureKind),
    /// No other may start; those in flight go on.
    Wait(SuppressReason),
}

impl Ended {
    /// Neither failed nor refused.
    #[inline]
    pub(super) fn is_good(&self) -> bool {
        !self.outcome.is_failure() && self.outcome != Outcome::Rejected
    }

    pub(super) fn then(&self, config: &HedgeConfig) -> Then {
        match self.outcome {
            // "Stop asking", says a policy inside; what is in flight may still succeed.
            Outcome::Rejected => Then::Wait(SuppressReason::Rejected),
            outcome => match outcome.kind() {
                Some(kind) if config.hedge_on.contains(kind) => match self.hint {
                    Hint::None => Then::Next(kind),
                    _ => Then::Wait(SuppressReason::PushedBack),
                },
                _ => Then::Over,
            },
        }
    }

    /// Returns until when the other side asked to be left alone, in nanoseconds of the clock: [`LONGEST_QUIET`] at most.
    pub(super) fn quiet_until(&self, now: Instant) -> u64 {
        self.hint.retry_after().map_or(0, |wait| now.as_nanos().saturating_add(nanos(wait.min(LONGEST_QUIET))))
    }
}

/// The attempts of one call.
#[derive(Debug)]
pub(super) struct Plan {
    started: u32,
    max: u32,
    held: bool,
}

impl Plan {
    /// The first attempt has started.
    pub(super) const fn new(max: u32) -> Self {
        Self { started: 1, max, held: false }
    }

    /// Whether another may ever start.
    pub(super) const fn is_open(&self) -> bool {
        !self.held && self.started < self.max
    }

    /// None starts any more. Whether that is news.
    pub(super) const fn hold(&mut self) -> bool {
        let news = self.is_open();
        self.held = true;
        news
    }

    /// Starts another: its number, from 1.
    pub(super) const fn start(&mut self) -> u32 {
        self.started += 1;
        self.started - 1
    }

    pub(super) const fn started(&self) -> u32 {
        self.started
    }
}
