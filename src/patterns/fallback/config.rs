//! Settings of a fallback.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    call::FALL_BACK_ON,
    config::{ConfigError, human, require, require_some_time, setters},
    outcome::KindSet,
};

/// Settings of a [`Fallback`](super::Fallback): plain data, from code or from a document.
///
/// ```
/// use steadfast::{FailureKind, fallback::FallbackConfig};
///
/// let config: FallbackConfig = toml::from_str(r#"
///     fall_back_on = ["timeout", "connect"]
///     on_rejections = false
///     timeout = "250ms"
/// "#).unwrap();
/// assert!(config.fall_back_on.contains(FailureKind::Connect));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct FallbackConfig {
    /// Kinds of failure after which it falls back. By default all except `client`, `cancelled` and
    /// `panic`, as for a retry.
    pub fall_back_on: KindSet,
    /// If set, it falls back after rejections: an open breaker, a reached limit. On by default.
    pub on_rejections: bool,
    /// Maximum time of the fallback, from its first wait; never longer than the rest of the call's
    /// time. 1 s by default. [`Duration::MAX`] sets no limit.
    #[serde(with = "human")]
    pub timeout: Duration,
}

setters! {
    impl FallbackConfig {
        fall_back_on: KindSet,
        on_rejections: bool,
        timeout: Duration,
    }
}

impl FallbackConfig {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        require(
            self.on_rejections || !self.fall_back_on.is_empty(),
            "fall_back_on",
            "must have a kind, or `on_rejections` must be on: this fallback never falls back",
        )?;
        require_some_time(self.timeout, "timeout")
    }
}

impl Default for FallbackConfig {
    fn default() -> Self {
        Self { fall_back_on: FALL_BACK_ON, on_rejections: true, timeout: Duration::from_secs(1) }
    }
}
