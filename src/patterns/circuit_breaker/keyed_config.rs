//! Configuration of a registry of breakers.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::CircuitBreakerConfig;
use crate::config::{ConfigError, human, require, require_share, require_some_time, setters};

/// Configuration of [`KeyedBreakers`](super::KeyedBreakers): plain data, from code or from a
/// document.
///
/// ```
/// use steadfast::circuit_breaker::{KeyedBreakers, KeyedBreakersConfig};
///
/// let config: KeyedBreakersConfig = toml::from_str(r#"
///     max_open = 0.3
///     idle = "5m"
///     breaker = { min_calls = 10 }
/// "#).unwrap();
/// assert!(KeyedBreakers::<String>::new(config).is_ok());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct KeyedBreakersConfig {
    /// Configuration of every key's breaker.
    pub breaker: CircuitBreakerConfig,
    /// Maximum share of the keys whose breakers may be open, half-open or isolated at once, rounded
    /// down, but at least one key. A rule that would open one more is suppressed; a manual opening
    /// is not. 1 by default: all of them.
    pub max_open: f64,
    /// Duration without use after which a key may be removed. 10 min by default.
    #[serde(with = "human")]
    pub idle: Duration,
    /// Maximum number of keys, rounded up to a multiple of 64. 1,048,576 by default.
    ///
    /// A key beyond it makes room: closed breakers that are not in use elsewhere are removed, one
    /// eighth of all at once, and first those without recent use. Breakers that are not closed are
    /// kept. If none can be removed, the new key gets a breaker that the registry does not store.
    pub max_keys: u32,
}

impl Default for KeyedBreakersConfig {
    fn default() -> Self {
        Self {
            breaker: CircuitBreakerConfig::default(),
            max_open: 1.0,
            idle: Duration::from_secs(600),
            max_keys: 1 << 20,
        }
    }
}

impl From<CircuitBreakerConfig> for KeyedBreakersConfig {
    fn from(breaker: CircuitBreakerConfig) -> Self {
        Self { breaker, ..Self::default() }
    }
}

setters! {
    impl KeyedBreakersConfig {
        breaker: CircuitBreakerConfig,
        max_open: f64,
        idle: Duration,
        max_keys: u32,
    }
}

impl KeyedBreakersConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        self.breaker.check().map_err(|e| e.within("breaker"))?;
        require_share(self.max_open, "max_open")?;
        require_some_time(self.idle, "idle")?;
        require(self.max_keys >= 1, "max_keys", "must be at least 1")
    }
}
