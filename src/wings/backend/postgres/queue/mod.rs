//! The queue on a PostgreSQL server.
pub(super) mod receive;
pub(super) mod schema;
pub(super) mod send;
pub(super) mod settle;
pub(super) mod views;
pub(super) mod wait;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::sync::{Notify, OnceCell};
use tokio_postgres::types::Type;

use self::{
    receive::{Receiver, Request, SharedReceiver, Taken},
    send::{Columns, FIRST, SEND, Sender, Sent, ids_in, message_id, micros, with},
    settle::{Ready, Settled, Settlement, Settler},
    views::{Sweep, Views},
};
use super::{
    Postgres,
    handle::PostgresCore,
    link::{Effect, READ_COMMITTED, check_size, knows, refuse_isolation},
    notices::listen::Subscription,
};
use crate::{
    backend::QUEUE_NAME,
    gather::Gather,
    port::{BoxFuture, Capabilities, Capability, ErrorClass, PortError, PortErrorKind},
    queue::{
        Address, Delivery, Depth, Message, MessageId, Peeked, Queue, QueueError, Receipt, Receive, Settle,
        check_visibility,
    },
    sync::Mutex,
};

/// A queue on a PostgreSQL server, from [`Postgres::queue`](super::Postgres::queue). A clone is the
/// same queue, and shares its requests.
///
/// A `receive` or a `peek` returns at most 16 MiB of bodies and headers, but at least one message.
/// A message has at most 64 MiB; a `send` or a forward at most 512 MiB and 1,000 messages.
///
/// # Requests
///
/// A `send`, a `receive`, an `extend` and a `settle` of any settlements, forwards included, are one
/// round trip each. Sends that meet share a statement and a commit, and so do receives with one
/// visibility time-out, and settlements. A statement that meets a deadlock is repeated. One of
/// several requests that waits for another transaction, such as one with
/// [`send_within`](Self::send_within), is divided after 200 ms: only those of its groups wait on.
///
/// A receiver that waits is woken by a notice soon after a send in any process, and looks by itself
/// each [`poll`](field@super::PostgresConfig::poll), or each second as long as [notices do not
/// arrive](super#connections). Notices cost a commit each. They are at least 10 ms apart, and begin
/// with the first receiver that waits.
///
/// A message that another receiver is about to take, or to give back, is locked for a moment. A
/// receive that finds locked messages alone looks again, also after its wait, and does not return
/// empty. If a transaction of another program holds them for longer than
/// [`request_timeout`](field@super::PostgresConfig::request_timeout), the receive fails as
/// [`Throttled`](PortErrorKind::Throttled). So does one that was always left without a message by
/// other receivers of this handle, with which it shared a look.
///
/// # Order
///
/// Messages that return (abandoned, expired, delayed, or the next of a group) are delivered in the
/// order of their times, before those that were never delivered, and are at most half of a receive
/// while others wait. A receive of one message prefers those that return: receive several at once.
///
/// # Long transactions
///
/// A transaction that stays open, in any table of the server, keeps the rows of completed messages
/// until its end. Receivers skip them: each remembers the place in the queue below which there is
/// nothing to receive. The rate of a receiver hence does not fall with their number, while the
/// table grows. Two things cost a scan of all dead rows: the first receive of a new handle, and a
/// transaction of the caller with [`send_within`](Self::send_within) that stays open itself.
///
/// # Clock
///
/// Delays and visibility time-outs end by the server's clock. If it is set back, messages that are
/// hidden then stay hidden for longer by that step; ready ones are received at once. If it is set
/// forward, hidden ones return earlier.
///
/// # What stays
///
/// One row for each name of a queue. A de-duplication id is deleted by later sends and receives,
/// some at a time, once its window is over. The row of a group ends with its last message.
#[derive(Clone)]
pub struct PostgresQueue(pub(crate) Arc<QueueCore>);

pub(crate) struct QueueCore {
    pub(crate) core: Arc<PostgresCore>,
    names: Names,
    /// Number of the queue; that of its dead letters is negative.
    pub(crate) id: i64,
    window: i64,
    sends: Gather<Vec<Message>, Sent>,
    sender: Arc<Sender>,
    pub(crate) settles: Gather<Vec<Ready>, Settled>,
    pub(crate) settler: Arc<Settler>,
    pub(crate) receives: Gather<Request, Result<Taken, PortError>>,
    receiver: Arc<Receiver>,
    /// Notices of the queue, from the first receiver that waits on.
    pub(crate) notices: OnceCell<Subscription>,
    /// Notified when a waiting receiver of this handle may find a message.
    pub(crate) available: Notify,
    /// Numbers of the queues that were forwarded to, by their tags.
    targets: Mutex<HashMap<String, i64>>,
    views: Views,
    sweep: Arc<Sweep>,
    dead: OnceLock<PostgresQueue>,
}

/// Names of a queue: the user's, the one by which forwards find it, and its address.
struct Names {
    name: Arc<str>,
    tag: Arc<str>,
    identity: Arc<str>,
}

const CAN: Capabilities = Capabilities::of(
    "postgres",
    &[
        Capability::Shared,
        Capability::Linearizable,
        Capability::Groups,
        Capability::Ordered,
        Capability::Deduplication,
        Capability::Delay,
        Capability::Push,
        Capability::ErrorHistory,
        Capability::Forward,
    ],
)
.largest_value(64 << 20)
.largest_batch(1000)
.largest_key(1024);

/// Start of the addresses of this backend.
const PREFIX: &str = "postgres-";
/// End of the addresses of dead letters.
const DEAD: &str = "-dead";

/// Maximum number of messages of several requests in a statement.
const GATHERED: usize = 128;

impl Postgres {
    /// Returns the queue with this name in this schema; creates it if it does not exist.
    ///
    /// # Errors
    /// `Invalid` if the name is empty or longer than 1,024 bytes; otherwise those of a write.
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue is created or not.
    pub async fn queue(&self, name: &str) -> Result<PostgresQueue, PortError> {
        QUEUE_NAME.check_key("name", name)?;
        let core = &self.0;
        let sql = core.link.sql("SELECT o_id, o_tag FROM {s}.queue_open($1) WHERE {fits}");
        let rows = core.link.query(Effect::Write, &sql, &[(&name.as_bytes(), Type::BYTEA)]).await?;
        let missing = || PortError::new(PortErrorKind::Corrupt, "postgres: a queue that was just created is missing");
        let row = rows.first().ok_or_else(missing)?;
        let tag: String = core.link.column(row, 1)?;
        Ok(PostgresQueue::new(core.clone(), name.into(), core.link.column(row, 0)?, tag.into()))
    }
}

impl PostgresQueue {
    fn new(core: Arc<PostgresCore>, name: Arc<str>, id: i64, tag: Arc<str>) -> Self {
        let identity: Arc<str> = format!("{PREFIX}{tag}{}", if id < 0 { DEAD } else { "" }).into();
        // A request has one time, after which the shortest window ends.
        let window = micros(core.config.deduplication_window).max(1);
        let guard = crate::hash::stable_hash(identity.as_bytes()) as u32;
        let link = &core.link;
        let sweep = Arc::new(Sweep::default());
        let receiver = Arc::new(Receiver::new(link.clone(), id, guard, core.server.is_direct, sweep.clone()));
        let (sender, settler) = (Sender::new(link.clone(), id, window), Settler::new(link.clone(), id, window));
        Self(Arc::new(QueueCore {
            sends: Gather::new("postgres", GATHERED, sender.clone()),
            sender,
            settles: Gather::new("postgres", GATHERED, settler.clone()),
            settler,
            receives: Gather::new("postgres", GATHERED, SharedReceiver(receiver.clone())),
            receiver,
            notices: OnceCell::new(),
            available: Notify::new(),
            targets: Mutex::default(),
            views: Views::new(link.clone(), id),
            sweep,
            dead: OnceLock::new(),
            core,
            names: Names { name, tag, identity },
            id,
            window,
        }))
    }

    /// Sends messages within a transaction of the caller, on a connection of its own to the same
    /// database. They are accepted when it is committed, together with its other effects, or not at
    /// all. Waiting receivers are woken by the commit.
    ///
    /// The transaction has the isolation level `READ COMMITTED`, and cannot be prepared for a
    /// commit in two phases (`PREPARE TRANSACTION`), because it notifies.
    ///
    /// The messages of one group wait for each other's transactions. Until its end, the transaction
    /// also keeps receivers of all queues of the schema from skipping rows that were deleted
    /// meanwhile: keep it short.
    ///
    /// # Errors
    /// Same as [`Queue::send`], and `Unsupported` for another isolation level. The server has then
    /// aborted the transaction, unless the error is `Invalid` or `Unsupported`.
    ///
    /// # Cancel safety
    /// If the future is dropped, the transaction contains all messages or none.
    pub async fn send_within(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        messages: Vec<Message>,
    ) -> Result<Vec<MessageId>, QueueError> {
        Message::check(&messages, &CAN)?;
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        check_size("messages", messages.iter().map(Message::size).sum())?;
        let QueueCore { core, id, window, .. } = &*self.0;
        let (columns, channel) = (Columns::of(messages.iter().map(|message| (*id, message))), self.channel(*id));
        let mut params = with(columns.params(), (window, Type::INT8));
        params.push((&channel, Type::TEXT));
        let sql = core.link.sql(&format!("{SEND}, pg_notify($8, '') WHERE {READ_COMMITTED} AND {}", knows(FIRST)));
        let rows = transaction.query_typed(&sql, &params).await;
        let rows = rows.map_err(|error| super::link::failure::failure(core.link.place(), error, Effect::Write))?;
        if rows.is_empty() {
            return Err(refuse_isolation(core.link.place()).into());
        }
        Ok(ids_in(&core.link, &rows)?.into_iter().map(message_id).collect())
    }

    /// Returns the channel of the notices of a queue of this schema.
    pub(crate) fn channel(&self, queue: i64) -> String {
        format!("{}_q{queue}", self.0.core.link.channels())
    }

    /// Wakes a receiver of this queue in each process; those of this handle at once.
    pub(crate) fn wake(&self, queue: i64) {
        let (core, channel) = (&self.0.core, self.channel(queue));
        if queue == self.0.id {
            self.0.available.notify_one();
        } else {
            core.listener.tell(&channel, "");
        }
        core.wakes.wake(&core.link, &channel);
    }

    /// Returns the numbers of the queues with these addresses.
    async fn targets(&self, messages: Vec<(Address, Message)>) -> Result<Vec<(i64, Message)>, QueueError> {
        let mut targets = Vec::with_capacity(messages.len());
        for (address, message) in messages {
            let number = self.target(&address).await?.ok_or_else(|| address.refuse(&CAN))?;
            targets.push((number, message));
        }
        Ok(targets)
    }

    async fn target(&self, address: &Address) -> Result<Option<i64>, PortError> {
        let Some(tag) = address.as_text().and_then(|text| text.strip_prefix(PREFIX)) else { return Ok(None) };
        let (tag, sign) = tag.strip_suffix(DEAD).map_or((tag, 1), |tag| (tag, -1));
        if *tag == *self.0.names.tag {
            return Ok(Some(sign * self.0.id.abs()));
        }
        if tag.len() != 32 || !tag.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Ok(None);
        }
        let known = self.0.targets.lock().get(tag).copied();
        if known.is_some() {
            return Ok(known.map(|id| sign * id));
        }
        let link = &self.0.core.link;
        let sql = link.sql("SELECT id FROM {s}.queues WHERE tag = $1");
        let rows = link.query(Effect::Read, &sql, &[(&tag, Type::TEXT)]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let id: i64 = link.column(row, 0)?;
        self.0.targets.lock().insert(tag.to_owned(), id);
        Ok(Some(sign * id))
    }

    /// Checks a settlement, and returns it in the form of a request.
    async fn ready(&self, receipt: &Receipt, how: Settle) -> Result<Ready, QueueError> {
        how.check(&CAN)?;
        if let Settle::Forward { messages } = &how {
            check_size("messages", messages.iter().map(|(_, message)| message.size()).sum())?;
        }
        if self.0.id < 0 && matches!(how, Settle::DeadLetter { .. }) {
            let message = "a dead letter cannot be dead-lettered again: complete or abandon it";
            return Err(PortError::new(PortErrorKind::Unsupported, message).into());
        }
        let (id, receipt, has_group) = self.0.receiver.delivery_of(receipt).ok_or(QueueError::LeaseLost)?;
        let effect = match how {
            Settle::Forward { messages } => Settlement::Forward(self.targets(messages).await?),
            other => Settlement::Settle(other),
        };
        Ok(Ready { id, receipt, has_group, effect })
    }
}

impl PostgresQueue {
    async fn extend_as(&self, receipt: &Receipt, visibility: Duration, begun: Option<bool>) -> Result<(), QueueError> {
        check_visibility(visibility)?;
        let (id, receipt, has_group) = self.0.receiver.delivery_of(receipt).ok_or(QueueError::LeaseLost)?;
        let effect = Settlement::Extend(micros(visibility).max(1), begun);
        match self.settle_ready(vec![Ready { id, receipt, has_group, effect }]).await?[..] {
            [true] => Ok(()),
            _ => Err(QueueError::LeaseLost),
        }
    }
}

impl Queue for PostgresQueue {
    fn capabilities(&self) -> Capabilities {
        let can = CAN.deduplicating_for(self.0.core.config.deduplication_window);
        let can = if self.0.core.hears { can } else { can.without(Capability::Push) };
        if self.0.core.server.is_durable { can.with(Capability::Durable) } else { can }
    }

    fn identity(&self) -> String {
        self.0.names.identity.to_string()
    }

    fn address(&self) -> Option<Address> {
        Some(Address::new(self.0.names.identity.clone()).of_engine(self.0.core.engine()))
    }

    fn send<'a>(&'a self, messages: Vec<Message>) -> BoxFuture<'a, Result<Vec<MessageId>, QueueError>> {
        Box::pin(async move {
            Message::check(&messages, &CAN)?;
            if messages.is_empty() {
                return Ok(Vec::new());
            }
            check_size("messages", messages.iter().map(Message::size).sum())?;
            let deduplicates = messages.iter().any(|message| message.deduplication_id.is_some());
            let sent = match self.0.sends.send(messages).await? {
                Sent::Done(sent) => sent,
                Sent::Busy(messages) => self.0.sender.send_alone(messages).await,
            };
            self.wake(self.0.id);
            if deduplicates {
                self.0.sweep.run_if_due(&self.0.core.link).await;
            }
            sent
        })
    }

    fn receive<'a>(&'a self, receive: Receive) -> BoxFuture<'a, Result<Vec<Delivery>, QueueError>> {
        Box::pin(async move {
            let max = receive.check(&CAN)?;
            self.wait_for(max, receive).await
        })
    }

    fn settle<'a>(
        &'a self,
        settlements: Vec<(Receipt, Settle)>,
    ) -> BoxFuture<'a, Result<Vec<Result<(), QueueError>>, QueueError>> {
        Box::pin(async move {
            let (mut ready, mut answers) =
                (Vec::with_capacity(settlements.len()), Vec::with_capacity(settlements.len()));
            for (receipt, how) in settlements {
                match self.ready(&receipt, how).await {
                    Ok(one) => {
                        ready.push(one);
                        answers.push(Ok(()));
                    }
                    Err(QueueError::Failed(error)) if error.class() != ErrorClass::Permanent => {
                        return Err(error.into());
                    }
                    Err(refused) => answers.push(Err(refused)),
                }
            }
            if ready.is_empty() {
                return Ok(answers);
            }
            let mut done = self.settle_in_parts(ready).await?.into_iter();
            for answer in answers.iter_mut().filter(|answer| answer.is_ok()) {
                *answer = done.next().unwrap_or(Err(QueueError::LeaseLost));
            }
            Ok(answers)
        })
    }

    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> BoxFuture<'a, Result<(), QueueError>> {
        Box::pin(self.extend_as(receipt, visibility, None))
    }

    fn mark_begun<'a>(
        &'a self,
        receipt: &'a Receipt,
        visibility: Duration,
        begun: bool,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        Box::pin(self.extend_as(receipt, visibility, Some(begun)))
    }

    fn depth(&self) -> BoxFuture<'_, Result<Depth, QueueError>> {
        Box::pin(async move { Ok(self.0.views.depth().await?) })
    }

    fn peek(&self, max: usize) -> BoxFuture<'_, Result<Vec<Peeked>, QueueError>> {
        Box::pin(async move { Ok(self.0.views.peek(max.min(CAN.max_batch())).await?) })
    }

    fn purge(&self) -> BoxFuture<'_, Result<u64, QueueError>> {
        Box::pin(async move { Ok(self.0.views.purge().await?) })
    }

    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        (self.0.id > 0).then(|| {
            let dead = self.0.dead.get_or_init(|| {
                let QueueCore { core, names: Names { name, tag, .. }, id, .. } = &*self.0;
                Self::new(core.clone(), format!("{name}/dead").into(), -id, tag.clone())
            });
            Arc::new(dead.clone()) as Arc<dyn Queue>
        })
    }
}

impl fmt::Debug for PostgresQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresQueue")
            .field("link", &self.0.core.link)
            .field("name", &self.0.names.name)
            .finish_non_exhaustive()
    }
}
