//! Settings of a SQLite file.
use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require, require_some_time};

/// What a write that was answered survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Durability {
    /// A killed process and a power cut.
    #[default]
    Full,
    /// A killed process. A power cut may take the last writes.
    Relaxed,
}

/// Settings of a [`Sqlite`](super::Sqlite).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SqliteConfig {
    /// The file. It is made if it is not there; its folder must be. A relative path is that of the
    /// working directory when it is opened.
    pub path: PathBuf,
    /// What a write that was answered survives. A power cut, too, by default.
    #[serde(default)]
    pub durability: Durability,
    /// How long a write waits, in all, for writers that do not take the lock beside the file. 5 s
    /// by default.
    #[serde(default = "SqliteConfig::lock_wait_default", with = "human")]
    pub lock_wait: Duration,
    /// How often a waiting receiver or subscriber looks for what other processes did. 50 ms by default.
    #[serde(default = "SqliteConfig::poll_default", with = "human")]
    pub poll: Duration,
    /// For how long a queue remembers a de-duplication id. Five minutes by default.
    #[serde(default = "SqliteConfig::window_default", with = "human")]
    pub deduplication_window: Duration,
}

impl SqliteConfig {
    /// The default settings for this file.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            durability: Durability::Full,
            lock_wait: Self::lock_wait_default(),
            poll: Self::poll_default(),
            deduplication_window: Self::window_default(),
        }
    }

    const fn lock_wait_default() -> Duration {
        Duration::from_secs(5)
    }

    const fn poll_default() -> Duration {
        Duration::from_millis(50)
    }

    const fn window_default() -> Duration {
        Duration::from_secs(300)
    }

    /// Sets what a write that was answered survives.
    #[must_use]
    pub const fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets how long a write waits for writers that do not take the lock beside the file.
    #[must_use]
    pub const fn lock_wait(mut self, wait: Duration) -> Self {
        self.lock_wait = wait;
        self
    }

    /// Sets how often to look for what other processes did.
    #[must_use]
    pub const fn poll(mut self, every: Duration) -> Self {
        self.poll = every;
        self
    }

    /// Sets for how long a queue remembers a de-duplication id.
    #[must_use]
    pub const fn deduplication_window(mut self, window: Duration) -> Self {
        self.deduplication_window = window;
        self
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(self.path.file_name().is_some(), "path", "must name a file")?;
        // SQLite counts it in milliseconds, as an `int`.
        require(self.lock_wait <= Duration::from_secs(24 * 3600), "lock_wait", "must be at most 1day")?;
        require_some_time(self.poll, "poll")
    }
}
