//! The time window against a list of all that was counted.
use std::time::Duration;

use proptest::prelude::*;

use super::{ChangingWindow, TimeWindow};
use crate::time::Instant;

proptest! {
    #[test]
    fn a_time_window_equals_a_list(
        span_ms in 1u64..500, buckets in 1u32..12,
        steps in proptest::collection::vec((0u64..200_000_000, 1u32..5, 0u32..3), 1..120)
    ) {
        let span = Duration::from_millis(span_ms);
        let window = TimeWindow::new(span, buckets);
        let width = (span.as_nanos() as u64 / u64::from(buckets)).max(1);
        let (mut now, mut epoch) = (1_000_000_000u64, 7u32);
        let mut list: Vec<(u64, u32)> = Vec::new();
        for (advance, n, act) in steps {
            now += advance;
            match act {
                0 if advance % 5 == 0 => {
                    epoch += 1;
                    list.clear();
                }
                1 => {} // time passes without an event
                _ => {
                    window.add(epoch, Instant::from_nanos(now), n);
                    list.push((now, n));
                }
            }
            let live = list.iter().filter(|(at, _)| now / width - at / width < u64::from(buckets));
            let expected: u64 = live.map(|(_, n)| u64::from(*n)).sum();
            prop_assert_eq!(window.sum(epoch, Instant::from_nanos(now)), expected);
        }
    }
}

#[test]
fn a_late_event_of_another_epoch_or_lap_is_not_counted() {
    let window = TimeWindow::new(Duration::from_secs(10), 10);
    let at = |s: u64| Instant::from_nanos(s * 1_000_000_000);
    window.add(2, at(100), 5);
    window.add(2, at(84), 3); // the same bucket of 16, a lap earlier
    assert_eq!(window.sum(2, at(100)), 5);
    window.add(1, at(101), 9); // from before a reset
    assert_eq!(window.sum(2, at(101)), 5);
    window.add(2, at(101), 1);
    window.add(1, at(101), 9); // regression: took the bucket from the events after the reset
    assert_eq!(window.sum(2, at(101)), 6);
    window.add(1, at(101), 9); // again, when the bucket is in use
    assert_eq!(window.sum(2, at(101)), 6);
}

#[test]
fn a_reshaped_window_starts_empty_and_slides_by_its_own_steps() {
    let window = TimeWindow::new(Duration::from_secs(10), 10);
    let at = |s: u64| Instant::from_nanos(s * 1_000_000_000);
    window.add(1, at(100), 5);
    window.reshape(Duration::from_secs(20), 4);
    assert_eq!((window.sum(1, at(100)), window.sum(2, at(100)), window.capacity()), (0, 0, 10));
    window.add(2, at(100), 1);
    assert_eq!((window.sum(2, at(119)), window.sum(2, at(120))), (1, 0));
}

/// Regression: half of all ticks lay "before" an untouched bucket, and were not counted.
#[test]
fn a_window_counts_from_any_time_on() {
    let window = || TimeWindow::new(Duration::from_millis(10), 10);
    for lap in [1, 1 << 20, 1 << 31, (1 << 31) + 5, (1 << 32) - 1, 1 << 32, (1 << 32) + 7, 3 << 31] {
        let window = window();
        for step in 0..20u64 {
            let now = Instant::from_nanos((lap + step) * 1_000_000);
            window.add(0, now, 1);
            assert_eq!(window.sum(0, now), (step + 1).min(10), "tick {lap} + {step}");
        }
        // The same after a pause of any length.
        let now = Instant::from_nanos((lap + (5 << 30)) * 1_000_000);
        window.add(0, now, 1);
        assert_eq!(window.sum(0, now), 1, "tick {lap}, much later");
    }
}

#[test]
fn a_full_bucket_refuses_additions_and_can_be_halved() {
    let window = TimeWindow::new(Duration::from_secs(2), 2);
    let at = |s: u64| Instant::from_nanos(s * 1_000_000_000);
    assert!(window.has_room(3, at(4)));
    // One addition is half of the top at most.
    assert!(window.add(3, at(4), u32::MAX) && window.add(3, at(4), u32::MAX));
    assert!(!window.add(3, at(4), 2) && window.add(3, at(4), 1), "an addition without room is not counted");
    assert!(!window.has_room(3, at(4)));
    assert!(!window.add(3, at(4), 1));
    assert_eq!(window.sum(3, at(4)), (1 << 24) - 1);
    // Halved once, by the first caller.
    assert!(window.halve_if_full(3, at(4), 1) && !window.halve_if_full(3, at(4), 1));
    assert_eq!(window.sum(3, at(4)), (1 << 23) - 1);
    // Other ticks and epochs are not halved.
    window.halve(2, at(4));
    window.halve(3, at(6));
    assert_eq!(window.sum(3, at(4)), (1 << 23) - 1);
    assert!(window.add(3, at(4), 1 << 23) && window.add(3, at(4), 1) && !window.has_room(3, at(4)));
    assert!(window.has_room(3, at(5)) && window.has_room(4, at(4)));
    window.clear();
    assert!(window.has_room(3, at(4)));
    assert_eq!(window.sum(3, at(5)), 0);
}

proptest! {
    /// With a fixed span, against a list from which events that are taken back are removed.
    #[test]
    fn a_changing_window_equals_a_list(steps in proptest::collection::vec((0u64..120, 0u32..3, any::<proptest::sample::Index>()), 1..100)) {
        let (span, buckets) = (1_200, 12);
        let window = || ChangingWindow::new(Duration::from_nanos(span), buckets);
        let (window, other) = (window(), window());
        let (mut now, mut list) = (10_000, Vec::new());
        for (advance, act, which) in steps {
            now += advance;
            let at = Instant::from_nanos(now);
            match act {
                0 if !list.is_empty() => {
                    let (_, stamp) = list.swap_remove(which.index(list.len()));
                    window.take_back(stamp);
                }
                1 if !list.is_empty() => {
                    // One more, at the time of an earlier one.
                    let (then, stamp) = list[which.index(list.len())];
                    if now / 100 - then / 100 < 12 {
                        prop_assert!(window.add_at(stamp));
                        list.push((then, stamp));
                    }
                }
                _ => list.push((now, window.add(at, 1, &other))),
            }
            let live = list.iter().filter(|(then, _)| now / 100 - then / 100 < 12).count();
            prop_assert_eq!(window.sum(at), live as u64);
        }
    }

    /// Changes of the span keep counted events, in proportion if it is shorter; stamps from before
    /// a change have no effect.
    #[test]
    fn a_window_keeps_what_it_counts_when_its_span_changes(spans in proptest::collection::vec(1u64..100, 1..600)) {
        let window = || ChangingWindow::new(Duration::from_nanos(12 * 50), 12);
        let (window, other) = (window(), window());
        let at = Instant::from_nanos(1_000_000);
        let stamps: Vec<_> = (0..1_000).map(|_| window.add(at, 1, &other)).collect();
        let (mut wide, mut kept, mut changed) = (50, 1_000, false);
        for next in spans {
            ChangingWindow::set_spans([&window], Duration::from_nanos(12 * next), at);
            kept = if next < wide { (kept as f64 * (next as f64 / wide as f64)).round() as u64 } else { kept };
            changed |= next != wide;
            wide = next;
            prop_assert_eq!(window.sum(at), kept);
            // Epochs come round after 256 changes: an event older than its window is not taken back either.
            if changed && kept > 0 {
                prop_assert!(stamps.iter().take(3).all(|stamp| !window.add_at(*stamp)) || wide == 50);
            }
            kept = window.sum(at);
        }
    }
}

/// Regression: each of two counts stopped at its own maximum, so that their ratio went to one; a
/// change of the span did the same.
#[test]
fn compared_windows_keep_their_ratio_when_a_bucket_is_full() {
    let window = || ChangingWindow::new(Duration::from_secs(10), 10);
    let (all, some) = (window(), window());
    let at = |s: u64| Instant::from_nanos(s * 1_000_000_000);
    for second in 100..110 {
        // A hundred million per second, and a quarter of it.
        for _ in 0..100_000 {
            all.add(at(second), 1_000, &some);
            some.add(at(second), 250, &all);
        }
    }
    let ratio = |now| some.sum(now) as f64 / all.sum(now) as f64;
    assert!((ratio(at(109)) - 0.25).abs() < 0.001, "{}", ratio(at(109)));
    assert!(all.sum(at(109)) >= 10 << 23);
    ChangingWindow::set_spans([&all, &some], Duration::from_secs(20), at(109));
    assert!((ratio(at(109)) - 0.25).abs() < 0.001, "{}", ratio(at(109)));
    // Later events still count.
    let before = ratio(at(109));
    (0..1_000).for_each(|_| _ = all.add(at(109), 1_000, &some));
    assert!(ratio(at(109)) < before * 0.95);
}
