//! The time window against a list of all that was counted.
use std::time::Duration;

use proptest::prelude::*;

use super::TimeWindow;
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
                1 => {} // time passes, and nothing is counted
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
fn a_straggler_of_another_epoch_or_lap_is_not_counted() {
    let window = TimeWindow::new(Duration::from_secs(10), 10);
    let at = |s: u64| Instant::from_nanos(s * 1_000_000_000);
    window.add(2, at(100), 5);
    window.add(2, at(90), 3); // the same bucket, a lap earlier
    assert_eq!(window.sum(2, at(100)), 5);
    window.add(1, at(101), 9); // from before a reset
    assert_eq!(window.sum(2, at(101)), 5);
    window.add(2, at(101), 1);
    assert_eq!(window.sum(2, at(101)), 6);
}
