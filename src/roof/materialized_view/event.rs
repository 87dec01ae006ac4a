//! Events of views.
use crate::{observe::Traced, port::PortErrorKind};

/// An event of a [`View`](super::View).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ViewEvent {
    /// A page of events was folded into rows.
    Projected {
        /// Number of the generation.
        generation: u64,
        /// Number of records.
        records: u64,
        /// Number of rows that changed.
        rows: u64,
    },
    /// A generation is served from now on.
    Switched {
        /// Number of the generation.
        generation: u64,
    },
    /// Another projector has moved the checkpoint: this one stands by for a while.
    StandsBy {
        /// Number of the generation.
        generation: u64,
    },
    /// An event did not decode, and its stream is left out from it on.
    Parked {
        /// The stream.
        stream: String,
        /// The reason.
        reason: String,
    },
    /// A generation beside the served one cannot be built, and the projector leaves it alone. The
    /// served one goes on. The next [`rebuild`](super::View::rebuild) tries again, or gives it up.
    RebuildStopped {
        /// Number of the generation.
        generation: u64,
        /// The reason.
        reason: String,
    },
    /// The projector stopped.
    Stopped {
        /// The reason.
        reason: String,
    },
    /// A request to the store or a source failed. It is repeated.
    Failed {
        /// Kind of the failure; `None` for a time-out.
        kind: Option<PortErrorKind>,
    },
}

const TARGET: &str = "steadfast::materialized_view";

impl Traced for ViewEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::materialized_view", tracing::Level::INFO)
    }

    fn trace(&self, view: &str) {
        match self {
            Self::Projected { generation, records, rows } => {
                tracing::trace!(target: TARGET, view, generation, records, rows, "projected");
            }
            Self::Switched { generation } => tracing::info!(target: TARGET, view, generation, "serves a generation"),
            Self::StandsBy { generation } => {
                tracing::debug!(target: TARGET, view, generation, "another projector is at work");
            }
            Self::Parked { stream, reason } => {
                tracing::error!(target: TARGET, view, stream, reason, "an event does not decode: its stream is left out")
            }
            Self::RebuildStopped { generation, reason } => {
                tracing::error!(target: TARGET, view, generation, reason, "a generation cannot be built")
            }
            Self::Stopped { reason } => tracing::error!(target: TARGET, view, reason, "the projector stopped"),
            Self::Failed { kind } => tracing::warn!(target: TARGET, view, ?kind, "the store or a source failed"),
        }
    }
}
