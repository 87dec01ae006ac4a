//! The error of a lease.
use crate::{
    port::{BoxFuture, Failure, PortError, Unsupported},
    store::StoreError,
};

/// The error of a call of a lease.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// The caller does not hold the name, or no longer holds it. Nothing was changed.
    #[error("lease not held: its term is over, or it was granted anew")]
    NotHeld,
    /// The backend failed, or refused the request as invalid.
    #[error(transparent)]
    Failed(#[from] PortError),
}

/// The future of a lease's method: its result, or a [`LeaseError`].
pub type LeaseFuture<'a, T> = BoxFuture<'a, Result<T, LeaseError>>;

impl Failure for LeaseError {
    fn backend(&self) -> Option<&PortError> {
        match self {
            Self::Failed(error) => Some(error),
            Self::NotHeld => None,
        }
    }
}

impl LeaseError {
    /// Returns `true` if the caller does not hold the name.
    pub fn is_not_held(&self) -> bool {
        matches!(self, Self::NotHeld)
    }
}

impl From<StoreError> for LeaseError {
    /// Maps a failed precondition to [`NotHeld`](Self::NotHeld): another holder has written the
    /// record.
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
