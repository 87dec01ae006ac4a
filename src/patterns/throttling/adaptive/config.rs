//! Settings of an adaptive concurrency limit.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::PriorityShares;
use crate::{
    config::{ConfigError, human, require, require_some_time},
    throttling::{ConcurrencyLimitConfig, rate::MAX_HINT},
};

/// How the limit follows what is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Adaptation {
    /// By latency: smaller in proportion when calls take longer than they do alone, larger by a little when they do not.
    #[default]
    Gradient,
    /// By failures alone: larger by one when calls succeed, smaller by a share when one times out or is turned away for overload.
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
    /// What it follows. The gradient of latencies by default.
    pub by: Adaptation,
    /// The limit at first. 20 by default.
    pub initial: u32,
    /// The lowest. 1 by default.
    pub min: u32,
    /// The highest. 200 by default.
    pub max: u32,
    /// How long calls are watched before the limit is thought over. 100 ms by default.
    #[serde(with = "human")]
    pub window: Duration,
    /// Of how many calls at least. 10 by default.
    pub min_calls: u32,
    /// By which factor latency may grow before the limit shrinks. 1.5 by default.
    pub tolerance: f64,
    /// How often it is measured what a call takes where hardly any runs beside it, give or take a fifth. 60 s by default.
    #[serde(with = "human")]
    pub remeasure: Duration,
    /// How many calls may wait at the other side: by so many the limit may grow in a window, before smoothing. 4 by default.
    pub headroom: u32,
    /// The share of each change that is made. 0.2 by default.
    pub smoothing: f64,
    /// What the limit is multiplied with when a call fails for overload. 0.9 by default.
    pub decrease: f64,
    /// How many calls wait for a place, at most. 128 by default; 0 turns them away at once.
    pub queue: u32,
    /// How long a call waits for a place. 1 s by default.
    #[serde(with = "human")]
    pub max_wait: Duration,
    /// The longest that a server's hint ("come back in 60 s", with a failure) keeps it from admitting calls. 15 min by default; zero takes no
    /// hint.
    #[serde(with = "human")]
    pub max_hint: Duration,
    /// How much of the limit calls of each priority may take. None by default: all of it. Calls of a priority that may not take all of it do not
    /// wait for a place.
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

impl AdaptiveLimitConfig {
    /// Sets what it follows.
    #[must_use]
    pub const fn by(mut self, by: Adaptation) -> Self {
        self.by = by;
        self
    }

    /// Sets the limit at first, the lowest and the highest.
    #[must_use]
    pub const fn limits(mut self, initial: u32, min: u32, max: u32) -> Self {
        (self.initial, self.min, self.max) = (initial, min, max);
        self
    }

    /// Sets how long, and of how many calls, each look at them is.
    #[must_use]
    pub const fn window(mut self, window: Duration, min_calls: u32) -> Self {
        (self.window, self.min_calls) = (window, min_calls);
        self
    }

    /// Sets how often it is measured what a call takes where hardly any runs beside it.
    #[must_use]
    pub const fn remeasure(mut self, every: Duration) -> Self {
        self.remeasure = every;
        self
    }

    /// Sets how many calls wait, and for how long.
    #[must_use]
    pub const fn queue(mut self, calls: u32, max_wait: Duration) -> Self {
        (self.queue, self.max_wait) = (calls, max_wait);
        self
    }

    /// Sets the longest that a server's hint keeps it from admitting calls.
    #[must_use]
    pub const fn max_hint(mut self, longest: Duration) -> Self {
        self.max_hint = longest;
        self
    }

    /// Sets how much of the limit calls of each priority may take.
    #[must_use]
    pub const fn shares(mut self, shares: PriorityShares) -> Self {
        self.shares = Some(shares);
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
            "must be longer than zero, or `queue` must be 0: nobody could wait",
        )?;
        self.shares.map_or(Ok(()), |shares| shares.check().map_err(|e| e.within("shares")))
    }

    /// What will hurt.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.min == self.max {
            warnings.push(format!("its limit is {} always: it cannot adapt", self.min));
        }
        if self.headroom == 0 && self.by == Adaptation::Gradient {
            warnings.push("without head-room its limit only ever falls".to_owned());
        }
        if self.shares.is_some_and(|shares| shares.low >= 1.0) {
            warnings.push("its shares keep no place for what matters more than low priority".to_owned());
        }
        warnings
    }

    pub(super) fn places(&self) -> ConcurrencyLimitConfig {
        ConcurrencyLimitConfig {
            capacity: self.initial,
            queue: self.queue,
            max_wait: self.max_wait,
            ..ConcurrencyLimitConfig::default()
        }
    }
}
