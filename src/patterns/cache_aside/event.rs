//! What a cache tells.
use std::time::Duration;

use crate::{observe::Traced, port::PortErrorKind};

/// Something a [`CacheAside`](super::CacheAside) did. Hits, misses and loads that succeed are no events: they are
/// [counted](super::CacheAside::stats).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheAsideEvent {
    /// A load failed, or was given up.
    LoadFailed {
        /// How long it took.
        took: Duration,
        /// It was given up: it took longer than `hard_timeout`.
        timed_out: bool,
        /// An expired value is served in its place.
        serves_stale: bool,
    },
    /// A load took longer than `soft_timeout`: an expired value was served, and the load goes on in the background.
    LeftInBackground,
    /// A value was not stored: an invalidation, a put or a clear overtook its load.
    Superseded,
    /// The remote tier failed, or took too long. The call went on without it.
    RemoteFailed {
        /// Doing what.
        call: RemoteCall,
        /// How; `None` where it took too long.
        kind: Option<PortErrorKind>,
    },
    /// The remote tier holds a value that the codec does not read: an older schema. It counts as a miss.
    Undecodable,
    /// A record of the remote tier does not have its checksum: its bytes are not those that were written. It counts as a miss, or the
    /// mark of a tag as an invalidation.
    Damaged,
    /// An entry weighs more than the local tier can hold, and is not kept there.
    TooHeavy {
        /// The weight of the entry.
        weight: u64,
        /// The greatest weight that is kept.
        most: u64,
    },
    /// The codec, or the remote tier, does not take a value or a key: it is kept in this process alone.
    NotStorable,
    /// An invalidation has not reached the remote tier, or the other processes. It is owed, and tried again.
    Owed {
        /// How many are, now.
        debts: usize,
    },
    /// All that was owed was delivered.
    Settled,
    /// Notices may have been missed: every local entry older than this counts as expired.
    Gap,
}

/// A call of the remote tier or the backplane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RemoteCall {
    /// Looking for a value.
    Look,
    /// Storing a loaded value.
    Fill,
    /// Storing a value that was put.
    Put,
    /// Invalidating.
    Invalidate,
    /// Telling other processes, or hearing from them.
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
            Self::LeftInBackground => tracing::info!(target: TARGET, cache, "load goes on in the background"),
            Self::Superseded => tracing::debug!(target: TARGET, cache, "load was overtaken"),
            Self::RemoteFailed { call, kind } => {
                tracing::warn!(target: TARGET, cache, ?call, ?kind, "remote tier failed")
            }
            Self::Undecodable => tracing::warn!(target: TARGET, cache, "value does not decode"),
            Self::Damaged => tracing::warn!(target: TARGET, cache, "record of the remote tier is damaged"),
            Self::TooHeavy { weight, most } => {
                tracing::warn!(target: TARGET, cache, weight, most, "entry is too heavy for the local tier");
            }
            Self::NotStorable => tracing::warn!(target: TARGET, cache, "value or key cannot be stored"),
            Self::Owed { debts } => tracing::warn!(target: TARGET, cache, debts, "invalidation is owed"),
            Self::Settled => tracing::info!(target: TARGET, cache, "invalidations were delivered"),
            Self::Gap => tracing::info!(target: TARGET, cache, "notices may have been missed"),
        }
    }
}
