//! How much a call matters, when not all can be served.
use std::fmt;

use serde::{Deserialize, Serialize};

/// How much a call matters: under overload the lowest are shed first.
///
/// Ordered: `Low < Normal < High < Critical`. Give it to a call by [`with_priority`](crate::call::with_priority); what nobody has marked is
/// [`Normal`](Self::Normal).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Priority {
    /// Nobody waits for it: batch work, prefetching, what can be done later. Shed first.
    Low,
    /// Somebody may wait for it.
    #[default]
    Normal,
    /// Somebody waits for it, and notices when it is missing.
    High,
    /// What the service exists for: shed last, or never.
    Critical,
}

impl Priority {
    /// All of them, the lowest first.
    pub const ALL: [Self; 4] = [Self::Low, Self::Normal, Self::High, Self::Critical];

    /// The priority as a word: the same as in a configuration's document.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }

    /// Its place among all of them, from 0.
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
