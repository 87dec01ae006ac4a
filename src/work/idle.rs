//! The delays of an idle poller. A state machine that knows neither async nor the time.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    backoff::scaled,
    config::{ConfigError, human, require, require_some_time, setters},
};

/// Delays between polls that find nothing.
///
/// After `n + 1` consecutive empty polls the delay is `min + (2^n - 1) * r`, at most `max`. `r` is
/// drawn anew each time, uniformly from 0.8 to 1.2 times `delta`. A poll that finds a message
/// resets `n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct IdleConfig {
    /// Delay after the first empty poll. 100 ms by default.
    #[serde(with = "human")]
    pub min: Duration,
    /// Maximum delay. 60 s by default.
    #[serde(with = "human")]
    pub max: Duration,
    /// Step of the exponential growth. 100 ms by default.
    #[serde(with = "human")]
    pub delta: Duration,
}

impl Default for IdleConfig {
    fn default() -> Self {
        Self::between(Duration::from_millis(100), Duration::from_secs(60))
    }
}

setters! {
    impl IdleConfig {
        min: Duration,
        max: Duration,
        delta: Duration,
    }
}

impl IdleConfig {
    /// Returns delays from `min` to `max`, with `min` as `delta`.
    pub const fn between(min: Duration, max: Duration) -> Self {
        Self { min, max, delta: min }
    }

    /// Returns the delay after `n + 1` consecutive empty polls; `unit` is drawn from `0.0..1.0`.
    pub(crate) fn delay(&self, n: u32, unit: f64) -> Duration {
        let grown = 2f64.powi(i32::try_from(n).unwrap_or(i32::MAX)) - 1.0;
        self.min.saturating_add(scaled(self.delta, grown * (0.8 + 0.4 * unit))).min(self.max)
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        require_some_time(self.min, "min")?;
        require(self.min <= self.max, "min", "must not be longer than `max`")
    }
}

/// Number of consecutive empty polls of one poller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Idle {
    empty: u32,
}

impl Idle {
    /// Resets the count: a poll found a message, or the next one is expected to.
    pub(crate) fn reset(&mut self) {
        self.empty = 0;
    }

    /// Counts an empty poll. Returns the delay, and `true` if it is the maximum.
    pub(crate) fn found_nothing(&mut self, config: &IdleConfig, unit: f64) -> (Duration, bool) {
        let delay = config.delay(self.empty, unit);
        self.empty = self.empty.saturating_add(1);
        (delay, delay == config.max)
    }
}
