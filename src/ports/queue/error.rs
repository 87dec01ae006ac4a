//! Errors of a queue.
use crate::port::{BoxFuture, Failure, PortError, Unsupported};

/// Error of a queue operation.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The receipt is stale: the message was redelivered or already settled. Nothing was changed.
    #[error("stale receipt: the message was redelivered or already settled")]
    LeaseLost,
    /// The backend failed, or it does not accept the request.
    #[error(transparent)]
    Failed(#[from] PortError),
}

/// The future of a queue's method: its result, or a [`QueueError`].
pub type QueueFuture<'a, T> = BoxFuture<'a, Result<T, QueueError>>;

impl Failure for QueueError {
    fn backend(&self) -> Option<&PortError> {
        match self {
            Self::Failed(error) => Some(error),
            Self::LeaseLost => None,
        }
    }
}

impl QueueError {
    /// Returns `true` if the receipt was stale.
    pub fn is_lease_lost(&self) -> bool {
        matches!(self, Self::LeaseLost)
    }
}

impl From<Unsupported> for QueueError {
    fn from(lacks: Unsupported) -> Self {
        PortError::from(lacks).into()
    }
}
