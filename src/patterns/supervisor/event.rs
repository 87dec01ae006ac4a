//! Events of a supervisor.
use std::time::Duration;

use crate::{config::Name, observe::Traced};

/// Kind of a child's failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChildFailure {
    /// The child returned an error.
    Error,
    /// The child panicked: when it was created, polled or dropped.
    Panic,
    /// The child is permanent, and ended.
    Ended,
    /// The child was not ready in time.
    StartTimeout,
    /// The child blocks its thread: it could be neither stopped nor dropped.
    Blocked,
}

impl ChildFailure {
    #[cfg(feature = "metrics")]
    pub(crate) const ALL: [Self; 5] = [Self::Error, Self::Panic, Self::Ended, Self::StartTimeout, Self::Blocked];

    /// Returns the kind as a word, the same as in the metrics: `start_timeout`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Panic => "panic",
            Self::Ended => "ended",
            Self::StartTimeout => "start_timeout",
            Self::Blocked => "blocked",
        }
    }
}

/// An event of a [`Supervisor`](super::Supervisor).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SupervisorEvent {
    /// A child was started.
    Started {
        /// Name of the child.
        child: Name,
        /// Number of its instance, from 1.
        instance: u64,
    },
    /// A child that the next ones wait for is ready.
    Ready {
        /// Name of the child.
        child: Name,
    },
    /// A child ended without a failure, and is not started again.
    Finished {
        /// Name of the child.
        child: Name,
    },
    /// A child failed.
    Failed {
        /// Name of the child.
        child: Name,
        /// Kind of the failure.
        failure: ChildFailure,
        /// Text of the error or of the panic.
        cause: String,
    },
    /// A child is started again after this delay, with the children of its strategy's set.
    Restarting {
        /// Name of the child that failed.
        child: Name,
        /// Delay before the start.
        delay: Duration,
        /// Number of other children that are stopped and started with it.
        others: usize,
    },
    /// A child is stopped and started again, because it was asked for.
    RestartRequested {
        /// Name of the child.
        child: Name,
    },
    /// A child did not end in time after it was asked to stop, and is dropped.
    Dropped {
        /// Name of the child.
        child: Name,
    },
    /// A child could not be dropped, because it blocks its thread.
    Blocked {
        /// Name of the child.
        child: Name,
    },
    /// One poll of a child, or its drop, took longer than `slow_poll`. Other tasks of its thread
    /// waited meanwhile.
    SlowPoll {
        /// Name of the child.
        child: Name,
        /// Duration of the poll or of the drop.
        took: Duration,
    },
    /// A restart would have exceeded the budget: all children are stopped, and `run` returns an
    /// error.
    Escalated {
        /// Name of the child that failed once too often.
        child: Name,
    },
    /// All children are asked to stop, in reverse order.
    Stopping,
}

impl Traced for SupervisorEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::supervisor", tracing::Level::INFO)
    }

    fn trace(&self, name: &str) {
        const TARGET: &str = "steadfast::supervisor";
        match self {
            Self::Started { child, instance } => {
                tracing::info!(target: TARGET, name, %child, instance, "child started")
            }
            Self::Ready { child } => tracing::info!(target: TARGET, name, %child, "child ready"),
            Self::Finished { child } => tracing::info!(target: TARGET, name, %child, "child finished"),
            Self::Failed { child, failure, cause } => {
                tracing::warn!(target: TARGET, name, %child, failure = failure.as_str(), cause, "child failed");
            }
            Self::Restarting { child, delay, others } => {
                tracing::info!(target: TARGET, name, %child, ?delay, others, "restarting");
            }
            Self::RestartRequested { child } => tracing::info!(target: TARGET, name, %child, "restart requested"),
            Self::Dropped { child } => {
                tracing::warn!(target: TARGET, name, %child, "child did not stop in time and is dropped");
            }
            Self::Blocked { child } => {
                tracing::warn!(target: TARGET, name, %child, "child blocks its thread and cannot be dropped");
            }
            Self::SlowPoll { child, took } => tracing::warn!(target: TARGET, name, %child, ?took, "slow poll"),
            Self::Escalated { child } => {
                tracing::error!(target: TARGET, name, %child, "restart budget exceeded, stopping all children");
            }
            Self::Stopping => tracing::info!(target: TARGET, name, "stopping"),
        }
    }
}
