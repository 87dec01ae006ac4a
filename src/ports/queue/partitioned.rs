//! Several queues as one, for more throughput than one queue has.
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};

use super::{
    Address, Delivery, Depth, Message, MessageId, Peeked, Queue, QueueError, QueueFuture, Receipt, Receive, Settle,
};
use crate::{
    config::{ConfigError, require},
    hash::stable_hash,
    port::{Capabilities, Capability, PortError, PortErrorKind},
};

/// Several queues as one: its partitions. A message goes to the partition of its group key, or else
/// of its de-duplication id. A message with neither goes to the partitions in turn.
///
/// - **Order** holds within a group, because a group is in one partition, and nowhere else:
///   [`Ordered`](Capability::Ordered) is not stated.
/// - **The number of partitions** determines the partition of a key. Change it only while they are
///   empty.
/// - **A `send`** of several messages accepts all or none for each partition, not for all of them.
/// - **A de-duplication id** is remembered by the partition of its message. It must therefore come
///   with the same group key each time, or with none each time: under another group it may be
///   accepted again.
/// - **A `receive`** polls one partition after the other, and returns the messages of the first
///   that has any. No taken message waits for another partition. If all are empty, it waits at all
///   of them at once, and drops the other waits when messages arrive. Partitions on a server may
///   have taken messages for these, which return after their visibility time-out: so
///   [`Push`](Capability::Push) is not stated. A listener that is to be woken takes each partition
///   as a [source](crate::queue_listener::QueueListener::builder).
/// - **A partition that does not respond** delays the receives that reach it; the next receive
///   begins with the next partition. Set a time-out for receives, as a listener does.
///
/// A clone is the same queue.
///
/// ```
/// use std::sync::Arc;
/// use steadfast::queue::{InMemoryQueue, Message, PartitionedQueue, Queue, QueueExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), steadfast::queue::QueueError> {
/// let partition = |i| Arc::new(InMemoryQueue::new(format!("jobs-{i}"))) as Arc<dyn Queue>;
/// let partitions = (0..4).map(partition);
/// let queue = PartitionedQueue::new(partitions.collect()).unwrap();
/// queue.send((0..100).map(|i| Message::new("job").group(format!("tenant-{i}"))).collect()).await?;
/// assert_eq!(queue.depth().await?.total(), 100);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PartitionedQueue(Arc<Partitions>);

struct Partitions {
    queues: Vec<Arc<dyn Queue>>,
    /// Number of the next send without a key, and of the next receive: each begins with another
    /// partition.
    next_send: AtomicUsize,
    next_receive: AtomicUsize,
}

impl Partitions {
    const fn new(queues: Vec<Arc<dyn Queue>>) -> Self {
        Self { queues, next_send: AtomicUsize::new(0), next_receive: AtomicUsize::new(0) }
    }
}

/// The partition of a request for one partition: the indices in the request, and the items.
type RequestPart<T> = (Vec<usize>, Vec<T>);

/// Number of bits of an identifier that hold the partition.
const BITS: u32 = 16;

impl PartitionedQueue {
    /// Combines these queues into one. Their order matters.
    ///
    /// # Errors
    /// [`ConfigError`] if there is no queue, or if there are more than 65,535.
    pub fn new(queues: Vec<Arc<dyn Queue>>) -> Result<Self, ConfigError> {
        require(!queues.is_empty() && queues.len() < 1 << BITS, "queues", "must be from 1 to 65,535")?;
        Ok(Self(Arc::new(Partitions::new(queues))))
    }

    /// Returns the index of the queue for messages with this key.
    pub fn partition_of(&self, key: &str) -> usize {
        (stable_hash(key.as_bytes()) % self.0.queues.len() as u64) as usize
    }

    fn partition(&self, message: &Message) -> usize {
        match message.group.as_deref().or(message.deduplication_id.as_deref()) {
            Some(key) => self.partition_of(key),
            None => self.0.next_send.fetch_add(1, Ordering::Relaxed) % self.0.queues.len(),
        }
    }

    fn receipt<'a>(&'a self, receipt: &Receipt) -> Result<(usize, &'a Arc<dyn Queue>, Receipt), QueueError> {
        let (partition, receipt) = match receipt.as_numbers() {
            Some((one, other)) => {
                let (partition, one) = split(one);
                (Some(partition), Receipt::from_numbers(one, other))
            }
            None => {
                let text = receipt.as_text().and_then(|text| text.split_once(':'));
                let (partition, text) = text.ok_or(QueueError::LeaseLost)?;
                (
                    partition.parse().ok(),
                    parse_numbers(text).map_or_else(|| Receipt::new(text), |(a, b)| Receipt::from_numbers(a, b)),
                )
            }
        };
        let partition = partition.ok_or(QueueError::LeaseLost)?;
        let queue = self.0.queues.get(partition).ok_or(QueueError::LeaseLost)?;
        Ok((partition, queue, receipt))
    }

    async fn receive_from_any(&self, receive: Receive) -> Result<Vec<Delivery>, QueueError> {
        let queues = &self.0.queues;
        let first = self.0.next_receive.fetch_add(1, Ordering::Relaxed);
        let order = (0..queues.len()).map(|at| first.wrapping_add(at) % queues.len());
        let mut failed = None;
        for partition in order.clone() {
            match self.receive_from(partition, receive.wait(Duration::ZERO)).await {
                (_, Ok(taken)) if taken.is_empty() => {}
                (partition, Ok(taken)) => return Ok(of_partition(partition, taken)),
                (_, Err(error)) => failed = Some(error),
            }
        }
        if !receive.wait.is_zero() {
            // A dropped wait takes no message, unless messages arrived at two partitions at the
            // same moment. That message comes back after its visibility time-out.
            let mut waits: FuturesUnordered<_> = order.map(|partition| self.receive_from(partition, receive)).collect();
            failed = None;
            while let Some(answer) = waits.next().await {
                match answer {
                    (_, Ok(taken)) if taken.is_empty() => {}
                    (partition, Ok(taken)) => return Ok(of_partition(partition, taken)),
                    (_, Err(error)) => failed = Some(error),
                }
            }
        }
        // A failing partition does not hold back the messages of the others.
        failed.map_or(Ok(Vec::new()), Err)
    }

    async fn receive_from(&self, partition: usize, receive: Receive) -> (usize, Result<Vec<Delivery>, QueueError>) {
        (partition, self.0.queues[partition].receive(receive).await)
    }
}

/// Returns the number with the partition in its uppermost bits; `None` if the number uses them.
const fn with_partition(partition: usize, number: u64) -> Option<u64> {
    if number >> (64 - BITS) == 0 { Some((partition as u64) << (64 - BITS) | number) } else { None }
}

const fn split(number: u64) -> (usize, u64) {
    ((number >> (64 - BITS)) as usize, number & (u64::MAX >> BITS))
}

/// Formats numbers that are too large to hold the partition.
fn format_numbers(partition: usize, (one, other): (u64, u64)) -> String {
    format!("{partition}:#{one}#{other}")
}

fn parse_numbers(text: &str) -> Option<(u64, u64)> {
    let (one, other) = text.strip_prefix('#')?.split_once('#')?;
    Some((one.parse().ok()?, other.parse().ok()?))
}

macro_rules! of_partition {
    ($name:ident, $type:ident) => {
        fn $name(partition: usize, it: &$type) -> $type {
            match (it.as_numbers(), it.as_text()) {
                (Some((one, other)), _) => match with_partition(partition, one) {
                    Some(one) => $type::from_numbers(one, other),
                    None => $type::new(format_numbers(partition, (one, other))),
                },
                (None, text) => $type::new(format!("{partition}:{}", text.unwrap_or_default())),
            }
        }
    };
}
of_partition!(id_of_partition, MessageId);
of_partition!(receipt_of_partition, Receipt);

fn of_partition(partition: usize, mut deliveries: Vec<Delivery>) -> Vec<Delivery> {
    for delivery in &mut deliveries {
        delivery.id = id_of_partition(partition, &delivery.id);
        delivery.receipt = receipt_of_partition(partition, &delivery.receipt);
    }
    deliveries
}

impl Queue for PartitionedQueue {
    /// Returns the capabilities that all partitions have, except order and wake-ups, and the
    /// smallest sizes.
    fn capabilities(&self) -> Capabilities {
        let mut all = self.0.queues.iter().map(|queue| queue.capabilities());
        let first = all.next().unwrap_or(Capabilities::of("partitioned", &[]));
        // A wait in several partitions ends with the first messages. The others may have taken some,
        // which then return late: nothing should wait here by default.
        all.fold(first, |these, those| these.and(&those).without(Capability::Ordered).without(Capability::Push))
    }

    /// Returns a hash of the identities of the partitions, in their order.
    fn identity(&self) -> String {
        let identities: Vec<String> = self.0.queues.iter().map(|queue| queue.identity()).collect();
        format!("partitioned-{}-{:016x}", identities.len(), stable_hash(identities.join(" ").as_bytes()))
    }

    /// Returns `None`: the partition of a message depends on its key, and one address is one queue.
    /// A delivery can be forwarded if each partition can forward, to a queue of the backend of its
    /// own partition: partitions in several files or servers have no common target.
    fn address(&self) -> Option<Address> {
        None
    }

    fn send<'a>(&'a self, messages: Vec<Message>) -> QueueFuture<'a, Vec<MessageId>> {
        Box::pin(async move {
            Message::check(&messages, &self.capabilities())?;
            let mut requests: Vec<RequestPart<Message>> = self.0.queues.iter().map(|_| Default::default()).collect();
            let mut ids: Vec<Option<MessageId>> = messages.iter().map(|_| None).collect();
            for (at, message) in messages.into_iter().enumerate() {
                let items = &mut requests[self.partition(&message)];
                items.0.push(at);
                items.1.push(message);
            }
            let mut accepted = false;
            for (partition, (places, items)) in
                requests.into_iter().enumerate().filter(|(_, (places, _))| !places.is_empty())
            {
                let sent = self.0.queues[partition].send(items).await.map_err(|error| match error {
                    // An earlier partition accepted its messages, so the error must not claim that
                    // none was.
                    QueueError::Failed(error) if accepted => QueueError::Failed(error.outcome_unknown()),
                    error => error,
                })?;
                accepted = true;
                places.into_iter().zip(sent).for_each(|(at, id)| ids[at] = Some(id_of_partition(partition, &id)));
            }
            ids.into_iter().collect::<Option<_>>().ok_or_else(too_few_results)
        })
    }

    fn receive<'a>(&'a self, receive: Receive) -> QueueFuture<'a, Vec<Delivery>> {
        Box::pin(self.receive_from_any(receive))
    }

    fn settle<'a>(&'a self, settlements: Vec<(Receipt, Settle)>) -> QueueFuture<'a, Vec<Result<(), QueueError>>> {
        Box::pin(async move {
            // A forward is refused at all partitions if one of them cannot make it.
            let forwards = settlements.iter().any(|(_, how)| matches!(how, Settle::Forward { .. }));
            let can = forwards.then(|| self.capabilities());
            let mut answers: Vec<Option<Result<(), QueueError>>> = settlements.iter().map(|_| None).collect();
            let mut requests: Vec<RequestPart<(Receipt, Settle)>> =
                self.0.queues.iter().map(|_| Default::default()).collect();
            for (at, (receipt, how)) in settlements.into_iter().enumerate() {
                let checked = can.as_ref().map_or(Ok(()), |can| how.check(can));
                match checked.map_err(Into::into).and_then(|()| self.receipt(&receipt)) {
                    Ok((partition, _, receipt)) => {
                        requests[partition].0.push(at);
                        requests[partition].1.push((receipt, how));
                    }
                    Err(error) => answers[at] = Some(Err(error)),
                }
            }
            let requests = requests.into_iter().zip(&self.0.queues).filter(|((places, _), _)| !places.is_empty());
            let requests = requests.map(async |((places, items), queue)| (places, queue.settle(items).await));
            // All at once: a slow partition does not delay settling the messages of the others.
            for (places, settled) in join_all(requests).await {
                match settled {
                    Ok(settled) => places.into_iter().zip(settled).for_each(|(at, answer)| answers[at] = Some(answer)),
                    // Only the request to this partition failed.
                    Err(error) => places.into_iter().for_each(|at| answers[at] = Some(Err(error.clone()))),
                }
            }
            Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(too_few_results()))).collect())
        })
    }

    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> QueueFuture<'a, ()> {
        Box::pin(async move {
            let (_, queue, receipt) = self.receipt(receipt)?;
            queue.extend(&receipt, visibility).await
        })
    }

    fn mark_begun<'a>(&'a self, receipt: &'a Receipt, visibility: Duration, begun: bool) -> QueueFuture<'a, ()> {
        Box::pin(async move {
            let (_, queue, receipt) = self.receipt(receipt)?;
            queue.mark_begun(&receipt, visibility, begun).await
        })
    }

    fn depth(&self) -> QueueFuture<'_, Depth> {
        Box::pin(async move {
            let mut all = Depth::default();
            for one in join_all(self.0.queues.iter().map(|queue| queue.depth())).await {
                let one = one?;
                all.visible += one.visible;
                all.delayed += one.delayed;
                all.in_flight += one.in_flight;
            }
            Ok(all)
        })
    }

    /// Returns the oldest messages of all partitions, by their wall clocks.
    fn peek(&self, max: usize) -> QueueFuture<'_, Vec<Peeked>> {
        Box::pin(async move {
            let mut peeked = Vec::new();
            let partitions = join_all(self.0.queues.iter().map(|queue| queue.peek(max))).await;
            for (partition, some) in partitions.into_iter().enumerate() {
                peeked.extend(some?.into_iter().map(|mut peeked| {
                    peeked.id = id_of_partition(partition, &peeked.id);
                    peeked
                }));
            }
            peeked.sort_by_key(|peeked| peeked.sent_at);
            peeked.truncate(max);
            Ok(peeked)
        })
    }

    fn purge(&self) -> QueueFuture<'_, u64> {
        Box::pin(async move {
            let mut gone = 0;
            for queue in &self.0.queues {
                gone += queue.purge().await?;
            }
            Ok(gone)
        })
    }

    /// Returns the dead letters of all partitions as one queue; `None` if a partition has none.
    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        let queues: Option<Vec<_>> = self.0.queues.iter().map(|queue| queue.dead_letters()).collect();
        Some(Arc::new(Self(Arc::new(Partitions::new(queues?)))))
    }
}

fn too_few_results() -> QueueError {
    PortError::new(PortErrorKind::Other, "a backend returned fewer results than requested").into()
}

impl fmt::Debug for PartitionedQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PartitionedQueue").field(&self.0.queues).finish()
    }
}
