//! Settings of a saga.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    backoff::BackoffConfig,
    config::{ConfigError, human, require, require_some_time, setters},
};

/// Settings of a [`Saga`](super::Saga).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SagaConfig {
    /// Maximum number of attempts of a step. An attempt counts when it begins. 8 by default.
    pub max_attempts: u32,
    /// Delays between the attempts of a step. 1 s to 60 s with full jitter by default.
    pub retry: BackoffConfig,
    /// Maximum number of attempts of a compensation. 20 by default.
    pub max_compensation_attempts: u32,
    /// Delays between the attempts of a compensation. 1 s to 5 min with full jitter by default.
    pub compensation_retry: BackoffConfig,
    /// Maximum duration of an attempt. A longer one is dropped, and its outcome is unknown. 30 s by
    /// default.
    #[serde(with = "human")]
    pub step_timeout: Duration,
    /// Time limit of one request to the store. 5 s by default.
    #[serde(with = "human")]
    pub call_timeout: Duration,
    /// Time for which requests to a failing store are repeated. 30 s by default.
    #[serde(with = "human")]
    pub store_timeout: Duration,
    /// Interval between two scans for stalled sagas. 30 s by default.
    #[serde(with = "human")]
    pub scan_interval: Duration,
    /// Time for which the record of an ended saga is kept. 7 days by default.
    #[serde(with = "human")]
    pub retention: Duration,
    /// Time for which a record must stay unchanged, beyond its own delay, before another executor
    /// takes the saga over. It must be longer than `step_timeout` and twice `call_timeout`. 60 s by
    /// default.
    #[serde(with = "human")]
    pub takeover_after: Duration,
}

impl Default for SagaConfig {
    fn default() -> Self {
        let between = |base, cap| BackoffConfig::default().between(Duration::from_secs(base), Duration::from_secs(cap));
        Self {
            max_attempts: 8,
            retry: between(1, 60),
            max_compensation_attempts: 20,
            compensation_retry: between(1, 300),
            step_timeout: Duration::from_secs(30),
            call_timeout: Duration::from_secs(5),
            store_timeout: Duration::from_secs(30),
            scan_interval: Duration::from_secs(30),
            retention: Duration::from_secs(7 * 24 * 3600),
            takeover_after: Duration::from_secs(60),
        }
    }
}

setters! {
    impl SagaConfig {
        max_attempts: u32,
        retry: BackoffConfig,
        max_compensation_attempts: u32,
        compensation_retry: BackoffConfig,
        step_timeout: Duration,
        call_timeout: Duration,
        store_timeout: Duration,
        scan_interval: Duration,
        retention: Duration,
        takeover_after: Duration,
    }
}

impl SagaConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(self.max_attempts >= 1, "max_attempts", "must be at least 1")?;
        require(self.max_compensation_attempts >= 1, "max_compensation_attempts", "must be at least 1")?;
        self.retry.check().map_err(|e| e.within("retry"))?;
        self.compensation_retry.check().map_err(|e| e.within("compensation_retry"))?;
        require_some_time(self.step_timeout, "step_timeout")?;
        require_some_time(self.call_timeout, "call_timeout")?;
        require_some_time(self.store_timeout, "store_timeout")?;
        require_some_time(self.scan_interval, "scan_interval")?;
        require_some_time(self.retention, "retention")?;
        let longest = self.step_timeout.saturating_add(self.call_timeout.saturating_mul(2));
        require(
            self.takeover_after > longest,
            "takeover_after",
            "must be longer than `step_timeout` and twice `call_timeout`, so that a living executor is not taken over",
        )
    }
}
