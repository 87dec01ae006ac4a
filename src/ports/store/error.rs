//! Why a store did not do what was asked.
use super::Version;
use crate::port::{Failure, FencingToken, PortError, Unsupported};

/// Why a store did not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The record is not as the precondition asks. Nothing was written.
    #[error("the record is not as expected: {}", .current.map_or("it is absent".to_owned(), |v| format!("its version is {v}")))]
    Conflict {
        /// Which write of the batch; 0 where there was one.
        write: usize,
        /// The version that is current, or `None` where there is no record.
        current: Option<Version>,
    },
    /// A write of an earlier holder of the lease, come too late. Nothing was written.
    #[error("the fencing token is too low: the record has seen {highest}")]
    Fenced {
        /// Which write of the batch; 0 where there was one.
        write: usize,
        /// The highest token that the record has seen.
        highest: FencingToken,
    },
    /// The backend failed, or the request is not one that it takes.
    #[error(transparent)]
    Failed(#[from] PortError),
}

impl Failure for StoreError {
    fn backend(&self) -> Option<&PortError> {
        match self {
            Self::Failed(error) => Some(error),
            Self::Conflict { .. } | Self::Fenced { .. } => None,
        }
    }
}

impl StoreError {
    /// Whether a precondition did not hold.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }

    /// The same, of this write of a batch. For backends.
    #[must_use]
    pub fn of_write(mut self, i: usize) -> Self {
        if let Self::Conflict { write, .. } | Self::Fenced { write, .. } = &mut self {
            *write = i;
        }
        self
    }

    /// Whether a fencing token was too low.
    pub fn is_fenced(&self) -> bool {
        matches!(self, Self::Fenced { .. })
    }
}

impl From<Unsupported> for StoreError {
    fn from(lacks: Unsupported) -> Self {
        PortError::from(lacks).into()
    }
}
