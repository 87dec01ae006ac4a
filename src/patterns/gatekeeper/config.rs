//! Settings of the two sides.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require_some_time, setters};

/// Settings of a [`HandOver`](super::HandOver).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct HandOverConfig {
    /// Time for which a seal for a call is valid. 30 s by default.
    #[serde(with = "human")]
    pub call_lifetime: Duration,
    /// Time for which a seal in a message is valid: longer than the message may wait. 1 h by
    /// default.
    #[serde(with = "human")]
    pub queue_lifetime: Duration,
}

impl Default for HandOverConfig {
    fn default() -> Self {
        Self { call_lifetime: Duration::from_secs(30), queue_lifetime: Duration::from_secs(3600) }
    }
}

setters! {
    impl HandOverConfig {
        call_lifetime: Duration,
        queue_lifetime: Duration,
    }
}

impl HandOverConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require_some_time(self.call_lifetime, "call_lifetime")?;
        require_some_time(self.queue_lifetime, "queue_lifetime")
    }
}

/// Settings of a [`TrustedHost`](super::TrustedHost).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TrustedHostConfig {
    /// Time limit of a request to the store of used seals. 3 s by default.
    #[serde(with = "human")]
    pub call_timeout: Duration,
    /// Longest time for which a seal may be valid when it comes: at least the lifetimes of the
    /// gates. 1 h by default.
    #[serde(with = "human")]
    pub max_lifetime: Duration,
    /// Time after which a caller may return while the store is away. 1 s by default.
    #[serde(with = "human")]
    pub retry_after: Duration,
}

impl Default for TrustedHostConfig {
    fn default() -> Self {
        Self {
            call_timeout: Duration::from_secs(3),
            max_lifetime: Duration::from_secs(3600),
            retry_after: Duration::from_secs(1),
        }
    }
}

setters! {
    impl TrustedHostConfig {
        call_timeout: Duration,
        max_lifetime: Duration,
        retry_after: Duration,
    }
}

impl TrustedHostConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require_some_time(self.call_timeout, "call_timeout")?;
        require_some_time(self.max_lifetime, "max_lifetime")
    }
}
