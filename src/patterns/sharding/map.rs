//! The shard map: which shard owns a key. Pinned keys over ranges of keys, or over virtual shards.
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    key::{KeyBytes, ShardKey, hash_bytes, with_bytes},
    pins::{Pins, Wanted},
    ranges::Ranges,
    route::HashRouter,
    step::{Move, Part, Step},
};
use crate::config::{ConfigError, require};

/// A shard's number. It is never given to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ShardId(pub u32);

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard-{}", self.0)
    }
}

/// Where keys that are not pinned lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// By their own bytes.
    Keys,
    /// By their hash, in so many virtual shards.
    Slots(u32),
}

/// Which shard owns a key, at one version. Plain data: routers and shards hold copies of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardMap {
    pub(super) version: u64,
    pub(super) layout: Layout,
    pub(super) ranges: Ranges,
    /// The owner of each virtual shard, as the ranges have it.
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
    /// The most virtual shards that a map has.
    pub const MAX_SLOTS: u32 = 1 << 20;

    /// Only keys that are listed, by [`pin`](Self::pin); any other has no shard.
    pub fn lookup() -> Self {
        Self::build(1, Layout::Keys, Vec::new(), Pins::default(), None)
    }

    /// Ranges of keys, each half-open: from its start to the next one's. `None` declares a gap; below the first start is one, too.
    ///
    /// # Errors
    /// Where two starts are the same.
    pub fn ranges<K: ShardKey>(starts: &[(K, Option<ShardId>)]) -> Result<Self, ConfigError> {
        let mut ranges: Vec<_> = starts.iter().map(|(k, s)| (KeyBytes::of(k).as_slice().to_vec(), *s)).collect();
        ranges.sort_by(|a, b| a.0.cmp(&b.0));
        require(ranges.windows(2).all(|two| two[0].0 != two[1].0), "starts", "must differ")?;
        Ok(Self::build(1, Layout::Keys, ranges, Pins::default(), None))
    }

    /// So many virtual shards, dealt to the shards in equal runs. Take far more than there will ever be shards, 4,096 for a start: their
    /// number cannot change.
    ///
    /// # Errors
    /// Where there are no shards, one is listed twice, or the virtual shards are fewer than them or more than [`MAX_SLOTS`](Self::MAX_SLOTS).
    pub fn hashed(slots: u32, shards: &[ShardId]) -> Result<Self, ConfigError> {
        Self::dealt(slots, shards, |s| (u64::from(s) * shards.len() as u64 / u64::from(slots)) as usize)
    }

    /// So many virtual shards, each given to the shard that the router names for it; node 0 is the first of the shards. Keeps what the
    /// router promises of a change, with [`plan_to`](Self::plan_to), at the cost of one look into a table.
    ///
    /// ```
    /// use steadfast::sharding::{Rendezvous, ShardId, ShardMap};
    ///
    /// let shards = [0, 1, 2, 3].map(ShardId);
    /// let map = |n: usize| {
    ///     let names: Vec<String> = shards[..n].iter().map(ShardId::to_string).collect();
    ///     ShardMap::routed(4_096, &shards[..n], &Rendezvous::new(&names).unwrap()).unwrap()
    /// };
    /// // What a fourth shard takes from the others is its share; nothing else moves.
    /// let plan = map(3).plan_to(&map(4)).unwrap();
    /// assert!(plan.iter().all(|planned| planned.to == ShardId(3)));
    /// ```
    ///
    /// # Errors
    /// As [`hashed`](Self::hashed); where the router has another number of nodes than there are shards.
    pub fn routed(slots: u32, shards: &[ShardId], router: &impl HashRouter) -> Result<Self, ConfigError> {
        require(router.nodes() == shards.len(), "router", "must have as many nodes as there are shards")?;
        Self::dealt(slots, shards, |s| router.node(hash_bytes(&s.to_be_bytes())) as usize)
    }

    fn dealt(slots: u32, shards: &[ShardId], place: impl Fn(u32) -> usize) -> Result<Self, ConfigError> {
        let mut sorted = shards.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        require(!shards.is_empty() && sorted.len() == shards.len(), "shards", "must be at least one, none twice")?;
        let enough = slots as usize >= shards.len() && slots <= Self::MAX_SLOTS;
        require(enough, "slots", "must be from the number of shards to 2^20")?;
        Ok(Self::of_slots((0..slots).map(|s| shards.get(place(s)).copied()).collect(), Pins::default()))
    }

    /// Of the owners of virtual shards.
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

    /// Of a list of ranges that is sorted.
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

    /// Builds what look-ups of virtual shards read.
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

    /// Which change made it. Each change raises it by one.
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// The move under way, if there is one.
    pub const fn moving(&self) -> Option<&Move> {
        self.moving.as_ref()
    }

    /// Lists a key: it belongs to this shard, whatever the strategy below says.
    ///
    /// In a directory's [change](super::ShardDirectory::change) only a key without an owner is
    /// pinned to another shard. For a key that a shard owns, with rows or without, pin it in a copy
    /// of the map, and [plan](Self::plan_to) the move to that copy.
    ///
    /// # Errors
    /// Where it is listed already, or a move is under way; nothing is changed then.
    pub fn pin(&mut self, key: &(impl ShardKey + ?Sized), shard: ShardId) -> Result<(), ConfigError> {
        require(self.moving.is_none(), "key", "must not be listed while a move is under way")?;
        let key = KeyBytes::of(key);
        require(!self.pinned.contains_key(key.as_slice()), "key", "must not be listed already")?;
        self.pinned.insert(key.as_slice().into(), shard);
        Ok(())
    }

    /// The shard that owns a key, or `None` where it is neither listed nor in a range.
    #[inline]
    pub fn shard_of(&self, key: &(impl ShardKey + ?Sized)) -> Option<ShardId> {
        with_bytes(key, |bytes| self.shard_of_bytes(bytes))
    }

    /// The same, of a key's bytes.
    #[inline]
    pub fn shard_of_bytes(&self, key: &[u8]) -> Option<ShardId> {
        if !self.pinned.is_empty()
            && let Some(shard) = self.pinned.get(&Wanted::new(key))
        {
            return Some(*shard);
        }
        self.shard_below(key)
    }

    /// The shard of a key by the strategy below the pins.
    #[inline]
    pub(super) fn shard_below(&self, key: &[u8]) -> Option<ShardId> {
        match self.layout {
            Layout::Slots(slots) => self.table[slot(hash_bytes(key), slots) as usize],
            Layout::Keys => self.ranges.owner(key),
        }
    }

    /// Whether a key is of this part. A pinned key is of no range.
    pub fn part_has(&self, part: &Part, key: &[u8]) -> bool {
        match part {
            Part::Key(one) => one == key,
            Part::Range { .. } if self.pinned.contains_key(key) => false,
            Part::Range { low, high } => {
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

    /// The one owner of all of a part; `None` where there are several, or none, or where this map
    /// has no such part.
    pub fn owner_of(&self, part: &Part) -> Option<ShardId> {
        match self.checked(part).ok()? {
            Part::Key(key) => self.shard_of_bytes(&key),
            Part::Range { low, high } => self.ranges.owner_of(&low, high.as_deref()),
        }
    }

    /// Returns the part as this map writes it: a run up to the last virtual shard has no end.
    pub(super) fn checked(&self, part: &Part) -> Result<Part, ConfigError> {
        const ORDER: &str = "must begin before it ends";
        let Part::Range { low, high } = part else { return Ok(part.clone()) };
        let Layout::Slots(slots) = self.layout else {
            require(high.as_ref().is_none_or(|high| low < high), "part", ORDER)?;
            return Ok(part.clone());
        };
        let number = |bytes: &[u8]| match bytes {
            [] => Some(0),
            _ => bytes.try_into().ok().map(u32::from_be_bytes),
        };
        let Some((low, high)) = number(low).zip(high.as_deref().map_or(Some(slots), number)) else {
            return Err(ConfigError::new("part", "must be a run of virtual shards"));
        };
        require(high <= slots, "part", "must end with the last virtual shard at the latest")?;
        require(low < high, "part", ORDER)?;
        match Part::slots(low, high) {
            Part::Range { low, .. } if high == slots => Ok(Part::Range { low, high: None }),
            part => Ok(part),
        }
    }

    /// All shards that own something, in order: what is asked by a [`FanOut`](super::FanOut), watched, backed up.
    pub fn shards(&self) -> Vec<ShardId> {
        let mut all: Vec<_> =
            self.ranges.iter().filter_map(|range| range.2).chain(self.pinned.values().copied()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The parts that this map has, in order, and whose they are: ranges, or runs of virtual shards, then keys that are pinned.
    pub fn parts(&self) -> Vec<(Part, Option<ShardId>)> {
        let mut pinned: Vec<_> = self.pinned.iter().collect();
        pinned.sort_unstable();
        let ranges = self.ranges.iter().map(|(low, high, owner)| (Part::range(low, high), owner));
        ranges
            .chain(pinned.into_iter().map(|(key, shard)| (Part::Key(key.as_slice().to_vec()), Some(*shard))))
            .collect()
    }

    /// The owner of each virtual shard; empty where the map is not hashed.
    pub fn slots(&self) -> &[Option<ShardId>] {
        &self.table
    }

    /// Gives a part to a shard. A key that comes to where it would be anyway is listed no longer.
    pub(super) fn assign(&mut self, part: &Part, to: ShardId) {
        match part {
            Part::Key(key) if self.shard_below(key) == Some(to) => {
                self.pinned.remove(key.as_slice());
            }
            Part::Key(key) => {
                self.pinned.insert(key.as_slice().into(), to);
            }
            Part::Range { low, high } => {
                self.ranges.assign(low, high.as_deref(), to);
                self.index();
            }
        }
    }

    /// Splits the range that this key is in, there: both halves stay where they are, and can be moved apart.
    ///
    /// # Errors
    /// Where the map is hashed (any run of virtual shards can be moved as it is), or a range starts there already.
    pub fn split(&mut self, at: &(impl ShardKey + ?Sized)) -> Result<(), ConfigError> {
        require(self.layout == Layout::Keys, "at", "must be in a map of ranges")?;
        require(self.ranges.split(KeyBytes::of(at).as_slice()), "at", "must not be a range's start already")
    }

    /// Merges the range that starts there with the one before.
    ///
    /// # Errors
    /// Where none starts there, or the two have different owners: move one first.
    pub fn merge(&mut self, at: &(impl ShardKey + ?Sized)) -> Result<(), ConfigError> {
        let merged = self.ranges.merge(KeyBytes::of(at).as_slice());
        require(merged.is_some(), "at", "must be a range's start")?;
        require(merged == Some(true), "at", "must have the same owner on both sides")
    }

    /// The step of the move that holds this key up, if one does.
    pub(super) fn held_up(&self, key: &[u8]) -> Option<Step> {
        let work = self.moving.as_ref().filter(|work| matches!(work.step, Step::Frozen | Step::Closed))?;
        self.part_has(&work.part, key).then_some(work.step)
    }
}
