//! The queue that checks bodies in and out.
use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    ClaimCheckConfig,
    body::{CLAIM, Claim},
};
use crate::{
    config::ConfigError,
    entropy::Entropy,
    port::{BoxFuture, Capabilities, Capability, ErrorClass, Failure, PortError},
    queue::{Delivery, Depth, Message, MessageId, Peeked, Queue, QueueError, Receipt, Receive, Settle},
    store::{DeleteOptions, Key, PutOptions, Store},
};

/// A queue whose large bodies lie in a store. The [module's page](super) says how. A clone is the same.
#[derive(Clone)]
pub struct ClaimCheck(Arc<Inner>);

struct Inner {
    queue: Arc<dyn Queue>,
    store: Arc<dyn Store>,
    config: ClaimCheckConfig,
    entropy: Entropy,
}

/// Of receipts that have the row of a body in them, so that it can be removed; and how the queue's own receipt is in them.
const CHECKED: &str = "claim-check:";

impl ClaimCheck {
    /// This queue, with bodies above the threshold in this store.
    ///
    /// # Errors
    /// Where a setting breaks a rule, or the store cannot end bodies that are to be kept for so long only.
    pub fn new(queue: Arc<dyn Queue>, store: Arc<dyn Store>, config: ClaimCheckConfig) -> Result<Self, ConfigError> {
        config.check()?;
        if config.keep.is_some() {
            store.capabilities().require(Capability::TimeToLive).map_err(|lacks| lacks.refuse("keep"))?;
        }
        Ok(Self(Arc::new(Inner { queue, store, config, entropy: Entropy::default() })))
    }

    /// The same, that draws the keys of bodies from this stream. Seeded by the system by default.
    #[must_use]
    pub fn with_entropy(self, entropy: &Entropy) -> Self {
        let Inner { queue, store, config, .. } = &*self.0;
        let (queue, store, config) = (queue.clone(), store.clone(), config.clone());
        Self(Arc::new(Inner { queue, store, config, entropy: entropy.clone() }))
    }

    fn key<'a>(&'a self, row: &'a str) -> Key<'a> {
        Key::new(&self.0.config.partition, row)
    }

    /// Stores the body, if it is large; gives its row.
    async fn check_in(&self, message: &mut Message) -> Result<Option<String>, QueueError> {
        let Inner { store, config, entropy, .. } = &*self.0;
        if message.headers.contains_key(CLAIM) {
            return Err(
                PortError::invalid("headers", format_args!("must not have `{CLAIM}`, which is for the claim")).into()
            );
        }
        if message.body.len() <= config.threshold {
            return Ok(None);
        }
        let row = format!("{:016x}{:016x}", entropy.next_u64(), entropy.next_u64());
        let body = std::mem::take(&mut message.body);
        let (claim, stored) = Claim::check_in(row, body, config.compress);
        let options = config.keep.map_or(PutOptions::new(), |keep| PutOptions::new().ttl(keep));
        store.put(self.key(&claim.row), stored, options).await.map_err(of_store)?;
        message.headers.insert(CLAIM.to_owned(), claim.write());
        Ok(Some(claim.row))
    }

    /// The body that a message claims. The inner error says why there is none, for good.
    async fn body(&self, claim: &Claim) -> Result<Result<Bytes, String>, QueueError> {
        let stored = self.0.store.get(self.key(&claim.row)).await;
        Ok(match stored {
            Ok(Some(record)) => {
                claim.check_out(record.value).map_err(|why| format!("the claimed body is corrupted: {why}"))
            }
            Ok(None) => Err("the claimed body is missing".to_owned()),
            Err(error) => return Err(of_store(error)),
        })
    }

    /// The delivery with its body; `None` where it cannot be had now, or ever.
    async fn check_out(&self, mut delivery: Delivery) -> Option<Delivery> {
        let Some(header) = delivery.headers.remove(CLAIM) else { return Some(delivery) };
        let how = match Claim::read(&header) {
            Some(claim) => match self.body(&claim).await {
                Ok(Ok(body)) => {
                    delivery.body = body;
                    delivery.receipt = checked(&delivery.receipt, &claim.row);
                    return Some(delivery);
                }
                // What is a dead letter already stays one, to be looked at.
                Ok(Err(_)) if self.0.queue.dead_letters().is_none() => {
                    delivery.headers.insert(CLAIM.to_owned(), header);
                    delivery.receipt = checked(&delivery.receipt, &claim.row);
                    return Some(delivery);
                }
                Ok(Err(why)) => Settle::dead_letter(why),
                // The store is away: the message comes back when its time is over, and is not lost.
                Err(_) => return None,
            },
            None => Settle::dead_letter(format!("the claim cannot be read: {header}")),
        };
        // Where that fails, the message comes back, and is looked at again.
        drop(self.0.queue.settle(vec![(delivery.receipt, how)]).await);
        None
    }

    /// Removes bodies. What cannot be removed now is bounded by `keep`.
    async fn forget(&self, rows: Vec<String>) {
        for row in rows {
            drop(self.0.store.delete(self.key(&row), DeleteOptions::new()).await);
        }
    }
}

/// The receipt of a message whose body lies in the store.
fn checked(receipt: &Receipt, row: &str) -> Receipt {
    Receipt::new(match receipt.as_numbers() {
        Some((one, other)) => format!("{CHECKED}{row}:#{one}#{other}"),
        None => format!("{CHECKED}{row}:{}", receipt.as_text().unwrap_or_default()),
    })
}

/// The queue's own receipt, and the row of the body if there is one.
fn plain(receipt: &Receipt) -> (Receipt, Option<String>) {
    let parts = receipt.as_text().and_then(|text| text.strip_prefix(CHECKED)).and_then(|text| text.split_once(':'));
    let Some((row, inner)) = parts else { return (receipt.clone(), None) };
    let numbers = inner.strip_prefix('#').and_then(|numbers| numbers.split_once('#'));
    let numbers = numbers.and_then(|(one, other)| Some((one.parse().ok()?, other.parse().ok()?)));
    let inner = numbers.map_or_else(|| Receipt::new(inner), |(one, other)| Receipt::from_numbers(one, other));
    (inner, Some(row.to_owned()))
}

/// A store's failure, as a queue has it.
fn of_store(error: impl Failure) -> QueueError {
    let other = || PortError::new(crate::port::PortErrorKind::Other, "the store refused the body");
    error.backend().cloned().unwrap_or_else(other).into()
}

impl Queue for ClaimCheck {
    /// The queue's, with the largest body that the store takes.
    fn capabilities(&self) -> Capabilities {
        self.0.queue.capabilities().largest_value(self.0.store.capabilities().max_value())
    }

    fn send<'a>(&'a self, mut messages: Vec<Message>) -> BoxFuture<'a, Result<Vec<MessageId>, QueueError>> {
        Box::pin(async move {
            // Before any body is stored.
            Message::check(&messages, &self.capabilities())?;
            let mut rows = Vec::new();
            for message in &mut messages {
                match self.check_in(message).await {
                    Ok(row) => rows.extend(row),
                    Err(error) => {
                        self.forget(rows).await;
                        return Err(error);
                    }
                }
            }
            let sent = self.0.queue.send(messages).await;
            if let Err(error) = &sent
                && !error.may_have_been_applied()
            {
                self.forget(rows).await;
            }
            sent
        })
    }

    fn receive<'a>(&'a self, receive: Receive) -> BoxFuture<'a, Result<Vec<Delivery>, QueueError>> {
        Box::pin(async move {
            let mut taken = Vec::new();
            for delivery in self.0.queue.receive(receive).await? {
                taken.extend(self.check_out(delivery).await);
            }
            Ok(taken)
        })
    }

    fn settle<'a>(
        &'a self,
        settlements: Vec<(Receipt, Settle)>,
    ) -> BoxFuture<'a, Result<Vec<Result<(), QueueError>>, QueueError>> {
        Box::pin(async move {
            let mut rows = Vec::with_capacity(settlements.len());
            let settlements = settlements.into_iter().map(|(receipt, how)| {
                let (receipt, row) = plain(&receipt);
                rows.push(row.filter(|_| how == Settle::Complete));
                (receipt, how)
            });
            let settlements = settlements.collect();
            let settled = self.0.queue.settle(settlements).await?;
            // After the message, never before: one whose body is gone could not be handled again.
            let mut done = Vec::new();
            for (row, answer) in rows.into_iter().zip(&settled) {
                done.extend(row.filter(|_| answer.is_ok()));
            }
            self.forget(done).await;
            Ok(settled)
        })
    }

    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> BoxFuture<'a, Result<(), QueueError>> {
        Box::pin(async move { self.0.queue.extend(&plain(receipt).0, visibility).await })
    }

    fn depth(&self) -> BoxFuture<'_, Result<Depth, QueueError>> {
        self.0.queue.depth()
    }

    /// With bodies, as far as they can be had.
    fn peek(&self, max: usize) -> BoxFuture<'_, Result<Vec<Peeked>, QueueError>> {
        Box::pin(async move {
            let mut peeked = self.0.queue.peek(max).await?;
            for peeked in &mut peeked {
                let Some(claim) = peeked.headers.get(CLAIM).and_then(|header| Claim::read(header)) else { continue };
                match self.body(&claim).await {
                    Ok(Ok(body)) => {
                        peeked.body = body;
                        peeked.headers.remove(CLAIM);
                    }
                    Ok(Err(_)) => {}
                    Err(error) if error.class() == ErrorClass::Permanent => return Err(error),
                    Err(_) => {}
                }
            }
            Ok(peeked)
        })
    }

    fn purge(&self) -> BoxFuture<'_, Result<u64, QueueError>> {
        self.0.queue.purge()
    }

    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        let Inner { queue, store, config, entropy } = &*self.0;
        let (queue, store, config, entropy) = (queue.dead_letters()?, store.clone(), config.clone(), entropy.clone());
        Some(Arc::new(Self(Arc::new(Inner { queue, store, config, entropy }))))
    }
}

impl fmt::Debug for ClaimCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimCheck").field("queue", &self.0.queue).field("store", &self.0.store).finish_non_exhaustive()
    }
}
