//! The stack: time-out of 2 s > retry (3 attempts, exponential from 100 ms, jitter) > breaker (count window of 100,
//! 50 %) > time-out of 300 ms, around a call that is ready at once, and around one that is pending once.

use super::retry::{Attempts, backon_exponential};
use super::{
    Failed, Subject, Work, beside, instance, leak, operation, ours, pending_once, poll_loop, rival, timeout::WHOLE,
};
use backon::Retryable;
use recloser::{AsyncRecloser, Recloser};
use std::hint::black_box;
use std::time::Duration;
use steadfast::Pipeline;
use steadfast::circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, TripConfig};
use steadfast::retry::{Retry, RetryConfig};
use steadfast::timeout::Timeout;
use tokio::time::timeout;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_resilience::circuitbreaker::{CircuitBreakerError, CircuitBreakerLayer};
use tower_resilience::retry::RetryLayer;
use tower_resilience::timelimiter::{TimeLimiterError, TimeLimiterLayer};

pub const READY: Work = Work {
    name: "stack",
    about: "time-out > retry > breaker > time-out around a call that is ready at once",
    subjects: ready,
    light: true,
};
pub const PENDING: Work = Work {
    name: "stack_pending",
    about: "the same around a call that is pending once",
    subjects: pending,
    light: true,
};

const ATTEMPT: Duration = Duration::from_millis(300);

/// What a hand-written stack ends up with: one error for its attempt, another around it.
#[derive(Debug)]
#[allow(dead_code, reason = "a caller would read them")]
enum ByHand {
    Operation(Failed),
    TimedOut,
}

fn recloser() -> AsyncRecloser {
    Recloser::custom()
        .error_rate(0.5)
        .closed_len(100)
        .half_open_len(10)
        .open_wait(Duration::from_secs(30))
        .build()
        .into()
}

async fn attempt(operation: impl Future<Output = Result<u32, Failed>>) -> Result<u32, ByHand> {
    match timeout(ATTEMPT, operation).await {
        Ok(answer) => answer.map_err(ByHand::Operation),
        Err(_) => Err(ByHand::TimedOut),
    }
}

macro_rules! subjects {
    ($operation:path) => {
        vec![
            ours("steadfast Pipeline", || {
                let breaker = CircuitBreakerConfig::default()
                    .count_window(100, 100)
                    .trip(TripConfig::default().failure_rate(0.5))
                    .open_for(Duration::from_secs(30), Duration::from_secs(30));
                let pipeline = leak(
                    Pipeline::new()
                        .then(Timeout::new(WHOLE))
                        .then(Retry::new(RetryConfig::default()).expect("a valid configuration"))
                        .then(CircuitBreaker::new(breaker).expect("a valid configuration"))
                        .then(Timeout::new(ATTEMPT)),
                );
                instance(move |_| poll_loop(async move || black_box(pipeline).call(|| $operation()).await))
            }),
            rival("by hand: tokio + backon + recloser", || {
                let breaker = leak(recloser());
                instance(move |_| {
                    poll_loop(async move || {
                        let breaker = black_box(breaker);
                        let tries = (|| breaker.call(attempt($operation())))
                            .retry(backon_exponential())
                            .when(|error| !matches!(error, recloser::Error::Rejected));
                        timeout(WHOLE, tries).await
                    })
                })
            }),
            // Less work than the others: no time-out of the attempt.
            beside("by hand, without the inner time-out", || {
                let breaker = leak(recloser());
                instance(move |_| {
                    poll_loop(async move || {
                        let breaker = black_box(breaker);
                        let tries = (|| breaker.call($operation()))
                            .retry(backon_exponential())
                            .when(|error| !matches!(error, recloser::Error::Rejected));
                        timeout(WHOLE, tries).await
                    })
                })
            }),
            // Less work than the others: no breaker, no delays.
            beside("tower 0.5: time-out, retry, time-out", || {
                let service = ServiceBuilder::new()
                    .timeout(WHOLE)
                    .retry(Attempts(2))
                    .timeout(ATTEMPT)
                    .service_fn(|(): ()| $operation());
                instance(move |_| {
                    let mut service = service.clone();
                    poll_loop(async move || black_box(&mut service).ready().await?.call(()).await)
                })
            }),
            // Its documented standard stack, which is this one.
            rival("tower-resilience 0.13 standard", || {
                type Attempt = CircuitBreakerError<TimeLimiterError<Failed>>;
                let service = tower::service_fn(|(): ()| $operation());
                let service = TimeLimiterLayer::builder().timeout_duration(ATTEMPT).build().layer(service);
                let breaker = CircuitBreakerLayer::builder().failure_rate_threshold(0.5).sliding_window_size(100);
                let service = breaker.build().expect("a valid configuration").layer(service);
                let retry = RetryLayer::<(), u32, Attempt>::builder()
                    .max_attempts(3)
                    .exponential_backoff(Duration::from_millis(100));
                let service = retry.build().layer(service);
                let service = TimeLimiterLayer::builder().timeout_duration(WHOLE).build().layer(service);
                instance(move |_| {
                    let mut service = service.clone();
                    poll_loop(async move || black_box(&mut service).ready().await?.call(()).await)
                })
            })
            .parks(),
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
