//! Settings of a console.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require, require_some_time, setters};

/// Settings of a [`Console`](super::Console).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ConsoleConfig {
    /// Time for which a read-out serves all viewers, and the least time between two live updates of
    /// a page. 1 s by default, and at least 1 s.
    #[serde(with = "human")]
    pub refresh: Duration,
    /// The same for components whose read-out asks an engine: queues, sagas, streams. 5 s by
    /// default, and at least `refresh`.
    #[serde(with = "human")]
    pub engine_refresh: Duration,
    /// Time limit of one read-out. After it, the component shows as away. 2 s by default.
    #[serde(with = "human")]
    pub read_timeout: Duration,
    /// Maximum number of pages that are updated live at a time; further ones reload. 64 by default.
    pub max_viewers: usize,
}

impl Default for ConsoleConfig {
    fn default() -> Self {
        Self {
            refresh: Duration::from_secs(1),
            engine_refresh: Duration::from_secs(5),
            read_timeout: Duration::from_secs(2),
            max_viewers: 64,
        }
    }
}

setters! {
    impl ConsoleConfig {
        refresh: Duration,
        engine_refresh: Duration,
        read_timeout: Duration,
        max_viewers: usize,
    }
}

impl ConsoleConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(self.refresh >= Duration::from_secs(1), "refresh", "must be at least 1s")?;
        require(self.engine_refresh >= self.refresh, "engine_refresh", "must be at least `refresh`")?;
        require_some_time(self.read_timeout, "read_timeout")?;
        require(self.max_viewers > 0, "max_viewers", "must be at least 1")
    }
}
