//! Invalidation of tags by counters, without clocks.
//!
//! One sequence numbers the invalidations of all tags. A value records the number that was current
//! when its load began, and a tag that of its last invalidation. If the tag's number is higher, the
//! value was, or may have been, read before the invalidation.
//
// - A load reads `sequence` before it asks the source. An invalidation raises `sequence` and then the
//   tag's counter. So once `invalidate` has returned, the counter is above the number of every load
//   that began before the call, and not above that of a load that begins afterwards.
// - `fetch_max` keeps the highest number if two invalidations reach a counter in either order.
// - `floor` works in the same way for all values at once.
//
// All accesses are `SeqCst`, because readers compare two locations, and a single total order makes
// the argument simple.
use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

/// Number of counters. Tags share them by their hash, so the table does not grow with the tags. Two
/// tags with one counter are invalidated together, which costs a load and nothing else.
const COUNTERS: usize = 4096;

pub(crate) struct Tags {
    sequence: AtomicU64,
    /// Values that were born before this number count as expired: notices may have been missed.
    floor: AtomicU64,
    last: Box<[AtomicU64]>,
    hasher: RandomState,
}

/// Index of a tag's counter.
pub(crate) type Slot = u16;

impl Tags {
    pub(crate) fn new() -> Self {
        let last = (0..COUNTERS).map(|_| AtomicU64::new(0)).collect();
        Self { sequence: AtomicU64::new(0), floor: AtomicU64::new(0), last, hasher: RandomState::new() }
    }

    /// Returns the number with which a load begins. To be read before the source is asked.
    pub(crate) fn now(&self) -> u64 {
        self.sequence.load(SeqCst)
    }

    pub(crate) fn slot(&self, tag: &str) -> Slot {
        (self.hasher.hash_one(tag) % COUNTERS as u64) as Slot
    }

    /// Invalidates every value with this tag that was born before this returns.
    pub(crate) fn invalidate(&self, tag: &str) {
        let number = self.sequence.fetch_add(1, SeqCst) + 1;
        // Two invalidations may arrive here in either order: the higher number stays.
        self.last[usize::from(self.slot(tag))].fetch_max(number, SeqCst);
    }

    /// Returns `true` if one of these tags was invalidated after this number.
    pub(crate) fn invalidated_since(&self, born: u64, slots: &[Slot]) -> bool {
        slots.iter().any(|slot| self.last[usize::from(*slot)].load(SeqCst) > born)
    }

    /// Treats every value born until now as expired.
    pub(crate) fn raise_floor(&self) {
        let number = self.sequence.fetch_add(1, SeqCst) + 1;
        self.floor.fetch_max(number, SeqCst);
    }

    /// Returns `true` if a value born at this number is above the floor.
    #[inline]
    pub(crate) fn is_above_floor(&self, born: u64) -> bool {
        born >= self.floor.load(SeqCst)
    }
}
