//! Waiting in several queues at once, beside the tasks.
use std::sync::atomic::Ordering;

use crate::{
    queue_listener::{
        QueueCall,
        poll::{Answer, Poller, receive},
        run::state::{Shift, Stage},
    },
    race::race,
    time::Instant,
};

impl Poller {
    /// Waits in one of several queues while tasks are idle, for ever: so that none is waited for while another has something.
    pub(crate) async fn wait_in(&mut self, shift: &Shift, source: usize) {
        let config = &shift.inner.config;
        loop {
            if !matches!(shift.stage(), Stage::Works | Stage::Paused) {
                return;
            }
            let idles = shift.idles.notified();
            if shift.halts() || shift.idle.load(Ordering::Acquire) == 0 {
                race(idles, async { drop(self.stage.changed().await) }).await;
                continue;
            }
            let watched = shift.watches();
            let fewer = shift.room.fewer.notified();
            if shift.room.is_one_by_one() {
                // The tasks take one message at a time, and none beside it.
                race(fewer, async { drop(self.stage.changed().await) }).await;
                continue;
            }
            drop(watched);
            let now = shift.now();
            if self.next > now {
                let wait = shift.inner.clock.sleep_until(self.next);
                race(wait, async { drop(self.stage.changed().await) }).await;
                continue;
            }
            let Some(mut room) = self.room(shift).await else { continue };
            shift.inner.counters.polls.add(1);
            shift.inner.counters.requests.add(1);
            let wait = config.receive_wait;
            let request = shift.inner.sources[source].queue.receive(receive(shift, room.1, wait));
            let request = shift.rest(QueueCall::Receive, config.call_limit().saturating_add(wait), request);
            let answer = self.unless_stopped(shift, request).await;
            match self.answered(shift, answer, (source, now + wait), &mut room) {
                // A message to be handled alone is for a task.
                Answer::Messages(Some(held)) => shift.leave_alone(*held),
                Answer::Messages(None) => shift.share(0),
                Answer::Nothing => {
                    let waited = shift.now() - now;
                    self.came_to_nothing(shift, waited);
                    if waited >= wait {
                        self.next = Instant::default();
                    }
                }
                Answer::Failed => {}
            }
        }
    }
}

/// A task that waits for the next poll.
pub(crate) struct Idles<'a>(&'a Shift);

impl<'a> Idles<'a> {
    pub(crate) fn of(shift: &'a Shift) -> Self {
        if shift.inner.sources.len() > 1 {
            shift.idle.fetch_add(1, Ordering::AcqRel);
            shift.idles.notify_waiters();
        }
        Self(shift)
    }
}

impl Drop for Idles<'_> {
    fn drop(&mut self) {
        if self.0.inner.sources.len() > 1 {
            self.0.idle.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
