//! Time-out of 2 s around a call that is ready at once, and around one that is pending once.
//!
//! All threads share one tokio runtime's timer, as the tasks of a service do. Its driver is not turned: a timer
//! that is registered and dropped again costs the same for everyone.

use super::{Subject, Work, beside, instance, leak, operation, ours, pending_once, poll_loop, rival};
use std::hint::black_box;
use std::time::Duration;
use steadfast::timeout::Timeout;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_resilience::timelimiter::TimeLimiterLayer;

pub const READY: Work =
    Work { name: "timeout", about: "a time-out around a call that is ready at once", subjects: ready, light: true };
pub const PENDING: Work = Work {
    name: "timeout_pending",
    about: "a time-out around a call that is pending once",
    subjects: pending,
    light: true,
};

pub const WHOLE: Duration = Duration::from_secs(2);

macro_rules! subjects {
    ($operation:path) => {
        vec![
            ours("steadfast", || {
                let timeout = leak(Timeout::new(WHOLE));
                instance(move |_| poll_loop(async move || black_box(timeout).call(|| $operation()).await))
            }),
            rival("tokio 1", || {
                instance(|_| poll_loop(async || tokio::time::timeout(black_box(WHOLE), $operation()).await))
            }),
            rival("tower 0.5", || {
                let service = ServiceBuilder::new().timeout(WHOLE).service_fn(|(): ()| $operation());
                instance(move |_| {
                    let mut service = service.clone();
                    poll_loop(async move || black_box(&mut service).ready().await?.call(()).await)
                })
            }),
            rival("tower-resilience 0.13", || {
                let layer = TimeLimiterLayer::builder().timeout_duration(WHOLE).build();
                let service = layer.layer(tower::service_fn(|(): ()| $operation()));
                instance(move |_| {
                    let mut service = service.clone();
                    poll_loop(async move || black_box(&mut service).ready().await?.call(()).await)
                })
            }),
            beside("(floor) await the operation", || instance(|_| poll_loop($operation))),
        ]
    };
}

fn ready() -> Vec<Subject> {
    subjects!(operation)
}

fn pending() -> Vec<Subject> {
    subjects!(pending_once)
}
