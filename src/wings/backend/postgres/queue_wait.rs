//! Receiving from a queue, with a wait for the first message.
use std::time::Duration;

use tokio::sync::Notify;

use super::{listen::Subscription, queue::PostgresQueue, queue_receive::Taken};
use crate::{
    port::within,
    queue::{Delivery, QueueError, Receive},
    race::race,
};

/// Pause before another look for messages that other receivers hold for a moment, and their number
/// without a wait.
const BUSY: (Duration, usize) = (Duration::from_millis(2), 10);

impl PostgresQueue {
    /// Returns the notices of this queue, if the server can be reached in time.
    async fn notices(&self, limit: Duration) -> Option<&Subscription> {
        let core = &self.0.core;
        let channel = self.channel(self.0.id);
        let subscribed = self.0.notices.get_or_try_init(|| core.listener.subscribe(&channel));
        within(&core.clock, limit, subscribed).await?.ok()
    }

    pub(super) async fn wait_for(&self, max: usize, receive: Receive) -> Result<Vec<Delivery>, QueueError> {
        let (clock, poll) = (&self.0.core.clock, self.0.core.config.poll);
        let end = clock.now() + receive.wait;
        let (mut notices, mut looks) = (self.0.notices.get(), 0);
        let mut notifies_next = NotifiesNextReceiver(Some(&self.0.available));
        loop {
            if let Some(notices) = notices {
                // Earlier ones are of messages that this look finds.
                while notices.try_recv().is_some() {}
            }
            looks += 1;
            let wait = match self.0.receives.send((max, receive.visibility)).await?? {
                Taken::Some(taken) => return Ok(taken),
                Taken::Busy if looks <= BUSY.1 => {
                    clock.sleep(BUSY.0).await;
                    continue;
                }
                Taken::Busy => BUSY.0 * 10,
                Taken::None(next) => next.map_or(poll, |next| next.clamp(Duration::from_millis(1), poll)),
            };
            let now = clock.now();
            if now >= end {
                notifies_next.0 = None;
                return Ok(Vec::new());
            }
            if notices.is_none() {
                notices = self.notices((end - now).min(poll)).await;
                if notices.is_some() {
                    // A message may have arrived before the connection listened.
                    continue;
                }
            }
            let sleep = clock.sleep_until(end.min(now + wait));
            let heard = async {
                match notices {
                    Some(notices) => drop(notices.recv().await),
                    None => std::future::pending().await,
                }
            };
            race(race(self.0.available.notified(), heard), sleep).await;
        }
    }
}

/// Wakes the next waiting receiver of this handle on drop: one notice may be of several messages.
struct NotifiesNextReceiver<'a>(Option<&'a Notify>);

impl Drop for NotifiesNextReceiver<'_> {
    fn drop(&mut self) {
        if let Some(available) = self.0 {
            available.notify_one();
        }
    }
}
