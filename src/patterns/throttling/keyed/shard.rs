//! A shard of the keys of a keyed rate limiter, under one lock.
use std::{
    hash::{BuildHasher, Hash},
    sync::Arc,
};

use hashbrown::{HashTable, hash_table::Entry};

use crate::{
    key_ref::KeyRef,
    throttling::{Quota, RateLimiter, rate::gcra::Pace},
};

pub(super) struct ShardState<K> {
    /// The arrival time of each key. A key in `full` is not in this table.
    pub(super) table: HashTable<(K, u64)>,
    /// Complete limiters, for keys that need more than a number: calls wait for the key, it is
    /// paused, or the limit is strict.
    pub(super) limiters: HashTable<(K, RateLimiter)>,
    /// Permits admitted and refused since the last reading, if the limiter is metered.
    pub(super) meter: Option<HashTable<(K, Metered)>>,
    /// The quotas to which the table's arrival times belong, and their version.
    pub(super) tiers: Tiers,
    pub(super) change: u64,
}

#[derive(Clone, Copy)]
pub(super) struct Tier {
    pub(super) quota: Quota,
    pub(super) pace: Pace,
}

/// The default quota, then the quotas of the tiers.
pub(super) type Tiers = Arc<[Tier]>;

/// Returns the quota with index `tier`, or the default one.
pub(super) fn of(tiers: &[Tier], tier: usize) -> &Tier {
    tiers.get(tier).unwrap_or(&tiers[0])
}

/// The permits of one key since the last reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Metered {
    /// Number of permits that the key took.
    pub admitted: u64,
    /// Number of permits that the key was refused.
    pub refused: u64,
}

impl<K: Eq + Hash + Clone> ShardState<K> {
    pub(super) fn new(tiers: Tiers, is_metered: bool) -> Self {
        let meter = is_metered.then(HashTable::new);
        Self { table: HashTable::new(), limiters: HashTable::new(), meter, tiers, change: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len() + self.limiters.len()
    }

    /// Inserts the arrival time of a key that is not in the table.
    pub(super) fn remember<S: BuildHasher>(
        &mut self,
        hasher: &S,
        most: usize,
        (key, hash, tat): (&(impl KeyRef<K> + ?Sized), u64, u64),
        now: u64,
    ) {
        if self.table.len() == self.table.capacity() {
            // Before the table grows: an entry whose permits have all returned equals an absent
            // one.
            self.table.retain(|(_, tat)| *tat > now);
        }
        self.make_room(most, now);
        let entry = self.table.entry(hash, |(k, _)| key.is(k), |(k, _)| hasher.hash_one(k));
        if let Entry::Vacant(slot) = entry {
            slot.insert((key.to_key(), tat));
        }
    }

    /// Inserts a complete limiter for a key that has none.
    pub(super) fn keep<S: BuildHasher>(
        &mut self,
        hasher: &S,
        most: usize,
        (key, hash, limiter): (&(impl KeyRef<K> + ?Sized), u64, &RateLimiter),
        now: u64,
    ) {
        if self.limiters.len() == self.limiters.capacity() {
            self.limiters.retain(|(_, limiter)| !limiter.is_unused(now));
        }
        self.make_room(most, now);
        self.limiters.insert_unique(hash, (key.to_key(), limiter.clone()), |(k, _)| hasher.hash_one(k));
    }

    /// Makes room for one more key if the shard is full: forgets keys whose permits have all
    /// returned, and if that is not enough, an eighth of the others, those whose permits return
    /// soonest. They have a whole burst again.
    #[inline]
    fn make_room(&mut self, most: usize, now: u64) {
        if self.len() >= most {
            self.forget_some(most, now);
        }
    }

    #[cold]
    fn forget_some(&mut self, most: usize, now: u64) {
        self.table.retain(|(_, tat)| *tat > now);
        self.limiters.retain(|(_, limiter)| !limiter.is_unused(now));
        // An eighth at once, so that the scan costs each new key a look at a few others, not at all
        // of them.
        let keeps = most - most.div_ceil(8);
        let mut excess = self.len().saturating_sub(keeps);
        if self.len() < most {
            return;
        }
        let mut tats: Vec<u64> = self.table.iter().map(|(_, tat)| *tat).collect();
        if let Some(last) = excess.min(tats.len()).checked_sub(1) {
            let soonest = *tats.select_nth_unstable(last).1;
            self.table.retain(|(_, tat)| {
                let forgotten = excess > 0 && *tat <= soonest;
                excess -= usize::from(forgotten);
                !forgotten
            });
        }
        let mut used: Vec<u64> = self.limiters.iter().map(|(_, limiter)| limiter.turns().used(now)).collect();
        if let Some(last) = excess.min(used.len()).checked_sub(1) {
            let least = *used.select_nth_unstable(last).1;
            // A limiter with waiting calls is kept.
            self.limiters.retain(|(_, limiter)| {
                let forgotten = excess > 0 && !limiter.is_held() && limiter.turns().used(now) <= least;
                excess -= usize::from(forgotten);
                !forgotten
            });
        }
    }

    /// Counts permits of a key. If the meter is full, a new key is not counted before the next
    /// reading.
    pub(super) fn count<S: BuildHasher>(
        &mut self,
        hasher: &S,
        most: usize,
        key: &(impl KeyRef<K> + ?Sized),
        n: u32,
        is_admitted: bool,
    ) {
        let Some(meter) = &mut self.meter else { return };
        let has_room = meter.len() < most;
        let entry = meter.entry(hasher.hash_one(key), |(k, _)| key.is(k), |(k, _)| hasher.hash_one(k));
        let mut entry = match entry {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(entry) if has_room => entry.insert((key.to_key(), Metered::default())),
            Entry::Vacant(_) => return,
        };
        let Metered { admitted, refused } = &mut entry.get_mut().1;
        let counted = if is_admitted { admitted } else { refused };
        *counted = counted.saturating_add(n.into());
    }
}
