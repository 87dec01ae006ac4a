//! A sliding histogram of recent latencies, in memory that does not grow with the traffic.
//!
//! Latencies fall into classes, eight per doubling, so the values of a class differ by at most an
//! eighth. Each class is counted over the window in four steps.
//
// Lock-free. The counts are in `TimeWindow`s, each of which orders its own updates; a percentile
// reads one window after the other. It may therefore miss samples that are recorded meanwhile,
// which changes a percentile by less than its classes do.
//
// A full bucket: the thread whose compare-and-set halves it also halves the same step of all other
// classes, so that shares stay the same. Other threads find room and count on. A percentile that is
// computed between these steps is off by at most a factor of two in the share of one class.
//
// The cached percentile is two independent words:
//   known        the last computed value, or `UNKNOWN`
//   fresh_until  the time until which `look` returns `known` without computing; 0 forces it to
// Both are `Relaxed`, as neither publishes other data, and each value is usable alone. Possible
// results of a race, all harmless: two threads compute the same value; a thread sees the new
// `fresh_until` with the old `known`, and uses a delay that was right until now; `forget_look` is
// overwritten by a computation with the old settings, which then lasts for a sixty-fourth of the
// window.
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::{
    time::{Instant, nanos},
    window::TimeWindow,
};

/// Steps of the window.
const STEPS: u32 = 4;
/// Latencies below 2^10 ns form one class.
const LOWEST: u32 = 10;
/// Classes per doubling: 2^3.
const FINE: u32 = 3;
/// Doublings: up to 2^37 ns, about two minutes. A longer latency counts as that.
const DOUBLINGS: u32 = 27;
const CLASSES: usize = (DOUBLINGS << FINE) as usize + 1;
/// Number of computations of the percentile per window.
const LOOKS: u32 = 64;
/// The windows are never reset, so their epoch is constant.
const EPOCH: u32 = 0;

pub(super) struct Latencies {
    window: Duration,
    classes: [TimeWindow; CLASSES],
    /// Last computed percentile in nanoseconds. [`UNKNOWN`] if there were too few samples.
    known: AtomicU64,
    fresh_until: AtomicU64,
}

const UNKNOWN: u64 = u64::MAX;

impl Latencies {
    pub(super) fn new(window: Duration) -> Self {
        let classes = std::array::from_fn(|_| TimeWindow::new(window, STEPS));
        Self { window, classes, known: AtomicU64::new(UNKNOWN), fresh_until: AtomicU64::new(0) }
    }

    pub(super) const fn window(&self) -> Duration {
        self.window
    }

    /// Makes the next [`look`](Self::look) compute the percentile anew, for changed settings.
    pub(super) fn forget_look(&self) {
        self.fresh_until.store(0, Relaxed);
    }

    /// Records the latency of a call.
    pub(super) fn record(&self, now: Instant, took: Duration) {
        let class = &self.classes[class(nanos(took))];
        while !class.add(EPOCH, now, 1) {
            self.make_room(class, now);
        }
    }

    /// Halves the current step of all classes, so that their shares stay the same.
    #[cold]
    fn make_room(&self, full: &TimeWindow, now: Instant) {
        if full.halve_if_full(EPOCH, now, 1) {
            self.classes.iter().filter(|class| !std::ptr::eq(*class, full)).for_each(|class| class.halve(EPOCH, now));
        }
    }

    /// Returns the percentile, at most a sixty-fourth of the window old.
    pub(super) fn look(&self, now: Instant, percentile: f64, min_samples: u32) -> Option<Duration> {
        // Two callers at once compute the same value. A second computation or an old value does no
        // harm.
        if now.as_nanos() >= self.fresh_until.load(Relaxed) {
            let computed = self.percentile(now, percentile, min_samples);
            self.known.store(computed.map_or(UNKNOWN, nanos), Relaxed);
            self.fresh_until.store((now + self.window / LOOKS).as_nanos(), Relaxed);
        }
        let known = self.known.load(Relaxed);
        (known != UNKNOWN).then(|| Duration::from_nanos(known))
    }

    /// Computes the latency that the share `percentile` of calls does not exceed, as if the
    /// latencies of a class were evenly spread. `None` with too few samples.
    pub(super) fn percentile(&self, now: Instant, percentile: f64, min_samples: u32) -> Option<Duration> {
        let mut counts = [0; CLASSES];
        counts.iter_mut().zip(&self.classes).for_each(|(count, class)| *count = class.sum(EPOCH, now));
        let all: u64 = counts.iter().sum();
        if all < u64::from(min_samples.max(1)) {
            return None;
        }
        let rank = (all as f64 * percentile).ceil().max(1.0) as u64;
        let mut below = 0;
        for (class, n) in counts.into_iter().enumerate() {
            if below + n >= rank {
                let (from, to) = (class.checked_sub(1).map_or(0, bound), bound(class));
                let part = (rank - below) as f64 / n as f64;
                return Some(Duration::from_nanos(from + ((to - from) as f64 * part) as u64));
            }
            below += n;
        }
        None
    }
}

/// Returns the class of a latency in nanoseconds.
fn class(nanos: u64) -> usize {
    if nanos >> LOWEST == 0 {
        return 0;
    }
    let doubling = nanos.ilog2();
    let part = (nanos >> (doubling - FINE)) as u32 & ((1 << FINE) - 1);
    let class = ((doubling - LOWEST) << FINE) + part + 1;
    (class as usize).min(CLASSES - 1)
}

/// Returns the least latency in nanoseconds above all of a class.
fn bound(class: usize) -> u64 {
    match class.checked_sub(1) {
        None => 1 << LOWEST,
        Some(class) => {
            let (doubling, part) = (LOWEST + (class as u32 >> FINE), class as u64 & ((1 << FINE) - 1));
            ((1 << FINE) + part + 1) << (doubling - FINE)
        }
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // Guarantee: hedge 2.
    #[test]
    fn classes_are_in_order_without_gaps() {
        let mut before = 0;
        for class_of in 0..CLASSES {
            let bound = bound(class_of);
            assert!(bound > before);
            assert_eq!((class(before), class(bound - 1)), (class_of, class_of));
            before = bound;
        }
        assert_eq!(class(u64::MAX), CLASSES - 1);
    }

    proptest! {
        // Guarantee: hedge 2.
        /// Model: every latency of the window, kept and sorted.
        #[test]
        fn the_percentile_is_that_of_a_naive_model(
            steps in prop::collection::vec((0u64..3_000, 0u64..40_000_000_000), 1..200),
            percentile in 0.01f64..=1.0,
            min_samples in 1u32..20,
        ) {
            let latencies = Latencies::new(Duration::from_millis(4_000));
            let mut kept: Vec<(u64, u64)> = Vec::new();
            let mut at = 10_000;
            for (passes, took) in steps {
                at += passes;
                let now = Instant::from_nanos(at * 1_000_000);
                latencies.record(now, Duration::from_nanos(took));
                kept.push((at / 1_000, took));
                let mut live: Vec<u64> = kept.iter().filter(|(second, _)| at / 1_000 - second < 4).map(|(_, took)| *took).collect();
                live.sort_unstable();
                let found = latencies.percentile(now, percentile, min_samples).map(|d| d.as_nanos() as u64);
                if live.len() < min_samples as usize {
                    prop_assert_eq!(found, None);
                    continue;
                }
                let exact = live[((live.len() as f64 * percentile).ceil() as usize).max(1) - 1];
                let found = found.unwrap();
                let class = class(exact);
                let (from, to) = (class.checked_sub(1).map_or(0, bound), bound(class));
                prop_assert!(found > from && found <= to && to - from <= (exact / 8 + 1).max(1 << LOWEST), "{exact}: {found}");
            }
        }
    }

    // Guarantee: hedge 2.
    #[test]
    fn a_look_is_at_most_a_sixty_fourth_of_the_window_old() {
        let latencies = Latencies::new(Duration::from_secs(64));
        let at = |ms: u64| Instant::from_nanos((1_000_000 + ms) * 1_000_000);
        assert_eq!(latencies.look(at(0), 0.5, 1), None);
        latencies.record(at(0), Duration::from_millis(8));
        assert_eq!(latencies.look(at(999), 0.5, 1), None, "as it was");
        let known = latencies.look(at(1_001), 0.5, 1).unwrap();
        assert!((7_800_000..=9_000_000).contains(&nanos(known)), "{known:?}");
        assert_eq!(latencies.look(at(70_000), 0.5, 1), None, "nothing lately");
    }
}
