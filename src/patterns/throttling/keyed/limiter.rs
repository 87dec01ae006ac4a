//! A rate limit for each of many keys.
use std::{
    hash::{BuildHasher, Hash, RandomState},
    sync::Arc,
};

use hashbrown::HashTable;

use super::{
    shard::{Held, Metered, Shard, Tiers, of},
    take::checked,
};
use crate::{
    config::{ConfigError, Name, require},
    observe::{Events, Subscription},
    outcome::Rejected,
    sync::{AtomicU64, Mutex, Ordering},
    throttling::{Quota, RateLimitConfig, ThrottlingEvent},
    time::Clock,
};

/// A [`RateLimiter`](crate::throttling::RateLimiter) for each key: each tenant, each host, each user.
///
/// A clone is the same limiter. A key is remembered in its own size and 8 bytes more, and only while its permits are not all
/// back: a key that has been quiet for so long is the same as one never seen, and makes room when the table would grow. (In strict mode, and
/// while calls wait for it, a key has a whole limiter.) At most [`max_keys`](Self::max_keys) are remembered. Keys are hashed
/// by SipHash with random seeds, so that an attacker who chooses keys cannot make them collide.
///
/// ```
/// use steadfast::throttling::{KeyedRateLimiter, Quota};
///
/// let limiter = KeyedRateLimiter::new(Quota::per_second(100))
///     .unwrap()
///     .with_tiers(&[Quota::per_second(1000)], |tenant: &String| if tenant.starts_with("gold-") { Some(0) } else { None })
///     .unwrap();
/// let tenant = "gold-7".to_owned();
/// assert!(limiter.check(&tenant).is_ok());
/// assert_eq!(limiter.usage(&tenant).available, 999);
/// ```
pub struct KeyedRateLimiter<K, S = RandomState>(pub(super) Arc<Inner<K, S>>);

impl<K, S> Clone for KeyedRateLimiter<K, S> {
    fn clone(&self) -> Self {
        self.share()
    }
}

/// Which of the tiers a key belongs to.
type TierOf<K> = Arc<dyn Fn(&K) -> Option<usize> + Send + Sync>;

type NameOf<K> = Arc<dyn Fn(&K) -> Name + Send + Sync>;

pub(super) struct Inner<K, S> {
    /// The quotas as they were last given, and how many times they were.
    pub(super) tiers: Mutex<(u64, Tiers)>,
    changes: AtomicU64,
    pub(super) parts: Parts<K, S>,
    pub(super) events: Events<ThrottlingEvent>,
    pub(super) shards: Box<[Shard<K>]>,
}

/// What a limiter is made from, beside its quotas.
pub(super) struct Parts<K, S> {
    /// Its quota is that of everybody at the beginning.
    pub(super) config: RateLimitConfig,
    pub(super) tier_of: Option<TierOf<K>>,
    pub(super) name: Option<Name>,
    pub(super) name_of: Option<NameOf<K>>,
    pub(super) hasher: S,
    pub(super) clock: Clock,
    pub(super) max_keys: usize,
    pub(super) is_metered: bool,
}

impl<K, S: Clone> Clone for Parts<K, S> {
    fn clone(&self) -> Self {
        let Self { config, tier_of, name, name_of, hasher, clock, max_keys, is_metered } = self;
        let (tier_of, name_of) = (tier_of.clone(), name_of.clone());
        let (name, hasher, clock) = (name.clone(), hasher.clone(), clock.clone());
        Self { config: *config, tier_of, name, name_of, hasher, clock, max_keys: *max_keys, is_metered: *is_metered }
    }
}

/// Permits of one key, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyUsage {
    /// Permits that were taken and are not back; more than there are where calls wait, or it is paused.
    pub used: u32,
    /// Permits that could be taken now.
    pub available: u32,
    /// The quota of the key.
    pub quota: Quota,
}

/// So many that two threads rarely meet in one; a power of two.
pub(super) const SHARDS: usize = 64;

/// The keys that are remembered by default: about a million.
const MAX_KEYS: usize = 1 << 20;

/// After so many rounds a change no longer asks for the tiers of keys that have come meanwhile: they pass for everybody's.
pub(super) const ROUNDS: u32 = 8;

impl<K: Eq + Hash + Clone> KeyedRateLimiter<K> {
    /// A limiter that gives each key this quota; or, with a whole [`RateLimitConfig`], in strict mode too.
    ///
    /// # Errors
    /// Where a setting breaks a rule.
    pub fn new(config: impl Into<RateLimitConfig>) -> Result<Self, ConfigError> {
        Self::with_hasher(config, RandomState::new())
    }
}

impl<K, S> KeyedRateLimiter<K, S> {
    pub(super) fn share(&self) -> Self {
        Self(self.0.clone())
    }

    pub(super) fn name_of(&self, key: &K) -> Option<Name> {
        let Parts { name, name_of, .. } = &self.0.parts;
        name_of.as_ref().map(|name_of| name_of(key)).or_else(|| name.clone())
    }
}

impl<K: Eq + Hash + Clone, S: BuildHasher> KeyedRateLimiter<K, S> {
    /// As [`new`](KeyedRateLimiter::new), with a hasher of your own.
    ///
    /// # Errors
    /// Where a setting breaks a rule.
    pub fn with_hasher(config: impl Into<RateLimitConfig>, hasher: S) -> Result<Self, ConfigError> {
        let config = config.into();
        let tiers = checked(&config, config.quota(), &[])?;
        let (clock, max_keys) = (Clock::tokio(), MAX_KEYS);
        let (tier_of, name, name_of, is_metered) = (None, None, None, false);
        Ok(Self::make(tiers, Parts { config, tier_of, name, name_of, hasher, clock, max_keys, is_metered }))
    }

    fn make(tiers: Tiers, parts: Parts<K, S>) -> Self {
        let shards = (0..SHARDS).map(|_| Shard(Mutex::new(Held::new(tiers.clone(), parts.is_metered)))).collect();
        let tiers = Mutex::new((0, tiers));
        Self(Arc::new(Inner { tiers, changes: AtomicU64::new(0), parts, events: Events::new(), shards }))
    }

    /// A new limiter of the same quotas and of these parts.
    fn with(&self, change: impl FnOnce(&mut Parts<K, S>)) -> Self
    where
        S: Clone,
    {
        let mut parts = self.0.parts.clone();
        change(&mut parts);
        Self::make(self.tiers(), parts)
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
        let tiers = checked(&self.0.parts.config, self.quotas().0, tiers)?;
        let mut parts = self.0.parts.clone();
        parts.tier_of = Some(Arc::new(tier_of));
        Ok(Self::make(tiers, parts))
    }

    /// A new limiter of the same settings on another clock.
    #[must_use]
    pub fn with_clock(self, clock: &Clock) -> Self
    where
        S: Clone,
    {
        self.with(|parts| parts.clock = clock.clone())
    }

    /// A new limiter of the same settings with a name, for errors and events.
    #[must_use]
    pub fn named(self, name: impl Into<Name>) -> Self
    where
        S: Clone,
    {
        self.with(|parts| parts.name = Some(name.into()))
    }

    /// A new limiter of the same settings whose errors and events carry a name of the key's own, as this makes it.
    #[must_use]
    pub fn named_by(self, name_of: impl Fn(&K) -> Name + Send + Sync + 'static) -> Self
    where
        S: Clone,
    {
        self.with(|parts| parts.name_of = Some(Arc::new(name_of)))
    }

    /// A new limiter of the same settings that remembers so many keys at most, rounded up to a multiple of 64; 1,048,576 by default. For one
    /// more it forgets keys whose permits are all back, and, if there are none, an eighth of the others: those whose permits are back soonest,
    /// for they gain least by it (a whole burst). Keys for which calls wait are kept.
    ///
    /// # Errors
    /// If it is zero.
    pub fn max_keys(self, most: usize) -> Result<Self, ConfigError>
    where
        S: Clone,
    {
        require(most >= 1, "max_keys", "must be at least 1")?;
        Ok(self.with(|parts| parts.max_keys = most))
    }

    /// A new limiter of the same settings that counts what each key takes and is refused: see [`readings`](Self::readings).
    #[must_use]
    pub fn metered(self) -> Self
    where
        S: Clone,
    {
        self.with(|parts| parts.is_metered = true)
    }

    /// What each key took and was refused since the last reading, in any order: the meter of a limiter that is [`metered`](Self::metered).
    /// Between two readings it counts for as many keys as it may remember, those that come first.
    pub fn readings(&self) -> Vec<(K, Metered)> {
        let read = |shard: &Shard<K>| {
            let mut held = shard.0.lock();
            held.meter.as_mut().map(std::mem::take)
        };
        self.0.shards.iter().filter_map(read).flat_map(HashTable::into_iter).collect()
    }

    /// What this key has taken of its quota now.
    pub fn usage(&self, key: &K) -> KeyUsage {
        let (hash, now, tier) = self.0.place(key);
        let held = self.0.shard(hash).0.lock();
        let tier = of(&held.tiers, tier);
        let used = match held.full.find(hash, |(k, _)| k == key) {
            Some((_, limiter)) => limiter.turns().used(now),
            None => held.table.find(hash, |(k, _)| k == key).map_or(0, |(_, tat)| tier.pace.used(*tat, now)),
        };
        let used = u32::try_from(used).unwrap_or(u32::MAX);
        KeyUsage { used, available: tier.quota.largest().saturating_sub(used), quota: tier.quota }
    }

    /// The keys that are remembered, in any order: those that have permits which are not back. One part after the other: no moment of all.
    pub fn keys(&self) -> Vec<K> {
        let mut keys = Vec::new();
        for shard in &self.0.shards {
            let held = shard.0.lock();
            keys.extend(
                held.table.iter().map(|(key, _)| key.clone()).chain(held.full.iter().map(|(key, _)| key.clone())),
            );
        }
        keys
    }

    /// The quota of everybody, and those of the tiers, as they are now.
    pub fn quotas(&self) -> (Quota, Vec<Quota>) {
        let tiers = self.tiers();
        (tiers[0].quota, tiers[1..].iter().map(|tier| tier.quota).collect())
    }

    /// The settings of a key that is of no tier, as they are now.
    pub fn config(&self) -> RateLimitConfig {
        self.0.parts.config_of(self.tiers()[0].quota)
    }

    /// Changes the quotas while it is in use: everybody's, and those of the tiers. Which key belongs to which tier stays as it is, and so does
    /// the mode; a tier that is not there any more is everybody's. Each key stays as full as it was: half of the old burst becomes half of
    /// the new one; in strict mode, what was used stays used.
    ///
    /// It goes through all keys that are remembered, a part of them at a time: some milliseconds for a hundred thousand. Calls meanwhile pass by the old
    /// quotas or the new ones.
    ///
    /// # Errors
    /// Where a quota breaks a rule; then nothing has changed.
    pub fn reconfigure(&self, quota: Quota, tiers: &[Quota]) -> Result<(), ConfigError> {
        let tiers = checked(&self.0.parts.config, quota, tiers)?;
        let change = {
            let mut current = self.0.tiers.lock();
            let change = self.0.changes.fetch_add(1, Ordering::Relaxed) + 1;
            *current = (change, tiers.clone());
            change
        };
        self.0.shards.iter().for_each(|shard| self.0.change(shard, &tiers, change));
        let Parts { name, clock, .. } = &self.0.parts;
        self.0.events.send(name.as_ref(), clock.now(), || ThrottlingEvent::LimitChanged);
        Ok(())
    }

    fn tiers(&self) -> Tiers {
        self.0.tiers.lock().1.clone()
    }

    /// Its events from now on, of all keys; they carry the key's name where it is [named by](Self::named_by) one.
    pub fn events(&self) -> Subscription<ThrottlingEvent> {
        self.0.events.subscribe()
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
    /// As [`check`](Self::check); [`Reason::TooLarge`](crate::Reason::TooLarge) if the key can never have so many at once.
    #[inline]
    pub fn check_n(&self, key: &K, n: u32) -> Result<(), Rejected> {
        match self.take(key, n) {
            Ok(_) => Ok(()),
            Err(refusal) => Err(self.rejected(key, refusal)),
        }
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
        let (now, hasher) = (self.0.now(), &self.0.parts.hasher);
        for shard in &self.0.shards {
            let held = &mut *shard.0.lock();
            held.table.retain(|(_, tat)| *tat > now);
            held.table.shrink_to_fit(|(k, _)| hasher.hash_one(k));
            held.full.retain(|(_, limiter)| !limiter.is_unused(now));
            held.full.shrink_to_fit(|(k, _)| hasher.hash_one(k));
        }
    }
}
