//! Capabilities and size limits of backends.
use std::{fmt, time::Duration};

use super::{PortError, PortErrorKind};
use crate::config::ConfigError;

/// A feature that only some backends have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Capability {
    /// Accepted data survives the end of the process. The backend's page says whether it also
    /// survives a crash of the machine.
    Durable,
    /// Several processes see the same state.
    Shared,
    /// A write takes effect at one moment between its call and its return, and each later read sees
    /// it.
    Linearizable,
    /// [`Store::batch`](crate::store::Store::batch): several writes to one partition, all or none.
    AtomicBatch,
    /// The versions of a key grow, also across deletion, so that a version can serve as a fencing
    /// token.
    OrderedVersions,
    /// For a store: fenced writes ([`PutOptions::fence`](crate::store::PutOptions::fence)). For a
    /// lease: tokens that grow.
    Fencing,
    /// Appends to sequences ([`Write::Append`](crate::store::Write::Append)): dense numbers in the
    /// order in which the batches took effect. A backend with it also has
    /// [`AtomicBatch`](Self::AtomicBatch).
    OrderedAppend,
    /// Records that expire by the backend's own clock.
    TimeToLive,
    /// Messages with the same group key are delivered one at a time, in order.
    Groups,
    /// Messages without a group key are delivered in the order in which they were sent.
    Ordered,
    /// A second message with the same de-duplication id is not enqueued. Both messages have the
    /// same group key, or none.
    Deduplication,
    /// Messages that become visible after a delay.
    Delay,
    /// The backend notifies waiting receivers and subscribers at once; they do not poll.
    Push,
    /// Errors of failed attempts are kept with their message
    /// ([`Delivery::errors`](crate::queue::Delivery::errors)).
    ErrorHistory,
    /// [`Settle::Forward`](crate::queue::Settle::Forward): the end of a delivery and the sending of
    /// other messages are one step.
    Forward,
}

impl Capability {
    const ALL: [Self; 15] = [
        Self::Durable,
        Self::Shared,
        Self::Linearizable,
        Self::AtomicBatch,
        Self::OrderedVersions,
        Self::Fencing,
        Self::OrderedAppend,
        Self::TimeToLive,
        Self::Groups,
        Self::Ordered,
        Self::Deduplication,
        Self::Delay,
        Self::Push,
        Self::ErrorHistory,
        Self::Forward,
    ];

    /// Returns the capability's name, as error messages show it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Durable => "durable",
            Self::Shared => "shared",
            Self::Linearizable => "linearizable",
            Self::AtomicBatch => "atomic batch",
            Self::OrderedVersions => "ordered versions",
            Self::Fencing => "fencing",
            Self::OrderedAppend => "ordered append",
            Self::TimeToLive => "time to live",
            Self::Groups => "groups",
            Self::Ordered => "ordered",
            Self::Deduplication => "de-duplication",
            Self::Delay => "delay",
            Self::Push => "push",
            Self::ErrorHistory => "error history",
            Self::Forward => "forward",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The capabilities of one backend, and the largest sizes that it accepts.
///
/// ```
/// use steadfast::port::{Capabilities, Capability};
///
/// let can = Capabilities::of("memory", &[Capability::AtomicBatch]).largest_value(1 << 20);
/// assert!(can.require(Capability::AtomicBatch).is_ok());
/// let refused = can.require(Capability::Durable).unwrap_err();
/// assert_eq!(refused.to_string(), "the backend `memory` lacks the capability `durable`");
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    backend: &'static str,
    set: u32,
    value: usize,
    batch: usize,
    key: usize,
    window: Option<Duration>,
}

impl Capabilities {
    /// Creates the capabilities of the backend with this name, without limits on sizes.
    pub const fn of(backend: &'static str, capabilities: &[Capability]) -> Self {
        let (mut set, mut i) = (0, 0);
        while i < capabilities.len() {
            set |= 1 << capabilities[i] as u32;
            i += 1;
        }
        Self { backend, set, value: usize::MAX, batch: usize::MAX, key: usize::MAX, window: None }
    }

    /// Sets the maximum size of a value, a body or a notice, in bytes.
    #[must_use]
    pub const fn largest_value(mut self, bytes: usize) -> Self {
        self.value = bytes;
        self
    }

    /// Sets the maximum number of writes in a batch, messages in a request, and rows in a page.
    #[must_use]
    pub const fn largest_batch(mut self, n: usize) -> Self {
        self.batch = n;
        self
    }

    /// Sets the maximum size of a part of a key, a topic or a group key, in bytes.
    #[must_use]
    pub const fn largest_key(mut self, bytes: usize) -> Self {
        self.key = bytes;
        self
    }

    /// Sets the time for which a queue remembers a de-duplication id, at least. A queue with
    /// [`Deduplication`](Capability::Deduplication) states it.
    #[must_use]
    pub const fn deduplicating_for(mut self, window: Duration) -> Self {
        self.window = Some(window);
        self
    }

    /// Adds a capability, for a port that is built on another one.
    #[must_use]
    pub const fn with(mut self, capability: Capability) -> Self {
        self.set |= 1 << capability as u32;
        self
    }

    /// Removes a capability, for a wrapper that cannot keep it.
    #[must_use]
    pub const fn without(mut self, capability: Capability) -> Self {
        self.set &= !(1 << capability as u32);
        self
    }

    /// Keeps the capabilities that both have, the smaller sizes and the shorter de-duplication
    /// window, for a port that is built on several.
    #[must_use]
    pub const fn and(mut self, other: &Self) -> Self {
        const fn min(one: usize, other: usize) -> usize {
            if one < other { one } else { other }
        }
        self.set &= other.set;
        self.value = min(self.value, other.value);
        self.batch = min(self.batch, other.batch);
        self.key = min(self.key, other.key);
        self.window = match (self.window, other.window) {
            (Some(one), Some(other)) if one.as_nanos() <= other.as_nanos() => Some(one),
            (Some(_), Some(other)) => Some(other),
            _ => None,
        };
        self
    }

    /// Returns the backend's name, as error messages show it.
    pub const fn backend(&self) -> &'static str {
        self.backend
    }

    /// Returns `true` if the backend has this capability.
    pub const fn has(&self, capability: Capability) -> bool {
        self.set & (1 << capability as u32) != 0
    }

    /// Returns the maximum size of a value, a body or a notice, in bytes.
    pub const fn max_value(&self) -> usize {
        self.value
    }

    /// Returns the maximum number of writes in a batch, messages in a request, and rows in a page.
    pub const fn max_batch(&self) -> usize {
        self.batch
    }

    /// Returns the maximum size of a part of a key, a topic or a group key, in bytes.
    pub const fn max_key(&self) -> usize {
        self.key
    }

    /// Returns the time for which the queue remembers a de-duplication id, at least; `None` if it
    /// lacks [`Deduplication`](Capability::Deduplication).
    pub const fn deduplicates_for(&self) -> Option<Duration> {
        if self.has(Capability::Deduplication) { self.window } else { None }
    }

    /// Checks that the backend has a capability.
    ///
    /// # Errors
    /// [`Unsupported`], with the names of the backend and the capability.
    pub const fn require(&self, capability: Capability) -> Result<(), Unsupported> {
        if self.has(capability) { Ok(()) } else { Err(Unsupported { backend: self.backend, capability }) }
    }

    /// Rejects a part of a key, a topic, a group key or a name that is empty, or longer than
    /// [`max_key`](Self::max_key). For backends.
    ///
    /// ```
    /// use steadfast::port::{Capabilities, Capability};
    ///
    /// let can = Capabilities::of("memory", &[]).largest_key(8);
    /// assert!(can.check_key("topic", "prices").is_ok());
    /// let refused = can.check_key("topic", "all prices").unwrap_err();
    /// assert_eq!(refused.to_string(), "invalid `topic`: must be at most 8 bytes, is 10");
    /// ```
    ///
    /// # Errors
    /// `Invalid`, with the name of the field and the rule.
    pub fn check_key(&self, field: &str, key: &str) -> Result<(), PortError> {
        if key.is_empty() {
            return Err(PortError::invalid(field, "must not be empty"));
        }
        at_most(self.key, field, key.len())
    }

    /// Rejects a value, a body or a notice of more than [`max_value`](Self::max_value) bytes. For
    /// backends.
    ///
    /// # Errors
    /// `Invalid`, with the name of the field and the rule.
    pub fn check_value(&self, field: &str, value: &[u8]) -> Result<(), PortError> {
        at_most(self.value, field, value.len())
    }
}

fn at_most(most: usize, field: &str, bytes: usize) -> Result<(), PortError> {
    if bytes <= most {
        return Ok(());
    }
    Err(PortError::invalid(field, format_args!("must be at most {most} bytes, is {bytes}")))
}

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let can = Capability::ALL.into_iter().filter(|c| self.has(*c)).map(Capability::as_str);
        let can: Vec<_> = can.collect();
        let mut out = f.debug_struct("Capabilities");
        out.field("backend", &self.backend).field("can", &can).field("max_value", &self.value);
        out.field("max_batch", &self.batch).field("max_key", &self.key);
        out.field("deduplicates_for", &self.deduplicates_for()).finish()
    }
}

/// Error of a backend that lacks a required capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the backend `{backend}` lacks the capability `{capability}`")]
#[non_exhaustive]
pub struct Unsupported {
    /// The backend's name.
    pub backend: &'static str,
    /// The missing capability.
    pub capability: Capability,
}

impl Unsupported {
    /// Converts this into the rejection of the setting `field`.
    pub fn refuse(self, field: &'static str) -> ConfigError {
        ConfigError::new(field, format!("needs `{}`, which the backend `{}` lacks", self.capability, self.backend))
    }
}

impl From<Unsupported> for PortError {
    fn from(lacks: Unsupported) -> Self {
        Self::new(PortErrorKind::Unsupported, lacks.to_string())
    }
}
