//! The priority of a call.
use std::fmt;

use serde::{Deserialize, Serialize};

/// The priority of a call: under overload the lowest priorities are shed first.
///
/// Ordered: `Low < Normal < High < Critical`. [`with_priority`](crate::call::with_priority) gives
/// it to a call; a call without a mark is [`Normal`](Self::Normal).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
// Exhaustive: shares and shedding are set level by level, and four levels are what callers can tell apart.
pub enum Priority {
    /// Deferrable work, for example batch work or prefetching. Shed first.
    Low,
    /// A caller may be waiting for the result.
    #[default]
    Normal,
    /// A user is waiting for the result, and notices if it is missing.
    High,
    /// The core function of the service: shed last, or never.
    Critical,
}

impl Priority {
    /// All priorities, the lowest first.
    pub const ALL: [Self; 4] = [Self::Low, Self::Normal, Self::High, Self::Critical];

    /// Returns the priority as a word, as it is written in a configuration document.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }

    /// Returns the position in [`ALL`](Self::ALL), from 0.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
