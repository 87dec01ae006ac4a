//! Memory per key of a registry of breakers. A binary of its own, because it counts every
//! allocation.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]
use std::hash::Hash;

use steadfast::{
    FailureKind, Verdict,
    circuit_breaker::{CircuitBreakerConfig, KeyedBreakers, State},
    time::Clock,
};

const MIB: u64 = 1 << 20;

/// Returns the maximum number of bytes that a registry held for these keys, each after one
/// successful call. The keys are created before the count begins.
fn bytes<K: Hash + Eq + Clone>(keys: &[K], config: CircuitBreakerConfig) -> u64 {
    let (clock, _hand) = Clock::manual();
    let registry = KeyedBreakers::builder(config).clock(&clock).name("api").build().unwrap();
    let used = allocation_counter::measure(|| {
        for key in keys {
            registry.get(key).try_acquire().unwrap().record(Verdict::success());
        }
    });
    assert_eq!(registry.len(), keys.len());
    used.bytes_max
}

// Guarantee: circuit_breaker 10.
#[test]
fn a_million_keys_fit_in_200_mib() {
    let keys: Vec<u64> = (0..1_000_000).collect();
    let most = bytes(&keys, CircuitBreakerConfig::default());
    println!("{:.1} MiB for a million numbers", most as f64 / MIB as f64);
    assert!(most <= 200 * MIB, "{most} bytes");
}

// Guarantee: circuit_breaker 10.
/// Names of hosts: 24 bytes each, and their text.
#[test]
fn a_million_keys_of_text_fit_in_200_mib_beside_their_text() {
    let keys: Vec<String> = (0..1_000_000).map(|i| format!("10.{}.{}.{}", i >> 16, i >> 8 & 255, i & 255)).collect();
    let text: usize = keys.iter().map(String::len).sum();
    let most = bytes(&keys, CircuitBreakerConfig::default());
    println!("{:.1} MiB for a million names, {:.1} of them text", most as f64 / MIB as f64, text as f64 / MIB as f64);
    assert!(most - text as u64 <= 200 * MIB, "{most} bytes, {text} of them text");
}

// Guarantee: circuit_breaker 10.
/// A key with failures takes more, but little enough for all of them to be open.
#[test]
fn an_open_key_takes_at_most_a_kilobyte() {
    let (clock, _hand) = Clock::manual();
    let registry =
        KeyedBreakers::builder(CircuitBreakerConfig::default().count_window(2, 2)).clock(&clock).build().unwrap();
    let used = allocation_counter::measure(|| {
        for key in 0..10_000u32 {
            let breaker = registry.get(&key);
            (0..2).for_each(|_| breaker.try_acquire().unwrap().record(Verdict::failure(FailureKind::Server)));
            assert!(breaker.try_acquire().is_err());
        }
    });
    assert_eq!(registry.states()[usize::from(State::Open.number())], 10_000);
    let bytes = used.bytes_max / 10_000;
    println!("{bytes} bytes an open key");
    assert!(bytes <= 1024, "{bytes} bytes");
}

// Guarantee: circuit_breaker 10.
/// Replacing the configuration makes no healthy key larger.
#[test]
fn a_new_configuration_takes_no_memory_per_healthy_key() {
    let (clock, _hand) = Clock::manual();
    let registry = KeyedBreakers::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap();
    (0..100_000u32).for_each(|key| registry.get(&key).try_acquire().unwrap().record(Verdict::success()));
    let used = allocation_counter::measure(|| {
        registry.reconfigure(CircuitBreakerConfig::default().count_window(50, 10)).unwrap();
    });
    assert!(used.bytes_max < 10_000, "{} bytes", used.bytes_max);
    assert_eq!(registry.get(&7).snapshot().calls, 1);
}
