//! The meter of a child's polls.
//
// Three independent counters: each is read by itself, and publishes no other memory, so `Relaxed` suffices.
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::time::nanos;

#[derive(Default)]
pub(super) struct Meter {
    polls: AtomicU64,
    busy: AtomicU64,
    longest: AtomicU64,
}

impl Meter {
    pub(super) fn record(&self, took: Duration) {
        let took = nanos(took);
        self.polls.fetch_add(1, Relaxed);
        self.busy.fetch_add(took, Relaxed);
        if took > self.longest.load(Relaxed) {
            self.longest.fetch_max(took, Relaxed);
        }
    }

    pub(super) fn polls(&self) -> u64 {
        self.polls.load(Relaxed)
    }

    pub(super) fn busy(&self) -> Duration {
        Duration::from_nanos(self.busy.load(Relaxed))
    }

    pub(super) fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest.load(Relaxed))
    }
}
