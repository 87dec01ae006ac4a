//! Counters over a sliding time, in buckets: memory and the cost of a record do not grow with the
//! traffic.
//!
//! Used by the breaker's time windows, the retry budget and the client throttle.

// Each bucket is one atomic that holds the epoch and the tick that it counts for beside the count,
// so that one compare-and-set replaces a stale bucket or increases a current one. No count is lost
// between two steps.
//
// Within one bucket, all changes are compare-and-sets or swaps of one atomic, so their order is
// total whatever the ordering is. A `Relaxed` load before a compare-and-set suffices: a stale value
// makes it fail and retry, or acts as if the call had come a moment earlier.
//
// Between windows: the changes are `AcqRel` and the loads of `sum` are `Acquire`. A reader that
// sees a count in one window sees what its writer had added to other windows before. The breaker
// relies on this: it adds to `calls` last (`circuit_breaker/window/records.rs`).
//
// `width` and `live` are `Relaxed`. They change in `reshape` alone, whose caller changes the epoch
// too. A thread that adds by the old shape adds to the old epoch, whose events are not counted any
// more. A thread that uses the new epoch has loaded it (`Acquire`) from a word that was stored
// after the shape, so it sees the new shape.
//
// An epoch has 8 bits and comes round after 256 changes: `clear` empties the buckets at each
// change, so that no bucket of an older epoch is taken for a current one.

mod changing;

pub(crate) use changing::{Bound, ChangingWindow, Stamp};

use std::time::Duration;

use crate::{
    sync::{AtomicU32, AtomicU64, Ordering},
    time::{Instant, nanos},
};

/// Counts events in the last `span`, in `buckets` steps. An event at `t` counts up to
/// `t + span - span/buckets`, and never at `t + span` or later.
///
/// Events belong to an epoch; those of another epoch than the one asked for are not counted, so
/// that a late event from before a reset does not count after it.
pub(crate) struct TimeWindow {
    width: AtomicU64,
    ring: Ring,
}

/// The buckets of a window, by ticks. A tick is a time divided by a width that the user knows, plus
/// 1, so that an untouched bucket is old. It wraps after 2^32.
struct Ring {
    /// Number of ticks that count.
    live: AtomicU32,
    /// A power of two, so that a tick finds its bucket without a division. A bucket that is not
    /// among the last `live` ticks is not counted.
    buckets: Box<[AtomicU64]>,
    /// Maximum of `live`.
    capacity: u32,
}

/// A bucket holds, from the top: the tick, which is time divided by width (32 bits), the epoch (8),
/// the count (24).
///
/// A count that reaches its maximum is halved by its user, together with the counts that it is
/// compared with: their ratio is kept, and later events weigh as much as before. Where only the
/// size matters, it stays at its maximum.
const COUNT: u64 = (1 << 24) - 1;

/// Maximum of one addition: the room that a halved count has.
pub(crate) const HALF: u64 = COUNT / 2;

/// Distance in ticks below which a bucket that lies ahead belongs to a later lap, and must not be
/// overwritten by a slow thread. A bucket further ahead was unused for so long that ticks have
/// wrapped.
const LATE: u32 = 1 << 16;

impl TimeWindow {
    /// Returns an empty window. `buckets` must be at least 1, `span` at least one nanosecond per
    /// bucket.
    pub(crate) fn new(span: Duration, buckets: u32) -> Self {
        Self { width: AtomicU64::new(width(span, buckets)), ring: Ring::new(buckets) }
    }

    /// Returns the maximum number of buckets.
    pub(crate) fn capacity(&self) -> u32 {
        self.ring.capacity
    }

    /// Changes the span and the number of buckets, at most the capacity, and removes all events.
    /// Concurrent additions must use another epoch than later ones.
    pub(crate) fn reshape(&self, span: Duration, buckets: u32) {
        self.width.store(width(span, buckets), Ordering::Relaxed);
        self.ring.live.store(buckets.min(self.capacity()), Ordering::Relaxed);
        self.clear();
    }

    #[inline]
    fn tick(&self, now: Instant) -> u64 {
        now.as_nanos() / self.width.load(Ordering::Relaxed) + 1
    }

    /// Adds `n` at `now`, at most half the maximum count. Returns `false`, and adds nothing, if the
    /// bucket has no room for them.
    #[inline]
    pub(crate) fn add(&self, epoch: u32, now: Instant, n: u32) -> bool {
        self.ring.add(epoch, self.tick(now), n)
    }

    /// Halves the bucket of `now` if it has no room for `n` more. Of several concurrent callers one
    /// gets `true`.
    pub(crate) fn halve_if_full(&self, epoch: u32, now: Instant, n: u32) -> bool {
        self.ring.halve_if_full(epoch, self.tick(now), n)
    }

    /// Halves the bucket of `now`.
    pub(crate) fn halve(&self, epoch: u32, now: Instant) {
        self.ring.halve(epoch, self.tick(now));
    }

    /// Returns whether the bucket of `now` has room for one more.
    pub(crate) fn has_room(&self, epoch: u32, now: Instant) -> bool {
        let tick = self.tick(now);
        self.ring.bucket(tick).load(Ordering::Relaxed) != key(epoch, tick) | COUNT
    }

    /// Removes all events. Those of earlier epochs would not be counted anyway, but epochs come
    /// round again.
    pub(crate) fn clear(&self) {
        self.ring.clear();
    }

    /// Returns the number of events of this epoch in the window that ends at `now`.
    pub(crate) fn sum(&self, epoch: u32, now: Instant) -> u64 {
        self.ring.sum(epoch, self.tick(now))
    }
}

impl Ring {
    fn new(buckets: u32) -> Self {
        let rounded = buckets.next_power_of_two();
        Self {
            live: AtomicU32::new(buckets),
            buckets: (0..rounded).map(|_| AtomicU64::new(0)).collect(),
            capacity: buckets,
        }
    }

    #[inline]
    fn bucket(&self, tick: u64) -> &AtomicU64 {
        &self.buckets[tick as usize & (self.buckets.len() - 1)]
    }

    /// As [`TimeWindow::add`].
    #[inline]
    fn add(&self, epoch: u32, tick: u64, n: u32) -> bool {
        let bucket = self.bucket(tick);
        let (key, n) = (key(epoch, tick), u64::from(n).min(HALF));
        let mut old = bucket.load(Ordering::Relaxed);
        loop {
            let count = if old & !COUNT == key {
                (old & COUNT) + n
            } else if old & COUNT != 0 && is_ahead(old, epoch, tick as u32) {
                return true; // a later epoch or lap owns the bucket: this event is already too old to count
            } else {
                n
            };
            if count > COUNT {
                return false;
            }
            match bucket.compare_exchange_weak(old, key | count, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
    }

    /// As [`TimeWindow::halve_if_full`].
    fn halve_if_full(&self, epoch: u32, tick: u64, n: u32) -> bool {
        let n = u64::from(n).min(HALF);
        self.halve_where(epoch, tick, |count| count + n > COUNT)
    }

    fn halve(&self, epoch: u32, tick: u64) {
        self.halve_where(epoch, tick, |_| true);
    }

    fn halve_where(&self, epoch: u32, tick: u64, is_due: impl Fn(u64) -> bool) -> bool {
        let (bucket, key) = (self.bucket(tick), key(epoch, tick));
        let mut old = bucket.load(Ordering::Relaxed);
        while old & !COUNT == key && is_due(old & COUNT) {
            let half = key | ((old & COUNT) / 2);
            match bucket.compare_exchange_weak(old, half, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
        false
    }

    /// Subtracts one event that was counted at this tick, if its bucket still holds it. Returns
    /// whether it did.
    fn take_back(&self, epoch: u32, tick: u64) -> bool {
        let (bucket, key) = (self.bucket(tick), key(epoch, tick));
        let mut old = bucket.load(Ordering::Relaxed);
        while old & !COUNT == key && old & COUNT != 0 {
            match bucket.compare_exchange_weak(old, old - 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
        false
    }

    fn clear(&self) {
        // A swap instead of a store: it has its place in the order of the additions of other
        // threads.
        self.buckets.iter().for_each(|bucket| _ = bucket.swap(0, Ordering::AcqRel));
    }

    /// As [`TimeWindow::sum`].
    #[inline]
    fn sum(&self, epoch: u32, tick: u64) -> u64 {
        let (live, key) = (u64::from(self.live.load(Ordering::Relaxed)), key(epoch, tick));
        let buckets = self.buckets.iter().map(|b| b.load(Ordering::Acquire));
        // One comparison for both: the number of ticks that a bucket lies behind, below the difference of
        // the epochs.
        let is_live = |b: u64| key.wrapping_sub(b & !COUNT).rotate_left(32) < live;
        buckets.map(|b| if is_live(b) { b & COUNT } else { 0 }).sum()
    }
}

fn width(span: Duration, buckets: u32) -> u64 {
    (nanos(span) / u64::from(buckets)).max(1)
}

fn key(epoch: u32, tick: u64) -> u64 {
    u64::from(tick as u32) << 32 | u64::from(epoch as u8) << 24
}

/// Returns whether the bucket belongs to a later epoch, or to a later lap of this one. The user
/// clears the window between epochs, so that no epoch comes round.
fn is_ahead(bucket: u64, epoch: u32, tick: u32) -> bool {
    let epochs = ((bucket >> 24) as u8).wrapping_sub(epoch as u8);
    if epochs == 0 { tick_of(bucket).wrapping_sub(tick) < LATE } else { epochs < 1 << 7 }
}

fn tick_of(bucket: u64) -> u32 {
    (bucket >> 32) as u32
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests;
