//! Events of a processor.
use std::time::Duration;

use crate::{
    observe::Traced,
    port::{FencingToken, PortErrorKind},
    stream::Position,
};

/// An event of a [`StreamProcessor`](super::StreamProcessor), for observers. Those of the elections
/// of its partitions are [`LeaderElectionEvent`](crate::leader_election::LeaderElectionEvent)s.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamProcessorEvent {
    /// The number of live members of the group changed, as this member sees it.
    MembersChanged {
        /// Number of members, this one included.
        members: usize,
    },
    /// This member owns a partition, and goes on behind its checkpoint.
    Claimed {
        /// The partition.
        partition: u16,
        /// Fencing token of the term.
        token: FencingToken,
        /// Position up to which all events are finished.
        watermark: u64,
    },
    /// Owners of a partition died twice in a row without finishing an event: the events that they
    /// may have run are run one at a time, and each is recorded before.
    Careful {
        /// The partition.
        partition: u16,
        /// Last position of these events.
        until: u64,
    },
    /// This member has given a partition up.
    Released {
        /// The partition.
        partition: u16,
        /// Fencing token of the term.
        token: FencingToken,
        /// `true` if no handler was dropped, and the last checkpoint was written.
        is_clean: bool,
    },
    /// An attempt of an event failed.
    AttemptFailed {
        /// The event.
        position: Position,
        /// Number of the attempt, from 1.
        attempt: u32,
        /// The error.
        error: String,
        /// Delay before the next attempt; `None` if there is none.
        retry_in: Option<Duration>,
    },
    /// An event became a dead letter.
    DeadLettered {
        /// The event.
        position: Position,
        /// The reason.
        reason: String,
    },
    /// A partition needs an operator. Its owner keeps it, and starts no further event.
    Halted {
        /// The partition.
        partition: u16,
        /// The reason.
        reason: String,
    },
    /// A partition went on at another position, because the topic does not have the next one.
    Skipped {
        /// The partition.
        partition: u16,
        /// The position that was to be next.
        from: u64,
        /// The position that is next.
        to: u64,
        /// Number of events that were lost.
        lost: u64,
    },
    /// A request failed. It is repeated.
    CallFailed {
        /// The request.
        call: StreamCall,
        /// The partition, if the request is for one.
        partition: Option<u16>,
        /// Kind of the failure; `None` for a time-out.
        kind: Option<PortErrorKind>,
    },
}

/// A request of a [`StreamProcessor`](super::StreamProcessor).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StreamCall {
    /// Reading the topic.
    Read,
    /// Reading or writing a checkpoint.
    Checkpoint,
    /// Announcing this member, or looking at the others.
    Members,
    /// Asking another member to resign.
    Resign,
    /// Sending a dead letter.
    DeadLetter,
    /// Subscribing to the notices of new events.
    Notices,
}

impl StreamCall {
    /// Returns the request as a word, for logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Checkpoint => "checkpoint",
            Self::Members => "members",
            Self::Resign => "resign",
            Self::DeadLetter => "dead_letter",
            Self::Notices => "notices",
        }
    }
}

impl Traced for StreamProcessorEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::stream", tracing::Level::INFO)
    }

    fn trace(&self, group: &str) {
        const TARGET: &str = "steadfast::stream";
        match self {
            Self::MembersChanged { members } => tracing::info!(target: TARGET, group, members, "members changed"),
            Self::Claimed { partition, token, watermark } => {
                tracing::info!(target: TARGET, group, partition, %token, watermark, "claimed");
            }
            Self::Careful { partition, until } => {
                tracing::warn!(target: TARGET, group, partition, until, "owners died: one event at a time");
            }
            Self::Released { partition, token, is_clean } => {
                tracing::info!(target: TARGET, group, partition, %token, is_clean, "released");
            }
            Self::AttemptFailed { position, attempt, error, retry_in } => {
                tracing::info!(target: TARGET, group, %position, attempt, error, ?retry_in, "attempt failed");
            }
            Self::DeadLettered { position, reason } => {
                tracing::warn!(target: TARGET, group, %position, reason, "dead-lettered");
            }
            Self::Halted { partition, reason } => {
                tracing::error!(target: TARGET, group, partition, reason, "halted: needs an operator");
            }
            Self::Skipped { partition, from, to, lost } => {
                tracing::error!(target: TARGET, group, partition, from, to, lost, "events lost");
            }
            Self::CallFailed { call, partition, kind } => {
                tracing::warn!(target: TARGET, group, call = call.as_str(), ?partition, ?kind, "a request failed");
            }
        }
    }
}
