//! Events of sharding.
use super::{map::ShardId, move_steps::Step};
use crate::{observe::Traced, port::PortErrorKind};

/// An event of a [`ShardDirectory`](super::ShardDirectory).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShardingEvent {
    /// This process has another map.
    MapChanged {
        /// The previous version.
        from: u64,
        /// The current version.
        to: u64,
    },
    /// The map could not be read; the old copy stays in use.
    RefreshFailed {
        /// The kind of the error; `None` if the map is missing or unreadable.
        kind: Option<PortErrorKind>,
    },
    /// This process recorded a step of a move.
    StepRecorded {
        /// The id of the move.
        id: u64,
        /// The source.
        from: ShardId,
        /// The target.
        to: ShardId,
        /// The current step; `None` if the move has ended.
        step: Option<Step>,
    },
    /// A mover failed. The next run continues from the recorded step.
    MoverFailed {
        /// The id of the move.
        id: u64,
        /// The step at which it failed.
        step: Step,
    },
}

impl Traced for ShardingEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::sharding", tracing::Level::INFO)
    }

    fn trace(&self, map: &str) {
        const TARGET: &str = "steadfast::sharding";
        match self {
            Self::MapChanged { from, to } => tracing::info!(target: TARGET, map, from, to, "map changed"),
            Self::RefreshFailed { kind } => tracing::warn!(target: TARGET, map, ?kind, "refresh failed"),
            Self::StepRecorded { id, from, to, step } => {
                tracing::info!(target: TARGET, map, id, %from, %to, ?step, "step recorded");
            }
            Self::MoverFailed { id, step } => tracing::warn!(target: TARGET, map, id, ?step, "the mover failed"),
        }
    }
}
