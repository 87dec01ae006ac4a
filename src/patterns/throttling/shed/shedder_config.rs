//! Settings of a shedder.
use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    Limits,
    gauge::{LimitsByName, check_limits},
};
use crate::{
    config::{ConfigError, human, require, require_some_time},
    outcome::Priority,
};

/// Settings of a [`Shedder`](crate::throttling::Shedder).
///
/// ```
/// use steadfast::throttling::{Gauge, ShedderConfig, Shedder};
///
/// let config: ShedderConfig = toml::from_str(r#"
///     spare = "high"
///     limits.cpu = { soft = 0.7, hard = 0.9 }
///     limits.depth = { soft = 1000, hard = 5000 }
/// "#).unwrap();
/// let depth = Gauge::new();
/// let shedder = Shedder::new(config).unwrap().with_gauge("cpu", || 0.3).unwrap().with_gauge("depth", depth.clone()).unwrap();
/// assert!(shedder.try_admit(steadfast::Priority::Low).is_ok());
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ShedderConfig {
    /// The limits of each gauge, by its name. None by default.
    pub limits: BTreeMap<String, Limits>,
    /// How often the gauges are read. 100 ms by default.
    #[serde(with = "human")]
    pub sample_every: Duration,
    /// For how long as much is shed as at a peak, before it becomes less. 200 ms by default.
    #[serde(with = "human")]
    pub hold: Duration,
    /// How long it takes from shedding all that may be shed to shedding nothing, at the fastest. 3 s by default: where it
    /// takes longer, each chance peak leaves capacity unused after it (10 s: a tenth of it, in the example `overload`).
    #[serde(with = "human")]
    pub recover: Duration,
    /// Calls of this priority and above are never shed. Critical by default.
    pub spare: Priority,
}

impl Default for ShedderConfig {
    fn default() -> Self {
        Self {
            limits: LimitsByName::new(),
            sample_every: Duration::from_millis(100),
            hold: Duration::from_millis(200),
            recover: Duration::from_secs(3),
            spare: Priority::Critical,
        }
    }
}

impl ShedderConfig {
    /// Sets the limits of a gauge.
    #[must_use]
    pub fn limit(mut self, gauge: impl Into<String>, soft: f64, hard: f64) -> Self {
        self.limits.insert(gauge.into(), Limits::new(soft, hard));
        self
    }

    /// Sets how often the gauges are read.
    #[must_use]
    pub const fn sample_every(mut self, every: Duration) -> Self {
        self.sample_every = every;
        self
    }

    /// Sets how long it holds what was shed at a peak, and how long it takes from there to nothing.
    #[must_use]
    pub const fn times(mut self, hold: Duration, recover: Duration) -> Self {
        (self.hold, self.recover) = (hold, recover);
        self
    }

    /// Sets from which priority on calls are never shed.
    #[must_use]
    pub const fn spare(mut self, spare: Priority) -> Self {
        self.spare = spare;
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        check_limits(&self.limits)?;
        require_some_time(self.sample_every, "sample_every")?;
        require_some_time(self.recover, "recover")?;
        require(self.spare > Priority::Low, "spare", "must be above `low`: nothing could be shed")
    }
}
