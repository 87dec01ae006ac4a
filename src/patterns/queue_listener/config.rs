//! Settings of a queue listener.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::IdleConfig;
use crate::{
    backoff::{Backoff, BackoffConfig, Jitter},
    config::{ConfigError, Effect, human, require, require_some_time, setters},
    entropy::Entropy,
};

/// Settings of a [`QueueListener`](super::QueueListener).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct QueueListenerConfig {
    /// Maximum number of messages of one poll. 32 by default; a backend may return fewer. A poll
    /// asks only for messages that can begin soon.
    pub batch: usize,
    /// Number of tasks that continue polling while there is no work. 1 by default; 0 requires a
    /// [`notifier`](super::QueueListener::builder).
    pub min_tasks: u32,
    /// Maximum number of tasks, and so of messages that are handled at once. 16 by default.
    pub max_tasks: u32,
    /// Time for which one lease hides a message from other listeners. 30 s by default.
    #[serde(with = "human")]
    pub visibility: Duration,
    /// Time before the end of a message's lease at which its handler is asked to stop. No handler
    /// begins with less time left. A fifteenth of `visibility` by default.
    #[serde(with = "human::option")]
    pub margin: Option<Duration>,
    /// Time limit of one request to the queue. A sixth of `visibility` by default.
    #[serde(with = "human::option")]
    pub call_timeout: Option<Duration>,
    /// Delays between polls that find nothing. A queue that wakes its receivers
    /// ([`Push`](crate::port::Capability::Push)) is waited in for these times instead.
    pub idle: IdleConfig,
    /// Delays after requests that failed, or that the queue rejected because it was busy.
    pub busy: BackoffConfig,
    /// Time after which a handler is asked to stop; it then has the [margin](Self::lease_margin) to
    /// do so. No limit by default.
    #[serde(with = "human::option")]
    pub handler_timeout: Option<Duration>,
    /// Number of attempts after which a message that failed becomes a dead letter. 128 by default,
    /// which with the default delays takes more than an hour. A released delivery is not an
    /// attempt, nor is one that ended without a settlement and of which nothing tells that its
    /// handler began.
    pub max_attempts: u32,
    /// Number of consecutive deaths of its process after which a message becomes a dead letter:
    /// deliveries that ended without a settlement after their handler had begun. From the second
    /// one on, the beginning is recorded. 5 by default.
    pub max_expiries: u32,
    /// Delays before a failed message is delivered again, by its attempts. 1 s to 60 s with equal
    /// jitter by default.
    pub retry: BackoffConfig,
    /// Interval between two requests for the queue's depth while every poll is full. 5 s by
    /// default.
    #[serde(with = "human")]
    pub rescale: Duration,
    /// Time from the shutdown until running handlers are asked to stop. 25 s by default.
    #[serde(with = "human")]
    pub drain_timeout: Duration,
    /// Time from the shutdown until running handlers are dropped. 30 s by default.
    #[serde(with = "human")]
    pub kill_timeout: Duration,
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
            idle: IdleConfig::default(),
            busy: BackoffConfig::default(),
            handler_timeout: None,
            max_attempts: 128,
            max_expiries: 5,
            retry: BackoffConfig::default()
                .between(Duration::from_secs(1), Duration::from_secs(60))
                .jitter(Jitter::Equal),
            rescale: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(25),
            kill_timeout: Duration::from_secs(30),
        }
    }
}

/// Upper bound of the default margin, however long the visibility time-out is.
const LONGEST_MARGIN: Duration = Duration::from_secs(3600);

setters! {
    impl QueueListenerConfig {
        batch: usize,
        min_tasks: u32,
        max_tasks: u32,
        visibility: Duration,
        margin: Option<Duration>,
        call_timeout: Option<Duration>,
        idle: IdleConfig,
        busy: BackoffConfig,
        handler_timeout: Option<Duration>,
        max_attempts: u32,
        max_expiries: u32,
        retry: BackoffConfig,
        rescale: Duration,
        drain_timeout: Duration,
        kill_timeout: Duration,
    }
}

impl QueueListenerConfig {
    /// Sets the number of tasks when idle, and the maximum.
    #[must_use]
    pub const fn tasks(mut self, min: u32, max: u32) -> Self {
        (self.min_tasks, self.max_tasks) = (min, max);
        self
    }

    /// Returns the margin: the configured one, or a fifteenth of `visibility`, at most an hour.
    pub fn lease_margin(&self) -> Duration {
        self.margin.unwrap_or((self.visibility / 15).min(LONGEST_MARGIN))
    }

    /// Returns the time limit of one request: the configured one, or a sixth of `visibility`.
    pub fn call_limit(&self) -> Duration {
        self.call_timeout.unwrap_or(self.visibility / 6)
    }

    /// Sets the times from the shutdown until handlers are asked to stop, and until they are
    /// dropped.
    #[must_use]
    pub const fn stop_within(mut self, drain: Duration, kill: Duration) -> Self {
        (self.drain_timeout, self.kill_timeout) = (drain, kill);
        self
    }

    /// Returns the longest time from the end of a message's first handler to that of its last one,
    /// whichever attempts fail or end with their process, while a listener runs. `None` without a
    /// [`handler_timeout`](Self::handler_timeout).
    ///
    /// It does not include waits that have no bound: refusals and snoozes, delays that a handler
    /// chooses, and other messages that are handled before. In a queue that does not wake its
    /// receivers ([`Push`](crate::port::Capability::Push)), each redelivery may begin later by one
    /// delay between polls ([`idle`](field@Self::idle)).
    ///
    /// ```
    /// use std::time::Duration;
    /// use steadfast::{backoff::BackoffConfig, queue_listener::QueueListenerConfig};
    ///
    /// let seconds = Duration::from_secs;
    /// let retry = BackoffConfig::default().between(seconds(1), seconds(4));
    /// let config = QueueListenerConfig::default().visibility(seconds(3)).margin(seconds(1));
    /// let config = config.max_attempts(4).retry(retry).handler_timeout(seconds(10));
    /// // Three redeliveries: each after its delay or the visibility time-out, with 11 s for the
    /// // handler.
    /// assert_eq!(config.longest_redelivery(), Some(seconds(3 + 3 + 4 + 3 * 11)));
    /// ```
    pub fn longest_redelivery(&self) -> Option<Duration> {
        let handler = self.handler_timeout?.saturating_add(self.lease_margin());
        let longest = match self.retry.jitter {
            Jitter::Decorrelated => BackoffConfig { base: self.retry.cap, ..self.retry },
            _ => self.retry,
        };
        let again = self.max_attempts.saturating_sub(1);
        // Beyond this number the maximum is assumed, which any curve but the slowest has reached.
        let several = again.min(256);
        let longest = BackoffConfig { jitter: Jitter::None, ..longest };
        let delays = Backoff::checked(longest, &Entropy::from_seed(0)).take(several as usize);
        let sum = |sum: Duration, wait: Duration| sum.saturating_add(wait);
        let first = delays.map(|delay| delay.max(self.visibility)).fold(Duration::ZERO, sum);
        let rest = self.retry.cap.max(self.visibility).saturating_mul(again - several);
        Some(handler.saturating_mul(again).saturating_add(first).saturating_add(rest))
    }

    /// Checks that something wakes a listener without tasks.
    pub(super) fn check_wakes(&self, has_notifier: bool) -> Result<(), ConfigError> {
        let rule = "must be at least 1 unless a `notifier` wakes the listener";
        require(self.min_tasks > 0 || has_notifier, "min_tasks", rule)
    }

    /// Returns the effect of a change to this configuration while the listener is in use. Leases
    /// are divided by their visibility time-out and margin, so these two stay.
    pub(super) fn change_to(&self, next: &Self) -> Effect {
        let stays = |same, field| require(same, field, "must stay as it is while the listener is in use");
        let visibility = stays(self.visibility == next.visibility, "visibility");
        match visibility.and_then(|()| stays(self.lease_margin() == next.lease_margin(), "margin")) {
            Ok(()) => Effect::of_change(self, next),
            Err(error) => Effect::Restart(error),
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require((1..=100_000).contains(&self.batch), "batch", "must lie between 1 and 100000")?;
        // The first `min_tasks` of them start at once.
        require((1..=100_000).contains(&self.max_tasks), "max_tasks", "must lie between 1 and 100000")?;
        require(self.min_tasks <= self.max_tasks, "min_tasks", "must be at most `max_tasks`")?;
        // Leases are renewed after a third of it, which must be longer than zero.
        require(self.visibility >= Duration::from_millis(1), "visibility", "must be at least 1ms")?;
        require_some_time(self.call_limit(), "call_timeout")?;
        // A renewal starts after a third. If it fails, it can be repeated before the handler is
        // asked to stop.
        require(
            self.lease_margin() <= self.visibility / 3,
            "margin",
            "must be at most a third of `visibility`, so that a failed renewal can be repeated",
        )?;
        require(self.max_attempts >= 1, "max_attempts", "must be at least 1")?;
        require(self.max_expiries >= 1, "max_expiries", "must be at least 1")?;
        require(self.drain_timeout <= self.kill_timeout, "drain_timeout", "must be at most `kill_timeout`")?;
        require(self.handler_timeout.is_none_or(|t| !t.is_zero()), "handler_timeout", "must be longer than zero")?;
        self.idle.check().map_err(|e| e.within("idle"))?;
        self.busy.check().map_err(|e| e.within("busy"))?;
        self.retry.check().map_err(|e| e.within("retry"))
    }
}
