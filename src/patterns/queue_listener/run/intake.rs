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
    race::race,
    time::{Instant, nanos},
};

/// Nanoseconds of work that stay with the task that received it, since waking another task costs as
/// much.
const ALONE: u64 = 200_000;

/// Number of batches that may await settlement beyond the messages being handled. Above it nothing
/// is received.
const UNSETTLED: u64 = 4;

/// Longest time for which the intake is closed to other messages without a rest after it.
const SHORT: Duration = Duration::from_millis(100);

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
    /// Nanoseconds at which it was closed last.
    closed_at: AtomicU64,
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
            closed_at: AtomicU64::new(0),
            fewer: Notify::new(),
            watched: InProgress::default(),
            wakes: AtomicU64::new(0),
            paced_to: AtomicU64::new(0),
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
}

impl RunState {
    /// Reserves capacity for the messages of a poll. Returns 0 if nothing may be received.
    #[inline]
    pub(crate) fn reserve(&self) -> usize {
        let config = self.inner.config.load();
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
            // Handlers that are pending do not block the thread.
            let slots = if is_parallel { slots } else { slots.min(u64::from(self.handling.get()) + 1) };
            let ahead = slots.saturating_mul(self.parts.ahead / pace).min(u64::from(config.max_tasks) * batch);
            (slots + ahead, u64::from(is_parallel))
        };
        let most = limit + (UNSETTLED + slots) * batch;
        let (held, mut outstanding) = (self.inner.counters.held(), intake.outstanding.load(Ordering::SeqCst));
        loop {
            // Held results occupy the tasks that would handle other messages.
            let is_held_up = held >= u64::from(config.max_tasks);
            let n = if is_held_up || intake.is_closed() || outstanding >= most || intake.unsettled() >= most {
                0
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
                Ok(_) if intake.is_closed() => intake.ended(n as usize),
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

    /// Takes the messages of a poll into reserved capacity.
    pub(crate) fn took(&self, source: usize, since: Instant, deliveries: Vec<Delivery>, reserved: usize) {
        let n = deliveries.len();
        // A backend may return more messages than requested.
        match n.checked_sub(reserved) {
            Some(0) => {}
            Some(more) => drop(self.intake.outstanding.fetch_add(more as u64, Ordering::SeqCst)),
            None => self.intake.ended(reserved - n),
        }
        if self.is_source_paused(source) {
            return self.decline(source, since, deliveries);
        }
        let term = Term::since(since, source, &self.parts);
        if deliveries.iter().any(|delivery| delivery.expiries > 0) {
            self.admit_suspects(term, deliveries);
        } else {
            self.enqueue(Batch { deliveries: deliveries.into_iter(), term });
        }
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
        let waits = self.intake.is_closed() || self.is_halted() || self.is_source_paused(source);
        if delivery.expiries > 0 || waits {
            return None;
        }
        let delivery = deliveries.pop()?;
        intake.ended(reserved - 1);
        Some(LeasedDelivery { lease: Lease::of(&delivery, Term::since(since, source, &self.parts)), delivery })
    }

    /// Takes messages of which some are suspect. Those that ended their processes too often become
    /// dead letters without a handler.
    #[cold]
    fn admit_suspects(&self, term: Term, deliveries: Vec<Delivery>) {
        // The first death is not recorded: until then nothing made the message suspect.
        let max = self.inner.config.load().max_expiries.saturating_sub(1).max(1);
        let mut leased: Vec<LeasedDelivery> = deliveries
            .into_iter()
            .map(|delivery| LeasedDelivery { lease: Lease::of(&delivery, term), delivery })
            .collect();
        let mut out = self.recall(&mut leased);
        let (over, rest) = leased.into_iter().partition::<Vec<_>, _>(|leased| leased.lease.crashes >= max);
        for leased in over {
            let why = "exceeded max expiries: its handler began, and its deliveries ended without a settlement";
            let decision = self.dead_letter(&leased.lease, why, None);
            out.push(leased.lease.settlement(decision));
        }
        self.send_out(out);
        self.hold(rest);
    }

    /// Lets messages wait for a task. Suspect ones that find no place are released for a while.
    pub(crate) fn hold(&self, leased: Vec<LeasedDelivery>) {
        let (mut suspects, mut crowded) = (0, Vec::new());
        self.backlog(|backlog| {
            for leased in leased {
                if !leased.lease.is_suspect() {
                    backlog.put_back(leased);
                } else if let Some(leased) = backlog.push_suspect(leased) {
                    crowded.push(leased);
                } else {
                    suspects += 1;
                }
            }
        });
        // They take no capacity from others.
        self.intake.ended(suspects);
        let put_off = |leased: LeasedDelivery| leased.lease.settlement(self.put_off());
        self.send_out(crowded.into_iter().map(put_off));
        // As in `enqueue`.
        if self.is_halted() {
            return self.release_waiting();
        }
        if self.intake.is_closed() {
            self.release_trusted();
        }
        if !self.keeper_looks.load(Ordering::SeqCst) {
            self.intake.woke();
            self.to_keep.notify_one();
        }
    }

    /// Counts messages that are taken out of the backlog, of which suspect ones were not counted.
    #[inline]
    pub(crate) fn taken_out(&self, leased: &[LeasedDelivery]) {
        let suspects = leased.iter().filter(|leased| leased.lease.is_suspect()).count() as u64;
        if suspects > 0 {
            self.intake.outstanding.fetch_add(suspects, Ordering::SeqCst);
        }
    }

    /// Releases the messages of a poll whose queue was paused meanwhile.
    #[cold]
    fn decline(&self, source: usize, since: Instant, deliveries: Vec<Delivery>) {
        let term = Term::since(since, source, &self.parts);
        self.send_out(deliveries.iter().map(|delivery| Lease::of(delivery, term).settlement(Decision::RELEASE)));
    }

    /// Enables wake-ups of tasks that wait for capacity, while the result lives.
    pub(crate) fn watches(&self) -> InProgressGuard<'_> {
        self.intake.watched.enter(1)
    }

    /// Closes the intake for a suspect message, and releases the messages that wait. Returns after
    /// those that are outstanding have ended, or after this time.
    pub(crate) async fn close(&self, most: Duration) {
        self.intake.closed_at.store(self.now().as_nanos(), Ordering::Relaxed);
        self.intake.closed.store(true, Ordering::SeqCst);
        // Waiters in queues end their waits.
        self.nudge();
        self.release_trusted();
        race(self.fewer_than(2), self.inner.clock.sleep(most)).await;
    }

    /// Opens the intake after a suspect message was handled, or after its time alone. If it was
    /// closed for long, the next one is alone only after as long a time.
    #[cold]
    pub(crate) fn reopen(&self) {
        if self.intake.closed.swap(false, Ordering::SeqCst) {
            let (now, since) = (self.now(), self.intake.closed_at.load(Ordering::Relaxed));
            let closed = now - Instant::from_nanos(since);
            if closed > SHORT {
                self.backlog(|backlog| backlog.rest_until(now + closed));
            }
            self.intake.fewer.notify_waiters();
            self.call();
        }
    }

    /// Waits until fewer than `n` messages are outstanding, and no waiter takes any.
    async fn fewer_than(&self, n: u64) {
        let _watched = self.watches();
        loop {
            let fewer = self.intake.fewer.notified();
            let no_waiter = self.waited_in.iter().all(|waiters| waiters.get() == 0);
            if no_waiter && self.intake.outstanding.load(Ordering::SeqCst) < n {
                return;
            }
            fewer.await;
        }
    }

    /// Returns `true` while consecutive messages are refused.
    pub(crate) fn refuses_all(&self) -> bool {
        self.in_outage.load(Ordering::Acquire) && self.outage.lock().refuses_all()
    }

    /// Lets the next poll be made at once though polls are paced: the last one was full, so that
    /// other messages may wait behind those that are refused.
    pub(crate) fn skip_pace(&self) {
        self.intake.paced_to.store(0, Ordering::Relaxed);
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
        let next = (now + self.inner.config.load().idle.min).as_nanos();
        let turn = self.intake.paced_to.compare_exchange(to, next, Ordering::Relaxed, Ordering::Relaxed);
        turn.err().map(Instant::from_nanos)
    }
}
