//! One task's polling: asking for messages, waiting longer and longer while there are none, ending when that has been so for long.
use std::{future::Future, time::Duration};

use tokio::sync::watch;

use super::{
    QueueCall, QueueListenerEvent as Event,
    idle::Idle,
    lot::Lot,
    shift::{Shift, Stage},
    staff::Staff,
};
use crate::{
    backoff::Backoff,
    port::{BoxFuture, ErrorClass, Failure},
    queue::{Delivery, QueueError, Receive},
    race::{First, race},
    time::Instant,
};

/// After a shutdown a poll under way is waited for so long: what it takes is handed back at once, and not after its visibility time-out.
const LAST_POLL: Duration = Duration::from_secs(1);

pub(super) struct Poller {
    idle: Idle,
    failures: Option<Backoff>,
    /// When to poll next.
    next: Instant,
    /// The next delay would be the longest: this task may end.
    at_most: bool,
    /// The reasons to look that it knew of before its last poll.
    knew: u64,
    order: Vec<usize>,
    pub(super) stage: watch::Receiver<Stage>,
}

/// A request for messages, that waits for so long. As nobody knows when in that time they are taken, they are hidden for as much longer, and their lease
/// counts from the end of the wait.
fn receive(shift: &Shift, wait: Duration) -> Receive {
    let config = &shift.inner.config;
    Receive::new(config.batch, config.visibility.saturating_add(wait)).wait(wait)
}

/// A request for messages that was made.
pub(super) struct Asked<'a> {
    /// From when on their lease counts.
    pub(super) since: Instant,
    pub(super) receive: BoxFuture<'a, Result<Vec<Delivery>, QueueError>>,
}

/// What a poller comes to.
pub(super) enum Next {
    /// Messages, of a poll or from another task.
    Look,
    /// The task ends.
    End,
}

impl Poller {
    pub(super) fn new(shift: &Shift) -> Self {
        Self {
            idle: Idle::default(),
            failures: None,
            next: Instant::default(),
            at_most: false,
            knew: 0,
            order: Vec::new(),
            stage: shift.watch(),
        }
    }

    /// Asks the queue, where there is one, and nothing speaks against it: what then has to be waited for is for [`find`](Self::find).
    #[inline]
    pub(super) fn ask<'a>(&mut self, shift: &'a Shift) -> Option<Asked<'a>> {
        let inner = &*shift.inner;
        let [source] = &inner.sources[..] else { return None };
        if self.next != Instant::default() || shift.halts() {
            return None;
        }
        self.knew = shift.calls();
        inner.counters.polls.add(1);
        inner.counters.requests.add(1);
        let wait = inner.config.receive_wait;
        let since = shift.now() + wait;
        Some(Asked { since, receive: source.queue.receive(receive(shift, wait)) })
    }

    /// What was asked for was there.
    #[inline]
    pub(super) fn took(&mut self, shift: &Shift, deliveries: Vec<Delivery>, since: Option<Instant>) -> Lot {
        let since = since.unwrap_or_default();
        self.found(shift, deliveries.len(), since);
        Lot { deliveries: deliveries.into_iter(), source: 0, since }
    }

    /// Finds work: into `lot`, or among what waits for a task. It may have been asked for already.
    pub(super) async fn find(&mut self, shift: &Shift, lot: &mut Lot, mut asked: Option<Asked<'_>>) -> Next {
        loop {
            if let Some(Asked { since, receive }) = asked.take() {
                let within = shift.inner.config.call_timeout.saturating_add(shift.inner.config.receive_wait);
                let request = shift.rest(QueueCall::Receive, within, receive);
                let answer = self.unless_stopped(shift, request).await;
                let failed = self.answered(shift, lot, answer, (0, since));
                if lot.len() > 0 {
                    return Next::Look;
                }
                self.came_to_nothing(shift, failed);
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
                if shift.inner.counters.buffered.get() > 0 {
                    return Next::Look;
                }
                if shift.halts() || (self.next != Instant::default() && shift.now() < self.next) {
                    continue;
                }
            }
            self.poll(shift, lot).await;
            if lot.len() > 0 {
                return Next::Look;
            }
        }
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
        if shift.calls() != self.knew {
            return self.called();
        }
        let woken = race(race(shift.offered.notified(), called), self.stage.changed());
        match race(woken, shift.inner.clock.sleep_until(self.next)).await {
            First::One(First::One(First::Other(()))) => self.called(),
            // Another wait for the rest, unless something was offered.
            First::One(_) => {}
            First::Other(()) => self.next = Instant::default(),
        }
    }

    /// There is a reason to look at once.
    fn called(&mut self) {
        self.idle.reset();
        (self.next, self.at_most) = (Instant::default(), false);
    }

    /// Asks the queues in turn, until one has something.
    async fn poll(&mut self, shift: &Shift, lot: &mut Lot) {
        let inner = &shift.inner;
        self.knew = shift.calls();
        let mut order = std::mem::take(&mut self.order);
        let single = inner.sources.len() == 1;
        let mut now = shift.now();
        if single {
            order.clear();
            order.push(0);
        } else {
            shift.turns.lock().next(now, &mut order);
        }
        let mut failed = false;
        for (i, &source) in order.iter().enumerate() {
            if !single {
                shift.turns.lock().asked(source, now);
            }
            // Only the last is waited at: the others are asked in passing.
            let wait = if i + 1 == order.len() { inner.config.receive_wait } else { Duration::ZERO };
            inner.counters.polls.add(1);
            inner.counters.requests.add(1);
            let request = inner.sources[source].queue.receive(receive(shift, wait));
            let request = shift.rest(QueueCall::Receive, inner.config.call_timeout.saturating_add(wait), request);
            let answer = self.unless_stopped(shift, request).await;
            let stops = answer.is_none();
            failed |= self.answered(shift, lot, answer, (source, now + wait));
            if lot.len() > 0 || stops {
                self.order = order;
                return;
            }
            now = shift.now();
        }
        self.order = order;
        self.came_to_nothing(shift, failed);
    }

    /// What a request for messages came to: into `lot`, or into a pause. True where it failed.
    fn answered(
        &mut self,
        shift: &Shift,
        lot: &mut Lot,
        answer: Option<Option<Result<Vec<Delivery>, QueueError>>>,
        (source, since): (usize, Instant),
    ) -> bool {
        match answer {
            Some(Some(Ok(deliveries))) if !deliveries.is_empty() => {
                self.found(shift, deliveries.len(), since);
                *lot = Lot { deliveries: deliveries.into_iter(), source, since };
                false
            }
            Some(Some(Ok(_))) => {
                shift.inner.counters.empty_polls.add(1);
                false
            }
            Some(Some(Err(error))) => {
                shift.tell_failure(QueueCall::Receive, &error);
                if error.class() == ErrorClass::Permanent
                    && let Some(backend) = error.backend()
                {
                    shift.fail(backend.clone());
                }
                self.back_off(shift, error.backend().and_then(|backend| backend.retry_after()));
                true
            }
            Some(None) => {
                self.back_off(shift, None);
                true
            }
            // The run stops: nothing is asked any more.
            None => true,
        }
    }

    /// A poll found nothing: when to poll next, where no failure has said so.
    fn came_to_nothing(&mut self, shift: &Shift, failed: bool) {
        if failed {
            return;
        }
        let inner = &shift.inner;
        self.failures = None;
        shift.found_nothing();
        let (delay, at_most) = self.idle.found_nothing(&inner.config.idle, inner.entropy.unit());
        // A poll that waited in the queue has used up some of it.
        (self.next, self.at_most) = (shift.now() + delay.saturating_sub(inner.config.receive_wait), at_most);
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
    async fn unless_stopped<T>(&mut self, shift: &Shift, request: impl Future<Output = T>) -> Option<T> {
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
