//! What an election tells.
use std::time::Duration;

use crate::{
    observe::Traced,
    port::{FencingToken, PortErrorKind},
};

/// Why a term ended, or is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TermEnd {
    /// It could not be renewed in time: the store was away, or this process was paused.
    NotRenewed,
    /// Another leads, or the lease was taken away.
    Superseded,
    /// Somebody asked it to resign.
    ResignRequested,
    /// Its health check said so.
    Unhealthy,
    /// The work ended by itself.
    Finished,
    /// The election was told to stop.
    Shutdown,
    /// Nobody renewed it any more: its [`Leadership`](super::Leadership) was dropped.
    Dropped,
}

impl TermEnd {
    #[cfg(feature = "metrics")]
    pub(crate) const ALL: [Self; 7] = [
        Self::NotRenewed,
        Self::Superseded,
        Self::ResignRequested,
        Self::Unhealthy,
        Self::Finished,
        Self::Shutdown,
        Self::Dropped,
    ];

    /// Returns the reason as a word, the same as in the metrics: `not_renewed`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotRenewed => "not_renewed",
            Self::Superseded => "superseded",
            Self::ResignRequested => "resign_requested",
            Self::Unhealthy => "unhealthy",
            Self::Finished => "finished",
            Self::Shutdown => "shutdown",
            Self::Dropped => "dropped",
        }
    }
}

/// Something a [`LeaderElection`](super::LeaderElection) did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaderElectionEvent {
    /// This node leads.
    Elected {
        /// The token of its term.
        token: FencingToken,
        /// The holder before, as far as this node saw one.
        after: Option<String>,
    },
    /// A grant came too late to lead with: it counts from the call.
    GrantedTooLate {
        /// The token of the grant.
        token: FencingToken,
        /// How long the call took.
        took: Duration,
    },
    /// A call of the lease failed, or took too long. Without the lease's store nobody leads.
    CallFailed {
        /// Which.
        call: Call,
        /// How; `None` where it took too long.
        kind: Option<PortErrorKind>,
        /// How much is left of the term, where this node leads.
        left: Option<Duration>,
    },
    /// The work was told to end.
    Ending {
        /// The token of the term.
        token: FencingToken,
        /// Why.
        why: TermEnd,
    },
    /// The work goes on though it was told to end so long ago. The lease is kept while it can be.
    TaskStalled {
        /// The token of the term.
        token: FencingToken,
        /// How long ago.
        since: Duration,
    },
    /// The work did not end before its term did, and was dropped.
    TaskDropped {
        /// The token of the term.
        token: FencingToken,
    },
    /// This node leads no longer.
    Ended {
        /// The token of the term.
        token: FencingToken,
        /// Why.
        why: TermEnd,
        /// Whether the lease was given up, so that a successor need not wait for the term to pass.
        released: bool,
    },
    /// Another node leads.
    Following {
        /// The holder's id.
        holder: String,
        /// The token of its term.
        token: FencingToken,
    },
}

/// A call of the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Call {
    /// Asking for it.
    Acquire,
    /// Renewing it.
    Renew,
    /// Giving it up.
    Release,
    /// Telling others, or hearing from them.
    Notify,
}

impl Traced for LeaderElectionEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::leader_election", tracing::Level::INFO)
    }

    fn trace(&self, name: &str) {
        const TARGET: &str = "steadfast::leader_election";
        match self {
            Self::Elected { token, after } => {
                tracing::info!(target: TARGET, name, %token, after = after.as_deref(), "elected");
            }
            Self::GrantedTooLate { token, took } => {
                tracing::warn!(target: TARGET, name, %token, ?took, "granted too late");
            }
            Self::CallFailed { call, kind, left } => {
                tracing::warn!(target: TARGET, name, ?call, ?kind, ?left, "call failed");
            }
            Self::Ending { token, why } => {
                tracing::info!(target: TARGET, name, %token, why = why.as_str(), "ending");
            }
            Self::TaskStalled { token, since } => {
                tracing::warn!(target: TARGET, name, %token, ?since, "the task stalls");
            }
            Self::TaskDropped { token } => tracing::warn!(target: TARGET, name, %token, "the task was dropped"),
            Self::Ended { token, why, released } => {
                tracing::info!(target: TARGET, name, %token, why = why.as_str(), released, "ended");
            }
            Self::Following { holder, token } => tracing::info!(target: TARGET, name, holder, %token, "following"),
        }
    }
}
