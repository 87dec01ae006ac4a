//! Events of aggregates and outboxes.
use crate::{observe::Traced, port::PortErrorKind};

/// An event of an [`AggregateStore`](super::AggregateStore).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AggregateEvent {
    /// Another writer appended to a stream while a command was decided: another process, or a
    /// commit that this process made by itself.
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
    /// A load read more than 1,000 events: there is no snapshot, or an old one.
    LongStream {
        /// The stream.
        stream: String,
        /// Number of events.
        events: u64,
    },
    /// The reply to a command of a queue was dropped: its queue refuses it for good, or has a name
    /// that is not known. The command was handled.
    ReplyNotSent {
        /// The stream of the command's aggregate.
        stream: String,
        /// The id of the command.
        command: String,
        /// The reason.
        reason: String,
    },
}

const TARGET: &str = "steadfast::event_sourcing";

fn is_wanted() -> bool {
    tracing::enabled!(target: "steadfast::event_sourcing", tracing::Level::INFO)
}

impl Traced for AggregateEvent {
    fn wanted() -> bool {
        is_wanted()
    }

    fn trace(&self, log: &str) {
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
            Self::ReplyNotSent { stream, command, reason } => {
                tracing::warn!(target: TARGET, log, stream, command, reason, "reply dropped");
            }
        }
    }
}

/// An event of an [`Outbox`](super::Outbox).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutboxEvent {
    /// A request to the queue failed. It is repeated.
    SendFailed {
        /// Kind of the failure; `None` for a time-out.
        kind: Option<PortErrorKind>,
    },
    /// A request to the store failed. It is repeated.
    StoreFailed {
        /// Kind of the failure; `None` for a time-out.
        kind: Option<PortErrorKind>,
    },
    /// Another outbox has moved the checkpoint: this one stands by for a while.
    StandsBy,
}

impl Traced for OutboxEvent {
    fn wanted() -> bool {
        is_wanted()
    }

    fn trace(&self, log: &str) {
        match self {
            Self::SendFailed { kind } => tracing::warn!(target: TARGET, log, ?kind, "a queue refused messages for now"),
            Self::StoreFailed { kind } => tracing::warn!(target: TARGET, log, ?kind, "the store failed"),
            Self::StandsBy => tracing::debug!(target: TARGET, log, "another outbox sends"),
        }
    }
}
