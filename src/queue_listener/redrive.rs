//! Sending dead letters again.
use std::time::Duration;

use crate::{
    port::{Capability, PortError, PortErrorKind},
    queue::{Delivery, Message, Queue, QueueError, QueueExt, Receive, Settle},
};

/// How long a dead letter that is looked at is hidden from others.
const LOOK: Duration = Duration::from_secs(60);

/// Sends the dead letters of this queue again, those that `which` chooses, and gives how many. What lies there is listed by
/// [`peek`](Queue::peek) on [`dead_letters`](Queue::dead_letters).
///
/// Each is sent, and then completed as a dead letter. Where this ends in between, one is in both for as long as it is looked at, and sent twice when this is
/// called again; a queue with [`Deduplication`](Capability::Deduplication) refuses the second within its window. Its deliveries begin at 1 again.
///
/// # Errors
/// `Unsupported` where the queue has no dead letters; those of the queues.
///
/// # Cancel safety
/// Dropped, it leaves the rest where they are: those it looked at are visible again after a minute.
pub async fn redrive(queue: &dyn Queue, most: usize, which: impl Fn(&Delivery) -> bool) -> Result<usize, QueueError> {
    let none = || PortError::new(PortErrorKind::Unsupported, "this queue has no dead letters");
    let dead = queue.dead_letters().ok_or_else(none)?;
    let deduplicates = queue.capabilities().has(Capability::Deduplication);
    let (mut sent, mut kept) = (0, Vec::new());
    // Each once: what is not sent stays hidden until all were looked at.
    'all: while sent < most {
        let letters = dead.receive(Receive::new((most - sent).min(100), LOOK)).await?;
        if letters.is_empty() {
            break;
        }
        for letter in letters {
            if sent == most || !which(&letter) {
                kept.push((letter.receipt, Settle::abandon(Duration::ZERO)));
                continue;
            }
            let mut message = Message::new(letter.body);
            (message.headers, message.group) = (letter.headers, letter.group);
            if deduplicates {
                message.deduplication_id = Some(format!("redriven-{}-{}", letter.id, letter.sent_at.as_millis()));
            }
            if let Err(error) = queue.send_one(message).await {
                kept.push((letter.receipt, Settle::abandon(Duration::ZERO)));
                if sent == 0 {
                    dead.settle(kept).await?;
                    return Err(error);
                }
                break 'all;
            }
            dead.complete(&letter.receipt).await?;
            sent += 1;
        }
    }
    if !kept.is_empty() {
        dead.settle(kept).await?;
    }
    Ok(sent)
}
