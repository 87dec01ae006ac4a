//! The state that the tasks of one run share.
//
// Concurrency. With `run_on` the tasks of a run are on several threads.
//
// - `is_halted` mirrors `stage` and is written under the lock of the watch channel, so that a later
//   change is never overwritten. A `Release` store and `Acquire` loads publish what came before.
// - `waits` mirrors the backlog and is written under its lock. `enqueue` writes it and then reads
//   `keeper_looks`; `renew_waiting` writes `keeper_looks` and then reads `waits`. All four are
//   `SeqCst`, so that the renewing task is notified or sees the messages.
// - `calls` is raised before the lock of `scaler` is taken, and `may_end` reads it under that lock.
//   So a task that ends has seen the call, or the call sees its end and starts another task.
// - `handling` is raised before the lock of `scaler` is taken to start a task, and `may_end` reads
//   it under that lock. So a task that ends has seen the handler, or the handler sees its end.
// - `in_outage` mirrors `outage` and is written under its lock. A stale read at most omits the
//   record of one success.
// - `idle` is raised before `idles` is notified; a waiter creates the future of `idles` before it
//   reads `idle`, so that it misses no change.
// - `busy` decides events alone. No data is read on the strength of the time `rescale_at`, so
//   `Relaxed` suffices.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify, watch};

use crate::{
    in_progress::InProgress,
    port::PortError,
    queue::Depth,
    queue_listener::{
        QueueListenerEvent as Event,
        lease::{Batch, Lease, LeasedDelivery, Parts, backlog::Backlog},
        listener::Inner,
        priority::Turns,
        run::{answers::Answers, intake::Intake, scaler::Scaler},
        settle::{
            Decision,
            outage::{Outage, Returns},
            outbox::Outbox,
        },
    },
    sync::Mutex,
    time::Instant,
};

/// Minimum interval between two requests for the depth that only readers of the state want.
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// Stage of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Running,
    Paused,
    /// The run stops: handlers are asked to stop at `cancel_at`, and dropped at `kill_at`.
    Stopping {
        cancel_at: Instant,
        kill_at: Instant,
    },
    /// The future of the run was dropped.
    Dropped,
}

/// The state that the tasks of one run share.
pub(crate) struct RunState {
    pub(crate) inner: Arc<Inner>,
    stage: watch::Sender<Stage>,
    /// `true` if the stage is not `Running`. Read for each message, without a lock.
    is_halted: AtomicBool,
    scaler: Mutex<Scaler>,
    /// Number of tasks of the scaler. Read for each poll, without a lock.
    pub(crate) tasks: AtomicU32,
    /// Number of calls: reasons to poll. A task that has not seen the latest must poll again before
    /// it ends.
    calls: AtomicU64,
    /// Notified when there are tasks to start.
    pub(crate) to_spawn: Notify,
    /// Messages that wait for a task.
    backlog: Mutex<Backlog>,
    /// `true` if the backlog is not empty. Read for each message, without its lock.
    waits: AtomicBool,
    pub(crate) intake: Intake,
    pub(crate) answers: Answers,
    pub(crate) parts: Parts,
    pub(crate) outage: Mutex<Outage>,
    /// `true` while an outage is open. Read for each message, without a lock.
    pub(crate) in_outage: AtomicBool,
    pub(crate) returns: Mutex<Returns>,
    /// Notifies one idle task that messages wait.
    pub(crate) offered: Notify,
    /// Notifies all idle tasks of a call.
    pub(crate) called: Notify,
    /// Notifies the task that renews waiting messages; `keeper_looks` is `true` while it checks by
    /// itself.
    pub(crate) to_keep: Notify,
    pub(crate) keeper_looks: AtomicBool,
    /// Number of tasks that wait for the next poll.
    pub(crate) idle: InProgress,
    /// Notified when a task starts to wait for the next poll.
    pub(crate) idles: Notify,
    /// Number of waiters in each source, 0 or 1. Tasks do not poll a queue that has one.
    pub(crate) waited_in: Vec<InProgress>,
    /// Settlements that are made beside the tasks, by source.
    pub(crate) outboxes: Vec<Outbox>,
    /// Number of tasks that wait for the end of a pause.
    pub(crate) parked: InProgress,
    /// Number of tasks that wait for a handler, and poll for no other message.
    pub(crate) handling: InProgress,
    /// `true` if the latest poll found messages.
    busy: AtomicBool,
    /// Notified when the depth is to be requested; `wants_tasks` is `true` if that is to decide on
    /// more tasks.
    pub(crate) to_scale: Notify,
    pub(crate) wants_tasks: AtomicBool,
    /// Nanoseconds at which the depth may be requested again.
    rescale_at: AtomicU64,
    pub(crate) turns: Mutex<Turns>,
    /// `true` while there is no subscription to notices, so that a task has to poll.
    pub(crate) without_hints: AtomicBool,
    failed: Mutex<Option<PortError>>,
}

impl RunState {
    pub(crate) fn new(inner: Arc<Inner>, is_batched: bool) -> Self {
        let config = inner.config.now();
        let scaler = Mutex::new(Scaler::new(config.min_tasks, config.max_tasks));
        let turns = Mutex::new(Turns::new(&inner.levels, inner.order, inner.clock.now()));
        Self {
            scaler,
            tasks: AtomicU32::new(0),
            turns,
            stage: watch::Sender::new(Stage::Running),
            is_halted: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            to_spawn: Notify::new(),
            backlog: Mutex::default(),
            waits: AtomicBool::new(false),
            intake: Intake::new(is_batched),
            answers: Answers::default(),
            parts: Parts::of(&config),
            outage: Mutex::default(),
            in_outage: AtomicBool::new(false),
            returns: Mutex::default(),
            offered: Notify::new(),
            called: Notify::new(),
            to_keep: Notify::new(),
            keeper_looks: AtomicBool::new(false),
            idle: InProgress::default(),
            idles: Notify::new(),
            waited_in: inner.sources.iter().map(|_| InProgress::default()).collect(),
            outboxes: inner.sources.iter().map(|_| Outbox::default()).collect(),
            parked: InProgress::default(),
            handling: InProgress::default(),
            busy: AtomicBool::new(false),
            to_scale: Notify::new(),
            wants_tasks: AtomicBool::new(false),
            rescale_at: AtomicU64::new(0),
            without_hints: AtomicBool::new(inner.hints.is_none()),
            failed: Mutex::default(),
            inner,
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.inner.clock.now()
    }

    pub(crate) fn event(&self, event: impl FnOnce() -> Event) {
        self.inner.event(event);
    }

    #[inline]
    pub(crate) fn is_halted(&self) -> bool {
        self.is_halted.load(Ordering::Acquire)
    }

    pub(crate) fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }

    /// Changes the stage. A run that stops can neither pause nor resume.
    pub(crate) fn enter(&self, stage: Stage) {
        self.stage.send_if_modified(|now| {
            let changes = match *now {
                Stage::Running | Stage::Paused => *now != stage,
                Stage::Stopping { .. } => stage == Stage::Dropped,
                Stage::Dropped => false,
            };
            if changes {
                *now = stage;
            }
            // Under the lock of the channel, so that a concurrent change cannot be overwritten.
            self.is_halted.store(*now != Stage::Running, Ordering::Release);
            changes
        });
        if !matches!(self.stage(), Stage::Running | Stage::Paused) {
            self.scaler(Scaler::close);
        }
    }

    /// Wakes all futures that watch the stage, which stays as it is.
    pub(crate) fn nudge(&self) {
        self.stage.send_modify(|_| {});
    }

    /// Stops the run with a permanent error.
    pub(crate) fn fail(&self, error: PortError) {
        self.failed.lock().get_or_insert(error);
        self.stop();
    }

    pub(crate) fn stop(&self) {
        let (now, config) = (self.now(), self.inner.config.now());
        self.event(|| Event::Stopping);
        self.enter(Stage::Stopping { cancel_at: now + config.drain_timeout, kill_at: now + config.kill_timeout });
    }

    pub(crate) fn error(&self) -> Option<PortError> {
        self.failed.lock().take()
    }

    pub(crate) fn scaler<T>(&self, change: impl FnOnce(&mut Scaler) -> T) -> T {
        let mut scaler = self.scaler.lock();
        let before = scaler.tasks;
        let result = change(&mut scaler);
        if scaler.tasks != before {
            // Under the lock, so that it has the value of the latest change.
            self.tasks.store(scaler.tasks, Ordering::Relaxed);
            // The listener may have other runs, so their tasks are kept. The difference wraps.
            let counters = &self.inner.counters;
            let more = scaler.tasks.wrapping_sub(before);
            let all = counters.tasks.fetch_add(more, Ordering::Relaxed).wrapping_add(more);
            counters.most_tasks.fetch_max(all, Ordering::Relaxed);
        }
        result
    }

    /// Takes over the bounds of the number of tasks from the settings in effect, read under the
    /// lock of `scaler`, so that the last of several changes stays.
    pub(crate) fn take_bounds(&self) {
        self.scaler(|scaler| {
            let config = self.inner.config.load();
            (scaler.min, scaler.max) = (config.min_tasks, config.max_tasks);
        });
        self.grow(None, |scaler| scaler.min);
    }

    /// Returns `true` if there are more tasks than a change of the settings permits, and the asking
    /// one, which has no message, ends.
    pub(crate) fn ends_surplus(&self) -> bool {
        if self.tasks.load(Ordering::Relaxed) <= self.inner.config.load().max_tasks {
            return false;
        }
        let (ends, tasks) = self.scaler(|scaler| (scaler.ends_surplus(), scaler.tasks));
        if ends {
            self.event(|| Event::ScaledDown { tasks });
        }
        ends
    }

    /// Starts tasks up to the number that the closure returns, under the lock of `scaler`. Returns
    /// the number of tasks.
    pub(crate) fn grow(&self, depth: Option<Depth>, wanted: impl FnOnce(&Scaler) -> u32) -> u32 {
        let (more, tasks) = self.scaler(|scaler| (scaler.grow_to(wanted(scaler)), scaler.tasks));
        if more > 0 {
            self.event(|| Event::ScaledUp { tasks, depth });
            self.intake.woke();
            self.to_spawn.notify_one();
        }
        tasks
    }

    /// Calls all idle tasks to poll, and starts a task if there is none.
    pub(crate) fn call(&self) {
        // First, so that a task that decides whether to end has seen the call or is counted.
        self.calls.fetch_add(1, Ordering::SeqCst);
        let one_polls = self.one_polls();
        if self.scaler(|scaler| scaler.grow_to(one_polls())) > 0 {
            self.to_spawn.notify_one();
        }
        self.intake.woke();
        self.called.notify_waiters();
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Returns the number of tasks that must not end, under the lock of `scaler`: at least one that
    /// polls if no notice can arrive or returned messages are expected.
    pub(crate) fn tasks_to_keep(&self) -> impl Fn() -> u32 {
        let looks = self.without_hints.load(Ordering::Acquire) || self.returns.lock().are_expected(self.now());
        let idle = self.inner.config.load().min_tasks.max(u32::from(looks));
        let one_polls = self.one_polls();
        move || if idle > 0 { idle.max(one_polls()) } else { 0 }
    }

    /// Returns the number of tasks of which one handles no message and so polls, as far as the rule
    /// for one waiting message allows, under the lock of `scaler`.
    fn one_polls(&self) -> impl Fn() -> u32 {
        // Not under the lock: the rule is the user's.
        let most = (self.inner.rule)(1).max(1);
        move || self.handling.get().saturating_add(1).min(most)
    }

    /// Records a poll that received messages.
    pub(crate) fn found(&self, messages: usize, now: Instant) {
        let counters = &self.inner.counters;
        counters.received.add(messages as u64);
        let config = self.inner.config.load();
        self.refresh_depth(MINUTE);
        if !self.busy.load(Ordering::Acquire) && !self.busy.swap(true, Ordering::AcqRel) {
            self.event(|| Event::WorkDetected { messages });
        } else if messages < config.batch || self.rescale_at.load(Ordering::Relaxed) > now.as_nanos() {
            return;
        }
        self.rescale_at.store((now + config.rescale).as_nanos(), Ordering::Relaxed);
        if self.scaler(|scaler| scaler.tasks < scaler.max) {
            self.intake.woke();
            self.wants_tasks.store(true, Ordering::Release);
            self.to_scale.notify_one();
        }
    }

    /// Records a poll that received none.
    pub(crate) fn found_nothing(&self) {
        if self.busy.load(Ordering::Acquire) && self.busy.swap(false, Ordering::AcqRel) {
            self.event(|| Event::QueueEmpty);
            self.refresh_depth(Duration::ZERO);
        }
    }

    /// Requests the depth of the queues, if the last request for it is older than this.
    pub(crate) fn refresh_depth(&self, older_than: Duration) {
        let (now, at) = (self.now(), self.inner.depth_at.load(Ordering::Relaxed));
        if at == 0 || now >= Instant::from_nanos(at) + older_than {
            self.to_scale.notify_one();
        }
    }

    /// Adds messages to the backlog, from which each task takes the next.
    pub(crate) fn enqueue(&self, batch: Batch) {
        if batch.deliveries.len() == 0 {
            return;
        }
        {
            let mut backlog = self.backlog.lock();
            backlog.push(batch);
            self.waits.store(true, Ordering::SeqCst);
        }
        // Checked after the push: a task that halts the run either finds the messages, or its halt
        // is seen here. The lock of the backlog orders the two.
        if self.is_halted() {
            return self.release_waiting();
        }
        if self.intake.is_closed() {
            return self.release_trusted();
        }
        if !self.keeper_looks.load(Ordering::SeqCst) {
            self.intake.woke();
            self.to_keep.notify_one();
        }
    }

    /// Lets other tasks take the waiting messages except `but` of them, because this task is
    /// blocked or slow.
    pub(crate) fn share(&self, but: usize) {
        if !self.waits.load(Ordering::Acquire) {
            return;
        }
        let n = self.backlog.lock().len().saturating_sub(but);
        if n == 0 {
            return;
        }
        // At most one task for each message, since the present tasks are blocked.
        let wanted = (self.inner.rule)(n as u64);
        let n_tasks = u32::try_from(n).unwrap_or(u32::MAX);
        let tasks = self.grow(None, |scaler| wanted.min(scaler.tasks.saturating_add(n_tasks)));
        self.intake.woke();
        for _ in 0..n_tasks.min(tasks) {
            self.offered.notify_one();
        }
    }

    /// Takes a waiting message.
    #[inline]
    pub(crate) fn take_waiting(&self) -> Option<LeasedDelivery> {
        if !self.waits.load(Ordering::Acquire) {
            return None;
        }
        let mut backlog = self.backlog.lock();
        let next = backlog.next();
        if backlog.is_empty() {
            self.waits.store(false, Ordering::Release);
        }
        drop(backlog);
        self.taken_out(next.as_slice());
        next
    }

    /// Takes waiting messages for a handler of batches: a suspect one alone, or others.
    pub(crate) fn take_batch(&self) -> Vec<LeasedDelivery> {
        let Some(first) = self.take_waiting() else { return Vec::new() };
        let is_suspect = first.lease.is_suspect();
        let mut batch = vec![first];
        if !is_suspect {
            let more = self.inner.config.load().batch.saturating_sub(1);
            batch.extend(self.backlog(|backlog| (0..more).map_while(|_| backlog.next_trusted()).collect::<Vec<_>>()));
        }
        batch
    }

    /// Ends the probation of a suspect message, if it is on probation: the next one may begin, and
    /// messages flow.
    #[cold]
    pub(crate) fn end_probation(&self, lease: &Lease) {
        if self.backlog(|backlog| backlog.end_probation(lease)) {
            self.reopen();
            self.share(0);
        }
    }

    /// Releases the waiting messages that are not suspect.
    pub(crate) fn release_trusted(&self) {
        let waiting = self.backlog(|backlog| std::iter::from_fn(|| backlog.next_trusted()).collect::<Vec<_>>());
        self.send_out(waiting.into_iter().map(|leased| leased.lease.settlement(Decision::RELEASE)));
    }

    /// Returns `true` if messages wait for a task.
    pub(crate) fn has_waiting(&self) -> bool {
        self.waits.load(Ordering::SeqCst)
    }

    pub(crate) fn backlog<T>(&self, with: impl FnOnce(&mut Backlog) -> T) -> T {
        let mut backlog = self.backlog.lock();
        let result = with(&mut backlog);
        self.waits.store(!backlog.is_empty(), Ordering::Release);
        result
    }

    /// Puts back a message that was taken out to be renewed.
    pub(crate) fn put_back(&self, leased: LeasedDelivery) {
        let is_paused = self.is_source_paused(leased.lease.source);
        if is_paused || self.is_halted() || self.intake.is_closed() && !leased.lease.is_suspect() {
            return self.send_out([leased.lease.settlement(Decision::RELEASE)]);
        }
        self.hold(vec![leased]);
        self.offered.notify_one();
    }

    /// Releases all messages that no handler has begun.
    pub(crate) fn release_waiting(&self) {
        let waiting = self.backlog(|backlog| backlog.drain());
        self.taken_out(&waiting);
        self.send_out(waiting.into_iter().map(|leased| leased.lease.settlement(Decision::RELEASE)));
    }

    /// Returns `true` if the run has no outstanding message and takes none, and then notifies
    /// `drain`.
    pub(crate) fn check_idle(&self) -> bool {
        let tasks = self.scaler(|scaler| scaler.tasks);
        let idle = self.stage() != Stage::Running && self.parked.get() >= tasks && self.intake.unsettled() == 0;
        if idle {
            self.inner.idle.notify_waiters();
        }
        idle
    }
}
