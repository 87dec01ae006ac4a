//! Counters and state of a listener.
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{in_progress::InProgress, queue::Depth, sync::Mutex, time::Instant};

/// State of a listener. Counters start when the listener is built and cover all its runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ListenerState {
    /// Current number of tasks, of all runs together.
    pub tasks: u32,
    /// Maximum number of tasks so far.
    pub most_tasks: u32,
    /// Number of handlers that are pending now. A handler that completes on its first poll is not
    /// counted.
    pub in_flight: u64,
    /// Number of received messages that no handler has begun.
    pub buffered: u64,
    /// Number of handled messages whose results wait for room in a full queue. Only a
    /// [filter](crate::pipes_and_filters::Filter) holds them.
    pub held: u64,
    /// Depth of the queues together at the last request for it. A run makes one when its poll finds
    /// nothing for the first time, and each minute while messages come or this state is read. An
    /// idle listener whose state nobody reads makes none.
    pub depth: Option<Depth>,
    /// Number of dead letters of the queues together at the last request for it, as for `depth`.
    pub dead_letters: Option<u64>,
    /// Number of requests for messages.
    pub polls: u64,
    /// Number of requests for messages that returned none.
    pub empty_polls: u64,
    /// Number of requests of all kinds to the queue, which is what a cloud queue bills.
    pub requests: u64,
    /// Number of messages received.
    pub received: u64,
    /// Number of messages handled and completed.
    pub handled: u64,
    /// Number of failed attempts after which the message was returned to the queue.
    pub failed: u64,
    /// Number of messages moved to the dead letters.
    pub dead_lettered: u64,
    /// Number of leases lost.
    pub leases_lost: u64,
    /// Number of messages that the idempotency filter recognised, and that were completed without a
    /// handler.
    pub duplicates: u64,
    /// Number of messages released before they were tried: the listener paused or stopped, or
    /// another message had to be handled alone.
    pub released: u64,
    /// Number of messages returned without an attempt because a dependency of the handler refused
    /// them.
    pub refused: u64,
    /// Number of messages returned without an attempt because their handler snoozed them.
    pub snoozed: u64,
    /// Number of messages that ended because they were cancelled.
    pub cancelled: u64,
    /// Number of reads of the [`QueueControl`](super::QueueControl)'s records. They are requests to
    /// its store, and not among `requests`.
    pub control_reads: u64,
    /// `true` if the listener is paused, or a [`QueueControl`](super::QueueControl) paused all its
    /// queues.
    pub paused: bool,
    /// `true` if this listener itself is [paused](super::QueueListener::pause), whatever its queues
    /// are.
    pub paused_by_itself: bool,
    /// Number of the listener's queues that a [`QueueControl`](super::QueueControl) paused.
    pub paused_queues: usize,
}

impl ListenerState {
    /// Returns the cost of the requests at this price for a million.
    pub fn cost(&self, price_per_million: f64) -> f64 {
        self.requests as f64 * price_per_million / 1e6
    }
}

/// A counter that many tasks increment. All accesses are `Relaxed`: no other data is read on the
/// strength of a count.
#[derive(Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One message whose results wait for room; counted until it is dropped.
pub(crate) struct Held {
    all: Arc<AtomicU64>,
    pub(crate) since: Instant,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The depth of the queues, and the number of their dead letters, at the last request.
#[derive(Default)]
pub(super) struct LastDepth {
    pub(super) last: Mutex<(Option<Depth>, Option<u64>)>,
    /// Nanoseconds at which the depth was requested last, zero if never. It decides only whether it
    /// is requested again, so `Relaxed` suffices.
    pub(super) asked_at: AtomicU64,
}

impl LastDepth {
    /// Returns `true` if the last request is older than this, or was not made.
    pub(super) fn is_older(&self, than: Duration, now: Instant) -> bool {
        let at = self.asked_at.load(Ordering::Relaxed);
        at == 0 || now >= Instant::from_nanos(at) + than
    }
}

/// Numbers of deliveries by their ends.
#[derive(Default)]
pub(super) struct Ends {
    pub(super) handled: Count,
    pub(super) failed: Count,
    pub(super) dead_lettered: Count,
    pub(super) leases_lost: Count,
    pub(super) duplicates: Count,
    pub(super) released: Count,
    pub(super) refused: Count,
    pub(super) snoozed: Count,
    pub(super) cancelled: Count,
}

#[derive(Default)]
pub(super) struct Counters {
    held: Arc<AtomicU64>,
    pub(super) tasks: AtomicU32,
    pub(super) most_tasks: AtomicU32,
    pub(super) in_flight: InProgress,
    pub(super) polls: Count,
    pub(super) empty_polls: Count,
    pub(super) requests: Count,
    pub(super) received: Count,
    pub(super) control_reads: Count,
    pub(super) ends: Ends,
    pub(super) depth: LastDepth,
}

impl Counters {
    /// Counts a message whose results wait for room from now on.
    #[cold]
    pub(super) fn hold(&self, now: Instant) -> Held {
        self.held.fetch_add(1, Ordering::SeqCst);
        Held { all: self.held.clone(), since: now }
    }

    /// Returns the number of messages whose results wait for room.
    #[inline]
    pub(super) fn held(&self) -> u64 {
        self.held.load(Ordering::SeqCst)
    }

    pub(super) fn state(
        &self,
        buffered: u64,
        (by_itself, by_control, paused_queues): (bool, bool, usize),
    ) -> ListenerState {
        let (ends, (depth, dead_letters)) = (&self.ends, *self.depth.last.lock());
        ListenerState {
            tasks: self.tasks.load(Ordering::Relaxed),
            most_tasks: self.most_tasks.load(Ordering::Relaxed),
            in_flight: self.in_flight.get().into(),
            buffered,
            held: self.held(),
            depth,
            dead_letters,
            polls: self.polls.get(),
            empty_polls: self.empty_polls.get(),
            requests: self.requests.get(),
            received: self.received.get(),
            handled: ends.handled.get(),
            failed: ends.failed.get(),
            dead_lettered: ends.dead_lettered.get(),
            leases_lost: ends.leases_lost.get(),
            duplicates: ends.duplicates.get(),
            released: ends.released.get(),
            refused: ends.refused.get(),
            snoozed: ends.snoozed.get(),
            cancelled: ends.cancelled.get(),
            control_reads: self.control_reads.get(),
            paused: by_itself || by_control,
            paused_by_itself: by_itself,
            paused_queues,
        }
    }
}
