//! A [`TimeWindow`] whose span may change while it is in use, and from which counted events can be
//! subtracted.

// `pace` holds the width and the epoch in one word, so that a thread never combines one with an
// older other; it publishes nothing else, and `Relaxed` suffices. A thread that adds by an old pace
// adds to an old epoch, which is not counted any more: the event is missed, as `set_spans` says.
// Changes of the span are serialized by a lock of the caller.

use std::time::Duration;

use super::{HALF, TimeWindow};
use crate::{
    sync::{AtomicU64, Ordering},
    time::{Instant, nanos},
};

/// Counts events in the last `span`, which may change. Lock-free.
///
/// It counts in ticks of a width of its own: to the inner window, a tick is a nanosecond. Each
/// change of the width begins a new epoch, so that ticks of different widths are never compared.
pub(crate) struct ChangingWindow {
    /// Width of a tick in nanoseconds, above 8 bits of epoch: one word, so that no thread sees one
    /// without the other.
    pace: AtomicU64,
    buckets: u32,
    window: TimeWindow,
}

/// Time of a counted event, in ticks of its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    epoch: u32,
    tick: Instant,
}

impl ChangingWindow {
    /// Returns an empty window. `span` is at most a year.
    pub(crate) fn new(span: Duration, buckets: u32) -> Self {
        let window = TimeWindow::new(Duration::from_nanos(buckets.into()), buckets);
        Self { pace: AtomicU64::new(width(span, buckets) << 8), buckets, window }
    }

    #[inline]
    fn stamp(&self, now: Instant) -> Stamp {
        let pace = self.pace.load(Ordering::Relaxed);
        Stamp { epoch: pace as u8 as u32, tick: Instant::from_nanos(now.as_nanos() / (pace >> 8)) }
    }

    /// Adds `n` at `now`. If there is no room, halves the current bucket, here and in the window
    /// that this one is compared with.
    #[inline]
    pub(crate) fn add(&self, now: Instant, n: u32, beside: &Self) -> Stamp {
        loop {
            let stamp = self.stamp(now);
            if self.window.add(stamp.epoch, stamp.tick, n) {
                return stamp;
            }
            self.make_room(stamp, now, n, beside);
        }
    }

    #[cold]
    fn make_room(&self, stamp: Stamp, now: Instant, n: u32, beside: &Self) {
        if self.window.halve_if_full(stamp.epoch, stamp.tick, n) {
            let stamp = beside.stamp(now);
            beside.window.halve(stamp.epoch, stamp.tick);
        }
    }

    /// Adds one at the time of an earlier event, if there is room. Returns `false`, and adds
    /// nothing, if the span has changed since.
    #[inline]
    pub(crate) fn add_at(&self, stamp: Stamp) -> bool {
        let is_current = self.pace.load(Ordering::Relaxed) as u8 as u32 == stamp.epoch;
        if is_current {
            self.window.add(stamp.epoch, stamp.tick, 1);
        }
        is_current
    }

    /// Subtracts one event that was counted at this time, unless it is too old to count.
    pub(crate) fn take_back(&self, stamp: Stamp) {
        self.window.take_back(stamp.epoch, stamp.tick);
    }

    /// Subtracts one event of the tick of `now`; if there is none, one of the tick before.
    pub(crate) fn take_one_back(&self, now: Instant) {
        let stamp = self.stamp(now);
        if !self.window.take_back(stamp.epoch, stamp.tick) {
            let before = Instant::from_nanos(stamp.tick.as_nanos().saturating_sub(1));
            self.window.take_back(stamp.epoch, before);
        }
    }

    /// Returns the number of events in the span that ends at `now`.
    #[inline]
    pub(crate) fn sum(&self, now: Instant) -> u64 {
        let stamp = self.stamp(now);
        self.window.sum(stamp.epoch, stamp.tick)
    }

    /// Changes the span of windows that are compared with each other.
    ///
    /// Counted events keep counting: in proportion if the span is shorter, and if they are more
    /// than one bucket holds. Concurrent additions may be missed. The caller holds a lock: one
    /// change at a time.
    pub(crate) fn set_spans<const N: usize>(windows: [&Self; N], span: Duration, now: Instant) {
        let kept = windows.map(|window| {
            let (pace, wide) = (window.pace.load(Ordering::Relaxed), width(span, window.buckets));
            let share = (wide as f64 / (pace >> 8) as f64).min(1.0);
            (pace >> 8 != wide).then(|| window.sum(now) as f64 * share)
        });
        let most = kept.iter().flatten().copied().fold(0.0, f64::max);
        let fits = (HALF as f64 / most).min(1.0);
        for (window, kept) in windows.into_iter().zip(kept) {
            let Some(kept) = kept else { continue };
            let (pace, wide) = (window.pace.load(Ordering::Relaxed), width(span, window.buckets));
            window.window.clear(); // epochs come round again
            window.pace.store(wide << 8 | (pace + 1) & 0xff, Ordering::Relaxed);
            let stamp = window.stamp(now);
            window.window.add(stamp.epoch, stamp.tick, (kept * fits).round() as u32);
        }
    }
}

fn width(span: Duration, buckets: u32) -> u64 {
    (nanos(span) / u64::from(buckets)).clamp(1, u64::MAX >> 8)
}
