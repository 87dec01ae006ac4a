//! The memory that a remembered key costs. A separate binary, since it counts every allocation.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]
use std::time::Duration;

use steadfast::{
    throttling::{KeyedRateLimiter, Quota},
    time::Clock,
};

/// Returns the peak memory of the limiter in bytes per key. The keys are made before the count
/// begins.
fn bytes_a_key<K: std::hash::Hash + Eq + Clone>(keys: &[K]) -> u64 {
    let (clock, _hand) = Clock::manual();
    let limiter = KeyedRateLimiter::builder(Quota::per_second(1)).clock(&clock).build().unwrap();
    let used = allocation_counter::measure(|| keys.iter().for_each(|key| limiter.try_acquire(key).unwrap()));
    assert_eq!(limiter.len(), keys.len());
    used.bytes_max / keys.len() as u64
}

// Guarantee: throttling 8.
#[test]
fn a_million_keys_take_at_most_200_bytes_each() {
    let keys: Vec<u64> = (0..1_000_000).collect();
    let bytes = bytes_a_key(&keys);
    assert!(bytes <= 64, "{bytes} bytes a key");
}

// Guarantee: throttling 8.
/// At every size, also just after the tables have doubled, and with keys that hold text.
#[test]
fn a_key_of_text_takes_at_most_200_bytes() {
    for n in [20_000, 57_000, 58_000, 60_000, 100_000, 115_000, 120_000] {
        let keys: Vec<String> = (0..n).map(|i| format!("tenant-{i:024}")).collect();
        let bytes = bytes_a_key(&keys);
        assert!(bytes <= 200, "{bytes} bytes a key of {n}");
    }
}

// Guarantee: throttling 8.
/// Traffic from ever new keys uses the memory of the busy ones, however long it goes on.
#[test]
fn memory_is_bounded_by_the_keys_that_are_not_idle() {
    let (clock, time) = Clock::manual();
    let limiter = KeyedRateLimiter::builder(Quota::per_second(1)).clock(&clock).build().unwrap();
    let mut key = 0u64;
    let mut bytes = 0;
    for _ in 0..30 {
        let used = allocation_counter::measure(|| {
            for _ in 0..10_000 {
                key += 1;
                limiter.try_acquire(&key).unwrap();
                time.advance(Duration::from_micros(100)); // so that 10,000 are within the second
            }
        });
        bytes += used.bytes_current;
    }
    assert!(bytes <= 200 * 10_000, "{bytes} bytes");
    time.advance(Duration::from_secs(1));
    limiter.forget_idle();
    assert!(limiter.is_empty());
}
