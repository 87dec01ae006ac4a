//! Settings of a SQLite file.
use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require, require_some_time, setters};

/// The failures that an acknowledged write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Durability {
    /// A killed process and a power cut.
    #[default]
    Full,
    /// A killed process. A power cut may lose the last writes.
    Relaxed,
}

/// Settings of a [`Sqlite`](super::Sqlite).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SqliteConfig {
    /// Path of the file. The file is created if it does not exist; its folder must exist. A
    /// relative path is resolved against the working directory when the file is opened.
    pub path: PathBuf,
    /// The failures that an acknowledged write survives. By default also a power cut.
    #[serde(default)]
    pub durability: Durability,
    /// Maximum time in all that a write waits for writers that do not take the lock beside the
    /// file. 5 s by default.
    #[serde(default = "SqliteConfig::lock_wait_default", with = "human")]
    pub lock_wait: Duration,
    /// Interval at which a waiting receiver or subscriber polls for changes by other processes. 50
    /// ms by default.
    #[serde(default = "SqliteConfig::poll_default", with = "human")]
    pub poll: Duration,
    /// Time for which a queue remembers a de-duplication id. Five minutes by default. With zero, a
    /// queue recognizes duplicates within one request.
    #[serde(default = "SqliteConfig::window_default", with = "human")]
    pub deduplication_window: Duration,
}

setters! {
    impl SqliteConfig {
        path: impl Into<PathBuf>,
        durability: Durability,
        lock_wait: Duration,
        poll: Duration,
        deduplication_window: Duration,
    }
}

impl SqliteConfig {
    /// Creates the default settings for this file.
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

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(self.path.file_name().is_some(), "path", "must name a file")?;
        // SQLite takes the wait as an `int` of milliseconds.
        require(self.lock_wait <= Duration::from_secs(24 * 3600), "lock_wait", "must be at most 1day")?;
        require_some_time(self.poll, "poll")
    }
}
