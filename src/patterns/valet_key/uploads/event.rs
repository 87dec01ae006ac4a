//! Events of uploads.
use super::RejectReason;
use crate::{config::Name, observe::Traced};

/// An event of [`Uploads`](super::Uploads). None contains a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum UploadEvent {
    /// An upload was begun.
    Begun {
        /// The id of the upload.
        id: Name,
        /// The tag, whose outstanding bytes are limited.
        tag: Name,
        /// The declared bytes.
        bytes: u64,
    },
    /// An upload was not begun, because the tag has too many bytes outstanding.
    Limited {
        /// The tag.
        tag: Name,
        /// The declared bytes.
        bytes: u64,
    },
    /// An upload was accepted.
    Accepted {
        /// The id of the upload.
        id: Name,
        /// The tag.
        tag: Name,
        /// The bytes.
        bytes: u64,
        /// The path of the accepted object.
        path: Name,
    },
    /// An upload was rejected.
    Rejected {
        /// The id of the upload.
        id: Name,
        /// The tag.
        tag: Name,
        /// The reason.
        reason: RejectReason,
    },
    /// A sweep could not end an upload, or list uploads. A later one tries again.
    SweepFailed {
        /// The id of the upload.
        id: Option<Name>,
    },
}

impl Traced for UploadEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::valet_key", tracing::Level::WARN)
    }

    fn trace(&self, uploads: &str) {
        const TARGET: &str = "steadfast::valet_key";
        match self {
            Self::Begun { id, tag, bytes } => {
                tracing::debug!(target: TARGET, uploads, %id, %tag, bytes, "upload begun");
            }
            Self::Limited { tag, bytes } => {
                tracing::info!(target: TARGET, uploads, %tag, bytes, "too many bytes outstanding");
            }
            Self::Accepted { id, tag, bytes, path } => {
                tracing::info!(target: TARGET, uploads, %id, %tag, bytes, %path, "upload accepted");
            }
            Self::Rejected { id, tag, reason } => {
                tracing::info!(target: TARGET, uploads, %id, %tag, reason = reason.as_str(), "upload rejected");
            }
            Self::SweepFailed { id } => {
                let id = id.as_ref().map(|id| id.as_str().to_owned());
                tracing::warn!(target: TARGET, uploads, id, "sweep failed");
            }
        }
    }
}
