//! Types that all configurations share: the error for an invalid setting, names, durations as text,
//! and the [trait](Reconfigure) by which a configuration is replaced.
//!
//! A configuration is plain data: numbers, durations and options in a struct that serde reads and
//! code sets. It is checked in one place, the component's `new`, so that a wrong value from a
//! document and one from code are refused in the same way.
//!
//! ```
//! use steadfast::retry::{Retry, RetryConfig};
//!
//! let config: RetryConfig = toml::from_str("max_attempts = 0").unwrap();
//! let error = Retry::new(config).unwrap_err();
//! assert_eq!(error.to_string(), "invalid `max_attempts`: must be at least 1");
//! ```
pub mod human;
mod layers;
mod live;
mod name;
mod reconfigure;
mod secret;
mod setters;

pub(crate) use layers::Layer;
pub(crate) use live::{Live, apply_newest};
pub use name::Name;
pub(crate) use reconfigure::reconfigurable;
pub use reconfigure::{Effect, Reconfigure};
pub use secret::Secret;
pub(crate) use setters::setters;

use std::{borrow::Cow, fmt, time::Duration};

/// The error for an invalid configuration: the field, and the rule that it violates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    field: Cow<'static, str>,
    rule: Cow<'static, str>,
}

impl ConfigError {
    /// Creates an error for `field`. `rule` completes a sentence: "must be at least 1".
    pub fn new(field: impl Into<Cow<'static, str>>, rule: impl Into<Cow<'static, str>>) -> Self {
        Self { field: field.into(), rule: rule.into() }
    }

    /// Adds a section to the path of the field: `retry` turns `max_attempts` into
    /// `retry.max_attempts`.
    #[must_use]
    pub fn within(self, section: &str) -> Self {
        Self { field: format!("{section}.{}", self.field).into(), rule: self.rule }
    }

    /// Returns the field's path in the configuration document.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// Returns the violated rule.
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

/// Returns an error for `field` with `rule` unless `holds`.
pub(crate) fn require(holds: bool, field: &'static str, rule: &'static str) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError::new(field, rule)) }
}

/// Returns an error unless `share` is above 0 and at most 1; NaN is refused.
pub(crate) fn require_share(share: f64, field: &'static str) -> Result<(), ConfigError> {
    require(share > 0.0 && share <= 1.0, field, "must be above 0 and at most 1")
}

/// Returns an error for a zero duration.
pub(crate) fn require_some_time(d: Duration, field: &'static str) -> Result<(), ConfigError> {
    require(!d.is_zero(), field, "must be longer than zero")
}
