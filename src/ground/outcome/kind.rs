//! The kinds of failure, and sets of them.
use std::fmt;

use serde::{Deserialize, Serialize};

/// What sort of failure it was: few kinds, chosen so that each asks for another reaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[repr(u8)]
pub enum FailureKind {
    /// No answer in time. Whether the work was done is unknown.
    Timeout,
    /// The call never reached the other side: nothing was done there.
    Connect,
    /// The other side asks this caller to slow down (HTTP 429).
    Throttled,
    /// The other side is busy with everybody's calls (HTTP 503).
    Overloaded,
    /// The other side failed (HTTP 500).
    Server,
    /// The request itself is at fault (HTTP 400): the other side is healthy, and trying again would not help.
    Client,
    /// The call was given up by its caller.
    Cancelled,
    /// The operation panicked.
    Panic,
    /// None of these.
    Other,
}

impl FailureKind {
    pub(crate) const ALL: [Self; 9] = [
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

    /// The kind as a word: the same as in a configuration's document.
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

    /// How much such a failure counts for under a breaker's rule of weighted failures, unless the classifier says
    /// otherwise. A connection refused is near proof that the other side is down; a time-out may be this caller's
    /// impatience: it takes three of them to weigh as much.
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

/// A set of [`FailureKind`]s, in two bytes; in a document a list: `["timeout", "connect"]`.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<FailureKind>", into = "Vec<FailureKind>")]
pub struct KindSet(u16);

impl KindSet {
    /// No kind.
    pub const NONE: Self = Self(0);

    /// Every kind.
    pub const ALL: Self = Self((1 << FailureKind::ALL.len()) - 1);

    /// The set of these kinds.
    pub const fn of(kinds: &[FailureKind]) -> Self {
        let (mut set, mut i) = (0, 0);
        while i < kinds.len() {
            set |= 1 << kinds[i] as u8;
            i += 1;
        }
        Self(set)
    }

    /// This set without `kind`.
    #[must_use]
    pub const fn without(self, kind: FailureKind) -> Self {
        Self(self.0 & !(1 << kind as u8))
    }

    /// Whether `kind` is in it.
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

    /// Whether it has no kind at all.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Its kinds.
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
