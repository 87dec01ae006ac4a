//! The number of requests with a body that are behind a gate.
//!
//! The state is one counter: [`enter`](Bodies::enter) adds one, and the drop of an [`Entered`],
//! which is also made for a request that is refused, takes it back. Nothing is published by it, so
//! `Relaxed` suffices. Requests that come at once at the limit may see each other, and all be
//! refused though one would have had a place; never do too many enter.
use std::sync::{Arc, atomic::Ordering::Relaxed};

use crate::sync::AtomicU64;

/// The places for bodies.
#[derive(Default)]
pub(super) struct Bodies(Arc<AtomicU64>);

impl Bodies {
    /// Takes one of so many places, or returns `None` if there is none.
    pub(super) fn enter(&self, max: usize) -> Option<Entered> {
        let before = self.0.fetch_add(1, Relaxed);
        let entered = Entered(self.0.clone());
        (before < max as u64).then_some(entered)
    }

    /// Returns the number of places that are taken.
    pub(super) fn taken(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A place, which ends with its drop.
pub(super) struct Entered(Arc<AtomicU64>);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
