//! Settings of a hedge.
use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{
    config::{ConfigError, human, require, require_share, require_some_time, setters},
    outcome::{FailureKind, KindSet},
};

/// Settings of a [`Hedge`](super::Hedge): plain data, from code or from a document.
///
/// ```
/// use std::time::Duration;
/// use steadfast::hedge::{HedgeConfig, HedgeDelay};
///
/// let config: HedgeConfig = toml::from_str(r#"
///     max_attempts = 3
///     delay = "50ms"
/// "#).unwrap();
/// assert_eq!(config.delay, HedgeDelay::Fixed(Duration::from_millis(50)));
///
/// let text = "delay = { percentile = 0.99, floor = \"5ms\" }";
/// let config: HedgeConfig = toml::from_str(text).unwrap();
/// assert!(matches!(config.delay, HedgeDelay::Percentile(p) if p.percentile == 0.99));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct HedgeConfig {
    /// Maximum number of attempts of a call, the first included; all may be in flight at once. 1
    /// never hedges. 2 by default, 10 at most.
    pub max_attempts: u32,
    /// Time that an attempt may take before another starts beside it. The 95th percentile by
    /// default.
    pub delay: HedgeDelay,
    /// Kinds of failure after which another attempt starts at once; any other ends the call. By
    /// default all except `client`, `cancelled` and `panic`, as for a retry.
    pub hedge_on: KindSet,
    /// If set, unmarked operations may run twice. Off by default: they run once. The marks
    /// [`idempotent`](crate::call::idempotent) and [`not_idempotent`](crate::call::not_idempotent)
    /// of one operation take precedence.
    pub idempotent: bool,
}

/// The time that an attempt may take before another starts beside it. In a document it is a
/// duration (`"50ms"`), or a table of the percentile's settings.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum HedgeDelay {
    /// A fixed time; zero starts all attempts at once.
    Fixed(Duration),
    /// A percentile of recent latencies.
    Percentile(PercentileConfig),
}

/// Settings of a [`HedgeDelay::Percentile`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct PercentileConfig {
    /// Share of calls that are faster than the delay: 0.95 by default, so that about 5 % of calls
    /// are hedged.
    pub percentile: f64,
    /// Minimum delay. 1 ms by default.
    #[serde(with = "human")]
    pub floor: Duration,
    /// Delay while there are fewer samples than `min_samples`. 100 ms by default.
    #[serde(with = "human")]
    pub until_known: Duration,
    /// Minimum number of samples for a percentile. 100 by default.
    pub min_samples: u32,
    /// Time for which a sample counts. 30 s by default.
    #[serde(with = "human")]
    pub window: Duration,
}

setters! {
    impl HedgeConfig {
        max_attempts: u32,
        delay: HedgeDelay,
        hedge_on: KindSet,
        idempotent: bool,
    }
}

impl HedgeConfig {
    /// Settings with a fixed delay, and at most two attempts.
    pub fn after(delay: Duration) -> Self {
        Self { delay: HedgeDelay::Fixed(delay), ..Self::default() }
    }

    /// Settings with a percentile of recent latencies as delay, and at most two attempts.
    pub fn percentile(percentile: f64) -> Self {
        let delay = HedgeDelay::Percentile(PercentileConfig { percentile, ..PercentileConfig::default() });
        Self { delay, ..Self::default() }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        require((1..=10).contains(&self.max_attempts), "max_attempts", "must lie between 1 and 10")?;
        match &self.delay {
            HedgeDelay::Fixed(_) => Ok(()),
            HedgeDelay::Percentile(percentile) => percentile.check().map_err(|e| e.within("delay")),
        }
    }
}

impl Default for HedgeConfig {
    fn default() -> Self {
        let kinds =
            KindSet::ALL.without(FailureKind::Client).without(FailureKind::Cancelled).without(FailureKind::Panic);
        Self {
            max_attempts: 2,
            delay: HedgeDelay::Percentile(PercentileConfig::default()),
            hedge_on: kinds,
            idempotent: false,
        }
    }
}

setters! {
    impl PercentileConfig {
        percentile: f64,
        floor: Duration,
        until_known: Duration,
        min_samples: u32,
        window: Duration,
    }
}

impl PercentileConfig {
    fn check(&self) -> Result<(), ConfigError> {
        require_share(self.percentile, "percentile")?;
        require_some_time(self.floor, "floor")?;
        require(self.until_known >= self.floor, "until_known", "must be at least `floor`")?;
        require(self.min_samples >= 10, "min_samples", "must be at least 10")?;
        require(
            self.window >= Duration::from_millis(100) && self.window <= Duration::from_secs(3600),
            "window",
            "must lie between 100ms and 1h",
        )
    }
}

impl Default for PercentileConfig {
    fn default() -> Self {
        Self {
            percentile: 0.95,
            floor: Duration::from_millis(1),
            until_known: Duration::from_millis(100),
            min_samples: 100,
            window: Duration::from_secs(30),
        }
    }
}

impl Serialize for HedgeDelay {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(delay) => human::serialize(delay, to),
            Self::Percentile(percentile) => percentile.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for HedgeDelay {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(DurationOrTable)
    }
}

struct DurationOrTable;

impl<'de> de::Visitor<'de> for DurationOrTable {
    type Value = HedgeDelay;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as \"50ms\", or a table of a percentile's settings")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<HedgeDelay, E> {
        human::parse(text).map(HedgeDelay::Fixed)
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<HedgeDelay, A::Error> {
        PercentileConfig::deserialize(de::value::MapAccessDeserializer::new(map)).map(HedgeDelay::Percentile)
    }
}
