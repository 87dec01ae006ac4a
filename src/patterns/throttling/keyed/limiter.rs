//! A rate limit for each of many keys.
use std::{
    hash::{BuildHasher, Hash, RandomState},
    sync::Arc,
    time::Duration,
};

use hashbrown::HashTable;

use super::{
    KeyedRateLimitConfig,
    shard::{Metered, ShardState, Tiers, of},
};
use crate::{
    build::{Builder, Common, Component, HasEvents, HasName},
    config::{ConfigError, Effect, Name, Reconfigure, require},
    key_ref::KeyRef,
    observe::{Events, Subscription},
    outcome::Rejected,
    sharded::Sharded,
    sync::{AtomicU64, Mutex, Ordering},
    throttling::{Quota, RateMode, ThrottlingEvent},
    time::{Clock, nanos},
};

/// A [`RateLimiter`](crate::throttling::RateLimiter) for each key: each tenant, host or user.
///
/// A clone is the same limiter. A remembered key takes its own size and 8 bytes. Once all its
/// permits have returned, a key equals one that was never seen, and is removed when the table would
/// grow. In strict mode, and while calls wait for it, a key has a complete limiter. At most
/// [`max_keys`](field@KeyedRateLimitConfig::max_keys) keys are remembered. Keys are hashed by
/// SipHash with random seeds, so that an attacker who chooses keys cannot make them collide.
///
/// ```
/// use steadfast::{
///     throttling::{KeyedRateLimitConfig, KeyedRateLimiter, Quota},
///     time::Clock,
/// };
///
/// let (clock, _driver) = Clock::manual();
/// let quota = Quota::per_second(100);
/// let config = KeyedRateLimitConfig::from(quota).tiers([Quota::per_second(1000)]);
/// let limiter = KeyedRateLimiter::builder(config)
///     .tier_of(|tenant: &String| tenant.starts_with("gold-").then_some(0))
///     .clock(&clock)
///     .build()
///     .unwrap();
/// assert!(limiter.try_acquire("gold-7").is_ok());
/// assert_eq!(limiter.usage("gold-7").available, 999);
/// ```
pub struct KeyedRateLimiter<K, S = RandomState>(pub(super) Arc<KeyedCore<K, S>>);

impl<K, S> Clone for KeyedRateLimiter<K, S> {
    fn clone(&self) -> Self {
        self.share()
    }
}

/// The function that returns the tier of a key.
type TierOf<K> = Box<dyn Fn(&K) -> Option<usize> + Send + Sync>;

type NameOf<K> = Box<dyn Fn(&K) -> Name + Send + Sync>;

pub(super) struct KeyedCore<K, S> {
    /// Version and value of the quotas.
    pub(super) tiers: Mutex<(u64, Tiers)>,
    changes: AtomicU64,
    /// Nanoseconds. This one and the next two are single values, read by themselves, so `Relaxed`
    /// suffices: a call reads either the old or the new one.
    max_wait: AtomicU64,
    max_hint: AtomicU64,
    max_keys: AtomicU64,
    pub(super) parts: KeyedParts<K, S>,
    pub(super) events: Events<ThrottlingEvent>,
    pub(super) shards: Sharded<ShardState<K>>,
}

/// The parts of a limiter beside its quotas.
pub(super) struct KeyedParts<K, S> {
    pub(super) mode: RateMode,
    pub(super) tier_of: Option<TierOf<K>>,
    pub(super) name: Option<Name>,
    pub(super) name_of: Option<NameOf<K>>,
    pub(super) hasher: S,
    pub(super) clock: Clock,
    pub(super) is_metered: bool,
}

/// Arguments of a limiter, beside name, clock and entropy.
pub struct KeyedLimiterSpec<K, S> {
    config: KeyedRateLimitConfig,
    tier_of: Option<TierOf<K>>,
    name_of: Option<NameOf<K>>,
    hasher: S,
    is_metered: bool,
}

/// The permits of one key at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyUsage {
    /// Permits that were taken and have not returned. Exceeds the quota while calls wait or the key
    /// is paused.
    pub used: u32,
    /// Permits that can be taken now.
    pub available: u32,
    /// The key's quota.
    pub quota: Quota,
}

/// Maximum number of rounds in which a change asks for the tiers of new keys. Keys that appear
/// later get the default quota.
pub(super) const MAX_ROUNDS: u32 = 8;

impl<K: Eq + Hash + Clone> KeyedRateLimiter<K> {
    /// Creates a limiter that gives each key this quota. A
    /// [`RateLimitConfig`](crate::throttling::RateLimitConfig) allows strict mode too, a whole
    /// [`KeyedRateLimitConfig`] also tiers.
    ///
    /// # Errors
    /// If a setting is invalid.
    pub fn new(config: impl Into<KeyedRateLimitConfig>) -> Result<Self, ConfigError> {
        Self::builder(config).build()
    }

    /// Creates a builder of a limiter. Errors and events of all keys carry the builder's
    /// [`name`](Builder::name), unless `name_by` gives each key its own.
    ///
    /// Methods of [this builder
    /// alone](crate::Builder#impl-Builder%3CKeyedRateLimiter%3CK,+S%3E%3E): `tier_of`, `name_by`,
    /// `metered`, `hasher`.
    pub fn builder(config: impl Into<KeyedRateLimitConfig>) -> Builder<Self> {
        let (config, hasher) = (config.into(), RandomState::new());
        Builder::new(KeyedLimiterSpec { config, tier_of: None, name_of: None, hasher, is_metered: false })
    }
}

impl<K: Eq + Hash + Clone, S: BuildHasher> Builder<KeyedRateLimiter<K, S>> {
    /// Gives some keys the quotas of [`tiers`](field@KeyedRateLimitConfig::tiers). `tier_of`
    /// returns the index of a key's tier; `None`, or an index out of range, selects the default
    /// quota. Each call asks for it: a call with a [borrowed form](crate::KeyRef) of a key makes an
    /// owned key to do so. There is no tier without a limit: do not ask for keys that are exempt.
    pub fn tier_of(mut self, tier_of: impl Fn(&K) -> Option<usize> + Send + Sync + 'static) -> Self {
        self.spec.tier_of = Some(Box::new(tier_of));
        self
    }

    /// Names each key's errors and events by the key.
    pub fn name_by(mut self, name_of: impl Fn(&K) -> Name + Send + Sync + 'static) -> Self {
        self.spec.name_of = Some(Box::new(name_of));
        self
    }

    /// Counts what each key takes and is refused: see [`readings`](KeyedRateLimiter::readings).
    pub fn metered(mut self) -> Self {
        self.spec.is_metered = true;
        self
    }

    /// Sets the hasher of keys. Seeded by the system by default.
    pub fn hasher<T: BuildHasher>(self, hasher: T) -> Builder<KeyedRateLimiter<K, T>> {
        let KeyedLimiterSpec { config, tier_of, name_of, is_metered, .. } = self.spec;
        Builder { spec: KeyedLimiterSpec { config, tier_of, name_of, hasher, is_metered }, common: self.common }
    }
}

impl<K: Eq + Hash + Clone, S: BuildHasher> Component for KeyedRateLimiter<K, S> {
    type Built = Result<Self, ConfigError>;
    type Spec = KeyedLimiterSpec<K, S>;

    fn assemble(spec: Self::Spec, Common { name, clock, hooks, .. }: Common) -> Self::Built {
        let KeyedLimiterSpec { config, tier_of, name_of, hasher, is_metered } = spec;
        let (mode, tiers) = (config.limit.mode, config.checked()?);
        Ok(Self(Arc::new(KeyedCore {
            shards: Sharded::new(|| ShardState::new(tiers.clone(), is_metered)),
            tiers: Mutex::new((0, tiers)),
            changes: AtomicU64::new(0),
            max_wait: AtomicU64::new(nanos(config.limit.max_wait)),
            max_hint: AtomicU64::new(nanos(config.limit.max_hint)),
            max_keys: AtomicU64::new(config.max_keys.into()),
            parts: KeyedParts { mode, tier_of, name, name_of, hasher, clock, is_metered },
            events: hooks.events(),
        })))
    }
}

impl<K: Eq + Hash + Clone, S: BuildHasher> HasName for KeyedRateLimiter<K, S> {}
impl<K: Eq + Hash + Clone, S: BuildHasher> HasEvents<ThrottlingEvent> for KeyedRateLimiter<K, S> {}

impl<K, S> KeyedCore<K, S> {
    pub(super) fn max_wait(&self) -> Duration {
        Duration::from_nanos(self.max_wait.load(Ordering::Relaxed))
    }

    pub(super) fn max_hint(&self) -> Duration {
        Duration::from_nanos(self.max_hint.load(Ordering::Relaxed))
    }

    /// Returns the maximum number of keys in one shard.
    pub(super) fn most(&self) -> usize {
        self.shards.share(usize::try_from(self.max_keys.load(Ordering::Relaxed)).unwrap_or(usize::MAX))
    }
}

impl<K, S> KeyedRateLimiter<K, S> {
    pub(super) fn share(&self) -> Self {
        Self(self.0.clone())
    }

    pub(super) fn name_of(&self, key: &(impl KeyRef<K> + ?Sized)) -> Option<Name> {
        let KeyedParts { name, name_of, .. } = &self.0.parts;
        name_of.as_ref().map(|name_of| key.with_key(name_of)).or_else(|| name.clone())
    }
}

impl<K: Eq + Hash + Clone, S: BuildHasher> Reconfigure<KeyedRateLimitConfig> for KeyedRateLimiter<K, S> {
    fn config(&self) -> KeyedRateLimitConfig {
        self.config()
    }

    fn validate(&self, next: &KeyedRateLimitConfig) -> Result<Effect, ConfigError> {
        next.checked()?;
        let same_mode = next.limit.mode == self.0.parts.mode;
        Ok(match require(same_mode, "limit.mode", "must stay as it is while the limiter is in use") {
            Ok(()) => Effect::of_change(&self.config(), next),
            Err(error) => Effect::Restart(error),
        })
    }

    fn apply(&self, next: KeyedRateLimitConfig) -> Result<(), ConfigError> {
        self.reconfigure(next)
    }
}

impl<K: Eq + Hash + Clone, S: BuildHasher> KeyedRateLimiter<K, S> {
    /// Returns what each key took and was refused since the last reading, in any order, if the
    /// limiter is [`metered`](Self::builder). Between two readings it counts for at most
    /// `max_keys` keys, those that come first.
    pub fn readings(&self) -> Vec<(K, Metered)> {
        let read = |shard: &Mutex<ShardState<K>>| {
            let mut state = shard.lock();
            state.meter.as_mut().map(std::mem::take)
        };
        self.0.shards.iter().filter_map(read).flat_map(HashTable::into_iter).collect()
    }

    /// Returns what the key uses of its quota now.
    pub fn usage(&self, key: &(impl KeyRef<K> + ?Sized)) -> KeyUsage {
        let (hash, now, tier) = self.0.locate(key);
        let state = self.0.shards.of(hash).lock();
        let tier = of(&state.tiers, tier);
        let used = match state.limiters.find(hash, |(k, _)| key.is(k)) {
            Some((_, limiter)) => limiter.turns().used(now),
            None => state.table.find(hash, |(k, _)| key.is(k)).map_or(0, |(_, tat)| tier.pace.used(*tat, now)),
        };
        let used = u32::try_from(used).unwrap_or(u32::MAX);
        KeyUsage { used, available: tier.quota.largest().saturating_sub(used), quota: tier.quota }
    }

    /// Returns the remembered keys in any order: keys with permits that have not returned. The
    /// shards are read one after the other, so the list is no snapshot of one moment.
    pub fn keys(&self) -> Vec<K> {
        let mut keys = Vec::new();
        for shard in self.0.shards.iter() {
            let state = shard.lock();
            keys.extend(
                state.table.iter().map(|(key, _)| key.clone()).chain(state.limiters.iter().map(|(key, _)| key.clone())),
            );
        }
        keys
    }

    /// Returns the current settings.
    pub fn config(&self) -> KeyedRateLimitConfig {
        let current = self.0.tiers.lock();
        let (tiers, max_keys) = (&current.1, self.0.max_keys.load(Ordering::Relaxed));
        let mut limit = self.0.parts.config_of(tiers[0].quota);
        (limit.max_wait, limit.max_hint) = (self.0.max_wait(), self.0.max_hint());
        let tiers = tiers[1..].iter().map(|tier| tier.quota).collect();
        KeyedRateLimitConfig { limit, tiers, max_keys: u32::try_from(max_keys).unwrap_or(u32::MAX) }
    }

    /// Changes the settings while they are in use. The mode and the tier of each key stay. A tier
    /// that no longer exists becomes the default. In smooth mode each key keeps the used share of
    /// its burst; in strict mode, its used permits.
    ///
    /// The change visits all remembered keys, one shard at a time: some milliseconds for a hundred
    /// thousand keys. Calls meanwhile pass by the old quotas or the new ones.
    ///
    /// # Errors
    /// If a setting is invalid, or the mode is another one; then nothing has changed.
    pub fn reconfigure(&self, config: impl Into<KeyedRateLimitConfig>) -> Result<(), ConfigError> {
        let config = config.into();
        if let Effect::Restart(error) = self.validate(&config)? {
            return Err(error);
        }
        let tiers = config.checked()?;
        let change = {
            // The values beside the tiers change under the same lock, so that two concurrent changes
            // do not mix their settings.
            let mut current = self.0.tiers.lock();
            self.0.max_wait.store(nanos(config.limit.max_wait), Ordering::Relaxed);
            self.0.max_hint.store(nanos(config.limit.max_hint), Ordering::Relaxed);
            self.0.max_keys.store(config.max_keys.into(), Ordering::Relaxed);
            let change = self.0.changes.fetch_add(1, Ordering::Relaxed) + 1;
            *current = (change, tiers.clone());
            change
        };
        self.0.shards.iter().for_each(|shard| self.0.change(shard, &tiers, change));
        let KeyedParts { name, clock, .. } = &self.0.parts;
        self.0.events.send(name.as_ref(), clock.now(), || ThrottlingEvent::LimitChanged);
        Ok(())
    }

    /// Subscribes to the events of all keys from now on. They carry the key's name if the limiter
    /// is [named by](Self::builder) key.
    pub fn events(&self) -> Subscription<ThrottlingEvent> {
        self.0.events.subscribe()
    }

    /// Takes one permit of `key` now.
    ///
    /// # Errors
    /// The rejection, with the exact time after which a permit is available.
    #[inline]
    pub fn try_acquire(&self, key: &(impl KeyRef<K> + ?Sized)) -> Result<(), Rejected> {
        self.try_acquire_n(key, 1)
    }

    /// Takes `n` permits of `key` now, all or none.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire), and [`Reason::TooLarge`](crate::Reason::TooLarge) if
    /// the key can never have `n` at once.
    #[inline]
    pub fn try_acquire_n(&self, key: &(impl KeyRef<K> + ?Sized), n: u32) -> Result<(), Rejected> {
        match self.take(key, n) {
            Ok(_) => Ok(()),
            Err(refusal) => Err(self.rejected(key, refusal)),
        }
    }

    /// Returns the number of remembered keys. Includes keys whose permits have all returned and
    /// whose memory was not needed yet.
    pub fn len(&self) -> usize {
        self.0.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Returns `true` if no key is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets every key whose permits have all returned, and releases their memory. Calling it is
    /// optional: room is made when it is needed.
    pub fn forget_idle(&self) {
        let (now, hasher) = (self.0.now(), &self.0.parts.hasher);
        for shard in self.0.shards.iter() {
            let state = &mut *shard.lock();
            state.table.retain(|(_, tat)| *tat > now);
            state.table.shrink_to_fit(|(k, _)| hasher.hash_one(k));
            state.limiters.retain(|(_, limiter)| !limiter.is_unused(now));
            state.limiters.shrink_to_fit(|(k, _)| hasher.hash_one(k));
        }
    }
}
