//! Settings of a processor.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    backoff::BackoffConfig,
    config::{ConfigError, Effect, human, require, require_some_time, setters},
    leader_election::LeaderElectionConfig,
    work::IdleConfig,
};

/// Greatest value of `max_ahead`. The checkpoint has a bit for each event.
pub(super) const MAX_AHEAD: u32 = 100_000;

/// Settings of a [`StreamProcessor`](super::StreamProcessor).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct StreamProcessorConfig {
    /// Position at which a new group begins. The earliest event by default.
    pub start: StreamStart,
    /// Reaction to positions that the topic does not have. The partition halts by default.
    pub on_out_of_range: OutOfRange,
    /// Maximum number of events of one partition that run at once. 64 by default.
    pub max_in_flight: u32,
    /// Number of events above the lowest unfinished one at which reading pauses. 1,000 by default.
    pub max_ahead: u32,
    /// Number of finished events after which a checkpoint is written. 1,000 by default.
    pub checkpoint_every: u32,
    /// Maximum time from the end of an event to its checkpoint. 1 s by default.
    #[serde(with = "human")]
    pub checkpoint_interval: Duration,
    /// Number of attempts of an event, after which it becomes a dead letter. 5 by default.
    pub max_deliveries: u32,
    /// Delays between the attempts of an event. 100 ms to 30 s by default, with full jitter.
    pub retry: BackoffConfig,
    /// Number of recorded deaths of a process while it ran an event, after which the event becomes
    /// a dead letter. 3 by default.
    pub max_crashes: u32,
    /// Time within which a change of the members is seen and answered. Each member announces itself
    /// four times as often, and looks at the others twice as often. It must be the same for all
    /// members of a group: one with a longer time would be taken for dead. 10 s by default.
    #[serde(with = "human")]
    pub rebalance_interval: Duration,
    /// Time that running handlers have on a hand-over and a shutdown, before they are asked to
    /// stop. 5 s by default.
    #[serde(with = "human")]
    pub drain_timeout: Duration,
    /// Delays between reads that find nothing. 100 ms to 5 s by default. In a topic that wakes its
    /// readers the maximum is the time of one wait.
    pub idle: IdleConfig,
    /// Settings of the election of each partition's owner: a term of 15 s by default.
    pub election: LeaderElectionConfig,
}

/// Position at which a new group begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StreamStart {
    /// The first event that the topic has.
    #[default]
    Earliest,
    /// The first event that is appended after the partition was claimed for the first time.
    Latest,
}

/// Reaction to positions that the topic does not have: events that were trimmed before they were
/// processed, or a checkpoint beyond the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OutOfRange {
    /// The partition halts, with an event.
    #[default]
    Halt,
    /// The partition goes on at the first event that the topic has. An event has the number of lost
    /// events.
    Earliest,
}

impl Default for StreamProcessorConfig {
    fn default() -> Self {
        Self {
            start: StreamStart::Earliest,
            on_out_of_range: OutOfRange::Halt,
            max_in_flight: 64,
            max_ahead: 1_000,
            checkpoint_every: 1_000,
            checkpoint_interval: Duration::from_secs(1),
            max_deliveries: 5,
            retry: BackoffConfig::default().between(Duration::from_millis(100), Duration::from_secs(30)),
            max_crashes: 3,
            rebalance_interval: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(5),
            idle: IdleConfig::between(Duration::from_millis(100), Duration::from_secs(5)),
            election: LeaderElectionConfig::default(),
        }
    }
}

setters! {
    impl StreamProcessorConfig {
        start: StreamStart,
        on_out_of_range: OutOfRange,
        max_in_flight: u32,
        max_ahead: u32,
        checkpoint_every: u32,
        checkpoint_interval: Duration,
        max_deliveries: u32,
        retry: BackoffConfig,
        max_crashes: u32,
        rebalance_interval: Duration,
        drain_timeout: Duration,
        idle: IdleConfig,
        election: LeaderElectionConfig,
    }
}

impl StreamProcessorConfig {
    /// Returns the effect of a change to these settings while the processor is in use.
    pub(super) fn change_to(&self, next: &Self) -> Effect {
        let stays = |same, field| require(same, field, "must stay as it is while the processor is in use");
        let stay = stays(self.max_ahead == next.max_ahead, "max_ahead")
            .and_then(|()| stays(self.rebalance_interval == next.rebalance_interval, "rebalance_interval"))
            .and_then(|()| stays(self.election == next.election, "election"));
        match stay {
            Ok(()) => Effect::of_change(self, next),
            Err(error) => Effect::Restart(error),
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require((1..=MAX_AHEAD).contains(&self.max_in_flight), "max_in_flight", "must lie between 1 and 100000")?;
        require((1..=MAX_AHEAD).contains(&self.max_ahead), "max_ahead", "must lie between 1 and 100000")?;
        require(self.checkpoint_every >= 1, "checkpoint_every", "must be at least 1")?;
        require_some_time(self.checkpoint_interval, "checkpoint_interval")?;
        require(self.max_deliveries >= 1, "max_deliveries", "must be at least 1")?;
        self.retry.check().map_err(|error| error.within("retry"))?;
        require(self.max_crashes >= 1, "max_crashes", "must be at least 1")?;
        require_some_time(self.rebalance_interval / 4, "rebalance_interval")?;
        self.idle.check().map_err(|error| error.within("idle"))
    }
}
