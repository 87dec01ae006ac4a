//! The queue on NATS.
mod clean;
mod receive;
mod record;
mod send;
mod settle;
mod times;
mod views;
mod wire;

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

pub(super) use self::record::Numbered;
use self::{clean::Cleaning, receive::LeftPulls, times::Times};
use super::{
    api::{GetMessage, GotMessage, NO_MESSAGE, RawMessage, SEQUENCE_NOT_FOUND, SharedConsumer, SharedConsumerConfig},
    handle::NatsCore,
    link::{Effect, Link},
    names::Part,
    setup::{self, Agreement, Retention, Stream, Wanted},
};
use crate::{
    hash::stable_hash,
    port::{BoxFuture, Capabilities, Capability, PortError},
    queue::{
        Delivery, Depth, Message, MessageId, Peeked, Queue, QueueError, Receipt, Receive, Settle, check_visibility,
    },
    time::nanos,
};

/// A queue on NATS, from [`Nats::queue`](super::Nats::queue). A clone is the same queue.
///
/// # How it works
///
/// A queue is a work-queue stream of JetStream, with one consumer, `work`, that all handles of all
/// processes share. Its messages have the body and the headers that the user gave them, so that
/// `nats stream view` shows them, and programs in other languages send and receive them.
///
/// JetStream alone does not keep the contract of a [`Queue`]: an acknowledgement of an earlier
/// delivery still removes a message. So each delivery writes a *claim*, a small record in a stream
/// of its own, on condition that the claim before is still the last one of the message; and a
/// settlement writes the next one on condition that the claim of its delivery is the last. The
/// server refuses it if another delivery has claimed the message meanwhile. Then the message is
/// acknowledged. If the process dies in between, the next delivery finds what was decided, and
/// finishes it. A claim also holds the counts, the errors of the attempts, and the time until which
/// the message is hidden.
///
/// **Old claims** are removed together: after about 1,000 claims, and 4 for each message in flight,
/// the oldest half is purged up to a number, and the last claims of messages that are still there
/// are stored again before. None is removed by itself: of a history without its end, which a server
/// that was killed may bring back, an older claim would stand again. So a queue that is empty keeps
/// up to about 1,000 claims of 250 bytes, and some hundreds more for each handle.
///
/// | operation | requests |
/// |---|---|
/// | send | 1; several messages are one batch |
/// | send with de-duplication ids | 1 more for each |
/// | receive | a pull, and 2 a message: its claim, and what hides it |
/// | complete | 2 |
/// | complete a message with a de-duplication id | 3 |
/// | abandon, release, extend | 4 |
/// | dead-letter | 6 |
/// | depth | 6, and 1 small message of the server for each message in flight and each that has a claim yet |
/// | peek | 2 for each message, one after the other |
/// | the removal of about 500 claims, by a task of a receive that has ended | 6, 1 small message for each message with a claim, and 2 to 3 for each that stays |
///
/// Those of several messages are under way at once. A handle keeps no message in its memory, and a
/// handle that waits costs its server one pull.
///
/// **Several messages** in one `send` need atomic batches, which servers have since version 2.12.
/// On an older one, and for a stream that an older one has created, the queue states that it takes
/// [one message a request](crate::port::Capabilities::max_batch), and refuses more; a `receive`
/// takes several all the same.
///
/// **Hidden messages.** A receive hides each message by telling the server after what time it
/// returns, and by its claim. A message that the server delivers too early, as after a restart, is
/// hidden again for the rest; and a handle whose connection was lost reminds the server. A process
/// that dies while messages are on their way to it leaves them hidden for 30 s, whatever the
/// visibility.
///
/// **Delayed messages** are delivered to a receive at once, which hides them until they are due. A
/// program in another language must do the same: `-NAK {"delay": NANOSECONDS}`. A receive asks for
/// as many as it may return, so one of a single message hides those before it one by one: 20,000
/// that nobody has received took it 5.5 s.
///
/// **A duplicate among several messages** makes the server refuse their batch without saying which
/// it is. Those with ids are then sent one by one, so that a process that dies meanwhile leaves a
/// part of them accepted. The same request, sent again, completes it.
///
/// **De-duplication** is by the header `Nats-Msg-Id` and the `duplicate_window` of the stream, as
/// it was created. A server that is restarted knows the ids of messages that it still has; so the
/// end of a message notes its id.
///
/// **Dead letters** are a stream of their own. A dead-letter settlement notes its decision in the
/// claim, copies the message, and acknowledges it. If the process dies in between, the message is
/// in both queues, or in the first one with the decision, until its visibility is over; the next
/// delivery there finishes the move, and nobody receives it. The reason is cut to 4 KiB, and the
/// oldest errors but the first are left out if all need more than 24 KiB, or more than
/// `max_payload` leaves. A message of another program that leaves no room for the reason is refused
/// as [`Invalid`](crate::port::PortErrorKind::Invalid), and stays in flight.
///
/// **Groups and order** are not promised, and messages with a group are refused as
/// [`Unsupported`](crate::port::PortErrorKind::Unsupported): a shared consumer delivers a message
/// again after later ones. Use a topic, or a queue on another engine, for the order of a key. So a
/// scheduler over this queue refuses a submission with an ordering key before anything is sent.
///
/// **Forwards** are refused: two queues are two streams, which no write changes together.
///
/// **A full store** (`max_file_store`, `max_bytes`) refuses sends as
/// [`Full`](crate::port::PortErrorKind::Full), and goes on to deliver. A delivery for whose claim
/// there is no room has none: until its settlement has made room, an earlier receipt of the same
/// message is not told from the later one, and its counts begin anew. A move to the dead letters
/// fails as `Full`, as may a receive that finds it undone; its message stays in flight until a
/// later delivery finds room, and stops no other.
///
/// **Damage.** A claim that cannot be read, or that a newer release wrote, is passed over, and
/// [`SetAside`](crate::backend::ConnectionEvent::SetAside) tells it: the counts of its message
/// begin anew. Messages of other programs are messages. They may receive, too, by the consumer
/// `work`: a message that such a program acknowledges is gone.
///
/// **Time** is the server's. If its clock is set forward, or that of a new leader is ahead, hidden
/// messages and delays end earlier by that step. If it is set back, delays end later by it, and
/// other hidden messages at their time, or up to 5 s later.
///
/// # Limits
///
/// A request has at most 1,000 messages, and each fits with its headers into the server's
/// `max_payload` (1 MiB by default), less 32 KiB. A queue has no limit of its own on its length.
///
/// # Cancel safety
///
/// A `send` whose future is dropped is made as a whole or not at all. A `receive` that is dropped
/// gives its messages back at once; if its process dies, see "Hidden messages". A settlement that
/// is dropped is made or not; one that was begun is finished by the next delivery, which nobody
/// sees.
#[derive(Clone)]
pub struct NatsQueue {
    core: Arc<QueueCore>,
    part: Part,
}

/// The parts that all clones of a queue of a handle share.
pub(super) struct QueueCore {
    nats: Arc<NatsCore>,
    name: String,
    /// The messages and the dead letters.
    parts: [PartCore; 2],
    claims: Stream,
    ids: Stream,
    /// Time for which ids of messages are remembered.
    window: Duration,
    can: Capabilities,
    times: Times,
    cleaning: Cleaning,
}

/// The messages or the dead letters of a queue.
struct PartCore {
    stream: Stream,
    /// Subject of the messages.
    subject: String,
    /// Subject of their claims, without the last token.
    claims: String,
    left: LeftPulls,
    /// Number of losses of the connection after which the server was reminded; and 1.
    reminded: AtomicU64,
}

const CAN: Capabilities = Capabilities::of(
    "nats",
    &[
        Capability::Linearizable,
        Capability::Deduplication,
        Capability::Delay,
        Capability::Push,
        Capability::ErrorHistory,
    ],
)
.largest_batch(1000)
.largest_key(1024);

/// Room in a message beside its body and its headers: for the reason and the errors of a dead
/// letter, and the escapes of its headers.
const HEADROOM: usize = 32 << 10;

/// Name of the consumer that all handles share.
const CONSUMER: &str = "work";

/// Time after which a message returns of whose delivery the server hears nothing.
const UNHEARD: Duration = Duration::from_secs(30);

/// Number of receives that may wait at once.
const WAITING: i64 = 100_000;

/// Creates the shared consumer of a stream, unless it exists.
async fn open_consumer(link: &Link, stream: &str) -> Result<(), PortError> {
    let config = SharedConsumerConfig {
        name: CONSUMER,
        durable_name: CONSUMER,
        ack_policy: "explicit",
        ack_wait: nanos(UNHEARD),
        max_deliver: -1,
        max_ack_pending: -1,
        max_waiting: WAITING,
    };
    let consumer = SharedConsumer { stream_name: stream, config };
    let call = format!("CONSUMER.CREATE.{stream}.{CONSUMER}");
    let created = link.api::<serde::de::IgnoredAny>(&call, &consumer, Effect::Reads).await?;
    created.map(drop).map_err(|error| link.rejected("the consumer of the queue cannot be created", &error))
}

impl QueueCore {
    fn part(&self, part: Part) -> &PartCore {
        &self.parts[part as usize]
    }

    /// Reads one message of a stream.
    async fn get(&self, stream: &str, get: GetMessage<'_>) -> Result<Option<RawMessage>, PortError> {
        let link = &self.nats.link;
        let call = format!("STREAM.MSG.GET.{stream}");
        match link.api::<GotMessage>(&call, &get, Effect::Reads).await? {
            Ok(got) => Ok(Some(got.message)),
            Err(error) if matches!(error.err_code, NO_MESSAGE | SEQUENCE_NOT_FOUND) => Ok(None),
            Err(error) => Err(link.rejected("the message cannot be read", &error)),
        }
    }
}

impl NatsQueue {
    /// Opens the queue with this name, or returns the one that the handle has.
    pub(super) async fn open(nats: &Arc<NatsCore>, name: &str) -> Result<Self, PortError> {
        let find = || nats.queues.lock().get(name).and_then(std::sync::Weak::upgrade);
        if let Some(core) = find() {
            return Ok(Self { core, part: Part::Messages });
        }
        let core = Arc::new(QueueCore::open(nats, name).await?);
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

    fn part(&self) -> &PartCore {
        self.core.part(self.part)
    }

    /// Returns a number that distinguishes the receipts of this part of the queue.
    fn tag(&self) -> u64 {
        stable_hash(self.identity().as_bytes())
    }
}

impl QueueCore {
    async fn open(nats: &Arc<NatsCore>, name: &str) -> Result<Self, PortError> {
        let (link, names) = (&nats.link, &nats.names);
        let config = &link.base().config;
        // The server has a shortest window.
        let window = config.deduplication_window;
        let of_stream = if window.is_zero() { None } else { Some(window.max(Duration::from_millis(100))) };
        let open = async |part| {
            let (stream, subject) = (names.queue(name, part), names.messages(name, part));
            let wanted = Wanted {
                name: &stream,
                subjects: vec![subject.clone(), format!("{subject}.*")],
                retention: Retention::Work,
                duplicate_window: of_stream,
                per_subject: -1,
                queue: name,
                agreement: Some(Agreement { store: &nats.stream.name, subject: names.creation(&stream) }),
            };
            let stream = setup::stream(link, &wanted).await?;
            open_consumer(link, &stream.name).await?;
            let (claims, left, reminded) = (names.claims_of(name, part), LeftPulls::default(), AtomicU64::new(0));
            Ok::<_, PortError>(PartCore { stream, subject, claims, left, reminded })
        };
        let parts = [open(Part::Messages).await?, open(Part::DeadLetters).await?];
        let plain = async |(name, subjects): (String, String), retention| {
            setup::stream(link, &Wanted::plain(&name, subjects, retention)).await
        };
        let (of_claims, subjects) = (names.claims_stream(name), format!("{}.>", names.claims(name)));
        let wanted = Wanted { per_subject: -1, queue: name, ..Wanted::plain(&of_claims, subjects, Retention::All) };
        let claims = setup::stream(link, &wanted).await?;
        // Two windows, because an id is noted when its message goes.
        let longest = window.saturating_mul(2).max(Duration::from_secs(600));
        let ids = plain(names.ids(), Retention::Young(longest)).await?;
        let can = parts[0].stream.grant(CAN).largest_value(link.client().max_payload().saturating_sub(HEADROOM));
        let window = if window.is_zero() { window } else { parts[0].stream.window };
        let mut can = can.deduplicating_for(window);
        if !parts.iter().all(|part| part.stream.is_atomic) {
            can = can.largest_batch(1);
        }
        let (nats, name) = (nats.clone(), name.to_owned());
        let (times, cleaning) = (Times::default(), Cleaning::default());
        Ok(Self { nats, name, parts, claims, ids, window, can, times, cleaning })
    }
}

impl Queue for NatsQueue {
    fn capabilities(&self) -> Capabilities {
        self.core.can
    }

    fn identity(&self) -> String {
        let part = if self.part == Part::Messages { "q" } else { "d" };
        format!("nats-{}-{part}", self.core.part(Part::Messages).stream.identity)
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
            self.extend_one(receipt, visibility, None).await
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
            self.extend_one(receipt, visibility, Some(begun)).await
        })
    }

    fn depth(&self) -> BoxFuture<'_, Result<Depth, QueueError>> {
        Box::pin(async move { Ok(self.count().await?) })
    }

    fn peek(&self, max: usize) -> BoxFuture<'_, Result<Vec<Peeked>, QueueError>> {
        Box::pin(async move { Ok(self.first(max).await?) })
    }

    fn purge(&self) -> BoxFuture<'_, Result<u64, QueueError>> {
        Box::pin(async move { Ok(self.empty().await?) })
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
