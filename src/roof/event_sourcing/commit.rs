//! Commits, and the writes that they become.
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{
    Token,
    error::Cause,
    outbox::with_command_id,
    stored::{self, AROUND_STREAM, COMMITS, IdRow, ROWS, RequestId},
};
use crate::{
    config::Name,
    port::{Capabilities, PortError},
    queue::Message,
    store::{DeleteOptions, Precondition, PutOptions, Sequence, Version, Write},
    time::Timestamp,
};

/// Bytes of the longest id that an outbox gives a command.
const LONGEST_ID: usize = 32 + "/.".len() + 20 + 20;

/// Returns the limits of the names of streams, commands and claims.
fn names(can: &Capabilities) -> Capabilities {
    can.largest_key(can.max_key().saturating_sub(AROUND_STREAM))
}

/// Checks the id of a command and the stream of its aggregate.
pub(super) fn check_names(can: &Capabilities, id: &str, stream: &str) -> Result<(), PortError> {
    let names = names(can);
    names.check_key("id", id)?;
    names.check_key("stream", stream)
}

/// An event to append to a stream.
///
/// ```
/// use steadfast::event_sourcing::NewEvent;
///
/// let event = NewEvent::new("SeatsBooked", r#"{"seats":2}"#).schema(2).header("by", "web");
/// assert_eq!((event.kind.as_str(), event.schema), ("SeatsBooked", 2));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewEvent {
    /// The type, such as `SeatsBooked`.
    pub kind: String,
    /// Number of the schema of the body. 1 by default.
    pub schema: u32,
    /// The payload: any bytes.
    pub body: Bytes,
    /// Named text values that travel with the payload.
    pub headers: BTreeMap<String, String>,
}

impl NewEvent {
    /// Creates an event of this type with this body.
    pub fn new(kind: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self { kind: kind.into(), schema: 1, body: body.into(), headers: BTreeMap::new() }
    }

    /// Sets the number of the schema.
    #[must_use]
    pub const fn schema(mut self, schema: u32) -> Self {
        self.schema = schema;
        self
    }

    /// Adds or replaces a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }
}

/// The version of a stream that an append requires: the number of its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expected {
    /// No requirement. Never conflicts.
    Any,
    /// The stream has so many events; 0 for a new stream.
    Version(u64),
}

/// Events for one stream.
#[derive(Debug, Clone)]
pub(super) struct Append {
    pub(super) stream: String,
    pub(super) expected: Expected,
    pub(super) events: Vec<NewEvent>,
}

/// Changes that take effect together, or not at all.
///
/// ```
/// use steadfast::{
///     event_sourcing::{Commit, Expected, NewEvent},
///     store::{Precondition, Write},
/// };
///
/// let commit = Commit::new("cmd-7f3a")
///     .append("conf-7", Expected::Version(41), [NewEvent::new("SeatsBooked", "2")])
///     .expect("attendee-9", 3)
///     .claim("badge/117")
///     .write(Write::put("u/stock/7", "9", Precondition::Absent));
/// assert_eq!(commit.id(), Some("cmd-7f3a"));
/// ```
#[derive(Debug, Clone)]
#[must_use = "a commit takes effect in `EventStore::commit`"]
pub struct Commit {
    id: Option<String>,
    appends: Vec<Append>,
    expects: Vec<(String, u64)>,
    claims: Vec<String>,
    releases: Vec<String>,
    rows: Vec<Write>,
    messages: Vec<(String, Message)>,
    /// The value of the first stream's snapshot.
    snapshot: Option<Bytes>,
    /// `true` if its id was accepted before, which an aggregate saw that would reject it by now.
    pub(super) is_repeated: bool,
}

impl Commit {
    /// Creates a commit of the command with this id, which is accepted once within
    /// [`remember`](super::EventStoreConfig::remember).
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: Some(id.into()), ..Self::unnamed() }
    }

    /// Creates a commit without an id: one is drawn when it is sent. After a failure that
    /// [may have been applied](PortError::may_have_been_applied) it cannot be repeated safely.
    pub const fn unnamed() -> Self {
        Self {
            id: None,
            appends: Vec::new(),
            expects: Vec::new(),
            claims: Vec::new(),
            releases: Vec::new(),
            rows: Vec::new(),
            messages: Vec::new(),
            snapshot: None,
            is_repeated: false,
        }
    }

    /// Appends events to a stream, which must have the expected version. A commit names each stream
    /// once. Its first stream is the one that [`CommandReused`](super::CommitError::CommandReused)
    /// and [`Taken`](super::CommitError::Taken) tell, and the key of the
    /// [topic](super::LogTopic)'s event.
    pub fn append(
        mut self,
        stream: impl Into<String>,
        expected: Expected,
        events: impl IntoIterator<Item = NewEvent>,
    ) -> Self {
        self.appends.push(Append { stream: stream.into(), expected, events: events.into_iter().collect() });
        self
    }

    /// Requires the version of a stream to which the commit does not append: 0 for no event.
    pub fn expect(mut self, stream: impl Into<String>, version: u64) -> Self {
        self.expects.push((stream.into(), version));
        self
    }

    /// Takes a name that is unique within the log, until a commit [releases](Self::release) it. The
    /// holder is the commit's first stream.
    pub fn claim(mut self, name: impl Into<String>) -> Self {
        self.claims.push(name.into());
        self
    }

    /// Releases a claim, by whichever stream it is held. A claim that nobody holds stays so.
    pub fn release(mut self, name: impl Into<String>) -> Self {
        self.releases.push(name.into());
        self
    }

    /// Adds a write of a row of yours: a put, a delete or a check of a row whose name begins with
    /// `u/`.
    pub fn write(mut self, write: Write) -> Self {
        self.rows.push(write);
        self
    }

    /// Sends a message if the commit takes effect: an [`Outbox`](super::Outbox) of the queue with
    /// this name does, later. A delay begins then.
    pub fn send(mut self, queue: impl Into<String>, message: Message) -> Self {
        self.messages.push((queue.into(), message));
        self
    }

    /// Replaces the snapshot of the first stream.
    pub(super) fn snapshot(mut self, value: Bytes) -> Self {
        self.snapshot = Some(value);
        self
    }

    /// Returns the stream by which a repeated command is told from another one with its id.
    pub(super) fn first_stream(&self) -> Option<&str> {
        self.appends.first().map(|append| append.stream.as_str())
    }

    /// Returns the id of the command.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Checks the commit, and returns it in the form in which it is sent.
    pub(super) fn prepare(self, context: &Context<'_>) -> Result<Job, PortError> {
        self.check(context.can, context.outboxes)?;
        let id = self.id.unwrap_or_else(|| format!("{:016x}{:016x}", context.request.0, context.request.1));
        // Empty for a commit of messages alone.
        let first = self.appends.first().map(|append| append.stream.clone()).unwrap_or_default();
        let (mut parts, mut writes) = (Vec::new(), Vec::new());
        let mut add = |part: Part, write: Write| {
            parts.push(part);
            writes.push(write);
        };
        let used = IdRow::Used { request: context.request, stream: first.clone() };
        let options = PutOptions::from(Precondition::Absent).ttl(context.remember);
        add(Part::Id(0), Write::put(stored::id_row(&id), used.encode(), options));
        for (stream, version) in &self.expects {
            let (name, at) = (stored::events_of(stream), *version);
            let sequence = Sequence::new(&name);
            let part = || Part::Stream { stream: stream.clone(), expected: at, is_append: false };
            if at > 0 {
                let last = Precondition::Version(Version::new(at));
                add(part(), Write::check_row(sequence.row(at), last));
            }
            if at < u64::MAX {
                add(part(), Write::check_row(sequence.row(at + 1), Precondition::Absent));
            }
        }
        for claim in &self.claims {
            let value = stored::encode_claim(&first, &id);
            add(Part::Claim(claim.clone()), Write::put(stored::claim_row(claim), value, Precondition::Absent));
        }
        for claim in &self.releases {
            add(Part::Row(claim.clone()), Write::delete(stored::claim_row(claim), DeleteOptions::new()));
        }
        for write in self.rows {
            add(Part::Row(write.row().unwrap_or_default().to_owned()), write);
        }
        if let Some(value) = self.snapshot {
            // The version of the stream decides which of two takes effect.
            add(Part::Snapshot, Write::put(stored::snapshot_row(&first), value, Precondition::Any));
        }
        for append in &self.appends {
            let name = stored::events_of(&append.stream);
            let mut after = match append.expected {
                Expected::Version(version) => Some(version),
                Expected::Any => None,
            };
            let expected = after.unwrap_or_default();
            for event in &append.events {
                let value = stored::encode_event(context.at, &id, event);
                let part = Part::Stream { stream: append.stream.clone(), expected, is_append: true };
                add(part, Write::Append { sequence: name.clone(), value, after: after.take() });
            }
        }
        let value = stored::encode_commit(context.at, &id, &self.appends, &self.messages);
        add(Part::Log, Write::append(COMMITS.as_str(), value));
        Write::check_batch(context.partition, &writes, context.can)?;
        let appends = self.appends.into_iter().map(|append| {
            let count = append.events.len() as u64;
            (append.stream, append.expected, count)
        });
        let appends: Vec<_> = appends.collect();
        let known = |(stream, expected, count): &(String, Expected, u64)| match expected {
            Expected::Version(version) => Some((stream.clone(), version.saturating_add(*count))),
            Expected::Any => None,
        };
        let versions = appends.iter().filter_map(known).collect();
        let expects = self.expects.into_iter().map(|(stream, _)| stream).collect();
        let commands = vec![Command { id, request: context.request, first, versions }];
        Ok(Job { commands, parts, writes, appends, expects })
    }

    fn check(&self, can: &Capabilities, outboxes: &BTreeMap<String, Capabilities>) -> Result<(), PortError> {
        let names = names(can);
        if let Some(id) = &self.id {
            names.check_key("id", id)?;
        }
        if self.appends.is_empty() && self.messages.is_empty() {
            return Err(PortError::invalid("events", "must not be empty without a message"));
        }
        if self.appends.iter().any(|append| append.events.is_empty()) {
            return Err(PortError::invalid("events", "must not be empty"));
        }
        let mut streams = BTreeSet::new();
        for (field, stream) in self
            .appends
            .iter()
            .map(|append| ("stream", &append.stream))
            .chain(self.expects.iter().map(|(stream, _)| ("expect", stream)))
        {
            names.check_key(field, stream)?;
            if !streams.insert(stream) {
                let rule = format_args!("must name each stream once, but {stream:?} occurs twice");
                return Err(PortError::invalid(field, rule));
            }
        }
        for claim in self.claims.iter().chain(&self.releases) {
            names.check_key("claim", claim)?;
        }
        for append in &self.appends {
            if append.events.iter().any(|event| event.kind.is_empty()) {
                return Err(PortError::invalid("kind", "must not be empty"));
            }
            if append.events.iter().any(|event| event.schema == 0) {
                return Err(PortError::invalid("schema", "must be at least 1"));
            }
        }
        for (queue, message) in &self.messages {
            let Some(can) = outboxes.get(queue) else {
                let rule = format_args!("must be one with which the log was built, is {queue:?}");
                return Err(PortError::invalid("queue", rule).with_source(Cause::Undeclared));
            };
            if message.deduplication_id.is_some() {
                return Err(PortError::invalid("deduplication_id", "must not be set: the place in the log is the id"));
            }
            let with_id = with_command_id(message.clone(), || "x".repeat(LONGEST_ID));
            Message::check(std::slice::from_ref(&with_id), can)?;
        }
        match self.rows.iter().find(|write| !write.row().is_some_and(|row| row.starts_with(ROWS))) {
            Some(write) => {
                let rule = format_args!("must begin with `u/`, is {:?}", write.row().unwrap_or("an append"));
                Err(PortError::invalid("row", rule))
            }
            None => Ok(()),
        }
    }
}

/// Most bytes of the commands that are committed together. A larger command goes alone.
const MOST_BYTES: usize = 8 << 20;

/// Circumstances of a commit.
pub(super) struct Context<'a> {
    pub(super) partition: &'a str,
    pub(super) can: &'a Capabilities,
    /// Capabilities of the queues, by name.
    pub(super) outboxes: &'a BTreeMap<String, Capabilities>,
    pub(super) remember: std::time::Duration,
    pub(super) request: RequestId,
    pub(super) at: Timestamp,
}

/// The meaning of a write of a commit, by which a refusal is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// The id of the command with this index.
    Id(usize),
    /// An event, or the check of a version.
    Stream { stream: String, expected: u64, is_append: bool },
    /// The taking of a claim.
    Claim(String),
    /// A row of the user, or the release of a claim.
    Row(String),
    /// The commit itself.
    Log,
    /// The snapshot of a stream.
    Snapshot,
}

/// A command of a job.
#[derive(Debug, Clone)]
pub(super) struct Command {
    pub(super) id: String,
    pub(super) request: RequestId,
    pub(super) first: String,
    /// Versions of its streams behind it, as far as they are known beforehand.
    pub(super) versions: BTreeMap<String, u64>,
}

/// Commits that were checked and take effect together: their writes, and the meaning of each. One,
/// or those of several commands of an aggregate.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) commands: Vec<Command>,
    pub(super) parts: Vec<Part>,
    pub(super) writes: Vec<Write>,
    /// Streams with the expected version and the number of events.
    pub(super) appends: Vec<(String, Expected, u64)>,
    /// Streams that it checks.
    pub(super) expects: Vec<String>,
}

impl Job {
    /// Adds the commit of the next command of the same aggregate, which expects the version that
    /// this one leaves.
    pub(super) fn push(&mut self, next: Self) {
        // The later snapshot replaces the earlier one.
        let before = self.parts.iter().position(|part| *part == Part::Snapshot);
        if let Some(before) = before.filter(|_| next.parts.contains(&Part::Snapshot)) {
            self.parts.remove(before);
            self.writes.remove(before);
        }
        let index = self.commands.len();
        self.commands.extend(next.commands);
        self.parts.extend(next.parts.into_iter().map(|part| match part {
            Part::Id(_) => Part::Id(index),
            part => part,
        }));
        self.writes.extend(next.writes);
        let counts = self.appends.iter_mut().zip(next.appends);
        counts.for_each(|((_, _, count), (_, _, more))| *count += more);
    }

    /// Returns `true` if the commit of another command can be in this job: within so many writes
    /// and some bytes, and with another id.
    pub(super) fn takes(&self, next: &Self, most: usize) -> bool {
        let has_id = |command: &Command| self.commands.iter().any(|own| own.id == command.id);
        let fits = self.writes.len() + next.writes.len() <= most && self.bytes() + next.bytes() <= MOST_BYTES;
        fits && !next.commands.iter().any(has_id)
    }

    fn bytes(&self) -> usize {
        let bytes = |write: &Write| match write {
            Write::Put { value, .. } | Write::Append { value, .. } => value.len(),
            _ => 0,
        };
        self.writes.iter().map(bytes).sum()
    }

    /// Returns the answers to the commits with these numbers of their writes.
    pub(super) fn done(&self, log: &Name, numbers: &[Option<Version>]) -> Vec<Committed> {
        let (mut done, mut versions) = (Vec::new(), BTreeMap::new());
        for (part, number) in self.parts.iter().zip(numbers) {
            let number = number.map_or(0, Version::as_u64);
            match part {
                Part::Stream { stream, is_append: true, .. } => drop(versions.insert(stream.clone(), number)),
                Part::Log => {
                    let (token, versions) = (Token::new(log.clone(), number), std::mem::take(&mut versions));
                    done.push(Committed { token, versions, is_repeated: false });
                }
                _ => {}
            }
        }
        done
    }
}

/// The answer to a commit that took effect.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Committed {
    /// A place in the log that covers the commit.
    pub token: Token,
    /// The version of each stream of the commit behind it; empty if it
    /// [is repeated](Self::is_repeated).
    pub versions: BTreeMap<String, u64>,
    /// `true` if the command was accepted before, and nothing was written now.
    pub is_repeated: bool,
}
