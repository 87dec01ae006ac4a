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
    sync::Mutex,
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
    default: Tier,
    tiers: Vec<Tier>,
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

/// Aligned to a cache line, so that two processors at two shards do not wait for each other.
#[repr(align(64))]
struct Shard<K>(Mutex<HashTable<(K, u64)>>);

/// So many that two threads rarely meet in one; a power of two.
const SHARDS: usize = 64;

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
        let default = Tier::new(quota)?;
        Ok(Self::make(default, Vec::new(), None, hasher, Clock::tokio(), None))
    }

    fn make(
        default: Tier,
        tiers: Vec<Tier>,
        tier_of: Option<TierOf<K>>,
        hasher: S,
        clock: Clock,
        name: Option<Name>,
    ) -> Self {
        let shards = (0..SHARDS).map(|_| Shard(Mutex::new(HashTable::new()))).collect();
        Self(Arc::new(Inner { default, tiers, tier_of, hasher, clock, name, shards }))
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
        let checked = |(i, quota): (usize, &Quota)| Tier::new(*quota).map_err(|e| e.within(&format!("tiers[{i}]")));
        let tiers = tiers.iter().enumerate().map(checked).collect::<Result<_, _>>()?;
        let Inner { default, hasher, clock, name, .. } = &*self.0;
        Ok(Self::make(*default, tiers, Some(Arc::new(tier_of)), hasher.clone(), clock.clone(), name.clone()))
    }

    /// A new limiter of the same settings on another clock.
    #[must_use]
    pub fn with_clock(self, clock: &Clock) -> Self
    where
        S: Clone,
    {
        let Inner { default, tiers, tier_of, hasher, name, .. } = &*self.0;
        Self::make(*default, tiers.clone(), tier_of.clone(), hasher.clone(), clock.clone(), name.clone())
    }

    /// A new limiter of the same settings with a name, for errors.
    #[must_use]
    pub fn named(self, name: impl Into<Name>) -> Self
    where
        S: Clone,
    {
        let Inner { default, tiers, tier_of, hasher, clock, .. } = &*self.0;
        Self::make(*default, tiers.clone(), tier_of.clone(), hasher.clone(), clock.clone(), Some(name.into()))
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
        let tier = match &this.tier_of {
            None => &this.default,
            Some(tier_of) => tier_of(key).and_then(|tier| this.tiers.get(tier)).unwrap_or(&this.default),
        };
        let taken = {
            let mut table = this.shard(hash).0.lock();
            if let Some((_, tat)) = table.find_mut(hash, |(k, _)| k == key) {
                tier.pace.take(*tat, n, now).map(|next| *tat = next)
            } else {
                let taken = tier.pace.take(0, n, now);
                // No permits leave nothing to remember.
                taken.map(|next| {
                    if next > now {
                        this.remember(&mut table, hash, key, next, now)
                    }
                })
            }
        };
        taken.map_err(|wait| this.rejected(tier, n, wait))
    }

    /// How many keys it remembers. Counts those that are all back as long as nobody needed their room.
    pub fn len(&self) -> usize {
        self.0.shards.iter().map(|s| s.0.lock().len()).sum()
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
            let mut table = shard.0.lock();
            table.retain(|(_, tat)| Instant::from_nanos(*tat) > now);
            table.shrink_to_fit(|(k, _)| self.0.hasher.hash_one(k));
        }
    }
}

impl Tier {
    fn new(quota: Quota) -> Result<Self, ConfigError> {
        quota.check()?;
        Ok(Self { quota, pace: Pace::new(&quota) })
    }
}

impl<K: Eq + Hash + Clone, S: BuildHasher> Inner<K, S> {
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
            .field("quota", &self.0.default.quota)
            .field("tiers", &self.0.tiers.len())
            .finish_non_exhaustive()
    }
}
