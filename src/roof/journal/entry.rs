//! Entries of a journal, before and during replay.
use std::{collections::BTreeMap, ops::Deref, sync::Arc};

use bytes::Bytes;

use crate::{
    queue::{Delivery, Message},
    time::Timestamp,
};

/// Header with the idempotency key of an entry, in the queue. Send it to the service under the same
/// name.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// A deferred call.
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
    /// Idempotency key. It is the same for each attempt, so that the service performs the call
    /// once.
    pub key: String,
    /// Description of the call, as bytes.
    pub body: Bytes,
    /// Headers by name.
    pub headers: BTreeMap<String, String>,
    /// Order key. Entries with the same key are replayed one at a time, in the order in which they
    /// were deferred.
    pub order: Option<String>,
}

impl Entry {
    /// Returns an entry with this idempotency key and body.
    pub fn new(key: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self { key: key.into(), body: body.into(), headers: BTreeMap::new(), order: None }
    }

    /// Sets the order key: the entry is replayed after those deferred before it with the same key.
    /// The queue must have [`Groups`](crate::port::Capability::Groups).
    #[must_use]
    pub fn in_order_of(mut self, order: impl Into<String>) -> Self {
        self.order = Some(order.into());
        self
    }

    /// Adds or replaces a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Returns the message for the queue.
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

/// An entry during replay. Dereferences to its [`Entry`]; clones share it.
#[derive(Clone)]
pub struct Replay(Arc<Inner>);

struct Inner {
    entry: Entry,
    deferred_at: Timestamp,
    deliveries: u32,
}

impl Replay {
    /// Returns `None` if the message has no idempotency key and so is not from a journal.
    pub(super) fn of(delivery: Delivery) -> Option<Self> {
        let Delivery { body, mut headers, group: order, deliveries, sent_at: deferred_at, .. } = delivery;
        let key = headers.remove(IDEMPOTENCY_KEY)?;
        Some(Self(Arc::new(Inner { entry: Entry { key, body, headers, order }, deferred_at, deliveries })))
    }

    /// Returns the wall-clock time at which the entry was deferred, for people.
    pub fn deferred_at(&self) -> Timestamp {
        self.0.deferred_at
    }

    /// Returns the number of deliveries including this one. Above 1 the call may have been made
    /// before.
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

crate::build::debug_fields!(Replay, |this| key: this.key, deliveries: this.deliveries());
