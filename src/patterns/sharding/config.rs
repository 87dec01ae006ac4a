//! Settings of a directory and of a fan-out.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    backoff::BackoffConfig,
    config::{ConfigError, human, require, require_some_time},
};

/// Settings of a [`ShardDirectory`](super::ShardDirectory).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ShardDirectoryConfig {
    /// How often [`run`](super::ShardDirectory::run) reads the map where nobody tells of a change. 30 s by default.
    #[serde(with = "human")]
    pub refresh_every: Duration,
    /// For how long a routed call asks again while its key is being moved. 5 s by default.
    #[serde(with = "human")]
    pub patience: Duration,
    /// The pauses between asking again. From 5 ms to 250 ms by default.
    pub backoff: BackoffConfig,
}

impl Default for ShardDirectoryConfig {
    fn default() -> Self {
        Self {
            refresh_every: Duration::from_secs(30),
            patience: Duration::from_secs(5),
            backoff: BackoffConfig::default().between(Duration::from_millis(5), Duration::from_millis(250)),
        }
    }
}

impl ShardDirectoryConfig {
    /// Sets how often the map is read where nobody tells of a change.
    #[must_use]
    pub const fn refresh_every(mut self, every: Duration) -> Self {
        self.refresh_every = every;
        self
    }

    /// Sets for how long a routed call asks again. Zero: not at all, but for the one refresh.
    #[must_use]
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets the pauses between asking again.
    #[must_use]
    pub const fn backoff(mut self, backoff: BackoffConfig) -> Self {
        self.backoff = backoff;
        self
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require_some_time(self.refresh_every, "refresh_every")?;
        self.backoff.check().map_err(|e| e.within("backoff"))
    }
}

/// Settings of a [`FanOut`](super::FanOut).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct FanOutConfig {
    /// How many shards are asked at once. 16 by default.
    pub at_once: usize,
    /// How long all of it may take. 10 s by default.
    #[serde(with = "human")]
    pub timeout: Duration,
}

impl Default for FanOutConfig {
    fn default() -> Self {
        Self { at_once: 16, timeout: Duration::from_secs(10) }
    }
}

impl FanOutConfig {
    /// Sets how many shards are asked at once.
    #[must_use]
    pub const fn at_once(mut self, shards: usize) -> Self {
        self.at_once = shards;
        self
    }

    /// Sets how long all of it may take.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(self.at_once > 0, "at_once", "must be at least 1")?;
        require_some_time(self.timeout, "timeout")
    }
}
