//! Settings of a scheduler.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    config::{ConfigError, human, require, setters},
    queue_listener::QueueListenerConfig,
    work::IdleConfig,
};

/// Settings of a [`Scheduler`](super::Scheduler). Those of the steps are the settings of its saga.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SchedulerConfig {
    /// Maximum number of sagas that each process runs at once. 16 by default.
    pub concurrency: u32,
    /// Time for which a lease hides a submission from other processes; it is renewed. After a crash
    /// the saga goes on that much later. 30 s by default.
    #[serde(with = "human")]
    pub visibility: Duration,
    /// Delays between polls of an empty queue, or waits in one that wakes its receivers. 100 ms to
    /// 5 s by default.
    pub idle: IdleConfig,
    /// Number of deliveries whose handling began and ended without a settlement, beyond the claims
    /// of the saga, after which a message becomes a dead letter: its process dies before it claims
    /// the saga. 5 by default.
    pub max_deliveries: u32,
    /// Number of times that a saga is resumed because nothing carried it on. After that it is
    /// compensated; after twice as many it is stuck. 3 by default.
    pub max_failures: u32,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            concurrency: 16,
            visibility: Duration::from_secs(30),
            idle: IdleConfig::between(Duration::from_millis(100), Duration::from_secs(5)),
            max_deliveries: 5,
            max_failures: 3,
        }
    }
}

setters! {
    impl SchedulerConfig {
        concurrency: u32,
        visibility: Duration,
        idle: IdleConfig,
        max_deliveries: u32,
        max_failures: u32,
    }
}

impl SchedulerConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require((1..=100_000).contains(&self.concurrency), "concurrency", "must lie between 1 and 100000")?;
        require(self.max_deliveries >= 1, "max_deliveries", "must be at least 1")?;
        require(self.max_failures >= 1, "max_failures", "must be at least 1")
    }

    /// Returns the settings of the listener. `stop` is the time within which a step ends.
    pub(super) fn listener(&self, stop: Duration) -> QueueListenerConfig {
        QueueListenerConfig::default()
            .batch(self.concurrency as usize)
            .tasks(1, self.concurrency)
            .visibility(self.visibility)
            .idle(self.idle)
            // The saga counts attempts, and the scheduler deliveries.
            .max_attempts(u32::MAX)
            .max_expiries(u32::MAX)
            // Sagas are released at their next step.
            .stop_within(Duration::ZERO, stop)
    }
}
