//! The number that distinguishes an old leader from a new one.
use std::fmt;

use serde::{Deserialize, Serialize};

/// A number that grows with each acquisition of a lease. A resource remembers the highest token
/// that it has seen. It can then refuse the late write of a holder that was paused and does not
/// know that it lost the lease.
///
/// Source: Martin Kleppmann, "How to do distributed locking", 2016.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Creates a token from its number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number of the token.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
