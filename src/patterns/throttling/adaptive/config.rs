//! Settings of an adaptive concurrency limit.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::PriorityShares;
use crate::{
    config::{ConfigError, human, require, require_some_time, setters},
    throttling::{ConcurrencyLimitConfig, rate::MAX_HINT},
};

/// The signal that the limit follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Adaptation {
    /// Latency: the limit shrinks in proportion when calls take longer than the base latency, and
    /// grows slowly when they do not.
    #[default]
    Gradient,
    /// Failures alone (additive increase, multiplicative decrease): the limit grows by one when
    /// calls succeed, and shrinks by a factor when a call times out or is rejected for overload.
    Aimd,
}

/// Settings of an [`AdaptiveLimiter`](crate::throttling::AdaptiveLimiter).
///
/// ```
/// use steadfast::throttling::{AdaptiveLimitConfig, AdaptiveLimiter};
///
/// let config: AdaptiveLimitConfig = toml::from_str(r#"
///     max = 100
///     window = "200ms"
/// "#).unwrap();
/// assert_eq!(AdaptiveLimiter::new(config).unwrap().limit(), 20);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct AdaptiveLimitConfig {
    /// The signal that the limit follows. The latency gradient by default.
    pub by: Adaptation,
    /// Initial limit. 20 by default.
    pub initial: u32,
    /// Minimum limit. 1 by default.
    pub min: u32,
    /// Maximum limit. 200 by default.
    pub max: u32,
    /// Length of a measurement window, after which the limit is adjusted. 100 ms by default.
    #[serde(with = "human")]
    pub window: Duration,
    /// Minimum number of calls in a window. 10 by default.
    pub min_calls: u32,
    /// Factor by which latency may exceed the base before the limit shrinks. 1.5 by default.
    pub tolerance: f64,
    /// Interval between two measurements of the base latency, with 20 % jitter: what a call takes
    /// under a very low limit. 60 s by default.
    #[serde(with = "human")]
    pub remeasure: Duration,
    /// Number of calls that may queue at the service. The limit may grow by this number in a
    /// window, before smoothing. 4 by default.
    pub headroom: u32,
    /// Share of each change that is applied. 0.2 by default.
    pub smoothing: f64,
    /// Factor for the limit when a call fails for overload. 0.9 by default.
    pub decrease: f64,
    /// Maximum number of calls that wait for a permit. 128 by default; 0 rejects at once.
    pub queue: u32,
    /// Maximum time that a call waits for a permit. 1 s by default.
    #[serde(with = "human")]
    pub max_wait: Duration,
    /// Maximum time that a server's hint ("come back in 60 s", with a failure) pauses the limiter.
    /// 15 min by default; zero ignores hints.
    #[serde(with = "human")]
    pub max_hint: Duration,
    /// Shares of the limit by priority. None by default: every call may use all of it. Calls of a
    /// priority with less than the whole limit do not wait for a permit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<PriorityShares>,
}

impl Default for AdaptiveLimitConfig {
    fn default() -> Self {
        Self {
            by: Adaptation::Gradient,
            initial: 20,
            min: 1,
            max: 200,
            window: Duration::from_millis(100),
            min_calls: 10,
            tolerance: 1.5,
            remeasure: Duration::from_secs(60),
            headroom: 4,
            smoothing: 0.2,
            decrease: 0.9,
            queue: 128,
            max_wait: Duration::from_secs(1),
            max_hint: MAX_HINT,
            shares: None,
        }
    }
}

setters! {
    impl AdaptiveLimitConfig {
        by: Adaptation,
        initial: u32,
        min: u32,
        max: u32,
        window: Duration,
        min_calls: u32,
        tolerance: f64,
        remeasure: Duration,
        headroom: u32,
        smoothing: f64,
        decrease: f64,
        queue: u32,
        max_wait: Duration,
        max_hint: Duration,
        shares: Option<PriorityShares>,
    }
}

impl AdaptiveLimitConfig {
    /// Sets the initial, minimum and maximum limit.
    #[must_use]
    pub const fn limits(mut self, initial: u32, min: u32, max: u32) -> Self {
        (self.initial, self.min, self.max) = (initial, min, max);
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        require(self.min >= 1, "min", "must be at least 1")?;
        require(self.min <= self.initial && self.initial <= self.max, "initial", "must be from `min` to `max`")?;
        require_some_time(self.window, "window")?;
        require(self.min_calls >= 1, "min_calls", "must be at least 1")?;
        require(
            self.tolerance >= 1.0 && self.tolerance.is_finite(),
            "tolerance",
            "must be a finite number, at least 1",
        )?;
        require_some_time(self.remeasure, "remeasure")?;
        require(self.smoothing > 0.0 && self.smoothing <= 1.0, "smoothing", "must be above 0 and at most 1")?;
        require(self.decrease > 0.0 && self.decrease < 1.0, "decrease", "must be above 0 and below 1")?;
        require(
            self.queue == 0 || !self.max_wait.is_zero(),
            "max_wait",
            "must be longer than zero unless `queue` is 0",
        )?;
        self.shares.map_or(Ok(()), |shares| shares.check().map_err(|e| e.within("shares")))
    }

    /// Returns warnings about settings that will cause trouble.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.min == self.max {
            warnings.push(format!("the limit is always {}: it cannot adapt", self.min));
        }
        if self.headroom == 0 && self.by == Adaptation::Gradient {
            warnings.push("with a `headroom` of 0 the limit never grows".to_owned());
        }
        if self.shares.is_some_and(|shares| shares.low >= 1.0) {
            warnings.push("the shares reserve nothing for priorities above low".to_owned());
        }
        warnings
    }

    pub(super) fn semaphore_config(&self) -> ConcurrencyLimitConfig {
        ConcurrencyLimitConfig {
            capacity: self.initial,
            queue: self.queue,
            max_wait: self.max_wait,
            ..ConcurrencyLimitConfig::default()
        }
    }
}
