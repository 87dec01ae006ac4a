//! The configuration document.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    circuit_breaker::CircuitBreakerConfig,
    config::{ConfigError, human, require, require_some_time, setters},
    fallback::FallbackConfig,
    hedge::HedgeConfig,
    retry::{RetryBudgetConfig, RetryConfig},
    throttling::{
        AdaptiveLimitConfig, ClientThrottleConfig, ConcurrencyLimitConfig, Gauges, RateLimitConfig, ShedderConfig,
    },
};

/// Settings of the [`Standard`](super::Standard) stack.
///
/// An empty document is the default: time-outs of 30 s and 10 s, three attempts within a budget of
/// 20 %, a breaker at a failure rate of one half, no limits, no hedge. `false` switches a part off,
/// `true` uses its defaults.
///
/// ```
/// use steadfast::standard::StandardConfig;
///
/// let config: StandardConfig = toml::from_str("retry = false\nconcurrency_limit = true").unwrap();
/// assert!(config.retry.is_none());
/// assert_eq!(config.concurrency_limit.unwrap().capacity, 32);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct StandardConfig {
    /// Failures after which the call's fallback runs, and its maximum time. Off by default:
    /// [`call_or`](crate::Pipeline::call_or) then uses its own defaults.
    #[serde(with = "switch")]
    pub fallback: Option<FallbackConfig>,
    /// Time-out of the whole call. 30 s by default.
    #[serde(with = "switch_time")]
    pub timeout: Option<Duration>,
    /// Load shedding by priority while a gauge is above its limit. Gauges are added [in
    /// code](super::Standard::builder). Off by default.
    #[serde(with = "switch")]
    pub shed: Option<ShedderConfig>,
    /// Rate limit. Off by default.
    #[serde(with = "switch")]
    pub rate_limit: Option<RateLimitConfig>,
    /// Concurrency limit. Off by default.
    #[serde(with = "switch")]
    pub concurrency_limit: Option<ConcurrencyLimitConfig>,
    /// Adaptive concurrency limit, instead of a fixed one. Off by default.
    #[serde(with = "switch")]
    pub adaptive_limit: Option<AdaptiveLimitConfig>,
    /// Retries. On by default.
    #[serde(with = "switch")]
    pub retry: Option<RetryConfig>,
    /// Limit on the load that retries and hedges add. On by default.
    #[serde(with = "switch")]
    pub retry_budget: Option<RetryBudgetConfig>,
    /// A further attempt beside a slow one. Off by default.
    #[serde(with = "switch")]
    pub hedge: Option<HedgeConfig>,
    /// Client-side throttling by the share of accepted calls. Off by default.
    #[serde(with = "switch")]
    pub client_throttle: Option<ClientThrottleConfig>,
    /// Circuit breaker. On by default.
    #[serde(with = "switch")]
    pub circuit_breaker: Option<CircuitBreakerConfig>,
    /// Time-out of each attempt. 10 s by default.
    #[serde(with = "switch_time")]
    pub attempt_timeout: Option<Duration>,
}

impl Default for StandardConfig {
    fn default() -> Self {
        Self {
            timeout: Some(Duration::from_secs(30)),
            retry: Some(RetryConfig::default()),
            retry_budget: Some(RetryBudgetConfig::default()),
            circuit_breaker: Some(CircuitBreakerConfig::default()),
            attempt_timeout: Some(Duration::from_secs(10)),
            ..Self::none()
        }
    }
}

setters! {
    impl StandardConfig {
        fallback: impl Into<Option<FallbackConfig>>,
        timeout: impl Into<Option<Duration>>,
        shed: impl Into<Option<ShedderConfig>>,
        rate_limit: impl Into<Option<RateLimitConfig>>,
        concurrency_limit: impl Into<Option<ConcurrencyLimitConfig>>,
        adaptive_limit: impl Into<Option<AdaptiveLimitConfig>>,
        retry: impl Into<Option<RetryConfig>>,
        retry_budget: impl Into<Option<RetryBudgetConfig>>,
        hedge: impl Into<Option<HedgeConfig>>,
        client_throttle: impl Into<Option<ClientThrottleConfig>>,
        circuit_breaker: impl Into<Option<CircuitBreakerConfig>>,
        attempt_timeout: impl Into<Option<Duration>>,
    }
}

impl StandardConfig {
    /// Settings with every part off, for building up in code.
    pub const fn none() -> Self {
        Self {
            fallback: None,
            timeout: None,
            shed: None,
            rate_limit: None,
            concurrency_limit: None,
            adaptive_limit: None,
            retry: None,
            retry_budget: None,
            hedge: None,
            client_throttle: None,
            circuit_breaker: None,
            attempt_timeout: None,
        }
    }

    /// Checks the settings, and that the shedder has limits for these gauges.
    pub(super) fn check_with(&self, gauges: &Gauges) -> Result<(), ConfigError> {
        self.check()?;
        self.shed.as_ref().map_or(Ok(()), |shed| gauges.all_have(&shed.limits).map_err(|e| e.within("shed")))
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        fn part<T>(name: &str, part: Option<&T>, check: fn(&T) -> Result<(), ConfigError>) -> Result<(), ConfigError> {
            part.map_or(Ok(()), check).map_err(|e| e.within(name))
        }
        for (time, field) in [(self.timeout, "timeout"), (self.attempt_timeout, "attempt_timeout")] {
            time.map_or(Ok(()), |d| require_some_time(d, field))?;
        }
        require(
            self.concurrency_limit.is_none() || self.adaptive_limit.is_none(),
            "adaptive_limit",
            "must be off if `concurrency_limit` is on: choose one of them",
        )?;
        part("fallback", self.fallback.as_ref(), FallbackConfig::check)?;
        part("shed", self.shed.as_ref(), ShedderConfig::check)?;
        part("rate_limit", self.rate_limit.as_ref(), RateLimitConfig::check)?;
        part("concurrency_limit", self.concurrency_limit.as_ref(), ConcurrencyLimitConfig::check)?;
        part("adaptive_limit", self.adaptive_limit.as_ref(), AdaptiveLimitConfig::check)?;
        part("retry", self.retry.as_ref(), RetryConfig::check)?;
        part("retry_budget", self.retry_budget.as_ref(), RetryBudgetConfig::check)?;
        part("hedge", self.hedge.as_ref(), HedgeConfig::check)?;
        part("client_throttle", self.client_throttle.as_ref(), ClientThrottleConfig::check)?;
        part("circuit_breaker", self.circuit_breaker.as_ref(), CircuitBreakerConfig::check)
    }
}

/// A part of the document that may be `true`, `false` or a table.
mod switch {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
    use std::{fmt, marker::PhantomData};

    pub(super) fn serialize<T: Serialize, S: Serializer>(part: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
        match part {
            Some(part) => part.serialize(to),
            None => to.serialize_bool(false),
        }
    }

    pub(super) fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
    where
        T: Deserialize<'de> + Default,
        D: Deserializer<'de>,
    {
        from.deserialize_any(Switch(PhantomData))
    }

    struct Switch<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de> + Default> de::Visitor<'de> for Switch<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a table of settings, `true` for the defaults, or `false` for none")
        }

        fn visit_bool<E>(self, on: bool) -> Result<Self::Value, E> {
            Ok(on.then(T::default))
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            T::deserialize(de::value::MapAccessDeserializer::new(map)).map(Some)
        }
    }
}

/// A duration, or `false`.
mod switch_time {
    use super::{Duration, human};
    use serde::{Deserializer, Serializer, de};
    use std::fmt;

    pub(super) fn serialize<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => human::serialize(time, to),
            None => to.serialize_bool(false),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        from.deserialize_any(Switch)
    }

    struct Switch;

    impl de::Visitor<'_> for Switch {
        type Value = Option<Duration>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a duration with its unit, such as \"250ms\", or `false` for none")
        }

        fn visit_bool<E: de::Error>(self, on: bool) -> Result<Self::Value, E> {
            if on { Err(E::invalid_type(de::Unexpected::Bool(true), &self)) } else { Ok(None) }
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            human::parse(text).map(Some)
        }
    }
}
