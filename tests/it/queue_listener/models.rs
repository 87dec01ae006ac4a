//! The rules of the listener against naive models.
use std::time::Duration;

use proptest::prelude::*;
use steadfast::queue_listener::{IdleConfig, tasks_by_depth};

proptest! {
    /// Delay n: `min + (2^n - 1) * r`, `r` from 0.8 to 1.2 of `delta`, at most `max`, in whole
    /// numbers.
    #[test]
    fn an_idle_delay_is_what_the_formula_says(min in 1u64..2_000, more in 0u64..600_000, delta in 0u64..5_000, n in 0u32..200, unit in 0.0..1.0f64) {
        let ms = Duration::from_millis;
        let max = min + more;
        let config = IdleConfig::between(ms(min), ms(max)).delta(ms(delta));
        let delay = config.delay(n, unit);
        let grown = |r: u64| {
            let doubled = 1u128.checked_shl(n).unwrap_or(u128::MAX).saturating_sub(1);
            u128::from(min * 1_000_000).saturating_add(doubled.saturating_mul(u128::from(r * 100_000)))
        };
        let least = grown(delta * 8).min(u128::from(max) * 1_000_000);
        let most = grown(delta * 12).min(u128::from(max) * 1_000_000);
        // A double is exact to a part in 10^15.
        let slack = most / 1_000_000_000 + 2;
        prop_assert!(delay.as_nanos() + slack >= least && delay.as_nanos() <= most + slack, "{delay:?} {least} {most}");
        prop_assert!(delay <= ms(max) && delay >= ms(min));
        prop_assert!(config.delay(n + 1, unit) >= delay, "it only grows");
    }

    #[test]
    fn more_messages_never_ask_for_fewer_tasks(a in 0u64..5_000, b in 0u64..5_000) {
        prop_assert!(tasks_by_depth(a.min(b)) <= tasks_by_depth(a.max(b)));
    }
}

#[test]
fn the_documented_delays_and_task_steps() {
    let config = IdleConfig::default();
    let delays: Vec<_> = (0..12).map(|n| config.delay(n, 0.5).as_millis()).collect();
    assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 51_200, 60_000, 60_000]);
    assert_eq!([0, 1, 99, 100, 999, 1000, u64::MAX].map(tasks_by_depth), [10, 10, 10, 50, 50, 100, 100]);
}
