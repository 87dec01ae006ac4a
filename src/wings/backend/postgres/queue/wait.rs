//! Receiving from a queue, with a wait for the first message.
use std::time::Duration;

use tokio::sync::Notify;

use super::super::notices::listen::Subscription;
use super::{PostgresQueue, receive::Taken};
use crate::{
    port::{PortError, PortErrorKind, within},
    queue::{Delivery, QueueError, Receive},
    race::race,
};

/// Number of looks for messages that other receivers hold for a moment, before the pauses between
/// them grow.
const LOOKS: u32 = 10;
/// Shortest and longest pause between two of these looks.
const PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// Interval at which a waiting receiver looks for messages as long as no notice arrives.
const UNHEARD: Duration = Duration::from_secs(1);

impl PostgresQueue {
    /// Returns the notices of this queue, if they arrive and the server can be reached in time.
    async fn notices(&self, limit: Duration) -> Option<&Subscription> {
        let core = &self.0.core;
        if !core.hears {
            return None;
        }
        let channel = self.channel(self.0.id);
        let subscribed = self.0.notices.get_or_try_init(|| core.listener.subscribe(&channel));
        within(&core.clock, limit, subscribed).await?.ok()
    }

    /// Returns the error of a receive that would have to end empty although a message was visible
    /// at its last look.
    fn held(&self, last: &Taken) -> PortError {
        let what = match last {
            Taken::Outrun => {
                "other receivers of this handle got each message that was found: use fewer, that receive several at once"
            }
            _ => "another transaction holds the visible messages",
        };
        PortError::new(PortErrorKind::Throttled, format!("postgres: {}: {what}", self.0.core.link.place()))
    }

    pub(crate) async fn wait_for(&self, max: usize, receive: Receive) -> Result<Vec<Delivery>, QueueError> {
        let (clock, poll) = (&self.0.core.clock, self.0.core.config.poll);
        let end = clock.now() + receive.wait;
        let (mut notices, mut busy) = (self.0.notices.get(), 0_u32);
        let mut notifies_next = NotifiesNextReceiver(Some(&self.0.available));
        loop {
            if let Some(notices) = notices {
                // Earlier ones are of messages that this look finds.
                while notices.try_recv().is_some() {}
            }
            let mut wait = match self.0.receives.send((max, receive.visibility, busy)).await?? {
                Taken::Some(taken) => return Ok(taken),
                Taken::None(_) if clock.now() >= end => {
                    notifies_next.0 = None;
                    return Ok(Vec::new());
                }
                Taken::None(next) => {
                    busy = 0;
                    next.map_or(poll, |next| next.clamp(Duration::from_millis(1), poll))
                }
                // A message is visible: no answer may be empty. Its holder takes it within one statement, or gives it
                // back.
                last @ (Taken::Busy | Taken::Outrun) => {
                    let over = clock.now() - end;
                    if over >= self.0.core.config.request_timeout {
                        return Err(self.held(&last).into());
                    }
                    busy += 1;
                    let pause = (PAUSE.0 * 2_u32.pow(busy.saturating_sub(LOOKS).min(8))).min(PAUSE.1);
                    if busy <= LOOKS || !over.is_zero() || receive.wait.is_zero() {
                        clock.sleep(pause).await;
                        continue;
                    }
                    pause
                }
            };
            let now = clock.now();
            if notices.is_none() {
                notices = self.notices((end - now).min(poll)).await;
                if notices.is_some() {
                    // A message may have arrived before the connection listened.
                    continue;
                }
                wait = wait.min(UNHEARD);
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
