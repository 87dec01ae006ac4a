//! Settings of a view.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    config::{ConfigError, human, require, setters},
    work::IdleConfig,
};

/// The way in which a projector treats an event that does not decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Undecodable {
    /// It stops before the event.
    #[default]
    Stop,
    /// It leaves out this event and the later ones of its stream, which the view names as parked.
    /// At an event without a stream or key it stops.
    Park,
}

/// Settings of a [`View`](super::View).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ViewConfig {
    /// Number of the projection's version, from 1. A new one is built beside the old one. 1 by
    /// default.
    pub version: u32,
    /// Maximum number of events of a page. 500 by default.
    pub page: u32,
    /// Delays between polls that find nothing. 50 ms to 5 s by default.
    pub idle: IdleConfig,
    /// Time for which a projector stands by after another one has moved the checkpoint. 5 s by
    /// default.
    #[serde(with = "human")]
    pub standby: Duration,
    /// Treatment of an event that does not decode. By default the projector stops.
    pub undecodable: Undecodable,
}

impl Default for ViewConfig {
    fn default() -> Self {
        let idle = IdleConfig::between(Duration::from_millis(50), Duration::from_secs(5));
        Self { version: 1, page: 500, idle, standby: Duration::from_secs(5), undecodable: Undecodable::Stop }
    }
}

setters! {
    impl ViewConfig {
        version: u32,
        page: u32,
        idle: IdleConfig,
        standby: Duration,
        undecodable: Undecodable,
    }
}

impl ViewConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(self.version >= 1, "version", "must be at least 1")?;
        require((1..=10_000).contains(&self.page), "page", "must lie between 1 and 10000")?;
        self.idle.check().map_err(|e| e.within("idle"))?;
        require(self.standby >= self.idle.min.saturating_mul(2), "standby", "must be at least twice `idle.min`")
    }
}
