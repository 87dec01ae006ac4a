//! Settings of health checks.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    config::{ConfigError, Secret, human, require, require_some_time, setters},
    time::scaled,
};

/// Longest pause of the watch, in `cache_ttl`.
pub(super) const LONGEST_PAUSE: f64 = 1.2;

/// Settings of a [`Health`](super::Health).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct HealthConfig {
    /// Time limit of one execution of a check; then it is dropped, and has failed. 800 ms by
    /// default.
    #[serde(with = "human")]
    pub timeout: Duration,
    /// Time for which the result of a check serves all reports. 5 s by default.
    #[serde(with = "human")]
    pub cache_ttl: Duration,
    /// Number of failures in a row that make a healthy check unhealthy. 3 by default.
    pub failure_threshold: u32,
    /// Number of successes in a row that make an unhealthy check healthy. 2 by default.
    pub success_threshold: u32,
    /// Age from which a result counts as a failure. 15 s by default.
    #[serde(with = "human")]
    pub stale_after: Duration,
    /// Longest wait of a report for a check; then it uses the last result. 500 ms by default: below
    /// the second after which a platform's probe usually gives up.
    #[serde(with = "human")]
    pub report_timeout: Duration,
    /// Time from the end of readiness to the stop of the service, in which load balancers notice.
    /// 5 s by default.
    #[serde(with = "human")]
    pub drain_delay: Duration,
    /// Share of a fleet's members that may leave because of dependencies. 0.5 by default.
    pub max_ejected: f64,
    /// Secret of requests that see details. None by default: then no request does.
    pub secret: Option<Secret>,
    /// Secret that is accepted, too: the one before, until all monitors have the new one. None by
    /// default.
    pub previous_secret: Option<Secret>,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self {
            timeout: Duration::from_millis(800),
            cache_ttl: Duration::from_secs(5),
            failure_threshold: 3,
            success_threshold: 2,
            stale_after: Duration::from_secs(15),
            report_timeout: Duration::from_millis(500),
            drain_delay: Duration::from_secs(5),
            max_ejected: 0.5,
            secret: None,
            previous_secret: None,
        }
    }
}

setters! {
    impl HealthConfig {
        timeout: Duration,
        cache_ttl: Duration,
        failure_threshold: u32,
        success_threshold: u32,
        stale_after: Duration,
        report_timeout: Duration,
        drain_delay: Duration,
        max_ejected: f64,
        secret: impl Into<Option<Secret>>,
        previous_secret: impl Into<Option<Secret>>,
    }
}

impl HealthConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require_some_time(self.timeout, "timeout")?;
        require(self.cache_ttl >= Duration::from_millis(10), "cache_ttl", "must be at least 10 ms")?;
        require(self.failure_threshold >= 1, "failure_threshold", "must be at least 1")?;
        require(self.success_threshold >= 1, "success_threshold", "must be at least 1")?;
        require(self.timeout <= self.stale_after, "timeout", "must not be longer than `stale_after`")?;
        let longest = scaled(self.cache_ttl, LONGEST_PAUSE).saturating_add(self.timeout);
        let rule = "must be so short that 1.2 of it and `timeout` are shorter than `stale_after`";
        require(longest < self.stale_after, "cache_ttl", rule)?;
        require((0.0..=1.0).contains(&self.max_ejected), "max_ejected", "must be from 0 to 1")?;
        for (secret, field) in [(&self.secret, "secret"), (&self.previous_secret, "previous_secret")] {
            let is_usable = secret.as_ref().is_none_or(Secret::is_visible);
            require(is_usable, field, "must have visible ASCII characters, as a header has, and no others")?;
        }
        Ok(())
    }
}
