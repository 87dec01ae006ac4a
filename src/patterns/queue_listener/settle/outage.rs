//! The outage of the services behind the handlers, and the return of refused messages: two state
//! machines that take `now` as an argument, and the part of a run that owns them.
//
// Concurrency. `is_open` mirrors `outage` and is written under its lock. A stale read at most omits
// the record of one success. No data is read on the strength of `paced_to`, so `Relaxed` suffices.
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use crate::{queue::MessageId, queue_listener::lease::Lease, sync::Mutex, time::Instant};

/// The outage that the handlers of one run meet, and the messages that return.
#[derive(Default)]
pub(crate) struct Outages {
    outage: Mutex<Outage>,
    /// `true` while an outage is open. Read for each message, without a lock.
    is_open: AtomicBool,
    pub(crate) returns: Mutex<Returns>,
    /// Numbers of lost deliveries that failed attempts took back, by message. The queue no longer
    /// tells them from releases.
    taken_back: Mutex<BTreeMap<MessageId, u32>>,
    /// Nanoseconds at which the next poll may be made while polls are paced.
    paced_to: AtomicU64,
}

impl Outages {
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Outage) -> T) -> T {
        let mut outage = self.outage.lock();
        let result = change(&mut outage);
        self.is_open.store(!outage.is_over(), Ordering::Release);
        result
    }

    /// Records that the queue accepted a failed attempt, which takes lost deliveries back.
    pub(crate) fn takes_back(&self, lease: &Lease) {
        if lease.untried > 0 {
            let mut taken_back = self.taken_back.lock();
            *taken_back.entry(lease.id.clone()).or_default() += lease.untried;
            if taken_back.len() > MOST_KNOWN {
                taken_back.pop_first();
            }
        }
    }

    /// Returns the number of earlier releases of a message. Lost deliveries before a failed attempt
    /// that another process settled are among them.
    pub(crate) fn releases(&self, lease: &Lease) -> u32 {
        match lease.deliveries.saturating_sub(lease.attempt.saturating_add(lease.untried)) {
            0 => 0,
            all => all.saturating_sub(self.taken_back.lock().get(&lease.id).copied().unwrap_or_default()),
        }
    }

    /// Returns `true` while consecutive messages are refused.
    pub(crate) fn refuses_all(&self) -> bool {
        self.is_open() && self.outage.lock().refuses_all()
    }

    /// Lets the next poll be made at once though polls are paced: the last one was full, so that
    /// other messages may wait behind those that are refused.
    pub(crate) fn skip_pace(&self) {
        self.paced_to.store(0, Ordering::Relaxed);
    }

    /// Returns the time of the next poll if polls are paced, to one in `interval`, and it is not
    /// due yet.
    pub(crate) fn pace(&self, now: Instant, interval: Duration) -> Option<Instant> {
        if !self.refuses_all() {
            return None;
        }
        let to = self.paced_to.load(Ordering::Relaxed);
        if to > now.as_nanos() {
            return Some(Instant::from_nanos(to));
        }
        let next = (now + interval).as_nanos();
        let turn = self.paced_to.compare_exchange(to, next, Ordering::Relaxed, Ordering::Relaxed);
        turn.err().map(Instant::from_nanos)
    }
}

/// Maximum length of an outage in which failures of refused messages are not counted. After it they
/// are, because a poisoned message behind its own circuit breaker looks the same.
pub(crate) const LONGEST: Duration = Duration::from_secs(6 * 3600);

/// Refusals further apart belong to different outages.
const APART: Duration = Duration::from_secs(600);

/// Consecutive refusals after which polls are paced.
const IN_A_ROW: u32 = 8;

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// Maximum number of messages of which a run knows that they were refused, or lost deliveries. It
/// counts the failures of other messages.
const MOST_KNOWN: usize = 16_384;

/// An outage of a service behind the handlers. It begins with a refusal and ends when a message
/// that was refused succeeds. Other successes say nothing: they may concern another service.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    since: Option<Instant>,
    /// Time of the last refusal.
    last: Instant,
    in_a_row: u32,
    /// Number of outages that have begun.
    begun: u64,
    /// Messages that were refused: their outage, and the number of their uncounted failures in it.
    /// It stays that of the first such failure.
    known: BTreeMap<MessageId, (u64, u32)>,
    /// Numbers of refused messages that are hidden, by the second in which they return.
    hidden: BTreeMap<u64, u32>,
}

impl Outage {
    pub(crate) fn refused(&mut self, message: &MessageId, now: Instant) {
        if now - self.last > APART {
            // Another listener may have handled the messages that ended the last outage.
            self.since = None;
            self.known.clear();
        }
        self.last = now;
        if self.since.is_none() {
            self.since = Some(now);
            self.begun += 1;
            self.known.retain(|_, (_, failures)| *failures > 0);
            if self.known.len() > MOST_KNOWN / 2 {
                self.known.clear();
            }
        }
        if self.known.len() < MOST_KNOWN && !self.known.contains_key(message) {
            self.known.insert(message.clone(), (self.begun, 0));
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
    }

    /// Returns the number of refused messages that this listener has hidden.
    pub(crate) fn hidden(&mut self, now: Instant) -> u32 {
        let now = now.as_nanos() / SECOND;
        while self.hidden.first_key_value().is_some_and(|(second, _)| *second < now) {
            self.hidden.pop_first();
        }
        self.hidden.values().fold(0, |all, some| all.saturating_add(*some))
    }

    /// Records that a refused message returns at this time.
    pub(crate) fn hides_until(&mut self, at: Instant) {
        *self.hidden.entry(at.as_nanos() / SECOND).or_default() += 1;
    }

    pub(crate) fn succeeded(&mut self, was_released: bool) {
        self.in_a_row = 0;
        if was_released {
            self.since = None;
        }
    }

    /// Records a failure. Returns the number of failures of the message in this outage if it is not
    /// an attempt: the message was refused in this outage and may have been its probe. A message
    /// that failed so in an earlier outage, and now fails again though others succeeded since,
    /// fails by itself.
    pub(crate) fn failed(&mut self, message: &MessageId, now: Instant) -> Option<u32> {
        self.in_a_row = 0;
        if self.since.is_none_or(|since| now - since >= LONGEST) {
            return None;
        }
        let (outage, failures) = self.known.get_mut(message)?;
        *failures += 1;
        (*outage == self.begun).then_some(*failures)
    }

    /// Returns `true` if no outage is open, so that successes need not be recorded.
    const fn is_over(&self) -> bool {
        self.since.is_none() && self.in_a_row == 0
    }

    /// Returns `true` while consecutive messages are refused.
    const fn refuses_all(&self) -> bool {
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

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_number_of_refused_messages_is_known_in_each_outage() {
        let (id, now) = (|n: usize| MessageId::new(format!("{n}")), Instant::from_nanos(SECOND));
        let mut outage = Outage::default();
        for round in 1..=3_u32 {
            (0..2 * MOST_KNOWN).for_each(|n| outage.refused(&id(n), now));
            assert_eq!(outage.known.len(), MOST_KNOWN);
            let uncounted = (0..2 * MOST_KNOWN).filter(|n| outage.failed(&id(*n), now).is_some()).count();
            assert_eq!(uncounted, MOST_KNOWN, "round {round}");
            outage.succeeded(true);
            assert_eq!(outage.failed(&id(0), now), None, "no outage is open");
        }
        // What failed in an earlier outage fails by itself in a later one.
        let mut outage = Outage::default();
        outage.refused(&id(1), now);
        assert_eq!((outage.failed(&id(1), now), outage.failed(&id(2), now)), (Some(1), None));
        outage.succeeded(true);
        (1..=2).for_each(|n| outage.refused(&id(n), now));
        assert_eq!((outage.failed(&id(1), now), outage.failed(&id(2), now)), (None, Some(1)));
    }
}
