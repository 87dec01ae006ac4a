//! What a listener counts, and how it stands.
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::queue::Depth;

/// How a listener stands. The counts are from its making on, over all its runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ListenerState {
    /// Tasks now.
    pub tasks: u32,
    /// The most tasks that there were at once.
    pub most_tasks: u32,
    /// Handlers that wait for something now.
    pub in_flight: u64,
    /// Messages that were taken, and that no handler has begun with.
    pub buffered: u64,
    /// What the queue held when it was last asked for.
    pub depth: Option<Depth>,
    /// Requests for messages.
    pub polls: u64,
    /// Those that found none.
    pub empty_polls: u64,
    /// Requests to the queue of all kinds: what a cloud's queue is paid for.
    pub requests: u64,
    /// Messages that were taken.
    pub received: u64,
    /// Messages that were handled, and completed.
    pub handled: u64,
    /// Times that a message failed, and went back.
    pub failed: u64,
    /// Messages that were set aside.
    pub dead_lettered: u64,
    /// Leases that were lost.
    pub leases_lost: u64,
    /// Messages that were seen before, and not handled again.
    pub duplicates: u64,
    /// Messages that went back untried: the listener paused or stopped, or another message had to be handled alone.
    pub handed_back: u64,
    /// Times that what a handler needs refused a message, and that it went back without an attempt.
    pub refused: u64,
    /// Whether it is paused.
    pub paused: bool,
}

impl ListenerState {
    /// What its requests cost, at this price for a million.
    pub fn cost(&self, price_per_million: f64) -> f64 {
        self.requests as f64 * price_per_million / 1e6
    }
}

/// A count that many tasks add to.
#[derive(Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) tasks: AtomicU32,
    pub(super) most_tasks: AtomicU32,
    pub(super) in_flight: Count,
    pub(super) polls: Count,
    pub(super) empty_polls: Count,
    pub(super) requests: Count,
    pub(super) received: Count,
    pub(super) handled: Count,
    pub(super) failed: Count,
    pub(super) dead_lettered: Count,
    pub(super) leases_lost: Count,
    pub(super) duplicates: Count,
    pub(super) handed_back: Count,
    pub(super) refused: Count,
}

impl Counters {
    pub(super) fn state(&self, buffered: u64, depth: Option<Depth>, paused: bool) -> ListenerState {
        ListenerState {
            tasks: self.tasks.load(Ordering::Relaxed),
            most_tasks: self.most_tasks.load(Ordering::Relaxed),
            in_flight: self.in_flight.get(),
            buffered,
            depth,
            polls: self.polls.get(),
            empty_polls: self.empty_polls.get(),
            requests: self.requests.get(),
            received: self.received.get(),
            handled: self.handled.get(),
            failed: self.failed.get(),
            dead_lettered: self.dead_lettered.get(),
            leases_lost: self.leases_lost.get(),
            duplicates: self.duplicates.get(),
            handed_back: self.handed_back.get(),
            refused: self.refused.get(),
            paused,
        }
    }
}
