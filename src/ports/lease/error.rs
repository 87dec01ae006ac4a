//! Why a lease was not renewed or released.
use crate::{
    port::{Failure, PortError, Unsupported},
    store::StoreError,
};

/// Why a lease did not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// The caller does not hold the name, or not any more. Nothing was changed.
    #[error("the lease is not held: its term is over, or it was granted anew")]
    NotHeld,
    /// The backend failed, or the request is not one that it takes.
    #[error(transparent)]
    Failed(#[from] PortError),
}

impl Failure for LeaseError {
    fn backend(&self) -> Option<&PortError> {
        match self {
            Self::Failed(error) => Some(error),
            Self::NotHeld => None,
        }
    }
}

impl LeaseError {
    /// Whether the caller does not hold the name.
    pub fn is_not_held(&self) -> bool {
        matches!(self, Self::NotHeld)
    }
}

impl From<StoreError> for LeaseError {
    /// A refusal of the store on its merits means that somebody else has written the record.
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Failed(error) => Self::Failed(error),
            StoreError::Conflict { .. } | StoreError::Fenced { .. } => Self::NotHeld,
        }
    }
}

impl From<Unsupported> for LeaseError {
    fn from(lacks: Unsupported) -> Self {
        PortError::from(lacks).into()
    }
}
