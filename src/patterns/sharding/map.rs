//! The shard map from keys to shards: pinned keys over ranges of keys, or over virtual shards.
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    hash_routers::HashRouter,
    key::{KeyBytes, ShardKey, hash_bytes, with_bytes},
    move_steps::{Chunk, Move, Step},
    pins::Pins,
    ranges::Ranges,
};
use crate::config::{ConfigError, require};

/// The number of a shard. It is never reused for another shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ShardId(pub u32);

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard-{}", self.0)
    }
}

/// The position of keys that are not pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// Keys are placed by their own bytes.
    Keys,
    /// Keys are placed by their hash, in this number of virtual shards.
    Slots(u32),
}

/// One version of the mapping from keys to shards. It is plain data: routers and shards hold
/// copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardMap {
    pub(super) version: u64,
    pub(super) layout: Layout,
    pub(super) ranges: Ranges,
    /// Owner of each virtual shard, derived from the ranges.
    table: Vec<Option<ShardId>>,
    pub(super) pinned: Pins,
    pub(super) moving: Option<Move>,
}

#[allow(clippy::cast_possible_truncation, reason = "the high half of a product is below the number of slots")]
#[inline]
fn slot(hash: u64, slots: u32) -> u32 {
    ((u128::from(hash) * u128::from(slots)) >> 64) as u32
}

impl ShardMap {
    /// Maximum number of virtual shards of a map.
    pub const MAX_SLOTS: u32 = 1 << 20;

    /// Maximum version of a map that is read. It leaves room for more changes than are ever made.
    pub(super) const MAX_VERSION: u64 = u64::MAX >> 1;

    /// Creates a map of listed keys only, added with [`pin`](Self::pin); other keys have no shard.
    pub fn lookup() -> Self {
        Self::build(1, Layout::Keys, Vec::new(), Pins::default(), None)
    }

    /// Creates a map of half-open ranges of keys, each from its start to the next one's. `None`
    /// declares a gap; the keys below the first start are one, too.
    ///
    /// # Errors
    /// Two starts are equal.
    pub fn ranges<K: ShardKey>(starts: &[(K, Option<ShardId>)]) -> Result<Self, ConfigError> {
        let mut ranges: Vec<_> = starts.iter().map(|(k, s)| (KeyBytes::of(k).as_slice().to_vec(), *s)).collect();
        ranges.sort_by(|a, b| a.0.cmp(&b.0));
        require(ranges.windows(2).all(|two| two[0].0 != two[1].0), "starts", "must differ")?;
        Ok(Self::build(1, Layout::Keys, ranges, Pins::default(), None))
    }

    /// Creates a map of virtual shards, assigned to the shards in equal runs. Take far more virtual
    /// shards than there will ever be shards, 4,096 for a start: the number cannot change.
    ///
    /// # Errors
    /// There are no shards, one is listed twice, or the number of virtual shards is below that of
    /// the shards or above [`MAX_SLOTS`](Self::MAX_SLOTS).
    pub fn hashed(slots: u32, shards: &[ShardId]) -> Result<Self, ConfigError> {
        Self::dealt(slots, shards, |s| (u64::from(s) * shards.len() as u64 / u64::from(slots)) as usize)
    }

    /// Creates a map of virtual shards, each assigned by the router; node 0 is the first shard.
    /// With [`plan_to`](Self::plan_to) a change moves no more than the router promises, at the cost
    /// of one table look-up.
    ///
    /// ```
    /// use steadfast::sharding::{Rendezvous, ShardId, ShardMap};
    ///
    /// let shards = [0, 1, 2, 3].map(ShardId);
    /// let map = |n: usize| {
    ///     let names: Vec<String> = shards[..n].iter().map(ShardId::to_string).collect();
    ///     ShardMap::routed(4_096, &shards[..n], &Rendezvous::new(&names).unwrap()).unwrap()
    /// };
    /// // A fourth shard takes its share from the others; nothing else moves.
    /// let plan = map(3).plan_to(&map(4)).unwrap();
    /// assert!(plan.iter().all(|planned| planned.to == ShardId(3)));
    /// ```
    ///
    /// # Errors
    /// Same as [`hashed`](Self::hashed), and if the router's number of nodes is not that of the
    /// shards.
    pub fn routed(slots: u32, shards: &[ShardId], router: &impl HashRouter) -> Result<Self, ConfigError> {
        require(router.nodes() == shards.len(), "router", "must have as many nodes as there are shards")?;
        Self::dealt(slots, shards, |s| router.node(hash_bytes(&s.to_be_bytes())) as usize)
    }

    fn dealt(slots: u32, shards: &[ShardId], place: impl Fn(u32) -> usize) -> Result<Self, ConfigError> {
        let mut sorted = shards.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        require(
            !shards.is_empty() && sorted.len() == shards.len(),
            "shards",
            "must not be empty, nor list a shard twice",
        )?;
        let enough = slots as usize >= shards.len() && slots <= Self::MAX_SLOTS;
        require(enough, "slots", "must be from the number of shards to 2^20")?;
        Ok(Self::of_slots((0..slots).map(|s| shards.get(place(s)).copied()).collect(), Pins::default()))
    }

    /// Creates a map from the owners of its virtual shards.
    pub(super) fn of_slots(owners: Vec<Option<ShardId>>, pinned: Pins) -> Self {
        let layout = Layout::Slots(u32::try_from(owners.len()).unwrap_or(Self::MAX_SLOTS));
        let low = |s: u32| if s == 0 { Vec::new() } else { s.to_be_bytes().to_vec() };
        let mut runs: Vec<(Vec<u8>, Option<ShardId>)> = Vec::new();
        for (s, owner) in (0..).zip(owners) {
            if runs.last().is_none_or(|run| run.1 != owner) {
                runs.push((low(s), owner));
            }
        }
        Self::build(1, layout, runs, pinned, None)
    }

    /// Creates a map from a sorted list of ranges.
    pub(super) fn build(
        version: u64,
        layout: Layout,
        ranges: Vec<(Vec<u8>, Option<ShardId>)>,
        pinned: Pins,
        moving: Option<Move>,
    ) -> Self {
        let mut map = Self { version, layout, ranges: Ranges::of(ranges), table: Vec::new(), pinned, moving };
        map.index();
        map
    }

    /// Builds the table for look-ups of virtual shards.
    fn index(&mut self) {
        let Layout::Slots(slots) = self.layout else { return };
        self.ranges.cut_to(slots);
        self.ranges.join();
        let at = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_be_bytes).min(slots) as usize;
        let mut table = vec![None; slots as usize];
        for (low, high, owner) in self.ranges.iter() {
            if let Some(run) = table.get_mut(at(low)..high.map_or(slots as usize, at)) {
                run.fill(owner);
            }
        }
        self.table = table;
    }

    /// Returns the version of the map. Each change raises it by one.
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Returns the current move, if there is one.
    pub const fn moving(&self) -> Option<&Move> {
        self.moving.as_ref()
    }

    /// Assigns a key to this shard, whatever the strategy below the pins says.
    ///
    /// A directory's [change](super::ShardDirectory::change) may pin only a key without an owner to
    /// another shard. If a shard owns the key, with rows or without, pin it in a copy of the map,
    /// and [plan](Self::plan_to) the move to that copy.
    ///
    /// # Errors
    /// The key is pinned already, or a move is in progress. Nothing is changed then.
    pub fn pin(&mut self, key: &(impl ShardKey + ?Sized), shard: ShardId) -> Result<(), ConfigError> {
        require(self.moving.is_none(), "key", "must not be pinned during a move")?;
        let key = KeyBytes::of(key);
        require(!self.pinned.contains(key.as_slice()), "key", "must not be pinned already")?;
        self.pinned.insert(key.as_slice(), shard);
        Ok(())
    }

    /// Returns the shard that owns a key, or `None` if the key is neither pinned nor in a range.
    #[inline]
    pub fn shard_of(&self, key: &(impl ShardKey + ?Sized)) -> Option<ShardId> {
        with_bytes(key, |bytes| self.shard_of_bytes(bytes))
    }

    /// Returns the shard that owns the key with these bytes.
    // Into the caller, which knows the length of a number: then the hash has no branches.
    #[inline(always)]
    pub fn shard_of_bytes(&self, key: &[u8]) -> Option<ShardId> {
        if self.pinned.has_none_like(key) { self.shard_below(key) } else { self.pinned_or_below(key) }
    }

    // Out of line, since a look-up without pins would make room on the stack for this.
    #[inline(never)]
    fn pinned_or_below(&self, key: &[u8]) -> Option<ShardId> {
        self.pinned.find(key).or_else(|| self.shard_below(key))
    }

    /// Returns the shard of a key by the strategy below the pins.
    #[inline]
    pub(super) fn shard_below(&self, key: &[u8]) -> Option<ShardId> {
        match self.layout {
            Layout::Slots(slots) => self.table[slot(hash_bytes(key), slots) as usize],
            Layout::Keys => self.ranges.owner(key),
        }
    }

    /// Returns `true` if the chunk contains this key. A pinned key belongs to no range.
    pub fn chunk_contains(&self, chunk: &Chunk, key: &[u8]) -> bool {
        match chunk {
            Chunk::Key(one) => one == key,
            Chunk::Range { .. } if self.pinned.contains(key) => false,
            Chunk::Range { low, high } => {
                let slot_bytes;
                let position = match self.layout {
                    Layout::Keys => key,
                    Layout::Slots(slots) => {
                        slot_bytes = slot(hash_bytes(key), slots).to_be_bytes();
                        &slot_bytes
                    }
                };
                position >= low.as_slice() && high.as_ref().is_none_or(|high| position < high.as_slice())
            }
        }
    }

    /// Returns the owner of the whole chunk. `None` if it has several owners or none, or if this
    /// map has no such chunk.
    pub fn owner_of(&self, chunk: &Chunk) -> Option<ShardId> {
        match self.checked(chunk).ok()? {
            Chunk::Key(key) => self.shard_of_bytes(&key),
            Chunk::Range { low, high } => self.ranges.owner_of(&low, high.as_deref()),
        }
    }

    /// Returns the chunk in the form of this map, in which a run up to the last virtual shard has
    /// no end.
    pub(super) fn checked(&self, chunk: &Chunk) -> Result<Chunk, ConfigError> {
        const ORDER: &str = "must begin before it ends";
        let Chunk::Range { low, high } = chunk else { return Ok(chunk.clone()) };
        let Layout::Slots(slots) = self.layout else {
            require(high.as_ref().is_none_or(|high| low < high), "chunk", ORDER)?;
            return Ok(chunk.clone());
        };
        let number = |bytes: &[u8]| match bytes {
            [] => Some(0),
            _ => bytes.try_into().ok().map(u32::from_be_bytes),
        };
        let Some((low, high)) = number(low).zip(high.as_deref().map_or(Some(slots), number)) else {
            return Err(ConfigError::new("chunk", "must be a range of virtual shards"));
        };
        require(high <= slots, "chunk", "must not end above the last virtual shard")?;
        require(low < high, "chunk", ORDER)?;
        match Chunk::slots(low, high) {
            Chunk::Range { low, .. } if high == slots => Ok(Chunk::Range { low, high: None }),
            chunk => Ok(chunk),
        }
    }

    /// Returns all shards that own a chunk, in order: for a [`FanOut`](super::FanOut), monitoring
    /// or backups.
    pub fn shards(&self) -> Vec<ShardId> {
        let mut all: Vec<_> =
            self.ranges.iter().filter_map(|range| range.2).chain(self.pinned.iter().map(|(_, shard)| shard)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns the chunks of this map with their owners: first the ranges of keys or virtual shards
    /// in order, then the pinned keys.
    pub fn chunks(&self) -> Vec<(Chunk, Option<ShardId>)> {
        let mut pinned: Vec<_> = self.pinned.iter().collect();
        pinned.sort_unstable();
        let ranges = self.ranges.iter().map(|(low, high, owner)| (Chunk::range(low, high), owner));
        ranges.chain(pinned.into_iter().map(|(key, shard)| (Chunk::Key(key.to_vec()), Some(shard)))).collect()
    }

    /// Returns the owner of each virtual shard; empty if the map is not hashed.
    pub fn slots(&self) -> &[Option<ShardId>] {
        &self.table
    }

    /// Assigns a chunk to a shard. A pin that has become redundant is removed.
    pub(super) fn assign(&mut self, chunk: &Chunk, to: ShardId) {
        match chunk {
            Chunk::Key(key) if self.shard_below(key) == Some(to) => {
                self.pinned.remove(key);
            }
            Chunk::Key(key) => {
                self.pinned.insert(key, to);
            }
            Chunk::Range { low, high } => {
                self.ranges.assign(low, high.as_deref(), to);
                self.index();
            }
        }
    }

    /// Splits the range that contains this key, at this key. Both halves keep their owner, and can
    /// be moved separately.
    ///
    /// # Errors
    /// The map is hashed (any run of virtual shards can be moved as it is), or a range starts at
    /// this key.
    pub fn split(&mut self, at: &(impl ShardKey + ?Sized)) -> Result<(), ConfigError> {
        require(self.layout == Layout::Keys, "at", "must be in a map of ranges")?;
        require(self.ranges.split(KeyBytes::of(at).as_slice()), "at", "must not be a range's start already")
    }

    /// Merges the range that starts at this key with the previous one.
    ///
    /// # Errors
    /// No range starts at this key, or the two have different owners: move one first.
    pub fn merge(&mut self, at: &(impl ShardKey + ?Sized)) -> Result<(), ConfigError> {
        let merged = self.ranges.merge(KeyBytes::of(at).as_slice());
        require(merged.is_some(), "at", "must be a range's start")?;
        require(merged == Some(true), "at", "must have the same owner on both sides")
    }

    /// Returns the step of the current move if it blocks this key.
    pub(super) fn blocking_step(&self, key: &[u8]) -> Option<Step> {
        let work = self.moving.as_ref().filter(|work| matches!(work.step, Step::Frozen | Step::Closed))?;
        self.chunk_contains(&work.chunk, key).then_some(work.step)
    }
}
