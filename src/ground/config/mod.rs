//! What every configuration shares: the one error that refuses it, and durations as people write them.
//!
//! A configuration is plain data: numbers, durations, options, in a struct that serde reads and code sets. It is checked
//! at one door, the policy's `new`, so that a wrong value is refused the same way wherever it came from.
//!
//! ```
//! use steadfast::retry::{Retry, RetryConfig};
//!
//! let config: RetryConfig = toml::from_str("max_attempts = 0").unwrap();
//! assert_eq!(Retry::new(config).unwrap_err().to_string(), "invalid `max_attempts`: must be at least 1");
//! ```
pub mod human;
mod name;

pub use name::Name;

use std::{borrow::Cow, fmt, time::Duration};

/// A configuration that was refused: which field, and the rule that it breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    field: Cow<'static, str>,
    rule: Cow<'static, str>,
}

impl ConfigError {
    /// Refuses `field` because it breaks `rule`, which reads as the end of a sentence: "must be at least 1".
    pub fn new(field: impl Into<Cow<'static, str>>, rule: impl Into<Cow<'static, str>>) -> Self {
        Self { field: field.into(), rule: rule.into() }
    }

    /// The same refusal, told from outside: `retry` makes `max_attempts` into `retry.max_attempts`.
    #[must_use]
    pub fn within(self, section: &str) -> Self {
        Self { field: format!("{section}.{}", self.field).into(), rule: self.rule }
    }

    /// The field's path, as the configuration's document has it.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// The rule that it breaks.
    pub fn rule(&self) -> &str {
        &self.rule
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid `{}`: {}", self.field, self.rule)
    }
}

impl std::error::Error for ConfigError {}

/// Refuses `field` with `rule` unless `holds`.
pub(crate) fn require(holds: bool, field: &'static str, rule: &'static str) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError::new(field, rule)) }
}

/// A share of a whole: above 0, at most 1. NaN is neither.
pub(crate) fn require_share(share: f64, field: &'static str) -> Result<(), ConfigError> {
    require(share > 0.0 && share <= 1.0, field, "must be above 0 and at most 1")
}

/// A duration that something is measured against.
pub(crate) fn require_some_time(d: Duration, field: &'static str) -> Result<(), ConfigError> {
    require(!d.is_zero(), field, "must be longer than zero")
}
