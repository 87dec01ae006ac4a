//! Limit on the share of a registry's breakers that may be open at once.

// Members (upper half) and members that are not closed (lower half) are one atomic word, so that a
// compare-and-set judges both counts of one moment: racing openings never exceed the share. The
// word publishes nothing else. Each member is counted under its own breaker's lock, once per change
// of its state, so the lower half never underflows. `share` is `Relaxed`: a concurrent
// `reconfigure` may take effect one opening later.

use crate::sync::{AtomicU64, Ordering};

/// Counts the members of a registry, and those of them that are not closed.
pub(super) struct OpenLimit {
    /// Members in the upper half, members that are not closed in the lower.
    counts: AtomicU64,
    /// Maximum share that may be open, as the bits of an `f64`.
    share: AtomicU64,
}

const MEMBER: u64 = 1 << 32;

impl OpenLimit {
    pub(super) fn new(share: f64) -> Self {
        Self { counts: AtomicU64::new(0), share: AtomicU64::new(share.to_bits()) }
    }

    pub(super) fn set_share(&self, share: f64) {
        self.share.store(share.to_bits(), Ordering::Relaxed);
    }

    pub(super) fn add_member(&self) {
        self.counts.fetch_add(MEMBER, Ordering::AcqRel);
    }

    pub(super) fn remove_member(&self) {
        self.counts.fetch_sub(MEMBER, Ordering::AcqRel);
    }

    /// Returns the number of members that are not closed.
    pub(super) fn open(&self) -> u32 {
        self.counts.load(Ordering::Acquire) as u32
    }

    /// Returns the number of members that may be open: the share, rounded down, but at least one.
    fn allowed(&self, members: u64) -> u64 {
        let share = f64::from_bits(self.share.load(Ordering::Relaxed));
        // A product such as 0.1 * 30 may lie a rounding error below the intended whole number.
        ((members as f64 * share + 1e-9) as u64).max(1)
    }

    /// Counts one more member as open, if the limit allows it.
    pub(super) fn try_open(&self) -> bool {
        let mut seen = self.counts.load(Ordering::Acquire);
        loop {
            if (seen & (MEMBER - 1)) + 1 > self.allowed(seen >> 32) {
                return false;
            }
            match self.counts.compare_exchange_weak(seen, seen + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(changed) => seen = changed,
            }
        }
    }

    /// Counts one more member as open, beyond the limit too.
    pub(super) fn count_open(&self) {
        self.counts.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn count_closed(&self) {
        self.counts.fetch_sub(1, Ordering::AcqRel);
    }
}
