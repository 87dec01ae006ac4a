//! What goes into a queue, and what comes out.
use std::{collections::BTreeMap, fmt, time::Duration};

use bytes::Bytes;

use crate::{
    port::{Capabilities, Capability, PortError, check_part},
    time::Timestamp,
};

/// A message to send.
///
/// ```
/// use std::time::Duration;
/// use steadfast::queue::Message;
///
/// let message = Message::new("charge 42").group("tenant-7").deduplicate("order-42").delay(Duration::from_secs(5));
/// assert_eq!(message.group.as_deref(), Some("tenant-7"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Message {
    /// What it says: any bytes.
    pub body: Bytes,
    /// What goes with it, by name.
    pub headers: BTreeMap<String, String>,
    /// Messages with the same group key are handed out one at a time, in order.
    pub group: Option<String>,
    /// A second message with the same id, and the same group key or none, is not enqueued within the queue's window.
    pub deduplication_id: Option<String>,
    /// For how long it is hidden at first.
    pub delay: Duration,
}

impl Message {
    /// A message that says this.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..Self::default() }
    }

    /// Adds a header, or replaces it.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Sets the group key.
    #[must_use]
    pub fn group(mut self, key: impl Into<String>) -> Self {
        self.group = Some(key.into());
        self
    }

    /// Sets the de-duplication id.
    #[must_use]
    pub fn deduplicate(mut self, id: impl Into<String>) -> Self {
        self.deduplication_id = Some(id.into());
        self
    }

    /// Hides it for so long at first.
    #[must_use]
    pub const fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Its size as backends count it: body, and names and values of headers.
    pub fn size(&self) -> usize {
        self.body.len() + self.headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
    }

    /// Refuses messages that break a rule that every backend has, or that this one states. For backends.
    ///
    /// # Errors
    /// `Invalid` or `Unsupported`, by name.
    pub fn check(messages: &[Self], can: &Capabilities) -> Result<(), PortError> {
        if messages.len() > can.max_batch() {
            let rule = format_args!("must be at most {} at once, are {}", can.max_batch(), messages.len());
            return Err(PortError::invalid("messages", rule));
        }
        for message in messages {
            if message.size() > can.max_value() {
                let rule =
                    format_args!("must be at most {} bytes with its headers, is {}", can.max_value(), message.size());
                return Err(PortError::invalid("body", rule));
            }
            if let Some(group) = &message.group {
                can.require(Capability::Groups)?;
                check_part("group", group, can)?;
            }
            if let Some(id) = &message.deduplication_id {
                can.require(Capability::Deduplication)?;
                check_part("deduplication_id", id, can)?;
            }
            if !message.delay.is_zero() {
                can.require(Capability::Delay)?;
            }
        }
        Ok(())
    }
}

/// Which message it is, for as long as it lives: the same in each delivery, and as a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(Opaque);

/// The right to settle one delivery of a message. It ends with the message's next delivery.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Receipt(Opaque);

/// A backend's own name for something: text for most, two numbers where text would have to be built for each message.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Opaque {
    Numbers(u64, u64),
    Text(Box<str>),
}

macro_rules! opaque {
    ($name:ident) => {
        impl $name {
            /// Made from the backend's text. For backends.
            pub fn new(text: impl Into<Box<str>>) -> Self {
                Self(Opaque::Text(text.into()))
            }

            /// Made from the backend's numbers. For backends.
            pub const fn from_numbers(one: u64, other: u64) -> Self {
                Self(Opaque::Numbers(one, other))
            }

            /// The backend's text, if it was made from one.
            pub fn as_text(&self) -> Option<&str> {
                match &self.0 {
                    Opaque::Text(text) => Some(text),
                    Opaque::Numbers(..) => None,
                }
            }

            /// The backend's numbers, if it was made from them.
            pub const fn as_numbers(&self) -> Option<(u64, u64)> {
                match self.0 {
                    Opaque::Numbers(one, other) => Some((one, other)),
                    Opaque::Text(_) => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match &self.0 {
                    Opaque::Numbers(one, other) => write!(f, "{one}-{other}"),
                    Opaque::Text(text) => f.write_str(text),
                }
            }
        }
    };
}
opaque!(MessageId);
opaque!(Receipt);

/// A message as it is handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivery {
    /// Which message it is.
    pub id: MessageId,
    /// The right to settle it.
    pub receipt: Receipt,
    /// What it says.
    pub body: Bytes,
    /// What goes with it.
    pub headers: BTreeMap<String, String>,
    /// Its group key.
    pub group: Option<String>,
    /// How often it was handed out, this time included: 1 at first.
    pub deliveries: u32,
    /// Earlier deliveries that were abandoned, or that ended without being settled. Released ones are not counted.
    pub attempts: u32,
    /// Deliveries in a row that ended without being settled: the process died, or the lease was lost. An abandoned delivery
    /// resets the count; a released one leaves it as it was.
    pub expiries: u32,
    /// When it was accepted, by the wall clock: for people.
    pub sent_at: Timestamp,
    /// Why it was set aside, if it is a dead letter.
    pub reason: Option<String>,
}

impl Delivery {
    /// Creates a delivery without headers, group and reason, for backends: the fields are public.
    ///
    /// A backend that counts attempts sets [`attempts`](Self::attempts) and [`expiries`](Self::expiries); until then each earlier
    /// delivery is an attempt, and none expired.
    pub fn new(id: MessageId, receipt: Receipt, body: Bytes, deliveries: u32, sent_at: Timestamp) -> Self {
        Self {
            id,
            receipt,
            body,
            headers: BTreeMap::new(),
            group: None,
            deliveries,
            attempts: deliveries.saturating_sub(1),
            expiries: 0,
            sent_at,
            reason: None,
        }
    }
}

/// A message as it lies in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peeked {
    /// Which message it is.
    pub id: MessageId,
    /// What it says.
    pub body: Bytes,
    /// What goes with it.
    pub headers: BTreeMap<String, String>,
    /// Its group key.
    pub group: Option<String>,
    /// How often it was handed out so far.
    pub deliveries: u32,
    /// Deliveries that were abandoned, or that ended without being settled; the latter count from the next delivery on.
    pub attempts: u32,
    /// Deliveries in a row that ended without being settled, as in [`Delivery::expiries`].
    pub expiries: u32,
    /// When it was accepted, by the wall clock: for people.
    pub sent_at: Timestamp,
    /// Whether it is hidden now: handed out, or delayed.
    pub hidden: bool,
    /// Why it was set aside, if it is a dead letter.
    pub reason: Option<String>,
}

impl Peeked {
    /// A message without headers, group and reason: the fields are public. For backends.
    pub fn new(id: MessageId, body: Bytes, deliveries: u32, sent_at: Timestamp, hidden: bool) -> Self {
        Self {
            id,
            body,
            headers: BTreeMap::new(),
            group: None,
            deliveries,
            attempts: deliveries.saturating_sub(1),
            expiries: 0,
            sent_at,
            hidden,
            reason: None,
        }
    }
}

/// How many messages a queue holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Depth {
    /// Could be handed out now. (Messages that wait behind one of their group count here.)
    pub visible: u64,
    /// Were never handed out and are delayed.
    pub delayed: u64,
    /// Were handed out, and are hidden.
    pub in_flight: u64,
}

impl Depth {
    /// All of them.
    pub const fn total(&self) -> u64 {
        self.visible + self.delayed + self.in_flight
    }
}
