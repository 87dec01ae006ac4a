//! Time windows with full buckets.
#![allow(clippy::unwrap_used, reason = "tests")]
use std::time::Duration;

use super::super::{CircuitBreaker, CircuitBreakerConfig, State, state::Word};
use crate::{
    outcome::{FailureKind, TripRule, Verdict},
    sync::Ordering,
    time::Clock,
};

fn success() -> Verdict {
    Verdict::success()
}

fn failure() -> Verdict {
    Verdict::failure(FailureKind::Server)
}

fn record(breaker: &CircuitBreaker, verdict: Verdict) {
    if let Ok(permit) = breaker.try_acquire() {
        permit.record(verdict);
    }
}

/// Returns a breaker whose current bucket is full, with this share of failures.
fn full(failed: f64) -> CircuitBreaker {
    let (clock, time) = Clock::manual();
    time.advance(Duration::from_secs(100));
    let config = CircuitBreakerConfig::default().time_window(Duration::from_secs(3_600), 10, 20);
    let breaker = CircuitBreaker::builder(config).clock(&clock).build().unwrap();
    // One of each, so that the window has a failure.
    record(&breaker, success());
    record(&breaker, failure());
    let core = &breaker.0.core;
    let (now, generation) = (clock.now(), core.word.load(Ordering::Acquire));
    let generation = Word(generation).generation();
    let rates = core.tally.rates.at(0).unwrap();
    while rates.calls.has_room(generation, now) {
        let room = ((1 << 24) - 1 - rates.calls.sum(generation, now)) as u32;
        rates.calls.add(generation, now, room);
    }
    while (rates.failures.sum(generation, now) as f64) < failed * 16_777_215.0 {
        let more = failed * 16_777_215.0 - rates.failures.sum(generation, now) as f64;
        rates.failures.add(generation, now, more.ceil() as u32);
    }
    breaker
}

/// Regression: once a bucket was full its rate no longer changed, so that an outage in the rest of
/// its time was not detected.
#[test]
fn an_outage_is_detected_after_any_number_of_calls() {
    let breaker = full(0.4999);
    let mut transitions = breaker.transitions();
    let mut failures = 0;
    while breaker.state() == State::Closed {
        record(&breaker, failure());
        failures += 1;
        assert!(failures < 10_000, "{:?}", breaker.snapshot());
    }
    // A ten-thousandth of what the bucket holds after it was halved, and as much again.
    assert!((1_600..=1_800).contains(&failures), "{failures}");
    let opened = transitions.try_recv().unwrap().unwrap();
    assert!(format!("{:?}", opened.what).contains(&format!("{:?}", TripRule::FailureRate)));
}

#[test]
fn successes_halve_a_full_bucket_and_lower_its_rate() {
    let breaker = full(0.4);
    let counts = |breaker: &CircuitBreaker| {
        let (calls, failed) = (breaker.snapshot().calls as f64, breaker.snapshot().failures as f64);
        (calls, failed / calls)
    };
    let (most, rate) = counts(&breaker);
    for _ in 0..100_000 {
        record(&breaker, success());
    }
    let (calls, after) = counts(&breaker);
    assert!(calls < most * 0.6 && after < rate - 0.003 && after > rate - 0.006, "{most} {rate} {calls} {after}");
    assert_eq!(breaker.state(), State::Closed);
}
