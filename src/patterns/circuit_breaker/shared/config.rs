//! Configuration of a breaker whose openings processes share.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require, require_some_time, setters};

/// Configuration of a [`SharedCircuitBreaker`](super::SharedCircuitBreaker): plain data, from code
/// or from a document.
///
/// ```
/// use std::time::Duration;
/// use steadfast::circuit_breaker::{Agreement, SharedCircuitBreakerConfig};
///
/// let config: SharedCircuitBreakerConfig = toml::from_str(r#"
///     agreement = { quorum = 2 }
///     poll = "500ms"
/// "#).unwrap();
/// let expected = SharedCircuitBreakerConfig::default().quorum(2).poll(Duration::from_millis(500));
/// assert_eq!(config, expected);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SharedCircuitBreakerConfig {
    /// Number of other breakers that must have opened for this one to open with them. One by
    /// default: advisory.
    pub agreement: Agreement,
    /// Interval at which reports are read, and the own report is renewed. 1 s by default.
    #[serde(with = "human")]
    pub poll: Duration,
    /// Lifetime of a report that is not renewed because its process is gone or cut off. 5 s by
    /// default.
    #[serde(with = "human")]
    pub stale_after: Duration,
    /// Time limit of one request to the store. 1 s by default.
    #[serde(with = "human")]
    pub call_timeout: Duration,
}

/// Number of other breakers that must have opened for a breaker to open with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Agreement {
    /// One other breaker.
    #[default]
    Advisory,
    /// This many other breakers at the same time: what one process alone sees may be its own fault.
    Quorum(u32),
}

impl Agreement {
    pub(super) fn votes(self) -> usize {
        match self {
            Self::Advisory => 1,
            Self::Quorum(n) => n as usize,
        }
    }
}

impl Default for SharedCircuitBreakerConfig {
    fn default() -> Self {
        Self {
            agreement: Agreement::Advisory,
            poll: Duration::from_secs(1),
            stale_after: Duration::from_secs(5),
            call_timeout: Duration::from_secs(1),
        }
    }
}

setters! {
    impl SharedCircuitBreakerConfig {
        agreement: Agreement,
        poll: Duration,
        stale_after: Duration,
        call_timeout: Duration,
    }
}

impl SharedCircuitBreakerConfig {
    /// Sets the number of other breakers that must have opened.
    #[must_use]
    pub const fn quorum(mut self, n: u32) -> Self {
        self.agreement = Agreement::Quorum(n);
        self
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(self.agreement != Agreement::Quorum(0), "agreement.quorum", "must be at least 1")?;
        require(self.poll >= Duration::from_millis(10), "poll", "must be at least 10ms")?;
        require(
            self.stale_after / 2 >= self.poll,
            "stale_after",
            "must be at least twice `poll`, or a report would expire before it is renewed",
        )?;
        require_some_time(self.call_timeout, "call_timeout")
    }
}
