//! Errors of index tables.
use super::IndexKey;
use crate::{
    port::{ErrorClass, Failure, PortError, PortErrorKind},
    store::{StoreError, Version},
};

/// Error of an [`IndexTable`](super::IndexTable).
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum IndexTableError {
    /// Another row has this unique key. The row was not written.
    #[error("another row has the key {key} in the index {index:?}")]
    Duplicate {
        /// Name of the index.
        index: String,
        /// The key.
        key: IndexKey,
    },
    /// The precondition does not hold. The row was not written.
    #[error("precondition failed: {}", .current.map_or("the row is absent".to_owned(), |v| format!("the current version is {v}")))]
    Conflict {
        /// The current version, or `None` if there is no row.
        current: Option<Version>,
    },
    /// The index does not have all rows yet:
    /// [`build_indexes`](super::IndexTable::build_indexes) has not ended.
    #[error("the index {index:?} is being built")]
    Building {
        /// Name of the index.
        index: String,
    },
    /// An argument violates a rule. The row was not written.
    #[error(transparent)]
    Invalid(PortError),
    /// The store of the rows, or of an index, failed, or has a row that does not decode.
    #[error(transparent)]
    Store(PortError),
}

impl Failure for IndexTableError {
    fn backend(&self) -> Option<&PortError> {
        match self {
            Self::Invalid(error) | Self::Store(error) => Some(error),
            _ => None,
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            Self::Building { .. } => ErrorClass::Transient,
            _ => self.backend().map_or(ErrorClass::Permanent, PortError::class),
        }
    }
}

impl From<StoreError> for IndexTableError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Conflict { current, .. } => Self::Conflict { current },
            StoreError::Failed(error) if error.kind() == PortErrorKind::Invalid => Self::Invalid(error),
            StoreError::Failed(error) => Self::Store(error),
            fenced @ StoreError::Fenced { .. } => {
                Self::Store(PortError::new(PortErrorKind::Other, format!("index_table: {fenced}")))
            }
        }
    }
}
