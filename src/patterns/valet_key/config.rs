//! Settings of valet keys.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require, require_some_time, setters};

/// Settings of [`ValetKeys`](super::ValetKeys).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ValetKeyConfig {
    /// Time for which a key is valid whose grant names none. 15 min by default.
    #[serde(with = "human")]
    pub lifetime: Duration,
    /// Longest time for which a key may be valid. 7 d by default, and at most.
    #[serde(with = "human")]
    pub max_lifetime: Duration,
    /// Time before its issue from which a key is valid, since the clock of the process that checks
    /// it may be behind. 5 min by default.
    #[serde(with = "human")]
    pub early: Duration,
    /// Answer to a key that may have been revoked, while the store is away. A key for one use, and
    /// a renewal, are always refused then. [`Deny`](OnStoreFailure::Deny) by default.
    pub on_store_failure: OnStoreFailure,
    /// Time limit of the requests of a check to the store, and of each request of a revocation. 3 s
    /// by default.
    #[serde(with = "human")]
    pub call_timeout: Duration,
    /// Time after which a caller may return while the store is away. 1 s by default.
    #[serde(with = "human")]
    pub retry_after: Duration,
}

/// Answer to a key that may have been revoked, while the store is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnStoreFailure {
    /// It is refused as unavailable.
    Deny,
    /// It is taken for one that was not revoked, if the failure is passing: a time-out, or a store
    /// that is unavailable or busy. Each such request to the store is an event.
    Allow,
}

/// The most that `max_lifetime` may be.
pub(super) const CEILING: Duration = Duration::from_secs(7 * 24 * 3600);

/// The most that `early` may be.
pub(super) const MAX_EARLY: Duration = Duration::from_secs(3600);

impl Default for ValetKeyConfig {
    fn default() -> Self {
        Self {
            lifetime: Duration::from_secs(900),
            max_lifetime: CEILING,
            early: Duration::from_secs(300),
            on_store_failure: OnStoreFailure::Deny,
            call_timeout: Duration::from_secs(3),
            retry_after: Duration::from_secs(1),
        }
    }
}

setters! {
    impl ValetKeyConfig {
        lifetime: Duration,
        max_lifetime: Duration,
        early: Duration,
        on_store_failure: OnStoreFailure,
        call_timeout: Duration,
        retry_after: Duration,
    }
}

impl ValetKeyConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require_some_time(self.lifetime, "lifetime")?;
        require(self.max_lifetime <= CEILING, "max_lifetime", "must be at most 7 d")?;
        require(self.lifetime <= self.max_lifetime, "lifetime", "must be at most `max_lifetime`")?;
        require(self.early <= MAX_EARLY, "early", "must be at most 1 h")?;
        require_some_time(self.call_timeout, "call_timeout")
    }
}
