//! Settings of an election by messages.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require, require_some_time, setters};

/// Settings of a [`MessageElection`](super::MessageElection).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct MessageElectionConfig {
    /// Time between two heartbeats of the leader. 1 s by default.
    #[serde(with = "human")]
    pub heartbeat_interval: Duration,
    /// Time without a message of the leader after which a node starts an election. 4 s by default.
    #[serde(with = "human")]
    pub election_timeout: Duration,
    /// Time for which a node of a bully election waits for answers of higher nodes. 500 ms by
    /// default.
    #[serde(with = "human")]
    pub reply: Duration,
}

impl Default for MessageElectionConfig {
    fn default() -> Self {
        Self {
            heartbeat_interval: Duration::from_secs(1),
            election_timeout: Duration::from_secs(4),
            reply: Duration::from_millis(500),
        }
    }
}

setters! {
    impl MessageElectionConfig {
        heartbeat_interval: Duration,
        election_timeout: Duration,
        reply: Duration,
    }
}

impl MessageElectionConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require_some_time(self.heartbeat_interval, "heartbeat_interval")?;
        require_some_time(self.reply, "reply")?;
        require(
            self.election_timeout >= self.heartbeat_interval.saturating_mul(2),
            "election_timeout",
            "must be at least twice `heartbeat_interval`",
        )?;
        require(self.election_timeout > self.reply, "election_timeout", "must be longer than `reply`")
    }
}
