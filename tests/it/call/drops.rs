//! Public futures, dropped at every await point in turn: all counters are conserved.
use std::time::Duration;

use steadfast::{
    Pipeline,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State},
    retry::{Retry, RetryConfig},
    standard::{Standard, StandardConfig},
    testing::{ScriptedService, drop_at_every_await},
    throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter, Quota, RateLimitConfig, RateLimiter},
    time::Clock,
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

// Guarantee: call 5.
#[test]
fn a_dropped_probe_returns_its_permit_to_a_half_open_breaker() {
    let (clock, time) = Clock::manual();
    let config = CircuitBreakerConfig::default().half_open_calls(1, 1.0);
    let breaker = CircuitBreaker::builder(config).clock(&clock).build().unwrap();
    breaker.force_open(MS(1));
    time.advance(MS(1));
    let service = ScriptedService::new("ok in 1s", &clock).unwrap();
    let polls = drop_at_every_await(
        &time,
        || breaker.call(|| service.call()),
        |polls| {
            assert_eq!(service.running(), 0);
            match breaker.state() {
                State::HalfOpen => assert!(breaker.try_acquire().is_ok(), "the place is free again"),
                State::Open => assert_eq!(polls, 0),
                state => assert_eq!((polls, state), (2, State::Closed)),
            }
        },
    );
    assert_eq!(polls, 2);
}

// Guarantee: call 5.
#[test]
fn dropped_calls_return_the_permits_and_queue_places_of_a_limiter() {
    let (clock, time) = Clock::manual();
    let limiter = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(2).queue(1).max_wait(MS(5000)))
        .clock(&clock)
        .build()
        .unwrap();
    let taken = [limiter.try_acquire().unwrap(), limiter.try_acquire().unwrap()];
    // Waits in the queue until its maximum wait ends.
    let polls = drop_at_every_await(
        &time,
        || limiter.acquire(),
        |_| assert_eq!((limiter.available(), limiter.waiting()), (0, 0)),
    );
    assert_eq!(polls, 2);
    drop(taken);
    let service = ScriptedService::new("ok in 1s", &clock).unwrap();
    drop_at_every_await(&time, || limiter.call(|| service.call()), |_| assert_eq!(limiter.available(), 2));
}

// Guarantee: call 5.
#[test]
fn a_dropped_wait_returns_its_slot_of_a_rate_limit() {
    for config in [Quota::per_second(1).into(), RateLimitConfig::from(Quota::per_second(1)).strict()] {
        let (clock, time) = Clock::manual();
        let limiter = RateLimiter::builder(config).clock(&clock).build().unwrap();
        limiter.try_acquire().unwrap();
        let start = time.now();
        let polls = drop_at_every_await(
            &time,
            || limiter.acquire(),
            |polls| {
                if polls < 2 {
                    // Nothing is reserved beyond the permit that was taken first.
                    assert_eq!(limiter.try_acquire().unwrap_err().retry_after(), Some(MS(1000)));
                    assert_eq!(time.now(), start);
                }
            },
        );
        assert_eq!(polls, 2);
    }
}

// Guarantee: call 5.
#[test]
fn a_dropped_retry_drops_its_attempt_and_starts_no_other() {
    let (clock, time) = Clock::manual();
    let service = ScriptedService::new("503 in 10ms", &clock).unwrap();
    let retry = Retry::builder(RetryConfig::default().idempotent(true))
        .clock(&clock)
        .delays(|| [MS(5), MS(5)].into_iter())
        .build()
        .unwrap();
    let mut calls = Vec::new();
    drop_at_every_await(
        &time,
        || retry.call(|| service.call()),
        |_| {
            assert_eq!(service.running(), 0);
            calls.push(service.calls());
        },
    );
    let made: Vec<usize> = calls.iter().scan(0, |before, now| Some(now - std::mem::replace(before, *now))).collect();
    assert_eq!(made, [0, 1, 1, 2, 2, 3, 3]);
}

// Guarantee: call 5.
#[test]
fn a_dropped_call_through_a_full_stack_returns_all_permits() {
    let (clock, time) = Clock::manual();
    let config = StandardConfig::default()
        .retry(RetryConfig::default().idempotent(true))
        .rate_limit(RateLimitConfig::from(Quota::per_second(10).burst(1)).max_wait(MS(10_000)))
        .concurrency_limit(ConcurrencyLimitConfig::of(1))
        .circuit_breaker(CircuitBreakerConfig::default().count_window(10, 10));
    let stack = Standard::builder(config).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(stack.clone()).classify(ScriptedService::classify);
    let service = ScriptedService::new("503 in 10ms, ok in 10ms, reset, ok in 20ms, hang", &clock).unwrap();
    let polls = drop_at_every_await(
        &time,
        || pipeline.call(|| service.call()),
        |_| {
            assert_eq!(stack.concurrency_limit().unwrap().available(), 1);
            assert_eq!(service.running(), 0);
        },
    );
    assert!(polls > 4, "{polls}");
    assert_eq!(service.most_running(), 1);
}

// Guarantee: call 5.
#[test]
fn a_dropped_time_out_drops_its_work() {
    let (clock, time) = Clock::manual();
    let timeout = Timeout::builder(MS(100)).clock(&clock).build();
    let service = ScriptedService::new("hang", &clock).unwrap();
    let polls = drop_at_every_await(&time, || timeout.call(|| service.call()), |_| assert_eq!(service.running(), 0));
    assert_eq!((polls, service.dropped()), (2, service.calls()));
}
