//! A rate limit for each of many keys.
use std::{
    fmt,
    hash::{BuildHasher, Hash, RandomState},
    sync::Arc,
};

use hashbrown::{HashTable, hash_table::Entry};

use super::{Quota, gcra::Pace};
use crate::{
    config::{ConfigError, Name},
    outcome::{PolicyKind, Reason, Rejected},
    sync::{AtomicU64, Mutex, Ordering},
    time::{Clock, Instant},
};

/// A [`RateLimiter`](super::RateLimiter) for each key: each tenant, each host, each user.
///
/// A clone is the same limiter. A key is remembered in its own size and 8 bytes more, and only while its permits are not all
/// back: a key that has been quiet for so long is the same as one never seen, and makes room when the table would grow. Keys are hashed
/// by SipHash with random seeds, so that an attacker who chooses keys cannot make them collide.
///
/// ```
/// use steadfast::throttling::{KeyedRateLimiter, Quota};
///
/// let limiter = KeyedRateLimiter::new(Quota::per_second(100))
///     .unwrap()
///     .with_tiers(&[Quota::per_second(1000)], |tenant: &String| if tenant.starts_with("gold-") { Some(0) } else { None })
///     .unwrap();
/// assert!(limiter.check(&"gold-7".to_owned()).is_ok());
/// ```
#[derive(Clone)]
pub struct KeyedRateLimiter<K, S = RandomState>(Arc<Inner<K, S>>);

/// Which of the tiers a key belongs to.
type TierOf<K> = Arc<dyn Fn(&K) -> Option<usize> + Send + Sync>;

struct Inner<K, S> {
    /// The quotas as they were last given, and how many times they were.
    tiers: Mutex<(u64, Tiers)>,
    changes: AtomicU64,
    tier_of: Option<TierOf<K>>,
    hasher: S,
    clock: Clock,
    name: Option<Name>,
    shards: Box<[Shard<K>]>,
}

#[derive(Clone, Copy)]
struct Tier {
    quota: Quota,
    pace: Pace,
}

/// The quota of everybody, then those of the tiers.
type Tiers = Arc<[Tier]>;

/// Which of the quotas: the first is everybody's.
fn of(tiers: &[Tier], tier: usize) -> &Tier {
    tiers.get(tier).unwrap_or(&tiers[0])
}

/// Aligned to a cache line, so that two processors at two shards do not wait for each other.
#[repr(align(64))]
struct Shard<K>(Mutex<Held<K>>);

struct Held<K> {
    table: HashTable<(K, u64)>,
    /// The quotas by which the table's numbers are meant, and after how many changes.
    tiers: Tiers,
    change: u64,
}

/// So many that two threads rarely meet in one; a power of two.
const SHARDS: usize = 64;

/// After so many rounds a change no longer asks for the tiers of keys that have come meanwhile: they pass for everybody's.
const ROUNDS: u32 = 8;

impl<K: Eq + Hash + Clone> KeyedRateLimiter<K> {
    /// A limiter that gives each key this quota.
    ///
    /// # Errors
    /// Where the quota breaks a rule.
    pub fn new(quota: Quota) -> Result<Self, ConfigError> {
        Self::with_hasher(quota, RandomState::new())
    }
}

impl<K: Eq + Hash + Clone, S: BuildHasher> KeyedRateLimiter<K, S> {
    /// As [`new`](KeyedRateLimiter::new), with a hasher of your own.
    ///
    /// # Errors
    /// Where the quota breaks a rule.
    pub fn with_hasher(quota: Quota, hasher: S) -> Result<Self, ConfigError> {
        Ok(Self::make(checked(quota, &[])?, None, hasher, Clock::tokio(), None))
    }

    fn make(tiers: Tiers, tier_of: Option<TierOf<K>>, hasher: S, clock: Clock, name: Option<Name>) -> Self {
        let held = || Held { table: HashTable::new(), tiers: tiers.clone(), change: 0 };
        let shards = (0..SHARDS).map(|_| Shard(Mutex::new(held()))).collect();
        let tiers = Mutex::new((0, tiers));
        Self(Arc::new(Inner { tiers, changes: AtomicU64::new(0), tier_of, hasher, clock, name, shards }))
    }

    /// A new limiter that gives some keys other quotas: `tier_of` says which of `tiers` a key belongs to; `None`, or a number
    /// that is not there, is the quota of everybody else.
    ///
    /// # Errors
    /// Where a quota breaks a rule.
    pub fn with_tiers(
        self,
        tiers: &[Quota],
        tier_of: impl Fn(&K) -> Option<usize> + Send + Sync + 'static,
    ) -> Result<Self, ConfigError>
    where
        S: Clone,
    {
        let tiers = checked(self.quotas().0, tiers)?;
        let Inner { hasher, clock, name, .. } = &*self.0;
        Ok(Self::make(tiers, Some(Arc::new(tier_of)), hasher.clone(), clock.clone(), name.clone()))
    }

    /// The quota of everybody, and those of the tiers, as they are now.
    pub fn quotas(&self) -> (Quota, Vec<Quota>) {
        let tiers = self.tiers();
        (tiers[0].quota, tiers[1..].iter().map(|tier| tier.quota).collect())
    }

    /// Changes the quotas while it is in use: everybody's, and those of the tiers. Which key belongs to which tier stays as it is; a tier that is not there any
    /// more is everybody's. Each key stays as full as it was: half of the old burst becomes half of the new one.
    ///
    /// It goes through all keys that are remembered, a part of them at a time: some milliseconds for a hundred thousand. Calls meanwhile pass by the old
    /// quotas or the new ones.
    ///
    /// # Errors
    /// Where a quota breaks a rule; then nothing has changed.
    pub fn reconfigure(&self, quota: Quota, tiers: &[Quota]) -> Result<(), ConfigError> {
        let tiers = checked(quota, tiers)?;
        let change = {
            let mut current = self.0.tiers.lock();
            let change = self.0.changes.fetch_add(1, Ordering::Relaxed) + 1;
            *current = (change, tiers.clone());
            change
        };
        self.0.shards.iter().for_each(|shard| self.0.change(shard, &tiers, change));
        Ok(())
    }

    fn tiers(&self) -> Tiers {
        self.0.tiers.lock().1.clone()
    }

    /// A new limiter of the same settings on another clock.
    #[must_use]
    pub fn with_clock(self, clock: &Clock) -> Self
    where
        S: Clone,
    {
        let Inner { tier_of, hasher, name, .. } = &*self.0;
        Self::make(self.tiers(), tier_of.clone(), hasher.clone(), clock.clone(), name.clone())
    }

    /// A new limiter of the same settings with a name, for errors.
    #[must_use]
    pub fn named(self, name: impl Into<Name>) -> Self
    where
        S: Clone,
    {
        let Inner { tier_of, hasher, clock, .. } = &*self.0;
        Self::make(self.tiers(), tier_of.clone(), hasher.clone(), clock.clone(), Some(name.into()))
    }

    /// Takes a permit of this key now.
    ///
    /// # Errors
    /// The rejection, with the exact time after which a permit is there.
    #[inline]
    pub fn check(&self, key: &K) -> Result<(), Rejected> {
        self.check_n(key, 1)
    }

    /// Takes `n` permits of this key now, all or none.
    ///
    /// # Errors
    /// As [`check`](Self::check); [`Reason::TooLarge`] if the key can never have so many at once.
    #[inline]
    pub fn check_n(&self, key: &K, n: u32) -> Result<(), Rejected> {
        let this = &*self.0;
        let hash = this.hasher.hash_one(key);
        let now = this.clock.now().as_nanos();
        let tier = this.tier_of(key);
        let (taken, tier) = {
            let mut held = this.shard(hash).0.lock();
            let Held { table, tiers, .. } = &mut *held;
            let tier = *of(tiers, tier);
            let taken = if let Some((_, tat)) = table.find_mut(hash, |(k, _)| k == key) {
                tier.pace.take(*tat, n, now).map(|next| *tat = next)
            } else {
                let taken = tier.pace.take(0, n, now);
                // No permits leave nothing to remember.
                taken.map(|next| {
                    if next > now {
                        this.remember(table, hash, key, next, now)
                    }
                })
            };
            (taken, tier)
        };
        taken.map_err(|wait| this.rejected(&tier, n, wait))
    }

    /// How many keys it remembers. Counts those that are all back as long as nobody needed their room.
    pub fn len(&self) -> usize {
        self.0.shards.iter().map(|s| s.0.lock().table.len()).sum()
    }

    /// Whether it remembers no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets every key whose permits are all back, and gives their memory back. There is no need to call it: room is made
    /// when it is needed.
    pub fn forget_idle(&self) {
        let now = self.0.clock.now();
        for shard in &self.0.shards {
            let table = &mut shard.0.lock().table;
            table.retain(|(_, tat)| Instant::from_nanos(*tat) > now);
            table.shrink_to_fit(|(k, _)| self.0.hasher.hash_one(k));
        }
    }
}

/// The quotas, if all of them hold to the rules.
fn checked(quota: Quota, tiers: &[Quota]) -> Result<Tiers, ConfigError> {
    let tier = |(i, quota): (usize, &Quota)| Tier::new(*quota).map_err(|e| e.within(&format!("tiers[{i}]")));
    std::iter::once(Tier::new(quota)).chain(tiers.iter().enumerate().map(tier)).collect()
}

impl Tier {
    fn new(quota: Quota) -> Result<Self, ConfigError> {
        quota.check()?;
        Ok(Self { quota, pace: Pace::new(&quota) })
    }
}

impl<K: Eq + Hash + Clone, S: BuildHasher> Inner<K, S> {
    /// The place of a key's quota among all. Calls foreign code: no lock may be held.
    #[inline]
    fn tier_of(&self, key: &K) -> usize {
        self.tier_of.as_ref().and_then(|tier_of| tier_of(key)).map_or(0, |tier| tier.saturating_add(1))
    }

    /// Sets the keys of a shard by other quotas, unless still later ones have come before.
    #[cold]
    fn change(&self, shard: &Shard<K>, tiers: &Tiers, change: u64) {
        // Which tier a key belongs to is asked without the lock; keys that come meanwhile are asked for in the next round, of which there are few.
        let mut known: HashTable<(K, usize)> = HashTable::new();
        let hash = |key: &K| self.hasher.hash_one(key);
        for round in 0.. {
            let mut held = shard.0.lock();
            let is_known = |key: &K| known.find(hash(key), |(k, _)| k == key).is_some();
            let is_one_for_all = self.tier_of.is_none();
            let mut unknown = Vec::new();
            if !is_one_for_all {
                unknown.extend(held.table.iter().filter(|(key, _)| !is_known(key)).map(|(key, _)| key.clone()));
            }
            if unknown.is_empty() || round == ROUNDS {
                if held.change > change {
                    return;
                }
                let now = self.clock.now().as_nanos();
                let Held { table, tiers: before, .. } = &mut *held;
                for (key, tat) in table.iter_mut() {
                    let tier = known.find(hash(key), |(k, _)| k == key).map_or(0, |(_, tier)| *tier);
                    *tat = of(tiers, tier).pace.take_over(of(before, tier).pace, *tat, now);
                }
                (held.tiers, held.change) = (tiers.clone(), change);
                return;
            }
            drop(held);
            for key in unknown {
                let tier = self.tier_of(&key);
                known.insert_unique(hash(&key), (key, tier), |(key, _)| hash(key));
            }
        }
    }

    /// The table takes its place from the low bits and its tag from the top seven: the shard takes bits between.
    #[inline]
    fn shard(&self, hash: u64) -> &Shard<K> {
        &self.shards[(hash >> 48) as usize % SHARDS]
    }

    #[cold]
    fn remember(&self, table: &mut HashTable<(K, u64)>, hash: u64, key: &K, tat: u64, now: u64) {
        if table.len() == table.capacity() {
            // Before it grows: what is all back says nothing that an absent key does not say.
            table.retain(|(_, tat)| *tat > now);
        }
        let entry = table.entry(hash, |(k, _)| k == key, |(k, _)| self.hasher.hash_one(k));
        if let Entry::Vacant(place) = entry {
            place.insert((key.clone(), tat));
        }
    }

    #[cold]
    fn rejected(&self, tier: &Tier, n: u32, wait: u64) -> Rejected {
        let reason = if n > tier.quota.largest() { Reason::TooLarge } else { Reason::RateLimited };
        let rejected = Rejected::new(PolicyKind::RateLimit, reason).named(self.name.clone());
        if reason == Reason::TooLarge { rejected } else { rejected.with_wait(wait) }
    }
}

impl<K, S> fmt::Debug for KeyedRateLimiter<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedRateLimiter")
            .field("name", &self.0.name)
            .field("quotas", &self.0.tiers.lock().1.iter().map(|tier| tier.quota).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
