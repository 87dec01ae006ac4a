//! The failures after which a retry around an attempt makes another.
use crate::outcome::{FailureKind, KindSet};

/// A set of failures that lead to another attempt: kinds of failure, and rejections by policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Repeats(u16);

/// A bit above those of all kinds.
const REFUSALS: u16 = 1 << 15;

impl Repeats {
    /// No failure: there is no retry, or it cannot repeat.
    pub(crate) const NOTHING: Self = Self(0);

    /// Creates a set of these kinds, with or without rejections.
    pub(crate) const fn new(kinds: KindSet, refusals: bool) -> Self {
        Self(kinds.to_bits() | if refusals { REFUSALS } else { 0 })
    }

    /// Returns the failures of this set that prove that nothing was sent.
    pub(crate) const fn unsent(self) -> Self {
        Self(self.0 & (KindSet::of(&[FailureKind::Connect]).to_bits() | REFUSALS))
    }

    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns `true` if this failure is in the set; `None` stands for a rejection.
    pub(crate) fn has(self, kind: Option<FailureKind>) -> bool {
        self.0 & kind.map_or(REFUSALS, |kind| KindSet::of(&[kind]).to_bits()) != 0
    }

    pub(crate) const fn is_nothing(self) -> bool {
        self.0 == 0
    }

    /// Returns `true` if every failure of `other` is in this set.
    pub(crate) const fn covers(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    pub(crate) const fn to_bits(self) -> u16 {
        self.0
    }

    pub(crate) const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }
}
