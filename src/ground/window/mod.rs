//! Counters over a sliding time, in buckets: memory and a record do not grow with the traffic.
//!
//! Shared by the breaker's time windows, the retry budget and the client throttle. Lock-free: a bucket is one atomic that holds the tick it
//! counts for beside the count, so a stale bucket is replaced and a current one increased by the same compare-and-set.
mod changing;

pub(crate) use changing::{ChangingWindow, Stamp};

use std::time::Duration;

use crate::{
    sync::{AtomicU32, AtomicU64, Ordering},
    time::{Instant, nanos},
};

/// Counts events in the last `span`, in `buckets` steps: an event at `t` counts up to `t + span - span/buckets`, and never at
/// `t + span` or later.
///
/// Events belong to an epoch; those of another epoch than the one asked for are not counted, so a straggler from before a
/// reset cannot be taken for news.
pub(crate) struct TimeWindow {
    width: AtomicU64,
    /// How many of the buckets are in use.
    live: AtomicU32,
    buckets: Box<[AtomicU64]>,
}

/// A bucket holds, from the top: the epoch (8 bits), the tick, which is time divided by width (32), the count (24).
///
/// A count that reaches its top is halved by its user, together with the counts that it is compared with: their ratio stays, and
/// what comes later weighs as much as before. Where only the size matters, it stays at its top.
const COUNT: u64 = (1 << 24) - 1;

/// Room for one addition in a count that was halved.
pub(crate) const HALF: u64 = COUNT / 2;

/// A bucket whose tick lies less than this ahead belongs to a later lap, which a slow thread must not overwrite. One that seems to
/// lie further ahead was left alone for so long that ticks have wrapped.
const LATE: u32 = 1 << 16;

impl TimeWindow {
    /// `buckets` must be at least 1, `span` at least one nanosecond for each.
    pub(crate) fn new(span: Duration, buckets: u32) -> Self {
        let all = (0..buckets).map(|_| AtomicU64::new(0)).collect();
        Self { width: AtomicU64::new(width(span, buckets)), live: AtomicU32::new(buckets), buckets: all }
    }

    /// How many buckets it can have.
    pub(crate) fn capacity(&self) -> u32 {
        self.buckets.len() as u32
    }

    /// Gives it another span and number of buckets, at most its capacity, and forgets all events. Whoever counts meanwhile must do
    /// so in another epoch than those who come after.
    pub(crate) fn reshape(&self, span: Duration, buckets: u32) {
        self.width.store(width(span, buckets), Ordering::Relaxed);
        self.live.store(buckets.min(self.capacity()), Ordering::Relaxed);
        self.clear();
    }

    /// The tick of `now`, which wraps after 2^32 widths, and its bucket. Ticks begin at 1, so that an untouched bucket is old.
    fn tick(&self, now: Instant) -> (u32, &AtomicU64) {
        let tick = self.tick_at(now);
        (tick as u32, &self.buckets[(tick % u64::from(self.live.load(Ordering::Relaxed))) as usize])
    }

    fn tick_at(&self, now: Instant) -> u64 {
        now.as_nanos() / self.width.load(Ordering::Relaxed) + 1
    }

    /// Counts `n` more at `now`, which counts as half the top at most. Returns false, and counts nothing, where the bucket has no
    /// room for them.
    #[inline]
    pub(crate) fn add(&self, epoch: u32, now: Instant, n: u32) -> bool {
        let (tick, bucket) = self.tick(now);
        let (key, n) = (key(epoch, tick), u64::from(n).min(HALF));
        let mut old = bucket.load(Ordering::Relaxed);
        loop {
            let count = if old & !COUNT == key {
                (old & COUNT) + n
            } else if old & COUNT != 0 && is_ahead(old, epoch, tick) {
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

    /// Halves the bucket of `now` where it has no room for `n` more. Of several callers at once one is told that it did.
    pub(crate) fn halve_if_full(&self, epoch: u32, now: Instant, n: u32) -> bool {
        let n = u64::from(n).min(HALF);
        self.halve_where(epoch, now, |count| count + n > COUNT)
    }

    /// Halves the bucket of `now`.
    pub(crate) fn halve(&self, epoch: u32, now: Instant) {
        self.halve_where(epoch, now, |_| true);
    }

    fn halve_where(&self, epoch: u32, now: Instant, is_due: impl Fn(u64) -> bool) -> bool {
        let (tick, bucket) = self.tick(now);
        let key = key(epoch, tick);
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

    /// Takes one back that was counted at `at`, if its bucket still holds it. Says whether it did.
    pub(crate) fn take_back(&self, epoch: u32, at: Instant) -> bool {
        let (tick, bucket) = self.tick(at);
        let key = key(epoch, tick);
        let mut old = bucket.load(Ordering::Relaxed);
        while old & !COUNT == key && old & COUNT != 0 {
            match bucket.compare_exchange_weak(old, old - 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
        false
    }

    /// Whether the bucket of `now` can count one more.
    pub(crate) fn has_room(&self, epoch: u32, now: Instant) -> bool {
        let (tick, bucket) = self.tick(now);
        bucket.load(Ordering::Relaxed) != key(epoch, tick) | COUNT
    }

    /// Forgets all events. Those of earlier epochs would not be counted anyway, but epochs come round again.
    pub(crate) fn clear(&self) {
        // Not a plain store: it is ordered among the additions of others, before or after each.
        self.buckets.iter().for_each(|bucket| _ = bucket.swap(0, Ordering::AcqRel));
    }

    /// How many of this epoch were counted in the window that ends at `now`.
    pub(crate) fn sum(&self, epoch: u32, now: Instant) -> u64 {
        let tick = self.tick_at(now) as u32;
        let live = self.live.load(Ordering::Relaxed);
        let buckets = self.buckets.iter().map(|b| b.load(Ordering::Acquire));
        buckets.filter(|b| same_epoch(*b, epoch) && tick.wrapping_sub(tick_of(*b)) < live).map(|b| b & COUNT).sum()
    }
}

fn width(span: Duration, buckets: u32) -> u64 {
    (nanos(span) / u64::from(buckets)).max(1)
}

fn key(epoch: u32, tick: u32) -> u64 {
    u64::from(epoch as u8) << 56 | u64::from(tick) << 24
}

fn same_epoch(bucket: u64, epoch: u32) -> bool {
    (bucket >> 56) as u8 == epoch as u8
}

/// Whether the bucket belongs to a later epoch, or to a later lap of this one. Its user clears it between epochs, so that none comes round.
fn is_ahead(bucket: u64, epoch: u32, tick: u32) -> bool {
    let epochs = ((bucket >> 56) as u8).wrapping_sub(epoch as u8);
    if epochs == 0 { tick_of(bucket).wrapping_sub(tick) < LATE } else { epochs < 1 << 7 }
}

fn tick_of(bucket: u64) -> u32 {
    (bucket >> 24) as u32
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests;
