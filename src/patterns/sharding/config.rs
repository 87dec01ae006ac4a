//! Settings of a directory and of a fan-out.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    backoff::BackoffConfig,
    config::{ConfigError, human, require, require_some_time, setters},
};

/// Settings of a [`ShardDirectory`](super::ShardDirectory).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ShardDirectoryConfig {
    /// Interval at which [`run`](super::ShardDirectory::run) reads the map if no notice arrives. 30
    /// s by default.
    #[serde(with = "human")]
    pub refresh_interval: Duration,
    /// Time for which a routed call is retried while its key is moved. 5 s by default.
    #[serde(with = "human")]
    pub retry_timeout: Duration,
    /// Delays between retries. From 5 ms to 250 ms by default.
    pub backoff: BackoffConfig,
}

impl Default for ShardDirectoryConfig {
    fn default() -> Self {
        Self {
            refresh_interval: Duration::from_secs(30),
            retry_timeout: Duration::from_secs(5),
            backoff: BackoffConfig::default().between(Duration::from_millis(5), Duration::from_millis(250)),
        }
    }
}

setters! {
    impl ShardDirectoryConfig {
        refresh_interval: Duration,
        retry_timeout: Duration,
        backoff: BackoffConfig,
    }
}

impl ShardDirectoryConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require_some_time(self.refresh_interval, "refresh_interval")?;
        self.backoff.check().map_err(|e| e.within("backoff"))
    }
}

/// Settings of a [`FanOut`](super::FanOut).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct FanOutConfig {
    /// Maximum number of shards that are queried at once. 16 by default.
    pub max_concurrency: usize,
    /// Time limit of the whole fan-out. 10 s by default.
    #[serde(with = "human")]
    pub timeout: Duration,
}

impl Default for FanOutConfig {
    fn default() -> Self {
        Self { max_concurrency: 16, timeout: Duration::from_secs(10) }
    }
}

setters! {
    impl FanOutConfig {
        max_concurrency: usize,
        timeout: Duration,
    }
}

impl FanOutConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(self.max_concurrency > 0, "max_concurrency", "must be at least 1")?;
        require_some_time(self.timeout, "timeout")
    }
}
