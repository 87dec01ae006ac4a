//! Settings and counts of a network's faults.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require, setters};

/// Settings of the faults of a [`FaultNetwork`](super::FaultNetwork). By default there are none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct FaultConfig {
    /// Share of requests that fail before they are applied.
    pub errors: f64,
    /// Share of requests that are applied, and reported as failed.
    pub lost_replies: f64,
    /// Share of requests that are applied a second time.
    pub doubled: f64,
    /// Share of requests that are applied later although the caller dropped them on the way.
    pub late: f64,
    /// Minimum latency of each direction.
    #[serde(with = "human")]
    pub min_latency: Duration,
    /// Maximum latency of each direction.
    #[serde(with = "human")]
    pub max_latency: Duration,
}

setters! {
    impl FaultConfig {
        errors: f64,
        lost_replies: f64,
        doubled: f64,
        late: f64,
        min_latency: Duration,
        max_latency: Duration,
    }
}

impl FaultConfig {
    /// Sets the minimum and the maximum latency of each direction.
    #[must_use]
    pub const fn latency(mut self, min: Duration, max: Duration) -> Self {
        (self.min_latency, self.max_latency) = (min, max);
        self
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let shares = [
            (self.errors, "errors"),
            (self.lost_replies, "lost_replies"),
            (self.doubled, "doubled"),
            (self.late, "late"),
        ];
        for (share, field) in shares {
            require((0.0..=1.0).contains(&share), field, "must be from 0 to 1")?;
        }
        require(self.min_latency <= self.max_latency, "min_latency", "must be at most `max_latency`")
    }
}

/// Counts of the faults of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct FaultCounts {
    /// Number of requests.
    pub requests: u64,
    /// Requests that failed before they were applied, also because the client was cut off.
    pub errors: u64,
    /// Requests that were applied, and reported as failed.
    pub lost_replies: u64,
    /// Requests that were applied a second time.
    pub doubled: u64,
    /// Requests that were applied after the caller dropped them.
    pub late: u64,
}
