//! Events of a scheduler.
use crate::observe::Traced;

/// An event of a [`Scheduler`](super::Scheduler). Those of its sagas are
/// [`SagaEvent`](crate::saga::SagaEvent)s.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SchedulerEvent {
    /// The supervisor found a saga that nothing carried on, and sent a message that resumes it.
    Resent {
        /// Id of the saga.
        id: String,
        /// Number of times that this was necessary.
        failures: u32,
        /// `true` if the message also cancels the saga.
        cancels: bool,
    },
    /// The supervisor gave a saga up: it is stuck, and needs an operator.
    Stranded {
        /// Id of the saga.
        id: String,
        /// Number of times that nothing carried it on.
        failures: u32,
    },
    /// A message became a dead letter.
    DeadLettered {
        /// Id of the saga; empty if the message has none.
        id: String,
        /// The reason.
        reason: String,
    },
    /// A status message could not be sent. The message of the saga is delivered again.
    ReplyFailed {
        /// Id of the saga.
        id: String,
        /// The error.
        error: String,
    },
}

impl Traced for SchedulerEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::scheduler", tracing::Level::INFO)
    }

    fn trace(&self, scheduler: &str) {
        const TARGET: &str = "steadfast::scheduler";
        match self {
            Self::Resent { id, failures, cancels } => {
                tracing::warn!(target: TARGET, scheduler, id, failures, cancels, "no executor: resumed by a new message");
            }
            Self::Stranded { id, failures } => {
                tracing::error!(target: TARGET, scheduler, id, failures, "no executor, given up: needs an operator");
            }
            Self::DeadLettered { id, reason } => tracing::warn!(target: TARGET, scheduler, id, reason, "dead-lettered"),
            Self::ReplyFailed { id, error } => tracing::warn!(target: TARGET, scheduler, id, error, "status not sent"),
        }
    }
}
