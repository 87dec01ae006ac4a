//! Settings of a queue listener.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::IdleConfig;
use crate::{
    backoff::{BackoffConfig, Jitter},
    config::{ConfigError, human, require, require_some_time},
};

/// Settings of a [`QueueListener`](super::QueueListener).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct QueueListenerConfig {
    /// Most messages of one poll. 32 by default; a backend may give fewer. A poll asks for no more than can be begun soon.
    pub batch: usize,
    /// How many tasks go on polling when there is nothing to do. 1 by default; 0 needs wake-ups.
    pub min_tasks: u32,
    /// How many tasks there are at most: so many messages are handled at once. 16 by default.
    pub max_tasks: u32,
    /// For how long a message is hidden from other listeners at a time. 30 s by default.
    #[serde(with = "human")]
    pub visibility: Duration,
    /// How long before its message becomes visible again a handler is told to end; and no handler begins with less. A fifteenth of
    /// `visibility` by default.
    #[serde(with = "human::option")]
    pub margin: Option<Duration>,
    /// Time limit of one request to the queue. A sixth of `visibility` by default.
    #[serde(with = "human::option")]
    pub call_timeout: Option<Duration>,
    /// For how long a poll waits in the queue for a message. Not at all by default.
    #[serde(with = "human")]
    pub receive_wait: Duration,
    /// The delays between polls that find nothing.
    pub idle: IdleConfig,
    /// The delays after requests that failed, or that the queue was too busy for.
    pub busy: BackoffConfig,
    /// After how long a handler is told to end; it has the [margin](Self::lease_margin) to do so. Never by default.
    #[serde(with = "human::option")]
    pub handler_timeout: Option<Duration>,
    /// Attempts after which a message that failed is a dead letter. 128 by default: with the default delays that is after more
    /// than an hour. A delivery that was released is no attempt.
    pub max_attempts: u32,
    /// Deliveries in a row that ended without being settled, after which a message is a dead letter. 5 by default.
    pub max_expiries: u32,
    /// The delays after which a message that failed comes back, by its attempts. 1 s to 60 s with equal jitter by default.
    pub retry: BackoffConfig,
    /// How often the depth is asked for again while every poll is full. 5 s by default.
    #[serde(with = "human")]
    pub rescale: Duration,
    /// How long after a shutdown handlers are told to end. 25 s by default.
    #[serde(with = "human")]
    pub soft_limit: Duration,
    /// How long after a shutdown handlers are dropped. 30 s by default.
    #[serde(with = "human")]
    pub hard_limit: Duration,
}

impl Default for QueueListenerConfig {
    fn default() -> Self {
        Self {
            batch: 32,
            min_tasks: 1,
            max_tasks: 16,
            visibility: Duration::from_secs(30),
            margin: None,
            call_timeout: None,
            receive_wait: Duration::ZERO,
            idle: IdleConfig::default(),
            busy: BackoffConfig::default(),
            handler_timeout: None,
            max_attempts: 128,
            max_expiries: 5,
            retry: BackoffConfig::default()
                .between(Duration::from_secs(1), Duration::from_secs(60))
                .jitter(Jitter::Equal),
            rescale: Duration::from_secs(5),
            soft_limit: Duration::from_secs(25),
            hard_limit: Duration::from_secs(30),
        }
    }
}

/// A margin that was not set is no longer, however long the messages are hidden.
const LONGEST_MARGIN: Duration = Duration::from_secs(3600);

impl QueueListenerConfig {
    /// Sets how many messages one poll takes at most.
    #[must_use]
    pub const fn batch(mut self, messages: usize) -> Self {
        self.batch = messages;
        self
    }

    /// Sets how many tasks there are, when idle and at most.
    #[must_use]
    pub const fn tasks(mut self, min: u32, max: u32) -> Self {
        (self.min_tasks, self.max_tasks) = (min, max);
        self
    }

    /// Sets for how long a message is hidden at a time.
    #[must_use]
    pub const fn visibility(mut self, visibility: Duration) -> Self {
        self.visibility = visibility;
        self
    }

    /// Sets how long before its message becomes visible again a handler is told to end.
    #[must_use]
    pub const fn margin(mut self, margin: Duration) -> Self {
        self.margin = Some(margin);
        self
    }

    /// Returns the margin: as it was set, or a fifteenth of `visibility`, an hour at most.
    pub fn lease_margin(&self) -> Duration {
        self.margin.unwrap_or((self.visibility / 15).min(LONGEST_MARGIN))
    }

    /// Sets how long one request to the queue may take.
    #[must_use]
    pub const fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = Some(timeout);
        self
    }

    /// Returns the time limit of one request: as it was set, or a sixth of `visibility`.
    pub fn call_limit(&self) -> Duration {
        self.call_timeout.unwrap_or(self.visibility / 6)
    }

    /// Sets for how long a poll waits in the queue for a message.
    #[must_use]
    pub const fn receive_wait(mut self, wait: Duration) -> Self {
        self.receive_wait = wait;
        self
    }

    /// Sets the delays between polls that find nothing.
    #[must_use]
    pub const fn idle(mut self, idle: IdleConfig) -> Self {
        self.idle = idle;
        self
    }

    /// Sets the delays after requests that failed.
    #[must_use]
    pub const fn busy(mut self, busy: BackoffConfig) -> Self {
        self.busy = busy;
        self
    }

    /// Sets after how long a handler is told to end.
    #[must_use]
    pub const fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.handler_timeout = Some(timeout);
        self
    }

    /// Sets the attempts after which a message that failed is a dead letter.
    #[must_use]
    pub const fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Sets the deliveries in a row that ended without being settled, after which a message is a dead letter.
    #[must_use]
    pub const fn max_expiries(mut self, expiries: u32) -> Self {
        self.max_expiries = expiries;
        self
    }

    /// Sets the delays after which a message that failed comes back.
    #[must_use]
    pub const fn retry(mut self, retry: BackoffConfig) -> Self {
        self.retry = retry;
        self
    }

    /// Sets how often the depth is asked for again while every poll is full.
    #[must_use]
    pub const fn rescale(mut self, every: Duration) -> Self {
        self.rescale = every;
        self
    }

    /// Sets how long after a shutdown handlers are told to end, and dropped.
    #[must_use]
    pub const fn stop_within(mut self, soft: Duration, hard: Duration) -> Self {
        (self.soft_limit, self.hard_limit) = (soft, hard);
        self
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require((1..=100_000).contains(&self.batch), "batch", "must lie between 1 and 100000")?;
        // `min_tasks` of them begin at once.
        require((1..=100_000).contains(&self.max_tasks), "max_tasks", "must lie between 1 and 100000")?;
        require(self.min_tasks <= self.max_tasks, "min_tasks", "must be at most `max_tasks`")?;
        // A third of it, when it is renewed, must be some time.
        require(self.visibility >= Duration::from_millis(1), "visibility", "must be at least 1ms")?;
        require_some_time(self.call_limit(), "call_timeout")?;
        // A renewal begins at a third; so that it can be tried again before the handler is told.
        require(
            self.lease_margin() <= self.visibility / 3,
            "margin",
            "must be at most a third of `visibility`, or a renewal that fails could not be repeated",
        )?;
        require(self.max_attempts >= 1, "max_attempts", "must be at least 1")?;
        require(self.max_expiries >= 1, "max_expiries", "must be at least 1")?;
        require(self.soft_limit <= self.hard_limit, "soft_limit", "must be at most `hard_limit`")?;
        require(self.handler_timeout.is_none_or(|t| !t.is_zero()), "handler_timeout", "must be longer than zero")?;
        self.idle.check().map_err(|e| e.within("idle"))?;
        self.busy.check().map_err(|e| e.within("busy"))?;
        self.retry.check().map_err(|e| e.within("retry"))
    }
}
