//! Concurrency permit: take one of 64 and give it back. The async door waits its turn, `try` never waits.

use super::{Subject, Work, call_loop, instance, leak, operation, ours, poll_loop, rival};
use std::hint::black_box;
use std::sync::Arc;
use steadfast::throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter};
use tokio::sync::Semaphore;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_resilience::bulkhead::BulkheadLayer;

pub const ACQUIRE: Work =
    Work { name: "permit", about: "wait for a permit that is free, and give it back", subjects: acquire, light: true };
pub const TRY_ACQUIRE: Work = Work {
    name: "permit_try",
    about: "try to take a permit that is free, and give it back",
    subjects: try_acquire,
    light: true,
};

const PERMITS: usize = 64;

fn steadfast() -> ConcurrencyLimiter {
    ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(PERMITS as u32)).expect("a valid configuration")
}

fn acquire() -> Vec<Subject> {
    vec![
        ours("steadfast acquire", || {
            let limiter = leak(steadfast());
            instance(move |_| poll_loop(async move || black_box(limiter).acquire().await.map(drop)))
        }),
        rival("tokio Semaphore acquire", || {
            let semaphore = leak(Semaphore::new(PERMITS));
            instance(move |_| poll_loop(async move || black_box(semaphore).acquire().await.map(drop)))
        }),
        rival("tokio Semaphore acquire_owned", || {
            let semaphore = leak(Arc::new(Semaphore::new(PERMITS)));
            instance(move |_| poll_loop(async move || black_box(semaphore).clone().acquire_owned().await.map(drop)))
        }),
        // Around the operation: they have no door of their own.
        rival("tower 0.5 ConcurrencyLimit", || {
            let service = ServiceBuilder::new().concurrency_limit(PERMITS).service_fn(|(): ()| operation());
            instance(move |_| {
                let mut service = service.clone();
                poll_loop(async move || black_box(&mut service).ready().await?.call(()).await)
            })
        }),
        rival("tower-resilience 0.13 bulkhead", || {
            let layer = BulkheadLayer::builder().max_concurrent_calls(PERMITS).build().expect("a valid configuration");
            let service = layer.layer(tower::service_fn(|(): ()| operation()));
            instance(move |_| {
                let mut service = service.clone();
                poll_loop(async move || black_box(&mut service).ready().await?.call(()).await)
            })
        }),
    ]
}

fn try_acquire() -> Vec<Subject> {
    vec![
        ours("steadfast try_acquire", || {
            let limiter = leak(steadfast());
            instance(move |_| call_loop(move || black_box(limiter).try_acquire().map(drop)))
        }),
        rival("tokio Semaphore try_acquire", || {
            let semaphore = leak(Semaphore::new(PERMITS));
            instance(move |_| call_loop(move || black_box(semaphore).try_acquire().map(drop)))
        }),
        rival("tokio Semaphore try_acquire_owned", || {
            let semaphore = leak(Arc::new(Semaphore::new(PERMITS)));
            instance(move |_| call_loop(move || black_box(semaphore).clone().try_acquire_owned().map(drop)))
        }),
    ]
}
