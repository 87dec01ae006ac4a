//! Plans of moves.
use super::{
    ShardingError,
    map::{Layout, ShardId, ShardMap},
    move_steps::{Chunk, PlannedMove, Step},
};
use crate::config::{ConfigError, require};

impl ShardMap {
    /// Returns the fewest moves of virtual shards after which these shards own all of them, in
    /// numbers that differ by at most one. A shard that is not listed is emptied; its pinned keys
    /// return to the shard of their hash. A new shard receives its share. A plan that is made again
    /// halfway lists the remaining moves.
    ///
    /// # Errors
    /// The map is not hashed, there are no shards, one is listed twice, or there are more shards
    /// than virtual shards.
    pub fn plan(&self, shards: &[ShardId]) -> Result<Vec<PlannedMove>, ConfigError> {
        let Layout::Slots(count) = self.layout else {
            return Err(ConfigError::new("map", "must be hashed: plan a map of ranges by `plan_to`"));
        };
        let mut wanted = shards.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        require(
            !wanted.is_empty() && wanted.len() == shards.len(),
            "shards",
            "must not be empty, nor list a shard twice",
        )?;
        require(wanted.len() <= count as usize, "shards", "must be at most as many as virtual shards")?;

        let mut slots = self.slots().to_vec();
        deal(&mut slots, &wanted);
        let mut pinned = self.pinned.clone();
        pinned.retain(|shard| wanted.binary_search(&shard).is_ok());
        self.plan_to(&Self::of_slots(slots, pinned))
    }

    /// Returns the moves after which this map equals `wanted`: first ranges, then keys.
    ///
    /// # Errors
    /// One map has ranges and the other virtual shards, or another number of them. Or one has a gap
    /// that the other does not have, also for a pinned key: a gap has no rows to move.
    pub fn plan_to(&self, wanted: &Self) -> Result<Vec<PlannedMove>, ConfigError> {
        require(self.layout == wanted.layout, "map", "must have the same strategy and number of virtual shards")?;
        let mut plan: Vec<PlannedMove> = Vec::new();
        for (low, high, owner) in self.cut_by(wanted) {
            let (from, to) = match (owner, wanted.ranges.owner(low)) {
                (None, None) => continue,
                (Some(from), Some(to)) if from == to => continue,
                (Some(from), Some(to)) => (from, to),
                _ => return Err(ConfigError::new("map", "must have the same gaps")),
            };
            match plan.last_mut() {
                // The run continues.
                Some(PlannedMove { chunk: Chunk::Range { high: end, .. }, from: f, to: t, .. })
                    if end.as_deref() == Some(low) && *f == from && *t == to =>
                {
                    *end = high.map(<[u8]>::to_vec);
                }
                _ => plan.push(PlannedMove::new(Chunk::range(low, high), from, to)),
            }
        }
        let mut keys: Vec<&[u8]> = self.pinned.iter().chain(wanted.pinned.iter()).map(|(key, _)| key).collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            // A key that is pinned only in `wanted` has moved with its range by then.
            let from = self.pinned.get(key).or_else(|| wanted.shard_below(key));
            let to = wanted.shard_of_bytes(key);
            match (from, to) {
                (Some(from), Some(to)) if from != to => plan.push(PlannedMove::new(Chunk::Key(key.to_vec()), from, to)),
                (Some(_), Some(_)) | (None, None) => {}
                _ => return Err(ConfigError::new("map", "must have the same gaps")),
            }
        }
        Ok(plan)
    }

    /// Returns this map's ranges, cut at the starts of the other's ranges.
    fn cut_by<'a>(&'a self, other: &'a Self) -> Vec<Cut<'a>> {
        let mut starts: Vec<&[u8]> = self.ranges.iter().chain(other.ranges.iter()).map(|range| range.0).collect();
        starts.sort_unstable();
        starts.dedup();
        let highs = starts[1..].iter().copied().map(Some).chain([None]);
        starts.iter().zip(highs).map(|(low, high)| (*low, high, self.ranges.owner(low))).collect()
    }
}

impl ShardMap {
    /// Checks that a change may turn this map into `next` without a move. Each key keeps the shard
    /// that owns it, because guards learn of moves only, and the current move stays unchanged.
    pub(super) fn check_change(&self, next: &Self) -> Result<(), ShardingError> {
        require(self.layout == next.layout, "map", "must keep its strategy, and its number of virtual shards")?;
        if self.moving != next.moving {
            let begun = next.moving.as_ref().and_then(|work| {
                let planned = PlannedMove::new(work.chunk.clone(), work.from, work.to);
                self.begin(&if work.step == Step::Frozen { planned.offline() } else { planned }).ok()?.moving
            });
            let may = begun.is_some() && begun == next.moving;
            require(may, "move", "must be changed by `rebalance`, `resume` or `roll_back`")?;
        }
        // A pinned key belongs to no range: its rows would be left behind, or copied in vain.
        let pins = self.moving.is_none() || self.pinned == next.pinned;
        require(pins, "move", "must end before a key is pinned")?;
        match self.owner_change(next) {
            Some((chunk, from, to)) => Err(ShardingError::NeedsMove { chunk, from, to }),
            None => Ok(()),
        }
    }

    /// Returns a chunk that a shard owns here, and that has another owner, or none, in `next`. A
    /// chunk without an owner may get one, because no shard has accepted a write for it.
    fn owner_change(&self, next: &Self) -> Option<(Chunk, ShardId, Option<ShardId>)> {
        if self.pinned != next.pinned || self.ranges != next.ranges {
            for (low, high, owner) in self.cut_by(next) {
                let to = next.ranges.owner(low);
                // Between a key and the same key followed by zero bytes, only such keys exist.
                let zeros = high.filter(|high| high.strip_prefix(low).is_some_and(|rest| rest.iter().all(|b| *b == 0)));
                let pinned = |key| self.pinned.contains(key) || next.pinned.contains(key);
                let all_pinned = zeros.is_some_and(|high| (low.len()..high.len()).all(|n| pinned(&high[..n])));
                if let Some(from) = owner.filter(|_| owner != to && !all_pinned) {
                    return Some((Chunk::range(low, high), from, to));
                }
            }
            for key in self.pinned.iter().chain(next.pinned.iter()).map(|(key, _)| key) {
                let (owner, to) = (self.shard_of_bytes(key), next.shard_of_bytes(key));
                if let Some(from) = owner.filter(|_| owner != to) {
                    return Some((Chunk::Key(key.to_vec()), from, to));
                }
            }
        }
        None
    }
}

/// A range with its start, its end and its owner.
type Cut<'a> = (&'a [u8], Option<&'a [u8]>, Option<ShardId>);

/// Assigns an equal number of slots, give or take one, to each of these shards, with the fewest
/// moves.
fn deal(slots: &mut [Option<ShardId>], shards: &[ShardId]) {
    let mut held: Vec<(ShardId, usize)> = shards.iter().map(|shard| (*shard, 0)).collect();
    for owner in slots.iter().flatten() {
        if let Ok(at) = shards.binary_search(owner) {
            held[at].1 += 1;
        }
    }
    let all = slots.iter().flatten().count();
    let (each, odd) = (all / held.len(), all % held.len());
    // Shards with more than an even share keep the odd slots, which moves the fewest. Ties are
    // broken by the shards' numbers alone, so that a plan that is made again halfway equals the
    // rest of the first.
    held.sort_by_key(|(shard, count)| (*count <= each, *shard));
    let mut room: Vec<(ShardId, usize)> =
        held.iter().enumerate().map(|(i, (shard, _))| (*shard, each + usize::from(i < odd))).collect();
    room.sort_unstable();
    let mut homeless = Vec::new();
    for slot in slots {
        let Some(owner) = *slot else { continue };
        match room.binary_search_by_key(&owner, |(shard, _)| *shard) {
            Ok(at) if room[at].1 > 0 => room[at].1 -= 1,
            _ => homeless.push(slot),
        }
    }
    let free = room.into_iter().flat_map(|(shard, left)| std::iter::repeat_n(shard, left));
    for (slot, shard) in homeless.into_iter().zip(free) {
        *slot = Some(shard);
    }
}
