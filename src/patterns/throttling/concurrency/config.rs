//! Settings of a concurrency limit.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require};

/// Who goes first when a place is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum QueueOrder {
    /// Who has waited longest: fair.
    #[default]
    Fifo,
    /// Who came last: under overload it answers somebody in time, where fairness answers everybody too late. A full queue
    /// turns the oldest away.
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
    /// How many calls run at once. 32 by default.
    pub capacity: u32,
    /// How many more may wait. 128 by default; 0 rejects at once.
    pub queue: u32,
    /// How long one waits at most. 1 s by default.
    #[serde(with = "human")]
    pub max_wait: Duration,
    /// Who goes first. Fair by default.
    pub order: QueueOrder,
}

impl Default for ConcurrencyLimitConfig {
    fn default() -> Self {
        Self { capacity: 32, queue: 128, max_wait: Duration::from_secs(1), order: QueueOrder::Fifo }
    }
}

impl ConcurrencyLimitConfig {
    /// At most `capacity` calls at once.
    pub fn of(capacity: u32) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// Sets how many more may wait, and for how long.
    #[must_use]
    pub const fn queue(mut self, queue: u32, max_wait: Duration) -> Self {
        self.queue = queue;
        self.max_wait = max_wait;
        self
    }

    /// Sets who goes first.
    #[must_use]
    pub const fn order(mut self, order: QueueOrder) -> Self {
        self.order = order;
        self
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        check_capacity(self.capacity)?;
        require(
            self.queue == 0 || !self.max_wait.is_zero(),
            "max_wait",
            "must be longer than zero, or `queue` must be 0: nobody could wait",
        )
    }
}

pub(super) fn check_capacity(capacity: u32) -> Result<(), ConfigError> {
    require(capacity >= 1, "capacity", "must be at least 1")
}
