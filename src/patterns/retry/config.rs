//! Settings of a retry.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    backoff::BackoffConfig,
    config::{ConfigError, human, require, require_some_time, setters},
    outcome::{FailureKind, KindSet},
};

/// Settings of a [`Retry`](super::Retry): plain data, from code or from a document.
///
/// ```
/// use steadfast::retry::RetryConfig;
///
/// let config: RetryConfig = toml::from_str(r#"
///     max_attempts = 5
///     max_elapsed = "30s"
///     backoff = { base = "50ms", cap = "2s", jitter = "equal" }
/// "#).unwrap();
/// assert_eq!(config.max_attempts, 5);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RetryConfig {
    /// Maximum number of attempts, the first included; 1 never retries. 3 by default.
    pub max_attempts: u32,
    /// Delays between attempts.
    pub backoff: BackoffConfig,
    /// Total time: no attempt starts later than this after the first. None by default.
    #[serde(with = "human::option", skip_serializing_if = "Option::is_none")]
    pub max_elapsed: Option<Duration>,
    /// Kinds of failure to retry. By default all except `client`, `cancelled` and `panic`.
    pub retry_on: KindSet,
    /// Longest wait that a server may ask for; after a longer one the retry gives up at once. 60 s
    /// by default.
    #[serde(with = "human")]
    pub max_hint: Duration,
    /// If set, rejections by policies of this crate are retried, provided that they state a retry
    /// time of at most `max_hint`. Off by default: an open breaker means "stop asking".
    pub retry_rejections: bool,
    /// If set, attempts are also repeated inside an attempt of another retry, which multiplies
    /// them. Off by default.
    pub retry_nested: bool,
    /// If set, unmarked operations may run twice. Off by default: they are repeated only after a
    /// failure that proves that nothing was sent (kind `connect`). The marks
    /// [`idempotent`](crate::call::idempotent) and [`not_idempotent`](crate::call::not_idempotent)
    /// of one operation take precedence.
    pub idempotent: bool,
}

setters! {
    impl RetryConfig {
        max_attempts: u32,
        backoff: BackoffConfig,
        max_elapsed: Option<Duration>,
        retry_on: KindSet,
        max_hint: Duration,
        retry_rejections: bool,
        retry_nested: bool,
        idempotent: bool,
    }
}

impl RetryConfig {
    /// Settings for calls that a user waits for: 3 attempts, 50 ms growing to 500 ms, 3 s in total.
    pub fn interactive() -> Self {
        Self {
            backoff: BackoffConfig::default().between(Duration::from_millis(50), Duration::from_millis(500)),
            max_elapsed: Some(Duration::from_secs(3)),
            max_hint: Duration::from_secs(2),
            ..Self::default()
        }
    }

    /// Settings for background work: 10 attempts, 500 ms growing to a minute.
    pub fn batch() -> Self {
        Self {
            max_attempts: 10,
            backoff: BackoffConfig::default().between(Duration::from_millis(500), Duration::from_secs(60)),
            max_hint: Duration::from_secs(300),
            ..Self::default()
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        require(self.max_attempts >= 1, "max_attempts", "must be at least 1")?;
        self.backoff.check().map_err(|e| e.within("backoff"))?;
        if let Some(total) = self.max_elapsed {
            require_some_time(total, "max_elapsed")?;
        }
        require(!self.retry_on.is_empty(), "retry_on", "must name at least one kind of failure")
    }
}

impl Default for RetryConfig {
    fn default() -> Self {
        let kinds =
            KindSet::ALL.without(FailureKind::Client).without(FailureKind::Cancelled).without(FailureKind::Panic);
        Self {
            max_attempts: 3,
            backoff: BackoffConfig::default(),
            max_elapsed: None,
            retry_on: kinds,
            max_hint: Duration::from_secs(60),
            retry_rejections: false,
            retry_nested: false,
            idempotent: false,
        }
    }
}
