//! Errors of uploads.
use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{config::ConfigError, store::StoreError};

/// Error of an upload.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum UploadError {
    /// The declaration breaks a rule.
    #[error(transparent)]
    Declared(#[from] ConfigError),
    /// More bytes are declared than one upload may have.
    #[error("upload of more than {max} bytes")]
    TooLarge {
        /// The most bytes of one upload.
        max: u64,
    },
    /// The tag has too many bytes outstanding, or too many uploads.
    #[error("too many bytes outstanding")]
    Limited {
        /// Time after which the first of them has ended at the latest.
        retry_after: Duration,
    },
    /// There is no upload of this id, or its result is no longer kept.
    #[error("no such upload")]
    Unknown,
    /// The object is not there yet.
    #[error("the object has not been uploaded")]
    NotUploaded,
    /// The upload was rejected, for ever.
    #[error("upload rejected: {}{}{detail}", reason.as_str(), if detail.is_empty() { "" } else { ": " })]
    Rejected {
        /// The reason.
        reason: RejectReason,
        /// Text of the inspection that rejected it; empty for other reasons.
        detail: String,
    },
    /// The inspection failed, panicked or took too long. The upload is neither accepted nor
    /// rejected.
    #[error("the inspection failed: {0}")]
    Inspection(String),
    /// The system has no random numbers.
    #[error("no random numbers")]
    NoRandomness,
    /// The store of the uploads' rows failed, or has one in the form of a newer release.
    #[error("the store of uploads failed: {error}")]
    Store {
        /// The store's error.
        error: StoreError,
        /// Time after which the caller may return.
        retry_after: Duration,
    },
    /// The object store failed; `None` for a time-out.
    #[error("the object store failed: {}", error.as_ref().map_or("timed out".to_owned(), ToString::to_string))]
    Objects {
        /// The object store's error.
        error: Option<Arc<object_store::Error>>,
        /// Time after which the caller may return.
        retry_after: Duration,
    },
}

/// Reason for which an upload was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RejectReason {
    /// The object has another size than was declared.
    Size,
    /// The object has another type than was declared.
    ContentType,
    /// The object has another digest than was declared.
    Digest,
    /// The inspection rejected it.
    Inspection,
    /// Nothing was uploaded while the URL was valid.
    Missing,
}

impl RejectReason {
    /// All reasons.
    pub const ALL: [Self; 5] = [Self::Size, Self::ContentType, Self::Digest, Self::Inspection, Self::Missing];

    /// Returns the reason as a word, the same as in events and metrics: `size`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::ContentType => "content_type",
            Self::Digest => "digest",
            Self::Inspection => "inspection",
            Self::Missing => "missing",
        }
    }
}

impl UploadError {
    /// Returns the status of an answer over HTTP.
    pub const fn status(&self) -> u16 {
        match self {
            Self::Declared(_) => 400,
            Self::TooLarge { .. } => 413,
            Self::Limited { .. } => 429,
            Self::Unknown => 404,
            Self::NotUploaded => 409,
            Self::Rejected { .. } => 422,
            Self::Inspection(_) | Self::NoRandomness => 500,
            Self::Store { .. } | Self::Objects { .. } => 503,
        }
    }

    /// Returns the time after which the caller may return, for 429 and 503.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Limited { retry_after } | Self::Store { retry_after, .. } | Self::Objects { retry_after, .. } => {
                Some(*retry_after)
            }
            _ => None,
        }
    }
}
