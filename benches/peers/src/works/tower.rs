//! Layers: one policy around a service, asked as a service is asked. Ours is a pipeline of that policy as a layer, without a box around the
//! futures, and beside it with one.
//!
//! Settings as in the works of the policies alone. tower's own layers, which have futures with names and box nothing, are rivals where they
//! do the same; its retry counts attempts and never waits, and stands beside.

use super::retry::Attempts;
use super::timeout::WHOLE;
use super::{Failed, Instance, Subject, Work, beside, instance, operation, ours, poll_loop, rival};
use std::future::Future;
use std::hint::black_box;
use std::time::Duration;
use steadfast::Pipeline;
use steadfast::call::Policy;
use steadfast::circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, TripConfig};
use steadfast::hedge::{Hedge, HedgeConfig};
use steadfast::retry::{Retry, RetryConfig};
use steadfast::throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter, Quota, RateLimiter};
use steadfast::time::Clock;
use steadfast::timeout::Timeout;
use steadfast::tower::PipelineLayer;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_resilience::bulkhead::BulkheadLayer;
use tower_resilience::circuitbreaker::{CircuitBreakerError, CircuitBreakerLayer};
use tower_resilience::hedge::HedgeLayer;
use tower_resilience::ratelimiter::RateLimiterLayer;
use tower_resilience::retry::RetryLayer;
use tower_resilience::timelimiter::{TimeLimiterError, TimeLimiterLayer};

const OPEN_FOR: Duration = Duration::from_secs(3600);
const ATTEMPT: Duration = Duration::from_millis(300);
const LATE: Duration = Duration::from_millis(50);
const BILLION: u32 = 1_000_000_000;

const fn work(name: &'static str, about: &'static str, subjects: fn() -> Vec<Subject>) -> Work {
    Work { name, about, subjects, light: true }
}

pub const BREAKER: Work = work("layer_breaker", "a layer: a call through a closed breaker", || breaker(false));
pub const OPEN: Work = work("layer_breaker_open", "a layer: a call that an open breaker refuses", || breaker(true));
pub const RETRY: Work = work("layer_retry", "a layer: a call that succeeds at its first attempt", retry);
pub const RATE_LIMIT: Work = work("layer_rate_limit", "a layer: a call that a rate limit allows", || limit(false));
pub const LIMITED: Work = work("layer_rate_denied", "a layer: a call that a rate limit refuses", || limit(true));
pub const PERMIT: Work = work("layer_permit", "a layer: a call with one of 64 permits, which is free", permit);
pub const TIMEOUT: Work = work("layer_timeout", "a layer: a time-out around a call that is ready at once", timeout);
pub const HEDGE: Work = work("layer_hedge", "a layer: a hedge around a call that is ready at once", hedge);
pub const STACK: Work = work("layer_stack", "a layer: time-out > retry > breaker > time-out", stack);

/// A service that each thread has a clone of, asked for ready and called.
fn asked<S>(service: S) -> Instance
where
    S: Service<(), Response = u32> + Clone + Sync + 'static,
    S::Future: Future<Output = Result<u32, S::Error>>,
{
    instance(move |_| {
        let mut service = service.clone();
        poll_loop(async move || black_box(&mut service).ready().await?.call(()).await)
    })
}

/// The layer of a pipeline, without a box around the future of each call.
fn layered<P: Policy + 'static>(pipeline: Pipeline<P>) -> Instance {
    asked(PipelineLayer::new(pipeline).unboxed(tower::service_fn(|(): ()| operation())))
}

/// The same with boxes, so that its service and futures have types with names.
fn boxed<P: Policy + 'static>(pipeline: Pipeline<P>) -> Instance {
    asked(PipelineLayer::new(pipeline).layer(tower::service_fn(|(): ()| operation())))
}

fn bare() -> Subject {
    beside("(floor) the service itself", || asked(tower::service_fn(|(): ()| operation())))
}

fn steadfast_breaker(open: bool) -> CircuitBreaker {
    let config = CircuitBreakerConfig::default()
        .count_window(100, 100)
        .trip(TripConfig::default().failure_rate(0.5))
        .open_for(OPEN_FOR, OPEN_FOR);
    let breaker = CircuitBreaker::new(config).expect("a valid configuration");
    if open {
        breaker.force_open(OPEN_FOR);
    }
    breaker
}

fn breaker(open: bool) -> Vec<Subject> {
    vec![
        ours("steadfast unboxed", move || layered(Pipeline::new().then(steadfast_breaker(open)))),
        beside("steadfast PipelineLayer", move || boxed(Pipeline::new().then(steadfast_breaker(open)))),
        rival("tower-resilience 0.13", move || {
            let layer = CircuitBreakerLayer::builder()
                .failure_rate_threshold(0.5)
                .sliding_window_size(100)
                .wait_duration_in_open(OPEN_FOR);
            let (layer, handle) = layer.build_with_handle().expect("a valid configuration");
            if open {
                let mut force = Box::pin(handle.force_open());
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                assert!(force.as_mut().poll(&mut context).is_ready(), "nobody else holds its lock");
            }
            asked(layer.layer(tower::service_fn(|(): ()| operation())))
        })
        .parks(),
        bare(),
    ]
}

fn three() -> Retry {
    Retry::new(RetryConfig::default()).expect("a valid configuration")
}

fn retry() -> Vec<Subject> {
    vec![
        ours("steadfast unboxed", || layered(Pipeline::new().then(three()))),
        beside("steadfast PipelineLayer", || boxed(Pipeline::new().then(three()))),
        rival("tower-resilience 0.13", || {
            let retry = RetryLayer::<(), u32, Failed>::builder()
                .max_attempts(3)
                .exponential_backoff(Duration::from_millis(100));
            asked(retry.build().layer(tower::service_fn(|(): ()| operation())))
        }),
        // Less work than the others: no delays.
        beside("tower 0.5, attempts only", || {
            asked(ServiceBuilder::new().retry(Attempts(2)).service_fn(|(): ()| operation()))
        }),
        bare(),
    ]
}

fn limit(denied: bool) -> Vec<Subject> {
    let (permits, per) = if denied { (1, OPEN_FOR) } else { (BILLION, Duration::from_secs(1)) };
    let pipeline_on = move |clock: Clock| {
        let limiter =
            RateLimiter::builder(Quota::new(permits, per)).clock(&clock).build().expect("a valid configuration");
        assert!(limiter.try_acquire().is_ok());
        Pipeline::new().then(limiter)
    };
    vec![
        ours("steadfast unboxed", move || layered(pipeline_on(Clock::tokio()))),
        beside("steadfast unboxed (quanta clock)", move || layered(pipeline_on(Clock::quanta()))),
        beside("steadfast PipelineLayer", move || boxed(pipeline_on(Clock::tokio()))),
        rival("tower-resilience 0.13 fixed window", move || {
            let layer = RateLimiterLayer::builder()
                .limit_for_period(permits as usize)
                .refresh_period(per)
                .timeout_duration(Duration::ZERO)
                .build()
                .expect("a valid configuration");
            asked(layer.layer(tower::service_fn(|(): ()| operation())))
        }),
        bare(),
    ]
}

fn sixty_four() -> ConcurrencyLimiter {
    ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(64)).expect("a valid configuration")
}

fn permit() -> Vec<Subject> {
    vec![
        ours("steadfast unboxed", || layered(Pipeline::new().then(sixty_four()))),
        beside("steadfast PipelineLayer", || boxed(Pipeline::new().then(sixty_four()))),
        rival("tower 0.5 ConcurrencyLimit", || {
            asked(ServiceBuilder::new().concurrency_limit(64).service_fn(|(): ()| operation()))
        }),
        rival("tower-resilience 0.13 bulkhead", || {
            let layer = BulkheadLayer::builder().max_concurrent_calls(64).build().expect("a valid configuration");
            asked(layer.layer(tower::service_fn(|(): ()| operation())))
        }),
        bare(),
    ]
}

fn timeout() -> Vec<Subject> {
    vec![
        ours("steadfast unboxed", || layered(Pipeline::new().then(Timeout::new(WHOLE)))),
        beside("steadfast PipelineLayer", || boxed(Pipeline::new().then(Timeout::new(WHOLE)))),
        rival("tower 0.5", || asked(ServiceBuilder::new().timeout(WHOLE).service_fn(|(): ()| operation()))),
        rival("tower-resilience 0.13", || {
            let layer = TimeLimiterLayer::builder().timeout_duration(WHOLE).build();
            asked(layer.layer(tower::service_fn(|(): ()| operation())))
        }),
        bare(),
    ]
}

fn late() -> Hedge {
    let config = HedgeConfig::after(LATE).idempotent(true).max_attempts(2);
    Hedge::new(config).expect("a valid configuration")
}

fn hedge() -> Vec<Subject> {
    vec![
        ours("steadfast unboxed", || layered(Pipeline::new().then(late()))),
        beside("steadfast PipelineLayer", || boxed(Pipeline::new().then(late()))),
        rival("tower-resilience 0.13", || {
            let layer = HedgeLayer::builder().delay(LATE).max_hedged_attempts(2).build();
            asked(layer.layer(tower::service_fn(|(): ()| operation())))
        }),
        bare(),
    ]
}

fn whole() -> Pipeline<impl Policy> {
    Pipeline::new().then(Timeout::new(WHOLE)).then(three()).then(steadfast_breaker(false)).then(Timeout::new(ATTEMPT))
}

fn stack() -> Vec<Subject> {
    vec![
        ours("steadfast unboxed", || layered(whole())),
        beside("steadfast PipelineLayer", || boxed(whole())),
        rival("tower-resilience 0.13 standard", || {
            type Attempt = CircuitBreakerError<TimeLimiterError<Failed>>;
            let service = tower::service_fn(|(): ()| operation());
            let service = TimeLimiterLayer::builder().timeout_duration(ATTEMPT).build().layer(service);
            let breaker = CircuitBreakerLayer::builder().failure_rate_threshold(0.5).sliding_window_size(100);
            let service = breaker.build().expect("a valid configuration").layer(service);
            let retry = RetryLayer::<(), u32, Attempt>::builder()
                .max_attempts(3)
                .exponential_backoff(Duration::from_millis(100));
            let service = retry.build().layer(service);
            asked(TimeLimiterLayer::builder().timeout_duration(WHOLE).build().layer(service))
        })
        .parks(),
        // Less work than the others: no breaker, no delays.
        beside("tower 0.5: time-out, retry, time-out", || {
            let layers = ServiceBuilder::new().timeout(WHOLE).retry(Attempts(2)).timeout(ATTEMPT);
            asked(layers.service_fn(|(): ()| operation()))
        }),
        bare(),
    ]
}
