//! A counter that many threads increase without waiting for each other.
use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use crate::sync::Line;

/// Counts in several cells; a thread always uses the same one.
pub(crate) struct Striped([Line<AtomicU64>; STRIPES]);

/// A power of two; more threads than this share cells, which costs time, not counts.
const STRIPES: usize = 8;

impl Striped {
    pub(crate) fn new() -> Self {
        Self(Default::default())
    }

    /// One more.
    #[inline]
    pub(crate) fn increase(&self) {
        thread_local! {
            static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
        }
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let mine = MINE.get();
        let mine = if mine == usize::MAX {
            let drawn = NEXT.fetch_add(1, Relaxed) % STRIPES;
            MINE.set(drawn);
            drawn
        } else {
            mine
        };
        self.0[mine % STRIPES].0.fetch_add(1, Relaxed);
    }

    /// All that was counted.
    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().map(|stripe| stripe.0.load(Relaxed)).sum()
    }
}
