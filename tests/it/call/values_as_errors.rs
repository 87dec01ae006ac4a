//! Values that were judged failures, returned as errors: `error_for_value` and `Classify::error_for`.
use std::{
    future::{pending, ready},
    time::Duration,
};

use http::Response;
use steadfast::{
    CallError, Cause, Classify, FailureKind, Pipeline, Verdict,
    call::{AttemptInfo, Policy, idempotent},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State},
    fallback::{Answer, Fallback, FallbackConfig},
    hedge::{Hedge, HedgeConfig},
    http::ByStatus,
    outcome::ByCallError,
    retry::{Retry, RetryConfig},
    testing::ManualClock,
    time::Clock,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

#[derive(Debug, PartialEq)]
struct Status(u16);

/// Judges each status: 503 is a failure with a hint, 418 a rejection.
fn judge<E>(answer: &Result<u16, E>) -> Verdict {
    match answer {
        Ok(503) => Verdict::failure(FailureKind::Overloaded).with_retry_after(MS(70)),
        Ok(418) => Verdict::refused(),
        Ok(100) => Verdict::ignore(),
        Ok(_) => Verdict::success(),
        Err(_) => Verdict::failure(FailureKind::Other),
    }
}

fn world() -> (Pipeline<impl Policy + Clone, impl Classify<u16, Status> + Clone>, CircuitBreaker, ManualClock) {
    let (clock, time) = Clock::manual();
    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap();
    let retry = Retry::builder(RetryConfig::default().max_attempts(2)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(retry).then(breaker.clone()).classify(judge::<Status>);
    (pipeline.error_for_value(|status| Err(Status(status))), breaker, time)
}

fn assert_error(error: CallError<Status>, attempts: u32) {
    assert_eq!((error.cause(), error.attempts()), (&Cause::Operation(Status(503)), attempts));
    assert_eq!((error.verdict().kind(), error.retry_after()), (Some(FailureKind::Overloaded), Some(MS(70))));
    assert_eq!(error.into_operation(), Ok(Status(503)));
}

// Guarantee: call 8.
#[test]
fn a_value_judged_a_failure_comes_back_as_an_error_with_its_kind_and_hint_after_its_retries() {
    let (pipeline, breaker, time) = world();
    let start = time.now();
    let error = time.block_on(pipeline.call(idempotent(|| ready(Ok(503))))).unwrap_err();
    assert!(time.now() - start >= MS(70), "the retry waits for the hint");
    assert_eq!(error.history().unwrap().first, Some(Cause::Operation(Status(503))));
    assert_error(error, 2);
    assert_eq!(breaker.snapshot().failures, 2);
    // Without the closure it is a value.
    let plain = Pipeline::new().classify(judge::<Status>);
    assert_eq!(time.block_on(plain.call(|| ready(Ok(503)))).unwrap(), 503);
}

// Guarantee: call 8.
#[test]
fn a_rejection_in_a_value_is_an_error_and_an_ignored_value_is_none() {
    let (pipeline, breaker, time) = world();
    let error = time.block_on(pipeline.call(idempotent(|| ready(Ok(418))))).unwrap_err();
    assert!(error.is_rejected());
    assert_eq!((error.attempts(), error.into_operation()), (1, Ok(Status(418))));
    assert_eq!(time.block_on(pipeline.call(|| ready(Ok(100)))).unwrap(), 100);
    assert_eq!(time.block_on(pipeline.call(|| ready(Ok(200)))).unwrap(), 200);
    assert_eq!((breaker.snapshot().failures, breaker.snapshot().state), (0, State::Closed));
}

// Guarantee: call 8.
#[test]
fn every_way_to_call_returns_the_error_for_a_value() {
    let (pipeline, _, time) = world();
    let boxed = pipeline.clone().boxed::<u16, Status>();
    let outer = || AttemptInfo::with_deadline(time.now() + MS(10_000));
    let fails = |_: steadfast::fallback::Failed<'_, u16, Status>| ready(Ok(503));
    macro_rules! check {
        ($calls:ident) => {
            assert_error(time.block_on($calls.call(idempotent(|| ready(Ok(503))))).unwrap_err(), 2);
            assert_error(time.block_on($calls.call_with(|_| ready(Ok(503)))).unwrap_err(), 1);
            assert_error(time.block_on($calls.call_local(|| ready(Ok(503)))).unwrap_err(), 1);
            assert_error(time.block_on($calls.call_within(outer(), || ready(Ok(503)))).unwrap_err(), 1);
            // The fallback's own value is judged, too.
            let error = time.block_on($calls.call_or(|| ready(Ok(503)), fails)).unwrap_err();
            assert_eq!(error.fallback(), Some(&Cause::Operation(Status(503))));
            assert_error(error, 1);
            assert_error(time.block_on($calls.call_within_or(outer(), || ready(Ok(503)), fails)).unwrap_err(), 1);
        };
    }
    check!(pipeline);
    check!(boxed);
    // A classifier behind a pointer, as a boxed pipeline has it.
    let classifier: std::sync::Arc<dyn Classify<u16, Status>> = std::sync::Arc::new(Own);
    let shared = Pipeline::new().classify(classifier);
    assert_eq!(time.block_on(shared.call(|| ready(Ok(503)))).unwrap_err().into_operation(), Ok(Status(503)));
}

/// A classifier of the user's own with an error for each value.
struct Own;

impl Classify<u16, Status> for Own {
    fn classify(&self, result: &Result<u16, Status>) -> Verdict {
        judge(result)
    }

    fn error_for(&self, value: u16, verdict: Verdict) -> Result<u16, Status> {
        assert!(!verdict.is_success());
        Err(Status(value))
    }
}

// Guarantee: call 8.
#[test]
fn a_fallback_sees_the_error_for_a_value_and_its_answer_holds_it() {
    let (pipeline, _, time) = world();
    let call = pipeline.call_or_marked(
        || ready(Ok(503)),
        |failed| {
            assert_eq!((failed.error(), failed.value()), (Some(&Status(503)), None));
            ready(Ok(7))
        },
    );
    let Answer::Degraded { value: 7, instead_of: Err(error) } = time.block_on(call).unwrap() else {
        panic!("the fallback's value, instead of an error")
    };
    assert_error(error, 1);
}

#[test]
fn a_hedge_keeps_the_error_for_the_value_of_its_last_attempt() {
    let (clock, time) = Clock::manual();
    let hedge = Hedge::builder(HedgeConfig::after(MS(50)).idempotent(true)).clock(&clock).build().unwrap();
    let pipeline =
        Pipeline::new().then(hedge).classify(|_: &Result<u16, Status>| Verdict::failure(FailureKind::Server));
    let pipeline = pipeline.error_for_value(|value| Err(Status(value)));
    let error = time.block_on(pipeline.call(|| ready(Ok(503)))).unwrap_err();
    assert_eq!((error.attempts(), error.into_operation()), (2, Ok(Status(503))));
}

#[test]
fn an_outer_pipeline_reads_the_verdict_of_a_value_that_became_an_error() {
    let (inner, _, time) = world();
    let outer = Pipeline::new().classify(ByCallError);
    let error = time.block_on(outer.call_with(|at| inner.call_within(at, || ready(Ok(503))))).unwrap_err();
    assert_eq!((error.verdict().kind(), error.retry_after()), (Some(FailureKind::Overloaded), Some(MS(70))));
    assert_error(error.flatten(), 1);
}

#[test]
fn a_fallback_whose_value_becomes_an_error_within_its_policy_reports_that_error() {
    let (clock, time) = Clock::manual();
    let fallback = Fallback::builder(FallbackConfig::default()).clock(&clock).build().unwrap();
    let calls = Pipeline::new().then(fallback).classify(Own);
    let error = time.block_on(calls.call_or(|| ready(Ok(503)), |_| ready(Ok(503)))).unwrap_err();
    assert_eq!(error.fallback(), Some(&Cause::Operation(Status(503))));
    let error = time.block_on(calls.call_or(|| ready(Ok(503)), |_| pending())).unwrap_err();
    assert!(matches!(error.fallback(), Some(Cause::TimedOut(_))));
    assert_error(error, 1);
}

#[test]
fn a_busy_response_becomes_the_service_s_own_error_with_its_retry_after() {
    #[derive(Debug, PartialEq)]
    struct ApiError(http::StatusCode);
    let (_, time) = Clock::manual();
    let api = Pipeline::new().classify(ByStatus::new());
    let api = api.error_for_value(|answer: Response<()>| Err(ApiError(answer.status())));
    let busy = || ready(Ok(Response::builder().status(503).header("retry-after", "7").body(()).unwrap()));
    let error = time.block_on(api.call(busy)).unwrap_err();
    assert_eq!((error.retry_after(), error.into_operation()), (Some(MS(7_000)), Ok(ApiError(503.try_into().unwrap()))));
    // A closure may leave a value as it is.
    let plain = Pipeline::new().classify(ByStatus::new()).error_for_value(Ok::<Response<()>, ApiError>);
    assert_eq!(time.block_on(plain.call(busy)).unwrap().status(), 503);
}
