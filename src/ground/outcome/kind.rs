//! The kinds of failure, and sets of them.
use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of a failure. There are few kinds; each asks for a different reaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[repr(u8)]
pub enum FailureKind {
    /// No answer came in time. It is unknown if the work was done.
    Timeout,
    /// The call never reached the other side, so nothing was done there.
    Connect,
    /// The other side asks this caller to slow down (HTTP 429).
    Throttled,
    /// The other side is overloaded by all of its callers (HTTP 503).
    Overloaded,
    /// The other side failed (HTTP 500).
    Server,
    /// The request itself is wrong (HTTP 400): the other side is healthy, and a retry would not
    /// help.
    Client,
    /// The caller cancelled the call.
    Cancelled,
    /// The operation panicked.
    Panic,
    /// Any other failure.
    Other,
}

impl FailureKind {
    const ALL: [Self; 9] = [
        Self::Timeout,
        Self::Connect,
        Self::Throttled,
        Self::Overloaded,
        Self::Server,
        Self::Client,
        Self::Cancelled,
        Self::Panic,
        Self::Other,
    ];

    pub(crate) const fn to_bits(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_bits(bits: u8) -> Option<Self> {
        Self::ALL.get(usize::from(bits)).copied()
    }

    /// Returns the kind as a word, as it is written in a configuration document.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Connect => "connect",
            Self::Throttled => "throttled",
            Self::Overloaded => "overloaded",
            Self::Server => "server",
            Self::Client => "client",
            Self::Cancelled => "cancelled",
            Self::Panic => "panic",
            Self::Other => "other",
        }
    }

    /// Returns the weight of such a failure under a breaker's rule of weighted failures, unless the
    /// classifier sets another.
    ///
    /// A refused connection is nearly proof that the other side is down. A time-out may be due to
    /// an impatient caller, so three time-outs weigh as much as one refused connection.
    pub const fn default_weight(self) -> u32 {
        match self {
            Self::Connect => 3,
            Self::Timeout | Self::Throttled | Self::Client | Self::Cancelled => 1,
            Self::Overloaded | Self::Server | Self::Panic | Self::Other => 2,
        }
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of [`FailureKind`]s in two bytes. In a document it is a list: `["timeout", "connect"]`.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<FailureKind>", into = "Vec<FailureKind>")]
pub struct KindSet(u16);

impl KindSet {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// The set of all kinds.
    pub const ALL: Self = Self((1 << FailureKind::ALL.len()) - 1);

    /// Creates a set of these kinds.
    pub const fn of(kinds: &[FailureKind]) -> Self {
        let (mut set, mut i) = (0, 0);
        while i < kinds.len() {
            set |= 1 << kinds[i] as u8;
            i += 1;
        }
        Self(set)
    }

    /// Returns this set without `kind`.
    #[must_use]
    pub const fn without(self, kind: FailureKind) -> Self {
        Self(self.0 & !(1 << kind as u8))
    }

    /// Returns `true` if `kind` is in the set.
    #[inline]
    pub const fn contains(self, kind: FailureKind) -> bool {
        self.0 & (1 << kind as u8) != 0
    }

    pub(crate) const fn to_bits(self) -> u16 {
        self.0
    }

    pub(crate) const fn from_bits(bits: u16) -> Self {
        Self(bits & Self::ALL.0)
    }

    /// Returns `true` if the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Iterates over the kinds in the set.
    pub fn iter(self) -> impl Iterator<Item = FailureKind> {
        FailureKind::ALL.into_iter().filter(move |k| self.contains(*k))
    }
}

impl From<Vec<FailureKind>> for KindSet {
    fn from(kinds: Vec<FailureKind>) -> Self {
        Self::of(&kinds)
    }
}

impl From<KindSet> for Vec<FailureKind> {
    fn from(set: KindSet) -> Self {
        set.iter().collect()
    }
}

impl fmt::Debug for KindSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
