//! Whether what the handlers call is away. Takes `now` as an argument; knows neither async nor the queue.
use std::{collections::BTreeSet, time::Duration};

use crate::time::Instant;

/// The longest outage during which failures of refused messages are not counted. A message that fails by itself, behind a circuit breaker
/// of its own, looks the same, and is counted after that.
pub(crate) const LONGEST: Duration = Duration::from_secs(6 * 3600);

/// Refusals further apart than this are not of one outage.
const APART: Duration = Duration::from_secs(600);

/// So many messages refused in a row: polls are paced.
const IN_A_ROW: u32 = 8;

/// Begins with a refusal, and ends when a message succeeds that was refused before. Other successes say nothing: they may be of another
/// service.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    since: Option<Instant>,
    /// The last refusal.
    last: Instant,
    in_a_row: u32,
}

impl Outage {
    pub(crate) fn refused(&mut self, now: Instant) {
        if now - self.last > APART {
            // Another listener may have had the messages that ended the last one.
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

    /// A message failed; true if that is not counted: it was refused before, by an outage that has not ended, and may have been a probe.
    pub(crate) fn failed(&mut self, was_released: bool, now: Instant) -> bool {
        self.in_a_row = 0;
        was_released && self.since.is_some_and(|since| now - since < LONGEST)
    }

    /// Nothing is to be kept in mind: successes need not be told.
    pub(crate) const fn is_over(&self) -> bool {
        self.since.is_none() && self.in_a_row == 0
    }

    /// Messages are refused one after another.
    pub(crate) const fn refuses_all(&self) -> bool {
        self.in_a_row >= IN_A_ROW
    }
}

/// Nanoseconds between two looks for messages that return.
const STEP: u64 = 100_000_000;

/// More are not kept in mind one by one.
const MOST: usize = 4096;

/// When the messages that this listener sent back are visible again: somebody has to look then, since no notice tells of it.
#[derive(Debug, Default)]
pub(crate) struct Returns {
    times: BTreeSet<Instant>,
    last: Instant,
}

impl Returns {
    pub(crate) fn add(&mut self, at: Instant) {
        // To the next step: those that return one after another are looked for together.
        let at = Instant::from_nanos(at.as_nanos().div_ceil(STEP).saturating_mul(STEP));
        if self.times.len() < MOST {
            self.times.insert(at);
        }
        self.last = self.last.max(at);
    }

    /// The next; those that are over are left out.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.times.first().copied()
    }

    /// Forgets those that are due; true if there were any.
    pub(crate) fn take_due(&mut self, now: Instant) -> bool {
        let before = self.times.len();
        while self.next().is_some_and(|at| at <= now) {
            self.times.pop_first();
        }
        self.times.len() < before
    }

    /// Messages are yet to return.
    pub(crate) fn are_expected(&self, now: Instant) -> bool {
        self.last > now || !self.times.is_empty()
    }
}
