//! Producers: appends that share requests.
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use serde::{Deserialize, Serialize};

use super::{Appended, Event, Topic};
use crate::{
    build::{Builder, Common, Component, HasEntropy},
    config::{ConfigError, require, setters},
    gather::{Gather, SendBatch},
    hash::stable_hash,
    in_progress::InProgress,
    port::{BoxFuture, Capability, PortError, PortErrorKind},
    spawn::Spawner,
};

/// Settings of a [`Producer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ProducerConfig {
    /// Maximum number of events that share a request. A topic may accept fewer. 500 by default.
    pub max_batch: u32,
    /// Number of appends under way above which `append` returns `Full`. 10,000 by default.
    pub max_pending: u32,
}

impl Default for ProducerConfig {
    fn default() -> Self {
        Self { max_batch: 500, max_pending: 10_000 }
    }
}

setters! {
    impl ProducerConfig {
        max_batch: u32,
        max_pending: u32,
    }
}

impl ProducerConfig {
    fn check(&self) -> Result<(), ConfigError> {
        require((1..=100_000).contains(&self.max_batch), "max_batch", "must lie between 1 and 100000")?;
        require((1..=10_000_000).contains(&self.max_pending), "max_pending", "must lie between 1 and 10000000")
    }
}

/// Returns the partition of a key: its XXH3 hash of 64 bits modulo the number of partitions, the
/// same on each machine and in each release.
///
/// Also for an event without a key but with an id: by the id, so that the partition that knows it
/// receives it again.
///
/// ```
/// use steadfast::stream::partition_of;
///
/// assert_eq!(partition_of("tenant-7", 32), 10);
/// ```
pub fn partition_of(key: &str, partitions: u16) -> u16 {
    (stable_hash(key.as_bytes()) % u64::from(partitions.max(1))) as u16
}

/// Appends events to a topic. Concurrent appends share a request. The [module's page](super) has
/// details.
///
/// Clones share their state.
#[derive(Clone)]
pub struct Producer(Arc<ProducerInner>);

struct ProducerInner {
    topic: Arc<dyn Topic>,
    config: ProducerConfig,
    spawner: Spawner,
    pending: InProgress,
    /// Number of events without a key so far. It only spreads them, so `Relaxed` suffices.
    spread: AtomicU64,
    parts: Vec<Gather<Event, Result<Appended, PortError>>>,
}

/// Arguments of a producer, beside clock and entropy.
pub struct ProducerSpec {
    topic: Arc<dyn Topic>,
    config: ProducerConfig,
    spawner: Spawner,
}

impl Builder<Producer> {
    /// Sets the spawner of requests. By default each is a task of the tokio runtime in which the
    /// append is made.
    pub fn spawner(mut self, spawn: impl Fn(BoxFuture<'static, ()>) + Send + Sync + 'static) -> Self {
        self.spec.spawner = Spawner::own(spawn);
        self
    }
}

impl Component for Producer {
    type Built = Result<Self, ConfigError>;
    type Spec = ProducerSpec;

    fn assemble(spec: ProducerSpec, common: Common) -> Self::Built {
        let ProducerSpec { topic, config, spawner } = spec;
        config.check()?;
        let most = (config.max_batch as usize).min(topic.capabilities().max_batch());
        let parts = (0..topic.partitions())
            .map(|partition| Gather::in_order(most, spawner.clone(), Requests { topic: topic.clone(), partition }));
        Ok(Self(Arc::new(ProducerInner {
            parts: parts.collect(),
            spread: AtomicU64::new(common.entropy().up_to(1023)),
            pending: InProgress::default(),
            topic,
            config,
            spawner,
        })))
    }
}

impl HasEntropy for Producer {}

impl Producer {
    /// Creates a producer.
    ///
    /// # Errors
    /// If a setting breaks a rule.
    pub fn new(topic: impl Topic + 'static, config: ProducerConfig) -> Result<Self, ConfigError> {
        Self::builder(topic, config).build()
    }

    /// Creates a builder with the arguments of [`new`](Self::new).
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CProducer%3E): `spawner`.
    pub fn builder(topic: impl Topic + 'static, config: ProducerConfig) -> Builder<Self> {
        Builder::new(ProducerSpec { topic: Arc::new(topic), config, spawner: Spawner::default() })
    }

    /// Appends an event to the partition of its key, and returns its place once the topic has it.
    ///
    /// Events without a key are spread over the partitions. One request of a partition is under way
    /// at a time, and the next one has all events that came meanwhile, in the order of the calls.
    ///
    /// # Errors
    /// `Full` at once if [`max_pending`](ProducerConfig::max_pending) appends are under way.
    /// `Invalid` for an event that breaks a rule ([`Event::check`]), `Unsupported` for an id if the
    /// topic knows none. Errors of [`Topic::append`] for all events of the request; `Closed`
    /// outside of a runtime, or if it shuts down.
    ///
    /// # Cancel safety
    /// If the future is dropped, the event was appended, is appended later, or never. Other events
    /// of its request do not notice. Append an event with an id again to be sure.
    pub async fn append(&self, event: Event) -> Result<Appended, PortError> {
        let inner = &*self.0;
        let can = inner.topic.capabilities();
        Event::check(std::slice::from_ref(&event), &can)?;
        if event.id.is_some() {
            can.require(Capability::Deduplication)?;
        }
        let pending = inner.pending.enter(1);
        if inner.pending.get() > inner.config.max_pending {
            let most = inner.config.max_pending;
            return Err(PortError::new(PortErrorKind::Full, format!("stream: {most} appends are under way")));
        }
        if !inner.spawner.is_there() {
            return Err(PortError::new(PortErrorKind::Closed, "stream: no runtime to send the request in"));
        }
        let partition = match event.key.as_ref().or(event.id.as_ref()) {
            Some(key) => partition_of(key, inner.topic.partitions()),
            None => (inner.spread.fetch_add(1, Ordering::Relaxed) % inner.parts.len().max(1) as u64) as u16,
        };
        let Some(part) = inner.parts.get(usize::from(partition)) else {
            return Err(PortError::new(PortErrorKind::Other, "stream: the topic has no partitions"));
        };
        let appended = part.send(event).await?;
        drop(pending);
        appended
    }

    /// Returns the number of appends under way.
    pub fn pending(&self) -> u32 {
        self.0.pending.get()
    }

    /// Returns the topic.
    pub fn topic(&self) -> &Arc<dyn Topic> {
        &self.0.topic
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Producer");
        out.field("topic", &self.0.topic).field("config", &self.0.config).field("pending", &self.pending()).finish()
    }
}

/// Sends the requests of one partition.
struct Requests {
    topic: Arc<dyn Topic>,
    partition: u16,
}

/// Bytes of events that count as one more: a request of large events has fewer.
const LARGE: usize = 4 << 10;

impl SendBatch<Event, Result<Appended, PortError>> for Requests {
    fn send(&self, events: Vec<Event>) -> BoxFuture<'_, Vec<Result<Appended, PortError>>> {
        Box::pin(async move {
            let expected = events.len();
            match self.topic.append(self.partition, events).await {
                Ok(appended) if appended.len() == expected => appended.into_iter().map(Ok).collect(),
                Ok(_) => {
                    let message = "stream: the topic answered for another number of events";
                    vec![Err(PortError::new(PortErrorKind::Other, message).outcome_unknown()); expected]
                }
                Err(error) => vec![Err(error); expected],
            }
        })
    }

    fn weight(&self, event: &Event) -> usize {
        1 + event.size() / LARGE
    }
}
