//! Events of publishers and of sites.
use crate::{observe::Traced, port::PortErrorKind};

const TARGET: &str = "steadfast::static_content";

/// An event of a [`SitePublisher`](super::SitePublisher).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SitePublisherEvent {
    /// A release is in effect.
    Published {
        /// Its number.
        number: u64,
        /// Number of the release that a rollback has published anew.
        source: Option<u64>,
        /// Number of objects that were uploaded.
        uploaded: usize,
    },
    /// Releases and their files were deleted.
    Pruned {
        /// Number of releases that are no longer kept.
        releases: usize,
        /// Number of objects.
        files: usize,
    },
}

impl Traced for SitePublisherEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: TARGET, tracing::Level::INFO)
    }

    fn trace(&self, name: &str) {
        match self {
            Self::Published { number, source, uploaded } => {
                tracing::info!(target: TARGET, name, number, source, uploaded, "release published");
            }
            Self::Pruned { releases, files } => {
                tracing::info!(target: TARGET, name, releases, files, "releases pruned");
            }
        }
    }
}

/// An event of a [`StaticSite`](super::StaticSite).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StaticSiteEvent {
    /// Another release is in effect in this process.
    Switched {
        /// Number of the one before.
        from: u64,
        /// Its number.
        number: u64,
    },
    /// A look at the store failed. The snapshot stays.
    RefreshFailed {
        /// Kind of failure; `None` if a release is missing or damaged.
        kind: Option<PortErrorKind>,
    },
}

impl Traced for StaticSiteEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: TARGET, tracing::Level::INFO)
    }

    fn trace(&self, name: &str) {
        match self {
            Self::Switched { from, number } => tracing::info!(target: TARGET, name, from, number, "release in effect"),
            Self::RefreshFailed { kind } => {
                tracing::warn!(target: TARGET, name, ?kind, "the store failed: the last release stays");
            }
        }
    }
}
