//! Parts of a breaker's configuration: the rules, the duration of an opening, and the recovery.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require, require_share, require_some_time, setters};

/// Rules that open a breaker, joined by "or". An absent rule is off.
///
/// The default has no rule at all, so that rules of your own replace that of
/// [`CircuitBreakerConfig`](super::CircuitBreakerConfig): a failure rate of one half.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TripConfig {
    /// Share of the window's calls that must have failed, at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_rate: Option<f64>,
    /// Share of the window's calls that must have taken longer than `slow_call`, at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_call_rate: Option<f64>,
    /// Duration above which a call is slow. Needed for `slow_call_rate`.
    #[serde(with = "human::option", skip_serializing_if = "Option::is_none")]
    pub slow_call: Option<Duration>,
    /// Number of consecutive failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consecutive_failures: Option<u32>,
    /// Sum of the weights of the failures within `weight_period`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Period over which weights are summed. Needed for `weight`.
    #[serde(with = "human::option", skip_serializing_if = "Option::is_none")]
    pub weight_period: Option<Duration>,
}

/// Duration of an opening: longer with each consecutive opening.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct OpenConfig {
    /// Duration of the first opening. 5 s by default.
    #[serde(with = "human")]
    pub initial_delay: Duration,
    /// Factor by which each further consecutive opening multiplies the duration. 2 by default.
    pub factor: f64,
    /// Maximum duration. 60 s by default.
    #[serde(with = "human")]
    pub max_delay: Duration,
    /// Maximum share that is added at random, within `max_delay`, so that many breakers do not
    /// probe at the same time. 0.1 by default.
    pub jitter: f64,
    /// Time in the closed state after which one opening is subtracted from the consecutive ones.
    /// 60 s by default.
    #[serde(with = "human")]
    pub reset_after: Duration,
    /// Maximum duration for which a server's hint keeps the breaker open. 15 min by default.
    #[serde(with = "human")]
    pub max_hint: Duration,
}

/// Probing of a half-open breaker.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct HalfOpenConfig {
    /// Number of calls that pass and are judged. 5 by default.
    pub permitted_calls: u32,
    /// Share of the probes that must succeed (and not be slow, if slowness is a rule) for the
    /// breaker to close. 0.8 by default.
    pub success_rate: f64,
    /// Maximum time for which probes may be in flight without a result; after it, they hang.
    /// 30 s by default.
    ///
    /// Time without a probe in flight does not count, so that a service which is rarely called
    /// closes after as many successful probes as one that is called often.
    #[serde(with = "human")]
    pub max_duration: Duration,
    /// State that follows if the probes hang. Open by default.
    pub on_timeout: OnTimeout,
}

/// Slow start of a breaker that has closed: a growing share of the calls passes, until all do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SlowStartConfig {
    /// Duration after which all calls pass. 30 s by default.
    #[serde(with = "human")]
    pub window: Duration,
    /// Share of the calls that passes at first. 0.1 by default.
    pub min_share: f64,
    /// Number of equal steps in which the share grows; 0 means a straight line. 0 by default.
    pub steps: u32,
}

/// State that a half-open breaker enters when its probes hang.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnTimeout {
    /// The breaker opens again.
    #[default]
    Open,
    /// The breaker closes.
    Close,
}

impl Default for OpenConfig {
    fn default() -> Self {
        Self {
            initial_delay: Duration::from_secs(5),
            factor: 2.0,
            max_delay: Duration::from_secs(60),
            jitter: 0.1,
            reset_after: Duration::from_secs(60),
            max_hint: Duration::from_secs(15 * 60),
        }
    }
}

impl Default for HalfOpenConfig {
    fn default() -> Self {
        Self {
            permitted_calls: 5,
            success_rate: 0.8,
            max_duration: Duration::from_secs(30),
            on_timeout: OnTimeout::Open,
        }
    }
}

impl Default for SlowStartConfig {
    fn default() -> Self {
        Self::linear(Duration::from_secs(30), 0.1)
    }
}

setters! {
    impl SlowStartConfig {
        window: Duration,
        min_share: f64,
        steps: u32,
    }
}

impl SlowStartConfig {
    /// Returns a share that grows in a straight line from `min_share` to all calls over `window`.
    pub const fn linear(window: Duration, min_share: f64) -> Self {
        Self { window, min_share, steps: 0 }
    }

    /// Returns a share that grows in equal steps, each for an equal part of `window`: `min_share`
    /// at first, all calls after the last step.
    pub const fn stepped(window: Duration, min_share: f64, steps: u32) -> Self {
        Self { window, min_share, steps }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require_some_time(self.window, "window")?;
        require(self.window <= Duration::from_secs(24 * 3600), "window", "must be at most 1day")?;
        require_share(self.min_share, "min_share")?;
        require(self.steps <= 1_000_000, "steps", "must be at most 1000000")
    }
}

setters! {
    impl TripConfig {
        failure_rate: Option<f64>,
        slow_call_rate: Option<f64>,
        slow_call: Option<Duration>,
        consecutive_failures: Option<u32>,
        weight: Option<u32>,
        weight_period: Option<Duration>,
    }
}

impl TripConfig {
    /// Opens when at least this share of the window's calls took longer than `slow_call`.
    #[must_use]
    pub const fn slow_calls(mut self, share: f64, slow_call: Duration) -> Self {
        self.slow_call_rate = Some(share);
        self.slow_call = Some(slow_call);
        self
    }

    /// Opens when the failures within `period` weigh at least `weight` together.
    #[must_use]
    pub const fn weighted_failures(mut self, weight: u32, period: Duration) -> Self {
        self.weight = Some(weight);
        self.weight_period = Some(period);
        self
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if let Some(share) = self.failure_rate {
            require_share(share, "failure_rate")?;
        }
        if let Some(share) = self.slow_call_rate {
            require_share(share, "slow_call_rate")?;
        }
        require(
            self.slow_call_rate.is_some() == self.slow_call.is_some(),
            if self.slow_call.is_none() { "slow_call" } else { "slow_call_rate" },
            "`slow_call_rate` and `slow_call` must be set together",
        )?;
        if let Some(d) = self.slow_call {
            require_some_time(d, "slow_call")?;
        }
        require(self.consecutive_failures != Some(0), "consecutive_failures", "must be at least 1")?;
        require(
            self.weight.is_some() == self.weight_period.is_some(),
            if self.weight.is_none() { "weight" } else { "weight_period" },
            "`weight` and `weight_period` must be set together",
        )?;
        require(self.weight != Some(0), "weight", "must be at least 1")?;
        if let Some(d) = self.weight_period {
            require(d >= Duration::from_millis(10), "weight_period", "must be at least 10ms")?;
        }
        require(
            self.failure_rate.is_some()
                || self.slow_call_rate.is_some()
                || self.consecutive_failures.is_some()
                || self.weight.is_some(),
            "failure_rate",
            "at least one rule must be set, or the breaker never opens",
        )
    }
}

setters! {
    impl OpenConfig {
        initial_delay: Duration,
        factor: f64,
        max_delay: Duration,
        jitter: f64,
        reset_after: Duration,
        max_hint: Duration,
    }
}

impl OpenConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require_some_time(self.initial_delay, "initial_delay")?;
        require(self.initial_delay <= self.max_delay, "initial_delay", "must be at most `max_delay`")?;
        require(self.factor >= 1.0 && self.factor.is_finite(), "factor", "must be a finite number, at least 1")?;
        require((0.0..=1.0).contains(&self.jitter), "jitter", "must lie between 0 and 1")?;
        require_some_time(self.reset_after, "reset_after")
    }
}

setters! {
    impl HalfOpenConfig {
        permitted_calls: u32,
        success_rate: f64,
        max_duration: Duration,
        on_timeout: OnTimeout,
    }
}

impl HalfOpenConfig {
    /// Returns the number of probes that must succeed for the breaker to close.
    pub(super) fn required(&self) -> u32 {
        // A product such as 0.8 * 5 may lie a rounding error above the intended whole number.
        ((self.success_rate * f64::from(self.permitted_calls) - 1e-9).ceil() as u32).clamp(1, self.permitted_calls)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require((1..=1_000_000).contains(&self.permitted_calls), "permitted_calls", "must lie between 1 and 1000000")?;
        require_share(self.success_rate, "success_rate")?;
        require_some_time(self.max_duration, "max_duration")
    }
}
