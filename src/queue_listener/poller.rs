//! One task's polling: asking for messages, waiting longer and longer while there are none, ending when that has been so for long.
use std::future::Future;

use tokio::sync::watch;

use super::{
    QueueCall, QueueListenerEvent as Event,
    idle::Idle,
    keep::within,
    lot::Lot,
    shift::{Shift, Stage, lock},
    staff::Staff,
};
use crate::{
    backoff::Backoff,
    port::{ErrorClass, Failure},
    queue::Receive,
    race::{First, race},
    time::Instant,
};

/// After a shutdown a poll under way is waited for so long: what it takes is handed back at once, and not after its visibility time-out.
const LAST_POLL: std::time::Duration = std::time::Duration::from_secs(1);

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

    /// Finds work: into `lot`, or among what waits for a task.
    pub(super) async fn find(&mut self, shift: &Shift, lot: &mut Lot) -> Next {
        loop {
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
            lock(&shift.turns).next(now, &mut order);
        }
        let mut failed = false;
        for (i, &source) in order.iter().enumerate() {
            if !single {
                lock(&shift.turns).asked(source, now);
            }
            // Only the last is waited at: the others are asked in passing.
            let wait = if i + 1 == order.len() { inner.config.receive_wait } else { std::time::Duration::ZERO };
            let receive = Receive::new(inner.config.batch, inner.config.visibility).wait(wait);
            inner.counters.polls.add(1);
            let request = inner.sources[source].queue.receive(receive);
            let request = shift.request(QueueCall::Receive, inner.config.call_timeout.saturating_add(wait), request);
            match self.unless_stopped(shift, request).await {
                Some(Some(Ok(deliveries))) if !deliveries.is_empty() => {
                    self.found(shift, deliveries.len(), now);
                    *lot = Lot { deliveries: deliveries.into_iter(), source, since: now };
                    self.order = order;
                    return;
                }
                Some(Some(Ok(_))) => inner.counters.empty_polls.add(1),
                Some(Some(Err(error))) => {
                    if error.class() == ErrorClass::Permanent
                        && let Some(backend) = error.backend()
                    {
                        shift.fail(backend.clone());
                    }
                    failed = true;
                    self.back_off(shift, error.backend().and_then(|backend| backend.retry_after()));
                }
                Some(None) => {
                    failed = true;
                    self.back_off(shift, None);
                }
                None => break,
            }
            now = shift.now();
        }
        self.order = order;
        if !failed {
            self.failures = None;
            shift.found_nothing();
            let (delay, at_most) = self.idle.found_nothing(&inner.config.idle, inner.entropy.unit());
            // A poll that waited in the queue has used up some of it.
            (self.next, self.at_most) = (now + delay.saturating_sub(inner.config.receive_wait), at_most);
        }
    }

    #[inline]
    fn found(&mut self, shift: &Shift, messages: usize, now: Instant) {
        self.idle.reset();
        self.failures = None;
        (self.next, self.at_most) = (Instant::default(), false);
        shift.found(messages, now);
    }

    /// A request failed, or the queue is busy: not at once again.
    fn back_off(&mut self, shift: &Shift, at_least: Option<std::time::Duration>) {
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
            within(shift, LAST_POLL, std::future::pending::<()>()).await;
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
