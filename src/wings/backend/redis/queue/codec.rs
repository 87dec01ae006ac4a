//! Messages, receipts and answers in the form that the scripts have.
use std::{
    collections::BTreeMap,
    io::{self, Write},
    time::Duration,
};

use bytes::{Buf, Bytes};
use redis::{RedisWrite, ToRedisArgs, Value};

use super::{Call, Part, micros};
use crate::{
    hash::stable_hash,
    queue::{AttemptError, Delivery, ErrorHistory, Message, MessageId, Peeked, Receipt, Settle, Unexplained},
    time::Timestamp,
};

/// A message as the server keeps it: the length of the group in two bytes, the group, the length of
/// the headers in four bytes, the headers, and the body. A header is its name and its value, each
/// behind its length in four bytes.
struct EncodedMessage<'a>(&'a Message);

impl EncodedMessage<'_> {
    fn write(&self, mut out: impl Write) -> io::Result<()> {
        // The longest key has 1,024 bytes, and the largest message 16 MiB.
        let length = |text: &str| (text.len() as u32).to_be_bytes();
        let Message { body, headers, group, .. } = self.0;
        let group = group.as_deref().unwrap_or_default();
        out.write_all(&(group.len() as u16).to_be_bytes())?;
        out.write_all(group.as_bytes())?;
        let texts = || headers.iter().flat_map(|(name, value)| [name, value]);
        let size = texts().map(|text| 4 + text.len()).sum::<usize>() as u32;
        out.write_all(&size.to_be_bytes())?;
        for text in texts() {
            out.write_all(&length(text))?;
            out.write_all(text.as_bytes())?;
        }
        out.write_all(body)
    }
}

impl ToRedisArgs for EncodedMessage<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        // Writing to a buffer never fails.
        let _ = self.write(out.writer_for_next_arg());
    }
}

/// Adds a message, its delay and its de-duplication id to a call.
pub(super) fn add_message(call: &mut Call, message: &Message) {
    let deduplication = message.deduplication_id.as_deref().unwrap_or_default();
    call.arg(EncodedMessage(message)).arg(micros(message.delay)).arg(deduplication);
}

/// Adds a settlement of this delivery to a call. The messages of a forward go to `targets`.
pub(super) fn add_settlement(call: &mut Call, delivery: u64, how: &Settle, targets: &[(usize, Part)]) {
    let text = |error: &Option<Box<AttemptError>>| {
        let mut errors = ErrorHistory::default();
        error.iter().for_each(|error| errors.push((**error).clone()));
        errors.encode().unwrap_or_default()
    };
    match how {
        Settle::Complete => call.arg("c").arg(delivery),
        Settle::Release { after } => call.arg("r").arg(delivery).arg(micros(*after)),
        Settle::Abandon { after, error } => call.arg("a").arg(delivery).arg(micros(*after)).arg(text(error)),
        Settle::DeadLetter { reason, error } => call.arg("d").arg(delivery).arg(reason).arg(text(error)),
        Settle::Forward { messages } => {
            call.arg("f").arg(delivery).arg(messages.len());
            for ((_, message), (root, part)) in messages.iter().zip(targets) {
                call.arg(*root).arg(part.as_str());
                add_message(call, message);
            }
            call
        }
    };
}

/// Returns the number of these settlements, at least one, that go in one call: `most` together with
/// the messages that they forward, and of these 16 MiB.
pub(super) fn in_one_call(settlements: &[(Receipt, Settle)], most: usize) -> usize {
    let (mut size, mut bytes) = (0, 0);
    let fits = |(_, how): &&(Receipt, Settle)| {
        size += 1;
        if let Settle::Forward { messages } = how {
            size += messages.len();
            bytes += messages.iter().map(|(_, message)| message.size()).sum::<usize>();
        }
        size <= most && bytes <= super::MAX_BYTES
    };
    settlements.iter().take_while(fits).count().max(1)
}

/// The part of a receipt that names its queue: 22 bits of a hash, above the numbers of the message
/// and of the delivery, which have 53 bits each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReceiptTag(u64, u64);

const NUMBER_BITS: u32 = 53;

impl ReceiptTag {
    pub(super) fn new(queue: &str) -> Self {
        let hash = stable_hash(queue.as_bytes());
        Self(hash >> NUMBER_BITS << NUMBER_BITS, hash << (64 - NUMBER_BITS) >> NUMBER_BITS << NUMBER_BITS)
    }

    fn receipt(self, message: u64, delivery: u64) -> Receipt {
        Receipt::from_numbers(self.0 | message, self.1 | delivery)
    }

    /// Returns the numbers of the message and of the delivery of a receipt of this queue.
    pub(super) fn numbers(self, receipt: &Receipt) -> Option<(u64, u64)> {
        let (one, other) = receipt.as_numbers()?;
        let (message, delivery) = (one ^ self.0, other ^ self.1);
        (message >> NUMBER_BITS == 0 && delivery >> NUMBER_BITS == 0).then_some((message, delivery))
    }
}

/// Returns a number in an answer.
pub(super) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

pub(super) fn message_id(value: &Value) -> Option<MessageId> {
    number(value).map(|number| MessageId::from_numbers(number, 0))
}

/// Returns the identity of a queue from the text of its address: a name that is too long for it is
/// hashed.
pub(super) fn shortened(text: String) -> String {
    const LONGEST: usize = 128;
    if text.len() <= LONGEST {
        return text;
    }
    let begin = &text[..text.floor_char_boundary(LONGEST - 35)];
    // Two hashes, of the name from either end. No text of an address has a tab before its name.
    let (one, other) = (stable_hash(text.as_bytes()), stable_hash(text.chars().rev().collect::<String>().as_bytes()));
    format!("{begin}\t{one:016x}{other:016x}")
}

/// Reads the messages of an answer.
pub(super) struct Decoder(std::vec::IntoIter<Value>);

/// An entry of an answer.
pub(super) enum Entry {
    Message(Found),
    /// The id of a message that cannot be read.
    Damaged(Vec<u8>),
}

/// A message as an answer has it.
pub(super) struct Found {
    id: u64,
    /// The number of the delivery, or 1 for a hidden message in a peek.
    second: u64,
    deliveries: u32,
    attempts: u32,
    unexplained: Unexplained,
    group: Option<String>,
    headers: BTreeMap<String, String>,
    body: Bytes,
    errors: ErrorHistory,
    reason: Option<String>,
}

impl Decoder {
    pub(super) fn new(answer: Vec<Value>) -> Self {
        Self(answer.into_iter())
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        match self.0.next()? {
            Value::BulkString(bytes) => Some(bytes),
            // The script has no errors for a message whose flags tell of some.
            Value::Nil | Value::Boolean(false) => Some(Vec::new()),
            _ => None,
        }
    }

    /// Returns a text that explains: what is left of a damaged one is better than none.
    fn text(&mut self) -> Option<String> {
        self.bytes().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    fn entry(&mut self) -> Option<Entry> {
        let head = self.bytes()?;
        let stored = Bytes::from(self.bytes()?);
        if let Some(id) = head.strip_prefix(b"!") {
            return Some(Entry::Damaged(id.to_vec()));
        }
        let head = std::str::from_utf8(&head).ok()?;
        let flags: u8 = head.split(' ').nth(5)?.parse().ok()?;
        let errors = if flags & 1 == 0 { ErrorHistory::default() } else { ErrorHistory::decode(&self.text()?) };
        let reason = if flags & 2 == 0 { None } else { Some(self.text()?) };
        let id = || head.split(' ').next().unwrap_or_default().into();
        Some(Found::read(head, stored, errors, reason).map_or_else(|| Entry::Damaged(id()), Entry::Message))
    }
}

impl Iterator for Decoder {
    /// `None` is an answer of another form.
    type Item = Option<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.0.as_slice().is_empty()).then(|| self.entry())
    }
}

impl Found {
    /// Reads a message, or returns `None` if it is damaged.
    fn read(head: &str, stored: Bytes, errors: ErrorHistory, reason: Option<String>) -> Option<Self> {
        let mut head = head.split(' ');
        let mut number = || head.next()?.parse::<u64>().ok();
        let (id, second) = (number()?, number()?);
        let mut count = || number().map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        let (deliveries, attempts, unexplained) = (count()?, count()?, Unexplained::from_number(count()?));
        let (group, headers, body) = decode(stored)?;
        let found = Self { id, second, deliveries, attempts, unexplained, group, headers, body, errors, reason };
        (id.max(second) >> NUMBER_BITS == 0).then_some(found)
    }

    fn message_id(&self) -> MessageId {
        MessageId::from_numbers(self.id, 0)
    }

    /// Returns the time of acceptance: the id is the server's time then, in microseconds.
    fn sent_at(&self) -> Timestamp {
        Timestamp::from_millis(self.id / 1000)
    }

    pub(super) fn into_delivery(self, tag: ReceiptTag) -> Delivery {
        let receipt = tag.receipt(self.id, self.second);
        let (id, sent_at) = (self.message_id(), self.sent_at());
        let mut delivery = Delivery::new(id, receipt, self.body, self.deliveries, sent_at);
        delivery.attempts = self.attempts;
        (delivery.expiries, delivery.crashes) = (self.unexplained.expiries(), self.unexplained.crashes());
        // A delivery has the number of its time.
        delivery.age = Duration::from_micros(self.second.saturating_sub(self.id));
        (delivery.group, delivery.headers) = (self.group, self.headers);
        (delivery.errors, delivery.reason) = (self.errors, self.reason);
        delivery
    }

    pub(super) fn into_peeked(self) -> Peeked {
        let (id, sent_at) = (self.message_id(), self.sent_at());
        let mut peeked = Peeked::new(id, self.body, self.deliveries, sent_at, self.second == 1);
        peeked.attempts = self.attempts;
        (peeked.expiries, peeked.crashes) = (self.unexplained.expiries(), self.unexplained.crashes());
        (peeked.group, peeked.headers) = (self.group, self.headers);
        (peeked.errors, peeked.reason) = (self.errors, self.reason);
        peeked
    }
}

/// Decodes a stored message: its group, headers and body. The body shares the memory.
fn decode(mut stored: Bytes) -> Option<(Option<String>, BTreeMap<String, String>, Bytes)> {
    fn take(from: &mut Bytes, length: usize) -> Option<Bytes> {
        (length <= from.len()).then(|| from.split_to(length))
    }
    fn text(from: &mut Bytes, length: usize) -> Option<String> {
        String::from_utf8(take(from, length)?.into()).ok()
    }
    let length = stored.try_get_u16().ok()?;
    let group = text(&mut stored, length.into())?;
    let length = stored.try_get_u32().ok()?;
    let mut encoded = take(&mut stored, length as usize)?;
    let mut headers = BTreeMap::new();
    while !encoded.is_empty() {
        let length = encoded.try_get_u32().ok()?;
        let name = text(&mut encoded, length as usize)?;
        let length = encoded.try_get_u32().ok()?;
        headers.insert(name, text(&mut encoded, length as usize)?);
    }
    Some(((!group.is_empty()).then_some(group), headers, stored))
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_decoded_as_it_was_encoded() {
        let plain = Message::new("body");
        let full = Message::new(vec![0, 255, 13, 10]).group("g\u{0}").header("", "").header("n\u{20AC}", "v\r\n");
        for message in [Message::new(""), plain, full] {
            let mut encoded = Vec::new();
            EncodedMessage(&message).write(&mut encoded).unwrap();
            let decoded = decode(encoded.clone().into()).unwrap();
            assert_eq!(decoded, (message.group, message.headers, message.body));
            let head = encoded.len() - decoded.2.len();
            assert!((0..head).all(|end| decode(encoded[..end].to_vec().into()).is_none()), "cut short");
        }
    }

    #[test]
    fn a_receipt_names_its_queue_its_message_and_its_delivery() {
        let (one, other) = (ReceiptTag::new("redis-a-q-jobs"), ReceiptTag::new("redis-a-d-jobs"));
        let numbers = ((1 << 53) - 1, 1_795_404_936_393_464);
        let receipt = one.receipt(numbers.0, numbers.1);
        assert_eq!((one.numbers(&receipt), other.numbers(&receipt)), (Some(numbers), None));
        assert_eq!(one.numbers(&Receipt::new("text")), None);
    }

    #[test]
    fn an_identity_is_short_and_told_from_those_of_names_alike() {
        let long = |end: &str| shortened(format!("redis-0-q-{}{end}", "\u{20AC}".repeat(300)));
        assert!(long("a").len() <= 128 && long("a") == long("a"));
        assert_ne!(long("a"), long("b"));
        assert_eq!(shortened("redis-0-q-jobs".to_owned()), "redis-0-q-jobs");
    }

    #[test]
    fn forwarded_messages_count_into_the_size_of_a_call() {
        let forward = |messages: usize| {
            let message = (crate::queue::Address::new("x"), Message::new("a"));
            (Receipt::from_numbers(1, 1), Settle::forward(vec![message; messages]))
        };
        assert_eq!(in_one_call(&[forward(3), forward(4), forward(0)], 10), 3);
        assert_eq!(in_one_call(&[forward(3), forward(6), forward(0)], 10), 1);
        assert_eq!(in_one_call(&[forward(1000), forward(0)], 10), 1);
    }
}
