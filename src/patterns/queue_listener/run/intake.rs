//! The capacity of a run: how many messages it may receive. It depends on the number of tasks and
//! on the recent time per message. A suspect message closes it to others for a while.
//
// Concurrency. Tasks of one run may be on several threads (`run_on`).
//
// - Capacity: a poll adds to `outstanding` by compare-exchange and only then reads `closed`. A task
//   that closes the intake sets `closed` and only then reads `outstanding`. All four accesses are
//   `SeqCst`, so that at least one of both sees the other: the poll returns its reservation, or the
//   closing task waits for it in `fewer_than`. A waiter in a queue reserves nothing; in the same
//   way it raises its count of `waited_in` and then reads `closed`.
// - Wake-ups: a task that waits for capacity adds to `watched`, creates the future of `fewer`, and
//   then reads the counts. A task that frees capacity lowers a count and then reads `watched`. All
//   are `SeqCst`, so that the waiting task sees the lower count or the other one notifies it.
// - `closed_at` is written before `closed` and read after it, by the one task that opens the intake.
// - `pace`, `is_parallel` and `wakes` are estimates and hints. No other data is read on the strength
//   of them, so `Relaxed` suffices.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use crate::{
    in_progress::{InProgress, InProgressGuard},
    queue_listener::{lease::Parts, listener::Inner, run::tasks::Tasks},
    time::{Instant, nanos},
};

/// Nanoseconds of work that stay with the task that received it, since waking another task costs as
/// much.
const ALONE: u64 = 200_000;

/// Number of batches that may await settlement beyond the messages being handled. Above it nothing
/// is received.
const UNSETTLED: u64 = 4;

/// Outstanding messages of a run, and the capacity for more.
pub(crate) struct Intake {
    inner: Arc<Inner>,
    /// Messages that were requested or received, and are neither settled nor lost.
    outstanding: AtomicU64,
    /// Messages whose settlement was sent out and is not finished.
    unsettled: AtomicU64,
    /// Recent nanoseconds per message; `u64::MAX` while unknown.
    pace: AtomicU64,
    /// `true` if those messages were handled in parallel, and not one after another by handlers
    /// that block the run's thread.
    is_parallel: AtomicBool,
    /// `true` if handlers take whole batches.
    is_batched: bool,
    /// `true` while a suspect message is handled alone, or is about to be.
    closed: AtomicBool,
    /// Nanoseconds at which it was closed last.
    closed_at: AtomicU64,
    /// Notified when `outstanding` or `unsettled` falls and `watched` is not 0.
    pub(crate) fewer: Notify,
    watched: InProgress,
    /// Number of times that other tasks of the run were woken.
    wakes: AtomicU64,
    /// Number of waiters in each source, 0 or 1. Tasks do not poll a queue that has one.
    waited_in: Vec<InProgress>,
    /// Nanoseconds of work that are prefetched.
    ahead: u64,
}

impl Intake {
    pub(crate) fn new(inner: Arc<Inner>, parts: &Parts, is_batched: bool) -> Self {
        Self {
            waited_in: inner.sources.iter().map(|_| InProgress::default()).collect(),
            ahead: parts.ahead,
            inner,
            outstanding: AtomicU64::new(0),
            unsettled: AtomicU64::new(0),
            pace: AtomicU64::new(u64::MAX),
            is_parallel: AtomicBool::new(true),
            is_batched,
            closed: AtomicBool::new(false),
            closed_at: AtomicU64::new(0),
            fewer: Notify::new(),
            watched: InProgress::default(),
            wakes: AtomicU64::new(0),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Records that messages are no longer outstanding.
    #[inline]
    pub(crate) fn ended(&self, n: usize) {
        if n > 0 {
            self.outstanding.fetch_sub(n as u64, Ordering::SeqCst);
            self.notify_fewer();
        }
    }

    /// Records messages that are settled beside the tasks from now on.
    pub(crate) fn sent_out(&self, n: usize) {
        self.unsettled.fetch_add(n as u64, Ordering::SeqCst);
    }

    /// Records that messages which were sent out are settled or given up.
    pub(crate) fn settled(&self, n: usize) {
        self.unsettled.fetch_sub(n as u64, Ordering::SeqCst);
        self.notify_fewer();
    }

    pub(crate) fn unsettled(&self) -> u64 {
        self.unsettled.load(Ordering::SeqCst)
    }

    /// Wakes the tasks that wait for capacity. Both counts bound it, so this is called when either
    /// falls.
    #[inline]
    pub(crate) fn notify_fewer(&self) {
        if self.watched.get() > 0 {
            self.woke();
            self.fewer.notify_waiters();
        }
    }

    /// Records that other tasks of the run were woken. A runtime may keep a woken task on the
    /// thread that woke it. A task with a thread of its own therefore yields before it begins a
    /// handler that may block.
    pub(crate) fn woke(&self) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn wakes(&self) -> u64 {
        self.wakes.load(Ordering::Relaxed)
    }

    /// Records the time of messages that were handled one after another, in parallel with other
    /// tasks or alone on the run's thread.
    #[inline]
    pub(crate) fn took(&self, time: Duration, messages: usize, is_parallel: bool) {
        if messages == 0 {
            return;
        }
        self.is_parallel.store(is_parallel, Ordering::Relaxed);
        let each = nanos(time) / messages as u64;
        let pace = self.pace.load(Ordering::Relaxed);
        // A concurrent update may be lost: the value is an estimate.
        let now = if pace == u64::MAX {
            each
        } else if each > pace {
            pace / 2 + each / 2
        } else {
            pace - (pace - each) / 4
        };
        self.pace.store(now, Ordering::Relaxed);
    }

    /// Returns the recent time per message, or zero while it is unknown.
    pub(crate) fn each(&self) -> Duration {
        match self.pace.load(Ordering::Relaxed) {
            u64::MAX => Duration::ZERO,
            pace => Duration::from_nanos(pace),
        }
    }

    /// Returns `true` if one task begins this number of messages within `ALONE`.
    #[inline]
    pub(crate) fn is_quick(&self, messages: usize) -> bool {
        self.pace.load(Ordering::Relaxed).saturating_mul(messages as u64) <= ALONE
    }

    /// Reserves capacity for the messages of a poll, until the result is dropped or used.
    #[inline]
    pub(crate) fn reserved(&self, tasks: &Tasks) -> Option<Reserved<'_>> {
        let n = self.reserve(tasks);
        (n > 0).then_some(Reserved(self, n))
    }

    /// Reserves none: the messages of a wait are counted when they arrive.
    pub(crate) const fn nothing(&self) -> Reserved<'_> {
        Reserved(self, 0)
    }

    /// Counts `n` messages that arrived in this reserved capacity. A backend may return more than
    /// requested.
    pub(crate) fn arrived(&self, n: usize, reserved: usize) {
        match n.checked_sub(reserved) {
            Some(0) => {}
            Some(more) => self.more(more),
            None => self.ended(reserved - n),
        }
    }

    /// Counts messages that become outstanding.
    pub(crate) fn more(&self, n: usize) {
        self.outstanding.fetch_add(n as u64, Ordering::SeqCst);
    }

    /// Closes the intake for a suspect message. Wait for [`fewer_than`](Self::fewer_than) then.
    pub(crate) fn close(&self) {
        self.closed_at.store(self.inner.clock.now().as_nanos(), Ordering::Relaxed);
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Opens the intake. Returns the time for which it was closed, or `None` if it was open.
    #[cold]
    pub(crate) fn reopen(&self) -> Option<Duration> {
        if !self.closed.swap(false, Ordering::SeqCst) {
            return None;
        }
        self.fewer.notify_waiters();
        Some(self.inner.clock.now() - Instant::from_nanos(self.closed_at.load(Ordering::Relaxed)))
    }

    /// Counts a waiter in this source.
    pub(crate) fn waits_in(&self, source: usize) -> InProgressGuard<'_> {
        self.waited_in[source].enter(1)
    }

    /// Returns `true` if a waiter waits in this queue, so that a poll would find nothing.
    #[inline]
    pub(crate) fn is_waited_in(&self, source: usize) -> bool {
        self.waited_in[source].get() > 0
    }

    /// Reserves capacity for the messages of a poll. Returns 0 if nothing may be received.
    #[inline]
    fn reserve(&self, tasks: &Tasks) -> usize {
        let config = self.inner.config.load();
        let batch = config.batch as u64;
        let slots = (self.inner.rule)(batch).max(tasks.number()).clamp(config.min_tasks.max(1), config.max_tasks);
        let slots = u64::from(slots);
        let (limit, least) = if self.is_batched {
            (slots * batch, batch)
        } else {
            let pace = self.pace.load(Ordering::Relaxed).max(1);
            let is_parallel = self.is_parallel.load(Ordering::Relaxed);
            // Handlers that are pending do not block the thread.
            let slots = if is_parallel { slots } else { slots.min(u64::from(tasks.handling.get()) + 1) };
            let ahead = slots.saturating_mul(self.ahead / pace).min(u64::from(config.max_tasks) * batch);
            (slots + ahead, u64::from(is_parallel))
        };
        let most = limit + (UNSETTLED + slots) * batch;
        let (held, mut outstanding) = (self.inner.counters.held(), self.outstanding.load(Ordering::SeqCst));
        loop {
            // Held results occupy the tasks that would handle other messages.
            let is_held_up = held >= u64::from(config.max_tasks);
            let n = if is_held_up || self.is_closed() || outstanding >= most || self.unsettled() >= most {
                0
            } else {
                limit.saturating_sub(outstanding + held).min(batch).max(least)
            };
            if n == 0 {
                return 0;
            }
            match self.outstanding.compare_exchange_weak(
                outstanding,
                outstanding + n,
                Ordering::SeqCst,
                Ordering::SeqCst,
            ) {
                // Closed in between: the task that closed it waits for the outstanding messages.
                Ok(_) if self.is_closed() => self.ended(n as usize),
                Ok(_) => return n as usize,
                Err(now) => outstanding = now,
            }
        }
    }

    /// Returns the number of messages that may be received, without reserving capacity for them.
    pub(crate) fn room(&self, tasks: &Tasks) -> usize {
        let room = self.reserve(tasks);
        self.ended(room);
        room
    }

    /// Enables wake-ups of tasks that wait for capacity, while the result lives.
    pub(crate) fn watches(&self) -> InProgressGuard<'_> {
        self.watched.enter(1)
    }

    /// Waits until fewer than `n` messages are outstanding, and no waiter takes any.
    pub(crate) async fn fewer_than(&self, n: u64) {
        let _watched = self.watches();
        loop {
            let fewer = self.fewer.notified();
            let no_waiter = self.waited_in.iter().all(|waiters| waiters.get() == 0);
            if no_waiter && self.outstanding.load(Ordering::SeqCst) < n {
                return;
            }
            fewer.await;
        }
    }
}

/// Capacity reserved for a poll; returned on drop.
pub(crate) struct Reserved<'a>(&'a Intake, pub(crate) usize);

impl Reserved<'_> {
    /// Takes the reserved capacity for messages that arrived.
    pub(crate) fn used(&mut self) -> usize {
        std::mem::take(&mut self.1)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.0.ended(self.1);
    }
}
