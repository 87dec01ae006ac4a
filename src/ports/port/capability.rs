//! What a backend can do.
use std::fmt;

use super::{PortError, PortErrorKind};
use crate::config::ConfigError;

/// Something that not every backend can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Capability {
    /// What was accepted survives the end of the process, and of the machine as far as the backend's page says.
    Durable,
    /// Several processes see the same state.
    Shared,
    /// A write takes effect at one moment between its call and its return, and every later read sees it.
    Linearizable,
    /// [`Store::batch`](crate::store::Store::batch): several writes to one partition, all or none.
    AtomicBatch,
    /// The versions of a key grow, also across deletion: a version can serve as a fencing token.
    OrderedVersions,
    /// Of a store: fenced writes ([`PutOptions::fence`](crate::store::PutOptions::fence)). Of a lease: tokens that grow.
    Fencing,
    /// Records that end by the backend's own clock.
    TimeToLive,
    /// Messages of one group key are handed out one at a time, in order.
    Groups,
    /// Messages that have no group key are handed out in the order in which they were sent.
    Ordered,
    /// A message that was sent before with the same de-duplication id and the same group key, or none, is not
    /// accepted twice.
    Deduplication,
    /// Messages that become visible later.
    Delay,
    /// A waiting receiver or subscriber is told at once, and does not poll.
    Push,
}

impl Capability {
    const ALL: [Self; 12] = [
        Self::Durable,
        Self::Shared,
        Self::Linearizable,
        Self::AtomicBatch,
        Self::OrderedVersions,
        Self::Fencing,
        Self::TimeToLive,
        Self::Groups,
        Self::Ordered,
        Self::Deduplication,
        Self::Delay,
        Self::Push,
    ];

    /// Its name, as errors have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Durable => "durable",
            Self::Shared => "shared",
            Self::Linearizable => "linearizable",
            Self::AtomicBatch => "atomic batch",
            Self::OrderedVersions => "ordered versions",
            Self::Fencing => "fencing",
            Self::TimeToLive => "time to live",
            Self::Groups => "groups",
            Self::Ordered => "ordered",
            Self::Deduplication => "de-duplication",
            Self::Delay => "delay",
            Self::Push => "push",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What one backend can do, and how large what it takes may be.
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
}

impl Capabilities {
    /// The backend of this name can do these things; sizes are not limited yet.
    pub const fn of(backend: &'static str, capabilities: &[Capability]) -> Self {
        let (mut set, mut i) = (0, 0);
        while i < capabilities.len() {
            set |= 1 << capabilities[i] as u32;
            i += 1;
        }
        Self { backend, set, value: usize::MAX, batch: usize::MAX, key: usize::MAX }
    }

    /// Sets the most bytes that a value, a body or a notice may have.
    #[must_use]
    pub const fn largest_value(mut self, bytes: usize) -> Self {
        self.value = bytes;
        self
    }

    /// Sets the most writes of a batch, messages of one request, rows of a page.
    #[must_use]
    pub const fn largest_batch(mut self, n: usize) -> Self {
        self.batch = n;
        self
    }

    /// Sets the most bytes of a key's part, a topic, a group key.
    #[must_use]
    pub const fn largest_key(mut self, bytes: usize) -> Self {
        self.key = bytes;
        self
    }

    /// The same with one more: for a port that is built on another.
    #[must_use]
    pub const fn with(mut self, capability: Capability) -> Self {
        self.set |= 1 << capability as u32;
        self
    }

    /// The same without one: for a wrapper that takes something away.
    #[must_use]
    pub const fn without(mut self, capability: Capability) -> Self {
        self.set &= !(1 << capability as u32);
        self
    }

    /// What both can do, and the smaller sizes: for a port that is built on several.
    #[must_use]
    pub const fn and(mut self, other: &Self) -> Self {
        const fn min(one: usize, other: usize) -> usize {
            if one < other { one } else { other }
        }
        self.set &= other.set;
        self.value = min(self.value, other.value);
        self.batch = min(self.batch, other.batch);
        self.key = min(self.key, other.key);
        self
    }

    /// The backend's name, as errors have it.
    pub const fn backend(&self) -> &'static str {
        self.backend
    }

    /// Whether it can do this.
    pub const fn has(&self, capability: Capability) -> bool {
        self.set & (1 << capability as u32) != 0
    }

    /// The most bytes of a value, a body or a notice.
    pub const fn max_value(&self) -> usize {
        self.value
    }

    /// The most writes of a batch, messages of one request, rows of a page.
    pub const fn max_batch(&self) -> usize {
        self.batch
    }

    /// The most bytes of a key's part, a topic, a group key.
    pub const fn max_key(&self) -> usize {
        self.key
    }

    /// Refuses a backend that cannot do this.
    ///
    /// # Errors
    /// The backend and the capability, by name.
    pub const fn require(&self, capability: Capability) -> Result<(), Unsupported> {
        if self.has(capability) { Ok(()) } else { Err(Unsupported { backend: self.backend, capability }) }
    }
}

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let can = Capability::ALL.into_iter().filter(|c| self.has(*c)).map(Capability::as_str);
        let can: Vec<_> = can.collect();
        let mut out = f.debug_struct("Capabilities");
        out.field("backend", &self.backend).field("can", &can).field("max_value", &self.value);
        out.field("max_batch", &self.batch).field("max_key", &self.key).finish()
    }
}

/// A backend that cannot do what is asked of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the backend `{backend}` lacks the capability `{capability}`")]
#[non_exhaustive]
pub struct Unsupported {
    /// The backend's name.
    pub backend: &'static str,
    /// What it lacks.
    pub capability: Capability,
}

impl Unsupported {
    /// The same, as the refusal of the setting `field`.
    pub fn refuse(self, field: &'static str) -> ConfigError {
        ConfigError::new(field, format!("needs `{}`, which the backend `{}` lacks", self.capability, self.backend))
    }
}

impl From<Unsupported> for PortError {
    fn from(lacks: Unsupported) -> Self {
        Self::new(PortErrorKind::Unsupported, lacks.to_string())
    }
}

/// Refuses a part of a key, a topic, a name: empty, or longer than the backend can hold.
pub(crate) fn check_part(field: &str, part: &str, can: &Capabilities) -> Result<(), PortError> {
    match part.len() {
        0 => Err(PortError::invalid(field, "must not be empty")),
        n if n > can.max_key() => {
            Err(PortError::invalid(field, format_args!("must be at most {} bytes, is {n}", can.max_key())))
        }
        _ => Ok(()),
    }
}
