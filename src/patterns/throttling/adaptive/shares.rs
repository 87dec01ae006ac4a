//! Shares of a limit by priority.
use serde::{Deserialize, Serialize};

use crate::{
    config::{ConfigError, require, require_share, setters},
    outcome::Priority,
};

/// The share of a limit that calls of each priority may use. The rest is reserved for calls that
/// matter more.
///
/// With `low = 0.5` a low call is admitted while less than half of the limit is in use, by calls of
/// any priority. Under overload low calls are shed first and high calls always find a permit; at
/// low load no call is rejected. The decision depends on the current use alone, so it cannot
/// oscillate.
///
/// ```
/// use steadfast::throttling::{AdaptiveLimitConfig, AdaptiveLimiter};
///
/// let config = toml::from_str("shares = { low = 0.3, normal = 0.7 }");
/// let config: AdaptiveLimitConfig = config.unwrap();
/// assert!(AdaptiveLimiter::new(config).is_ok());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct PriorityShares {
    /// For low calls. 0.5 by default.
    pub low: f64,
    /// For normal calls. 0.8 by default.
    pub normal: f64,
    /// For high calls. 1 by default.
    pub high: f64,
    /// For critical calls. 1 by default.
    pub critical: f64,
}

impl Default for PriorityShares {
    fn default() -> Self {
        Self::new(0.5, 0.8, 1.0)
    }
}

setters! {
    impl PriorityShares {
        low: f64,
        normal: f64,
        high: f64,
        critical: f64,
    }
}

impl PriorityShares {
    /// Returns these shares, with the whole limit for critical calls.
    pub const fn new(low: f64, normal: f64, high: f64) -> Self {
        Self { low, normal, high, critical: 1.0 }
    }

    pub(super) fn by_priority(shares: Option<Self>) -> [f64; 4] {
        shares.map_or([1.0; 4], |Self { low, normal, high, critical }| {
            let of = |priority| match priority {
                Priority::Low => low,
                Priority::Normal => normal,
                Priority::High => high,
                Priority::Critical => critical,
            };
            Priority::ALL.map(of)
        })
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require_share(self.low, "low")?;
        require_share(self.normal, "normal")?;
        require_share(self.high, "high")?;
        require_share(self.critical, "critical")?;
        require(self.low <= self.normal, "normal", "must not be below `low`")?;
        require(self.normal <= self.high, "high", "must not be below `normal`")?;
        require(self.high <= self.critical, "critical", "must not be below `high`")
    }
}
