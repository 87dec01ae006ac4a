//! Waiters in several queues at once, beside the tasks.
use crate::{
    in_progress::InProgressGuard,
    queue_listener::{
        QueueCall,
        poll::{Answer, Poller, receive},
        run::state::{RunState, Stage},
    },
    race::race,
    time::Instant,
};

impl Poller {
    /// Waits in one of several queues while tasks are idle, until the run ends. Each queue has such
    /// a waiter, so that a wait in one does not delay another's messages.
    pub(crate) async fn wait_in(&mut self, run: &RunState, source: usize) {
        let config = &run.inner.config;
        loop {
            if !matches!(run.stage(), Stage::Running | Stage::Paused) {
                return;
            }
            let idles = run.idles.notified();
            if run.is_halted() || run.idle.get() == 0 {
                race(idles, async { drop(self.stage.changed().await) }).await;
                continue;
            }
            let watched = run.watches();
            let fewer = run.intake.fewer.notified();
            if run.intake.is_one_by_one() {
                // The tasks take one message at a time, and none beside it.
                race(fewer, async { drop(self.stage.changed().await) }).await;
                continue;
            }
            drop(watched);
            let now = run.now();
            if self.next > now {
                let wait = run.inner.clock.sleep_until(self.next);
                race(wait, async { drop(self.stage.changed().await) }).await;
                continue;
            }
            if run.is_source_paused(source) {
                // An error means that the run was dropped.
                drop(self.stage.changed().await);
                continue;
            }
            if run.awaits_control() {
                self.unless_stopped(run, Box::pin(run.read_control())).await;
                continue;
            }
            let Some(mut intake) = self.intake(run).await else { continue };
            run.inner.counters.polls.add(1);
            run.inner.counters.requests.add(1);
            let wait = config.receive_wait;
            let request = run.inner.sources[source].queue.receive(receive(run, intake.1, wait));
            let request = run.bounded(QueueCall::Receive, config.call_limit().saturating_add(wait), request);
            let answer = self.unless_stopped(run, request).await;
            match self.answered(run, answer, (source, now + wait), &mut intake) {
                // Only a task can handle a suspect message.
                Answer::Messages(Some(leased)) => run.decline_exclusive(*leased),
                Answer::Messages(None) => run.share(0),
                Answer::Nothing => {
                    let waited = run.now() - now;
                    self.came_to_nothing(run, waited);
                    if waited >= wait {
                        self.next = Instant::default();
                    }
                }
                Answer::Failed => {}
            }
        }
    }
}

impl RunState {
    /// Counts a task that waits for its next poll.
    pub(crate) fn begin_idle(&self) -> Option<InProgressGuard<'_>> {
        (self.inner.sources.len() > 1).then(|| {
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
