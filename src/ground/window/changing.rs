//! A [`TimeWindow`] whose span may change while it is in use, and from which what was counted can be taken back.
use std::time::Duration;

use super::{HALF, TimeWindow};
use crate::{
    sync::{AtomicU64, Ordering},
    time::{Instant, nanos},
};

/// Counts events in the last `span`, which may change. Lock-free.
///
/// It counts in ticks of a width of its own: to the window inside, a tick is a nanosecond. Each change of the width begins a new epoch, so that
/// ticks of different widths are never compared.
pub(crate) struct ChangingWindow {
    /// The width of a tick in nanoseconds, above 8 bits of epoch: one word, so that nobody sees the one without the other.
    pace: AtomicU64,
    buckets: u32,
    window: TimeWindow,
}

/// When something was counted, and in ticks of which epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    epoch: u32,
    tick: Instant,
}

impl ChangingWindow {
    /// `span` is at most a year.
    pub(crate) fn new(span: Duration, buckets: u32) -> Self {
        let window = TimeWindow::new(Duration::from_nanos(buckets.into()), buckets);
        Self { pace: AtomicU64::new(width(span, buckets) << 8), buckets, window }
    }

    #[inline]
    fn stamp(&self, now: Instant) -> Stamp {
        let pace = self.pace.load(Ordering::Relaxed);
        Stamp { epoch: pace as u8 as u32, tick: Instant::from_nanos(now.as_nanos() / (pace >> 8)) }
    }

    /// Counts `n` more at `now`. Where there is no room, halves what is counted about now, here and in the window that this one is
    /// compared with.
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

    /// Counts one more at that time, as far as there is room; false where the span has changed since, and nothing was counted.
    #[inline]
    pub(crate) fn add_at(&self, stamp: Stamp) -> bool {
        let is_current = self.pace.load(Ordering::Relaxed) as u8 as u32 == stamp.epoch;
        if is_current {
            self.window.add(stamp.epoch, stamp.tick, 1);
        }
        is_current
    }

    /// Takes one back that was counted at that time, unless it is too old to count.
    pub(crate) fn take_back(&self, stamp: Stamp) {
        self.window.take_back(stamp.epoch, stamp.tick);
    }

    /// Takes one back that was counted in the tick of `now`; where there is none, in the tick before.
    pub(crate) fn take_one_back(&self, now: Instant) {
        let stamp = self.stamp(now);
        if !self.window.take_back(stamp.epoch, stamp.tick) {
            let before = Instant::from_nanos(stamp.tick.as_nanos().saturating_sub(1));
            self.window.take_back(stamp.epoch, before);
        }
    }

    /// How many were counted in the span that ends at `now`.
    #[inline]
    pub(crate) fn sum(&self, now: Instant) -> u64 {
        let stamp = self.stamp(now);
        self.window.sum(stamp.epoch, stamp.tick)
    }

    /// Changes the span of windows that are compared with each other. What counts now goes on counting, in proportion where the span is shorter, and
    /// where it is more than a bucket holds; what is counted by others in the same moment may be missed. Its users hold a lock of
    /// their own: one change at a time.
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
