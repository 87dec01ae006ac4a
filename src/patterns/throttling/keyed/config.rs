//! Settings of a keyed rate limit.
use serde::{Deserialize, Serialize};

use super::shard::{Tier, Tiers};
use crate::{
    config::{ConfigError, require, setters},
    throttling::{Quota, RateLimitConfig, rate::gcra::Pace},
};

/// Settings of a [`KeyedRateLimiter`](crate::throttling::KeyedRateLimiter): plain data, from code
/// or from a document.
///
/// ```
/// use steadfast::throttling::{KeyedRateLimitConfig, KeyedRateLimiter};
///
/// let config: KeyedRateLimitConfig = toml::from_str(r#"
///     limit = { permits = 50 }
///     tiers = [{ permits = 1000, per = "1s", burst = 100 }]
/// "#).unwrap();
/// let limiter = KeyedRateLimiter::<String>::new(config).unwrap();
/// assert_eq!(limiter.usage("anybody").available, 50);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct KeyedRateLimitConfig {
    /// Limit of each key without a tier. Its mode, its maximum wait and its maximum hint hold for
    /// all keys. 100 permits a second by default.
    pub limit: RateLimitConfig,
    /// Quotas of the tiers, by index, for the keys that
    /// [`tier_of`](crate::throttling::KeyedRateLimiter::builder) sends there. None by
    /// default.
    pub tiers: Vec<Quota>,
    /// Maximum number of remembered keys, rounded up to a multiple of 64. 1,048,576 by default.
    ///
    /// To make room, the limiter forgets keys whose permits have all returned, and if there are
    /// none, an eighth of the others. Those are the keys whose permits return soonest, since
    /// forgetting a key gives it a whole burst. Keys with waiting calls are kept.
    pub max_keys: u32,
}

impl Default for KeyedRateLimitConfig {
    fn default() -> Self {
        Self { limit: RateLimitConfig::default(), tiers: Vec::new(), max_keys: 1 << 20 }
    }
}

impl From<RateLimitConfig> for KeyedRateLimitConfig {
    fn from(limit: RateLimitConfig) -> Self {
        Self { limit, ..Self::default() }
    }
}

impl From<Quota> for KeyedRateLimitConfig {
    fn from(quota: Quota) -> Self {
        RateLimitConfig::from(quota).into()
    }
}

setters! {
    impl KeyedRateLimitConfig {
        limit: impl Into<RateLimitConfig>,
        tiers: [Quota],
        max_keys: u32,
    }
}

impl KeyedRateLimitConfig {
    /// Returns the default quota and those of the tiers if all settings are valid.
    pub(super) fn checked(&self) -> Result<Tiers, ConfigError> {
        self.limit.check().map_err(|e| e.within("limit"))?;
        require(self.max_keys >= 1, "max_keys", "must be at least 1")?;
        let tier = |quota| Tier { quota, pace: Pace::new(&quota) };
        let numbered = |(i, quota): (usize, &Quota)| {
            // Also for the mode of all keys.
            self.limit.with_quota(*quota).check().map_err(|e| e.within(&format!("tiers[{i}]")))?;
            Ok(tier(*quota))
        };
        std::iter::once(Ok(tier(self.limit.quota()))).chain(self.tiers.iter().enumerate().map(numbered)).collect()
    }
}
