//! The stored form of a topic: rows, and their binary encoding.
//!
//! Each partition of a topic is a partition of the store:
//!
//! | row | content |
//! |---|---|
//! | `h` | the head: first and next offset, and the last request. Each append replaces it by version |
//! | `h/` | the flag: writers wait for a turn. An append without a turn requires that it is absent |
//! | `h/ID` | ticket of a writer that waits, named by 16 hexadecimal digits |
//! | `e/OFFSET` | events of one request, named by the first offset in 16 hexadecimal digits |
//! | `i/ID` | offset of the event with this id, while the id is remembered |
use std::{ops::Bound, time::Duration};

use bytes::Bytes;

use super::Event;
use crate::{
    port::{PortError, PortErrorKind},
    wire::{In, Out},
};

/// Row of the head.
pub(super) const HEAD: &str = "h";

/// Row of the flag, and prefix of the rows of tickets.
pub(super) const FLAG: &str = "h/";

/// Version of the encoding of rows.
const FORMAT: u64 = 1;

/// Bytes beside the events in the value of a row, at most; and those beside an event's texts.
pub(super) const OVERHEAD: usize = 64;

/// Returns the row of the events from this offset on. Its digits are not those of a
/// [`Sequence`](crate::store::Sequence).
pub(super) fn events_row(offset: u64) -> String {
    format!("e/{offset:016x}")
}

/// Returns the first offset of a row of events.
pub(super) fn offset_of(row: &str) -> Result<u64, PortError> {
    let offset = row.strip_prefix("e/").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    offset.ok_or_else(|| damaged(row))
}

pub(super) fn id_row(id: &str) -> String {
    format!("i/{id}")
}

/// Returns the row of the ticket with this id. Its digits are not those of a
/// [`Sequence`](crate::store::Sequence).
pub(super) fn ticket_row(id: u64) -> String {
    format!("{FLAG}{id:016x}")
}

/// Returns the range of the head, the flag and the tickets.
pub(super) fn head_and_tickets() -> (Bound<String>, Bound<String>) {
    // The character behind `/`.
    (Bound::Included(HEAD.to_owned()), Bound::Excluded("h0".to_owned()))
}

pub(super) fn damaged(row: &str) -> PortError {
    PortError::new(PortErrorKind::Corrupt, format!("stream: the row {row:?} of the topic cannot be decoded"))
}

/// The greatest offset: no partition has so many events, and behind it is room for a request.
const LAST: u64 = u64::MAX >> 1;

/// Number by which an append recognises its own rows after a lost reply.
pub(super) type RequestId = (u64, u64);

/// The state of a partition, in its row `h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// First offset that is kept; equal to `next` if none is.
    pub(super) first: u64,
    /// Offset that the next event gets.
    pub(super) next: u64,
    /// The last append, and its first offset.
    pub(super) request: RequestId,
    pub(super) appended_at: u64,
}

impl Head {
    /// The state before the first append.
    pub(super) const NEW: Self = Self { first: 1, next: 1, request: (0, 0), appended_at: 0 };

    pub(super) fn encode(&self) -> Bytes {
        let mut out = Out::default();
        for number in [FORMAT, self.first, self.next, self.request.0, self.request.1, self.appended_at] {
            out.number(number);
        }
        out.into_bytes()
    }

    pub(super) fn decode(value: Bytes) -> Result<Self, PortError> {
        let mut input = In::new(value);
        let read = |input: &mut In| {
            let head = Self {
                first: input.number()?,
                next: input.number()?,
                request: (input.number()?, input.number()?),
                appended_at: input.number()?,
            };
            (1 <= head.first && head.first <= head.next && head.next <= LAST && input.is_empty()).then_some(head)
        };
        check_format(&mut input, HEAD)?;
        read(&mut input).ok_or_else(|| damaged(HEAD))
    }
}

/// A writer that waits for its turn, in its row `h/ID`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) id: u64,
    /// Offset behind which the writer first wanted to append.
    pub(super) place: u64,
    /// Time that the writer's requests take.
    pub(super) takes: Duration,
}

impl Ticket {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Out::default();
        for number in [FORMAT, self.place, u64::try_from(self.takes.as_micros()).unwrap_or(u64::MAX)] {
            out.number(number);
        }
        out.into_bytes()
    }

    /// Reads a ticket. `None` for one of a newer release, or a damaged one: it only orders writers,
    /// so nothing is lost if it is ignored.
    pub(super) fn decode(row: &str, value: Bytes) -> Option<Self> {
        let id = u64::from_str_radix(row.strip_prefix(FLAG)?, 16).ok()?;
        let mut input = In::new(value);
        check_format(&mut input, row).ok()?;
        let (place, takes) = (input.number()?, Duration::from_micros(input.number()?));
        input.is_empty().then_some(Self { id, place, takes })
    }
}

/// Encodes the flag.
pub(super) fn encode_flag() -> Bytes {
    let mut out = Out::default();
    out.number(FORMAT);
    out.into_bytes()
}

fn check_format(input: &mut In, row: &str) -> Result<(), PortError> {
    match input.number() {
        Some(FORMAT) => Ok(()),
        Some(newer) if newer > FORMAT => {
            let message = format!("stream: the row {row:?} of the topic was written by a newer release");
            Err(PortError::new(PortErrorKind::TooNew, message))
        }
        _ => Err(damaged(row)),
    }
}

/// Encodes events for one row.
pub(super) fn encode_events(request: RequestId, events: &[&Event]) -> Bytes {
    let mut out = Out::default();
    out.number(FORMAT);
    out.number(request.0);
    out.number(request.1);
    out.list(events.iter(), |out, event| {
        out.bytes(&event.body);
        out.option(event.key.as_deref(), Out::text);
        out.option(event.id.as_deref(), Out::text);
        out.list(event.headers.iter(), |out, (name, value)| {
            out.text(name);
            out.text(value);
        });
    });
    out.into_bytes()
}

/// Returns the size that an event adds to a row, at most.
pub(super) fn encoded_size(event: &Event) -> usize {
    // Lengths of at most 5 bytes each; its size has those of the headers.
    event.size() + 24
}

/// A row of events, whose events are decoded when they are read.
#[derive(Debug, Clone)]
pub(super) struct StoredEvents {
    /// The first offset.
    pub(super) first: u64,
    pub(super) count: u64,
    pub(super) request: RequestId,
    /// Number of bytes of the row.
    pub(super) size: usize,
    events: In,
    /// The offset behind the last read, and the bytes from there on: a reader that follows the
    /// partition skips no event that it has read.
    place: (u64, In),
}

impl StoredEvents {
    pub(super) fn open(row: &str, value: Bytes) -> Result<Self, PortError> {
        let first = offset_of(row)?;
        let (size, mut events) = (value.len(), In::new(value));
        check_format(&mut events, row)?;
        let read = |input: &mut In| Some((input.number()?, input.number()?, input.number()?));
        let (one, other, count) = read(&mut events).ok_or_else(|| damaged(row))?;
        // Each event has a byte at least, and an empty row none.
        if count == 0 || count > size as u64 || first.checked_add(count).is_none() {
            return Err(damaged(row));
        }
        let place = (first, events.clone());
        Ok(Self { first, count, request: (one, other), size, events, place })
    }

    /// Returns the offset behind the last event.
    pub(super) const fn end(&self) -> u64 {
        self.first + self.count
    }

    /// Returns the events from this offset on, at most `max`, with their offsets. The bodies share
    /// the memory of the row.
    pub(super) fn events(&mut self, from: u64, max: usize) -> Result<Vec<(u64, Event)>, PortError> {
        let (mut offset, mut input) =
            if from < self.place.0 { (self.first, self.events.clone()) } else { self.place.clone() };
        let mut taken = Vec::new();
        while offset < self.end() && taken.len() < max {
            let skips = offset < from;
            let event = take_event(&mut input, skips).ok_or_else(|| damaged(&events_row(self.first)))?;
            taken.extend(event.map(|event| (offset, event)));
            offset += 1;
        }
        if offset == self.end() && !input.is_empty() {
            return Err(damaged(&events_row(self.first)));
        }
        self.place = (offset, input);
        Ok(taken)
    }
}

/// Takes an event; the inner `None` is one that was skipped.
fn take_event(input: &mut In, skips: bool) -> Option<Option<Event>> {
    if skips {
        input.skip()?;
        input.option(In::skip)?;
        input.option(In::skip)?;
        for _ in 0..input.number()? {
            input.skip()?;
            input.skip()?;
        }
        return Some(None);
    }
    let mut event = Event::new(input.bytes()?);
    event.key = input.option(In::text)?;
    event.id = input.option(In::text)?;
    event.headers = input.list(|input| Some((input.text()?, input.text()?)))?.into_iter().collect();
    Some(Some(event))
}

/// Encodes the number of partitions and the identity of a topic.
pub(super) fn encode_topic(partitions: u16, identity: &str) -> Bytes {
    let mut out = Out::default();
    out.number(FORMAT);
    out.number(u64::from(partitions));
    out.text(identity);
    out.into_bytes()
}

/// Decodes the row of a topic.
pub(super) fn decode_topic(row: &str, value: Bytes) -> Result<(u16, String), PortError> {
    let mut input = In::new(value);
    check_format(&mut input, row)?;
    let read = |input: &mut In| {
        let topic = (u16::try_from(input.number()?).ok()?, input.text()?);
        input.is_empty().then_some(topic)
    };
    read(&mut input).ok_or_else(|| damaged(row))
}

/// Encodes the offset of an event, for the row of its id.
pub(super) fn encode_offset(offset: u64) -> Bytes {
    let mut out = Out::default();
    out.number(FORMAT);
    out.number(offset);
    out.into_bytes()
}

/// Decodes the offset in the row of an id.
pub(super) fn decode_offset(row: &str, value: Bytes) -> Result<u64, PortError> {
    let mut input = In::new(value);
    check_format(&mut input, row)?;
    input.number().filter(|_| input.is_empty()).ok_or_else(|| damaged(row))
}
