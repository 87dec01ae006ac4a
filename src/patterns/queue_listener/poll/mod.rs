//! One task's polling: asking for messages, waiting longer and longer while there are none, ending when that has been so for long.
pub(crate) mod hints;
pub(crate) mod idle;
pub(crate) mod waiters;

use std::{future::Future, sync::atomic::Ordering, time::Duration};

use tokio::sync::watch;

use crate::{
    backoff::Backoff,
    port::{BoxFuture, ErrorClass, Failure},
    queue::{Delivery, QueueError, Receive},
    queue_listener::{
        QueueCall, QueueListenerEvent as Event,
        lease::Held,
        poll::{idle::Idle, waiters::Idles},
        run::{
            intake::Reserved,
            scaler::Staff,
            state::{Shift, Stage},
        },
    },
    race::{First, race},
    time::Instant,
};

/// After a shutdown a poll under way is waited for so long: what it takes is handed back at once, and not after its visibility time-out.
const LAST_POLL: Duration = Duration::from_secs(1);

/// A task that waits for room looks as often by itself.
const LOOK: Duration = Duration::from_secs(1);

pub(crate) struct Poller {
    idle: Idle,
    failures: Option<Backoff>,
    /// When to poll next.
    pub(crate) next: Instant,
    /// Before this it does not poll for messages that return.
    rests_until: Instant,
    /// The next delay would be the longest: this task may end.
    at_most: bool,
    /// The reasons to look that it knew of before its last poll.
    knew: u64,
    order: Vec<usize>,
    pub(crate) stage: watch::Receiver<Stage>,
}

/// A request for messages, that waits for so long. As nobody knows when in that time they are taken, they are hidden for as much longer, and their lease
/// counts from the end of the wait.
pub(crate) fn receive(shift: &Shift, max: usize, wait: Duration) -> Receive {
    Receive::new(max, shift.inner.config.visibility.saturating_add(wait)).wait(wait)
}

/// A request for messages that was made.
pub(crate) struct Asked<'a> {
    /// When it was made.
    at: Instant,
    /// From when on their lease counts.
    since: Instant,
    room: Reserved<'a>,
    pub(crate) receive: BoxFuture<'a, Result<Vec<Delivery>, QueueError>>,
}

/// What a poller comes to.
pub(crate) enum Next {
    /// Messages, of a poll or from another task.
    Look,
    /// A message that may end the process: it is to be handled beside no other.
    Alone(Box<Held>),
    /// The task ends.
    End,
}

impl Poller {
    pub(crate) fn new(shift: &Shift) -> Self {
        Self {
            idle: Idle::default(),
            failures: None,
            next: Instant::default(),
            rests_until: Instant::default(),
            at_most: false,
            knew: 0,
            order: Vec::new(),
            stage: shift.watch(),
        }
    }

    /// Asks the queue, where there is one, and nothing speaks against it: what then has to be waited for is for [`find`](Self::find).
    #[inline]
    pub(crate) fn ask<'a>(&mut self, shift: &'a Shift) -> Option<Asked<'a>> {
        let inner = &*shift.inner;
        let [source] = &inner.sources[..] else { return None };
        if self.next != Instant::default() || shift.halts() || shift.troubled.load(Ordering::Acquire) {
            return None;
        }
        let room = Reserved::of(shift)?;
        self.knew = shift.calls();
        inner.counters.polls.add(1);
        inner.counters.requests.add(1);
        let wait = inner.config.receive_wait;
        let at = shift.now();
        let receive = source.queue.receive(receive(shift, room.1, wait));
        Some(Asked { at, since: at + wait, room, receive })
    }

    /// Takes the messages of a request that was answered at once: gives when it was made, and a
    /// message that is to be handled alone. The only message of a poll is this task's next.
    #[inline]
    pub(crate) fn took(
        &mut self,
        shift: &Shift,
        mut deliveries: Vec<Delivery>,
        asked: Asked<'_>,
        next: &mut Option<Held>,
    ) -> (Instant, Option<Box<Held>>) {
        let Asked { at, since, mut room, .. } = asked;
        self.found(shift, deliveries.len(), since);
        let reserved = room.used();
        *next = shift.took_one(0, since, &mut deliveries, reserved);
        let alone = if next.is_some() { None } else { shift.took(0, since, deliveries, reserved) };
        (at, alone)
    }

    /// Finds work, which then waits for a task. It may have been asked for already.
    pub(crate) async fn find(&mut self, shift: &Shift, mut asked: Option<Asked<'_>>) -> Next {
        loop {
            if let Some(Asked { at, since, mut room, receive }) = asked.take() {
                let config = &shift.inner.config;
                let within = config.call_limit().saturating_add(config.receive_wait);
                let request = shift.rest(QueueCall::Receive, within, receive);
                let answer = self.unless_stopped(shift, request).await;
                match self.answered(shift, answer, (0, since), &mut room) {
                    Answer::Messages(held) => return held.map_or(Next::Look, Next::Alone),
                    Answer::Nothing => self.came_to_nothing(shift, shift.now() - at),
                    Answer::Failed => {}
                }
                continue;
            }
            let stage = *self.stage.borrow_and_update();
            match stage {
                Stage::Works => {}
                Stage::Paused => {
                    let _parked = Parked::of(shift);
                    // An error means that there is no run any more.
                    if self.stage.changed().await.is_err() {
                        return Next::End;
                    }
                    self.called();
                    continue;
                }
                Stage::Stops { .. } | Stage::Dropped => {
                    shift.staff(Staff::ended);
                    return Next::End;
                }
            }
            if self.next != Instant::default() {
                if self.at_most && self.may_end(shift) {
                    return Next::End;
                }
                self.wait(shift).await;
                if shift.has_waiting() {
                    return Next::Look;
                }
                if shift.halts() || (self.next != Instant::default() && shift.now() < self.next) {
                    continue;
                }
            }
            if let Some(to) = shift.pace(shift.now()) {
                // One message after another is refused. The poll then is the look at what it was called for.
                (self.next, self.at_most, self.knew) = (to, false, shift.calls());
                continue;
            }
            let Some(room) = self.room(shift).await else {
                if shift.has_waiting() {
                    return Next::Look;
                }
                continue;
            };
            match self.poll(shift, room).await {
                Some(Some(held)) => return Next::Alone(held),
                Some(None) => return Next::Look,
                None => {}
            }
        }
    }

    /// Room for a poll; `None` where the stage changed or messages came before there was any.
    pub(crate) async fn room<'a>(&mut self, shift: &'a Shift) -> Option<Reserved<'a>> {
        if let Some(room) = Reserved::of(shift) {
            return Some(room);
        }
        let _watched = shift.watches();
        let fewer = shift.room.fewer.notified();
        let room = Reserved::of(shift);
        if room.is_none() && !shift.has_waiting() {
            let woken = race(race(fewer, shift.inner.clock.sleep(LOOK)), shift.offered.notified());
            race(woken, async { drop(self.stage.changed().await) }).await;
        }
        room
    }

    fn may_end(&mut self, shift: &Shift) -> bool {
        let (least, knew) = (shift.least(), self.knew);
        let (ends, tasks) = shift.staff(|staff| (staff.may_end(shift.calls() == knew, least), staff.tasks));
        if ends {
            shift.event(|| Event::ScaledDown { tasks });
        }
        ends
    }

    /// Waits until the next poll, or until there is a reason to look before.
    async fn wait(&mut self, shift: &Shift) {
        let called = shift.called.notified();
        let calls = shift.calls();
        if calls != self.knew {
            // Known from here on: where polls are paced, none comes in between, and this would return at once for ever.
            self.knew = calls;
            return self.called();
        }
        let _idle = Idles::of(shift);
        let returns = shift.returns.lock().next().map(|at| at.max(self.rests_until));
        let until = returns.map_or(self.next, |at| at.min(self.next));
        let woken = race(race(shift.offered.notified(), called), self.stage.changed());
        match race(woken, shift.inner.clock.sleep_until(until)).await {
            First::One(First::One(First::Other(()))) => self.called(),
            // Another wait for the rest, unless something was offered.
            First::One(_) => {}
            First::Other(()) if until == self.next || shift.returns.lock().take_due(shift.now()) => {
                self.next = Instant::default();
            }
            // Another task looks for what returned.
            First::Other(()) => {}
        }
    }

    /// There is a reason to look at once.
    fn called(&mut self) {
        self.idle.reset();
        (self.next, self.at_most) = (Instant::default(), false);
    }

    /// Asks the queues in turn, until one has something: `None` where none has, else what is to be handled alone.
    async fn poll(&mut self, shift: &Shift, mut room: Reserved<'_>) -> Option<Option<Box<Held>>> {
        let inner = &shift.inner;
        self.knew = shift.calls();
        let mut order = std::mem::take(&mut self.order);
        let single = inner.sources.len() == 1;
        let began = shift.now();
        let mut now = began;
        if single {
            order.clear();
            order.push(0);
        } else {
            shift.turns.lock().next(now, &mut order);
        }
        let (mut failed, mut found) = (false, None);
        for &source in &order {
            if !single {
                shift.turns.lock().asked(source, now);
            }
            // Several queues are asked in passing: they are waited at beside the tasks.
            let wait = if single { inner.config.receive_wait } else { Duration::ZERO };
            inner.counters.polls.add(1);
            inner.counters.requests.add(1);
            let request = inner.sources[source].queue.receive(receive(shift, room.1, wait));
            let request = shift.rest(QueueCall::Receive, inner.config.call_limit().saturating_add(wait), request);
            let answer = self.unless_stopped(shift, request).await;
            let stops = answer.is_none();
            match self.answered(shift, answer, (source, now + wait), &mut room) {
                Answer::Messages(held) => found = Some(held),
                Answer::Nothing => {}
                Answer::Failed => failed = true,
            }
            if found.is_some() || stops {
                break;
            }
            now = shift.now();
        }
        self.order = order;
        if found.is_none() && !failed {
            self.came_to_nothing(shift, now - began);
        }
        found
    }

    /// What a request for messages came to: messages that wait for a task, or a pause.
    pub(crate) fn answered(
        &mut self,
        shift: &Shift,
        answer: Option<Option<Result<Vec<Delivery>, QueueError>>>,
        (source, since): (usize, Instant),
        room: &mut Reserved<'_>,
    ) -> Answer {
        match answer {
            Some(Some(Ok(deliveries))) if !deliveries.is_empty() => {
                self.found(shift, deliveries.len(), since);
                Answer::Messages(shift.took(source, since, deliveries, room.used()))
            }
            Some(Some(Ok(_))) => {
                shift.inner.counters.empty_polls.add(1);
                Answer::Nothing
            }
            Some(Some(Err(error))) => {
                shift.tell_failure(QueueCall::Receive, &error);
                if error.class() == ErrorClass::Permanent
                    && let Some(backend) = error.backend()
                {
                    shift.fail(backend.clone());
                }
                self.back_off(shift, error.backend().and_then(|backend| backend.retry_after()));
                Answer::Failed
            }
            Some(None) => {
                self.back_off(shift, None);
                Answer::Failed
            }
            // The run stops: nothing is asked any more.
            None => Answer::Failed,
        }
    }

    /// A poll found nothing, and took so long: when to poll next.
    pub(crate) fn came_to_nothing(&mut self, shift: &Shift, took: Duration) {
        let inner = &shift.inner;
        self.failures = None;
        shift.found_nothing();
        let (delay, at_most) = self.idle.found_nothing(&inner.config.idle, inner.entropy.unit());
        // A poll that waited in the queue has used up some of it: as long as it did wait, and not as it was to.
        let waited = took.min(inner.config.receive_wait);
        let now = shift.now();
        (self.next, self.at_most) = (now + delay.saturating_sub(waited), at_most);
        self.rests_until = now + inner.config.idle.min;
    }

    #[inline]
    fn found(&mut self, shift: &Shift, messages: usize, now: Instant) {
        self.idle.reset();
        self.failures = None;
        (self.next, self.at_most) = (Instant::default(), false);
        shift.found(messages, now);
    }

    /// A request failed, or the queue is busy: not at once again.
    fn back_off(&mut self, shift: &Shift, at_least: Option<Duration>) {
        let inner = &shift.inner;
        let pauses = self.failures.get_or_insert_with(|| Backoff::checked(inner.config.busy, &inner.entropy));
        let pause = pauses.next().unwrap_or_default().max(at_least.unwrap_or_default());
        let next = shift.now() + pause;
        (self.next, self.at_most) = (self.next.max(next), false);
    }

    /// The answer, unless the run stops while it does not come.
    pub(crate) async fn unless_stopped<T>(&mut self, shift: &Shift, request: impl Future<Output = T>) -> Option<T> {
        let stage = &mut self.stage;
        let stopped = async {
            // A pause lets the poll come to its end.
            while matches!(*stage.borrow_and_update(), Stage::Works | Stage::Paused) {
                if stage.changed().await.is_err() {
                    break;
                }
            }
            shift.inner.clock.sleep(LAST_POLL).await;
        };
        match race(request, stopped).await {
            First::One(answer) => Some(answer),
            First::Other(()) => None,
        }
    }
}

/// What a request for messages came to.
pub(crate) enum Answer {
    /// Messages; one that is to be handled alone.
    Messages(Option<Box<Held>>),
    Nothing,
    Failed,
}

/// A task that waits for a pause to end.
struct Parked<'a>(&'a Shift);

impl<'a> Parked<'a> {
    fn of(shift: &'a Shift) -> Self {
        shift.parked.add(1);
        shift.rests();
        Self(shift)
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.0.parked.sub(1);
    }
}
