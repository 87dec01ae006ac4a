//! Sending dead letters again.
use std::{collections::HashMap, time::Duration};

use super::{Address, Delivery, Message, MessageId, Queue, QueueError, QueueExt, Receipt, Receive, Settle};
use crate::port::{Capability, Failure, PortError, PortErrorKind};

/// Visibility time-out of a dead letter that is examined, at first. It doubles when a letter that
/// was examined returns: otherwise those of a pass that takes longer hide the rest of the queue.
const LOOK: Duration = Duration::from_secs(60);

/// Longest time for which a slow pass hides a letter. Each batch of known letters doubles the time,
/// and a pass that is dropped leaves its letters hidden.
const LONGEST_LOOK: Duration = Duration::from_secs(3600);

/// Maximum number of dead letters held at once, with their bodies.
const AT_ONCE: usize = 32;

/// State of an examined dead letter.
enum Examined {
    /// It stays a dead letter.
    Stays(Receipt),
    /// It was sent. The receipt remains if completing it failed.
    Sent(Option<Receipt>),
}

/// Sends the dead letters of this queue again that `which` selects, and returns their number.
/// [`peek`](Queue::peek) on [`dead_letters`](Queue::dead_letters) lists all of them.
///
/// Each dead letter is examined once and moved in one step, by a [forward](Settle::Forward), if the
/// queue has an [address](Queue::address) and its dead letters have the capability
/// [`Forward`](Capability::Forward). Otherwise it is sent, and then completed as a dead letter. If
/// this function ends in between, the message is in both queues, and a second call sends it twice;
/// a queue with [`Deduplication`](Capability::Deduplication) refuses the second within its window.
///
/// The delivery count of the message restarts at 1, and its [age](Delivery::age) at zero. It has a
/// new id and no [errors](Delivery::errors): read those from the dead letter before.
///
/// A dead letter that the queue refuses, such as one whose claimed body is missing, stays, and the
/// others are sent. The id and the receipt of each examined letter are held until the end, but not
/// its body.
///
/// # Errors
/// `Unsupported` if the queue has no dead letters. If nothing was sent: the first refusal, or the
/// failure that ended the pass. If a message was sent and could not be completed as a dead letter:
/// that failure.
///
/// # Cancel safety
/// If dropped, the remaining dead letters stay; those that were examined are visible again after a
/// minute, or after an hour at most if the pass took longer than that minute.
pub async fn redrive(queue: &dyn Queue, most: usize, which: impl Fn(&Delivery) -> bool) -> Result<usize, QueueError> {
    let none = || PortError::new(PortErrorKind::Unsupported, "this queue has no dead letters");
    let dead = queue.dead_letters().ok_or_else(none)?;
    let mut pass = Pass {
        target: queue.address().filter(|_| dead.capabilities().has(Capability::Forward)),
        deduplicates: queue.capabilities().has(Capability::Deduplication),
        queue,
        dead: &*dead,
        examined: HashMap::new(),
        look: LOOK,
        refused: None,
        sent: 0,
    };
    let failed = pass.examine_all(most, which).await.err();
    pass.settle().await?;
    match failed.or(pass.refused) {
        Some(error) if pass.sent == 0 => Err(error),
        _ => Ok(pass.sent),
    }
}

struct Pass<'a> {
    queue: &'a dyn Queue,
    dead: &'a dyn Queue,
    /// Address of the queue, if its dead letters can be forwarded to it.
    target: Option<Address>,
    deduplicates: bool,
    examined: HashMap<MessageId, Examined>,
    look: Duration,
    refused: Option<QueueError>,
    sent: usize,
}

impl Pass<'_> {
    async fn examine_all(&mut self, most: usize, which: impl Fn(&Delivery) -> bool) -> Result<(), QueueError> {
        // The pass may take longer than a letter stays hidden, so that letters return meanwhile.
        // When as many known letters in a row arrive as there are, no new one is left.
        let mut known = 0;
        while self.sent < most && known <= self.examined.len() + AT_ONCE {
            let letters = self.dead.receive(Receive::new(AT_ONCE, self.look)).await?;
            if letters.is_empty() {
                break;
            }
            if letters.iter().any(|letter| self.examined.contains_key(&letter.id)) {
                self.look = self.look.saturating_mul(2).min(LONGEST_LOOK);
            }
            let mut letters = letters.into_iter();
            while let Some(letter) = letters.next() {
                if let Err(error) = self.examine(letter, most, &which, &mut known).await {
                    letters.for_each(|letter| self.stays(letter));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    async fn examine(
        &mut self,
        letter: Delivery,
        most: usize,
        which: &impl Fn(&Delivery) -> bool,
        known: &mut usize,
    ) -> Result<(), QueueError> {
        match self.examined.get_mut(&letter.id) {
            Some(Examined::Stays(receipt)) => *receipt = letter.receipt,
            Some(Examined::Sent(left)) => *left = Some(letter.receipt),
            None => {
                if self.sent == most || !which(&letter) {
                    *known = 0;
                    self.stays(letter);
                    return Ok(());
                }
                // The earlier letters may have taken long, so that another process may have this
                // one by now.
                match self.dead.extend(&letter.receipt, self.look).await {
                    Ok(()) => {
                        *known = 0;
                        return self.send(letter).await;
                    }
                    Err(error) if !error.is_lease_lost() => {
                        self.stays(letter);
                        return Err(error);
                    }
                    Err(_) => {}
                }
            }
        }
        *known += 1;
        Ok(())
    }

    fn stays(&mut self, letter: Delivery) {
        self.examined.entry(letter.id).or_insert(Examined::Stays(letter.receipt));
    }

    async fn send(&mut self, letter: Delivery) -> Result<(), QueueError> {
        let Delivery { id, receipt, body, headers, group, sent_at, .. } = letter;
        let mut message = Message::new(body);
        (message.headers, message.group) = (headers, group);
        let sent = match self.target.clone() {
            Some(target) => self.dead.forward(&receipt, [(target, message)]).await,
            None => {
                if self.deduplicates {
                    message.deduplication_id = Some(format!("redriven-{id}-{}", sent_at.as_millis()));
                }
                self.queue.send_one(message).await.map(drop)
            }
        };
        match sent {
            Ok(()) => {
                self.sent += 1;
                let is_moved = self.target.is_some();
                self.examined.insert(id.clone(), Examined::Sent((!is_moved).then(|| receipt.clone())));
                if !is_moved && self.dead.complete(&receipt).await.is_ok() {
                    self.examined.insert(id, Examined::Sent(None));
                }
                Ok(())
            }
            Err(error) => {
                self.examined.insert(id, Examined::Stays(receipt));
                if error.is_lease_lost() {
                    // Another process has the letter by now.
                    return Ok(());
                }
                let kind = error.backend().map(PortError::kind);
                if !matches!(kind, Some(PortErrorKind::Invalid | PortErrorKind::Unsupported)) {
                    return Err(error);
                }
                // Another letter may be accepted.
                self.refused.get_or_insert(error);
                Ok(())
            }
        }
    }

    /// Completes the letters that were sent, and makes the others visible.
    async fn settle(&mut self) -> Result<(), QueueError> {
        let examined = std::mem::take(&mut self.examined);
        let (mut sent, mut stay) = (Vec::new(), Vec::new());
        for receipt in examined.into_values() {
            match receipt {
                Examined::Sent(Some(receipt)) => sent.push((receipt, Settle::Complete)),
                Examined::Sent(None) => {}
                Examined::Stays(receipt) => stay.push((receipt, Settle::release(Duration::ZERO))),
            }
        }
        let most = self.dead.capabilities().max_batch().max(1);
        for some in stay.chunks(most) {
            // If this fails they are visible when they were hidden for long enough.
            if self.dead.settle(some.to_vec()).await.is_err() {
                break;
            }
        }
        for some in sent.chunks(most) {
            for settled in self.dead.settle(some.to_vec()).await? {
                match settled {
                    Err(error) if !error.is_lease_lost() => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}
