//! The queue on a Redis server.
mod codec;
mod wait;

use std::{
    fmt,
    sync::{Arc, LazyLock},
    time::Duration,
};

use redis::Value;

use self::{
    codec::{Decoder, ReceiptTag},
    wait::Waiters,
};
use super::{
    failure::unexpected,
    handle::RedisCore,
    script::{Script, micros},
};
use crate::{
    port::{BoxFuture, Capabilities, Capability, PortError, PortErrorKind},
    queue::{
        Address, Delivery, Depth, Message, MessageId, Peeked, Queue, QueueError, Receipt, Receive, Settle,
        check_visibility,
    },
};

/// A queue on a Redis server, from [`Redis::queue`](super::Redis::queue). A clone is the same
/// queue.
///
/// Each request is one round trip. A `receive` or a `peek` returns at most 16 MiB of messages, but
/// at least one.
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

/// Maximum number of settlements, and of messages that they forward, in one call of the script.
const SETTLEMENTS: usize = 1000;

/// Number of ids of each kind that one step of a peek reads.
const PAGE: usize = 2000;

macro_rules! script {
    ($kind:ident, $($file:literal),+) => {
        LazyLock::new(|| Script::$kind(concat!($(include_str!(concat!("lua/", $file, ".lua"))),+)))
    };
}

static SEND: LazyLock<Script> = script!(writing, "common", "enqueue", "send");
static RECEIVE: LazyLock<Script> = script!(writing, "common", "receive");
static SETTLE: LazyLock<Script> = script!(writing, "common", "enqueue", "settle");
static DEPTH: LazyLock<Script> = script!(reading, "common", "depth");
static OLDEST: LazyLock<Script> = script!(reading, "common", "oldest");
static PEEK: LazyLock<Script> = script!(reading, "common", "peek");
static PURGE: LazyLock<Script> = script!(writing, "common", "purge");

impl RedisQueue {
    pub(super) fn new(redis: Arc<RedisCore>, name: &str) -> Self {
        Self::of_part(redis, name.into(), Part::Messages)
    }

    fn of_part(redis: Arc<RedisCore>, name: Arc<str>, part: Part) -> Self {
        let root = redis.keys.queue(&name, "");
        let channel = format!("{root}{}:w", part.as_str());
        let tag = ReceiptTag::new(&address_text(redis.identity(), part, &name));
        let waiters = Waiters::new(channel);
        Self(Arc::new(QueueCore { redis, name, part, root, tag, waiters }))
    }

    /// Creates the call of a script with the queue and its part.
    fn call(&self, script: &Script) -> redis::Cmd {
        let mut call = script.command(&[&self.0.root]);
        call.arg(self.0.part.as_str());
        call
    }

    async fn answer(&self, script: &Script, call: &redis::Cmd) -> Result<Vec<Value>, PortError> {
        match self.0.redis.link.call(script, call).await? {
            Value::Array(answer) => Ok(answer),
            _ => Err(self.unexpected()),
        }
    }

    fn unexpected(&self) -> PortError {
        unexpected(self.0.redis.config(), "a script of a queue")
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
        call.arg(self.window());
        for message in &messages {
            codec::add_message(&mut call, message);
        }
        let ids = self.answer(&SEND, &call).await?;
        let ids: Option<Vec<_>> = ids.iter().map(codec::message_id).collect();
        Ok(ids.filter(|ids| ids.len() == messages.len()).ok_or_else(|| self.unexpected())?)
    }

    /// Makes settlements in one call of the script.
    async fn settle_some(&self, some: &[(Receipt, Settle)]) -> Result<Vec<Result<(), QueueError>>, QueueError> {
        let mut answers: Vec<Result<(), QueueError>> = Vec::with_capacity(some.len());
        let mut roots = vec![self.0.root.clone()];
        let mut valid = Vec::with_capacity(some.len());
        for (receipt, how) in some {
            let checked = self.check_settlement(receipt, how, &mut roots);
            answers.push(checked.map(|settlement| valid.push((answers.len(), settlement, how))));
        }
        if valid.is_empty() {
            return Ok(answers);
        }
        let mut call = SETTLE.command(&roots);
        call.arg(self.0.part.as_str()).arg(self.window()).arg(valid.len());
        for (_, (id, _, _), _) in &valid {
            call.arg(*id);
        }
        for (_, (_, delivery, targets), how) in &valid {
            codec::add_settlement(&mut call, *delivery, how, targets);
        }
        let made = match self.0.redis.link.call(&SETTLE, &call).await? {
            Value::BulkString(made) if made.len() == valid.len() => made,
            _ => return Err(self.unexpected().into()),
        };
        for ((at, ..), made) in valid.into_iter().zip(made) {
            if made != b'1' {
                answers[at] = Err(QueueError::LeaseLost);
            }
        }
        Ok(answers)
    }

    /// Checks a settlement. Returns the numbers of its receipt, and the targets of its messages:
    /// the places of their roots in the keys of the call, and their parts.
    fn check_settlement(
        &self,
        receipt: &Receipt,
        how: &Settle,
        roots: &mut Vec<String>,
    ) -> Result<(u64, u64, Vec<(usize, Part)>), QueueError> {
        how.check(&CAN)?;
        if matches!(how, Settle::DeadLetter { .. }) && self.0.part == Part::DeadLetters {
            let message = "a dead letter cannot be dead-lettered again: complete or abandon it";
            return Err(PortError::new(PortErrorKind::Unsupported, message).into());
        }
        let mut targets = Vec::new();
        if let Settle::Forward { messages } = how {
            for (address, _) in messages {
                let (name, part) = self.queue_of(address).ok_or_else(|| address.refuse(&CAN))?;
                let root = self.0.redis.keys.queue(name, "");
                let place = roots.iter().position(|known| *known == root).unwrap_or_else(|| {
                    roots.push(root);
                    roots.len() - 1
                });
                targets.push((place + 1, part));
            }
        }
        let (id, delivery) = self.0.tag.numbers(receipt).ok_or(QueueError::LeaseLost)?;
        Ok((id, delivery, targets))
    }

    /// Returns the queue on this server that the address names.
    fn queue_of<'a>(&self, address: &'a Address) -> Option<(&'a str, Part)> {
        let rest = address.as_text()?.strip_prefix("redis-")?.strip_prefix(self.0.redis.identity())?;
        let parts = [Part::Messages, Part::DeadLetters].into_iter();
        parts.filter_map(|part| Some((rest.strip_prefix(&format!("-{}-", part.as_str()))?, part))).next()
    }

    async fn extend_one(&self, receipt: &Receipt, visibility: Duration) -> Result<(), QueueError> {
        check_visibility(visibility)?;
        let (id, delivery) = self.0.tag.numbers(receipt).ok_or(QueueError::LeaseLost)?;
        let mut call = self.call(&SETTLE);
        call.arg(self.window()).arg(1).arg(id).arg("x").arg(delivery).arg(micros(visibility));
        match self.0.redis.link.call(&SETTLE, &call).await? {
            Value::BulkString(made) if made == b"1" => Ok(()),
            Value::BulkString(_) => Err(QueueError::LeaseLost),
            _ => Err(self.unexpected().into()),
        }
    }

    /// Returns the ids of the oldest messages, in order. Hidden messages are in no order of ids, so
    /// all of them are read, in bounded steps.
    async fn oldest(&self, max: usize) -> Result<Vec<u64>, PortError> {
        let mut oldest = std::collections::BTreeSet::new();
        let (mut from, mut cursor) = (b"0".to_vec(), b"0".to_vec());
        while cursor != b"end" {
            let mut call = self.call(&OLDEST);
            call.arg(max).arg(&from).arg(PAGE).arg(&cursor);
            let mut answer = self.answer(&OLDEST, &call).await?.into_iter();
            let (Some(Value::BulkString(next)), Some(Value::BulkString(on))) = (answer.next(), answer.next()) else {
                return Err(self.unexpected());
            };
            (from, cursor) = (next, on);
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
        call.arg(MAX_BYTES).arg(ids);
        let answer = self.answer(&PEEK, &call).await?;
        Ok(Decoder::new(answer)
            .map(|found| Some(found?.into_peeked()))
            .collect::<Option<_>>()
            .ok_or_else(|| self.unexpected())?)
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
        Some(Address::new(address_text(self.0.redis.identity(), self.0.part, &self.0.name)))
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
        Box::pin(async move {
            let mut answers = Vec::with_capacity(settlements.len());
            let mut rest = &settlements[..];
            while !rest.is_empty() {
                let (some, others) = rest.split_at(codec::in_one_call(rest, SETTLEMENTS));
                match self.settle_some(some).await {
                    Ok(some) => answers.extend(some),
                    // Earlier calls were made, so their answers are kept.
                    Err(error) if !answers.is_empty() => {
                        answers.extend(rest.iter().map(|_| Err(error.clone())));
                        break;
                    }
                    Err(error) => return Err(error),
                }
                rest = others;
            }
            Ok(answers)
        })
    }

    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> BoxFuture<'a, Result<(), QueueError>> {
        Box::pin(self.extend_one(receipt, visibility))
    }

    fn depth(&self) -> BoxFuture<'_, Result<Depth, QueueError>> {
        Box::pin(async move {
            let answer = self.answer(&DEPTH, &self.call(&DEPTH)).await?;
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
            let gone = self.0.redis.link.call(&PURGE, &self.call(&PURGE)).await?;
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
