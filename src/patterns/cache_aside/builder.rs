//! Building a cache.
use std::{fmt, fmt::Display, hash::Hash, str::FromStr, sync::Arc, time::Duration};

use super::{
    CacheAside, CacheAsideConfig, Codec, Unattended,
    local::table::Local,
    local::tags::Tags,
    remote::backplane::Backplane,
    remote::health::Health,
    remote::lookup::{LONGEST, Remote},
    remote::pending::PendingInvalidations,
    remote::shared::{Epochs, Shared},
    report::Report,
    spawner::Spawner,
    state::{Inner, LoadOutcome, Weigher},
    stats::Stats,
};
use crate::{
    config::{ConfigError, Name, require},
    entropy::Entropy,
    flight::{Flights, Seat, Unattended as Finisher},
    notify::Notifier,
    observe::Events,
    port::{BoxFuture, Capability},
    store::Store,
    time::Clock,
};

/// The builder of a [`CacheAside`], from [`CacheAside::builder`].
pub struct CacheAsideBuilder<K, V> {
    config: CacheAsideConfig,
    name: Option<Name>,
    clock: Clock,
    entropy: Option<Entropy>,
    spawner: Spawner,
    weigher: Option<Weigher<K, V>>,
    store: Option<(Arc<dyn Store>, Codec<V>)>,
    notifier: Option<Arc<dyn Notifier>>,
    text: Option<Text<K>>,
}

/// The conversions of a key to text and back.
type Text<K> = (fn(&K) -> String, fn(&str) -> Option<K>);

impl<K, V> CacheAsideBuilder<K, V> {
    /// Sets the configuration.
    #[must_use]
    pub const fn config(mut self, config: CacheAsideConfig) -> Self {
        self.config = config;
        self
    }

    /// Sets the name, which events carry. In the remote tier and on the backplane, caches of one
    /// name are one cache.
    #[must_use]
    pub fn named(mut self, name: impl Into<Name>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the clock. tokio's by default.
    #[must_use]
    pub fn clock(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    /// Sets the source of randomness for jitter and early refreshes. Seeded by the system by
    /// default.
    #[must_use]
    pub fn entropy(mut self, entropy: &Entropy) -> Self {
        self.entropy = Some(entropy.clone());
        self
    }

    /// Sets the spawner of background loads: early refreshes, and loads that no caller waits for.
    /// By default each is a task of the tokio runtime in which the call is made; outside of a
    /// runtime there are none.
    #[must_use]
    pub fn spawner(mut self, spawn: impl Fn(BoxFuture<'static, ()>) + Send + Sync + 'static) -> Self {
        self.spawner = Spawner::Own(Arc::new(spawn));
        self
    }

    /// Sets the weight of entries: [`capacity`](CacheAsideConfig::capacity) is then the maximum sum
    /// of their weights. A weight of 0 counts as 1. By default each entry weighs 1. An entry above
    /// 97 % of the capacity is not kept; an [event](super::CacheAsideEvent::TooHeavy) reports it.
    ///
    /// A value that is expensive to load can be given a smaller weight, so that it stays longer.
    #[must_use]
    pub fn weigher(mut self, weigh: impl Fn(&K, &V) -> u64 + Send + Sync + 'static) -> Self {
        self.weigher = Some(Arc::new(weigh));
        self
    }

    /// Sets the remote tier: values are also kept in this store, where other processes find them.
    /// It needs a [name](Self::named).
    ///
    /// The row of a key is its text, from which [`FromStr`] must restore the key.
    #[must_use]
    pub fn remote(mut self, store: Arc<dyn Store>, codec: Codec<V>) -> Self
    where
        K: Display + FromStr,
    {
        self.store = Some((store, codec));
        self.with_text()
    }

    /// Sets the backplane: other processes are notified of invalidations, and theirs are received
    /// while [`CacheAside::run`] runs. It needs a [name](Self::named).
    #[must_use]
    pub fn backplane(mut self, notifier: Arc<dyn Notifier>) -> Self
    where
        K: Display + FromStr,
    {
        self.notifier = Some(notifier);
        self.with_text()
    }

    fn with_text(mut self) -> Self
    where
        K: Display + FromStr,
    {
        self.text = Some((|key| key.to_string(), |text| text.parse().ok()));
        self
    }
}

impl<K, V> CacheAsideBuilder<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    pub(super) fn new() -> Self {
        Self {
            config: CacheAsideConfig::default(),
            name: None,
            clock: Clock::default(),
            entropy: None,
            spawner: Spawner::Tokio,
            weigher: None,
            store: None,
            notifier: None,
            text: None,
        }
    }

    /// Builds the cache.
    ///
    /// # Errors
    /// If a setting breaks a rule, or the remote tier's store lacks a capability that the guard
    /// needs.
    pub fn build(self) -> Result<CacheAside<K, V>, ConfigError> {
        self.config.check()?;
        let entropy = self.entropy.unwrap_or_default();
        let shared = match self.text {
            None => None,
            Some(text) => {
                let name = self.name.as_ref().map_or("", Name::as_str);
                require(!name.is_empty(), "name", "must be given where processes share a cache")?;
                Some(shared(text, name, self.store, self.notifier, &self.config)?)
            }
        };
        let capacity = self.config.capacity;
        let local = if self.weigher.is_some() { Local::of_weight(capacity) } else { Local::of_entries(capacity) };
        let spawner = self.spawner;
        let finisher = (self.config.unattended == Unattended::Finish).then(|| finisher(spawner.clone()));
        Ok(CacheAside(Arc::new(Inner {
            local,
            flights: Flights::new(finisher),
            tags: Tags::new(),
            report: Report { clock: self.clock, stats: Stats::new(), events: Events::new(), name: self.name },
            entropy,
            spawner,
            weigher: self.weigher,
            shared,
            config: self.config,
        })))
    }
}

fn finisher<K, V>(spawner: Spawner) -> Finisher<K, LoadOutcome<V>>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    Arc::new(move |seat: Seat<K, LoadOutcome<V>>| spawner.spawn(Box::pin(async move { drop(seat.await) })))
}

fn shared<K, V>(
    (row, parse): Text<K>,
    name: &str,
    store: Option<(Arc<dyn Store>, Codec<V>)>,
    notifier: Option<Arc<dyn Notifier>>,
    config: &CacheAsideConfig,
) -> Result<Shared<K, V>, ConfigError> {
    /// Time to live of a claim if loads have no time limit.
    const LONG: Duration = Duration::from_secs(300);
    // Not from the cache's own entropy: processes may have been given the same seed.
    let me = Entropy::from_os().next_u64();
    let timeout = config.remote.timeout;
    let remote = match store {
        None => None,
        Some((store, codec)) => {
            let can = store.capabilities();
            for needed in [Capability::Linearizable, Capability::OrderedVersions, Capability::TimeToLive] {
                can.require(needed).map_err(|lacks| lacks.refuse("remote"))?;
            }
            let (values, marks) = (format!("cache {name}"), format!("cache-tags {name}"));
            require(marks.len() <= can.max_key(), "name", "must not be longer than the store's keys may be")?;
            let load = config.hard_timeout.unwrap_or(LONG);
            let claim_ttl = load.saturating_add(timeout.saturating_mul(3)).min(LONGEST);
            let (remote, health) = (config.remote, Health::new(config.remote.rest));
            Some(Remote { store, codec, config: remote, values, marks, me, claim_ttl, health })
        }
    };
    let topic = format!("steadfast/cache/{name}");
    let backplane =
        notifier.map(|notifier| Backplane { notifier, topic, me, timeout, health: Health::new(config.remote.rest) });
    let (pending_invalidations, became_pending, rest) =
        (PendingInvalidations::default(), Default::default(), config.remote.rest);
    Ok(Shared { row, parse, remote, backplane, epochs: Epochs::new(), pending_invalidations, became_pending, rest })
}

impl<K, V> fmt::Debug for CacheAsideBuilder<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheAsideBuilder")
            .field("name", &self.name)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
