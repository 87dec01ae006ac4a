//! Errors and results of sagas.
use crate::{
    port::{Failure, PortError},
    store::StoreError,
};

/// The result of a saga.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SagaOutcome<T> {
    /// All steps took effect. The state after the last one.
    Completed(T),
    /// The saga failed or was cancelled, and all its effects are compensated.
    Compensated {
        /// The step that failed; `None` if the saga was cancelled.
        step: Option<String>,
        /// The error of that step, or the reason of the cancellation.
        reason: String,
    },
    /// The saga cannot go on by itself: a step failed after the pivot, or a compensation failed. An
    /// operator [retries](super::Saga::retry), [skips](super::Saga::skip) or
    /// [undoes](super::Saga::undo) the step.
    Stuck {
        /// The step.
        step: String,
        /// Its last error.
        reason: String,
    },
}

/// Error of an operation of a saga. In each case the saga itself has not failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SagaError {
    /// The id or an argument violates a rule.
    #[error(transparent)]
    Invalid(PortError),
    /// The store failed for longer than [`store_timeout`](super::SagaConfig::store_timeout). The
    /// saga may be open: run it again, or leave it to [`recover`](super::Saga::recover).
    #[error("the store of the saga failed: {0}")]
    Store(#[source] PortError),
    /// The store refused an initial row. The saga was not started.
    #[error("the store refused an initial row: {0}")]
    RowRefused(#[source] StoreError),
    /// Another executor took the saga over.
    #[error("another executor took the saga over")]
    Superseded,
    /// A saga with this id was started with another initial state.
    #[error("a saga with this id was started with another initial state")]
    InputMismatch,
    /// This process does not know a step of the saga, or cannot read its state. The record is left
    /// as it is, for a process that can.
    #[error("this process cannot run the saga: {0}")]
    Incompatible(String),
    /// The saga can no longer be cancelled: its pivot took effect, or may have.
    #[error("the saga has passed its pivot")]
    PastPivot,
    /// There is no saga with this id, or its retention is over.
    #[error("there is no saga with this id")]
    NotFound,
    /// The saga is not stuck at this step.
    #[error("the saga is not stuck at this step")]
    NotStuck,
}

impl SagaError {
    /// Returns `true` if the operation may succeed when it is repeated.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Superseded => true,
            Self::Store(error) => error.class() != crate::port::ErrorClass::Permanent,
            Self::RowRefused(error) => error.class() != crate::port::ErrorClass::Permanent,
            _ => false,
        }
    }
}
