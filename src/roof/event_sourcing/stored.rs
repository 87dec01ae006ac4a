//! The stored form of a log: rows, and their binary encoding.
//!
//! A log is one partition of the store:
//!
//! | row | content |
//! |---|---|
//! | `log` | the identity of the log |
//! | `c/NUMBER` | a commit with all its events: the sequence `c/` |
//! | `e/LENGTH/STREAM/NUMBER` | an event of a stream: the sequence `e/LENGTH/STREAM/` |
//! | `k/ID` | the command with this id was accepted, or its request was given up; it expires |
//! | `q/CLAIM` | the holder of a claim |
//! | `p/STREAM` | a snapshot |
//! | `o/QUEUE` | the checkpoint of an outbox: the last commit whose messages were sent |
//! | `u/..` | rows of the user |
use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;

use super::commit::{Append, Expected, NewEvent};
use crate::{
    port::{PortError, PortErrorKind},
    queue::Message,
    record::Unreadable,
    store::{Sequence, StoreError},
    time::Timestamp,
    wire::{In, Out},
};

/// Version of the encoding of rows.
const FORMAT: u64 = 1;

/// Row of the log's identity.
pub(super) const LOG: &str = "log";

/// Sequence of the commits.
pub(super) const COMMITS: Sequence<'static> = Sequence::new("c/");

/// Prefix of the user's rows.
pub(super) const ROWS: &str = "u/";

/// Bytes of the longest row name beside the name of a stream, whose length has up to 10 digits.
pub(super) const AROUND_STREAM: usize = "e///".len() + 10 + 20;

/// Returns the sequence of a stream. By the length no name is the beginning of another one, so no
/// rows of other streams lie between those of one.
pub(super) fn events_of(stream: &str) -> String {
    format!("e/{}/{stream}/", stream.len())
}

pub(super) fn id_row(id: &str) -> String {
    format!("k/{id}")
}

pub(super) fn claim_row(claim: &str) -> String {
    format!("q/{claim}")
}

pub(super) fn snapshot_row(stream: &str) -> String {
    format!("p/{stream}")
}

pub(super) fn outbox_row(queue: &str) -> String {
    format!("o/{queue}")
}

pub(super) fn damaged(row: &str) -> PortError {
    PortError::new(PortErrorKind::Corrupt, format!("events: the row {row:?} of the log cannot be decoded"))
}

/// Returns the error of a missing row behind which others exist.
pub(super) fn hole(row: &str) -> PortError {
    PortError::new(PortErrorKind::Corrupt, format!("events: the row {row:?} of the log is missing"))
}

/// Returns the error of a refusal for which the log has no cause.
pub(super) fn foreign(refused: &StoreError) -> PortError {
    PortError::new(PortErrorKind::Corrupt, format!("events: another program wrote to the log: {refused}"))
}

/// Number by which a commit recognises its own id row after a lost reply.
pub(super) type RequestId = (u64, u64);

fn open<T>(row: &str, value: Bytes, read: impl FnOnce(&mut In) -> Option<T>) -> Result<T, PortError> {
    In::open(value, FORMAT, read).map_err(|unreadable| refuse(row, unreadable))
}

/// Returns the error of a row that cannot be read.
fn refuse(row: &str, unreadable: Unreadable) -> PortError {
    match unreadable {
        Unreadable::TooNew => PortError::new(
            PortErrorKind::TooNew,
            format!("events: the row {row:?} of the log was written by a newer release"),
        ),
        Unreadable::Foreign => damaged(row),
    }
}

/// Encodes the identity of a log.
pub(super) fn encode_log(identity: &str) -> Bytes {
    let mut out = Out::of_form(FORMAT);
    out.text(identity);
    out.into_bytes()
}

pub(super) fn decode_log(value: Bytes) -> Result<String, PortError> {
    open(LOG, value, In::text)
}

/// The row of a command's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum IdRow {
    /// The command was accepted by this request, for this first stream.
    Used { request: RequestId, stream: String },
    /// A request with the command was given up: a mark keeps it from being applied later.
    Void { request: RequestId },
}

impl IdRow {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Out::of_form(FORMAT);
        let (request, stream) = match self {
            Self::Used { request, stream } => (request, Some(stream.as_str())),
            Self::Void { request } => (request, None),
        };
        out.number(request.0);
        out.number(request.1);
        out.option(stream, Out::text);
        out.into_bytes()
    }

    pub(super) fn decode(row: &str, value: Bytes) -> Result<Self, PortError> {
        open(row, value, |input| {
            let request = (input.number()?, input.number()?);
            Some(match input.option(In::text)? {
                Some(stream) => Self::Used { request, stream },
                None => Self::Void { request },
            })
        })
    }
}

/// Encodes the holder of a claim: the first stream of its commit, and the command.
pub(super) fn encode_claim(stream: &str, command: &str) -> Bytes {
    let mut out = Out::of_form(FORMAT);
    out.text(stream);
    out.text(command);
    out.into_bytes()
}

/// Returns the stream that holds a claim.
pub(super) fn decode_claim(row: &str, value: Bytes) -> Result<String, PortError> {
    open(row, value, |input| {
        let stream = input.text()?;
        input.text()?;
        Some(stream)
    })
}

/// A snapshot of a stream: the encoded state as of a version, and the number of its schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Snapshot {
    pub(super) schema: u32,
    pub(super) version: u64,
    pub(super) state: Bytes,
}

impl Snapshot {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Out::of_form(FORMAT);
        out.number(u64::from(self.schema));
        out.number(self.version);
        out.bytes(&self.state);
        out.into_bytes()
    }

    pub(super) fn decode(row: &str, value: Bytes) -> Result<Self, PortError> {
        open(row, value, |input| {
            let schema = u32::try_from(input.number()?).ok()?;
            Some(Self { schema, version: input.number()?, state: input.bytes()? })
        })
    }
}

/// Encodes the checkpoint of an outbox.
pub(super) fn encode_checkpoint(number: u64) -> Bytes {
    let mut out = Out::of_form(FORMAT);
    out.number(number);
    out.into_bytes()
}

pub(super) fn decode_checkpoint(row: &str, value: Bytes) -> Result<u64, PortError> {
    open(row, value, In::number)
}

fn add_headers(out: &mut Out, headers: &BTreeMap<String, String>) {
    out.list(headers.iter(), |out, (name, value)| {
        out.text(name);
        out.text(value);
    });
}

fn take_headers(input: &mut In) -> Option<BTreeMap<String, String>> {
    Some(input.list(|input| Some((input.text()?, input.text()?)))?.into_iter().collect())
}

fn skip_headers(input: &mut In) -> Option<()> {
    for _ in 0..input.number()? {
        input.skip_text()?;
        input.skip_text()?;
    }
    Some(())
}

fn add_message(out: &mut Out, (queue, message): &(String, Message)) {
    out.text(queue);
    out.option(message.group.as_deref(), Out::text);
    out.number(u64::try_from(message.delay.as_millis()).unwrap_or(u64::MAX));
    add_headers(out, &message.headers);
    out.bytes(&message.body);
}

fn take_message(input: &mut In) -> Option<(String, Message)> {
    let (queue, group, delay) = (input.text()?, input.option(In::text)?, Duration::from_millis(input.number()?));
    let headers = take_headers(input)?;
    let mut message = Message::new(input.bytes()?).delay(delay);
    (message.group, message.headers) = (group, headers);
    Some((queue, message))
}

fn skip_message(input: &mut In) -> Option<()> {
    input.skip_text()?;
    input.option(In::skip_text)?;
    input.number()?;
    skip_headers(input)?;
    input.skip()
}

fn add_event(out: &mut Out, event: &NewEvent) {
    out.text(&event.kind);
    out.number(u64::from(event.schema));
    add_headers(out, &event.headers);
    out.bytes(&event.body);
}

fn take_event(input: &mut In) -> Option<NewEvent> {
    let (kind, schema) = (input.text()?, u32::try_from(input.number()?).ok()?);
    let headers = take_headers(input)?;
    Some(NewEvent { kind, schema, body: input.bytes()?, headers })
}

fn skip_event(input: &mut In) -> Option<()> {
    input.skip_text()?;
    u32::try_from(input.number()?).ok()?;
    skip_headers(input)?;
    input.skip()
}

/// Encodes an event for the row of its stream.
pub(super) fn encode_event(at: Timestamp, command: &str, event: &NewEvent) -> Bytes {
    let mut out = Out::of_form(FORMAT);
    out.number(at.as_millis());
    out.text(command);
    add_event(&mut out, event);
    out.into_bytes()
}

/// An event as a stream has it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredEvent {
    /// Number of the event within its stream, from 1.
    pub version: u64,
    /// Id of the command that caused it.
    pub command: String,
    /// Wall time of the process that committed it. For people: no clocks are compared.
    pub at: Timestamp,
    /// The event.
    pub event: NewEvent,
}

impl StoredEvent {
    pub(super) fn decode(row: &str, version: u64, value: Bytes) -> Result<Self, PortError> {
        open(row, value, |input| {
            let (at, command) = (Timestamp::from_millis(input.number()?), input.text()?);
            Some(Self { version, command, at, event: take_event(input)? })
        })
    }
}

/// Encodes a commit for its row.
pub(super) fn encode_commit(at: Timestamp, command: &str, appends: &[Append], messages: &[(String, Message)]) -> Bytes {
    let mut out = Out::of_form(FORMAT);
    out.number(at.as_millis());
    out.text(command);
    out.list(appends.iter(), |out, append| {
        out.text(&append.stream);
        let after = match append.expected {
            Expected::Version(version) => Some(version),
            Expected::Any => None,
        };
        out.option(after, Out::number);
        out.list(append.events.iter(), add_event);
    });
    out.list(messages.iter(), add_message);
    out.into_bytes()
}

/// A commit as the log has it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredCommit {
    /// Number of the commit within the log, from 1.
    pub number: u64,
    /// Id of the command.
    pub command: String,
    /// Wall time of the process that committed it. For people: no clocks are compared.
    pub at: Timestamp,
    /// The events, in the order of the commit.
    pub events: Vec<CommittedEvent>,
    /// The messages, each with the name of its queue.
    pub messages: Vec<(String, Message)>,
}

/// An event of a [`StoredCommit`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommittedEvent {
    /// The stream.
    pub stream: String,
    /// Number of the event within its stream. `None` if it was appended to
    /// [any](super::Expected::Any) version: then the store numbers it as it writes the commit.
    pub version: Option<u64>,
    /// The event.
    pub event: NewEvent,
}

impl StoredCommit {
    /// Reads the command and the first stream of a commit. It refuses what [`decode`](Self::decode)
    /// refuses, and makes nothing of the rest.
    pub(super) fn decode_head(number: u64, value: Bytes) -> Result<(String, Option<String>), PortError> {
        let read = |input: &mut In| {
            input.number()?;
            let (command, mut first) = (input.text()?, None);
            for _ in 0..input.number()? {
                let stream = input.text()?;
                input.option(In::number)?;
                let events = input.number()?;
                for _ in 0..events {
                    skip_event(input)?;
                }
                if events > 0 {
                    first.get_or_insert(stream);
                }
            }
            for _ in 0..input.number()? {
                skip_message(input)?;
            }
            Some((command, first))
        };
        In::open(value, FORMAT, read).map_err(|unreadable| refuse(&COMMITS.row(number), unreadable))
    }

    pub(super) fn decode(number: u64, value: Bytes) -> Result<Self, PortError> {
        let read = |input: &mut In| {
            let (at, command) = (Timestamp::from_millis(input.number()?), input.text()?);
            // Most commits have one: a vector that grows begins with room for four, of 600 bytes.
            let mut events = Vec::with_capacity(1);
            input.list(|input| {
                let (stream, mut version, first) = (input.text()?, input.option(In::number)?, events.len());
                input.list(|input| {
                    version = version.map(|version: u64| version.saturating_add(1));
                    events.push(CommittedEvent { stream: String::new(), version, event: take_event(input)? });
                    Some(())
                })?;
                if let Some((last, others)) = events[first..].split_last_mut() {
                    others.iter_mut().for_each(|event| event.stream.clone_from(&stream));
                    last.stream = stream;
                }
                Some(())
            })?;
            let messages = input.list(take_message)?;
            Some(Self { number, command, at, events, messages })
        };
        // Many are read in a row: the name of one is made for its error alone.
        In::open(value, FORMAT, read).map_err(|unreadable| refuse(&COMMITS.row(number), unreadable))
    }
}
