//! Retry, behaviour 2: the delays.
use std::{collections::BinaryHeap, time::Duration};

use proptest::prelude::*;
use steadfast::{
    backoff::{Backoff, BackoffConfig, Curve, Jitter},
    entropy::Entropy,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn delays(config: BackoffConfig, n: usize) -> Vec<u64> {
    let backoff = Backoff::new(config, &Entropy::from_seed(3)).unwrap();
    backoff.take(n).map(|d| d.as_millis() as u64).collect()
}

fn plain(curve: Curve) -> BackoffConfig {
    BackoffConfig::default().curve(curve).between(MS(10), MS(100)).jitter(Jitter::None)
}

#[test]
fn retry_2_the_curves() {
    assert_eq!(delays(plain(Curve::Constant), 4), [10, 10, 10, 10]);
    assert_eq!(delays(plain(Curve::Linear), 12), [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 100, 100]);
    assert_eq!(delays(plain(Curve::Exponential), 6), [10, 20, 40, 80, 100, 100]);
    assert_eq!(delays(plain(Curve::Exponential).factor(3.0), 4), [10, 30, 90, 100]);
    assert_eq!(delays(plain(Curve::Fibonacci), 8), [10, 10, 20, 30, 50, 80, 100, 100]);
}

#[test]
fn retry_2_immediately_once_then_back_off() {
    assert_eq!(delays(plain(Curve::Exponential).immediate_first(), 4), [0, 10, 20, 40]);
}

#[test]
fn retry_2_the_same_seed_gives_the_same_delays() {
    let config = BackoffConfig::default();
    assert_eq!(delays(config, 20), delays(config, 20));
}

fn any_config() -> impl Strategy<Value = BackoffConfig> {
    let curve =
        prop_oneof![Just(Curve::Constant), Just(Curve::Linear), Just(Curve::Exponential), Just(Curve::Fibonacci)];
    let jitter = prop_oneof![Just(Jitter::None), Just(Jitter::Full), Just(Jitter::Equal), Just(Jitter::Decorrelated)];
    (curve, jitter, 1u64..=u64::MAX, 0u64..=u64::MAX, 1.0f64..1e300, any::<bool>()).prop_map(
        |(curve, jitter, base, more, factor, immediate)| {
            let base = Duration::from_nanos(base);
            let config = BackoffConfig::default().curve(curve).jitter(jitter).factor(factor);
            let config = config.between(base, base.saturating_add(Duration::from_nanos(more)));
            if immediate { config.immediate_first() } else { config }
        },
    )
}

proptest! {
    /// Seen elsewhere: 3 s with a cap of 2 s.
    #[test]
    fn retry_2_no_delay_exceeds_the_cap_and_none_overflows(
        config in any_config(), k in prop_oneof![Just(1u32), Just(u32::MAX), any::<u32>()], seed: u64
    ) {
        prop_assert!(config.delay(k) <= config.cap);
        for delay in Backoff::new(config, &Entropy::from_seed(seed)).unwrap().take(200) {
            prop_assert!(delay <= config.cap);
        }
    }

    #[test]
    fn retry_2_jitter_stays_within_its_bounds(seed: u64, base in 1u64..1000, k in 1usize..12) {
        let config = plain(Curve::Exponential).between(MS(base), MS(base * 50));
        let entropy = Entropy::from_seed(seed);
        let at = |jitter| Backoff::new(config.jitter(jitter), &entropy).unwrap().nth(k - 1).unwrap();
        let full = config.delay(k as u32);
        prop_assert!(at(Jitter::Full) <= full);
        prop_assert!((full / 2..=full).contains(&at(Jitter::Equal)));
        prop_assert!((MS(base)..=config.cap).contains(&at(Jitter::Decorrelated)));
    }
}

/// One hundred clients that each must write the same row once, and of those that write at the same time one alone succeeds: the
/// contention simulation of Brooker's article. Returns the number of calls, and the time until all are done.
fn contention(jitter: Jitter, seed: u64) -> (usize, Duration) {
    const CLIENTS: usize = 100;
    let entropy = Entropy::from_seed(seed);
    // The network takes 10 ms each way, and 2 ms more or less (normally distributed).
    let network = || {
        let sum: f64 = (0..12).map(|_| entropy.unit()).sum();
        Duration::from_secs_f64((10.0 + (sum - 6.0) * 2.0).max(0.0) / 1e3)
    };
    let config = BackoffConfig::default().between(MS(5), MS(2000)).jitter(jitter);
    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    enum At {
        Read,
        Write { version: u64 },
    }
    let mut backoffs: Vec<_> = (0..CLIENTS).map(|_| Backoff::new(config, &entropy).unwrap()).collect();
    let mut queue = BinaryHeap::new();
    let push = |queue: &mut BinaryHeap<_>, at: Duration, client: usize, what: At| {
        queue.push(std::cmp::Reverse((at, client, what)));
    };
    for client in 0..CLIENTS {
        push(&mut queue, network(), client, At::Read);
    }
    let (mut version, mut writes, mut end) = (0, 0, Duration::ZERO);
    while let Some(std::cmp::Reverse((now, client, what))) = queue.pop() {
        match what {
            At::Read => push(&mut queue, now + network() + network(), client, At::Write { version }),
            At::Write { version: seen } => {
                writes += 1;
                if seen == version {
                    version += 1;
                    end = end.max(now + network());
                } else {
                    let delay = backoffs[client].next().unwrap();
                    push(&mut queue, now + network() + delay + network(), client, At::Read);
                }
            }
        }
    }
    (writes, end)
}

/// The article's order: without jitter by far the most calls and the longest; full and decorrelated the fewest and shortest. Our
/// figures for the same setting, over ten seeds, are printed; `cargo test backoff -- --nocapture` shows them.
#[test]
fn retry_2_jitter_takes_the_contention_away() {
    let mean = |jitter| {
        let runs: Vec<_> = (0..10).map(|seed| contention(jitter, seed)).collect();
        let calls = runs.iter().map(|(calls, _)| calls).sum::<usize>() / 10;
        let time = runs.iter().map(|(_, time)| *time).sum::<Duration>() / 10;
        println!("{jitter:?}: {calls} calls, {time:?}");
        (calls, time)
    };
    let (none, equal, full) = (mean(Jitter::None), mean(Jitter::Equal), mean(Jitter::Full));
    let decorrelated = mean(Jitter::Decorrelated);
    assert!(none.0 > 3 * full.0 / 2 && none.0 > 3 * decorrelated.0 / 2);
    assert!(none.1 > 3 * full.1 && none.1 > equal.1);
    assert!(full.1 < equal.1);
}
