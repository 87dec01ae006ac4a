//! Settings of a prober.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require, require_some_time, setters};

/// A day of a certificate's validity.
pub(super) const DAY: Duration = Duration::from_secs(24 * 3600);

/// Settings of a [`Prober`](super::Prober).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ProberConfig {
    /// Interval between the starts of two rounds. 1 min by default, 1 s at least.
    #[serde(with = "human")]
    pub interval: Duration,
    /// Time limit of one probe: look-up of the name, connection, answer and body. 10 s by default.
    #[serde(with = "human")]
    pub timeout: Duration,
    /// Time before the end of a certificate from which its target is degraded. 21 days by default.
    #[serde(with = "human")]
    pub certificate_warning: Duration,
    /// Time before the end of a certificate from which its target is unhealthy. 7 days by default.
    #[serde(with = "human")]
    pub certificate_failure: Duration,
}

impl Default for ProberConfig {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(60),
            timeout: Duration::from_secs(10),
            certificate_warning: 21 * DAY,
            certificate_failure: 7 * DAY,
        }
    }
}

setters! {
    impl ProberConfig {
        interval: Duration,
        timeout: Duration,
        certificate_warning: Duration,
        certificate_failure: Duration,
    }
}

impl ProberConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(self.interval >= Duration::from_secs(1), "interval", "must be at least 1 s")?;
        require_some_time(self.timeout, "timeout")?;
        let is_ordered = self.certificate_failure <= self.certificate_warning;
        require(is_ordered, "certificate_failure", "must not be longer than `certificate_warning`")
    }
}
