//! Events of a cache.
use std::time::Duration;

use crate::{observe::Traced, port::PortErrorKind};

/// An event of a [`CacheAside`](super::CacheAside). Hits, misses and successful loads are no events
/// but [counted](super::CacheAside::stats).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheAsideEvent {
    /// The settings were replaced.
    ConfigChanged,
    /// A load failed or timed out.
    LoadFailed {
        /// Duration of the load.
        took: Duration,
        /// `true` if the load took longer than `hard_timeout` and was dropped.
        timed_out: bool,
        /// `true` if an expired value is served instead.
        serves_stale: bool,
    },
    /// A load took longer than `soft_timeout`. An expired value was served, and the load continues
    /// in the background.
    LeftInBackground,
    /// A loaded value was not stored, because an invalidation, a put or a clear superseded its
    /// load.
    Superseded,
    /// The remote tier or the backplane failed or timed out. The call continued without it.
    RemoteFailed {
        /// The kind of call.
        call: RemoteCall,
        /// The kind of failure; `None` for a time-out.
        kind: Option<PortErrorKind>,
    },
    /// The codec cannot decode a value of the remote tier, for example one of an older schema. It
    /// counts as a miss.
    Undecodable,
    /// A record of the remote tier does not match its checksum. It counts as a miss. A damaged mark
    /// of a tag counts as an invalidation.
    Damaged,
    /// An entry is heavier than the local tier can hold, and is not kept there.
    TooHeavy {
        /// Weight of the entry.
        weight: u64,
        /// Maximum weight of an entry.
        most: u64,
    },
    /// The codec or the remote tier refuses a value or a key. It is kept in this process only.
    NotStorable,
    /// An invalidation has not reached the remote tier or the other processes. It is pending and
    /// will be retried.
    InvalidationPending {
        /// Number of pending invalidations.
        pending_invalidations: usize,
    },
    /// All pending invalidations were delivered.
    InvalidationsDelivered,
    /// Notices may have been missed: every existing local entry counts as expired.
    Gap,
}

/// A kind of call of the remote tier or the backplane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RemoteCall {
    /// Looking a value up.
    Look,
    /// Storing a loaded value.
    Fill,
    /// Storing a value of a put.
    Put,
    /// Deleting values, or marking a tag.
    Invalidate,
    /// Publishing notices, or receiving them.
    Notify,
}

impl Traced for CacheAsideEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::cache_aside", tracing::Level::DEBUG)
    }

    fn trace(&self, cache: &str) {
        const TARGET: &str = "steadfast::cache_aside";
        match self {
            Self::LoadFailed { took, timed_out, serves_stale } => {
                tracing::warn!(target: TARGET, cache, ?took, timed_out, serves_stale, "load failed");
            }
            Self::ConfigChanged => tracing::info!(target: TARGET, cache, "configuration changed"),
            Self::LeftInBackground => tracing::info!(target: TARGET, cache, "load continues in the background"),
            Self::Superseded => tracing::debug!(target: TARGET, cache, "loaded value was superseded and not stored"),
            Self::RemoteFailed { call, kind } => {
                tracing::warn!(target: TARGET, cache, ?call, ?kind, "remote tier or backplane failed")
            }
            Self::Undecodable => tracing::warn!(target: TARGET, cache, "value of the remote tier could not be decoded"),
            Self::Damaged => tracing::warn!(target: TARGET, cache, "record of the remote tier is damaged"),
            Self::TooHeavy { weight, most } => {
                tracing::warn!(target: TARGET, cache, weight, most, "entry is too heavy for the local tier");
            }
            Self::NotStorable => {
                tracing::warn!(target: TARGET, cache, "value or key cannot be stored in the remote tier")
            }
            Self::InvalidationPending { pending_invalidations } => {
                tracing::warn!(target: TARGET, cache, pending_invalidations, "invalidation is pending")
            }
            Self::InvalidationsDelivered => {
                tracing::info!(target: TARGET, cache, "all pending invalidations were delivered")
            }
            Self::Gap => {
                tracing::info!(target: TARGET, cache, "notices may have been missed: local entries count as expired")
            }
        }
    }
}
