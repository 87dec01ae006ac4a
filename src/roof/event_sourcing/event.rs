//! Events of aggregates.
use crate::observe::Traced;

/// An event of an [`AggregateStore`](super::AggregateStore).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AggregateEvent {
    /// Another process appended to a stream while a command was decided.
    Conflicted {
        /// The stream.
        stream: String,
        /// Number of attempts so far.
        attempts: u32,
    },
    /// A snapshot was not used, and the stream was read from its beginning.
    SnapshotIgnored {
        /// The stream.
        stream: String,
        /// The reason.
        reason: String,
    },
    /// A load read more than 1,000 events without a snapshot.
    LongStream {
        /// The stream.
        stream: String,
        /// Number of events.
        events: u64,
    },
}

impl Traced for AggregateEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::event_sourcing", tracing::Level::INFO)
    }

    fn trace(&self, log: &str) {
        const TARGET: &str = "steadfast::event_sourcing";
        match self {
            Self::Conflicted { stream, attempts } => {
                tracing::debug!(target: TARGET, log, stream, attempts, "conflict with another process")
            }
            Self::SnapshotIgnored { stream, reason } => {
                tracing::warn!(target: TARGET, log, stream, reason, "snapshot ignored");
            }
            Self::LongStream { stream, events } => {
                tracing::warn!(target: TARGET, log, stream, events, "long stream without a snapshot");
            }
        }
    }
}
