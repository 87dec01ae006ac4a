//! How long an idle poller waits. Knows neither async nor the time.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    backoff::scaled,
    config::{ConfigError, human, require, require_some_time},
};

/// How the delay between polls grows while they find nothing.
///
/// After `n` polls in a row that found nothing, and one more: `min + (2^n - 1) * r`, at most `max`, where `r` is drawn anew each time,
/// uniform in 0.8 to 1.2 of `delta`. A poll that finds something begins anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct IdleConfig {
    /// The first delay. 100 ms by default.
    #[serde(with = "human")]
    pub min: Duration,
    /// The longest. 60 s by default.
    #[serde(with = "human")]
    pub max: Duration,
    /// What grows. 100 ms by default.
    #[serde(with = "human")]
    pub delta: Duration,
}

impl Default for IdleConfig {
    fn default() -> Self {
        Self::between(Duration::from_millis(100), Duration::from_secs(60))
    }
}

impl IdleConfig {
    /// From `min` to `max`; what grows is `min`.
    pub const fn between(min: Duration, max: Duration) -> Self {
        Self { min, max, delta: min }
    }

    /// Sets what grows.
    #[must_use]
    pub const fn delta(mut self, delta: Duration) -> Self {
        self.delta = delta;
        self
    }

    /// The delay after `n + 1` polls in a row that found nothing; `unit` is drawn from `0.0..1.0`.
    pub fn delay(&self, n: u32, unit: f64) -> Duration {
        let grown = 2f64.powi(i32::try_from(n).unwrap_or(i32::MAX)) - 1.0;
        self.min.saturating_add(scaled(self.delta, grown * (0.8 + 0.4 * unit))).min(self.max)
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        require_some_time(self.min, "min")?;
        require(self.min <= self.max, "min", "must not be longer than `max`")
    }
}

/// One poller's memory: how many polls in a row found nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Idle {
    empty: u32,
}

impl Idle {
    /// A poll found something, or there is reason to believe that the next one will.
    pub(crate) fn reset(&mut self) {
        self.empty = 0;
    }

    /// A poll found nothing: how long to wait, and whether that is the longest.
    pub(crate) fn found_nothing(&mut self, config: &IdleConfig, unit: f64) -> (Duration, bool) {
        let delay = config.delay(self.empty, unit);
        self.empty = self.empty.saturating_add(1);
        (delay, delay == config.max)
    }
}
