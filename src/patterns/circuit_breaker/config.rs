//! Configuration of a circuit breaker.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{HalfOpenConfig, OpenConfig, SlowStartConfig, TripConfig};
use crate::{
    config::{ConfigError, human, require, require_some_time, setters},
    outcome::{FailureKind, KindSet},
};

/// Configuration of a [`CircuitBreaker`](super::CircuitBreaker): plain data, from code or from a
/// document.
///
/// ```
/// use steadfast::circuit_breaker::{CircuitBreaker, CircuitBreakerConfig};
///
/// let config: CircuitBreakerConfig = toml::from_str(r#"
///     window = { calls = 50 }
///     min_calls = 10
///     trip = { failure_rate = 0.3, consecutive_failures = 8 }
///     open = { initial_delay = "2s", max_delay = "30s" }
/// "#).unwrap();
/// assert!(CircuitBreaker::new(config).is_ok());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct CircuitBreakerConfig {
    /// Window of calls over which the rates are measured. The last 100 calls by default.
    pub window: WindowConfig,
    /// Minimum number of calls in the window before a rate is judged. 20 by default.
    pub min_calls: u32,
    /// Rules that open the breaker. A failure rate of one half by default. A document that gives
    /// this table gives all the rules.
    pub trip: TripConfig,
    /// Kinds of failure that count as failures. The other kinds count as successes, because they
    /// are answers. By default all but `client` and `cancelled`. A panic in the operation counts as
    /// a failure in any case.
    pub failures: KindSet,
    /// Duration of an opening.
    pub open: OpenConfig,
    /// Probing of a half-open breaker.
    pub half_open: HalfOpenConfig,
    /// Slow start: a growing share of the calls passes after the probes have closed the breaker.
    /// None by default: all calls pass at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_start: Option<SlowStartConfig>,
    /// Duration after which a dropped call counts as a failure (kind `cancelled`). None by default:
    /// a dropped call changes nothing.
    #[serde(with = "human::option", skip_serializing_if = "Option::is_none")]
    pub count_cancelled_after: Option<Duration>,
}

/// Window of calls over which a breaker measures its rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields, expecting = "`{ calls = 100 }` or `{ time = \"10s\", buckets = 10 }`")]
#[non_exhaustive]
pub enum WindowConfig {
    /// The last calls, by number. Reads no clock.
    Calls {
        /// Number of calls.
        calls: u32,
    },
    /// The calls of a sliding time, in buckets.
    Time {
        /// Length of the window.
        #[serde(with = "human")]
        time: Duration,
        /// Number of steps in which the window slides. 10 by default.
        #[serde(default = "ten")]
        buckets: u32,
    },
}

fn ten() -> u32 {
    10
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
            slow_start: None,
            count_cancelled_after: None,
        }
    }
}

setters! {
    impl CircuitBreakerConfig {
        window: WindowConfig,
        min_calls: u32,
        trip: TripConfig,
        failures: KindSet,
        open: OpenConfig,
        half_open: HalfOpenConfig,
        slow_start: Option<SlowStartConfig>,
        count_cancelled_after: Option<Duration>,
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

    /// Sets the duration of the first opening, and the maximum.
    #[must_use]
    pub const fn open_for(mut self, initial_delay: Duration, max_delay: Duration) -> Self {
        self.open.initial_delay = initial_delay;
        self.open.max_delay = max_delay;
        self
    }

    /// Sets the number of probes, and the share of them that must succeed.
    #[must_use]
    pub const fn half_open_calls(mut self, calls: u32, success_rate: f64) -> Self {
        self.half_open.permitted_calls = calls;
        self.half_open.success_rate = success_rate;
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
        if let Some(slow_start) = &self.slow_start {
            slow_start.check().map_err(|e| e.within("slow_start"))?;
        }
        self.count_cancelled_after.map_or(Ok(()), |d| require_some_time(d, "count_cancelled_after"))
    }
}

/// Maximum size of a count window. It stores 8 bytes per failure: at most 8 MB.
const MAX_WINDOW: u32 = 1_000_000;
/// Maximum number of buckets: judging a time window reads all of them.
const MAX_BUCKETS: u32 = 1000;
