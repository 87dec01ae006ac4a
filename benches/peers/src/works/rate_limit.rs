//! Rate limit, direct: one limiter, one permit a check.
//!
//! Allowed: 10^9 a second with as large a burst, so that no loop can drain it. Denied: one an hour, spent beforehand.

use super::{Subject, Work, beside, call_loop, instance, leak, operation, ours, poll_loop, rival};
use governor::{Quota, RateLimiter};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};
use steadfast::time::Clock;
use tower::{Layer, Service, ServiceExt};
use tower_resilience::ratelimiter::RateLimiterLayer;

pub const ALLOWED: Work = Work { name: "rate_limit", about: "a check that is allowed", subjects: allowed, light: true };
pub const DENIED: Work =
    Work { name: "rate_limit_denied", about: "a check that is denied", subjects: denied, light: true };

const BILLION: NonZeroU32 = NonZeroU32::new(1_000_000_000).unwrap();

fn steadfast(quota: steadfast::throttling::Quota, clock: &Clock) -> steadfast::throttling::RateLimiter {
    steadfast::throttling::RateLimiter::builder(quota).clock(clock).build().expect("a valid configuration")
}

/// One permit an hour, taken.
fn spent(clock: &Clock) -> steadfast::throttling::RateLimiter {
    let limiter = steadfast(steadfast::throttling::Quota::new(1, Duration::from_secs(3600)), clock);
    assert!(limiter.try_acquire().is_ok());
    assert!(limiter.try_acquire().is_err());
    limiter
}

fn allowed() -> Vec<Subject> {
    vec![
        ours("steadfast (quanta clock)", || {
            let limiter = leak(steadfast(steadfast::throttling::Quota::per_second(BILLION.get()), &Clock::quanta()));
            assert!(limiter.try_acquire().is_ok());
            instance(move |_| call_loop(move || black_box(limiter).try_acquire()))
        }),
        // On the default clock.
        beside("steadfast (tokio clock)", || {
            let limiter = leak(steadfast(steadfast::throttling::Quota::per_second(BILLION.get()), &Clock::tokio()));
            assert!(limiter.try_acquire().is_ok());
            instance(move |_| call_loop(move || black_box(limiter).try_acquire()))
        }),
        // GCRA on the time-stamp counter.
        rival("governor 0.10 (quanta)", || {
            let limiter = leak(RateLimiter::direct(Quota::per_second(BILLION)));
            assert!(limiter.check().is_ok());
            instance(move |_| call_loop(move || black_box(limiter).check()))
        }),
        // Fixed window, around the operation: it has no check of its own.
        rival("tower-resilience 0.13 fixed window", || {
            let layer = RateLimiterLayer::builder()
                .limit_for_period(BILLION.get() as usize)
                .refresh_period(Duration::from_secs(1))
                .timeout_duration(Duration::ZERO)
                .build()
                .expect("a valid configuration");
            let service = layer.layer(tower::service_fn(|(): ()| operation()));
            instance(move |_| {
                let mut service = service.clone();
                poll_loop(async move || black_box(&mut service).ready().await?.call(()).await)
            })
        }),
        beside("(floor) read the std clock", || instance(|_| call_loop(Instant::now))),
    ]
}

fn denied() -> Vec<Subject> {
    vec![
        ours("steadfast (quanta clock)", || {
            let limiter = leak(spent(&Clock::quanta()));
            instance(move |_| call_loop(move || black_box(limiter).try_acquire()))
        }),
        // On the default clock.
        beside("steadfast (tokio clock)", || {
            let limiter = leak(spent(&Clock::tokio()));
            instance(move |_| call_loop(move || black_box(limiter).try_acquire()))
        }),
        rival("governor 0.10 (quanta)", || {
            let limiter = leak(RateLimiter::direct(Quota::per_hour(NonZeroU32::MIN)));
            assert!(limiter.check().is_ok());
            assert!(limiter.check().is_err());
            instance(move |_| call_loop(move || black_box(limiter).check()))
        }),
        rival("tower-resilience 0.13 fixed window", || {
            let layer = RateLimiterLayer::builder()
                .limit_for_period(1)
                .refresh_period(Duration::from_secs(3600))
                .timeout_duration(Duration::ZERO)
                .build()
                .expect("a valid configuration");
            let service = layer.layer(tower::service_fn(|(): ()| operation()));
            instance(move |_| {
                let mut service = service.clone();
                poll_loop(async move || black_box(&mut service).ready().await?.call(()).await)
            })
        }),
        beside("(floor) read the std clock", || instance(|_| call_loop(Instant::now))),
    ]
}
