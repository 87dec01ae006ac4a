//! A [`TimeWindow`] whose span may change while it is in use, and from which counted events can be
//! subtracted.

// `pace` holds the width and the epoch in one word, so that a thread never combines one with an
// older other; it publishes nothing else, and `Relaxed` suffices. A thread that adds by an old pace
// adds to an old epoch, which is not counted any more: the event is missed, as `set_spans` says.
// Changes of the span are serialized by a lock of the caller.

use std::time::Duration;

use super::{COUNT, HALF, Ring, key};
use crate::{
    sync::{AtomicU64, Ordering},
    time::{Instant, nanos},
};

/// Counts events in the last `span`, which may change. Lock-free.
///
/// Each change of the width of a tick begins a new epoch, so that ticks of different widths are
/// never compared.
pub(crate) struct ChangingWindow {
    /// Width of a tick in nanoseconds, above 8 bits of epoch: one word, so that no thread sees one
    /// without the other.
    pace: AtomicU64,
    buckets: u32,
    ring: Ring,
}

/// Time of an event, in ticks of a pace. Windows of one pace share it: a division for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pace: u64,
    tick: u64,
}

impl Stamp {
    #[inline]
    fn of(pace: u64, now: Instant) -> Self {
        Self { pace, tick: now.as_nanos() / (pace >> 8) + 1 }
    }

    #[inline]
    fn epoch(self) -> u32 {
        self.pace as u8 as u32
    }
}

/// The number of events in the current bucket of a window below which a decision stands, so that it
/// is made once and not at each event. It ends with the tick.
//
// The word of a bucket with a greater count. A decision loads the bound (`Acquire`), reads the settings, and
// then replaces the bound that it has loaded. `clear` follows a change of the settings (`Release`), and
// stores a word that no decision has loaded. So a decision by old settings is not stored after it.
pub(crate) struct Bound(AtomicU64);

impl Bound {
    /// Returns a bound that no count is below.
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[inline]
    pub(crate) fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Returns `true` if a loaded bound is above a bucket's word, and of its tick.
    #[inline]
    pub(crate) fn is_above(bound: u64, word: u64) -> bool {
        word < bound && word & !COUNT == bound & !COUNT
    }

    /// Sets the bound to `more` events after those of `word`. Nothing changes if it was set or
    /// cleared since `before` was loaded. A bucket that was halved is not below a bound.
    pub(crate) fn set(&self, before: u64, word: u64, more: u64) {
        let bound = word & !COUNT | (word & COUNT).saturating_add(more).min(HALF);
        // If it fails, the next event decides anew.
        let _ = self.0.compare_exchange(before, bound, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Ends the decision, after a change of what it depends on. One call at a time.
    pub(crate) fn clear(&self) {
        let next = (self.0.load(Ordering::Relaxed) & !COUNT).wrapping_add(COUNT + 1);
        // A swap instead of a store: it has its place in the order of the exchanges of other threads.
        self.0.swap(next, Ordering::Release);
    }
}

impl ChangingWindow {
    /// Returns the word of the bucket of `stamp`: its tick, and the number of its events. For
    /// [`Bound::set`].
    #[inline]
    pub(crate) fn word(&self, stamp: Stamp) -> u64 {
        let (word, key) = (self.ring.bucket(stamp.tick).load(Ordering::Relaxed), key(stamp.epoch(), stamp.tick));
        if word & !COUNT == key { word } else { key }
    }

    /// Returns an empty window. `span` is at most a year.
    pub(crate) fn new(span: Duration, buckets: u32) -> Self {
        Self { pace: AtomicU64::new(width(span, buckets) << 8), buckets, ring: Ring::new(buckets) }
    }

    #[inline]
    fn pace(&self) -> u64 {
        self.pace.load(Ordering::Relaxed)
    }

    /// Returns the stamp of `now`.
    #[inline]
    pub(crate) fn stamp(&self, now: Instant) -> Stamp {
        Stamp::of(self.pace(), now)
    }

    /// Adds `n` at `now`. If there is no room, halves the current bucket, here and in the window
    /// that this one is compared with.
    #[inline]
    pub(crate) fn add(&self, now: Instant, n: u32, beside: &Self) -> Stamp {
        self.add_stamped(self.stamp(now), now, n, beside)
    }

    /// As [`add`](Self::add), for a caller that has the stamp of `now` already. If the span has
    /// changed since, the event is missed.
    #[inline]
    pub(crate) fn add_stamped(&self, stamp: Stamp, now: Instant, n: u32, beside: &Self) -> Stamp {
        if self.ring.add(stamp.epoch(), stamp.tick, n) { stamp } else { self.add_to_full(now, n, beside) }
    }

    #[cold]
    fn add_to_full(&self, now: Instant, n: u32, beside: &Self) -> Stamp {
        loop {
            let stamp = self.stamp(now);
            if self.ring.add(stamp.epoch(), stamp.tick, n) {
                return stamp;
            }
            if self.ring.halve_if_full(stamp.epoch(), stamp.tick, n) {
                let stamp = beside.stamp(now);
                beside.ring.halve(stamp.epoch(), stamp.tick);
            }
        }
    }

    /// Adds one at the time of an earlier event, if there is room. Returns `false`, and adds
    /// nothing, if the span has changed since.
    #[inline]
    pub(crate) fn add_at(&self, stamp: Stamp) -> bool {
        let is_current = self.pace() as u8 as u32 == stamp.epoch();
        if is_current {
            self.ring.add(stamp.epoch(), stamp.tick, 1);
        }
        is_current
    }

    /// Subtracts one event that was counted at this time, unless it is too old to count.
    pub(crate) fn take_back(&self, stamp: Stamp) {
        self.ring.take_back(stamp.epoch(), stamp.tick);
    }

    /// Subtracts one event of the tick of `now`; if there is none, one of the tick before.
    pub(crate) fn take_one_back(&self, now: Instant) {
        let stamp = self.stamp(now);
        if !self.ring.take_back(stamp.epoch(), stamp.tick) {
            self.ring.take_back(stamp.epoch(), stamp.tick - 1);
        }
    }

    /// Returns the number of events in the span that ends at `now`.
    #[inline]
    pub(crate) fn sum(&self, now: Instant) -> u64 {
        let stamp = self.stamp(now);
        self.ring.sum(stamp.epoch(), stamp.tick)
    }

    /// As [`sum`](Self::sum), of windows that are compared with each other. `stamp` is that of
    /// `now` in one of them.
    #[inline]
    pub(crate) fn sums<const N: usize>(windows: [&Self; N], mut stamp: Stamp, now: Instant) -> [u64; N] {
        windows.map(|window| {
            // Another pace only while the span changes.
            if window.pace() != stamp.pace {
                stamp = window.stamp(now);
            }
            window.ring.sum(stamp.epoch(), stamp.tick)
        })
    }

    /// Changes the span of windows that are compared with each other.
    ///
    /// Counted events keep counting: in proportion if the span is shorter, and if they are more
    /// than one bucket holds. Concurrent additions may be missed. The caller holds a lock: one
    /// change at a time.
    pub(crate) fn set_spans<const N: usize>(windows: [&Self; N], span: Duration, now: Instant) {
        let kept = windows.map(|window| {
            let (pace, wide) = (window.pace(), width(span, window.buckets));
            let share = (wide as f64 / (pace >> 8) as f64).min(1.0);
            (pace >> 8 != wide).then(|| window.sum(now) as f64 * share)
        });
        let most = kept.iter().flatten().copied().fold(0.0, f64::max);
        let fits = (HALF as f64 / most).min(1.0);
        for (window, kept) in windows.into_iter().zip(kept) {
            let Some(kept) = kept else { continue };
            let (pace, wide) = (window.pace(), width(span, window.buckets));
            window.ring.clear(); // epochs come round again
            window.pace.store(wide << 8 | (pace + 1) & 0xff, Ordering::Relaxed);
            let stamp = window.stamp(now);
            window.ring.add(stamp.epoch(), stamp.tick, (kept * fits).round() as u32);
        }
    }
}

fn width(span: Duration, buckets: u32) -> u64 {
    (nanos(span) / u64::from(buckets)).clamp(1, u64::MAX >> 8)
}
