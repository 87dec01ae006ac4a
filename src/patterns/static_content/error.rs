//! The error of the room.
use std::{io, path::PathBuf, sync::Arc, time::Duration};

use thiserror::Error;

use crate::{config::ConfigError, lease::LeaseError, store::StoreError};

/// Error of a [`SitePublisher`](super::SitePublisher), a [`Release`](super::Release) or a
/// [`StaticSite`](super::StaticSite).
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum SiteError {
    /// A setting, or the files of a release, break a rule. Nothing was changed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file of a release cannot be read, or is no part of it.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: Arc<io::Error>,
    },
    /// The store failed. After an error of unknown outcome the release may be in effect: see
    /// [`Failure`](crate::port::Failure).
    #[error("the store of the site failed: {0}")]
    Store(StoreError),
    /// The lease failed.
    #[error("the lease of the site failed: {0}")]
    Lease(LeaseError),
    /// Another publisher is at work.
    #[error("another publisher holds the lease of the site")]
    Busy {
        /// Time after which the lease may be free. Zero if that is unknown.
        free_in: Duration,
    },
    /// The lease has ended, or another publisher took it over. If that was during the switch, the
    /// release may be in effect: [`releases`](super::SitePublisher::releases) tells.
    #[error("the lease of the site has ended")]
    LeaseLost,
    /// The bucket failed. The release that was in effect stays.
    #[error("the bucket failed at `{key}`: {source}")]
    Bucket {
        /// Name of the object.
        key: String,
        /// The failure.
        source: Arc<object_store::Error>,
    },
    /// The bucket did not answer in time. The release that was in effect stays.
    #[error("the bucket did not answer in time at `{0}`")]
    BucketTimedOut(String),
    /// The bucket overwrites objects that must not exist. Nothing is in effect.
    #[error("the bucket cannot create an object only if it is absent")]
    NoCreateOnly,
    /// An object of this name has other bytes, which browsers and a CDN may have for a year. The
    /// release that was in effect stays.
    #[error("`{0}` exists with other bytes: give the file another name")]
    OtherBytes(String),
    /// An object is missing. The release that was in effect stays.
    #[error("`{0}` is missing in the bucket")]
    Missing(String),
    /// The release is not among those that are kept.
    #[error("release {0} is not kept")]
    NotKept(u64),
    /// Nothing has been published under this name.
    #[error("nothing has been published")]
    NothingPublished,
    /// A release in the store is damaged, or has the form of a newer version of this crate.
    #[error("release {0} cannot be read")]
    Damaged(u64),
}

impl SiteError {
    pub(super) fn bucket(key: &str, source: object_store::Error) -> Self {
        Self::Bucket { key: key.to_owned(), source: Arc::new(source) }
    }
}

impl From<StoreError> for SiteError {
    /// Maps the refusal of an old token to [`LeaseLost`](Self::LeaseLost).
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Fenced { .. } => Self::LeaseLost,
            error => Self::Store(error),
        }
    }
}
