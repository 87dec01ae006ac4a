//! Polling: receives messages, and waits longer after each poll that finds none.
//!
//! A [`Poller`] polls for a task, which ends after a long time without messages
//! ([`find`](Poller::find)), or waits in a queue that wakes its receivers, beside the tasks
//! ([`wait_in`](Poller::wait_in)). Both ask in the same way and apply the same answers.
pub(crate) mod hints;

use std::{future::Future, time::Duration};

use tokio::sync::watch;

use crate::{
    backoff::Backoff,
    port::{ErrorClass, Failure},
    queue::{Delivery, QueueError, QueueFuture, Receive},
    queue_listener::{
        QueueCall,
        lease::LeasedDelivery,
        run::{intake::Reserved, lifecycle::Stage, scaler::Scaler, state::RunState},
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
    /// Number of calls before the last poll.
    knew: u64,
    order: Vec<usize>,
    pub(crate) stage: watch::Receiver<Stage>,
}

/// A pending request for messages.
pub(crate) struct Asked<'a> {
    /// Time at which the request was made. The leases count from it.
    at: Instant,
    intake: Reserved<'a>,
    pub(crate) receive: QueueFuture<'a, Vec<Delivery>>,
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
            stage: run.lifecycle.watch(),
        }
    }

    /// Sends a request for messages, if there is one queue and nothing delays the poll. If it is
    /// pending, pass it to [`find`](Self::find).
    #[inline]
    pub(crate) fn ask<'a>(&mut self, run: &'a RunState) -> Option<Asked<'a>> {
        let inner = &*run.inner;
        let [source] = &inner.sources[..] else { return None };
        if self.next != Instant::default() || run.lifecycle.is_halted() || run.outages.is_open() {
            return None;
        }
        if run.intake.is_waited_in(0) || inner.awaits_control() {
            return None;
        }
        let intake = run.intake.reserved(&run.tasks)?;
        self.knew = run.tasks.calls();
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
        *next = run.admit_one(0, at, &mut deliveries, &mut intake);
        if next.is_none() {
            run.took(0, at, deliveries, &mut intake);
        }
        at
    }

    /// Waits until there are messages, continuing this request if there is one.
    pub(crate) async fn find(&mut self, run: &RunState, mut asked: Option<Asked<'_>>) -> Next {
        loop {
            if let Some(Asked { at, mut intake, receive }) = asked.take() {
                let request = run.requests.timed(QueueCall::Receive, run.requests.limit(), receive);
                let answer = self.unless_stopped(run, request).await;
                match self.answered(run, answer, (0, at), &mut intake) {
                    Answer::Messages => return Next::Look,
                    Answer::Nothing => self.came_to_nothing(run),
                    Answer::Failed | Answer::Ended => {}
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
                    run.tasks.scaler(Scaler::ended);
                    return Next::End;
                }
            }
            if self.next != Instant::default() {
                if self.at_most && run.tasks.may_end(self.knew, run.expects_returns()) {
                    return Next::End;
                }
                self.wait(run).await;
                if run.backlog.has_waiting() {
                    return Next::Look;
                }
                if run.lifecycle.is_halted() || (self.next != Instant::default() && run.now() < self.next) {
                    continue;
                }
            }
            if let Some(to) = run.outages.pace(run.now(), run.inner.config.load().idle.min) {
                // Consecutive messages are refused, so polls are paced. The paced poll covers all
                // calls so far.
                (self.next, self.at_most, self.knew) = (to, false, run.tasks.calls());
                continue;
            }
            if run.inner.awaits_control() {
                self.unless_stopped(run, Box::pin(run.requests.read_control())).await;
                // No second look, which may find that another task reads, and so on.
                if run.lifecycle.is_halted() {
                    continue;
                }
            }
            let Some(intake) = self.intake(run).await else {
                if run.backlog.has_waiting() {
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
    async fn intake<'a>(&mut self, run: &'a RunState) -> Option<Reserved<'a>> {
        if let Some(intake) = run.intake.reserved(&run.tasks) {
            return Some(intake);
        }
        let _watched = run.intake.watches();
        let fewer = run.intake.fewer.notified();
        let intake = run.intake.reserved(&run.tasks);
        if intake.is_none() && !run.backlog.has_waiting() {
            let woken = race(race(fewer, run.inner.clock.sleep(LOOK)), run.tasks.offered.notified());
            race(woken, async { drop(self.stage.changed().await) }).await;
        }
        intake
    }

    /// Waits until the next poll, or until the task is called.
    async fn wait(&mut self, run: &RunState) {
        let called = run.tasks.called.notified();
        let calls = run.tasks.calls();
        if calls != self.knew {
            // Recorded here: while polls are paced none comes in between, and this function would
            // return at once for ever.
            self.knew = calls;
            return self.called();
        }
        let _idle = run.tasks.begin_idle();
        let returns = run.outages.returns.lock().next().map(|at| at.max(self.rests_until));
        let until = returns.map_or(self.next, |at| at.min(self.next));
        let woken = race(race(run.tasks.offered.notified(), called), self.stage.changed());
        match race(woken, run.inner.clock.sleep_until(until)).await {
            First::One(First::One(First::Other(()))) => self.called(),
            // Waits again for the remaining time, unless a message was offered.
            First::One(_) => {}
            First::Other(()) if until == self.next || run.outages.returns.lock().take_due(run.now()) => {
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
        self.knew = run.tasks.calls();
        let mut order = std::mem::take(&mut self.order);
        if run.inner.sources.len() == 1 {
            order.clear();
            order.push(0);
        } else {
            let refuses_all = run.outages.refuses_all();
            run.turns.lock().next(run.now(), refuses_all, &mut order);
        }
        order.retain(|source| !run.inner.is_source_paused(*source) && !run.intake.is_waited_in(*source));
        let mut came_to_nothing = true;
        let mut found = false;
        for &source in &order {
            let answer = self.receive(run, source, intake.1, None, &mut intake).await;
            found = matches!(answer, Answer::Messages);
            came_to_nothing &= matches!(answer, Answer::Nothing);
            if found || matches!(answer, Answer::Ended) {
                break;
            }
        }
        self.order = order;
        if came_to_nothing {
            self.came_to_nothing(run);
        }
        found
    }

    /// Waits in a queue that wakes its receivers, while tasks are idle, until the run ends. The
    /// waits are as long as the delays between polls. A task that waited itself would miss messages
    /// of other queues, and those that are offered to it.
    pub(crate) async fn wait_in(&mut self, run: &RunState, source: usize) {
        let inner = &run.inner;
        loop {
            if !matches!(*self.stage.borrow_and_update(), Stage::Running | Stage::Paused) {
                return;
            }
            let (idles, fewer) = (run.tasks.idles.notified(), run.intake.fewer.notified());
            if run.tasks.idle.get() == 0 || !run.may_wait_in(source) {
                race(race(idles, fewer), async { drop(self.stage.changed().await) }).await;
                continue;
            }
            let watched = run.intake.watches();
            // While settlements are tried again, as of forwards to a full target, messages return one
            // by one. The tasks poll for several of them, and settle those together.
            let room = if run.intake.unsettled() > 0 { 0 } else { run.intake.room(&run.tasks) };
            if room == 0 {
                race(fewer, async { drop(self.stage.changed().await) }).await;
                continue;
            }
            drop(watched);
            let now = run.now();
            if self.next > now {
                // The queue does not answer. This waiter tries it for all tasks.
                let tries = self.failures.is_some().then(|| run.intake.waits_in(source));
                race(inner.clock.sleep_until(self.next), async { drop(self.stage.changed().await) }).await;
                drop(tries);
                run.intake.notify_fewer();
                continue;
            }
            if run.inner.awaits_control() {
                self.unless_stopped(run, Box::pin(run.requests.read_control())).await;
                // It is not asked again whether the control awaits a read: another reader may have
                // begun, and two that wait for each other's reads would never poll.
                if run.tasks.idle.get() == 0 {
                    continue;
                }
            }
            let waits = run.intake.waits_in(source);
            if !run.may_wait_in(source) {
                drop(waits);
                run.intake.notify_fewer();
                continue;
            }
            // A poll that finds messages resets the delays.
            let (wait, _) = self.idle.found_nothing(&inner.config.load().idle, inner.entropy.unit());
            let answer = self.receive(run, source, room, Some(wait), &mut run.intake.nothing()).await;
            drop(waits);
            run.intake.notify_fewer();
            match answer {
                Answer::Messages => run.share(0),
                Answer::Nothing => {
                    self.failures = None;
                    run.scaling.found_nothing();
                    // A queue that answers early is not asked again before the end of the wait.
                    self.next = now + wait;
                }
                Answer::Failed | Answer::Ended => {}
            }
        }
    }

    /// Asks a queue for `n` messages, at once or in a wait of this length, and applies the answer.
    async fn receive(
        &mut self,
        run: &RunState,
        source: usize,
        n: usize,
        wait: Option<Duration>,
        intake: &mut Reserved<'_>,
    ) -> Answer {
        let (inner, at, limit) = (&run.inner, run.now(), run.requests.limit());
        if inner.sources.len() > 1 {
            run.turns.lock().asked(source, at);
        }
        inner.counters.polls.add(1);
        inner.counters.requests.add(1);
        let receive = Receive::new(n, inner.visibility());
        let Some(wait) = wait else {
            let request = inner.sources[source].queue.receive(receive);
            let request = run.requests.timed(QueueCall::Receive, limit, request);
            let answer = self.unless_stopped(run, request).await;
            return self.answered(run, answer, (source, at), intake);
        };
        let request = inner.sources[source].queue.receive(receive.wait(wait));
        let request = run.requests.bounded(QueueCall::Receive, limit.saturating_add(wait), request);
        let mut answer = self.answer_while(|| run.may_wait_in(source), request, run, || run.requests.patience()).await;
        let mut since = at;
        match &mut answer {
            Some(None) => run.requests.timed_out(),
            // The queue took them at an unknown time within the wait, at the earliest at its
            // beginning. The leases count from there, or are renewed if that was long ago. What was
            // read of the control's records may be as old.
            Some(Some(Ok(deliveries))) if !deliveries.is_empty() => {
                if inner.awaits_control() {
                    run.requests.read_control().await;
                }
                if run.now() - at > run.parts.half {
                    since = run.renew_arrived(source, at, deliveries).await;
                }
            }
            _ => {}
        }
        self.answered(run, answer, (source, since), intake)
    }

    /// Applies the answer to a request for messages.
    fn answered(
        &mut self,
        run: &RunState,
        answer: Option<Option<Result<Vec<Delivery>, QueueError>>>,
        (source, since): (usize, Instant),
        intake: &mut Reserved<'_>,
    ) -> Answer {
        match answer {
            Some(Some(Ok(deliveries))) if !deliveries.is_empty() => {
                self.found(run, deliveries.len(), since);
                if intake.1 > 0 && deliveries.len() >= intake.1 {
                    run.outages.skip_pace();
                }
                run.took(source, since, deliveries, intake);
                Answer::Messages
            }
            Some(Some(Ok(_))) => {
                run.inner.counters.empty_polls.add(1);
                Answer::Nothing
            }
            Some(Some(Err(error))) => {
                run.requests.failed(QueueCall::Receive, &error);
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
            None => Answer::Ended,
        }
    }

    /// Sets the time of the next poll after an empty one.
    fn came_to_nothing(&mut self, run: &RunState) {
        let inner = &run.inner;
        self.failures = None;
        run.scaling.found_nothing();
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
        if run.scaling.found(messages, now, &run.tasks) {
            run.intake.woke();
        }
    }

    /// Delays the next poll after a failure, or because the queue is busy.
    fn back_off(&mut self, run: &RunState, at_least: Option<Duration>) {
        let inner = &run.inner;
        let pauses = self.failures.get_or_insert_with(|| Backoff::checked(inner.config.load().busy, &inner.entropy));
        let pause = pauses.next().unwrap_or_default().max(at_least.unwrap_or_default());
        let next = run.now() + pause;
        (self.next, self.at_most) = (self.next.max(next), false);
    }

    /// Returns the answer, or `None` if the run stops before it arrives. A pause lets a pending
    /// poll complete.
    async fn unless_stopped<T>(&mut self, run: &RunState, request: impl Future<Output = T>) -> Option<T> {
        let goes_on = || matches!(run.lifecycle.stage(), Stage::Running | Stage::Paused);
        self.answer_while(goes_on, request, run, || run.requests.limit()).await
    }

    /// Returns the answer, or `None` if it does not arrive while this holds, nor in the following
    /// time: the request may have taken messages, which are then released at once instead of after
    /// their visibility time-out.
    async fn answer_while<T>(
        &mut self,
        holds: impl Fn() -> bool,
        request: impl Future<Output = T>,
        run: &RunState,
        then: impl Fn() -> Duration,
    ) -> Option<T> {
        let ends = async {
            // An error means that the run was dropped.
            while holds() && self.stage.changed().await.is_ok() {}
            run.inner.clock.sleep(then()).await;
        };
        match race(request, ends).await {
            First::One(answer) => Some(answer),
            First::Other(()) => None,
        }
    }
}

/// Result of a request for messages.
enum Answer {
    Messages,
    Nothing,
    Failed,
    /// The run stops, or the wait had to end.
    Ended,
}
