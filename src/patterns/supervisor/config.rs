//! Settings of a supervisor.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    backoff::BackoffConfig,
    config::{ConfigError, human, require, require_some_time, setters},
};

/// The set of children that a failure stops and restarts, beside the child that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Strategy {
    /// No other child: the children do not need each other.
    #[default]
    OneForOne,
    /// All other children.
    OneForAll,
    /// The children that are started after it.
    RestForOne,
}

impl Strategy {
    /// Returns the strategy as a word, as it is written in a configuration document.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OneForOne => "one_for_one",
            Self::OneForAll => "one_for_all",
            Self::RestForOne => "rest_for_one",
        }
    }
}

/// Settings of a [`Supervisor`](super::Supervisor).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SupervisorConfig {
    /// Set of children that a failure stops and restarts. The failed child alone by default.
    pub strategy: Strategy,
    /// Maximum number of restarts within `restart_window`; one more stops all children. 5 by
    /// default.
    pub max_restarts: u32,
    /// Time for which a restart counts. 60 s by default.
    #[serde(with = "human")]
    pub restart_window: Duration,
    /// Delays before the restarts of a child. From 100 ms to 30 s by default, with full jitter.
    pub backoff: BackoffConfig,
    /// Time for which a child must have been ready, so that its next delay is the first one again.
    /// 60 s by default.
    #[serde(with = "human")]
    pub reset_after: Duration,
    /// Time limit for a child that is waited for to be ready. 30 s by default.
    #[serde(with = "human")]
    pub start_timeout: Duration,
    /// Time for a child to end after it was asked to stop; then it is dropped. 10 s by default.
    #[serde(with = "human")]
    pub stop_timeout: Duration,
    /// Time limit for the stop of all children together. 25 s by default: below the 30 s after
    /// which a platform usually kills the process.
    #[serde(with = "human")]
    pub shutdown_timeout: Duration,
    /// Duration of a poll above which an event names the child. 100 ms by default.
    #[serde(with = "human")]
    pub slow_poll: Duration,
    /// Time limit of one request for a checkpoint. 5 s by default.
    #[serde(with = "human")]
    pub call_timeout: Duration,
}

impl Default for SupervisorConfig {
    fn default() -> Self {
        Self {
            strategy: Strategy::OneForOne,
            max_restarts: 5,
            restart_window: Duration::from_secs(60),
            backoff: BackoffConfig::default().between(Duration::from_millis(100), Duration::from_secs(30)),
            reset_after: Duration::from_secs(60),
            start_timeout: Duration::from_secs(30),
            stop_timeout: Duration::from_secs(10),
            shutdown_timeout: Duration::from_secs(25),
            slow_poll: Duration::from_millis(100),
            call_timeout: Duration::from_secs(5),
        }
    }
}

setters! {
    impl SupervisorConfig {
        strategy: Strategy,
        max_restarts: u32,
        restart_window: Duration,
        backoff: BackoffConfig,
        reset_after: Duration,
        start_timeout: Duration,
        stop_timeout: Duration,
        shutdown_timeout: Duration,
        slow_poll: Duration,
        call_timeout: Duration,
    }
}

impl SupervisorConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require_some_time(self.restart_window, "restart_window")?;
        self.backoff.check().map_err(|e| e.within("backoff"))?;
        require_some_time(self.start_timeout, "start_timeout")?;
        require_some_time(self.shutdown_timeout, "shutdown_timeout")?;
        let rule = "must not be longer than `shutdown_timeout`";
        require(self.stop_timeout <= self.shutdown_timeout, "stop_timeout", rule)?;
        require_some_time(self.slow_poll, "slow_poll")?;
        require_some_time(self.call_timeout, "call_timeout")
    }

    /// Returns the part of `shutdown_timeout` in which children that were dropped are waited for.
    pub(super) fn drop_share(&self) -> Duration {
        (self.shutdown_timeout / 10).min(DROP_GRACE)
    }
}

/// Time for a child to be dropped. A child that blocks its thread is not dropped, and is named.
pub(super) const DROP_GRACE: Duration = Duration::from_secs(1);
