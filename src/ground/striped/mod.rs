//! A counter that many threads increase without contention.
#[cfg(all(test, not(steadfast_loom)))]
mod tests;

// Each thread draws an index once, from a counter of the process, and always uses the cell with that index.
//
// The first `OWNED` threads of the process get indices below `OWNED`, each its own. A cell below `OWNED` therefore has exactly one
// writer, and a load and a store lose no count. All later threads draw one of the `SHARED` cells behind them, with several
// writers, and count by `fetch_add`. Indices are never reused, not even after a thread has ended.
//
// `Relaxed` suffices: a cell is a number and publishes no other memory. `sum` reads the cells one after the other, so it is
// exact once the counting threads were joined, and otherwise between the counts at its start and at its end.
use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use crate::sync::Line;

/// A counter in several cells; a thread always uses the same one.
pub(crate) struct Striped([Line<AtomicU64>; OWNED + SHARED]);

/// Number of threads with a cell of their own, which they write without a locked instruction.
const OWNED: usize = 16;
/// Number of cells that all other threads share.
const SHARED: usize = 8;

impl Striped {
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| Line::default()))
    }

    /// Adds one.
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
            // This thread is the only writer.
            cell.store(cell.load(Relaxed) + 1, Relaxed);
        } else {
            cell.fetch_add(1, Relaxed);
        }
    }

    /// Returns the sum of all cells.
    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().map(|stripe| stripe.0.load(Relaxed)).sum()
    }
}
