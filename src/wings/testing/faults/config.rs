//! How a network fails, and how often it did.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require};

/// How a [`FaultNetwork`](super::FaultNetwork) fails. Not at all by default.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct FaultConfig {
    /// The share of requests that fail before they are applied.
    pub errors: f64,
    /// The share of requests that are applied, and reported as failed.
    pub lost_replies: f64,
    /// The share of requests that are applied a second time.
    pub doubled: f64,
    /// The share of requests that are applied, later, though whoever made them has given them up on the way.
    pub late: f64,
    /// The shortest time of each way, there and back.
    #[serde(with = "human")]
    pub min_latency: Duration,
    /// The longest.
    #[serde(with = "human")]
    pub max_latency: Duration,
}

impl FaultConfig {
    /// Sets the share of requests that fail before they are applied.
    #[must_use]
    pub const fn errors(mut self, share: f64) -> Self {
        self.errors = share;
        self
    }

    /// Sets the share of requests that are applied, and reported as failed.
    #[must_use]
    pub const fn lost_replies(mut self, share: f64) -> Self {
        self.lost_replies = share;
        self
    }

    /// Sets the share of requests that are applied a second time.
    #[must_use]
    pub const fn doubled(mut self, share: f64) -> Self {
        self.doubled = share;
        self
    }

    /// Sets the share of requests that are applied though they were given up.
    #[must_use]
    pub const fn late(mut self, share: f64) -> Self {
        self.late = share;
        self
    }

    /// Sets the shortest and the longest time of each way.
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

/// How often a network failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct FaultCounts {
    /// Requests in all.
    pub requests: u64,
    /// That failed before they were applied, those of a client that was cut off among them.
    pub errors: u64,
    /// That were applied, and reported as failed.
    pub lost_replies: u64,
    /// That were applied a second time.
    pub doubled: u64,
    /// That were applied after they were given up.
    pub late: u64,
}
