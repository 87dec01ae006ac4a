//! Receives: a call is made when the copy has messages that nobody of the handle is about to take.
use std::{sync::atomic::Ordering, time::Duration};

use super::{NatsQueue, entry::Call, machine::Outcome};
use crate::{
    port::within,
    queue::{Delivery, QueueError, Receive},
};

/// Pause before a receive looks again although its copy has visible messages: others took them.
const PAUSE: Duration = Duration::from_millis(2);

impl NatsQueue {
    async fn take(&self, max: usize, visibility: Duration) -> Result<Vec<Delivery>, QueueError> {
        let _wants = Wants::new(self, max);
        match self.call(&Call::Take { max, visibility }).await? {
            Outcome::Taken(mut taken) => {
                for delivery in &mut taken {
                    if let Some(stub) = delivery.receipt.as_numbers() {
                        delivery.receipt = self.receipt(stub);
                    }
                }
                Ok(taken)
            }
            _ => Err(self.unexpected()),
        }
    }

    pub(super) async fn receive_some(&self, receive: Receive) -> Result<Vec<Delivery>, QueueError> {
        let max = receive.check(&self.core.can)?;
        let log = &self.core.log;
        let clock = &self.core.nats.link.base().clock;
        let end = clock.now() + receive.wait;
        log.follow();
        let mut changed = log.changed.subscribe();
        loop {
            changed.borrow_and_update();
            let left = end - clock.now();
            let outlook = log.outlook(self.part);
            let next = match outlook {
                // Others of this handle are about to take those that are visible.
                Some((visible, next))
                    if !left.is_zero() && visible <= log.wanted[self.part as usize].load(Ordering::Acquire) =>
                {
                    next
                }
                _ => {
                    let taken = self.take(max, receive.visibility).await?;
                    if !taken.is_empty() || end <= clock.now() {
                        return Ok(taken);
                    }
                    // The log is behind: its next entry tells.
                    Some(PAUSE)
                }
            };
            let left = (end - clock.now()).min(next.unwrap_or(Duration::MAX));
            // The copy changes with the next entry, or a message returns.
            within(clock, left, changed.changed()).await;
        }
    }
}

/// Counts the messages that a receive is about to take, so that others of the handle wait for more.
struct Wants<'a> {
    queue: &'a NatsQueue,
    messages: usize,
}

impl<'a> Wants<'a> {
    fn new(queue: &'a NatsQueue, messages: usize) -> Self {
        queue.core.log.wanted[queue.part as usize].fetch_add(messages, Ordering::AcqRel);
        Self { queue, messages }
    }
}

impl Drop for Wants<'_> {
    fn drop(&mut self) {
        let log = &self.queue.core.log;
        log.wanted[self.queue.part as usize].fetch_sub(self.messages, Ordering::AcqRel);
        log.changed.send_replace(());
    }
}
