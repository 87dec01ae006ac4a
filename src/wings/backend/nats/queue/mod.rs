//! The queue on NATS.
mod entry;
mod follow;
mod log;
mod machine;
mod receive;
mod replica;

use std::{fmt, sync::Arc, time::Duration};

use self::{
    entry::{Call, Part, Stub},
    log::Log,
    machine::Outcome,
};
use super::{
    handle::NatsCore,
    setup::{self, Agreement, Stream, Wanted},
};
use crate::{
    hash::stable_hash,
    port::{BoxFuture, Capabilities, Capability, PortError, PortErrorKind},
    queue::{
        Delivery, Depth, Message, MessageId, Peeked, Queue, QueueError, Receipt, Receive, Settle, check_visibility,
    },
};

/// A queue on NATS, from [`Nats::queue`](super::Nats::queue). A clone is the same queue.
///
/// # How it works
///
/// A queue is the log of its calls, in a stream of its own: `send`, `receive`, `settle` and
/// `extend` are entries, in one order for all processes. Each handle reads the log and applies its
/// entries to a copy of the queue in its memory, by the times at which the server stored them. So
/// all copies are equal, and a call has its result when its entry is read back: replicated state
/// machines, with JetStream's log.
///
/// JetStream's own work queues do not keep the contract of a [`Queue`]: an
/// acknowledgement of an earlier delivery still removes the message (seen on 2.10.27), which the
/// server does not report, the visibility time-out is of a consumer and not of a receive, and
/// groups have no order.
///
/// **Requests.** A call is one stored message of some 40 bytes and its content, and is read by each
/// process that receives from the queue. While one entry is stored, calls of the handle gather, and
/// go together in the next. A `receive` that waits makes no request while its copy has no visible
/// message; one without a wait is always an entry. A handle that only sends reads nothing, unless
/// it sends de-duplication ids. A receiver whose part of a cluster is lost waits for 12 s at most,
/// until it reads the log at another server; a call of the handle meanwhile notices within 1 s.
///
/// **Memory.** Each handle that receives, asks for the depth, peeks or purges holds all messages of
/// the queue and their ids within the window: some 400 bytes and the message for each (seen: 480
/// MiB for 1,000,000 messages of 100 bytes). Nothing bounds it. A queue is for work that is done
/// soon: keep it below some 100,000 messages, and large bodies elsewhere
/// ([`claim_check`](crate::claim_check)).
///
/// **The first request** of a handle waits until the handle has read the log. Until then requests
/// are [`TimedOut`](crate::port::PortErrorKind::TimedOut) with the number of entries that are left,
/// and have hidden nothing.
///
/// **Many receivers.** A message wakes the waiting receivers of all handles, and one of each handle
/// asks for it.
///
/// **Checkpoints.** When the log has grown by 4 MiB and by twice the size of the last checkpoint, a
/// handle stores its copy in the log, and removes the entries before it. A new handle begins there.
/// Coding and decoding the copy of a long queue keeps a thread of the runtime busy for a while.
///
/// **Damage.** A log that has lost its end is read anew, such as that of a machine that failed
/// before a sync. A queue whose stream was deleted, has a damaged entry or a hole is
/// [`Corrupt`](crate::port::PortErrorKind::Corrupt). A message of another program is passed over.
///
/// **Time** is the server's: that of the stream's leader as it stores an entry. If the clock is set
/// forward, or that of a new leader is ahead, hidden messages and delays end earlier by that step.
/// A step back changes nothing: the time of the queue goes on from where it was.
///
/// # Limits
///
/// A request has at most 1,000 messages, and fits together into the server's `max_payload` (1 MiB
/// by default). A queue has no limit of its own on its length; a server or account without room
/// refuses entries as [`Full`](crate::port::PortErrorKind::Full), settlements included.
///
/// # Cancel safety
///
/// A request whose future is dropped is made as a whole or not at all. One that still waits for its
/// turn is not made. A `receive` that is dropped
/// leaves the messages of a request under way hidden, for at most their visibility time-out.
#[derive(Clone)]
pub struct NatsQueue {
    core: Arc<QueueCore>,
    part: Part,
}

/// The parts that all clones of a queue of a handle share.
pub(super) struct QueueCore {
    nats: Arc<NatsCore>,
    name: String,
    stream: Stream,
    log: Arc<Log>,
    can: Capabilities,
}

const CAN: Capabilities = Capabilities::of(
    "nats",
    &[
        Capability::Linearizable,
        Capability::Groups,
        Capability::Ordered,
        Capability::Deduplication,
        Capability::Delay,
        Capability::Push,
        Capability::ErrorHistory,
    ],
)
.largest_batch(1000)
.largest_key(1024);

/// Room in an entry beside the body and the headers of one message.
const HEADROOM: usize = 8192;

/// Number of bits of a receipt that hold a slot. The others distinguish the queue.
const SLOT_BITS: u32 = 32;

impl Drop for QueueCore {
    fn drop(&mut self) {
        self.log.stop();
    }
}

impl NatsQueue {
    /// Opens the queue with this name, or returns the one that the handle has.
    pub(super) async fn open(nats: &Arc<NatsCore>, name: &str) -> Result<Self, PortError> {
        let known = |core: Option<Arc<QueueCore>>| core.map(|core| Self { core, part: Part::Messages });
        let find = || nats.queues.lock().get(name).and_then(std::sync::Weak::upgrade);
        if let Some(queue) = known(find()) {
            return Ok(queue);
        }
        let stream = nats.names.queue(name);
        let subject = nats.names.log(&stream);
        let agreement = Agreement { store: &nats.stream.name, subject: nats.names.creation(&stream) };
        let wanted =
            Wanted { name: &stream, subject: &subject, per_subject: -1, queue: name, agreement: Some(agreement) };
        let stream = setup::stream(&nats.link, &wanted).await?;
        let link = &nats.link;
        let can = stream.grant(CAN).largest_value(link.client().max_payload().saturating_sub(HEADROOM));
        let can = can.deduplicating_for(link.base().config.deduplication_window);
        let log = Log::new(link.clone(), stream.clone(), subject);
        let core = Arc::new(QueueCore { nats: nats.clone(), name: name.to_owned(), stream, log, can });
        let mut queues = nats.queues.lock();
        queues.retain(|_, queue| queue.strong_count() > 0);
        // Another task may have opened it meanwhile.
        let core = match queues.get(name).and_then(std::sync::Weak::upgrade) {
            Some(other) => other,
            None => {
                queues.insert(name.to_owned(), Arc::downgrade(&core));
                core
            }
        };
        drop(queues);
        Ok(Self { core, part: Part::Messages })
    }

    fn tag(&self) -> u64 {
        stable_hash(self.core.stream.identity.as_bytes()) << SLOT_BITS
    }

    fn receipt(&self, (slot, number): Stub) -> Receipt {
        Receipt::from_numbers(self.tag() | slot, number)
    }

    /// Returns the numbers of a receipt of this queue.
    fn stub(&self, receipt: &Receipt) -> Result<Stub, QueueError> {
        let (slot, number) = receipt.as_numbers().ok_or(QueueError::LeaseLost)?;
        let slot = slot ^ self.tag();
        if slot >> SLOT_BITS == 0 { Ok((slot, number)) } else { Err(QueueError::LeaseLost) }
    }

    async fn call(&self, call: &Call) -> Result<Outcome, PortError> {
        self.core.log.call(self.part, call).await
    }

    /// Returns the error of an outcome of another call, which no log has.
    fn unexpected(&self) -> QueueError {
        self.core.nats.link.failure(PortErrorKind::Other, "a call of a queue has another outcome").into()
    }

    async fn send_all(&self, messages: Vec<Message>) -> Result<Vec<MessageId>, QueueError> {
        Message::check(&messages, &self.core.can)?;
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let window = self.core.nats.link.base().config.deduplication_window;
        match self.call(&Call::Send { messages, window }).await? {
            Outcome::Sent(ids) => Ok(ids),
            _ => Err(self.unexpected()),
        }
    }

    /// Settles in as many entries as needed.
    async fn settle_all(&self, settlements: Vec<(Receipt, Settle)>) -> Result<Vec<Result<(), QueueError>>, QueueError> {
        let mut results = Vec::with_capacity(settlements.len());
        let (mut places, mut some, mut size) = (Vec::new(), Vec::new(), 0);
        for (receipt, how) in settlements {
            // A refused one has its place among the results.
            let stub = how.check(&self.core.can).map_err(QueueError::from).and_then(|()| self.stub(&receipt));
            match stub {
                Err(refused) => results.push(Err(refused)),
                Ok(stub) => {
                    let one = size_of(&how);
                    if !some.is_empty() && (some.len() == 1000 || size + one > self.core.log.largest() / 2) {
                        self.settle_some(&mut results, &mut places, &mut some).await?;
                        size = 0;
                    }
                    size += one;
                    places.push(results.len());
                    results.push(Ok(()));
                    some.push((stub, how));
                }
            }
        }
        self.settle_some(&mut results, &mut places, &mut some).await?;
        Ok(results)
    }

    async fn settle_some(
        &self,
        results: &mut [Result<(), QueueError>],
        places: &mut Vec<usize>,
        some: &mut Vec<(Stub, Settle)>,
    ) -> Result<(), QueueError> {
        if some.is_empty() {
            return Ok(());
        }
        let settlements = std::mem::take(some);
        match self.call(&Call::Settle { settlements }).await? {
            Outcome::Settled(settled) => {
                for (place, settled) in std::mem::take(places).into_iter().zip(settled) {
                    results[place] = settled;
                }
                Ok(())
            }
            _ => Err(self.unexpected()),
        }
    }
}

/// Returns the size of a settlement in an entry, at most.
fn size_of(how: &Settle) -> usize {
    const NUMBERS: usize = 64;
    match how {
        Settle::DeadLetter { reason, error } => {
            NUMBERS + reason.len() + error.as_ref().map_or(0, |error| error.text.len())
        }
        Settle::Abandon { error: Some(error), .. } => NUMBERS + error.text.len(),
        _ => NUMBERS,
    }
}

impl Queue for NatsQueue {
    fn capabilities(&self) -> Capabilities {
        self.core.can
    }

    fn identity(&self) -> String {
        let part = if self.part == Part::Messages { "q" } else { "d" };
        format!("nats-{}-{part}", self.core.stream.identity)
    }

    fn address(&self) -> Option<crate::queue::Address> {
        // Two queues are two streams, which no write changes together.
        None
    }

    fn send<'a>(&'a self, messages: Vec<Message>) -> BoxFuture<'a, Result<Vec<MessageId>, QueueError>> {
        Box::pin(self.send_all(messages))
    }

    fn receive<'a>(&'a self, receive: Receive) -> BoxFuture<'a, Result<Vec<Delivery>, QueueError>> {
        Box::pin(self.receive_some(receive))
    }

    fn settle<'a>(
        &'a self,
        settlements: Vec<(Receipt, Settle)>,
    ) -> BoxFuture<'a, Result<Vec<Result<(), QueueError>>, QueueError>> {
        Box::pin(self.settle_all(settlements))
    }

    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> BoxFuture<'a, Result<(), QueueError>> {
        Box::pin(async move {
            check_visibility(visibility)?;
            let receipt = self.stub(receipt)?;
            match self.call(&Call::Extend { receipt, visibility, begun: None }).await? {
                Outcome::Extended(extended) => extended,
                _ => Err(self.unexpected()),
            }
        })
    }

    fn mark_begun<'a>(
        &'a self,
        receipt: &'a Receipt,
        visibility: Duration,
        begun: bool,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        Box::pin(async move {
            check_visibility(visibility)?;
            let receipt = self.stub(receipt)?;
            match self.call(&Call::Extend { receipt, visibility, begun: Some(begun) }).await? {
                Outcome::Extended(extended) => extended,
                _ => Err(self.unexpected()),
            }
        })
    }

    fn depth(&self) -> BoxFuture<'_, Result<Depth, QueueError>> {
        Box::pin(async move {
            match self.call(&Call::Depth).await? {
                Outcome::Depth(depth) => Ok(depth),
                _ => Err(self.unexpected()),
            }
        })
    }

    fn peek(&self, max: usize) -> BoxFuture<'_, Result<Vec<Peeked>, QueueError>> {
        Box::pin(async move {
            match self.call(&Call::Peek { max: max.min(self.core.can.max_batch()) }).await? {
                Outcome::Peeked(peeked) => Ok(peeked),
                _ => Err(self.unexpected()),
            }
        })
    }

    fn purge(&self) -> BoxFuture<'_, Result<u64, QueueError>> {
        Box::pin(async move {
            match self.call(&Call::Purge).await? {
                Outcome::Purged(purged) => Ok(purged),
                _ => Err(self.unexpected()),
            }
        })
    }

    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        match self.part {
            Part::Messages => Some(Arc::new(Self { core: self.core.clone(), part: Part::DeadLetters })),
            Part::DeadLetters => None,
        }
    }
}

impl fmt::Debug for NatsQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsQueue").field("name", &self.core.name).field("part", &self.part).finish_non_exhaustive()
    }
}
