//! Predicates in place of a classifier: `retry_if` and `fail_when`.
use std::{
    future::ready,
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    time::Duration,
};

use steadfast::{
    FailureKind, Pipeline, Verdict,
    call::{Policy, idempotent},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
    hedge::{Hedge, HedgeConfig},
    outcome::ErrIsFailure,
    retry::{Retry, RetryConfig},
    testing::{ManualClock, ScriptedError, ScriptedService},
    time::Clock,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn world(script: &str) -> (Pipeline<impl Policy, ErrIsFailure>, CircuitBreaker, ScriptedService, ManualClock) {
    let (clock, time) = Clock::manual();
    let service = ScriptedService::new(script, &clock).unwrap();
    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap();
    let retry = Retry::builder(RetryConfig::default().max_attempts(3)).clock(&clock).build().unwrap();
    (Pipeline::new().then(retry).then(breaker.clone()), breaker, service, time)
}

fn is_transient(error: &ScriptedError) -> bool {
    !matches!(error, ScriptedError::Status { status: 404, .. })
}

// Guarantee: call 9.
#[test]
fn an_error_for_which_retry_if_is_false_is_neither_repeated_nor_counted() {
    let (pipeline, breaker, service, time) = world("404");
    let pipeline = pipeline.retry_if(is_transient);
    let error = time.block_on(pipeline.call(idempotent(|| service.call()))).unwrap_err();
    assert_eq!((error.attempts(), error.verdict().kind()), (1, Some(FailureKind::Client)));
    assert_eq!((breaker.snapshot().calls, breaker.snapshot().failures), (1, 0));
    // No fallback replaces it, as the request itself is wrong.
    assert!(time.block_on(pipeline.call_or(|| service.call(), |_| ready(Ok(7)))).is_err());
}

// Guarantee: call 9.
#[test]
fn an_error_for_which_retry_if_is_true_is_repeated_and_counted() {
    let (pipeline, breaker, service, time) = world("503");
    let pipeline = pipeline.retry_if(is_transient);
    let error = time.block_on(pipeline.call(idempotent(|| service.call()))).unwrap_err();
    assert_eq!((error.attempts(), error.verdict().kind()), (3, Some(FailureKind::Other)));
    assert_eq!(breaker.snapshot().failures, 3);
    // Without the mark it might have its effect twice.
    assert_eq!(time.block_on(pipeline.call(|| service.call())).unwrap_err().attempts(), 1);
}

#[test]
fn no_hedge_starts_after_an_error_for_which_retry_if_is_false() {
    let (clock, time) = Clock::manual();
    let hedge = Hedge::builder(HedgeConfig::after(MS(50)).idempotent(true)).clock(&clock).build().unwrap();
    let runs = AtomicU32::new(0);
    let pipeline = Pipeline::new().then(hedge).retry_if(|error: &&str| *error != "no such key");
    for (error, expected) in [("no such key", 1), ("busy", 2)] {
        let call = pipeline.call(|| {
            runs.fetch_add(1, SeqCst);
            ready(Err::<(), _>(error))
        });
        time.block_on(call).unwrap_err();
        assert_eq!(runs.swap(0, SeqCst), expected, "{error}");
    }
}

// Guarantee: call 9.
#[test]
fn fail_when_decides_for_values_and_errors() {
    let (pipeline, breaker, _, time) = world("ok");
    let pipeline = pipeline.fail_when(|result: &Result<&str, &str>| matches!(result, Ok("pending") | Err("busy")));
    let mut answers = [Ok("pending"), Err("busy"), Ok("done")].into_iter();
    assert_eq!(time.block_on(pipeline.call(idempotent(|| ready(answers.next().unwrap())))).unwrap(), "done");
    assert_eq!((breaker.snapshot().calls, breaker.snapshot().failures), (3, 2));

    // An error that is no failure is returned at once, and counts as a success.
    let error = time.block_on(pipeline.call(idempotent(|| ready(Err("no such job"))))).unwrap_err();
    assert_eq!((error.attempts(), error.verdict().is_success()), (1, true));
    assert_eq!((breaker.snapshot().calls, breaker.snapshot().failures), (4, 2));
    assert!(time.block_on(pipeline.call_or(|| ready(Err("no such job")), |_| ready(Ok("none")))).is_err());
    assert_eq!(time.block_on(pipeline.call_or(|| ready(Err("busy")), |_| ready(Ok("none")))).unwrap(), "none");
}

#[test]
fn predicates_refine_the_classifier_that_was_set_before() {
    let (_, time) = Clock::manual();
    let judge = |result: &Result<u16, u16>| match result {
        Ok(100) => Verdict::ignore(),
        Ok(_) => Verdict::success(),
        Err(429) => Verdict::failure(FailureKind::Throttled).with_retry_after(MS(5)),
        Err(_) => Verdict::failure(FailureKind::Server),
    };
    let kind = |result: Result<_, steadfast::CallError<u16>>| {
        let error = result.unwrap_err();
        (error.verdict().kind(), error.retry_after())
    };
    let calls = Pipeline::new().classify(judge).retry_if(|status: &u16| *status == 429);
    assert_eq!(kind(time.block_on(calls.call(|| ready(Err(429))))), (Some(FailureKind::Throttled), Some(MS(5))));
    assert_eq!(kind(time.block_on(calls.call(|| ready(Err(500))))), (Some(FailureKind::Client), None));

    let calls = Pipeline::new()
        .classify(judge)
        .fail_when(|result: &Result<u16, u16>| matches!(result, Ok(503) | Err(429)))
        .error_for_value(Err::<u16, u16>);
    assert_eq!(kind(time.block_on(calls.call(|| ready(Err(429))))), (Some(FailureKind::Throttled), Some(MS(5))));
    assert_eq!(kind(time.block_on(calls.call(|| ready(Err(500))))), (None, None));
    assert_eq!(kind(time.block_on(calls.call(|| ready(Ok(503))))), (Some(FailureKind::Other), None));
    assert_eq!(time.block_on(calls.call(|| ready(Ok(100)))).unwrap(), 100);
    // The order of the refinements does not matter to the error for a value.
    let calls = Pipeline::new()
        .classify(judge)
        .error_for_value(Err::<u16, u16>)
        .fail_when(|result: &Result<u16, u16>| matches!(result, Ok(503)))
        .retry_if(|_: &u16| true);
    assert_eq!(kind(time.block_on(calls.call(|| ready(Ok(503))))), (Some(FailureKind::Other), None));
    let shown = format!("{:?}", Pipeline::new().retry_if(|_: &u16| true).fail_when(|_: &Result<u16, u16>| true));
    assert!(shown.contains("classify: FailWhen(RetryIf(ErrIsFailure, ..), ..)"), "{shown}");
}
