//! Settings of reconfigurations and of roll-outs.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require_some_time, setters};

/// Settings of a [`Reconfigurer`](super::Reconfigurer).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ReconfigurerConfig {
    /// Time for which the process must stay healthy after a change, or the change is undone. None
    /// by default: a change is final when it is applied.
    #[serde(with = "human::option")]
    pub bake: Option<Duration>,
}

setters! {
    impl ReconfigurerConfig {
        bake: Option<Duration>,
    }
}

impl ReconfigurerConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        self.bake.map_or(Ok(()), |bake| require_some_time(bake, "bake"))
    }
}

/// Settings of a [`Rollout`](super::Rollout).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RolloutConfig {
    /// Time for which all members of a stage must run the change and be healthy. 60 s by default:
    /// longer than the 30 s after which a process that has died is seen as gone.
    #[serde(with = "human")]
    pub bake: Duration,
    /// Interval between two looks at the members. 5 s by default.
    #[serde(with = "human")]
    pub look_interval: Duration,
}

impl Default for RolloutConfig {
    fn default() -> Self {
        Self { bake: Duration::from_secs(60), look_interval: Duration::from_secs(5) }
    }
}

setters! {
    impl RolloutConfig {
        bake: Duration,
        look_interval: Duration,
    }
}

impl RolloutConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require_some_time(self.bake, "bake")?;
        require_some_time(self.look_interval, "look_interval")
    }
}
