//! The queue on a Redis server.
mod codec;
mod settle;
mod wait;

use std::{
    fmt,
    sync::{Arc, LazyLock},
    time::Duration,
};

use redis::Value;

use self::{
    codec::{Decoder, Entry, ReceiptTag},
    wait::Waiters,
};
use super::{
    failure::unexpected,
    handle::RedisCore,
    script::{Call, Script, micros},
};
use crate::{
    port::{BoxFuture, Capabilities, Capability, PortError},
    queue::{Address, Delivery, Depth, Message, MessageId, Peeked, Queue, QueueError, Receipt, Receive, Settle},
};

/// A queue on a Redis server, from [`Redis::queue`](super::Redis::queue). A clone is the same
/// queue.
///
/// # How it works
///
/// Each request is one call of a script, and so one step: a `send` of many messages, a `receive`, a
/// `settle` of up to 1,000 settlements, with the messages that they forward. A
/// [`peek`](Queue::peek) is two calls, and one more for each 2,000 hidden messages, however many
/// wait behind them in groups. Requests that meet go together in one call, as if each were
/// made alone, and on a server with `appendfsync always` share its syncs.
///
/// All keys of a queue and of its dead letters share a hash tag. Visible messages are in a list,
/// those that returned in a sorted set. Hidden ones are in a sorted set by the time of return.
/// A receive moves as many messages whose time is over as it may return, at least 100, so that no
/// call takes long however many are due.
///
/// **Waiting receivers** make no blocking requests. A receive that finds nothing leaves a mark, and
/// the next script that makes a message visible removes the mark and publishes to the queue's
/// channel. So a queue whose receivers find messages publishes nothing. One subscription of each
/// handle hears the channel, from the first wait on. A waiting receiver also looks when the next
/// hidden message returns, after each reconnection, and at intervals of
/// [`poll`](super::RedisConfig::poll); without a subscription, at least each second.
///
/// **Time** is the server's, read within each script. If its clock is set back, hidden messages and
/// delays take longer by that step, and if it is set forward, they end earlier. The id of a message
/// is the time of its acceptance in microseconds, or one above the last id, if that is higher. So
/// ids do not repeat after a fail-over that lost the last messages, unless the clock of the replica
/// is behind that of the lost primary.
///
/// # Cost
///
/// In the server's memory, beyond its body and headers:
///
/// | a message | bytes, about |
/// |---|---|
/// | visible | 110 |
/// | delayed | 220 |
/// | visible, with a group key | 220 |
/// | in flight | 350 |
/// | its de-duplication id, until the window ends | 150 |
///
/// Nothing else remains of a message that ended. A queue that was used keeps two or three small
/// keys, so that no id repeats. A [purge](Queue::purge) keeps de-duplication ids and dead letters.
///
/// A `send`, a `receive` and a `settle` of one message run 6, 10 and 4 commands on the server in
/// one script; of 1,000 messages a few more. A script of 1,000 messages of 100 bytes blocks the
/// server for 1.5 ms in a send, 3 ms in a receive and 1.5 ms in a settle (Redis 7.0 on one core of
/// a virtual machine): use smaller batches beside requests that must not wait for that long.
///
/// # Limits
///
/// A message has at most 16 MiB. A `receive` or a `peek` returns at most 16 MiB of messages, but at
/// least one.
///
/// A server that has reached `maxmemory` refuses to send, as
/// [`Full`](crate::port::PortErrorKind::Full). It still delivers, settles and extends, also by
/// forwards: the message that ends makes room.
///
/// # Cancel safety
///
/// A request whose future is dropped is made as a whole or not at all. A `receive` that is dropped
/// leaves the messages of a request under way hidden, for at most their visibility time-out.
#[derive(Clone)]
pub struct RedisQueue(Arc<QueueCore>);

struct QueueCore {
    redis: Arc<RedisCore>,
    name: Arc<str>,
    part: Part,
    /// First part of the names of all keys, shared by the queue and its dead letters.
    root: String,
    tag: ReceiptTag,
    waiters: Waiters,
}

/// The part of a queue: its messages or its dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Messages,
    DeadLetters,
}

impl Part {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Messages => "q",
            Self::DeadLetters => "d",
        }
    }
}

const CAN: Capabilities = Capabilities::of(
    "redis",
    &[
        Capability::Shared,
        Capability::Groups,
        Capability::Ordered,
        Capability::Deduplication,
        Capability::Delay,
        Capability::Push,
        Capability::ErrorHistory,
        Capability::Forward,
    ],
)
.largest_value(16 << 20)
.largest_batch(1000)
.largest_key(1024);

/// Maximum size of the messages of a receive or a peek. Only a single message may be larger.
const MAX_BYTES: usize = 16 << 20;

/// Number of ids of each kind that one step of a peek reads.
const PAGE: usize = 2000;

macro_rules! script {
    (shared, $($file:literal),+) => {
        LazyLock::new(|| Script::writing(concat!($(include_str!(concat!("lua/", $file, ".lua"))),+)).shared())
    };
    ($kind:ident, $($file:literal),+) => {
        LazyLock::new(|| Script::$kind(concat!($(include_str!(concat!("lua/", $file, ".lua"))),+)))
    };
}

static SEND: LazyLock<Script> = script!(shared, "common", "enqueue", "send");
static RECEIVE: LazyLock<Script> = script!(shared, "common", "receive");
static SETTLE: LazyLock<Script> = script!(shared, "common", "enqueue", "settle");
static DEPTH: LazyLock<Script> = script!(reading, "common", "depth");
static OLDEST: LazyLock<Script> = script!(reading, "common", "oldest");
static PEEK: LazyLock<Script> = script!(reading, "common", "peek");
static PURGE: LazyLock<Script> = script!(writing, "common", "purge");

impl RedisQueue {
    pub(super) fn new(redis: Arc<RedisCore>, name: &str) -> Self {
        Self::of_part(redis, name.into(), Part::Messages)
    }

    fn of_part(redis: Arc<RedisCore>, name: Arc<str>, part: Part) -> Self {
        let root = redis.keys.queue(&name);
        let channel = format!("{root}{}:w", part.as_str());
        let tag = ReceiptTag::new(&address_text(redis.identity(), part, &name));
        let waiters = Waiters::new(channel);
        Self(Arc::new(QueueCore { redis, name, part, root, tag, waiters }))
    }

    /// Creates the call of a script with the queue and its part.
    fn call(&self, script: &'static Script) -> Call {
        let mut call = Call::new(script, self.0.root.clone());
        call.arg(self.0.part.as_str());
        call
    }

    async fn answer(&self, call: Call) -> Result<Vec<Value>, PortError> {
        match self.0.redis.link.call(call).await? {
            Value::Array(answer) => Ok(answer),
            _ => Err(self.unexpected()),
        }
    }

    fn unexpected(&self) -> PortError {
        unexpected(self.0.redis.target(), "a script of a queue")
    }

    /// Returns the time for which a de-duplication id is remembered, in milliseconds.
    fn window(&self) -> u64 {
        // The server forgets by the millisecond. A request has one time, after which the shortest
        // window ends.
        micros(self.0.redis.config().deduplication_window).div_ceil(1000).max(1)
    }

    async fn send_all(&self, messages: Vec<Message>) -> Result<Vec<MessageId>, QueueError> {
        Message::check(&messages, &CAN)?;
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let mut call = self.call(&SEND);
        call.arg(self.window()).items(messages.len());
        for message in &messages {
            codec::add_message(&mut call, message);
        }
        let ids = self.answer(call).await?;
        let ids: Option<Vec<_>> = ids.iter().map(codec::message_id).collect();
        // The messages were sent, whatever the answer is.
        Ok(ids.filter(|ids| ids.len() == messages.len()).ok_or_else(|| self.unexpected().outcome_unknown())?)
    }

    /// Returns the ids of the oldest messages that do not wait behind another of their group, in
    /// order. Hidden messages are in no order of ids, so all of them are read, in bounded steps.
    async fn oldest(&self, max: usize) -> Result<Vec<u64>, PortError> {
        let mut oldest = std::collections::BTreeSet::new();
        let mut from = b"0".to_vec();
        while from != b"end" {
            let mut call = self.call(&OLDEST);
            call.arg(max).arg(&from).arg(PAGE);
            let mut answer = self.answer(call).await?.into_iter();
            let Some(Value::BulkString(next)) = answer.next() else { return Err(self.unexpected()) };
            from = next;
            oldest.extend(answer.filter_map(|id| codec::number(&id)));
            while oldest.len() > max {
                oldest.pop_last();
            }
        }
        Ok(oldest.into_iter().collect())
    }

    async fn peek_some(&self, max: usize) -> Result<Vec<Peeked>, QueueError> {
        let max = max.min(CAN.max_batch());
        let ids = if max == 0 { Vec::new() } else { self.oldest(max).await? };
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut call = self.call(&PEEK);
        call.arg(MAX_BYTES).arg(max).arg(ids);
        let answer = self.answer(call).await?;
        let mut peeked = Vec::new();
        for entry in Decoder::new(answer) {
            // A damaged message is set aside by the receive that finds it.
            if let Entry::Message(found) = entry.ok_or_else(|| self.unexpected())? {
                peeked.push(found.into_peeked());
            }
        }
        Ok(peeked)
    }
}

/// Returns the text of the address of a queue.
fn address_text(server: &str, part: Part, name: &str) -> String {
    format!("redis-{server}-{}-{name}", part.as_str())
}

impl Queue for RedisQueue {
    fn capabilities(&self) -> Capabilities {
        let window = self.0.redis.config().deduplication_window;
        self.0.redis.link.server().grant(CAN).deduplicating_for(window)
    }

    fn identity(&self) -> String {
        let text = address_text(self.0.redis.identity(), self.0.part, &self.0.name);
        codec::shortened(text)
    }

    fn address(&self) -> Option<Address> {
        let server = self.0.redis.identity();
        let address = Address::new(address_text(server, self.0.part, &self.0.name));
        Some(address.of_engine(format!("redis-{server}")))
    }

    fn send<'a>(&'a self, messages: Vec<Message>) -> BoxFuture<'a, Result<Vec<MessageId>, QueueError>> {
        Box::pin(self.send_all(messages))
    }

    fn receive<'a>(&'a self, receive: Receive) -> BoxFuture<'a, Result<Vec<Delivery>, QueueError>> {
        Box::pin(async move {
            let max = receive.check(&CAN)?;
            Ok(self.wait_for(max, receive).await?)
        })
    }

    fn settle<'a>(
        &'a self,
        settlements: Vec<(Receipt, Settle)>,
    ) -> BoxFuture<'a, Result<Vec<Result<(), QueueError>>, QueueError>> {
        Box::pin(self.settle_all(settlements))
    }

    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> BoxFuture<'a, Result<(), QueueError>> {
        Box::pin(self.extend_one(receipt, visibility, "x"))
    }

    fn mark_begun<'a>(
        &'a self,
        receipt: &'a Receipt,
        visibility: Duration,
        begun: bool,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        Box::pin(self.extend_one(receipt, visibility, if begun { "b" } else { "u" }))
    }

    fn depth(&self) -> BoxFuture<'_, Result<Depth, QueueError>> {
        Box::pin(async move {
            let answer = self.answer(self.call(&DEPTH)).await?;
            let numbers: Option<Vec<u64>> = answer.iter().map(codec::number).collect();
            match numbers.as_deref() {
                Some([visible, delayed, in_flight]) => Ok(Depth::new(*visible, *delayed, *in_flight)),
                _ => Err(self.unexpected().into()),
            }
        })
    }

    fn peek(&self, max: usize) -> BoxFuture<'_, Result<Vec<Peeked>, QueueError>> {
        Box::pin(self.peek_some(max))
    }

    fn purge(&self) -> BoxFuture<'_, Result<u64, QueueError>> {
        Box::pin(async move {
            let gone = self.0.redis.link.call(self.call(&PURGE)).await?;
            Ok(codec::number(&gone).ok_or_else(|| self.unexpected())?)
        })
    }

    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        (self.0.part == Part::Messages).then(|| {
            let QueueCore { redis, name, .. } = &*self.0;
            Arc::new(Self::of_part(redis.clone(), name.clone(), Part::DeadLetters)) as Arc<dyn Queue>
        })
    }
}

impl fmt::Debug for RedisQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisQueue").field("name", &self.0.name).field("part", &self.0.part).finish_non_exhaustive()
    }
}
