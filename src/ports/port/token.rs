//! The number that tells an old leader from a new one.
use std::fmt;

use serde::{Deserialize, Serialize};

/// A number that grows with each acquisition of a lease; a resource that remembers the highest it has seen can refuse the late
/// write of a holder that was paused and does not know that it lost.
///
/// (Martin Kleppmann, "How to do distributed locking", 2016.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The token with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
