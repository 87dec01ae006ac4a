//! Registry of breakers: one per key.
use std::{
    fmt,
    future::Future,
    hash::{BuildHasher, Hash, RandomState},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use hashbrown::{HashTable, hash_table::Entry};

use super::{
    CircuitBreaker, CircuitBreakerEvent, KeyedBreakersConfig, Transition, open_limit::OpenLimit, policy::Shared,
    window::Setting,
};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents, HasName},
    call::Operation,
    config::{ConfigError, Name, Reconfigure, reconfigurable},
    key_ref::KeyRef,
    observe::Subscription,
    outcome::CallError,
    sharded::Sharded,
    sync::Mutex,
    time::Instant,
};

/// Registry of [`CircuitBreaker`]s, one per key: per host, per shard, per tenant.
///
/// A clone is the same registry. A key's breaker is created on first use, and is a breaker like any
/// other: put it into a pipeline, call it, open it manually. All breakers share one configuration,
/// one stream of events and one of transitions.
///
/// Idle keys are removed before a table grows: see [`forget_idle`](Self::forget_idle). A healthy
/// key takes its own size, about 140 bytes for its breaker, and 8 to 16 in the table; time windows
/// take 24 bytes more per bucket. Keys are hashed by SipHash with random seeds, so that an attacker
/// that chooses keys cannot make them collide.
///
/// ```
/// use steadfast::circuit_breaker::{
///     CircuitBreakerConfig, KeyedBreakers, KeyedBreakersConfig, State,
/// };
/// use steadfast::{FailureKind, Verdict};
///
/// let rules = CircuitBreakerConfig::default().count_window(10, 5);
/// let hosts = KeyedBreakers::builder(KeyedBreakersConfig::from(rules).max_open(0.5))
///     .name_by(|host: &String| format!("api/{host}").into())
///     .build()
///     .unwrap();
/// // An owned key is made for a new entry only.
/// let (one, other) = ("10.0.0.1", "10.0.0.2");
/// assert_eq!(hosts.get(other).state(), State::Closed);
/// for _ in 0..5 {
///     hosts.get(one).try_acquire().unwrap().record(Verdict::failure(FailureKind::Connect));
/// }
/// assert_eq!((hosts.get(one).state(), hosts.get(other).state()), (State::Open, State::Closed));
/// ```
pub struct KeyedBreakers<K, S = RandomState>(pub(super) Arc<Registry<K, S>>);

type NameOf<K> = Box<dyn Fn(&K) -> Name + Send + Sync>;

/// Arguments of a registry, beside name, clock and entropy.
pub struct KeyedBreakersSpec<K, S> {
    config: KeyedBreakersConfig,
    name_of: Option<NameOf<K>>,
    hasher: S,
}

pub(super) struct Registry<K, S> {
    pub(super) shared: Arc<Shared>,
    config: Mutex<KeyedBreakersConfig>,
    name: Option<Name>,
    name_of: Option<NameOf<K>>,
    pub(super) hasher: S,
    pub(super) shards: Sharded<Keys<K>>,
}

/// One part of the registry.
pub(super) struct Keys<K> {
    pub(super) table: HashTable<(K, CircuitBreaker)>,
    /// Time of the last sweep for idle keys.
    pub(super) swept: Instant,
    /// Time before which no search for removable keys is made.
    pub(super) full_until: Instant,
}

impl<K: Eq + Hash + Clone> KeyedBreakers<K> {
    /// Creates an empty registry with this configuration, or with that of a single breaker.
    ///
    /// # Errors
    /// If a setting is invalid.
    pub fn new(config: impl Into<KeyedBreakersConfig>) -> Result<Self, ConfigError> {
        Self::builder(config).build()
    }

    /// Creates a builder of an empty registry. All its breakers get the builder's
    /// [`name`](Builder::name), unless `name_by` gives each its own.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CKeyedBreakers%3CK,+S%3E%3E):
    /// `name_by`, `hasher`.
    pub fn builder(config: impl Into<KeyedBreakersConfig>) -> Builder<Self> {
        Builder::new(KeyedBreakersSpec { config: config.into(), name_of: None, hasher: RandomState::new() })
    }
}

impl<K: Eq + Hash + Clone, S: BuildHasher> Builder<KeyedBreakers<K, S>> {
    /// Names each breaker by its key, for errors and events. Names take additional memory.
    pub fn name_by(mut self, name_of: impl Fn(&K) -> Name + Send + Sync + 'static) -> Self {
        self.spec.name_of = Some(Box::new(name_of));
        self
    }

    /// Sets the hasher of keys. Seeded by the system by default.
    pub fn hasher<T: BuildHasher>(self, hasher: T) -> Builder<KeyedBreakers<K, T>> {
        let KeyedBreakersSpec { config, name_of, .. } = self.spec;
        Builder { spec: KeyedBreakersSpec { config, name_of, hasher }, common: self.common }
    }
}

impl<K: Eq + Hash + Clone, S: BuildHasher> Component for KeyedBreakers<K, S> {
    type Built = Result<Self, ConfigError>;
    type Spec = KeyedBreakersSpec<K, S>;

    fn assemble(spec: Self::Spec, common: Common) -> Self::Built {
        let KeyedBreakersSpec { config, name_of, hasher } = spec;
        config.check()?;
        let swept = common.clock.now();
        let keys = || Keys { table: HashTable::new(), swept, full_until: swept };
        let set = Setting::new(config.breaker, &common, Some(OpenLimit::new(config.max_open)));
        let Common { name, clock, .. } = common;
        Ok(Self(Arc::new(Registry {
            shared: Arc::new(Shared::new(set, clock)),
            config: Mutex::new(config),
            name,
            name_of,
            hasher,
            shards: Sharded::new(keys),
        })))
    }
}

impl<K: Eq + Hash + Clone, S: BuildHasher> HasName for KeyedBreakers<K, S> {}
impl<K: Eq + Hash + Clone, S: BuildHasher> HasEntropy for KeyedBreakers<K, S> {}
impl<K: Eq + Hash + Clone, S: BuildHasher> HasEvents<CircuitBreakerEvent> for KeyedBreakers<K, S> {}
impl<K: Eq + Hash + Clone, S: BuildHasher> HasEvents<Transition> for KeyedBreakers<K, S> {}

reconfigurable!([K: Eq + Hash + Clone, S: BuildHasher] KeyedBreakers<K, S>, KeyedBreakersConfig, |_this, next| next.check());

impl<K: Eq + Hash + Clone, S: BuildHasher> KeyedBreakers<K, S> {
    /// Returns the current configuration.
    pub fn config(&self) -> KeyedBreakersConfig {
        *self.0.config.lock()
    }

    /// Replaces the configuration while it is in use, for each key as by
    /// [`CircuitBreaker::reconfigure`]. Visits all keys.
    ///
    /// A smaller `max_open` closes no breaker that is open.
    ///
    /// # Errors
    /// If a setting is invalid; then nothing has changed.
    pub fn reconfigure(&self, config: impl Into<KeyedBreakersConfig>) -> Result<(), ConfigError> {
        let config = config.into();
        self.validate(&config)?;
        let Shared { set, clock, .. } = &*self.0.shared;
        let now = clock.now();
        {
            let mut current = self.0.config.lock();
            *current = config;
            // Under the lock of `config`, so that two concurrent calls do not mix their settings.
            set.replace(config.breaker);
            set.open_limit.iter().for_each(|limit| limit.set_share(config.max_open));
        }
        set.events.stage_as(self.0.name.as_ref(), now, || CircuitBreakerEvent::Reconfigured);
        for shard in self.0.shards.iter() {
            // A key that is created from now on takes the new settings.
            shard.lock().table.iter().for_each(|(_, breaker)| breaker.0.core.reconfigured(set, now));
        }
        self.flush();
        Ok(())
    }

    /// Returns the breaker of this key, and creates it if there is none. Holding it keeps the key
    /// from being removed as idle.
    pub fn get(&self, key: &(impl KeyRef<K> + ?Sized)) -> CircuitBreaker {
        let hash = self.0.hasher.hash_one(key);
        let found = Self::find(&self.0.shards.of(hash).lock(), hash, key); // the lock is free again here
        found.unwrap_or_else(|| self.add(hash, key))
    }

    /// Returns the breaker of this key, if there is one, and marks it as used.
    fn find(keys: &Keys<K>, hash: u64, key: &(impl KeyRef<K> + ?Sized)) -> Option<CircuitBreaker> {
        let (_, breaker) = keys.table.find(hash, |(k, _)| key.is(k))?;
        if !breaker.0.core.used.load(Relaxed) {
            breaker.0.core.used.store(true, Relaxed);
        }
        Some(breaker.clone())
    }

    /// Returns the breaker of this key, if there is one. Does not count as a use.
    pub fn peek(&self, key: &(impl KeyRef<K> + ?Sized)) -> Option<CircuitBreaker> {
        let hash = self.0.hasher.hash_one(key);
        let keys = self.0.shards.of(hash).lock();
        keys.table.find(hash, |(k, _)| key.is(k)).map(|(_, breaker)| breaker.clone())
    }

    /// Runs `operation` with this key's breaker alone around it; every `Err` is a failure.
    ///
    /// # Errors
    /// The operation's own error, or the rejection.
    ///
    /// # Cancel safety
    /// Dropping the call drops the operation; the call counts as cancelled.
    pub fn call<T: Send, E: Send, Q: KeyRef<K> + ?Sized, O: Operation<Output = T, Error = E>>(
        &self,
        key: &Q,
        operation: O,
    ) -> impl Future<Output = Result<T, CallError<E>>> + Send + use<K, S, Q, O, T, E> {
        let breaker = self.get(key);
        async move { breaker.call(operation).await }
    }

    /// Iterates over all keys and their breakers. The registry is not locked between two items;
    /// each part is read when the iterator reaches it.
    pub fn iter(&self) -> impl Iterator<Item = (K, CircuitBreaker)> + '_ {
        self.0.shards.iter().flat_map(|shard| shard.lock().table.iter().cloned().collect::<Vec<_>>())
    }

    /// Returns the number of keys in each state, in the order of [`State::ALL`](super::State::ALL).
    /// Visits all keys.
    pub fn states(&self) -> [usize; 4] {
        let mut states = [0; 4];
        for shard in self.0.shards.iter() {
            let keys = shard.lock();
            keys.table.iter().for_each(|(_, breaker)| states[usize::from(breaker.state().number())] += 1);
        }
        states
    }

    /// Returns the number of breakers that are not closed, both in the registry and held elsewhere.
    pub fn open_now(&self) -> usize {
        self.0.shared.set.open_limit.as_ref().map_or(0, |limit| limit.open() as usize)
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.0.shards.iter().map(|shard| shard.lock().table.len()).sum()
    }

    /// Returns whether the registry has no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes a key and its breaker, in any state. Existing clones of the breaker keep working,
    /// detached from the registry.
    pub fn forget(&self, key: &(impl KeyRef<K> + ?Sized)) -> bool {
        let hash = self.0.hasher.hash_one(key);
        let mut keys = self.0.shards.of(hash).lock();
        let removed = keys.table.find_entry(hash, |(k, _)| key.is(k)).map_or(None, |found| Some(found.remove().0));
        drop(keys);
        removed.is_some()
    }

    /// Subscribes to the events of all breakers. Their source is the breaker's name.
    pub fn events(&self) -> Subscription<CircuitBreakerEvent> {
        self.0.shared.set.events.subscribe()
    }

    /// Subscribes to the state transitions of all breakers, without other events. Their source is
    /// the breaker's name.
    pub fn transitions(&self) -> Subscription<Transition> {
        self.0.shared.set.transitions.subscribe()
    }

    /// Turns shadow mode on or off for all keys. In shadow mode, breakers measure and change their
    /// state, but reject nothing.
    pub fn set_shadow(&self, on: bool) {
        self.0.shared.shadow.store(on, Relaxed);
    }

    #[cold]
    fn add(&self, hash: u64, key: &(impl KeyRef<K> + ?Sized)) -> CircuitBreaker {
        let Registry { shared, name, name_of, hasher, .. } = &*self.0;
        // Outside the lock: the callback may be slow, panic, or use this registry.
        let own = key.to_key();
        let name = name_of.as_ref().map(|name_of| name_of(&own)).or_else(|| name.clone());
        let mut keys = self.0.shards.of(hash).lock();
        if let Some(breaker) = Self::find(&keys, hash, key) {
            return breaker; // another caller has created it
        }
        if keys.table.len() == keys.table.capacity() {
            self.sweep(&mut keys); // before the table grows
        }
        let breaker = CircuitBreaker::member(shared.clone(), &shared.set.config(), name);
        let most = self.0.shards.share(self.config().max_keys as usize);
        if (keys.table.len() < most || self.make_room(&mut keys, most))
            && let Entry::Vacant(place) = keys.table.entry(hash, |(k, _)| key.is(k), |(k, _)| hasher.hash_one(k))
        {
            place.insert((own, breaker.clone()));
        }
        breaker
    }

    fn flush(&self) {
        let Shared { set, .. } = &*self.0.shared;
        set.transitions.flush(None);
        set.events.flush(None);
    }
}

impl<K, S> Clone for KeyedBreakers<K, S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K, S> fmt::Debug for KeyedBreakers<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedBreakers").field("name", &self.0.name).field("config", &*self.0.config.lock()).finish()
    }
}
