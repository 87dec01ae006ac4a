//! Events, and their positions in a topic.
use std::{collections::BTreeMap, fmt};

use bytes::Bytes;

use crate::port::{Capabilities, PortError};

/// An event to append to a topic.
///
/// ```
/// use steadfast::stream::Event;
///
/// let event = Event::new("arrived").key("tenant-7").id("request-9").header("trace", "4f");
/// assert_eq!(event.key.as_deref(), Some("tenant-7"));
/// assert_eq!(event.size(), 41);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Event {
    /// The payload: any bytes.
    pub body: Bytes,
    /// Key of the events that are processed one at a time, in order, such as a tenant or a device.
    pub key: Option<String>,
    /// Id under which the event is accepted once within the topic's window.
    pub id: Option<String>,
    /// Named text values that travel with the payload.
    pub headers: BTreeMap<String, String>,
}

/// Size of a header beside its texts: their lengths, in any encoding.
const HEADER: usize = 10;

impl Event {
    /// Creates an event with this body.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..Self::default() }
    }

    /// Sets the key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the id under which the event is accepted once.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Adds or replaces a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Returns the size as topics count it: the body, the key, the id, and the names and values of
    /// the headers with 10 more for each header, in bytes.
    pub fn size(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.len() + value.len() + HEADER).sum::<usize>();
        self.body.len() + self.key.as_ref().map_or(0, String::len) + self.id.as_ref().map_or(0, String::len) + headers
    }

    /// Rejects events of one request that violate a limit of a topic with these capabilities. For
    /// topics.
    ///
    /// # Errors
    /// `Invalid`, with the name of the field and the rule.
    pub fn check(events: &[Self], can: &Capabilities) -> Result<(), PortError> {
        if events.len() > can.max_batch() {
            let rule = format_args!("must have at most {} entries, has {}", can.max_batch(), events.len());
            return Err(PortError::invalid("events", rule));
        }
        for event in events {
            if let Some(key) = &event.key {
                can.check_key("key", key)?;
            }
            if let Some(id) = &event.id {
                can.check_key("id", id)?;
            }
            if event.size() > can.max_value() {
                let most = can.max_value();
                let rule = format_args!("must be at most {most} bytes with key, id and headers, is {}", event.size());
                return Err(PortError::invalid("body", rule));
            }
        }
        Ok(())
    }
}

/// The place of an event in its topic. Its text is `PARTITION/OFFSET`.
///
/// ```
/// use steadfast::stream::Position;
///
/// assert_eq!(Position::new(7, 42).to_string(), "7/42");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Position {
    /// The partition, from 0.
    pub partition: u16,
    /// Number of the event within the partition, from 1.
    pub offset: u64,
}

impl Position {
    /// Creates a position.
    pub const fn new(partition: u16, offset: u64) -> Self {
        Self { partition, offset }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.partition, self.offset)
    }
}

/// The answer to the append of one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Appended {
    /// The place of the event.
    pub position: Position,
    /// `true` if an event with the same id was accepted before. The position is that of the
    /// earlier event.
    pub is_duplicate: bool,
}

impl Appended {
    /// Creates the answer to an event that was appended now. For topics.
    pub const fn new(position: Position) -> Self {
        Self { position, is_duplicate: false }
    }

    /// Creates the answer to an event whose id was accepted before, at this position. For topics.
    pub const fn duplicate_of(position: Position) -> Self {
        Self { position, is_duplicate: true }
    }
}

/// An event as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recorded {
    /// The place of the event.
    pub position: Position,
    /// The event.
    pub event: Event,
}

impl Recorded {
    /// Creates an event at this place. For topics.
    pub const fn new(position: Position, event: Event) -> Self {
        Self { position, event }
    }
}
