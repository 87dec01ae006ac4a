//! Waits in the queues that wake their receivers, beside the tasks.
use std::future::Future;

use crate::{
    in_progress::InProgressGuard,
    queue::{Delivery, QueueError, Receive},
    queue_listener::{
        QueueCall,
        poll::{Answer, Poller},
        run::{
            guards::Reserved,
            state::{RunState, Stage},
        },
    },
    race::{First, race},
    time::Instant,
};

/// The answer to a waiting request: none if the wait had to end, or if the request timed out.
type Arrival = Option<Option<Result<Vec<Delivery>, QueueError>>>;

impl Poller {
    /// Waits in a queue while tasks are idle, until the run ends. The waits are as long as the
    /// delays between polls. A task that waited itself would miss messages of other queues, and
    /// those that are offered to it.
    pub(crate) async fn wait_in(&mut self, run: &RunState, source: usize) {
        let inner = &run.inner;
        loop {
            if !matches!(*self.stage.borrow_and_update(), Stage::Running | Stage::Paused) {
                return;
            }
            let (idles, fewer) = (run.idles.notified(), run.intake.fewer.notified());
            if run.idle.get() == 0 || !run.may_wait_in(source) {
                race(race(idles, fewer), async { drop(self.stage.changed().await) }).await;
                continue;
            }
            let watched = run.watches();
            // While settlements are tried again, as of forwards to a full target, messages return one
            // by one. The tasks poll for several of them, and settle those together.
            let room = if run.intake.unsettled() > 0 { 0 } else { run.room() };
            if room == 0 {
                race(fewer, async { drop(self.stage.changed().await) }).await;
                continue;
            }
            drop(watched);
            let now = run.now();
            if self.next > now {
                // The queue does not answer. This waiter tries it for all tasks.
                let tries = self.failures.is_some().then(|| run.waited_in[source].enter(1));
                race(inner.clock.sleep_until(self.next), async { drop(self.stage.changed().await) }).await;
                drop(tries);
                run.intake.notify_fewer();
                continue;
            }
            if run.awaits_control() {
                self.unless_stopped(run, Box::pin(run.read_control())).await;
                // It is not asked again whether the control awaits a read: another reader may have
                // begun, and two that wait for each other's reads would never poll.
                if run.idle.get() == 0 {
                    continue;
                }
            }
            let waits = run.waited_in[source].enter(1);
            if !run.may_wait_in(source) {
                drop(waits);
                run.intake.notify_fewer();
                continue;
            }
            if inner.sources.len() > 1 {
                run.turns.lock().asked(source, now);
            }
            inner.counters.polls.add(1);
            inner.counters.requests.add(1);
            // A poll that finds messages resets the delays.
            let (wait, _) = self.idle.found_nothing(&inner.config.load().idle, inner.entropy.unit());
            let request = inner.sources[source].queue.receive(Receive::new(room, inner.visibility()).wait(wait));
            let request = run.bounded(QueueCall::Receive, run.call_limit().saturating_add(wait), request);
            let answer = self.while_wanted(run, source, request).await;
            if let Some(None) = answer {
                run.answers.timed_out();
            }
            let (answer, since) = run.arrived(source, now, answer).await;
            let answer = self.answered(run, answer, (source, since), &mut Reserved::nothing(run));
            drop(waits);
            run.intake.notify_fewer();
            match answer {
                Answer::Messages => run.share(0),
                Answer::Nothing => {
                    self.failures = None;
                    run.found_nothing();
                    // A queue that answers early is not asked again before the end of the wait.
                    self.next = now + wait;
                }
                Answer::Failed => {}
            }
        }
    }

    /// Returns the answer to a waiting request, or `None` if the wait has to end before.
    async fn while_wanted<T>(&mut self, run: &RunState, source: usize, request: impl Future<Output = T>) -> Option<T> {
        let stage = &mut self.stage;
        let ends = async {
            // An error means that the run was dropped.
            while run.may_wait_in(source) && stage.changed().await.is_ok() {}
            // A request that it has made may take messages, which are then released at once instead
            // of after their visibility time-out.
            run.inner.clock.sleep(run.answers.patience(run.call_limit())).await;
        };
        match race(request, ends).await {
            First::One(answer) => Some(answer),
            First::Other(()) => None,
        }
    }
}

impl RunState {
    /// Returns `true` if a waiter waits in this queue, so that a poll would find nothing.
    #[inline]
    pub(crate) fn is_waited_in(&self, source: usize) -> bool {
        self.waited_in[source].get() > 0
    }

    /// Returns `true` if messages of this queue may be taken beside the tasks. While all are
    /// refused they return at known times, when the tasks poll for several at once.
    fn may_wait_in(&self, source: usize) -> bool {
        !self.intake.is_closed()
            && self.stage() == Stage::Running
            && !self.is_source_paused(source)
            && !self.refuses_all()
    }

    /// Prepares messages that arrived in a wait. Returns the time from which their leases count.
    ///
    /// The queue took them at an unknown time within the wait, at the earliest at its beginning.
    /// The leases count from there, or are renewed if that was long ago. What was read of the
    /// control's records may be as old.
    async fn arrived(&self, source: usize, at: Instant, mut answer: Arrival) -> (Arrival, Instant) {
        let mut since = at;
        if let Some(Some(Ok(deliveries))) = &mut answer
            && !deliveries.is_empty()
        {
            if self.awaits_control() {
                self.read_control().await;
            }
            if self.now() - at > self.parts.half {
                since = self.renew_arrived(source, at, deliveries).await;
            }
        }
        (answer, since)
    }

    /// Counts a task that waits for its next poll.
    pub(crate) fn begin_idle(&self) -> Option<InProgressGuard<'_>> {
        self.inner.wakes().then(|| {
            let idle = self.idle.enter(1);
            self.idles.notify_waiters();
            idle
        })
    }

    /// Counts a task that waits for the end of a pause.
    pub(crate) fn begin_parked(&self) -> InProgressGuard<'_> {
        let parked = self.parked.enter(1);
        self.check_idle();
        parked
    }
}
