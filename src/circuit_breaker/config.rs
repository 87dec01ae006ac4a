//! Settings of a circuit breaker.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    config::{ConfigError, human, require, require_share, require_some_time},
    outcome::{FailureKind, KindSet},
};

/// Settings of a [`CircuitBreaker`](super::CircuitBreaker): plain data, from code or from a document.
///
/// ```
/// use steadfast::circuit_breaker::{CircuitBreaker, CircuitBreakerConfig};
///
/// let config: CircuitBreakerConfig = toml::from_str(r#"
///     window = { calls = 50 }
///     min_calls = 10
///     trip = { failure_rate = 0.3, consecutive_failures = 8 }
///     open = { base = "2s", cap = "30s" }
/// "#).unwrap();
/// assert!(CircuitBreaker::new(config).is_ok());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct CircuitBreakerConfig {
    /// What the rates are measured over. The last 100 calls by default.
    pub window: WindowConfig,
    /// No rate is judged over fewer calls. 20 by default.
    pub min_calls: u32,
    /// What opens it. A failure rate of one half by default. A document that gives this table gives all the rules.
    pub trip: TripConfig,
    /// The kinds that count as failures; the others count as successes, for they are answers. By default all but `client`
    /// and `cancelled`. A panic in the operation counts as a failure in any case.
    pub failures: KindSet,
    /// How long it stays open.
    pub open: OpenConfig,
    /// How it finds out whether the other side is well again.
    pub half_open: HalfOpenConfig,
    /// Counts a call that is dropped by its caller after at least this long as a failure (kind `cancelled`). None by
    /// default: a dropped call changes nothing.
    #[serde(with = "human::option", skip_serializing_if = "Option::is_none")]
    pub count_drop_after: Option<Duration>,
}

/// What a breaker's rates are measured over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields, expecting = "`{ calls = 100 }` or `{ time = \"10s\", buckets = 10 }`")]
pub enum WindowConfig {
    /// The last so many calls. Reads no clock.
    Calls {
        /// How many.
        calls: u32,
    },
    /// The calls of the last while, in buckets.
    Time {
        /// How long.
        #[serde(with = "human")]
        time: Duration,
        /// In how many steps it slides. 10 by default.
        #[serde(default = "ten")]
        buckets: u32,
    },
}

fn ten() -> u32 {
    10
}

/// The rules that open a breaker, joined by "or". An absent rule is off.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TripConfig {
    /// At least this share of the window's calls failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_rate: Option<f64>,
    /// At least this share of the window's calls took longer than `slow_call`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_call_rate: Option<f64>,
    /// What a slow call is. Needed for `slow_call_rate`.
    #[serde(with = "human::option", skip_serializing_if = "Option::is_none")]
    pub slow_call: Option<Duration>,
    /// This many failures in a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consecutive_failures: Option<u32>,
    /// Failures of this weight together within `weight_period`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Over how long weights add up. Needed for `weight`.
    #[serde(with = "human::option", skip_serializing_if = "Option::is_none")]
    pub weight_period: Option<Duration>,
}

/// How long a breaker stays open: longer with each opening that follows another.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct OpenConfig {
    /// The first time. 5 s by default.
    #[serde(with = "human")]
    pub base: Duration,
    /// What each further opening in a row multiplies it with. 2 by default.
    pub factor: f64,
    /// The longest. 60 s by default.
    #[serde(with = "human")]
    pub cap: Duration,
    /// Up to this share is added at random, within the cap, so that a fleet does not probe in step. 0.1 by default.
    pub jitter: f64,
    /// An opening is forgotten after each such time closed. 60 s by default.
    #[serde(with = "human")]
    pub stable_for: Duration,
    /// The longest that a server's hint may keep it open. 15 min by default.
    #[serde(with = "human")]
    pub max_hint: Duration,
}

/// How a breaker probes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct HalfOpenConfig {
    /// How many calls are let through, and judged. 5 by default.
    pub probes: u32,
    /// It closes when at least this share of them succeeds (and is not slow, if slowness is a rule). 0.8 by default.
    pub success_rate: f64,
    /// The longest time without a decision. 30 s by default.
    #[serde(with = "human")]
    pub max: Duration,
    /// What then. It opens again by default.
    pub undecided: Undecided,
}

/// What becomes of a half-open breaker that comes to no decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Undecided {
    /// It opens again.
    #[default]
    Open,
    /// It closes.
    Close,
}

impl Default for CircuitBreakerConfig {
    fn default() -> Self {
        Self {
            window: WindowConfig::Calls { calls: 100 },
            min_calls: 20,
            trip: TripConfig { failure_rate: Some(0.5), ..TripConfig::default() },
            failures: KindSet::ALL.without(FailureKind::Client).without(FailureKind::Cancelled),
            open: OpenConfig::default(),
            half_open: HalfOpenConfig::default(),
            count_drop_after: None,
        }
    }
}

impl Default for OpenConfig {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(5),
            factor: 2.0,
            cap: Duration::from_secs(60),
            jitter: 0.1,
            stable_for: Duration::from_secs(60),
            max_hint: Duration::from_secs(15 * 60),
        }
    }
}

impl Default for HalfOpenConfig {
    fn default() -> Self {
        Self { probes: 5, success_rate: 0.8, max: Duration::from_secs(30), undecided: Undecided::Open }
    }
}

impl CircuitBreakerConfig {
    /// Measures rates over the last `calls` calls, once there are `min_calls`.
    #[must_use]
    pub const fn count_window(mut self, calls: u32, min_calls: u32) -> Self {
        self.window = WindowConfig::Calls { calls };
        self.min_calls = min_calls;
        self
    }

    /// Measures rates over the last `time`, in `buckets` steps, once there are `min_calls`.
    #[must_use]
    pub const fn time_window(mut self, time: Duration, buckets: u32, min_calls: u32) -> Self {
        self.window = WindowConfig::Time { time, buckets };
        self.min_calls = min_calls;
        self
    }

    /// Opens by these rules and no others.
    #[must_use]
    pub const fn trip(mut self, rules: TripConfig) -> Self {
        self.trip = rules;
        self
    }

    /// Sets the kinds that count as failures.
    #[must_use]
    pub const fn failures(mut self, kinds: KindSet) -> Self {
        self.failures = kinds;
        self
    }

    /// Sets how long it stays open: the first time, and at the most.
    #[must_use]
    pub const fn open_for(mut self, base: Duration, cap: Duration) -> Self {
        self.open.base = base;
        self.open.cap = cap;
        self
    }

    /// Sets all about staying open.
    #[must_use]
    pub const fn open(mut self, open: OpenConfig) -> Self {
        self.open = open;
        self
    }

    /// Sets how many probes are let through, and which share of them must succeed.
    #[must_use]
    pub const fn probes(mut self, probes: u32, success_rate: f64) -> Self {
        self.half_open.probes = probes;
        self.half_open.success_rate = success_rate;
        self
    }

    /// Sets all about being half-open.
    #[must_use]
    pub const fn half_open(mut self, half_open: HalfOpenConfig) -> Self {
        self.half_open = half_open;
        self
    }

    /// Counts a call that is dropped after at least this long as a failure.
    #[must_use]
    pub const fn count_drop_after(mut self, d: Duration) -> Self {
        self.count_drop_after = Some(d);
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        match self.window {
            WindowConfig::Calls { calls } => {
                require((1..=MAX_WINDOW).contains(&calls), "window.calls", "must lie between 1 and 1000000")?;
                require(self.min_calls <= calls, "min_calls", "must be at most the window's calls")?;
            }
            WindowConfig::Time { time, buckets } => {
                require((1..=MAX_BUCKETS).contains(&buckets), "window.buckets", "must lie between 1 and 1000")?;
                require(
                    time >= Duration::from_millis(1) * buckets,
                    "window.time",
                    "must be at least 1ms for each bucket",
                )?;
                require(time <= Duration::from_secs(24 * 3600), "window.time", "must be at most 1day")?;
            }
        }
        require(self.min_calls >= 1, "min_calls", "must be at least 1")?;
        self.trip.check().map_err(|e| e.within("trip"))?;
        require(!self.failures.is_empty(), "failures", "must name at least one kind of failure")?;
        self.open.check().map_err(|e| e.within("open"))?;
        self.half_open.check().map_err(|e| e.within("half_open"))?;
        self.count_drop_after.map_or(Ok(()), |d| require_some_time(d, "count_drop_after"))
    }
}

/// A count window keeps 8 bytes for each failure in it: at most 8 MB.
const MAX_WINDOW: u32 = 1_000_000;
/// A judgement of a time window reads every bucket.
const MAX_BUCKETS: u32 = 1000;

impl TripConfig {
    /// Opens when at least this share of the window's calls failed.
    #[must_use]
    pub const fn failure_rate(mut self, share: f64) -> Self {
        self.failure_rate = Some(share);
        self
    }

    /// Opens when at least this share of the window's calls took longer than `slow_call`.
    #[must_use]
    pub const fn slow_call_rate(mut self, share: f64, slow_call: Duration) -> Self {
        self.slow_call_rate = Some(share);
        self.slow_call = Some(slow_call);
        self
    }

    /// Opens after this many failures in a row.
    #[must_use]
    pub const fn consecutive_failures(mut self, n: u32) -> Self {
        self.consecutive_failures = Some(n);
        self
    }

    /// Opens when the failures within `period` weigh at least `weight` together.
    #[must_use]
    pub const fn weighted_failures(mut self, weight: u32, period: Duration) -> Self {
        self.weight = Some(weight);
        self.weight_period = Some(period);
        self
    }

    fn check(&self) -> Result<(), ConfigError> {
        if let Some(share) = self.failure_rate {
            require_share(share, "failure_rate")?;
        }
        if let Some(share) = self.slow_call_rate {
            require_share(share, "slow_call_rate")?;
        }
        require(
            self.slow_call_rate.is_some() == self.slow_call.is_some(),
            if self.slow_call.is_none() { "slow_call" } else { "slow_call_rate" },
            "`slow_call_rate` and `slow_call` go together: one is missing",
        )?;
        if let Some(d) = self.slow_call {
            require_some_time(d, "slow_call")?;
        }
        require(self.consecutive_failures != Some(0), "consecutive_failures", "must be at least 1")?;
        require(
            self.weight.is_some() == self.weight_period.is_some(),
            if self.weight.is_none() { "weight" } else { "weight_period" },
            "`weight` and `weight_period` go together: one is missing",
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
            "at least one rule must be given, or nothing ever opens the breaker",
        )
    }
}

impl OpenConfig {
    fn check(&self) -> Result<(), ConfigError> {
        require_some_time(self.base, "base")?;
        require(self.base <= self.cap, "base", "must not be longer than `cap`")?;
        require(self.factor >= 1.0 && self.factor.is_finite(), "factor", "must be a finite number, at least 1")?;
        require((0.0..=1.0).contains(&self.jitter), "jitter", "must lie between 0 and 1")?;
        require_some_time(self.stable_for, "stable_for")
    }
}

impl HalfOpenConfig {
    /// How many probes must be good for it to close.
    pub(super) fn required(&self) -> u32 {
        // A product such as 0.8 * 5 may lie a rounding error above the whole number that is meant.
        ((self.success_rate * f64::from(self.probes) - 1e-9).ceil() as u32).clamp(1, self.probes)
    }

    fn check(&self) -> Result<(), ConfigError> {
        require((1..=1_000_000).contains(&self.probes), "probes", "must lie between 1 and 1000000")?;
        require_share(self.success_rate, "success_rate")?;
        require_some_time(self.max, "max")
    }
}
