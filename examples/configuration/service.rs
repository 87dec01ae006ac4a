//! The document of a service, and the service that it describes.
use std::{sync::Arc, time::Duration};

use serde::Deserialize;
use steadfast::{
    BoxedPipeline, ConfigError, Pipeline,
    cache_aside::CacheAsideConfig,
    chaos::{Chaos, ChaosConfig},
    circuit_breaker::{KeyedBreakers, KeyedBreakersConfig},
    http::ByStatus,
    leader_election::LeaderElectionConfig,
    queue_listener::QueueListenerConfig,
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
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    payments: StandardConfig,
    tenants: KeyedRateLimitConfig,
    hosts: KeyedBreakersConfig,
    contract: SharedRateLimitConfig,
    features: DegradationConfig,
    chaos: ChaosConfig,
    // The components are built from these tables; here they are only read.
    #[serde(rename = "prices")]
    _prices: CacheAsideConfig,
    #[serde(rename = "orders")]
    _orders: QueueListenerConfig,
    #[serde(rename = "leader")]
    _leader: LeaderElectionConfig,
    #[serde(rename = "shards")]
    _shards: ShardDirectoryConfig,
    #[serde(rename = "reports")]
    _reports: FanOutConfig,
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
}

impl Service {
    pub fn new(document: Document) -> Result<Self, ConfigError> {
        let within = |table: &'static str| move |e: ConfigError| e.within(table);
        let Document { payments, tenants, hosts, contract, features, chaos, .. } = document;
        let load = Gauge::new();
        load.set(0.3);
        let tier = |tenant: &String| (tenant == "tenant-0").then_some(0);
        Ok(Self {
            payments: Standard::builder(payments)
                .name("payments")
                .gauge("load", load.clone())
                .build()
                .map_err(within("payments"))?,
            tenants: Arc::new(KeyedRateLimiter::builder(tenants).tier_of(tier).build().map_err(within("tenants"))?),
            hosts: KeyedBreakers::builder(hosts)
                .name_by(|host: &String| host.as_str().into())
                .build()
                .map_err(within("hosts"))?,
            contract: SharedRateLimiter::new(Arc::new(InMemoryStore::new()), "contract", contract)
                .map_err(within("contract"))?,
            features: Degradation::builder(features).gauge("load", load).build().map_err(within("features"))?,
            chaos: Chaos::new(chaos).map_err(within("chaos"))?,
        })
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
    pub fn reconfigure(&self, text: &str) -> Result<(), Failure> {
        // Builds a temporary service first, so that an invalid document is refused before any change.
        Self::new(toml::from_str(text)?)?;
        let Document { payments, tenants, hosts, contract, features, chaos, .. } = toml::from_str(text)?;
        self.payments.reconfigure(payments)?;
        self.tenants.reconfigure(tenants)?;
        self.hosts.reconfigure(hosts)?;
        self.contract.reconfigure(contract)?;
        self.features.reconfigure(features)?;
        self.chaos.reconfigure(chaos)?;
        Ok(())
    }

    /// Leases permits in advance and reads the gauges, while it is polled.
    pub async fn run(&self) {
        let forever = std::future::pending::<()>;
        futures::join!(self.contract.run(forever()), self.features.run(forever()));
    }
}

/// Interval at which the file is polled.
pub const LOOK_EVERY: Duration = Duration::from_millis(5);
