//! Events of an election.
use std::time::Duration;

use crate::{
    observe::Traced,
    port::{FencingToken, PortErrorKind},
};

/// Reason for which a term ended or is about to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TermEnd {
    /// The term could not be renewed in time: the store was unreachable, or this process was
    /// paused.
    NotRenewed,
    /// Another node was granted the lease, or the lease was taken away.
    Superseded,
    /// A node asked the leader to resign.
    ResignRequested,
    /// The health check returned `false`.
    Unhealthy,
    /// The work ended by itself.
    Finished,
    /// The `shutdown` future of `run` was ready.
    Shutdown,
    /// The term's [`Leadership`](super::Leadership) was dropped, so nothing renewed it.
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

/// An event of a [`LeaderElection`](super::LeaderElection).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaderElectionEvent {
    /// This node was elected.
    Elected {
        /// Fencing token of its term.
        token: FencingToken,
        /// The previous holder, if this node saw one.
        after: Option<String>,
    },
    /// A grant arrived too late to lead with: the term counts from the start of the call.
    GrantedTooLate {
        /// Fencing token of the grant.
        token: FencingToken,
        /// Duration of the call.
        took: Duration,
    },
    /// A call of the lease or the notifier failed or timed out. Without the lease's store no node
    /// leads.
    CallFailed {
        /// The call that failed.
        call: Call,
        /// Kind of failure; `None` for a time-out.
        kind: Option<PortErrorKind>,
        /// Time left of the term, if this node leads.
        left: Option<Duration>,
    },
    /// The work was told to end.
    Ending {
        /// Fencing token of the term.
        token: FencingToken,
        /// Reason for which the term ends.
        why: TermEnd,
    },
    /// The work still runs although it was told to end. The lease is renewed as long as possible.
    TaskStalled {
        /// Fencing token of the term.
        token: FencingToken,
        /// Time since the work was told to end.
        since: Duration,
    },
    /// The work had not ended by the deadline of its term, and was dropped.
    TaskDropped {
        /// Fencing token of the term.
        token: FencingToken,
    },
    /// This node no longer leads.
    Ended {
        /// Fencing token of the term.
        token: FencingToken,
        /// Reason for which the term ended.
        why: TermEnd,
        /// `true` if the lease was released, so that a successor need not wait for the term to
        /// pass.
        released: bool,
    },
    /// Another node leads.
    Following {
        /// Id of the holder.
        holder: String,
        /// Fencing token of its term.
        token: FencingToken,
    },
    /// A campaign began over leases that are not
    /// [`Linearizable`](crate::port::Capability::Linearizable), or that are shared but not
    /// [`Durable`](crate::port::Capability::Durable): a fail-over or a crash of their server may
    /// forget a grant. Two nodes then lead until the earlier one renews, or its term is over.
    GrantsMayBeForgotten {
        /// The backend of the leases.
        backend: &'static str,
    },
}

/// A kind of call that an election makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Call {
    /// Acquiring the lease.
    Acquire,
    /// Renewing the lease.
    Renew,
    /// Releasing the lease.
    Release,
    /// Publishing a notice, or subscribing to notices.
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
                tracing::warn!(target: TARGET, name, %token, ?took, "granted too late to lead");
            }
            Self::CallFailed { call, kind, left } => {
                tracing::warn!(target: TARGET, name, ?call, ?kind, ?left, "call failed");
            }
            Self::Ending { token, why } => {
                tracing::info!(target: TARGET, name, %token, why = why.as_str(), "ending");
            }
            Self::TaskStalled { token, since } => {
                tracing::warn!(target: TARGET, name, %token, ?since, "the task has not ended in time");
            }
            Self::TaskDropped { token } => tracing::warn!(target: TARGET, name, %token, "the task was dropped"),
            Self::Ended { token, why, released } => {
                tracing::info!(target: TARGET, name, %token, why = why.as_str(), released, "ended");
            }
            Self::Following { holder, token } => tracing::info!(target: TARGET, name, holder, %token, "following"),
            Self::GrantsMayBeForgotten { backend } => {
                tracing::warn!(target: TARGET, name, backend, "a fail-over or a crash of the server may forget grants of the lease");
            }
        }
    }
}
