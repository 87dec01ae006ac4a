//! Tags by counters: what a value read before an invalidation of one of its tags is worth.
//!
//! One sequence counts the invalidations of all tags. A value knows the number that was current when its load began; a tag, the number of its
//! last invalidation. A value whose tag has the higher number was, or may have been, read before. No clock is asked.
use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

/// Tags share so many counters, by their hash: however many there are, the table does not grow. Two that meet in one are invalidated
/// together, which costs a load and nothing else.
const COUNTERS: usize = 4096;

pub(super) struct Tags {
    sequence: AtomicU64,
    /// Values born before this count as expired: notices of their invalidation may have been missed.
    floor: AtomicU64,
    last: Box<[AtomicU64]>,
    hasher: RandomState,
}

/// The counter of a tag.
pub(super) type Slot = u16;

impl Tags {
    pub(super) fn new() -> Self {
        let last = (0..COUNTERS).map(|_| AtomicU64::new(0)).collect();
        Self { sequence: AtomicU64::new(0), floor: AtomicU64::new(0), last, hasher: RandomState::new() }
    }

    /// The number with which a load begins. To be asked before the source is.
    pub(super) fn now(&self) -> u64 {
        self.sequence.load(SeqCst)
    }

    pub(super) fn slot(&self, tag: &str) -> Slot {
        (self.hasher.hash_one(tag) % COUNTERS as u64) as Slot
    }

    /// From when this returns, no value with this tag counts that was born before.
    pub(super) fn invalidate(&self, tag: &str) {
        let number = self.sequence.fetch_add(1, SeqCst) + 1;
        // Two at once may come here in either order: the higher number stays.
        self.last[usize::from(self.slot(tag))].fetch_max(number, SeqCst);
    }

    /// Whether a value born at this number was overtaken by an invalidation of one of its tags.
    pub(super) fn overtook(&self, born: u64, slots: &[Slot]) -> bool {
        slots.iter().any(|slot| self.last[usize::from(*slot)].load(SeqCst) > born)
    }

    /// Everything born until now counts as expired.
    pub(super) fn raise_floor(&self) {
        let number = self.sequence.fetch_add(1, SeqCst) + 1;
        self.floor.fetch_max(number, SeqCst);
    }

    /// Whether a value born at this number is above the floor.
    #[inline]
    pub(super) fn is_above_floor(&self, born: u64) -> bool {
        born >= self.floor.load(SeqCst)
    }
}
