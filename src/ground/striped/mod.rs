//! A counter that many threads increase without waiting for each other.
#[cfg(all(test, not(steadfast_loom)))]
mod tests;

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use crate::sync::Line;

/// Counts in several cells; a thread always uses the same one.
pub(crate) struct Striped([Line<AtomicU64>; OWNED + SHARED]);

/// The first threads of the process that count have a cell each, and write it without a locked instruction.
const OWNED: usize = 16;
/// All others share these.
const SHARED: usize = 8;

impl Striped {
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| Line::default()))
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
            let drawn = NEXT.fetch_add(1, Relaxed);
            let drawn = if drawn < OWNED { drawn } else { OWNED + drawn % SHARED };
            MINE.set(drawn);
            drawn
        } else {
            mine
        };
        let cell = &self.0[mine % (OWNED + SHARED)].0;
        if mine < OWNED {
            // Nobody else writes it.
            cell.store(cell.load(Relaxed) + 1, Relaxed);
        } else {
            cell.fetch_add(1, Relaxed);
        }
    }

    /// All that was counted.
    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().map(|stripe| stripe.0.load(Relaxed)).sum()
    }
}
