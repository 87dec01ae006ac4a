//! What sharding tells.
use super::{map::ShardId, step::Step};
use crate::{observe::Traced, port::PortErrorKind};

/// Something a [`ShardDirectory`](super::ShardDirectory) did or saw.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShardingEvent {
    /// This process has another map than before.
    MapChanged {
        /// The version before.
        from: u64,
        /// The version now.
        to: u64,
    },
    /// The map could not be read: the copy from before goes on.
    RefreshFailed {
        /// How; `None` where the map is gone or cannot be read.
        kind: Option<PortErrorKind>,
    },
    /// A step of a move was recorded, by this process.
    StepRecorded {
        /// The move.
        id: u64,
        /// From where.
        from: ShardId,
        /// To where.
        to: ShardId,
        /// How far it is now; `None` where it has ended.
        step: Option<Step>,
    },
    /// A mover failed: the next run goes on from the step that is recorded.
    MoverFailed {
        /// The move.
        id: u64,
        /// At which step.
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
