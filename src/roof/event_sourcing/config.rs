//! Settings of a log and of its aggregates.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    backoff::BackoffConfig,
    config::{ConfigError, human, require, setters},
};

/// Settings of an [`EventStore`](super::EventStore).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct EventStoreConfig {
    /// Time for which the id of a command is remembered, at least a minute: the outcome of a
    /// request is learned by it. 24 h by default.
    #[serde(with = "human")]
    pub remember: Duration,
    /// Number of commits under way above which `commit` returns `Full`. 10,000 by default.
    pub max_pending: u32,
    /// Maximum number of commits that share a request. 64 by default.
    pub max_batch: u32,
}

impl Default for EventStoreConfig {
    fn default() -> Self {
        Self { remember: Duration::from_secs(24 * 3600), max_pending: 10_000, max_batch: 64 }
    }
}

setters! {
    impl EventStoreConfig {
        remember: Duration,
        max_pending: u32,
        max_batch: u32,
    }
}

impl EventStoreConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(self.remember >= Duration::from_secs(60), "remember", "must be at least a minute")?;
        require((1..=10_000_000).contains(&self.max_pending), "max_pending", "must lie between 1 and 10000000")?;
        require((1..=1_000).contains(&self.max_batch), "max_batch", "must lie between 1 and 1000")
    }
}

/// Settings of an [`AggregateStore`](super::AggregateStore).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct AggregateConfig {
    /// Maximum number of times that a command is decided, because other processes were faster. 8 by
    /// default.
    pub max_attempts: u32,
    /// Delays between these times. 1 ms to 50 ms with full jitter by default.
    pub retry: BackoffConfig,
    /// Number of aggregates whose states are kept in memory. 1,000 by default.
    pub cached_states: u32,
    /// Maximum number of commands of an aggregate that are decided and committed together. 64 by
    /// default.
    pub max_group: u32,
    /// Number of events after which a snapshot is written, if there is a codec for it. 100 by
    /// default.
    pub snapshot_every: u32,
}

impl Default for AggregateConfig {
    fn default() -> Self {
        let (base, cap) = (Duration::from_millis(1), Duration::from_millis(50));
        let retry = BackoffConfig::default().between(base, cap);
        Self { max_attempts: 8, retry, cached_states: 1_000, max_group: 64, snapshot_every: 100 }
    }
}

setters! {
    impl AggregateConfig {
        max_attempts: u32,
        retry: BackoffConfig,
        cached_states: u32,
        max_group: u32,
        snapshot_every: u32,
    }
}

impl AggregateConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(self.max_attempts >= 1, "max_attempts", "must be at least 1")?;
        self.retry.check().map_err(|e| e.within("retry"))?;
        require((1..=10_000_000).contains(&self.cached_states), "cached_states", "must lie between 1 and 10000000")?;
        require((1..=1_000).contains(&self.max_group), "max_group", "must lie between 1 and 1000")?;
        require(self.snapshot_every >= 1, "snapshot_every", "must be at least 1")
    }
}
