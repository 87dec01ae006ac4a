//! Settings of a journal.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    backoff::BackoffConfig,
    config::{ConfigError, human, require, setters},
    queue_listener::QueueListenerConfig,
    throttling::Quota,
    work::IdleConfig,
};

/// Settings of a [`Journal`](super::Journal): plain data, from code or from a document.
///
/// ```
/// use steadfast::journal::JournalConfig;
///
/// let config: JournalConfig = toml::from_str(r#"
///     per_second = 50
///     concurrency = 8
/// "#).unwrap();
/// assert_eq!(config, JournalConfig::default().per_second(50).concurrency(8));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct JournalConfig {
    /// Maximum number of entries that each process replays in a second, so that a service that has
    /// just recovered is not flooded. 10 by default.
    pub per_second: u32,
    /// Maximum number of entries replayed at once. 4 by default.
    pub concurrency: u32,
    /// Maximum number of attempts before an entry becomes a dead letter. A released or refused
    /// entry is not an attempt. 10 by default.
    pub max_attempts: u32,
    /// Delays before a failed entry is tried again. 1 s to 60 s by default, with full jitter.
    pub retry: BackoffConfig,
    /// Delays between polls of an empty journal. 100 ms to 5 s by default.
    pub idle: IdleConfig,
    /// Time for which a lease hides an entry from other processes; it is renewed. After a crash the
    /// entry is replayed that much later. 30 s by default.
    #[serde(with = "human")]
    pub visibility: Duration,
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self {
            per_second: 10,
            concurrency: 4,
            max_attempts: 10,
            retry: BackoffConfig::default().between(Duration::from_secs(1), Duration::from_secs(60)),
            idle: IdleConfig::between(Duration::from_millis(100), Duration::from_secs(5)),
            visibility: Duration::from_secs(30),
        }
    }
}

setters! {
    impl JournalConfig {
        per_second: u32,
        concurrency: u32,
        max_attempts: u32,
        retry: BackoffConfig,
        idle: IdleConfig,
        visibility: Duration,
    }
}

impl JournalConfig {
    pub(super) fn quota(&self) -> Quota {
        Quota::per_second(self.per_second).burst(1)
    }

    /// Returns the time limit of one request to the queue.
    pub(super) fn call_timeout(&self) -> Duration {
        self.listener().call_limit()
    }

    pub(super) fn listener(&self) -> QueueListenerConfig {
        let listener = QueueListenerConfig::default()
            .batch(self.concurrency as usize)
            .tasks(1, self.concurrency)
            .max_attempts(self.max_attempts)
            .retry(self.retry)
            .idle(self.idle)
            .visibility(self.visibility);
        // Entries that wait for the gate are released at once.
        let kill_timeout = listener.kill_timeout;
        listener.stop_within(Duration::ZERO, kill_timeout)
    }

    /// Checks the settings that the listener does not check.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require((1..=1_000_000).contains(&self.per_second), "per_second", "must lie between 1 and 1000000")?;
        require((1..=100_000).contains(&self.concurrency), "concurrency", "must lie between 1 and 100000")?;
        require(self.max_attempts >= 1, "max_attempts", "must be at least 1")?;
        require(self.visibility >= Duration::from_millis(1), "visibility", "must be at least 1ms")
    }
}
