//! The guard of a family of breakers: how many of them may be open at once.
use crate::sync::{AtomicU64, Ordering};

/// Counts the members, and those of them that are not closed.
pub(super) struct OpenLimit {
    /// Members in the upper half, those not closed in the lower: they are judged together.
    counts: AtomicU64,
    /// The share that may be open, as the bits of an `f64`.
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

    /// How many are not closed.
    pub(super) fn open(&self) -> u32 {
        self.counts.load(Ordering::Acquire) as u32
    }

    /// How many may be: the share of the members, rounded down, but at least one.
    fn allowed(&self, members: u64) -> u64 {
        let share = f64::from_bits(self.share.load(Ordering::Relaxed));
        // A product such as 0.1 * 30 may lie a rounding error below the whole number that is meant.
        ((members as f64 * share + 1e-9) as u64).max(1)
    }

    /// Counts one as open if one more may be.
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

    /// Counts one as open, whatever the share.
    pub(super) fn count_open(&self) {
        self.counts.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn count_closed(&self) {
        self.counts.fetch_sub(1, Ordering::AcqRel);
    }
}
