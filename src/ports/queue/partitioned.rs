//! Several queues as one, where one queue's throughput is not enough.
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};

use super::{Delivery, Depth, Message, MessageId, Peeked, Queue, QueueError, Receipt, Receive, Settle};
use crate::{
    config::{ConfigError, require},
    hash::stable_hash,
    port::{BoxFuture, Capabilities, Capability, PortError, PortErrorKind},
};

/// Several queues as one. A message goes to the queue that its group key decides, or else its de-duplication id; one that has neither goes to the
/// next in turn.
///
/// Order holds within a group, as a group is in one queue, and nowhere else: [`Ordered`](Capability::Ordered) is not stated. The number of
/// queues decides where a key is: change it only while they are empty. A `send` of several messages is all or none for each queue,
/// not for all of them.
///
/// A de-duplication id is remembered by the queue of its message. So an id must come with the same group key each time, or
/// with none each time: under another group it may be accepted again.
///
/// A `receive` asks one queue after the other, and returns the messages of the first that has some: no message that was taken
/// waits for another queue. If none has, it waits at all of them at once, and drops the other waits when messages come.
/// A queue that does not answer holds up the receives that reach it; the next receive begins with the next queue. Bound your
/// receives, as a listener does.
///
/// A clone is the same.
///
/// ```
/// use std::sync::Arc;
/// use steadfast::queue::{InMemoryQueue, Message, PartitionedQueue, Queue, QueueExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), steadfast::queue::QueueError> {
/// let parts = (0..4).map(|i| Arc::new(InMemoryQueue::new(format!("jobs-{i}"))) as Arc<dyn Queue>);
/// let queue = PartitionedQueue::new(parts.collect()).unwrap();
/// queue.send((0..100).map(|i| Message::new("job").group(format!("tenant-{i}"))).collect()).await?;
/// assert_eq!(queue.depth().await?.total(), 100);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PartitionedQueue(Arc<Inner>);

struct Inner {
    parts: Vec<Arc<dyn Queue>>,
    /// Whose turn it is to be sent what has no key, and to be asked first.
    send: AtomicUsize,
    ask: AtomicUsize,
}

/// What goes to one part of a request, and where each was in it.
type Lot<T> = (Vec<usize>, Vec<T>);

/// How many bits of a number tell the part.
const BITS: u32 = 16;

impl PartitionedQueue {
    /// These queues as one. Their order matters.
    ///
    /// # Errors
    /// Where there is none, or more than 65,535.
    pub fn new(parts: Vec<Arc<dyn Queue>>) -> Result<Self, ConfigError> {
        require(!parts.is_empty() && parts.len() < 1 << BITS, "parts", "must be from 1 to 65,535")?;
        Ok(Self(Arc::new(Inner { parts, send: AtomicUsize::new(0), ask: AtomicUsize::new(0) })))
    }

    /// Which of the queues messages with this key go to.
    pub fn part_of(&self, key: &str) -> usize {
        (stable_hash(key.as_bytes()) % self.0.parts.len() as u64) as usize
    }

    fn part(&self, message: &Message) -> usize {
        match message.group.as_deref().or(message.deduplication_id.as_deref()) {
            Some(key) => self.part_of(key),
            None => self.0.send.fetch_add(1, Ordering::Relaxed) % self.0.parts.len(),
        }
    }

    fn receipt<'a>(&'a self, receipt: &Receipt) -> Result<(usize, &'a Arc<dyn Queue>, Receipt), QueueError> {
        let (part, receipt) = match receipt.as_numbers() {
            Some((one, other)) => {
                let (part, one) = split(one);
                (Some(part), Receipt::from_numbers(one, other))
            }
            None => {
                let text = receipt.as_text().and_then(|text| text.split_once(':'));
                let (part, text) = text.ok_or(QueueError::LeaseLost)?;
                (
                    part.parse().ok(),
                    untold(text).map_or_else(|| Receipt::new(text), |(a, b)| Receipt::from_numbers(a, b)),
                )
            }
        };
        let part = part.ok_or(QueueError::LeaseLost)?;
        let queue = self.0.parts.get(part).ok_or(QueueError::LeaseLost)?;
        Ok((part, queue, receipt))
    }

    async fn ask(&self, receive: Receive) -> Result<Vec<Delivery>, QueueError> {
        let parts = &self.0.parts;
        let first = self.0.ask.fetch_add(1, Ordering::Relaxed);
        let order = (0..parts.len()).map(|at| first.wrapping_add(at) % parts.len());
        let mut failed = None;
        for part in order.clone() {
            match self.ask_one(part, receive.wait(Duration::ZERO)).await {
                (_, Ok(taken)) if taken.is_empty() => {}
                (part, Ok(taken)) => return Ok(of_part(part, taken)),
                (_, Err(error)) => failed = Some(error),
            }
        }
        if !receive.wait.is_zero() {
            // A wait that is dropped takes nothing with it, unless a message came to two parts at the same moment.
            let mut waits: FuturesUnordered<_> = order.map(|part| self.ask_one(part, receive)).collect();
            failed = None;
            while let Some(answer) = waits.next().await {
                match answer {
                    (_, Ok(taken)) if taken.is_empty() => {}
                    (part, Ok(taken)) => return Ok(of_part(part, taken)),
                    (_, Err(error)) => failed = Some(error),
                }
            }
        }
        // A part that fails does not hold back the messages of the others.
        failed.map_or(Ok(Vec::new()), Err)
    }

    async fn ask_one(&self, part: usize, receive: Receive) -> (usize, Result<Vec<Delivery>, QueueError>) {
        (part, self.0.parts[part].receive(receive).await)
    }
}

/// A number with the part in its uppermost bits; nothing where they are in use.
const fn joined(part: usize, number: u64) -> Option<u64> {
    if number >> (64 - BITS) == 0 { Some((part as u64) << (64 - BITS) | number) } else { None }
}

const fn split(number: u64) -> (usize, u64) {
    ((number >> (64 - BITS)) as usize, number & (u64::MAX >> BITS))
}

/// Numbers too large to have the part in them, as text.
fn told(part: usize, (one, other): (u64, u64)) -> String {
    format!("{part}:#{one}#{other}")
}

fn untold(text: &str) -> Option<(u64, u64)> {
    let (one, other) = text.strip_prefix('#')?.split_once('#')?;
    Some((one.parse().ok()?, other.parse().ok()?))
}

macro_rules! of_part {
    ($name:ident, $type:ident) => {
        fn $name(part: usize, it: &$type) -> $type {
            match (it.as_numbers(), it.as_text()) {
                (Some((one, other)), _) => match joined(part, one) {
                    Some(one) => $type::from_numbers(one, other),
                    None => $type::new(told(part, (one, other))),
                },
                (None, text) => $type::new(format!("{part}:{}", text.unwrap_or_default())),
            }
        }
    };
}
of_part!(id_of_part, MessageId);
of_part!(receipt_of_part, Receipt);

fn of_part(part: usize, mut deliveries: Vec<Delivery>) -> Vec<Delivery> {
    for delivery in &mut deliveries {
        delivery.id = id_of_part(part, &delivery.id);
        delivery.receipt = receipt_of_part(part, &delivery.receipt);
    }
    deliveries
}

impl Queue for PartitionedQueue {
    /// What all of them can do, but for the order of several, and the smallest sizes.
    fn capabilities(&self) -> Capabilities {
        let mut all = self.0.parts.iter().map(|part| part.capabilities());
        let first = all.next().unwrap_or(Capabilities::of("partitioned", &[]));
        all.fold(first, |these, those| these.and(&those).without(Capability::Ordered))
    }

    /// A hash of theirs, in their order.
    fn identity(&self) -> String {
        let parts: Vec<String> = self.0.parts.iter().map(|part| part.identity()).collect();
        format!("partitioned-{}-{:016x}", parts.len(), stable_hash(parts.join(" ").as_bytes()))
    }

    fn send<'a>(&'a self, messages: Vec<Message>) -> BoxFuture<'a, Result<Vec<MessageId>, QueueError>> {
        Box::pin(async move {
            Message::check(&messages, &self.capabilities())?;
            let mut lots: Vec<Lot<Message>> = self.0.parts.iter().map(|_| Default::default()).collect();
            let mut ids: Vec<Option<MessageId>> = messages.iter().map(|_| None).collect();
            for (at, message) in messages.into_iter().enumerate() {
                let lot = &mut lots[self.part(&message)];
                lot.0.push(at);
                lot.1.push(message);
            }
            let mut accepted = false;
            for (part, (places, lot)) in lots.into_iter().enumerate().filter(|(_, (places, _))| !places.is_empty()) {
                let sent = self.0.parts[part].send(lot).await.map_err(|error| match error {
                    // Some of them were accepted: nobody may think that none was.
                    QueueError::Failed(error) if accepted => QueueError::Failed(error.outcome_unknown()),
                    error => error,
                })?;
                accepted = true;
                places.into_iter().zip(sent).for_each(|(at, id)| ids[at] = Some(id_of_part(part, &id)));
            }
            ids.into_iter().collect::<Option<_>>().ok_or_else(too_few)
        })
    }

    fn receive<'a>(&'a self, receive: Receive) -> BoxFuture<'a, Result<Vec<Delivery>, QueueError>> {
        Box::pin(self.ask(receive))
    }

    fn settle<'a>(
        &'a self,
        settlements: Vec<(Receipt, Settle)>,
    ) -> BoxFuture<'a, Result<Vec<Result<(), QueueError>>, QueueError>> {
        Box::pin(async move {
            let mut answers: Vec<Option<Result<(), QueueError>>> = settlements.iter().map(|_| None).collect();
            let mut lots: Vec<Lot<(Receipt, Settle)>> = self.0.parts.iter().map(|_| Default::default()).collect();
            for (at, (receipt, how)) in settlements.into_iter().enumerate() {
                match self.receipt(&receipt) {
                    Ok((part, _, receipt)) => {
                        lots[part].0.push(at);
                        lots[part].1.push((receipt, how));
                    }
                    Err(error) => answers[at] = Some(Err(error)),
                }
            }
            let lots = lots.into_iter().zip(&self.0.parts).filter(|((places, _), _)| !places.is_empty());
            let requests = lots.map(async |((places, lot), part)| (places, part.settle(lot).await));
            // All at once: a part that is slow does not keep the messages of the others from being settled.
            for (places, settled) in join_all(requests).await {
                match settled {
                    Ok(settled) => places.into_iter().zip(settled).for_each(|(at, answer)| answers[at] = Some(answer)),
                    // The request to one of them failed, and not those to the others.
                    Err(error) => places.into_iter().for_each(|at| answers[at] = Some(Err(error.clone()))),
                }
            }
            Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(too_few()))).collect())
        })
    }

    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> BoxFuture<'a, Result<(), QueueError>> {
        Box::pin(async move {
            let (_, queue, receipt) = self.receipt(receipt)?;
            queue.extend(&receipt, visibility).await
        })
    }

    fn depth(&self) -> BoxFuture<'_, Result<Depth, QueueError>> {
        Box::pin(async move {
            let mut all = Depth::default();
            for one in join_all(self.0.parts.iter().map(|part| part.depth())).await {
                let one = one?;
                all.visible += one.visible;
                all.delayed += one.delayed;
                all.in_flight += one.in_flight;
            }
            Ok(all)
        })
    }

    /// The oldest of all parts, by their wall clocks.
    fn peek(&self, max: usize) -> BoxFuture<'_, Result<Vec<Peeked>, QueueError>> {
        Box::pin(async move {
            let mut peeked = Vec::new();
            let parts = join_all(self.0.parts.iter().map(|queue| queue.peek(max))).await;
            for (part, some) in parts.into_iter().enumerate() {
                peeked.extend(some?.into_iter().map(|mut peeked| {
                    peeked.id = id_of_part(part, &peeked.id);
                    peeked
                }));
            }
            peeked.sort_by_key(|peeked| peeked.sent_at);
            peeked.truncate(max);
            Ok(peeked)
        })
    }

    fn purge(&self) -> BoxFuture<'_, Result<u64, QueueError>> {
        Box::pin(async move {
            let mut gone = 0;
            for part in &self.0.parts {
                gone += part.purge().await?;
            }
            Ok(gone)
        })
    }

    /// Theirs as one; `None` where one of them has none.
    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        let parts: Option<Vec<_>> = self.0.parts.iter().map(|part| part.dead_letters()).collect();
        Some(Arc::new(Self(Arc::new(Inner { parts: parts?, send: AtomicUsize::new(0), ask: AtomicUsize::new(0) }))))
    }
}

fn too_few() -> QueueError {
    PortError::new(PortErrorKind::Other, "a backend gave fewer answers than it was asked for").into()
}

impl fmt::Debug for PartitionedQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PartitionedQueue").field(&self.0.parts).finish()
    }
}
