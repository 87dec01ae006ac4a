//! Messages and deliveries.
use std::{collections::BTreeMap, fmt, time::Duration};

use bytes::Bytes;

use super::ErrorHistory;
use crate::{
    port::{Capabilities, Capability, PortError},
    time::{Timestamp, nanos},
};

/// Header with the age, in nanoseconds, after which no caller waits for the message any more.
pub(crate) const EXPIRES_AFTER: &str = "expires-after";

/// A message to send.
///
/// ```
/// use std::time::Duration;
/// use steadfast::queue::Message;
///
/// let message = Message::new("charge 42")
///     .group("tenant-7")
///     .deduplicate("order-42")
///     .delay(Duration::from_secs(5));
/// assert_eq!(message.group.as_deref(), Some("tenant-7"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Message {
    /// The payload: any bytes.
    pub body: Bytes,
    /// Named text values that travel with the payload.
    pub headers: BTreeMap<String, String>,
    /// Group key. Messages with the same key are delivered one at a time, in order.
    pub group: Option<String>,
    /// De-duplication id. Within the queue's window a second message with the same id is not
    /// enqueued. Both have the same group key, or none.
    pub deduplication_id: Option<String>,
    /// Time for which the message is hidden after it was sent. It has no maximum.
    pub delay: Duration,
}

impl Message {
    /// Creates a message with this body.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..Self::default() }
    }

    /// Adds or replaces a header.
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

    /// Sets the time for which the message is hidden after it was sent.
    #[must_use]
    pub const fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// States after what time since its acceptance no caller waits for the message any more, in a
    /// header. No queue acts on it: handlers read [`Delivery::time_left`].
    #[must_use]
    pub fn expires_after(self, age: Duration) -> Self {
        self.header(EXPIRES_AFTER, nanos(age).to_string())
    }

    /// Subtracts a wait before the acceptance from the time for which a caller waits, if there is
    /// one.
    pub(crate) fn has_waited(&mut self, wait: Duration) {
        if let Some(age) = self.headers.get_mut(EXPIRES_AFTER)
            && let Ok(nanoseconds) = age.parse::<u64>()
        {
            *age = nanoseconds.saturating_sub(nanos(wait)).to_string();
        }
    }

    /// Returns the size as backends count it: the body, and the names and values of the headers.
    pub fn size(&self) -> usize {
        self.body.len() + self.headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
    }

    /// Rejects messages that violate a rule of all backends, or a limit of this one. For backends.
    ///
    /// # Errors
    /// `Invalid` or `Unsupported`, with the name of the field or the capability.
    pub fn check(messages: &[Self], can: &Capabilities) -> Result<(), PortError> {
        Self::check_each(messages.iter(), can)
    }

    /// Rejects messages of one request, as [`check`](Self::check) does.
    pub(super) fn check_each<'a>(
        messages: impl ExactSizeIterator<Item = &'a Self>,
        can: &Capabilities,
    ) -> Result<(), PortError> {
        if messages.len() > can.max_batch() {
            let rule = format_args!("must have at most {} entries, has {}", can.max_batch(), messages.len());
            return Err(PortError::invalid("messages", rule));
        }
        for message in messages {
            if message.size() > can.max_value() {
                let rule = format_args!(
                    "must be at most {} bytes including its headers, is {}",
                    can.max_value(),
                    message.size()
                );
                return Err(PortError::invalid("body", rule));
            }
            if let Some(group) = &message.group {
                can.require(Capability::Groups)?;
                can.check_key("group", group)?;
            }
            if let Some(id) = &message.deduplication_id {
                can.require(Capability::Deduplication)?;
                can.check_key("deduplication_id", id)?;
            }
            if !message.delay.is_zero() {
                can.require(Capability::Delay)?;
            }
        }
        Ok(())
    }
}

/// The id of a message, which is the same in each delivery and as a dead letter. No other message
/// of the queue or its dead letters ever has it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(Opaque);

/// The right to settle one delivery of a message, through any handle of its queue. It ends with the
/// message's next delivery.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Receipt(Opaque);

/// An identifier of a backend. Most are text; two numbers avoid building a text for each message.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Opaque {
    Numbers(u64, u64),
    Text(Box<str>),
}

macro_rules! opaque {
    ($name:ident) => {
        impl $name {
            /// Creates it from the backend's text. For backends.
            pub fn new(text: impl Into<Box<str>>) -> Self {
                Self(Opaque::Text(text.into()))
            }

            /// Creates it from the backend's numbers. For backends.
            pub const fn from_numbers(one: u64, other: u64) -> Self {
                Self(Opaque::Numbers(one, other))
            }

            /// Returns the backend's text, if it was created from one.
            pub fn as_text(&self) -> Option<&str> {
                match &self.0 {
                    Opaque::Text(text) => Some(text),
                    Opaque::Numbers(..) => None,
                }
            }

            /// Returns the backend's numbers, if it was created from them.
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

/// A received message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivery {
    /// The id of the message.
    pub id: MessageId,
    /// The right to settle this delivery.
    pub receipt: Receipt,
    /// The payload.
    pub body: Bytes,
    /// The headers.
    pub headers: BTreeMap<String, String>,
    /// The group key.
    pub group: Option<String>,
    /// Number of deliveries so far, this one included: 1 at first.
    pub deliveries: u32,
    /// Number of earlier deliveries that were abandoned, or that expired without being settled.
    /// Released ones are not counted. An abandoned delivery takes back expired ones of which
    /// nothing tells that they were tried.
    pub attempts: u32,
    /// Number of consecutive deliveries that expired without being settled: the process died, or
    /// the lease was lost. An abandoned delivery resets the count; a released one keeps it.
    pub expiries: u32,
    /// Number of these [`expiries`](Self::expiries) whose handling had
    /// [begun](super::Queue::mark_begun), as far as a receiver recorded it.
    pub crashes: u32,
    /// Wall-clock time at which the message was accepted, for people.
    pub sent_at: Timestamp,
    /// Time from the acceptance of the message to this delivery, by the queue's own clock. Setting
    /// the wall clock of a client does not change it. It includes the message's delay and all
    /// earlier deliveries, and continues when the message becomes a dead letter. A message that is
    /// sent again begins at zero. A listener adds the time for which the message waited there for
    /// its handler.
    pub age: Duration,
    /// Reason for which the message was dead-lettered, if it was.
    pub reason: Option<String>,
    /// Errors of the failed attempts, from a queue that keeps them
    /// ([`ErrorHistory`](crate::port::Capability::ErrorHistory)).
    pub errors: ErrorHistory,
}

impl Delivery {
    /// Creates a delivery of age zero without headers, group, reason and errors, for backends. The
    /// fields are public.
    ///
    /// The backend then sets [`attempts`](Self::attempts) and [`expiries`](Self::expiries). They
    /// begin as if each earlier delivery was abandoned.
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
            crashes: 0,
            sent_at,
            age: Duration::ZERO,
            reason: None,
            errors: ErrorHistory::default(),
        }
    }

    /// Returns the time for which a caller still waits, as of this delivery; zero if it has passed,
    /// and `None` if the message [states none](Message::expires_after).
    ///
    /// ```
    /// use std::time::Duration;
    /// use steadfast::queue::{InMemoryQueue, Message, QueueError, QueueExt};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), QueueError> {
    /// let queue = InMemoryQueue::new("quotes");
    /// queue.send_one(Message::new("42").expires_after(Duration::from_secs(60))).await?;
    /// let delivery = queue.receive_one(Duration::from_secs(30)).await?.expect("it was sent");
    /// assert!(delivery.time_left() > Some(Duration::from_secs(50)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn time_left(&self) -> Option<Duration> {
        let age = Duration::from_nanos(self.headers.get(EXPIRES_AFTER)?.parse().ok()?);
        Some(age.saturating_sub(self.age))
    }
}

/// A message in the queue, as a peek returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peeked {
    /// The id of the message.
    pub id: MessageId,
    /// The payload.
    pub body: Bytes,
    /// The headers.
    pub headers: BTreeMap<String, String>,
    /// The group key.
    pub group: Option<String>,
    /// Number of deliveries so far.
    pub deliveries: u32,
    /// Number of deliveries that were abandoned, or that expired without being settled. The latter
    /// are counted at the next delivery.
    pub attempts: u32,
    /// Number of consecutive deliveries that expired without being settled, as in
    /// [`Delivery::expiries`].
    pub expiries: u32,
    /// Number of expired deliveries whose handling had begun, as in [`Delivery::crashes`].
    pub crashes: u32,
    /// Wall-clock time at which the message was accepted, for people.
    pub sent_at: Timestamp,
    /// `true` if the message is hidden now: in flight, or delayed.
    pub hidden: bool,
    /// Reason for which the message was dead-lettered, if it was.
    pub reason: Option<String>,
    /// Errors of the failed attempts, from a queue that keeps them
    /// ([`ErrorHistory`](crate::port::Capability::ErrorHistory)).
    pub errors: ErrorHistory,
}

impl Peeked {
    /// Creates a message without headers, group, reason and errors, for backends. The fields
    /// are public.
    pub fn new(id: MessageId, body: Bytes, deliveries: u32, sent_at: Timestamp, hidden: bool) -> Self {
        Self {
            id,
            body,
            headers: BTreeMap::new(),
            group: None,
            deliveries,
            attempts: deliveries.saturating_sub(1),
            expiries: 0,
            crashes: 0,
            sent_at,
            hidden,
            reason: None,
            errors: ErrorHistory::default(),
        }
    }
}

/// Number of messages in a queue, by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Depth {
    /// Messages that could be received now. Messages behind another one of their group are counted
    /// here.
    pub visible: u64,
    /// Messages that are delayed and were never delivered.
    pub delayed: u64,
    /// Messages that were delivered, and are hidden.
    pub in_flight: u64,
}

impl Depth {
    /// Creates a depth from its counts, for backends.
    pub const fn new(visible: u64, delayed: u64, in_flight: u64) -> Self {
        Self { visible, delayed, in_flight }
    }

    /// Returns the number of all messages.
    pub const fn total(&self) -> u64 {
        self.visible + self.delayed + self.in_flight
    }
}
