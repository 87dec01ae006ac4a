//! Settings of a degradation.
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{Limits, gauge::check_limits};
use crate::config::{ConfigError, human, require, require_some_time, setters};

/// Settings of a [`Degradation`](crate::throttling::Degradation).
///
/// ```
/// use steadfast::throttling::{Degradation, DegradationConfig};
///
/// let config: DegradationConfig = toml::from_str(r#"
///     features = ["recommendations", "avatars", "search"]
///     limits.cpu = { soft = 0.7, hard = 0.9 }
///     hold = "30s"
/// "#).unwrap();
/// let degradation = Degradation::new(config).unwrap();
/// assert!(degradation.feature("search").is_some_and(|search| search.is_enabled()));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct DegradationConfig {
    /// The features, in the order in which they are switched off: the least important one comes
    /// first. They are switched on in reverse order.
    pub features: Vec<String>,
    /// The limits of each gauge, by its name. None by default.
    pub limits: BTreeMap<String, Limits>,
    /// Interval between two readings of the gauges. 100 ms by default.
    #[serde(with = "human")]
    pub sample_every: Duration,
    /// Time between switching off two features, while a gauge is above its soft limit. 1 s by
    /// default. From the hard limit on, all features are switched off at once.
    #[serde(with = "human")]
    pub step: Duration,
    /// Time for which all gauges must be below before a feature is switched on, and again before
    /// the next one. 10 s by default.
    #[serde(with = "human")]
    pub hold: Duration,
    /// Distance below the soft limit that counts as "below", as a share of the distance between
    /// both limits. 0.1 by default: the load of a feature that returns shall not switch it off
    /// again.
    pub margin: f64,
}

impl Default for DegradationConfig {
    fn default() -> Self {
        Self {
            features: Vec::new(),
            limits: BTreeMap::new(),
            sample_every: Duration::from_millis(100),
            step: Duration::from_secs(1),
            hold: Duration::from_secs(10),
            margin: 0.1,
        }
    }
}

setters! {
    impl DegradationConfig {
        features: [impl Into<String>],
        limits: impl Into<BTreeMap<String, Limits>>,
        sample_every: Duration,
        step: Duration,
        hold: Duration,
        margin: f64,
    }
}

impl DegradationConfig {
    /// Returns settings with these features, in the order in which they are switched off.
    pub fn of<F: Into<String>>(features: impl IntoIterator<Item = F>) -> Self {
        Self { features: features.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Sets the limits of a gauge.
    #[must_use]
    pub fn limit(mut self, gauge: impl Into<String>, soft: f64, hard: f64) -> Self {
        self.limits.insert(gauge.into(), Limits::new(soft, hard));
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let mut known = BTreeSet::new();
        require(!self.features.is_empty(), "features", "must name at least one feature")?;
        require(self.features.iter().all(|name| known.insert(name)), "features", "must name each feature once")?;
        check_limits(&self.limits)?;
        require_some_time(self.sample_every, "sample_every")?;
        require_some_time(self.hold, "hold")?;
        require(self.margin >= 0.0 && self.margin.is_finite(), "margin", "must be a finite number, at least 0")
    }
}
