//! Polling of one task: receives messages, waits longer after each empty poll, and ends after a
//! long time without messages.
pub(crate) mod hints;
pub(crate) mod waiters;

use std::{future::Future, sync::atomic::Ordering, time::Duration};

use tokio::sync::watch;

use crate::{
    backoff::Backoff,
    port::{BoxFuture, ErrorClass, Failure},
    queue::{Delivery, QueueError, Receive},
    queue_listener::{
        QueueCall, QueueListenerEvent as Event,
        lease::LeasedDelivery,
        run::{
            guards::Reserved,
            scaler::Scaler,
            state::{RunState, Stage},
        },
    },
    race::{First, race},
    time::Instant,
    work::Idle,
};

/// Interval at which a task that waits for capacity checks by itself.
const LOOK: Duration = Duration::from_secs(1);

pub(crate) struct Poller {
    idle: Idle,
    failures: Option<Backoff>,
    /// Time of the next poll.
    pub(crate) next: Instant,
    /// Until then the task does not poll for returning messages.
    rests_until: Instant,
    /// `true` if the current delay is the maximum, so that the task may end.
    at_most: bool,
    /// Value of `RunState::calls` before the last poll.
    knew: u64,
    order: Vec<usize>,
    pub(crate) stage: watch::Receiver<Stage>,
}

/// A pending request for messages.
pub(crate) struct Asked<'a> {
    /// Time at which the request was made. The leases count from it.
    at: Instant,
    intake: Reserved<'a>,
    pub(crate) receive: BoxFuture<'a, Result<Vec<Delivery>, QueueError>>,
}

/// Result of [`Poller::find`].
pub(crate) enum Next {
    /// Messages wait for a task.
    Look,
    /// The task ends.
    End,
}

impl Poller {
    pub(crate) fn new(run: &RunState) -> Self {
        Self {
            idle: Idle::default(),
            failures: None,
            next: Instant::default(),
            rests_until: Instant::default(),
            at_most: false,
            knew: 0,
            order: Vec::new(),
            stage: run.watch(),
        }
    }

    /// Sends a request for messages, if there is one queue and nothing delays the poll. If it is
    /// pending, pass it to [`find`](Self::find).
    #[inline]
    pub(crate) fn ask<'a>(&mut self, run: &'a RunState) -> Option<Asked<'a>> {
        let inner = &*run.inner;
        let [source] = &inner.sources[..] else { return None };
        if self.next != Instant::default() || run.is_halted() || run.in_outage.load(Ordering::Acquire) {
            return None;
        }
        if run.is_waited_in(0) || run.awaits_control() {
            return None;
        }
        let intake = Reserved::of(run)?;
        self.knew = run.calls();
        inner.counters.polls.add(1);
        inner.counters.requests.add(1);
        let at = run.now();
        let receive = source.queue.receive(Receive::new(intake.1, inner.visibility()));
        Some(Asked { at, intake, receive })
    }

    /// Takes the messages of a request that completed at once. Returns the time of the request. The
    /// only message of a poll goes to `next`.
    #[inline]
    pub(crate) fn took(
        &mut self,
        run: &RunState,
        mut deliveries: Vec<Delivery>,
        asked: Asked<'_>,
        next: &mut Option<LeasedDelivery>,
    ) -> Instant {
        let Asked { at, mut intake, .. } = asked;
        self.found(run, deliveries.len(), at);
        let reserved = intake.used();
        *next = run.admit_one(0, at, &mut deliveries, reserved);
        if next.is_none() {
            run.took(0, at, deliveries, reserved);
        }
        at
    }

    /// Waits until there are messages, continuing this request if there is one.
    pub(crate) async fn find(&mut self, run: &RunState, mut asked: Option<Asked<'_>>) -> Next {
        loop {
            if let Some(Asked { at, mut intake, receive }) = asked.take() {
                let request = run.timed(QueueCall::Receive, run.call_limit(), receive);
                let answer = self.unless_stopped(run, request).await;
                match self.answered(run, answer, (0, at), &mut intake) {
                    Answer::Messages => return Next::Look,
                    Answer::Nothing => self.came_to_nothing(run),
                    Answer::Failed => {}
                }
                continue;
            }
            let stage = *self.stage.borrow_and_update();
            match stage {
                Stage::Running => {}
                Stage::Paused => {
                    let _parked = run.begin_parked();
                    // An error means that the run was dropped.
                    if self.stage.changed().await.is_err() {
                        return Next::End;
                    }
                    self.called();
                    continue;
                }
                Stage::Stopping { .. } | Stage::Dropped => {
                    run.scaler(Scaler::ended);
                    return Next::End;
                }
            }
            if self.next != Instant::default() {
                if self.at_most && self.may_end(run) {
                    return Next::End;
                }
                self.wait(run).await;
                if run.has_waiting() {
                    return Next::Look;
                }
                if run.is_halted() || (self.next != Instant::default() && run.now() < self.next) {
                    continue;
                }
            }
            if let Some(to) = run.pace(run.now()) {
                // Consecutive messages are refused, so polls are paced. The paced poll covers all
                // calls so far.
                (self.next, self.at_most, self.knew) = (to, false, run.calls());
                continue;
            }
            if run.awaits_control() {
                self.unless_stopped(run, Box::pin(run.read_control())).await;
                // No second look, which may find that another task reads, and so on.
                if run.is_halted() {
                    continue;
                }
            }
            let Some(intake) = self.intake(run).await else {
                if run.has_waiting() {
                    return Next::Look;
                }
                continue;
            };
            if self.poll(run, intake).await {
                return Next::Look;
            }
        }
    }

    /// Reserves capacity for a poll. Returns `None` if the stage changed or messages arrived before
    /// there was any.
    pub(crate) async fn intake<'a>(&mut self, run: &'a RunState) -> Option<Reserved<'a>> {
        if let Some(intake) = Reserved::of(run) {
            return Some(intake);
        }
        let _watched = run.watches();
        let fewer = run.intake.fewer.notified();
        let intake = Reserved::of(run);
        if intake.is_none() && !run.has_waiting() {
            let woken = race(race(fewer, run.inner.clock.sleep(LOOK)), run.offered.notified());
            race(woken, async { drop(self.stage.changed().await) }).await;
        }
        intake
    }

    fn may_end(&mut self, run: &RunState) -> bool {
        let (least, knew) = (run.tasks_to_keep(), self.knew);
        let (ends, tasks) = run.scaler(|scaler| (scaler.may_end(run.calls() == knew, least()), scaler.tasks));
        if ends {
            run.event(|| Event::ScaledDown { tasks });
        }
        ends
    }

    /// Waits until the next poll, or until the task is called.
    async fn wait(&mut self, run: &RunState) {
        let called = run.called.notified();
        let calls = run.calls();
        if calls != self.knew {
            // Recorded here: while polls are paced none comes in between, and this function would
            // return at once for ever.
            self.knew = calls;
            return self.called();
        }
        let _idle = run.begin_idle();
        let returns = run.returns.lock().next().map(|at| at.max(self.rests_until));
        let until = returns.map_or(self.next, |at| at.min(self.next));
        let woken = race(race(run.offered.notified(), called), self.stage.changed());
        match race(woken, run.inner.clock.sleep_until(until)).await {
            First::One(First::One(First::Other(()))) => self.called(),
            // Waits again for the remaining time, unless a message was offered.
            First::One(_) => {}
            First::Other(()) if until == self.next || run.returns.lock().take_due(run.now()) => {
                self.next = Instant::default();
            }
            // Another task polls for the returned messages.
            First::Other(()) => {}
        }
    }

    /// Resets the delays, so that the next poll follows at once.
    fn called(&mut self) {
        self.idle.reset();
        (self.next, self.at_most) = (Instant::default(), false);
    }

    /// Polls the queues in turn until one has messages, except those in which a waiter waits.
    /// Returns `true` if one has.
    async fn poll(&mut self, run: &RunState, mut intake: Reserved<'_>) -> bool {
        let inner = &run.inner;
        self.knew = run.calls();
        let mut order = std::mem::take(&mut self.order);
        let single = inner.sources.len() == 1;
        let mut now = run.now();
        if single {
            order.clear();
            order.push(0);
        } else {
            let refuses_all = run.refuses_all();
            run.turns.lock().next(now, refuses_all, &mut order);
        }
        order.retain(|source| !run.is_source_paused(*source) && !run.is_waited_in(*source));
        let (mut failed, mut found) = (false, false);
        for &source in &order {
            if !single {
                run.turns.lock().asked(source, now);
            }
            inner.counters.polls.add(1);
            inner.counters.requests.add(1);
            let request = inner.sources[source].queue.receive(Receive::new(intake.1, inner.visibility()));
            let request = run.timed(QueueCall::Receive, run.call_limit(), request);
            let answer = self.unless_stopped(run, request).await;
            let stops = answer.is_none();
            match self.answered(run, answer, (source, now), &mut intake) {
                Answer::Messages => found = true,
                Answer::Nothing => {}
                Answer::Failed => failed = true,
            }
            if found || stops {
                break;
            }
            now = run.now();
        }
        self.order = order;
        if !found && !failed {
            self.came_to_nothing(run);
        }
        found
    }

    /// Applies the answer to a request for messages.
    pub(crate) fn answered(
        &mut self,
        run: &RunState,
        answer: Option<Option<Result<Vec<Delivery>, QueueError>>>,
        (source, since): (usize, Instant),
        intake: &mut Reserved<'_>,
    ) -> Answer {
        match answer {
            Some(Some(Ok(deliveries))) if !deliveries.is_empty() => {
                self.found(run, deliveries.len(), since);
                let reserved = intake.used();
                if reserved > 0 && deliveries.len() >= reserved {
                    run.skip_pace();
                }
                run.took(source, since, deliveries, reserved);
                Answer::Messages
            }
            Some(Some(Ok(_))) => {
                run.inner.counters.empty_polls.add(1);
                Answer::Nothing
            }
            Some(Some(Err(error))) => {
                run.report_failure(QueueCall::Receive, &error);
                if error.class() == ErrorClass::Permanent
                    && let Some(backend) = error.backend()
                {
                    run.fail(backend.clone());
                }
                self.back_off(run, error.backend().and_then(|backend| backend.retry_after()));
                Answer::Failed
            }
            Some(None) => {
                self.back_off(run, None);
                Answer::Failed
            }
            // The run stops and polls no more.
            None => Answer::Failed,
        }
    }

    /// Sets the time of the next poll after an empty one.
    fn came_to_nothing(&mut self, run: &RunState) {
        let inner = &run.inner;
        self.failures = None;
        run.found_nothing();
        let (delay, at_most) = self.idle.found_nothing(&inner.config.load().idle, inner.entropy.unit());
        let now = run.now();
        (self.next, self.at_most) = (now + delay, at_most);
        self.rests_until = now + inner.config.load().idle.min;
    }

    #[inline]
    fn found(&mut self, run: &RunState, messages: usize, now: Instant) {
        self.idle.reset();
        self.failures = None;
        (self.next, self.at_most) = (Instant::default(), false);
        run.found(messages, now);
    }

    /// Delays the next poll after a failure, or because the queue is busy.
    fn back_off(&mut self, run: &RunState, at_least: Option<Duration>) {
        let inner = &run.inner;
        let pauses = self.failures.get_or_insert_with(|| Backoff::checked(inner.config.load().busy, &inner.entropy));
        let pause = pauses.next().unwrap_or_default().max(at_least.unwrap_or_default());
        let next = run.now() + pause;
        (self.next, self.at_most) = (self.next.max(next), false);
    }

    /// Returns the answer, or `None` if the run stops before it arrives.
    pub(crate) async fn unless_stopped<T>(&mut self, run: &RunState, request: impl Future<Output = T>) -> Option<T> {
        let stage = &mut self.stage;
        let stopped = async {
            // A pause lets a pending poll complete.
            while matches!(*stage.borrow_and_update(), Stage::Running | Stage::Paused) {
                if stage.changed().await.is_err() {
                    break;
                }
            }
            // The poll may have taken messages, which are then released at once instead of after
            // their visibility time-out. It has a time limit of its own.
            run.inner.clock.sleep(run.call_limit()).await;
        };
        match race(request, stopped).await {
            First::One(answer) => Some(answer),
            First::Other(()) => None,
        }
    }
}

/// Result of a request for messages.
pub(crate) enum Answer {
    Messages,
    Nothing,
    Failed,
}
