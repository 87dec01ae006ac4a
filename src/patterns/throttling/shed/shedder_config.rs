//! Settings of a shedder.
use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    Limits,
    gauge::{LimitsByName, check_limits},
};
use crate::{
    config::{ConfigError, human, require, require_some_time, setters},
    outcome::Priority,
};

/// Settings of a [`Shedder`](crate::throttling::Shedder).
///
/// ```
/// use steadfast::throttling::{Gauge, ShedderConfig, Shedder};
///
/// let config: ShedderConfig = toml::from_str(r#"
///     min_priority = "high"
///     limits.cpu = { soft = 0.7, hard = 0.9 }
///     limits.depth = { soft = 1000, hard = 5000 }
/// "#).unwrap();
/// let depth = Gauge::new();
/// let shedder = Shedder::builder(config)
///     .gauge("cpu", || 0.3)
///     .gauge("depth", depth.clone())
///     .build()
///     .unwrap();
/// assert!(shedder.try_acquire(steadfast::Priority::Low).is_ok());
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ShedderConfig {
    /// The limits of each gauge, by its name. None by default.
    pub limits: BTreeMap<String, Limits>,
    /// Interval between two readings of the gauges. 100 ms by default.
    #[serde(with = "human")]
    pub sample_every: Duration,
    /// Time for which the amount of shedding at a peak is sustained before it falls. 200 ms by
    /// default.
    #[serde(with = "human")]
    pub sustain: Duration,
    /// Minimum time in which shedding falls from everything that may be shed to nothing. 3 s by
    /// default. A longer time leaves capacity unused after each random peak (10 s: a tenth of it,
    /// in the example `overload`).
    #[serde(with = "human")]
    pub recovery: Duration,
    /// Lowest priority that is never shed. Critical by default.
    pub min_priority: Priority,
}

impl Default for ShedderConfig {
    fn default() -> Self {
        Self {
            limits: LimitsByName::new(),
            sample_every: Duration::from_millis(100),
            sustain: Duration::from_millis(200),
            recovery: Duration::from_secs(3),
            min_priority: Priority::Critical,
        }
    }
}

setters! {
    impl ShedderConfig {
        limits: impl Into<BTreeMap<String, Limits>>,
        sample_every: Duration,
        sustain: Duration,
        recovery: Duration,
        min_priority: Priority,
    }
}

impl ShedderConfig {
    /// Sets the limits of a gauge.
    #[must_use]
    pub fn limit(mut self, gauge: impl Into<String>, soft: f64, hard: f64) -> Self {
        self.limits.insert(gauge.into(), Limits::new(soft, hard));
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        check_limits(&self.limits)?;
        require_some_time(self.sample_every, "sample_every")?;
        require_some_time(self.recovery, "recovery")?;
        require(self.min_priority > Priority::Low, "min_priority", "must be above `low`, or nothing could be shed")
    }
}
