//! Errors of a store.
use super::Version;
use crate::port::{BoxFuture, Failure, FencingToken, PortError, Unsupported};

/// Error of a store operation.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The precondition does not hold. Nothing was written.
    #[error("precondition failed: {}", .current.map_or("the record is absent".to_owned(), |v| format!("the current version is {v}")))]
    Conflict {
        /// Index of the write in its batch; 0 for a single write.
        write: usize,
        /// The current version, or `None` if there is no record. For an append, the last number of
        /// the sequence, or `None` if it has none yet.
        current: Option<Version>,
    },
    /// The fencing token is older than one that the key has seen. Nothing was written.
    #[error("stale fencing token: the highest token seen for this key is {highest}")]
    Fenced {
        /// Index of the write in its batch; 0 for a single write.
        write: usize,
        /// The highest token that the key has seen.
        highest: FencingToken,
    },
    /// The backend failed, or it does not accept the request.
    #[error(transparent)]
    Failed(#[from] PortError),
}

/// The future of a store's method: its result, or a [`StoreError`].
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

impl Failure for StoreError {
    fn backend(&self) -> Option<&PortError> {
        match self {
            Self::Failed(error) => Some(error),
            Self::Conflict { .. } | Self::Fenced { .. } => None,
        }
    }
}

impl StoreError {
    /// Returns `true` if a precondition did not hold.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }

    /// Sets the index of the write in its batch, for backends.
    #[must_use]
    pub fn of_write(mut self, i: usize) -> Self {
        if let Self::Conflict { write, .. } | Self::Fenced { write, .. } = &mut self {
            *write = i;
        }
        self
    }

    /// Returns `true` if the fencing token was stale.
    pub fn is_fenced(&self) -> bool {
        matches!(self, Self::Fenced { .. })
    }
}

impl From<Unsupported> for StoreError {
    fn from(lacks: Unsupported) -> Self {
        PortError::from(lacks).into()
    }
}
