//! The outage of the services behind the handlers, and the return of refused messages. State
//! machines that take `now` as an argument.
use std::{collections::BTreeSet, time::Duration};

use crate::time::Instant;

/// Maximum length of an outage in which failures of refused messages are not counted. After it they
/// are, because a poisoned message behind its own circuit breaker looks the same.
pub(crate) const LONGEST: Duration = Duration::from_secs(6 * 3600);

/// Refusals further apart belong to different outages.
const APART: Duration = Duration::from_secs(600);

/// Consecutive refusals after which polls are paced.
const IN_A_ROW: u32 = 8;

/// An outage of a service behind the handlers. It begins with a refusal and ends when a message
/// that was refused succeeds. Other successes say nothing: they may concern another service.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    since: Option<Instant>,
    /// Time of the last refusal.
    last: Instant,
    in_a_row: u32,
}

impl Outage {
    pub(crate) fn refused(&mut self, now: Instant) {
        if now - self.last > APART {
            // Another listener may have handled the messages that ended the last outage.
            self.since = None;
        }
        self.last = now;
        self.since.get_or_insert(now);
        self.in_a_row = self.in_a_row.saturating_add(1);
    }

    pub(crate) fn succeeded(&mut self, was_released: bool) {
        self.in_a_row = 0;
        if was_released {
            self.since = None;
        }
    }

    /// Records a failure. Returns `true` if it is not an attempt: the message was refused in this
    /// outage and may have been its probe.
    pub(crate) fn failed(&mut self, was_released: bool, now: Instant) -> bool {
        self.in_a_row = 0;
        was_released && self.since.is_some_and(|since| now - since < LONGEST)
    }

    /// Returns `true` if no outage is open, so that successes need not be recorded.
    pub(crate) const fn is_over(&self) -> bool {
        self.since.is_none() && self.in_a_row == 0
    }

    /// Returns `true` while consecutive messages are refused.
    pub(crate) const fn refuses_all(&self) -> bool {
        self.in_a_row >= IN_A_ROW
    }
}

/// Granularity in nanoseconds of the times at which returned messages are looked for.
const STEP: u64 = 100_000_000;

/// Maximum number of times that are kept.
const MOST: usize = 4096;

/// Times at which messages that this listener returned become visible again. A task polls then,
/// because no notice announces them.
#[derive(Debug, Default)]
pub(crate) struct Returns {
    times: BTreeSet<Instant>,
    last: Instant,
}

impl Returns {
    pub(crate) fn add(&mut self, at: Instant) {
        // Rounded up, so that messages that return close together need one poll.
        let at = Instant::from_nanos(at.as_nanos().div_ceil(STEP).saturating_mul(STEP));
        if self.times.len() < MOST {
            self.times.insert(at);
        }
        self.last = self.last.max(at);
    }

    /// Returns the next time.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.times.first().copied()
    }

    /// Removes the times that have passed. Returns `true` if there were any.
    pub(crate) fn take_due(&mut self, now: Instant) -> bool {
        let before = self.times.len();
        while self.next().is_some_and(|at| at <= now) {
            self.times.pop_first();
        }
        self.times.len() < before
    }

    /// Returns `true` if messages are yet to return.
    pub(crate) fn are_expected(&self, now: Instant) -> bool {
        self.last > now || !self.times.is_empty()
    }
}
