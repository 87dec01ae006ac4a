//! What a cache counts.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::striped::Striped;

/// What a cache did since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CacheAsideStats {
    /// Fresh values from the local tier.
    pub hits: u64,
    /// What the local tier did not have fresh. Who waits for the load of another counts, too.
    pub misses: u64,
    /// Expired values served: the source failed, was slow, or was left alone.
    pub stale_hits: u64,
    /// Of the misses, the looks into the remote tier that found a value.
    pub remote_hits: u64,
    /// Loads begun: loaders whose future was polled.
    pub loads: u64,
    /// Loads that failed or took too long.
    pub load_failures: u64,
    /// Values that were not stored because an invalidation, a put or a clear overtook their load.
    pub superseded: u64,
    /// Entries that made room for others.
    pub evictions: u64,
    /// Keys, tags and clears that this process invalidated, or heard of.
    pub invalidations: u64,
    /// Failures of the remote tier and the backplane.
    pub faults: u64,
    /// Entries in the local tier, fresh or not.
    pub entries: u64,
}

/// The counters. A hit's has cells of its own for each thread.
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
