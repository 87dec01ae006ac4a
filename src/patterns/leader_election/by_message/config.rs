//! Settings of an election by messages.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require, require_some_time};

/// Settings of a [`MessageElection`](super::MessageElection).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct MessageElectionConfig {
    /// How often the leader tells that it lives. 1 s by default.
    #[serde(with = "human")]
    pub beat: Duration,
    /// After how long without a word of the leader an election begins. 4 s by default.
    #[serde(with = "human")]
    pub silence: Duration,
    /// How long a bully waits for answers of those above it. 500 ms by default.
    #[serde(with = "human")]
    pub reply: Duration,
}

impl Default for MessageElectionConfig {
    fn default() -> Self {
        Self { beat: Duration::from_secs(1), silence: Duration::from_secs(4), reply: Duration::from_millis(500) }
    }
}

impl MessageElectionConfig {
    /// Sets how often the leader tells that it lives.
    #[must_use]
    pub const fn beat(mut self, beat: Duration) -> Self {
        self.beat = beat;
        self
    }

    /// Sets after how long without a word an election begins.
    #[must_use]
    pub const fn silence(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// Sets how long a bully waits for answers.
    #[must_use]
    pub const fn reply(mut self, reply: Duration) -> Self {
        self.reply = reply;
        self
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require_some_time(self.beat, "beat")?;
        require_some_time(self.reply, "reply")?;
        require(self.silence >= self.beat.saturating_mul(2), "silence", "must be at least twice `beat`")?;
        require(self.silence > self.reply, "silence", "must be longer than `reply`")
    }
}
