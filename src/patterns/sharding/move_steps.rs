//! Chunks, and the steps of their moves.
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    key::{KeyBytes, ShardKey},
    map::{ShardId, ShardMap},
    stored::Hex,
};
use crate::config::{ConfigError, require};

/// A chunk of a map, which moves as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
// Exhaustive: a mover must move every kind of chunk, so a new kind must not compile without it.
pub enum Chunk {
    /// The range `[low, high)` of the keys' bytes. In a hashed map: of the virtual shards' numbers,
    /// as four bytes in big-endian order.
    Range {
        /// The inclusive start.
        low: Vec<u8>,
        /// The exclusive end; `None` for no end.
        high: Option<Vec<u8>>,
    },
    /// One key, which is pinned at its target, for example a tenant that moves apart. If the target
    /// is the shard of its range or hash, its pin is removed.
    Key(Vec<u8>),
}

impl Chunk {
    /// Creates the chunk of the keys `[low, high)`.
    ///
    /// ```
    /// use steadfast::sharding::Chunk;
    ///
    /// let eu = Chunk::keys(&"eu", Some(&"ev"));
    /// # let _ = eu;
    /// ```
    pub fn keys<K: ShardKey + ?Sized>(low: &K, high: Option<&K>) -> Self {
        let bytes = |key: &K| KeyBytes::of(key).as_slice().to_vec();
        Self::Range { low: bytes(low), high: high.map(bytes) }
    }

    /// Creates the chunk of one key.
    pub fn key(key: &(impl ShardKey + ?Sized)) -> Self {
        Self::Key(KeyBytes::of(key).as_slice().to_vec())
    }

    pub(super) fn range(low: &[u8], high: Option<&[u8]>) -> Self {
        Self::Range { low: low.to_vec(), high: high.map(<[u8]>::to_vec) }
    }

    /// Creates the chunk of the virtual shards `[from, to)`. A map refuses a run that is empty, or
    /// that ends above its last virtual shard.
    pub fn slots(from: u32, to: u32) -> Self {
        let low = if from == 0 { Vec::new() } else { from.to_be_bytes().to_vec() };
        Self::Range { low, high: Some(to.to_be_bytes().to_vec()) }
    }
}

impl fmt::Display for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => write!(f, "key {}", Hex(key)),
            Self::Range { low, high: Some(high) } => write!(f, "range {} to {}", Hex(low), Hex(high)),
            Self::Range { low, high: None } => write!(f, "range {} to the end", Hex(low)),
        }
    }
}

/// The current step of a move. Each step is recorded in the store first, then installed at both
/// shards, then carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Step {
    /// The source owns the chunk and accepts writes; its rows are copied.
    Copying,
    /// The source owns the chunk and accepts no writes; the changes since are copied.
    Frozen,
    /// The source owns the chunk and accepts no requests, so that the next step may be recorded
    /// before it is installed.
    Closed,
    /// The target owns the chunk; the source's rows are deleted.
    Switched,
    /// The move is rolled back: the source owns the chunk and accepts writes; the target's rows are
    /// deleted.
    Undoing,
}

/// A move as recorded in the map. Send it with a mover's work, for [the
/// check](super::ShardGuard::enter_move) at the shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Move {
    /// The version of the map that began the move, which identifies it.
    pub id: u64,
    /// The chunk that moves.
    pub chunk: Chunk,
    /// The source.
    pub from: ShardId,
    /// The target.
    pub to: ShardId,
    /// The current step.
    pub step: Step,
}

/// A planned move, of which nothing was done yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PlannedMove {
    /// The chunk to move.
    pub chunk: Chunk,
    /// The source.
    pub from: ShardId,
    /// The target.
    pub to: ShardId,
    /// If set, the source accepts no writes from the start: one copy instead of two, for a chunk
    /// whose writers can wait.
    pub offline: bool,
}

impl PlannedMove {
    /// Creates a planned online move of this chunk.
    pub const fn new(chunk: Chunk, from: ShardId, to: ShardId) -> Self {
        Self { chunk, from, to, offline: false }
    }

    /// Makes the move offline.
    #[must_use]
    pub const fn offline(mut self) -> Self {
        self.offline = true;
        self
    }
}

impl ShardMap {
    /// Returns the map with this move begun.
    ///
    /// # Errors
    /// A move is in progress, the map has no such chunk, `from` does not own all of it, or `to` is
    /// `from`.
    pub fn begin(&self, planned: &PlannedMove) -> Result<Self, ConfigError> {
        require(self.moving.is_none(), "move", "must wait until the current move has ended")?;
        let PlannedMove { chunk, from, to, offline } = planned.clone();
        let chunk = self.checked(&chunk)?;
        require(self.owner_of(&chunk) == Some(from), "from", "must own the whole chunk")?;
        require(from != to, "to", "must be another shard")?;
        let mut next = self.clone();
        next.version += 1;
        let step = if offline { Step::Frozen } else { Step::Copying };
        next.moving = Some(Move { id: next.version, chunk, from, to, step });
        Ok(next)
    }

    /// Returns the map with the current move at its next step; `None` if there is no move.
    #[must_use]
    pub fn advanced(&self) -> Option<Self> {
        let mut next = self.clone();
        next.version += 1;
        let mut work = next.moving.take()?;
        work.step = match work.step {
            Step::Copying => Step::Frozen,
            Step::Frozen => Step::Closed,
            Step::Closed => {
                next.assign(&work.chunk, work.to);
                Step::Switched
            }
            Step::Switched | Step::Undoing => return Some(next),
        };
        next.moving = Some(work);
        Some(next)
    }

    /// Returns the map with the current move rolled back; `None` if there is no move, or if it has
    /// switched.
    #[must_use]
    pub fn rolled_back(&self) -> Option<Self> {
        let mut next = self.clone();
        let work = next.moving.as_mut().filter(|work| !matches!(work.step, Step::Switched | Step::Undoing))?;
        work.step = Step::Undoing;
        next.version += 1;
        Some(next)
    }
}
