//! The state that the tasks of one run share: parts that own their fields, and what concerns
//! several of them.
//!
//! A message crosses six files of this room: a poll receives it ([`poll`](super::super::poll)); it
//! gets its lease and waits ([`lease`](super::super::lease)); a task takes it
//! ([`worker`](super::worker)) and runs its handler with it ([`work`](super::super::work)), in a
//! [`Caught`](crate::work::Caught); the listener decides by the result
//! ([`decision`](super::super::settle::decision)) and settles ([`settle`](super::super::settle)).
//! Before it exists, [`run`](super) starts the task and [`intake`](super::intake) counts it.
use std::{
    future::Future,
    pin::pin,
    sync::{Arc, atomic::AtomicBool, atomic::Ordering},
    time::Duration,
};

use crate::{
    in_progress::InProgressGuard,
    port::PortError,
    queue::Depth,
    queue_listener::{
        QueueListenerEvent as Event,
        lease::{Backlog, Lease, Parts, SharedBacklog},
        listener::Inner,
        priority::Turns,
        run::{
            intake::Intake,
            lifecycle::{Lifecycle, Stage},
            requests::Requests,
            scaler::Scaler,
            scaling::Scaling,
            tasks::Tasks,
        },
        settle::{Outbox, outage::Outages},
    },
    race::{First, race},
    sync::Mutex,
    time::Instant,
};

/// Longest time for which a suspect message keeps others from beginning without a rest after it.
const SHORT: Duration = Duration::from_millis(100);

/// The state that the tasks of one run share.
pub(crate) struct RunState {
    pub(crate) inner: Arc<Inner>,
    pub(crate) parts: Parts,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) tasks: Tasks,
    pub(crate) scaling: Scaling,
    pub(crate) intake: Intake,
    /// Messages that wait for a task.
    pub(crate) backlog: SharedBacklog,
    pub(crate) requests: Requests,
    pub(crate) turns: Mutex<Turns>,
    pub(crate) outages: Outages,
    /// Settlements that are made beside the tasks, by source.
    pub(crate) outboxes: Vec<Outbox>,
}

impl RunState {
    pub(crate) fn new(inner: Arc<Inner>, is_batched: bool) -> Self {
        let parts = Parts::of(&inner.config.now());
        Self {
            lifecycle: Lifecycle::new(),
            tasks: Tasks::new(inner.clone()),
            scaling: Scaling::new(inner.clone()),
            intake: Intake::new(inner.clone(), &parts, is_batched),
            backlog: SharedBacklog::default(),
            requests: Requests::new(inner.clone()),
            turns: Mutex::new(Turns::new(
                inner.sources.iter().map(|source| source.level),
                inner.order,
                inner.clock.now(),
            )),
            outages: Outages::default(),
            outboxes: inner.sources.iter().map(|_| Outbox::default()).collect(),
            parts,
            inner,
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.inner.clock.now()
    }

    pub(crate) fn event(&self, event: impl FnOnce() -> Event) {
        self.inner.event(event);
    }

    /// Changes the stage. No tasks start in a run that stops.
    pub(crate) fn enter(&self, stage: Stage) {
        self.lifecycle.enter(stage);
        if !matches!(self.lifecycle.stage(), Stage::Running | Stage::Paused) {
            self.tasks.scaler(Scaler::close);
        }
    }

    /// Stops the run with a permanent error.
    pub(crate) fn fail(&self, error: PortError) {
        self.lifecycle.failed(error);
        self.stop();
    }

    fn stop(&self) {
        let (now, config) = (self.now(), self.inner.config.now());
        self.event(|| Event::Stopping);
        self.enter(Stage::Stopping { cancel_at: now + config.drain_timeout, kill_at: now + config.kill_timeout });
    }

    /// Starts, pauses and stops the run. Completes when the run has to end.
    pub(crate) async fn control(&self, shutdown: impl Future<Output = ()>, over: &AtomicBool) {
        let mut paused = self.inner.paused.subscribe();
        let mut stage = self.lifecycle.watch();
        let mut shutdown = pin!(shutdown);
        loop {
            self.enter(if paused.borrow_and_update().halts() { Stage::Paused } else { Stage::Running });
            if self.lifecycle.is_halted() {
                self.release_waiting();
            }
            let stops = stage.wait_for(|stage| matches!(stage, Stage::Stopping { .. }));
            match race(shutdown.as_mut(), race(paused.changed(), stops)).await {
                First::One(()) => break self.stop(),
                First::Other(First::One(_)) => {}
                First::Other(First::Other(_)) => break,
            }
        }
        self.release_waiting();
        if let Stage::Stopping { kill_at, .. } = self.lifecycle.stage() {
            // Handlers are dropped at `kill_at`; their messages get one more settle request.
            self.inner.clock.sleep_until(kill_at + self.inner.call_limit()).await;
        }
        over.store(true, Ordering::Relaxed);
    }

    /// Takes over the bounds of the number of tasks from the settings in effect.
    pub(crate) fn take_bounds(&self) {
        self.tasks.take_bounds();
        self.grow(None, |scaler| scaler.min);
    }

    /// Starts tasks up to the number that the closure returns, under the lock of the scaler.
    /// Returns the number of tasks.
    pub(crate) fn grow(&self, depth: Option<Depth>, wanted: impl FnOnce(&Scaler) -> u32) -> u32 {
        let (more, tasks) = self.tasks.scaler(|scaler| (scaler.grow_to(wanted(scaler)), scaler.tasks));
        if more > 0 {
            self.event(|| Event::ScaledUp { tasks, depth });
            self.intake.woke();
            self.tasks.to_spawn.notify_one();
        }
        tasks
    }

    /// Calls all idle tasks to poll, and starts a task if there is none.
    pub(crate) fn call(&self) {
        self.intake.woke();
        self.tasks.call();
    }

    /// Returns `true` if messages are expected that this listener returned.
    pub(crate) fn expects_returns(&self) -> bool {
        self.outages.returns.lock().are_expected(self.now())
    }

    /// Lets other tasks take the waiting messages except `but` of them, because this task is
    /// blocked or slow.
    pub(crate) fn share(&self, but: usize) {
        if !self.backlog.has_waiting() {
            return;
        }
        let n = self.backlog.len().saturating_sub(but);
        if n == 0 {
            return;
        }
        // At most one task for each message, since the present tasks are blocked.
        let wanted = (self.inner.rule)(n as u64);
        let n_tasks = u32::try_from(n).unwrap_or(u32::MAX);
        let tasks = self.grow(None, |scaler| wanted.min(scaler.tasks.saturating_add(n_tasks)));
        self.intake.woke();
        for _ in 0..n_tasks.min(tasks) {
            self.tasks.offered.notify_one();
        }
    }

    /// Closes the intake for a suspect message, and releases the messages that wait. Returns after
    /// those that are outstanding have ended, or after this time.
    pub(crate) async fn close(&self, most: Duration) {
        self.intake.close();
        // Waiters in queues end their waits.
        self.lifecycle.nudge();
        self.release_trusted();
        race(self.intake.fewer_than(2), self.inner.clock.sleep(most)).await;
    }

    /// Lets messages flow after a suspect message was handled, or beside it after its time alone.
    /// If it kept others from beginning for long, the next one is alone only after as long a time.
    #[cold]
    pub(crate) fn reopen(&self) {
        self.reopen_and(|_| {});
    }

    /// Opens the intake, and changes the backlog in the step that sets the rest.
    fn reopen_and(&self, change: impl FnOnce(&mut Backlog)) {
        let closed = self.intake.reopen();
        self.backlog.with(|backlog| {
            if let Some(closed) = closed.filter(|closed| *closed > SHORT) {
                backlog.rest_until(self.now() + closed);
            }
            change(backlog);
        });
        if closed.is_some() {
            self.call();
        }
    }

    /// Ends the probation of a suspect message, if it is on probation: the next one may begin, and
    /// messages flow.
    #[cold]
    pub(crate) fn end_probation(&self, lease: &Lease) {
        if self.backlog.with(|backlog| backlog.is_on_probation(lease)) {
            // While the probation lasts, no other suspect message closes the intake.
            self.reopen_and(|backlog| backlog.end_probation(lease));
            self.share(0);
        }
    }

    /// Returns `true` if messages of this queue may be taken beside the tasks. While all are
    /// refused they return at known times, when the tasks poll for several at once.
    pub(crate) fn may_wait_in(&self, source: usize) -> bool {
        !self.intake.is_closed()
            && self.lifecycle.stage() == Stage::Running
            && !self.inner.is_source_paused(source)
            && !self.outages.refuses_all()
    }

    /// Counts a task that waits for the end of a pause.
    pub(crate) fn begin_parked(&self) -> InProgressGuard<'_> {
        let parked = self.tasks.parked.enter(1);
        self.check_idle();
        parked
    }

    /// Notifies `drain` if the run has no outstanding message and takes none.
    pub(crate) fn check_idle(&self) {
        if self.is_idle() {
            self.inner.runs.idle.notify_waiters();
        }
    }

    /// Returns `true` if the run has no outstanding message and takes none.
    pub(crate) fn is_idle(&self) -> bool {
        let tasks = self.tasks.scaler(|scaler| scaler.tasks);
        let is_parked = self.lifecycle.stage() != Stage::Running && self.tasks.parked.get() >= tasks;
        is_parked && self.intake.unsettled() == 0
    }
}

/// The probation of a suspect message; ends on drop.
pub(crate) struct Probation<'a>(pub(crate) &'a RunState, pub(crate) Lease);

impl Drop for Probation<'_> {
    fn drop(&mut self) {
        self.0.end_probation(&self.1);
    }
}
