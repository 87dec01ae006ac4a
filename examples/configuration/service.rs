//! The document of a service, and the service that it describes.
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::Deserialize;
use steadfast::{
    BoxedPipeline, ConfigError, Pipeline,
    cache_aside::{CacheAside, CacheAsideConfig},
    chaos::{Chaos, ChaosConfig},
    circuit_breaker::{KeyedBreakers, KeyedBreakersConfig},
    config::{Effect, Reconfigure},
    http::ByStatus,
    leader_election::LeaderElectionConfig,
    queue::InMemoryQueue,
    queue_listener::{QueueListener, QueueListenerConfig},
    reconfiguration::{Applied, Reconfigurer, ReconfigurerConfig, SubmitError},
    sharding::{FanOutConfig, ShardDirectoryConfig},
    standard::{Standard, StandardConfig},
    store::InMemoryStore,
    throttling::{
        Degradation, DegradationConfig, Gauge, KeyedRateLimitConfig, KeyedRateLimiter, SharedRateLimitConfig,
        SharedRateLimiter,
    },
};

use crate::common::{Answer, Failure};

/// The document. An unknown table or field is refused by name.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    payments: StandardConfig,
    tenants: KeyedRateLimitConfig,
    hosts: KeyedBreakersConfig,
    contract: SharedRateLimitConfig,
    features: DegradationConfig,
    chaos: ChaosConfig,
    prices: CacheAsideConfig,
    orders: QueueListenerConfig,
    log: LogConfig,
    // Components that take these when they start are built from them; here they are only read. A change of one of them is
    // refused, because no part would take it.
    leader: LeaderElectionConfig,
    shards: ShardDirectoryConfig,
    reports: FanOutConfig,
}

/// Settings of a part of the service's own.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct LogConfig {
    level: String,
}

/// A part of the service's own: it tells a collector, which may refuse what looks valid here.
#[derive(Debug, Clone)]
struct Log(Arc<Mutex<LogConfig>>);

impl Reconfigure<LogConfig> for Log {
    fn config(&self) -> LogConfig {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn validate(&self, next: &LogConfig) -> Result<Effect, ConfigError> {
        let is_known = ["trace", "info", "warn"].contains(&next.level.as_str());
        if !is_known {
            return Err(ConfigError::new("level", "must be `trace`, `info` or `warn`"));
        }
        Ok(Effect::of_change(&self.config(), next))
    }

    fn apply(&self, next: LogConfig) -> Result<(), ConfigError> {
        self.validate(&next)?;
        if next.level == "trace" {
            return Err(ConfigError::new("level", "is refused by the collector: its disk is full"));
        }
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }
}

/// The policies, shared by all callers.
#[derive(Debug, Clone)]
pub struct Service {
    pub payments: Standard,
    pub tenants: Arc<KeyedRateLimiter<String>>,
    pub hosts: KeyedBreakers<String>,
    contract: SharedRateLimiter,
    features: Degradation,
    chaos: Chaos,
    changes: Reconfigurer<Document>,
}

impl Service {
    pub fn new(document: Document) -> Result<Self, ConfigError> {
        let within = |table: &'static str| move |e: ConfigError| e.within(table);
        let Document { payments, tenants, hosts, contract, features, chaos, prices, orders, log, .. } =
            document.clone();
        let load = Gauge::new();
        load.set(0.3);
        let tier = |tenant: &String| (tenant == "tenant-0").then_some(0);
        let payments = Standard::builder(payments)
            .name("payments")
            .gauge("load", load.clone())
            .build()
            .map_err(within("payments"))?;
        let tenants = Arc::new(KeyedRateLimiter::builder(tenants).tier_of(tier).build().map_err(within("tenants"))?);
        let hosts = KeyedBreakers::builder(hosts)
            .name_by(|host: &String| host.as_str().into())
            .build()
            .map_err(within("hosts"))?;
        let contract =
            SharedRateLimiter::new(Arc::new(InMemoryStore::new()), "contract", contract).map_err(within("contract"))?;
        let features = Degradation::builder(features).gauge("load", load).build().map_err(within("features"))?;
        let chaos = Chaos::new(chaos).map_err(within("chaos"))?;
        let prices = CacheAside::<String, u64>::new(prices).map_err(within("prices"))?;
        let orders = QueueListener::new(Arc::new(InMemoryQueue::new("orders")), orders).map_err(within("orders"))?;
        // The collector is the last one: if it refuses, all others are changed back.
        let changes = Reconfigurer::builder(document, ReconfigurerConfig::default())
            .part("payments", |d: &mut Document| &mut d.payments, payments.clone())
            .part("tenants", |d| &mut d.tenants, tenants.clone())
            .part("hosts", |d| &mut d.hosts, hosts.clone())
            .part("contract", |d| &mut d.contract, contract.clone())
            .part("features", |d| &mut d.features, features.clone())
            .part("chaos", |d| &mut d.chaos, chaos.clone())
            .part("prices", |d| &mut d.prices, prices)
            .part("orders", |d| &mut d.orders, orders)
            .part("log", |d| &mut d.log, Log(Arc::new(Mutex::new(log))))
            .build()?;
        Ok(Self { payments, tenants, hosts, contract, features, chaos, changes })
    }

    /// Returns the pipeline for the calls of one host.
    pub fn pipeline(&self, host: &str) -> BoxedPipeline<Answer, Failure> {
        Pipeline::new()
            .named(host)
            .then(self.contract.clone())
            .then(self.payments.clone())
            .then(self.hosts.get(&host.to_owned()))
            .then(self.chaos.clone())
            .classify(ByStatus::new())
            .boxed()
    }

    /// Applies another document to all calls from now on. An invalid one is refused as a whole.
    pub async fn reconfigure(&self, document: Document) -> Result<Applied, SubmitError> {
        self.changes.submit(document).await
    }

    /// Leases permits in advance and reads the gauges, while it is polled.
    pub async fn run(&self) {
        let forever = std::future::pending::<()>;
        futures::join!(self.contract.run(forever()), self.features.run(forever()));
    }
}

/// Interval at which the file is polled.
pub const LOOK_EVERY: Duration = Duration::from_millis(5);
