//! The capacity of a run: how many messages it may receive. It depends on the number of tasks and
//! on the recent time per message. A suspect message is handled alone.
//
// Concurrency. Tasks of one run may be on several threads (`run_on`).
//
// - Capacity: a poll adds to `outstanding` by compare-exchange and only then reads `closed`. A task
//   that closes the run sets `closed` and only then reads `outstanding`. All four accesses are
//   `SeqCst`, so that at least one of both sees the other: the poll returns its reservation, or the
//   closing task waits for it in `fewer_than`. A waiter in a queue reserves nothing; in the same
//   way it raises its count of `waited_in` and then reads `closed`.
// - Wake-ups: a task that waits for capacity adds to `watched`, creates the future of `fewer`, and
//   then reads the counts. A task that frees capacity lowers a count and then reads `watched`. All
//   are `SeqCst`, so that the waiting task sees the lower count or the other one notifies it.
// - `one_by_one` only lowers the number of messages of a poll. A stale read costs one poll of the
//   usual size, in which `took` finds suspect messages by itself.
// - `pace`, `is_parallel`, `wakes` and `paced_to` are estimates and hints. No other data is read on
//   the strength of them, so `Relaxed` suffices.
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use tokio::sync::Notify;

use crate::{
    in_progress::{InProgress, InProgressGuard},
    queue::Delivery,
    queue_listener::{
        lease::{Batch, Lease, LeasedDelivery, Term},
        run::state::RunState,
        settle::Decision,
    },
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
    /// `true` while suspect messages arrive: then only one message is outstanding at a time.
    one_by_one: AtomicBool,
    /// Notified when `outstanding` or `unsettled` falls and `watched` is not 0.
    pub(crate) fewer: Notify,
    watched: InProgress,
    /// Number of times that other tasks of the run were woken.
    wakes: AtomicU64,
    /// Nanoseconds at which the next poll may be made while polls are paced.
    paced_to: AtomicU64,
}

impl Intake {
    pub(crate) fn new(is_batched: bool) -> Self {
        Self {
            outstanding: AtomicU64::new(0),
            unsettled: AtomicU64::new(0),
            pace: AtomicU64::new(u64::MAX),
            is_parallel: AtomicBool::new(true),
            is_batched,
            closed: AtomicBool::new(false),
            one_by_one: AtomicBool::new(false),
            fewer: Notify::new(),
            watched: InProgress::default(),
            wakes: AtomicU64::new(0),
            paced_to: AtomicU64::new(0),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(crate) fn is_one_by_one(&self) -> bool {
        self.one_by_one.load(Ordering::Acquire)
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
}

impl RunState {
    /// Reserves capacity for the messages of a poll. Returns 0 if nothing may be received.
    #[inline]
    pub(crate) fn reserve(&self) -> usize {
        let config = &self.inner.config;
        let batch = config.batch as u64;
        let tasks = self.tasks.load(Ordering::Relaxed);
        let slots = (self.inner.rule)(batch).max(tasks).clamp(config.min_tasks.max(1), config.max_tasks);
        let slots = u64::from(slots);
        let intake = &self.intake;
        let (limit, least) = if intake.is_batched {
            (slots * batch, batch)
        } else {
            let pace = intake.pace.load(Ordering::Relaxed).max(1);
            let is_parallel = intake.is_parallel.load(Ordering::Relaxed);
            let slots = if is_parallel { slots } else { 1 };
            let ahead = slots.saturating_mul(self.parts.ahead / pace).min(u64::from(config.max_tasks) * batch);
            (slots + ahead, u64::from(is_parallel))
        };
        let most = limit + (UNSETTLED + slots) * batch;
        let one_by_one = intake.one_by_one.load(Ordering::Acquire);
        let (held, mut outstanding) = (self.inner.counters.held(), intake.outstanding.load(Ordering::SeqCst));
        loop {
            // Held results occupy the tasks that would handle other messages.
            let is_held_up = held >= u64::from(config.max_tasks);
            let n = if is_held_up || intake.is_closed() || outstanding >= most || intake.unsettled() >= most {
                0
            } else if one_by_one {
                u64::from(outstanding == 0)
            } else {
                limit.saturating_sub(outstanding + held).min(batch).max(least)
            };
            if n == 0 {
                return 0;
            }
            match intake.outstanding.compare_exchange_weak(
                outstanding,
                outstanding + n,
                Ordering::SeqCst,
                Ordering::SeqCst,
            ) {
                // Closed in between: the task that closed it waits for the outstanding messages.
                Ok(_) if intake.closed.load(Ordering::SeqCst) => intake.ended(n as usize),
                Ok(_) => return n as usize,
                Err(now) => outstanding = now,
            }
        }
    }

    /// Returns the number of messages that may be received, without reserving capacity for them.
    pub(crate) fn room(&self) -> usize {
        let room = self.reserve();
        self.intake.ended(room);
        room
    }

    /// Takes the messages of a poll into reserved capacity. Returns the suspect message to be
    /// handled alone, if there is one.
    pub(crate) fn took(
        &self,
        source: usize,
        since: Instant,
        deliveries: Vec<Delivery>,
        reserved: usize,
    ) -> Option<Box<LeasedDelivery>> {
        let n = deliveries.len();
        // A backend may return more messages than requested.
        match n.checked_sub(reserved) {
            Some(0) => {}
            Some(more) => drop(self.intake.outstanding.fetch_add(more as u64, Ordering::SeqCst)),
            None => self.intake.ended(reserved - n),
        }
        let intake = &self.intake;
        if self.is_source_paused(source) {
            self.decline(source, since, deliveries);
            return None;
        }
        let is_suspect = |delivery: &Delivery| delivery.expiries > 0;
        if n > 0 && !intake.is_closed() && !deliveries.iter().any(is_suspect) {
            if intake.one_by_one.load(Ordering::Relaxed) {
                intake.one_by_one.store(false, Ordering::Release);
                intake.fewer.notify_waiters();
            }
            let term = Term::since(since, source, &self.parts);
            self.enqueue(Batch { deliveries: deliveries.into_iter(), term });
            return None;
        }
        self.admit_suspects(source, since, deliveries)
    }

    /// Takes the only message of a poll for the task that polled, unless it needs more care.
    #[inline]
    pub(crate) fn admit_one(
        &self,
        source: usize,
        since: Instant,
        deliveries: &mut Vec<Delivery>,
        reserved: usize,
    ) -> Option<LeasedDelivery> {
        let intake = &self.intake;
        let [delivery] = &deliveries[..] else { return None };
        if delivery.expiries > 0
            || intake.is_closed()
            || intake.is_one_by_one()
            || self.is_halted()
            || self.is_source_paused(source)
        {
            return None;
        }
        let delivery = deliveries.pop()?;
        intake.ended(reserved - 1);
        Some(LeasedDelivery { lease: Lease::of(&delivery, Term::since(since, source, &self.parts)), delivery })
    }

    /// Closes the run for all but the first suspect message, and releases the others.
    #[cold]
    fn admit_suspects(&self, source: usize, since: Instant, deliveries: Vec<Delivery>) -> Option<Box<LeasedDelivery>> {
        let intake = &self.intake;
        let max = self.inner.config.max_expiries;
        let term = Term::since(since, source, &self.parts);
        let mut leased: Vec<LeasedDelivery> = deliveries
            .into_iter()
            .map(|delivery| LeasedDelivery { lease: Lease::of(&delivery, term), delivery })
            .collect();
        let mut out = self.recall(&mut leased);
        // These become dead letters without a handler.
        let (over, mut rest) = leased.into_iter().partition::<Vec<_>, _>(|leased| leased.lease.expiries >= max);
        for leased in over {
            let why = "exceeded max expiries: its deliveries ended without a settlement";
            let decision = self.dead_letter(&leased.lease, why, None);
            out.push(leased.lease.settlement(decision));
        }
        let suspect = rest.iter().position(|leased| leased.lease.expiries > 0);
        let exclusive = match suspect {
            Some(at) => {
                intake.one_by_one.store(true, Ordering::Release);
                let wins = intake.closed.compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst).is_ok();
                // Waiters in queues give back the capacity that they hold.
                self.nudge();
                wins.then(|| rest.remove(at))
            }
            None => None,
        };
        if suspect.is_none() && !intake.is_closed() {
            self.backlog(|backlog| rest.into_iter().for_each(|leased| backlog.put_back(leased)));
        } else {
            out.extend(rest.into_iter().map(|leased| leased.lease.settlement(Decision::RELEASE)));
        }
        self.send_out(out);
        if exclusive.is_some() {
            self.release_waiting();
        }
        exclusive.map(Box::new)
    }

    /// Releases the messages of a poll whose queue was paused meanwhile.
    #[cold]
    fn decline(&self, source: usize, since: Instant, deliveries: Vec<Delivery>) {
        let term = Term::since(since, source, &self.parts);
        self.send_out(deliveries.iter().map(|delivery| Lease::of(delivery, term).settlement(Decision::RELEASE)));
    }

    /// Returns the capacity of a poll that found nothing or failed.
    pub(crate) fn admit_nothing(&self, reserved: usize) {
        if self.intake.one_by_one.swap(false, Ordering::AcqRel) {
            self.intake.fewer.notify_waiters();
        }
        self.intake.ended(reserved);
    }

    /// Enables wake-ups of tasks that wait for capacity, while the result lives.
    pub(crate) fn watches(&self) -> InProgressGuard<'_> {
        self.intake.watched.enter(1)
    }

    /// Waits until fewer than `n` messages are outstanding, none is held, and no waiter takes any.
    pub(crate) async fn fewer_than(&self, n: u64) {
        let _watched = self.watches();
        loop {
            let fewer = self.intake.fewer.notified();
            let no_waiter = self.waited_in.iter().all(|waiters| waiters.get() == 0);
            if no_waiter && !self.holds_any() && self.intake.outstanding.load(Ordering::SeqCst) < n {
                return;
            }
            fewer.await;
        }
    }

    /// Releases a suspect message that was received where no task can handle it. A task receives it
    /// again: it is called after the release, because a task that finds nothing lets a waiter
    /// receive the message once more.
    pub(crate) async fn decline_exclusive(&self, leased: LeasedDelivery) {
        let mut released = vec![leased.lease.settlement(Decision::RELEASE)];
        self.settle_once(&mut released).await;
        self.send_out(released);
        self.reopen();
    }

    /// Allows polls again after a suspect message was handled.
    pub(crate) fn reopen(&self) {
        self.intake.closed.store(false, Ordering::SeqCst);
        self.intake.fewer.notify_waiters();
        self.call();
    }

    /// Returns `true` while consecutive messages are refused.
    pub(crate) fn refuses_all(&self) -> bool {
        self.in_outage.load(Ordering::Acquire) && self.outage.lock().refuses_all()
    }

    /// Returns the time of the next poll if polls are paced and it is not due yet.
    pub(crate) fn pace(&self, now: Instant) -> Option<Instant> {
        if !self.refuses_all() {
            return None;
        }
        let to = self.intake.paced_to.load(Ordering::Relaxed);
        if to > now.as_nanos() {
            return Some(Instant::from_nanos(to));
        }
        let next = (now + self.inner.config.idle.min).as_nanos();
        let turn = self.intake.paced_to.compare_exchange(to, next, Ordering::Relaxed, Ordering::Relaxed);
        turn.err().map(Instant::from_nanos)
    }
}
