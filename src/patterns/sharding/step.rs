//! What moves, and how far it is.
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    key::{KeyBytes, ShardKey},
    map::{ShardId, ShardMap},
    wire::Hex,
};
use crate::config::{ConfigError, require};

/// A part of a map that moves as one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// `[low, high)`: of the keys' bytes; in a hashed map, of the virtual shards' numbers as four bytes, the highest first.
    Range {
        /// The first.
        low: Vec<u8>,
        /// Behind the last; `None` for all that follow.
        high: Option<Vec<u8>>,
    },
    /// One key, which is pinned to where it goes: a tenant that moves apart; or which comes home, and is pinned no longer.
    Key(Vec<u8>),
}

impl Part {
    /// The keys `[low, high)`.
    ///
    /// ```
    /// use steadfast::sharding::Part;
    ///
    /// let eu = Part::keys(&"eu", Some(&"ev"));
    /// # let _ = eu;
    /// ```
    pub fn keys<K: ShardKey + ?Sized>(low: &K, high: Option<&K>) -> Self {
        let bytes = |key: &K| KeyBytes::of(key).as_slice().to_vec();
        Self::Range { low: bytes(low), high: high.map(bytes) }
    }

    /// One key.
    pub fn key(key: &(impl ShardKey + ?Sized)) -> Self {
        Self::Key(KeyBytes::of(key).as_slice().to_vec())
    }

    pub(super) fn range(low: &[u8], high: Option<&[u8]>) -> Self {
        Self::Range { low: low.to_vec(), high: high.map(<[u8]>::to_vec) }
    }

    /// The virtual shards `[from, to)`. A map refuses a run that is empty, or that ends above its
    /// last virtual shard.
    pub fn slots(from: u32, to: u32) -> Self {
        let low = if from == 0 { Vec::new() } else { from.to_be_bytes().to_vec() };
        Self::Range { low, high: Some(to.to_be_bytes().to_vec()) }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => write!(f, "key {}", Hex(key)),
            Self::Range { low, high: Some(high) } => write!(f, "range {} to {}", Hex(low), Hex(high)),
            Self::Range { low, high: None } => write!(f, "range {} to the end", Hex(low)),
        }
    }
}

/// How far a move is. Each step is recorded in the store before it is done, and told to both shards before anything is done for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The source owns the part and takes writes; its rows are copied.
    Copying,
    /// The source owns it and takes no writes; what changed since is copied.
    Frozen,
    /// The source owns it and gives no answers any more: the next step may be recorded before it is told.
    Closed,
    /// The target owns it; the source's rows are dropped.
    Switched,
    /// The move is given up, the source owns the part and takes writes; the target's rows are dropped.
    Undoing,
}

/// A move as it is recorded in the map. It can be sent along with a mover's work, for [the check](super::ShardGuard::enter_move) at the shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The version of the map that began it. No other move has it.
    pub id: u64,
    /// What moves.
    pub part: Part,
    /// From where.
    pub from: ShardId,
    /// To where.
    pub to: ShardId,
    /// How far it is.
    pub step: Step,
}

/// A move that is planned: nothing was done yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// What moves.
    pub part: Part,
    /// From where.
    pub from: ShardId,
    /// To where.
    pub to: ShardId,
    /// Whether the source takes no writes from the start: one copy instead of two, for a part whose writers can wait.
    pub offline: bool,
}

impl Planned {
    /// This part, from here to there, online.
    pub const fn new(part: Part, from: ShardId, to: ShardId) -> Self {
        Self { part, from, to, offline: false }
    }

    /// The same, offline.
    #[must_use]
    pub const fn offline(mut self) -> Self {
        self.offline = true;
        self
    }
}

impl ShardMap {
    /// The map as it is when this part is about to move.
    ///
    /// # Errors
    /// Where a move is under way, the map has no such part, or the part is not all `from`'s, or
    /// goes to where it is.
    pub fn begin(&self, planned: &Planned) -> Result<Self, ConfigError> {
        require(self.moving.is_none(), "move", "must wait until the one under way has ended")?;
        let Planned { part, from, to, offline } = planned.clone();
        let part = self.checked(&part)?;
        require(self.owner_of(&part) == Some(from), "from", "must own all of the part")?;
        require(from != to, "to", "must be another shard")?;
        let mut next = self.clone();
        next.version += 1;
        let step = if offline { Step::Frozen } else { Step::Copying };
        next.moving = Some(Move { id: next.version, part, from, to, step });
        Ok(next)
    }

    /// The map when the move under way is a step further; `None` where there is none.
    #[must_use]
    pub fn advanced(&self) -> Option<Self> {
        let mut next = self.clone();
        next.version += 1;
        let mut work = next.moving.take()?;
        work.step = match work.step {
            Step::Copying => Step::Frozen,
            Step::Frozen => Step::Closed,
            Step::Closed => {
                next.assign(&work.part, work.to);
                Step::Switched
            }
            Step::Switched | Step::Undoing => return Some(next),
        };
        next.moving = Some(work);
        Some(next)
    }

    /// The map when the move under way is given up; `None` where there is none, or it is too late: switched.
    #[must_use]
    pub fn given_up(&self) -> Option<Self> {
        let mut next = self.clone();
        let work = next.moving.as_mut().filter(|work| !matches!(work.step, Step::Switched | Step::Undoing))?;
        work.step = Step::Undoing;
        next.version += 1;
        Some(next)
    }
}
