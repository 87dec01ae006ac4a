//! A breaker for each of many keys.
use std::{
    fmt,
    future::Future,
    hash::{BuildHasher, Hash, RandomState},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use hashbrown::{HashTable, hash_table::Entry};

use super::{
    CircuitBreaker, CircuitBreakerConfig, CircuitBreakerEvent, KeyedBreakersConfig, State, Transition,
    open_limit::OpenLimit, plan::Setting, policy::Shared,
};
use crate::{
    call::Operation,
    config::{ConfigError, Name},
    entropy::Entropy,
    observe::Subscription,
    outcome::CallError,
    sync::Mutex,
    time::{Clock, Instant},
};

/// A [`CircuitBreaker`] for each key: each host, each shard, each tenant.
///
/// A clone is the same family. A key's breaker is made when it is first asked for, and is a breaker like any other: put it into a
/// pipeline, call it, open it by hand. All share one configuration, one stream of events and one of transitions. A key that has been
/// idle makes room when the table would grow: see [`forget_idle`](Self::forget_idle). A healthy key takes its own size, about 140 bytes
/// for its breaker, and 8 to 16 in the table; windows of time take 24 bytes more for each bucket. Keys are hashed by SipHash with random
/// seeds, so that an attacker who chooses keys cannot make them collide.
///
/// ```
/// use steadfast::{Verdict, FailureKind, circuit_breaker::{CircuitBreakerConfig, KeyedBreakers, KeyedBreakersConfig, State}};
///
/// let config = KeyedBreakersConfig::from(CircuitBreakerConfig::default().count_window(10, 5)).max_open(0.5);
/// let hosts = KeyedBreakers::new(config).unwrap().named_by(|host: &String| format!("api/{host}").into());
/// let (one, other) = ("10.0.0.1".to_owned(), "10.0.0.2".to_owned());
/// assert_eq!(hosts.get(&other).state(), State::Closed);
/// for _ in 0..5 {
///     hosts.get(&one).try_acquire().unwrap().record(Verdict::failure(FailureKind::Connect));
/// }
/// assert_eq!((hosts.get(&one).state(), hosts.get(&other).state()), (State::Open, State::Closed));
/// ```
pub struct KeyedBreakers<K, S = RandomState>(Arc<Registry<K, S>>);

type NameOf<K> = Arc<dyn Fn(&K) -> Name + Send + Sync>;

struct Registry<K, S> {
    shared: Arc<Shared>,
    config: Mutex<KeyedBreakersConfig>,
    name: Option<Name>,
    name_of: Option<NameOf<K>>,
    hasher: S,
    shards: Box<[Shard<K>]>,
}

/// Aligned to a cache line, so that two processors at two shards do not wait for each other.
#[repr(align(64))]
struct Shard<K>(Mutex<Keys<K>>);

struct Keys<K> {
    table: HashTable<(K, CircuitBreaker)>,
    /// When it was last looked through for idle keys.
    swept: Instant,
    /// Until when nothing in it could be forgotten.
    full_until: Instant,
}

/// When a table in which nothing could be forgotten is looked through again.
const LOOKS_AGAIN: Duration = Duration::from_secs(1);

/// So many that two threads rarely meet in one; a power of two.
const SHARDS: usize = 64;

impl<K: Eq + Hash + Clone> KeyedBreakers<K> {
    /// A family without a key, by these settings (or those of a breaker alone).
    ///
    /// # Errors
    /// Where a setting breaks its rule.
    pub fn new(config: impl Into<KeyedBreakersConfig>) -> Result<Self, ConfigError> {
        Self::with_hasher(config, RandomState::new())
    }
}

impl<K: Eq + Hash + Clone, S: BuildHasher> KeyedBreakers<K, S> {
    /// As [`new`](KeyedBreakers::new), with a hasher of your own.
    ///
    /// # Errors
    /// Where a setting breaks its rule.
    pub fn with_hasher(config: impl Into<KeyedBreakersConfig>, hasher: S) -> Result<Self, ConfigError> {
        let config = config.into();
        config.check()?;
        Ok(Self::make(config, hasher, Clock::tokio(), Entropy::from_os(), (None, None)))
    }

    fn make(
        config: KeyedBreakersConfig,
        hasher: S,
        clock: Clock,
        entropy: Entropy,
        (name, name_of): (Option<Name>, Option<NameOf<K>>),
    ) -> Self {
        let swept = clock.now();
        let shard = || Shard(Mutex::new(Keys { table: HashTable::new(), swept, full_until: swept }));
        let set = Setting::new(config.breaker, entropy, Some(OpenLimit::new(config.max_open)));
        Self(Arc::new(Registry {
            shared: Arc::new(Shared::new(set, clock)),
            config: Mutex::new(config),
            name,
            name_of,
            hasher,
            shards: (0..SHARDS).map(|_| shard()).collect(),
        }))
    }

    /// A new family of the same settings, whose breakers all have this name.
    #[must_use]
    pub fn named(self, name: impl Into<Name>) -> Self
    where
        S: Clone,
    {
        let (clock, entropy) = self.parts();
        Self::make(self.config(), self.0.hasher.clone(), clock, entropy, (Some(name.into()), None))
    }

    /// A new family of the same settings, which names each breaker by its key, for errors and events. A name takes memory of its own.
    #[must_use]
    pub fn named_by(self, name_of: impl Fn(&K) -> Name + Send + Sync + 'static) -> Self
    where
        S: Clone,
    {
        let (clock, entropy) = self.parts();
        let names = (self.0.name.clone(), Some(Arc::new(name_of) as NameOf<K>));
        Self::make(self.config(), self.0.hasher.clone(), clock, entropy, names)
    }

    /// A new family of the same settings on another clock.
    #[must_use]
    pub fn with_clock(self, clock: &Clock) -> Self
    where
        S: Clone,
    {
        let names = (self.0.name.clone(), self.0.name_of.clone());
        Self::make(self.config(), self.0.hasher.clone(), clock.clone(), self.parts().1, names)
    }

    /// A new family of the same settings with other randomness for its jitter.
    #[must_use]
    pub fn with_entropy(self, entropy: &Entropy) -> Self
    where
        S: Clone,
    {
        let names = (self.0.name.clone(), self.0.name_of.clone());
        Self::make(self.config(), self.0.hasher.clone(), self.parts().0, entropy.clone(), names)
    }

    fn parts(&self) -> (Clock, Entropy) {
        (self.0.shared.clock.clone(), self.0.shared.set.entropy.clone())
    }

    /// Its settings, as they are now.
    pub fn config(&self) -> KeyedBreakersConfig {
        *self.0.config.lock()
    }

    /// Replaces the settings while they are in use: for each key as [`CircuitBreaker::reconfigure`] says. Goes through all keys.
    ///
    /// A smaller `max_open` closes none that is open.
    ///
    /// # Errors
    /// Where a setting breaks its rule; then nothing has changed.
    pub fn reconfigure(&self, config: impl Into<KeyedBreakersConfig>) -> Result<(), ConfigError> {
        let config = config.into();
        config.check()?;
        let Shared { set, clock, .. } = &*self.0.shared;
        let now = clock.now();
        {
            let mut current = self.0.config.lock();
            *current = config;
            // With the settings, so that two who replace them at once do not mix theirs.
            set.replace(config.breaker);
            set.open_limit.iter().for_each(|limit| limit.set_share(config.max_open));
        }
        set.events.stage_as(self.0.name.as_ref(), now, || CircuitBreakerEvent::Reconfigured);
        for shard in &self.0.shards {
            // A key that is made from now on is made by the new settings.
            shard.0.lock().table.iter().for_each(|(_, breaker)| breaker.0.core.reconfigured(set, now));
        }
        self.flush();
        Ok(())
    }

    /// The breaker of this key, made if there is none. Whoever keeps it keeps the key from being forgotten.
    pub fn get(&self, key: &K) -> CircuitBreaker {
        let hash = self.0.hasher.hash_one(key);
        let found = Self::find(&self.shard(hash).lock(), hash, key); // the lock is free again here
        found.unwrap_or_else(|| self.add(hash, key))
    }

    /// The breaker of this key, if there is one, marked as asked for.
    fn find(keys: &Keys<K>, hash: u64, key: &K) -> Option<CircuitBreaker> {
        let (_, breaker) = keys.table.find(hash, |(k, _)| k == key)?;
        if !breaker.0.core.used.load(Relaxed) {
            breaker.0.core.used.store(true, Relaxed);
        }
        Some(breaker.clone())
    }

    /// The breaker of this key, if there is one. Does not count as asking for it.
    pub fn peek(&self, key: &K) -> Option<CircuitBreaker> {
        let hash = self.0.hasher.hash_one(key);
        let keys = self.shard(hash).lock();
        keys.table.find(hash, |(k, _)| k == key).map(|(_, breaker)| breaker.clone())
    }

    /// Runs `operation` with nothing but this key's breaker around it; every `Err` is a failure.
    ///
    /// # Errors
    /// The operation's own, or the rejection.
    ///
    /// # Cancel safety
    /// Dropped, it drops the operation; the call counts as cancelled.
    pub fn call<O: Operation>(
        &self,
        key: &K,
        operation: O,
    ) -> impl Future<Output = Result<O::Output, CallError<O::Error>>> + Send + use<K, S, O> {
        let breaker = self.get(key);
        async move { breaker.call(operation).await }
    }

    /// All keys and their breakers, as they are when their part of the table is come to: nothing is locked between two of them.
    pub fn iter(&self) -> impl Iterator<Item = (K, CircuitBreaker)> + '_ {
        self.0.shards.iter().flat_map(|shard| shard.0.lock().table.iter().cloned().collect::<Vec<_>>())
    }

    /// How many keys are in each state, in the order of [`State::ALL`](super::State::ALL). Goes through all keys.
    pub fn states(&self) -> [usize; 4] {
        let mut states = [0; 4];
        for shard in &self.0.shards {
            let keys = shard.0.lock();
            keys.table.iter().for_each(|(_, breaker)| states[usize::from(breaker.state().number())] += 1);
        }
        states
    }

    /// How many breakers are not closed, of those that are remembered or held by somebody.
    pub fn open_now(&self) -> usize {
        self.0.shared.set.open_limit.as_ref().map_or(0, |limit| limit.open() as usize)
    }

    /// How many keys it remembers.
    pub fn len(&self) -> usize {
        self.0.shards.iter().map(|shard| shard.0.lock().table.len()).sum()
    }

    /// Whether it remembers no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets a key, whatever state its breaker is in: for what is gone for ever. Whoever holds the breaker has the last of it.
    pub fn forget(&self, key: &K) -> bool {
        let hash = self.0.hasher.hash_one(key);
        let mut keys = self.shard(hash).lock();
        let removed = keys.table.find_entry(hash, |(k, _)| k == key).map_or(None, |found| Some(found.remove().0));
        drop(keys);
        removed.is_some()
    }

    /// Forgets every key that nobody has asked for since the last time, if that was at least `idle` ago, and gives the memory back. Kept
    /// are breakers that somebody holds, isolated ones, those open or half-open (until `reset_after` after the time at which a call
    /// would have ended that), and those whose openings in a row are not yet forgotten. There is no need to call it: a part of the
    /// table does so by itself before it grows. So a key that is never asked for again is gone after twice `idle` at the latest, if
    /// there is anybody who needs its place.
    pub fn forget_idle(&self) {
        for shard in &self.0.shards {
            let mut keys = shard.0.lock();
            self.sweep(&mut keys);
            keys.table.shrink_to_fit(|(k, _)| self.0.hasher.hash_one(k));
        }
    }

    /// The events of all its breakers from now on. Their source is the breaker's name.
    pub fn events(&self) -> Subscription<CircuitBreakerEvent> {
        self.0.shared.set.events.subscribe()
    }

    /// The changes of state of all its breakers from now on, and nothing else. Their source is the breaker's name.
    pub fn transitions(&self) -> Subscription<Transition> {
        self.0.shared.set.transitions.subscribe()
    }

    /// Turns shadow mode on or off for all keys: on, they measure and change their states as ever, but reject nothing.
    pub fn set_shadow(&self, on: bool) {
        self.0.shared.shadow.store(on, Relaxed);
    }

    /// The table takes its place from the low bits and its tag from the top seven: the shard takes bits between.
    fn shard(&self, hash: u64) -> &Mutex<Keys<K>> {
        &self.0.shards[(hash >> 48) as usize % SHARDS].0
    }

    #[cold]
    fn add(&self, hash: u64, key: &K) -> CircuitBreaker {
        let Registry { shared, name, name_of, hasher, .. } = &*self.0;
        // Outside the lock: a user's code may take its time, panic, or come back here.
        let name = name_of.as_ref().map(|name_of| name_of(key)).or_else(|| name.clone());
        let own = key.clone();
        let mut keys = self.shard(hash).lock();
        if let Some(breaker) = Self::find(&keys, hash, key) {
            return breaker; // another caller was quicker
        }
        if keys.table.len() == keys.table.capacity() {
            self.sweep(&mut keys); // before it grows
        }
        let breaker = CircuitBreaker::member(shared.clone(), &shared.set.config(), name);
        let most = (self.config().max_keys as usize).div_ceil(SHARDS);
        if (keys.table.len() < most || self.make_room(&mut keys, most))
            && let Entry::Vacant(place) = keys.table.entry(hash, |(k, _)| k == key, |(k, _)| hasher.hash_one(k))
        {
            place.insert((own, breaker.clone()));
        }
        breaker
    }

    /// Forgets so many closed breakers that there is room for some new ones; false where none could be forgotten.
    fn make_room(&self, keys: &mut Keys<K>, most: usize) -> bool {
        let now = self.0.shared.clock.now();
        if now < keys.full_until {
            return false;
        }
        let mut excess = keys.table.len() - (most - most.div_ceil(8));
        for is_used in [false, true] {
            keys.table.retain(|(_, breaker)| {
                let forgotten = excess > 0
                    && breaker.0.core.used.load(Relaxed) == is_used
                    && !breaker.is_held()
                    && breaker.state() == State::Closed;
                excess -= usize::from(forgotten);
                !forgotten
            });
        }
        keys.table.iter().for_each(|(_, breaker)| breaker.0.core.used.store(false, Relaxed));
        let has_room = keys.table.len() < most;
        if !has_room {
            // It is not looked through for each new key.
            keys.full_until = now + LOOKS_AGAIN;
        }
        has_room
    }

    fn sweep(&self, keys: &mut Keys<K>) {
        let KeyedBreakersConfig { breaker: config, idle, .. } = self.config();
        let now = self.0.shared.clock.now();
        if now - keys.swept < idle {
            return;
        }
        keys.swept = now;
        // Nobody gets hold of a breaker while the shard is locked but from one who holds it.
        keys.table.retain(|(_, breaker)| {
            breaker.0.core.used.swap(false, Relaxed) || breaker.is_held() || !breaker.is_forgettable(&config, now)
        });
    }

    fn flush(&self) {
        let Shared { set, .. } = &*self.0.shared;
        set.transitions.flush(None);
        set.events.flush(None);
    }
}

impl CircuitBreaker {
    /// Whether anybody but its family has it.
    fn is_held(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    fn is_forgettable(&self, config: &CircuitBreakerConfig, now: Instant) -> bool {
        self.0.core.is_forgettable(config, now)
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
