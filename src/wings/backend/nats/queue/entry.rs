//! Entries of a queue's log: calls that several processes made, in one order.
use std::time::Duration;

use bytes::Bytes;

use crate::{
    port::{PortError, PortErrorKind},
    queue::{AttemptError, ErrorHistory, Message, Settle},
    time::nanos,
    wire::{In, Out},
};

/// First bytes of each entry.
const MAGIC: &[u8] = b"sfq";
/// Form of the entries. A later release that changes it raises the number. Form 2 counts crashes.
const FORM: u64 = 2;

/// The part of a queue: its messages or its dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Messages,
    DeadLetters,
}

/// A call of a queue.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Call {
    Send {
        messages: Vec<Message>,
        window: Duration,
    },
    Take {
        max: usize,
        visibility: Duration,
    },
    Settle {
        settlements: Vec<(Stub, Settle)>,
    },
    Extend {
        receipt: Stub,
        visibility: Duration,
        /// Whether the handling of the message has begun, if that is to be recorded.
        begun: Option<bool>,
    },
    Purge,
    /// Changes nothing, and comes behind all calls that were accepted before.
    Depth,
    /// As above.
    Peek {
        max: usize,
    },
}

/// The numbers of a receipt.
pub(super) type Stub = (u64, u64);

/// A message of the log.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Entry {
    /// Calls of one handle, each with its number there.
    Calls { origin: u64, calls: Vec<(u64, Part, Bytes)> },
    /// A part of the state of the queue behind the message `at`.
    Checkpoint { writer: u64, at: u64, part: u64, parts: u64, bytes: Bytes },
}

/// The reason for which an entry cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// It is another program's.
    Foreign,
    TooNew(u64),
    Damaged,
}

/// Maximum number of bytes of an entry beside its content.
pub(super) const FRAME: usize = 64;

impl Part {
    const fn number(self) -> u64 {
        match self {
            Self::Messages => 0,
            Self::DeadLetters => 1,
        }
    }

    const fn of(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::Messages),
            1 => Some(Self::DeadLetters),
            _ => None,
        }
    }
}

/// Adds a call to those of an entry.
pub(super) fn frame(number: u64, part: Part, call: &[u8]) -> Bytes {
    let mut out = Out::default();
    out.number(number);
    out.number(part.number());
    out.bytes(call);
    out.into_bytes()
}

/// Creates an entry of framed calls.
pub(super) fn calls<'a>(origin: u64, frames: impl ExactSizeIterator<Item = &'a Bytes>) -> Bytes {
    let mut out = Out::default();
    out.append(MAGIC);
    out.number(FORM);
    out.number(0);
    out.number(origin);
    out.list(frames, |out, frame| out.append(frame));
    out.into_bytes()
}

/// Creates an entry of a part of a checkpoint.
pub(super) fn checkpoint(writer: u64, at: u64, (part, parts): (u64, u64), bytes: &[u8]) -> Bytes {
    let mut out = Out::default();
    out.append(MAGIC);
    [FORM, 1, writer, at, part, parts].into_iter().for_each(|number| out.number(number));
    out.bytes(bytes);
    out.into_bytes()
}

impl Entry {
    pub(super) fn decode(bytes: Bytes) -> Result<Self, Unreadable> {
        if !bytes.starts_with(MAGIC) {
            return Err(Unreadable::Foreign);
        }
        let mut input = In::new(bytes.slice(MAGIC.len()..));
        match input.number() {
            Some(1..=FORM) => {}
            Some(form) if form > FORM => return Err(Unreadable::TooNew(form)),
            _ => return Err(Unreadable::Damaged),
        }
        Self::decode_content(&mut input).ok_or(Unreadable::Damaged)
    }

    fn decode_content(input: &mut In) -> Option<Self> {
        match input.number()? {
            0 => {
                let origin = input.number()?;
                let call = |input: &mut In| Some((input.number()?, Part::of(input.number()?)?, input.bytes()?));
                Some(Self::Calls { origin, calls: input.list(call)? })
            }
            1 => Some(Self::Checkpoint {
                writer: input.number()?,
                at: input.number()?,
                part: input.number()?,
                parts: input.number()?,
                bytes: input.bytes()?,
            }),
            _ => None,
        }
    }
}

impl Call {
    /// Returns the bytes of the call. A forward has no form in this log.
    pub(super) fn encode(&self) -> Result<Bytes, PortError> {
        let mut out = Out::default();
        match self {
            Self::Send { messages, window } => {
                out.number(0);
                out.number(nanos(*window));
                out.list(messages.iter(), add_message);
            }
            Self::Take { max, visibility } => {
                [1, *max as u64, nanos(*visibility)].into_iter().for_each(|number| out.number(number));
            }
            Self::Settle { settlements } => {
                if settlements.iter().any(|(_, how)| matches!(how, Settle::Forward { .. })) {
                    return Err(PortError::new(PortErrorKind::Unsupported, "a forward in the log of a queue"));
                }
                out.number(2);
                out.list(settlements.iter(), |out, (receipt, how)| {
                    add_receipt(out, *receipt);
                    add_settle(out, how);
                });
            }
            Self::Extend { receipt, visibility, begun } => {
                out.number(begun.map_or(3, |begun| if begun { 7 } else { 8 }));
                add_receipt(&mut out, *receipt);
                out.number(nanos(*visibility));
            }
            Self::Purge => out.number(4),
            Self::Depth => out.number(5),
            Self::Peek { max } => [6, *max as u64].into_iter().for_each(|number| out.number(number)),
        }
        Ok(out.into_bytes())
    }

    /// Returns the call of these bytes; `None` if they have another form.
    pub(super) fn decode(bytes: Bytes) -> Option<Self> {
        let mut input = In::new(bytes);
        let input = &mut input;
        Some(match input.number()? {
            0 => Self::Send { window: duration(input)?, messages: input.list(message)? },
            1 => Self::Take { max: input.number()?.try_into().ok()?, visibility: duration(input)? },
            2 => Self::Settle { settlements: input.list(|input| Some((receipt(input)?, settle(input)?)))? },
            3 => Self::Extend { receipt: receipt(input)?, visibility: duration(input)?, begun: None },
            kind @ (7 | 8) => {
                Self::Extend { receipt: receipt(input)?, visibility: duration(input)?, begun: Some(kind == 7) }
            }
            4 => Self::Purge,
            5 => Self::Depth,
            6 => Self::Peek { max: input.number()?.try_into().ok()? },
            _ => return None,
        })
    }
}

/// Returns a duration. Those of 584 years or more have no end.
fn duration(input: &mut In) -> Option<Duration> {
    input.number().map(|nanos| if nanos == u64::MAX { Duration::MAX } else { Duration::from_nanos(nanos) })
}

fn add_receipt(out: &mut Out, (one, other): Stub) {
    out.number(one);
    out.number(other);
}

fn receipt(input: &mut In) -> Option<Stub> {
    Some((input.number()?, input.number()?))
}

fn add_message(out: &mut Out, message: &Message) {
    out.bytes(&message.body);
    out.list(message.headers.iter(), |out, (name, value)| {
        out.text(name);
        out.text(value);
    });
    out.option(message.group.as_deref(), Out::text);
    out.option(message.deduplication_id.as_deref(), Out::text);
    out.number(nanos(message.delay));
}

fn message(input: &mut In) -> Option<Message> {
    let mut message = Message::new(input.bytes()?);
    message.headers = input.list(|input| Some((input.text()?, input.text()?)))?.into_iter().collect();
    message.group = input.option(In::text)?;
    message.deduplication_id = input.option(In::text)?;
    message.delay = duration(input)?;
    Some(message)
}

fn add_settle(out: &mut Out, how: &Settle) {
    match how {
        Settle::Complete => out.number(0),
        Settle::Abandon { after, error } => {
            out.number(1);
            out.number(nanos(*after));
            add_error(out, error.as_deref());
        }
        Settle::Release { after } => {
            out.number(2);
            out.number(nanos(*after));
        }
        Settle::DeadLetter { reason, error } => {
            out.number(3);
            out.text(reason);
            add_error(out, error.as_deref());
        }
        // Refused before. No reader knows this number, so that it never passes for a completion.
        Settle::Forward { .. } => out.number(4),
    }
}

fn settle(input: &mut In) -> Option<Settle> {
    Some(match input.number()? {
        0 => Settle::Complete,
        1 => Settle::Abandon { after: duration(input)?, error: error(input)? },
        2 => Settle::Release { after: duration(input)? },
        3 => Settle::DeadLetter { reason: input.text()?, error: error(input)? },
        _ => return None,
    })
}

/// Adds the error of an attempt, or nothing.
fn add_error(out: &mut Out, error: Option<&AttemptError>) {
    let mut history = ErrorHistory::default();
    error.cloned().into_iter().for_each(|error| history.push(error));
    out.text(&history.encode().unwrap_or_default());
}

/// Returns the error of an attempt. One that a later release encoded is left out.
fn error(input: &mut In) -> Option<Option<Box<AttemptError>>> {
    let history = ErrorHistory::decode(&input.text()?);
    Some(history.first().cloned().map(Box::new))
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;
    use crate::{queue::AttemptErrorKind, time::Timestamp};

    #[test]
    fn a_forward_is_never_encoded_as_a_completion() {
        let forward = Settle::Forward { messages: Vec::new() };
        let call = Call::Settle { settlements: vec![((1, 2), Settle::Complete), ((3, 4), forward)] };
        assert_eq!(call.encode().unwrap_err().kind(), PortErrorKind::Unsupported);
    }

    #[test]
    fn calls_come_back_as_they_were_and_damage_is_noticed() {
        let message = Message::new("body").header("name", "value").group("g").deduplicate("id").delay(Duration::MAX);
        let error = AttemptError::new(3, Timestamp::from_millis(7), AttemptErrorKind::Panicked, "no");
        let second = Duration::from_secs(1);
        let settlements = vec![
            ((1, 2), Settle::Complete),
            ((1 << 63, 3), Settle::abandon(second).because(error.clone())),
            ((4, 5), Settle::release(Duration::ZERO)),
            ((6, 7), Settle::dead_letter("日本").because(error)),
        ];
        let all = [
            Call::Send { messages: vec![message, Message::new("")], window: second },
            Call::Take { max: 10, visibility: Duration::MAX },
            Call::Settle { settlements },
            Call::Extend { receipt: (1, 2), visibility: second, begun: None },
            Call::Extend { receipt: (1, 2), visibility: second, begun: Some(true) },
            Call::Extend { receipt: (1, 2), visibility: second, begun: Some(false) },
            Call::Purge,
            Call::Depth,
            Call::Peek { max: 3 },
        ];
        let mut frames = Vec::new();
        for (number, call) in all.iter().enumerate() {
            let bytes = call.encode().unwrap();
            assert_eq!(Call::decode(bytes.clone()).as_ref(), Some(call));
            for end in 0..bytes.len() {
                assert_eq!(Call::decode(bytes.slice(..end)), None, "{call:?} cut at {end}");
            }
            frames.push(frame(number as u64, Part::DeadLetters, &bytes));
        }
        let Ok(Entry::Calls { origin: 9, calls: read }) = Entry::decode(calls(9, frames.iter())) else {
            panic!("another entry")
        };
        let read: Vec<_> = read.into_iter().map(|(_, _, call)| Call::decode(call).unwrap()).collect();
        assert_eq!(read, all);
        let part = Entry::Checkpoint { writer: 1, at: 2, part: 3, parts: 4, bytes: "x".into() };
        assert_eq!(Entry::decode(checkpoint(1, 2, (3, 4), b"x")), Ok(part));
        assert_eq!(Entry::decode(Bytes::from_static(b"sfq\x03\x00")), Err(Unreadable::TooNew(3)));
        assert_eq!(Entry::decode(Bytes::from_static(b"sfq\x01\x00")), Err(Unreadable::Damaged));
        assert_eq!(Entry::decode(Bytes::new()), Err(Unreadable::Foreign));
    }
}
