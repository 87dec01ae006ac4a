//! What is deferred, and what comes back for replay.
use std::{collections::BTreeMap, fmt, ops::Deref, sync::Arc};

use bytes::Bytes;

use crate::{
    queue::{Delivery, Message},
    time::Timestamp,
};

/// The header of an entry's idempotency key, in the queue. Send it to the other side by the same name.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Something to do later.
///
/// ```
/// use steadfast::journal::Entry;
///
/// let entry = Entry::new("order-42", "charge 10 euro").in_order_of("account-7");
/// assert_eq!((entry.key.as_str(), entry.order.as_deref()), ("order-42", Some("account-7")));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// What tells it from all others, and is the same however often it is tried: the other side does nothing twice for one key.
    pub key: String,
    /// What is to be done: any bytes.
    pub body: Bytes,
    /// What goes with it, by name.
    pub headers: BTreeMap<String, String>,
    /// Entries with the same are replayed one at a time, in the order in which they were deferred.
    pub order: Option<String>,
}

impl Entry {
    /// To do this, under this idempotency key.
    pub fn new(key: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self { key: key.into(), body: body.into(), headers: BTreeMap::new(), order: None }
    }

    /// Replays it after those that were deferred before it with the same order key. The queue has to have
    /// [`Groups`](crate::port::Capability::Groups).
    #[must_use]
    pub fn in_order_of(mut self, order: impl Into<String>) -> Self {
        self.order = Some(order.into());
        self
    }

    /// Adds a header, or replaces it.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// As the queue takes it.
    pub(super) fn into_message(self, deduplicates: bool) -> Message {
        let mut message = Message::new(self.body).header(IDEMPOTENCY_KEY, self.key.clone());
        for (name, value) in self.headers {
            if name != IDEMPOTENCY_KEY {
                message = message.header(name, value);
            }
        }
        message.group = self.order;
        if deduplicates { message.deduplicate(self.key) } else { message }
    }
}

/// An entry that is to be done now. Reads as its [`Entry`]; a clone is the same.
#[derive(Clone)]
pub struct Replay(Arc<Inner>);

struct Inner {
    entry: Entry,
    deferred_at: Timestamp,
    deliveries: u32,
}

impl Replay {
    /// `None` where it has no idempotency key: it is of somebody else.
    pub(super) fn of(delivery: Delivery) -> Option<Self> {
        let Delivery { body, mut headers, group: order, deliveries, sent_at: deferred_at, .. } = delivery;
        let key = headers.remove(IDEMPOTENCY_KEY)?;
        Some(Self(Arc::new(Inner { entry: Entry { key, body, headers, order }, deferred_at, deliveries })))
    }

    /// When it was deferred, by the wall clock: for people.
    pub fn deferred_at(&self) -> Timestamp {
        self.0.deferred_at
    }

    /// How often it was taken, this time included: 1 at first. Above 1 it may have been done before.
    pub fn deliveries(&self) -> u32 {
        self.0.deliveries
    }
}

impl Deref for Replay {
    type Target = Entry;
    fn deref(&self) -> &Entry {
        &self.0.entry
    }
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay").field("key", &self.key).field("deliveries", &self.deliveries()).finish_non_exhaustive()
    }
}
