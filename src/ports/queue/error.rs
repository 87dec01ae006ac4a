//! Why a queue did not do what was asked.
use crate::port::{Failure, PortError, Unsupported};

/// Why a queue did not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The receipt is old: the message was handed out again, or settled. Nothing was changed.
    #[error("the message is no longer this receiver's: it was handed out again, or settled")]
    LeaseLost,
    /// The backend failed, or the request is not one that it takes.
    #[error(transparent)]
    Failed(#[from] PortError),
}

impl Failure for QueueError {
    fn backend(&self) -> Option<&PortError> {
        match self {
            Self::Failed(error) => Some(error),
            Self::LeaseLost => None,
        }
    }
}

impl QueueError {
    /// Whether the receipt was old.
    pub fn is_lease_lost(&self) -> bool {
        matches!(self, Self::LeaseLost)
    }
}

impl From<Unsupported> for QueueError {
    fn from(lacks: Unsupported) -> Self {
        PortError::from(lacks).into()
    }
}
