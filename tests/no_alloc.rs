//! On the success path nothing is allocated, nor where an open breaker or a limit refuses.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]
use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use steadfast::{
    Pipeline,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter, KeyedRateLimiter, Quota, RateLimiter},
    timeout::Timeout,
};

fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("nothing here waits"),
    }
}

fn allocations(work: impl FnMut()) -> u64 {
    let mut work = work;
    work(); // what is made once is made now
    allocation_counter::measure(|| (0..100).for_each(|_| work())).count_total
}

const PLENTY: Quota = Quota::per_second(1_000_000);

#[test]
fn ground_a_call_that_succeeds_allocates_nothing() {
    let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap().named("db");
    let budget = RetryBudget::new(RetryBudgetConfig::default()).unwrap();
    let pipeline = Pipeline::new()
        .named("all of them")
        .then(Timeout::new(Duration::from_secs(2)).named("total"))
        .then(RateLimiter::new(PLENTY).unwrap())
        .then(ConcurrencyLimiter::new(ConcurrencyLimitConfig::default()).unwrap())
        .then(Retry::new(RetryConfig::default()).unwrap().with_budget(&budget))
        .then(breaker)
        .then(Timeout::new(Duration::from_secs(1)));
    assert_eq!(allocations(|| assert!(now(pipeline.call(|| async { Ok::<_, ()>(1) })).is_ok())), 0);
}

#[test]
fn breaker_4_a_rejection_allocates_nothing() {
    let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap().named("db");
    breaker.force_open(Duration::from_secs(3600));
    assert_eq!(allocations(|| assert!(now(breaker.call(|| async { Ok::<_, ()>(1) })).is_err())), 0);
    assert_eq!(allocations(|| assert!(breaker.try_acquire().is_err())), 0);
}

#[test]
fn throttling_1_a_refusal_allocates_nothing() {
    let limiter = RateLimiter::new(Quota::per_minute(1)).unwrap().named("api");
    assert_eq!(allocations(|| drop(limiter.check())), 0);
    assert!(limiter.check().is_err());
}

/// A keyed limiter of 1,000,000 keys: at most 200 bytes a key.
#[test]
fn throttling_1_a_million_keys_fit() {
    let limiter = KeyedRateLimiter::new(Quota::per_minute(1)).unwrap();
    let used = allocation_counter::measure(|| {
        for key in 0..1_000_000u64 {
            limiter.check(&key).unwrap();
        }
    });
    let per_key = used.bytes_current as f64 / 1e6;
    println!("{per_key:.1} bytes a key");
    assert!((16.0..=200.0).contains(&per_key), "{per_key}");
}
