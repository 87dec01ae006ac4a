//! What does each policy cost a call that succeeds at once, and the stack of four? `cargo bench --bench cost`.
//!
//! Beside the others stands the same work with nothing around it. For our figures beside rivals' see `benches/peers`.
#![allow(missing_docs, clippy::unwrap_used, reason = "a bench has no readers from outside")]
use std::{
    future::Future,
    hint::black_box,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use divan::{AllocProfiler, Bencher};
use steadfast::{
    Pipeline,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, KeyedBreakers},
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    standard::{Standard, StandardConfig},
    throttling::{
        AdaptiveLimitConfig, AdaptiveLimiter, ClientThrottle, ClientThrottleConfig, ConcurrencyLimitConfig,
        ConcurrencyLimiter, KeyedRateLimiter, Quota, RateLimiter, Shedder, ShedderConfig,
    },
    time::Clock,
    timeout::Timeout,
};

#[global_allocator]
static ALLOCATIONS: AllocProfiler = AllocProfiler::system();

fn main() {
    // Calibrates the counter before anything is measured.
    black_box(Clock::quanta().now());
    divan::main();
}

/// Polls a future that is ready at once.
fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("nothing here waits"),
    }
}

async fn work() -> Result<u32, std::io::Error> {
    Ok(black_box(7))
}

fn breaker() -> CircuitBreaker {
    CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap()
}

fn retry() -> Retry {
    Retry::new(RetryConfig::default()).unwrap()
}

fn timeout() -> Timeout {
    Timeout::new(Duration::from_secs(1))
}

/// So much that no check is refused.
const PLENTY: Quota = Quota::per_second(1_000_000_000).burst(1_000_000_000);

#[divan::bench]
fn nothing(bencher: Bencher<'_, '_>) {
    bencher.bench(|| now(work()));
}

mod calls {
    use super::*;

    #[divan::bench(threads = [1, 2])]
    fn timeout_around(bencher: Bencher<'_, '_>) {
        let policy = timeout();
        bencher.bench(|| now(policy.call(work)));
    }

    #[divan::bench(threads = [1, 2])]
    fn retry_around(bencher: Bencher<'_, '_>) {
        let policy = retry();
        bencher.bench(|| now(policy.call(work)));
    }

    #[divan::bench(threads = [1, 2])]
    fn retry_with_budget(bencher: Bencher<'_, '_>) {
        let policy = Retry::builder(RetryConfig::default())
            .budget(&RetryBudget::new(RetryBudgetConfig::default()).unwrap())
            .build()
            .unwrap();
        bencher.bench(|| now(policy.call(work)));
    }

    #[divan::bench(threads = [1, 2])]
    fn breaker_closed(bencher: Bencher<'_, '_>) {
        let policy = breaker();
        bencher.bench(|| now(policy.call(work)));
    }

    #[divan::bench(threads = [1, 2])]
    fn breaker_time_window(bencher: Bencher<'_, '_>) {
        let config = CircuitBreakerConfig::default().time_window(Duration::from_secs(10), 10, 20);
        let policy = CircuitBreaker::builder(config).clock(&Clock::quanta()).build().unwrap();
        bencher.bench(|| now(policy.call(work)));
    }

    #[divan::bench(threads = [1, 2])]
    fn breaker_of_a_key(bencher: Bencher<'_, '_>) {
        let registry = KeyedBreakers::new(CircuitBreakerConfig::default()).unwrap();
        (0..10_000u64).for_each(|key| drop(registry.get(&key)));
        bencher.bench(|| now(registry.get(black_box(&7)).call(work)));
    }

    #[divan::bench(threads = [1, 2])]
    fn breaker_open(bencher: Bencher<'_, '_>) {
        let policy = breaker();
        policy.force_open(Duration::from_secs(3600));
        bencher.bench(|| now(policy.call(work)).is_err());
    }

    #[divan::bench(threads = [1, 2])]
    fn stack_of_four(bencher: Bencher<'_, '_>) {
        let pipeline = Pipeline::new().then(timeout()).then(retry()).then(breaker()).then(timeout());
        bencher.bench(|| now(pipeline.call(work)));
    }

    #[divan::bench(threads = [1, 2])]
    fn stack_of_four_blocking(bencher: Bencher<'_, '_>) {
        let pipeline = Pipeline::new().then(timeout()).then(retry()).then(breaker()).then(timeout());
        bencher.bench(|| pipeline.call_blocking(|| Ok::<_, std::io::Error>(black_box(7))));
    }

    #[divan::bench(threads = [1, 2])]
    fn standard_stack(bencher: Bencher<'_, '_>) {
        let pipeline =
            Standard::builder(StandardConfig::default()).clock(&Clock::quanta()).build().unwrap().into_pipeline();
        bencher.bench(|| now(pipeline.call(work)));
    }

    #[divan::bench]
    fn boxed_stack_of_four(bencher: Bencher<'_, '_>) {
        let pipeline = Pipeline::new().then(timeout()).then(retry()).then(breaker()).then(timeout()).boxed();
        bencher.bench(|| now(pipeline.call(work)));
    }
}

mod checks {
    use super::*;

    #[divan::bench(threads = [1, 2])]
    fn rate_limit(bencher: Bencher<'_, '_>) {
        let limiter = RateLimiter::builder(PLENTY).clock(&Clock::quanta()).build().unwrap();
        bencher.bench(|| limiter.try_acquire());
    }

    #[divan::bench(threads = [1, 2])]
    fn rate_limit_tokio_clock(bencher: Bencher<'_, '_>) {
        let limiter = RateLimiter::new(PLENTY).unwrap();
        bencher.bench(|| limiter.try_acquire());
    }

    #[divan::bench(threads = [1, 2])]
    fn keyed_rate_limit(bencher: Bencher<'_, '_>) {
        let limiter = KeyedRateLimiter::builder(PLENTY).clock(&Clock::quanta()).build().unwrap();
        bencher.bench(|| limiter.try_acquire(black_box(&7u64)));
    }

    #[divan::bench(threads = [1, 2])]
    fn concurrency_permit(bencher: Bencher<'_, '_>) {
        let limiter = ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(64)).unwrap();
        bencher.bench(|| drop(limiter.try_acquire()));
    }

    #[divan::bench(threads = [1, 2])]
    fn adaptive_limit(bencher: Bencher<'_, '_>) {
        let limiter = AdaptiveLimiter::builder(AdaptiveLimitConfig::default()).clock(&Clock::quanta()).build().unwrap();
        bencher.bench(|| now(limiter.call(work)));
    }

    #[divan::bench(threads = [1, 2])]
    fn client_throttle(bencher: Bencher<'_, '_>) {
        let throttle =
            ClientThrottle::builder(ClientThrottleConfig::default()).clock(&Clock::quanta()).build().unwrap();
        bencher.bench(|| now(throttle.call(work)));
    }

    #[divan::bench(threads = [1, 2])]
    fn shedder(bencher: Bencher<'_, '_>) {
        let shedder = Shedder::builder(ShedderConfig::default().limit("cpu", 0.7, 0.9))
            .clock(&Clock::quanta())
            .gauge("cpu", || 0.5)
            .build()
            .unwrap();
        bencher.bench(|| now(shedder.call(work)));
    }
}
