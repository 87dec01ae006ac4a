//! The future of a call stores the operation and its future once.
//!
//! An `async fn` stores an argument twice if it moves it into a local, and a caller's future grows
//! with each such function around it. Sizes are compared with the operation alone.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "tests")]
use std::{
    future::{Future, ready},
    hint::black_box,
    time::Duration,
};

use steadfast::{
    Pipeline,
    chaos::{Chaos, ChaosConfig},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
    fallback::{Fallback, FallbackConfig},
    hedge::{Hedge, HedgeConfig},
    retry::{Retry, RetryConfig},
    standard::{Standard, StandardConfig},
    throttling::{
        AdaptiveLimitConfig, AdaptiveLimiter, ClientThrottle, ClientThrottleConfig, ConcurrencyLimitConfig,
        ConcurrencyLimiter, Quota, RateLimiter,
    },
    timeout::Timeout,
};

/// The future of an operation that keeps `N` bytes across an `.await`.
async fn wide<const N: usize>() -> Result<u32, ()> {
    let bytes = [black_box(7_u8); N];
    tokio::task::yield_now().await;
    Ok(u32::from(*black_box(&bytes).last().unwrap()))
}

/// An operation that owns `N` bytes, whose future is small.
fn owner<const N: usize>() -> impl FnMut() -> std::future::Ready<Result<u32, ()>> + Send {
    let bytes = [7_u8; N];
    move || ready(Ok(u32::from(*black_box(&bytes).last().unwrap())))
}

/// The sizes of calls as multiples of the operation's.
struct Sizes(Vec<(&'static str, &'static str, usize, f64)>);

impl Sizes {
    fn add(&mut self, call: &'static str, operation: &'static str, of: usize, future: &impl Future) {
        let size = size_of_val(future);
        self.0.push((call, operation, size, size as f64 / of as f64));
    }
}

macro_rules! sizes {
    ($($name:literal $calls:expr;)*) => {{
        let mut sizes = Sizes(Vec::new());
        $({
            let calls = $calls;
            sizes.add($name, "future of 1 KiB", size_of_val(&wide::<1024>()), &calls.call(wide::<1024>));
            sizes.add($name, "future of 4 KiB", size_of_val(&wide::<4096>()), &calls.call(wide::<4096>));
            sizes.add($name, "operation of 1 KiB", size_of_val(&owner::<1024>()), &calls.call(owner::<1024>()));
            sizes.add($name, "operation of 4 KiB", size_of_val(&owner::<4096>()), &calls.call(owner::<4096>()));
        })*
        sizes.0
    }};
}

fn timeout() -> Timeout {
    Timeout::new(Duration::from_secs(1))
}

fn retry() -> Retry {
    Retry::new(RetryConfig::default()).unwrap()
}

fn breaker() -> CircuitBreaker {
    CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap()
}

fn rate() -> RateLimiter {
    RateLimiter::new(Quota::per_second(100)).unwrap()
}

fn concurrency() -> ConcurrencyLimiter {
    ConcurrencyLimiter::new(ConcurrencyLimitConfig::default()).unwrap()
}

fn hedge() -> Hedge {
    Hedge::new(HedgeConfig::default()).unwrap()
}

#[test]
fn the_future_of_a_call_is_little_larger_than_the_operation() {
    let sizes = sizes! {
        "empty pipeline" Pipeline::new();
        "empty boxed pipeline" Pipeline::new().boxed();
        "pipeline of a time-out" Pipeline::new().then(timeout());
        "pipeline of a retry" Pipeline::new().then(retry());
        "pipeline of a breaker" Pipeline::new().then(breaker());
        "pipeline of a rate limit" Pipeline::new().then(rate());
        "pipeline of a concurrency limit" Pipeline::new().then(concurrency());
        "pipeline of a hedge" Pipeline::new().then(hedge());
        "pipeline of a fallback" Pipeline::new().then(Fallback::new(FallbackConfig::default()).unwrap());
        "pipeline of an adaptive limit" Pipeline::new().then(AdaptiveLimiter::new(AdaptiveLimitConfig::default()).unwrap());
        "pipeline of a client throttle" Pipeline::new().then(ClientThrottle::new(ClientThrottleConfig::default()).unwrap());
        "pipeline of chaos" Pipeline::new().then(Chaos::new(ChaosConfig::default()).unwrap());
        "stack of four" Pipeline::new().then(timeout()).then(retry()).then(breaker()).then(timeout());
        "standard stack" Pipeline::new().then(Standard::new(StandardConfig::default()).unwrap());
        "time-out" timeout();
        "retry" retry();
        "breaker" breaker();
        "rate limit" rate();
        "concurrency limit" concurrency();
        "hedge" hedge();
        "adaptive limit" AdaptiveLimiter::new(AdaptiveLimitConfig::default()).unwrap();
        "client throttle" ClientThrottle::new(ClientThrottleConfig::default()).unwrap();
    };
    let mut failed = Vec::new();
    for (call, operation, size, ratio) in sizes {
        println!("{call:32} {operation:18} {size:6} bytes, {ratio:.2} times");
        // What a policy itself needs weighs less beside a large operation.
        if operation.ends_with("4 KiB") && ratio > 1.5 {
            failed.push(format!("{call}, {operation}: {ratio:.2}"));
        }
    }
    assert_eq!(failed, Vec::<String>::new());
}
