//! Building a cache.
use std::{fmt::Display, hash::Hash, str::FromStr, sync::Arc};

use super::{
    CacheAside, CacheAsideConfig, CacheAsideEvent, Unattended,
    local::table::Local,
    local::tags::Tags,
    remote::background::BackgroundWrites,
    remote::backplane::Backplane,
    remote::health::Health,
    remote::lookup::Remote,
    remote::pending::PendingInvalidations,
    remote::shared::{Epochs, Shared},
    report::Report,
    state::{Inner, Weigher},
    stats::Stats,
};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents, HasName},
    codec::Codec,
    config::{ConfigError, Live, Name, require},
    entropy::Entropy,
    flight::Flights,
    notify::Notifier,
    port::{BoxFuture, Capability},
    spawn::Spawner,
    store::Store,
};

/// Arguments of a cache, beside name, clock and entropy.
pub struct CacheAsideSpec<K, V> {
    config: CacheAsideConfig,
    spawner: Spawner,
    weigher: Option<Weigher<K, V>>,
    store: Option<(Arc<dyn Store>, Codec<V>)>,
    notifier: Option<Arc<dyn Notifier>>,
    text: Option<Text<K>>,
}

/// The conversions of a key to text and back.
type Text<K> = (fn(&K) -> String, fn(&str) -> Option<K>);

impl<K, V> Builder<CacheAside<K, V>>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Sets the spawner of background loads: early refreshes, and loads that no caller waits for.
    /// By default each is a task of the tokio runtime in which the call is made; outside of a
    /// runtime there are none.
    pub fn spawner(mut self, spawn: impl Fn(BoxFuture<'static, ()>) + Send + Sync + 'static) -> Self {
        self.spec.spawner = Spawner::own(spawn);
        self
    }

    /// Sets the weight of entries: [`capacity`](CacheAsideConfig::capacity) is then the maximum sum
    /// of their weights. A weight of 0 counts as 1. By default each entry weighs 1. An entry above
    /// 97 % of the capacity is not kept; an [event](super::CacheAsideEvent::TooHeavy) reports it.
    ///
    /// A value that is expensive to load can be given a smaller weight, so that it stays longer.
    pub fn weigher(mut self, weigh: impl Fn(&K, &V) -> u64 + Send + Sync + 'static) -> Self {
        self.spec.weigher = Some(Arc::new(weigh));
        self
    }

    /// Sets the remote tier: values are also kept in this store, where other processes find them.
    /// It needs a [name](Self::name).
    ///
    /// The row of a key is its text, from which [`FromStr`] must restore the key.
    ///
    /// A value that the codec cannot encode is kept in this process only. A value that it cannot
    /// decode is a miss, and the following load replaces it, so that a new release may
    /// [change the format](crate::codec). An event reports either.
    pub fn remote(mut self, store: Arc<dyn Store>, codec: Codec<V>) -> Self
    where
        K: Display + FromStr,
    {
        self.spec.store = Some((store, codec));
        self.with_text()
    }

    /// Sets the backplane: other processes are notified of invalidations, and theirs are received
    /// while [`CacheAside::run`] runs. It needs a [name](Self::name).
    pub fn backplane(mut self, notifier: Arc<dyn Notifier>) -> Self
    where
        K: Display + FromStr,
    {
        self.spec.notifier = Some(notifier);
        self.with_text()
    }

    fn with_text(mut self) -> Self
    where
        K: Display + FromStr,
    {
        self.spec.text = Some((|key| key.to_string(), |text| text.parse().ok()));
        self
    }
}

impl<K, V> Component for CacheAside<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    type Built = Result<Self, ConfigError>;
    type Spec = CacheAsideSpec<K, V>;

    fn assemble(spec: Self::Spec, common: Common) -> Self::Built {
        let CacheAsideSpec { config, spawner, weigher, store, notifier, text } = spec;
        config.check()?;
        let live = Live::new(config);
        let (entropy, Common { name, clock, hooks, .. }) = (common.entropy(), common);
        let shared = match text {
            None => None,
            Some(text) => {
                let name = name.as_ref().map_or("", Name::as_str);
                require(!name.is_empty(), "name", "must be given where processes share a cache")?;
                Some(shared(text, name, store, notifier, &live)?)
            }
        };
        let capacity = config.capacity;
        let local = if weigher.is_some() { Local::of_weight(capacity) } else { Local::of_entries(capacity) };
        let flights = match config.unattended {
            Unattended::Finish => Flights::finishing(spawner.clone()),
            Unattended::Drop => Flights::new(None),
        };
        Ok(Self(Arc::new(Inner {
            local,
            flights,
            tags: Tags::new(),
            report: Report { clock, stats: Stats::new(), events: hooks.events(), name },
            entropy,
            spawner,
            weigher,
            shared,
            config: live,
        })))
    }
}

impl<K, V> HasName for CacheAside<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
}

impl<K, V> HasEntropy for CacheAside<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
}

impl<K, V> HasEvents<CacheAsideEvent> for CacheAside<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
}

impl<K, V> CacheAsideSpec<K, V> {
    pub(super) fn new(config: CacheAsideConfig) -> Self {
        Self { config, spawner: Spawner::default(), weigher: None, store: None, notifier: None, text: None }
    }
}

fn shared<K, V>(
    (row, parse): Text<K>,
    name: &str,
    store: Option<(Arc<dyn Store>, Codec<V>)>,
    notifier: Option<Arc<dyn Notifier>>,
    live: &Live<CacheAsideConfig>,
) -> Result<Shared<K, V>, ConfigError> {
    // Not from the cache's own entropy: processes may have been given the same seed.
    let me = Entropy::from_os().next_u64();
    let rest = live.now().remote.rest;
    let remote = match store {
        None => None,
        Some((store, codec)) => {
            let can = store.capabilities();
            for needed in [Capability::Linearizable, Capability::OrderedVersions, Capability::TimeToLive] {
                can.require(needed).map_err(|lacks| lacks.refuse("remote"))?;
            }
            let (values, marks) = (format!("cache {name}"), format!("cache-tags {name}"));
            require(marks.len() <= can.max_key(), "name", "must not be longer than the store's keys may be")?;
            Some(Remote { store, codec, config: live.clone(), values, marks, me, health: Health::new(rest) })
        }
    };
    let topic = format!("steadfast/cache/{name}");
    let backplane =
        notifier.map(|notifier| Backplane { notifier, topic, me, config: live.clone(), health: Health::new(rest) });
    Ok(Shared {
        row,
        parse,
        remote,
        backplane,
        epochs: Epochs::new(),
        pending_invalidations: PendingInvalidations::default(),
        background: BackgroundWrites::default(),
        became_pending: Default::default(),
        config: live.clone(),
    })
}
