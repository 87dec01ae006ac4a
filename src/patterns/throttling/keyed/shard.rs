//! A part of the keys of a keyed rate limiter, under one lock.
use std::{
    hash::{BuildHasher, Hash},
    sync::Arc,
};

use hashbrown::{HashTable, hash_table::Entry};

use crate::{
    sync::Mutex,
    throttling::{Quota, RateLimiter, rate::gcra::Pace},
};

/// Aligned to a cache line, so that two processors at two shards do not wait for each other.
#[repr(align(64))]
pub(super) struct Shard<K>(pub(super) Mutex<Held<K>>);

pub(super) struct Held<K> {
    /// The arrival time of each key. A key that is in `full` is not here.
    pub(super) table: HashTable<(K, u64)>,
    /// Whole limiters, of keys that need more than a number: calls wait for them, they are paused, or the limit is strict.
    pub(super) full: HashTable<(K, RateLimiter)>,
    /// What was admitted and refused since it was read, where that is metered.
    pub(super) meter: Option<HashTable<(K, Metered)>>,
    /// The quotas by which the table's numbers are meant, and after how many changes.
    pub(super) tiers: Tiers,
    pub(super) change: u64,
}

#[derive(Clone, Copy)]
pub(super) struct Tier {
    pub(super) quota: Quota,
    pub(super) pace: Pace,
}

/// The quota of everybody, then those of the tiers.
pub(super) type Tiers = Arc<[Tier]>;

/// Which of the quotas: the first is everybody's.
pub(super) fn of(tiers: &[Tier], tier: usize) -> &Tier {
    tiers.get(tier).unwrap_or(&tiers[0])
}

/// Permits of one key since they were read last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Metered {
    /// Permits that it took.
    pub admitted: u64,
    /// Permits that it was refused.
    pub refused: u64,
}

impl<K: Eq + Hash + Clone> Held<K> {
    pub(super) fn new(tiers: Tiers, is_metered: bool) -> Self {
        let meter = is_metered.then(HashTable::new);
        Self { table: HashTable::new(), full: HashTable::new(), meter, tiers, change: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len() + self.full.len()
    }

    /// Remembers the arrival time of a key that is not there.
    pub(super) fn remember<S: BuildHasher>(&mut self, hasher: &S, most: usize, (key, tat): (&K, u64), now: u64) {
        if self.table.len() == self.table.capacity() {
            // Before it grows: what is all back says nothing that an absent key does not say.
            self.table.retain(|(_, tat)| *tat > now);
        }
        self.make_room(most, now);
        let hash = hasher.hash_one(key);
        let entry = self.table.entry(hash, |(k, _)| k == key, |(k, _)| hasher.hash_one(k));
        if let Entry::Vacant(place) = entry {
            place.insert((key.clone(), tat));
        }
    }

    /// Keeps a whole limiter for a key that has none.
    pub(super) fn keep<S: BuildHasher>(
        &mut self,
        hasher: &S,
        most: usize,
        (key, limiter): (&K, &RateLimiter),
        now: u64,
    ) {
        if self.full.len() == self.full.capacity() {
            self.full.retain(|(_, limiter)| !limiter.is_unused(now));
        }
        self.make_room(most, now);
        self.full.insert_unique(hasher.hash_one(key), (key.clone(), limiter.clone()), |(k, _)| hasher.hash_one(k));
    }

    /// Makes room for one more, where there are as many as there may be: forgets keys whose permits are all back, and, if that is not enough,
    /// an eighth of the others, those whose permits are back soonest. They have a whole burst again.
    #[inline]
    fn make_room(&mut self, most: usize, now: u64) {
        if self.len() >= most {
            self.forget_some(most, now);
        }
    }

    #[cold]
    fn forget_some(&mut self, most: usize, now: u64) {
        self.table.retain(|(_, tat)| *tat > now);
        self.full.retain(|(_, limiter)| !limiter.is_unused(now));
        // So many at once that each new key costs a look at some others, not at all.
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
        let mut used: Vec<u64> = self.full.iter().map(|(_, limiter)| limiter.turns().used(now)).collect();
        if let Some(last) = excess.min(used.len()).checked_sub(1) {
            let least = *used.select_nth_unstable(last).1;
            // Where calls wait it is kept.
            self.full.retain(|(_, limiter)| {
                let forgotten = excess > 0 && !limiter.is_held() && limiter.turns().used(now) <= least;
                excess -= usize::from(forgotten);
                !forgotten
            });
        }
    }

    /// Counts permits of a key. A key that is one too many is not metered before the next reading.
    pub(super) fn count<S: BuildHasher>(&mut self, hasher: &S, most: usize, key: &K, n: u32, is_admitted: bool) {
        let Some(meter) = &mut self.meter else { return };
        let has_room = meter.len() < most;
        let entry = meter.entry(hasher.hash_one(key), |(k, _)| k == key, |(k, _)| hasher.hash_one(k));
        let mut entry = match entry {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(entry) if has_room => entry.insert((key.clone(), Metered::default())),
            Entry::Vacant(_) => return,
        };
        let Metered { admitted, refused } = &mut entry.get_mut().1;
        let counted = if is_admitted { admitted } else { refused };
        *counted = counted.saturating_add(n.into());
    }
}
