//! Events of sagas.
use std::time::Duration;

use crate::{
    observe::Traced,
    port::{FencingToken, PortErrorKind},
};

/// An event of a [`Saga`](super::Saga).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SagaEvent {
    /// A saga was started.
    Started {
        /// Id of the saga.
        id: String,
    },
    /// This executor took a saga over.
    TakenOver {
        /// Id of the saga.
        id: String,
        /// The new epoch.
        epoch: FencingToken,
    },
    /// An attempt of a step did not complete it.
    AttemptFailed {
        /// Id of the saga.
        id: String,
        /// The step.
        step: String,
        /// `true` for an attempt of the compensation.
        compensates: bool,
        /// The outcome, as a word.
        outcome: &'static str,
        /// The error.
        reason: String,
        /// Delay before the next attempt; `None` if there is none.
        retry_in: Option<Duration>,
    },
    /// A saga is being compensated.
    Compensating {
        /// Id of the saga.
        id: String,
        /// The step that failed; `None` if the saga was cancelled.
        step: Option<String>,
        /// The error, or the reason of the cancellation.
        reason: String,
    },
    /// A saga completed.
    Completed {
        /// Id of the saga.
        id: String,
    },
    /// A saga was compensated.
    Compensated {
        /// Id of the saga.
        id: String,
    },
    /// A saga needs an operator.
    Stuck {
        /// Id of the saga.
        id: String,
        /// The step.
        step: String,
        /// `true` if the compensation of the step failed.
        compensates: bool,
        /// Its last error.
        reason: String,
        /// Number of attempts of the action, or of the compensation.
        attempts: u32,
    },
    /// Another executor took a saga over from this one.
    Superseded {
        /// Id of the saga.
        id: String,
    },
    /// This process cannot run a saga, which is left as it is.
    Incompatible {
        /// Id of the saga.
        id: String,
        /// The step or the part that it does not know.
        reason: String,
    },
    /// A request to the store failed. It is repeated for a while.
    StoreFailed {
        /// Kind of the failure; `None` for a time-out.
        kind: Option<PortErrorKind>,
    },
}

const TARGET: &str = "steadfast::saga";

impl Traced for SagaEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::saga", tracing::Level::INFO)
    }

    fn trace(&self, saga: &str) {
        match self {
            Self::Started { id } => tracing::debug!(target: TARGET, saga, id, "started"),
            Self::TakenOver { id, epoch } => tracing::info!(target: TARGET, saga, id, %epoch, "taken over"),
            Self::AttemptFailed { id, step, compensates, outcome, reason, retry_in } => {
                tracing::info!(target: TARGET, saga, id, step, compensates, outcome, reason, ?retry_in, "attempt failed");
            }
            Self::Compensating { id, step, reason } => {
                tracing::warn!(target: TARGET, saga, id, step, reason, "compensating");
            }
            Self::Completed { id } => tracing::debug!(target: TARGET, saga, id, "completed"),
            Self::Compensated { id } => tracing::info!(target: TARGET, saga, id, "compensated"),
            Self::Stuck { id, step, compensates, reason, attempts } => {
                tracing::error!(target: TARGET, saga, id, step, compensates, reason, attempts, "stuck: needs an operator");
            }
            Self::Superseded { id } => tracing::warn!(target: TARGET, saga, id, "superseded by another executor"),
            Self::Incompatible { id, reason } => {
                tracing::error!(target: TARGET, saga, id, reason, "cannot be run here")
            }
            Self::StoreFailed { kind } => tracing::warn!(target: TARGET, saga, ?kind, "the store failed"),
        }
    }
}
