//! Settings of a concurrency limit.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require, setters};

/// The order in which waiting calls get a free permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum QueueOrder {
    /// First in, first out: the call that has waited longest is next.
    #[default]
    Fifo,
    /// Last in, first out: the newest call is next. Under overload some calls are answered in time,
    /// while first in, first out answers all of them too late. A full queue rejects its oldest
    /// call.
    NewestFirst,
}

/// Settings of a [`ConcurrencyLimiter`](crate::throttling::ConcurrencyLimiter).
///
/// ```
/// use steadfast::throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter};
///
/// let config: ConcurrencyLimitConfig = toml::from_str(r#"
///     capacity = 64
///     queue = 100
///     max_wait = "250ms"
/// "#).unwrap();
/// assert!(ConcurrencyLimiter::new(config).is_ok());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ConcurrencyLimitConfig {
    /// Number of calls that run at once. 32 by default.
    pub capacity: u32,
    /// Number of calls that wait in addition. 128 by default; 0 rejects at once.
    pub queue: u32,
    /// Maximum time that a call waits. 1 s by default.
    #[serde(with = "human")]
    pub max_wait: Duration,
    /// Order of the queue. First in, first out by default.
    pub order: QueueOrder,
}

impl Default for ConcurrencyLimitConfig {
    fn default() -> Self {
        Self { capacity: 32, queue: 128, max_wait: Duration::from_secs(1), order: QueueOrder::Fifo }
    }
}

setters! {
    impl ConcurrencyLimitConfig {
        capacity: u32,
        queue: u32,
        max_wait: Duration,
        order: QueueOrder,
    }
}

impl ConcurrencyLimitConfig {
    /// Returns settings for at most `capacity` calls at once.
    pub fn of(capacity: u32) -> Self {
        Self { capacity, ..Self::default() }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        require(self.capacity >= 1, "capacity", "must be at least 1")?;
        require(self.queue == 0 || !self.max_wait.is_zero(), "max_wait", "must be longer than zero unless `queue` is 0")
    }
}
