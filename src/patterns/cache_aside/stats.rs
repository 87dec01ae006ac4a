//! Counters of a cache.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::striped::Striped;

/// Counts since the cache was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CacheAsideStats {
    /// Fresh values served from the local tier.
    pub hits: u64,
    /// Gets for which the local tier had no fresh value. A get that joins another's load counts,
    /// too.
    pub misses: u64,
    /// Expired values served, because the source failed, was slow or was throttled.
    pub stale_hits: u64,
    /// Lookups after a miss that found a value in the remote tier.
    pub remote_hits: u64,
    /// Loads started: loaders whose future was polled.
    pub loads: u64,
    /// Loads that failed or timed out.
    pub load_failures: u64,
    /// Values that were not stored because an invalidation, a put or a clear superseded their load.
    pub superseded: u64,
    /// Entries evicted to make room for others.
    pub evictions: u64,
    /// Keys, tags and clears that this process invalidated, or was notified of.
    pub invalidations: u64,
    /// Failures of the remote tier and the backplane.
    pub faults: u64,
    /// Entries in the local tier, fresh or not.
    pub entries: u64,
}

/// The counters. Those of hits and misses have a cell per thread.
//
// Each counter is a sum that nothing else depends on, so `Relaxed` suffices. `read` takes no snapshot:
// its values may be from slightly different times.
pub(super) struct Stats {
    pub(super) hits: Striped,
    pub(super) misses: Striped,
    pub(super) evictions: AtomicU64,
    pub(super) stale_hits: AtomicU64,
    pub(super) remote_hits: AtomicU64,
    pub(super) loads: AtomicU64,
    pub(super) load_failures: AtomicU64,
    pub(super) superseded: AtomicU64,
    pub(super) invalidations: AtomicU64,
    pub(super) faults: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl Stats {
    pub(super) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            hits: Striped::new(),
            misses: Striped::new(),
            evictions: zero(),
            stale_hits: zero(),
            remote_hits: zero(),
            loads: zero(),
            load_failures: zero(),
            superseded: zero(),
            invalidations: zero(),
            faults: zero(),
        }
    }

    pub(super) fn read(&self, entries: usize) -> CacheAsideStats {
        CacheAsideStats {
            hits: self.hits.sum(),
            misses: self.misses.sum(),
            stale_hits: self.stale_hits.load(Relaxed),
            remote_hits: self.remote_hits.load(Relaxed),
            loads: self.loads.load(Relaxed),
            load_failures: self.load_failures.load(Relaxed),
            superseded: self.superseded.load(Relaxed),
            evictions: self.evictions.load(Relaxed),
            invalidations: self.invalidations.load(Relaxed),
            faults: self.faults.load(Relaxed),
            entries: entries as u64,
        }
    }
}
