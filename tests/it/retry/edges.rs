//! Retry: budgets over time and under drops, rejections after failures, outer time-outs.
use std::time::Duration;

use futures::FutureExt;
use steadfast::{
    Cause, FailureKind, Pipeline, Verdict,
    backoff::{BackoffConfig, Curve, Jitter},
    call::not_idempotent,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
    outcome::StopReason,
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    testing::{ManualClock, ScriptedError, ScriptedService},
    time::Clock,
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn plain() -> RetryConfig {
    RetryConfig::default().idempotent(true).backoff(BackoffConfig::default().jitter(Jitter::None))
}

fn stage(script: &str) -> (Clock, ManualClock, ScriptedService) {
    let (clock, time) = Clock::manual();
    let service = ScriptedService::new(script, &clock).unwrap();
    (clock, time, service)
}

// Guarantee: retry 5.
/// 10,000 requests over 100 seconds, each of which fails once, without a floor.
#[test]
fn a_budget_bounds_retries_over_a_long_time() {
    let (clock, time, _) = stage("ok");
    let budget = RetryBudget::new(RetryBudgetConfig::default().ratio(0.2).min_per_second(0)).unwrap();
    let retry = Retry::builder(plain()).clock(&clock).budget(&budget).delays(|| [MS(0)].into_iter()).build().unwrap();
    let mut calls = 0;
    for _ in 0..10_000 {
        time.advance(MS(10));
        let mut first = true;
        let _ = time.block_on(retry.call(|| {
            calls += 1;
            let failed = std::mem::take(&mut first);
            async move { if failed { Err(()) } else { Ok(()) } }
        }));
    }
    assert!((11_900..=12_000).contains(&calls), "{calls}");
}

// Guarantee: retry 5.
#[test]
fn the_budget_is_charged_before_the_delay_and_not_refunded_on_a_drop() {
    let (clock, time, service) = stage("503");
    let budget = RetryBudget::new(RetryBudgetConfig::default().ratio(0.0).min_per_second(1).window(MS(3000))).unwrap();
    let retry = Retry::builder(plain()).clock(&clock).budget(&budget).build().unwrap();
    assert_eq!(budget.balance(time.now()), 3);
    let mut call = Box::pin(retry.call(|| service.call()));
    assert!(call.as_mut().now_or_never().is_none());
    assert_eq!((service.calls(), budget.balance(time.now())), (1, 2));
    drop(call);
    assert_eq!((service.calls(), budget.balance(time.now())), (1, 2));
}

// Guarantee: retry 5.
#[test]
fn a_call_that_gives_up_for_another_reason_costs_no_budget() {
    let (clock, time, service) = stage("503");
    let budget = RetryBudget::new(RetryBudgetConfig::default().ratio(0.0).min_per_second(1)).unwrap();
    let retry = |config| Retry::builder(config).clock(&clock).budget(&budget).build().unwrap();
    for config in [plain().max_attempts(1), plain().max_elapsed(MS(50)), plain().idempotent(false)] {
        time.block_on(retry(config).call(|| service.call())).unwrap_err();
    }
    let in_time = Pipeline::new().then(Timeout::builder(MS(50)).clock(&clock).build()).then(retry(plain()));
    time.block_on(in_time.call(|| service.call())).unwrap_err();
    assert_eq!((service.calls(), budget.balance(time.now())), (4, 10));
}

// Guarantee: retry 4, 8.
/// The error is the breaker's rejection, and contains the earlier failures.
#[test]
fn a_breaker_that_opens_between_two_attempts_ends_the_retry() {
    let (clock, time, service) = stage("500, 503");
    let breaker =
        CircuitBreaker::builder(CircuitBreakerConfig::default().count_window(2, 2)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new()
        .then(Retry::builder(plain().max_attempts(9)).clock(&clock).build().unwrap())
        .then(breaker)
        .classify(ScriptedService::classify);
    let error = time.block_on(pipeline.call(|| service.call())).unwrap_err();
    assert_eq!((service.calls(), error.attempts(), error.is_rejected()), (2, 2, true));
    assert_eq!(error.verdict(), Verdict::ignore());
    let history = error.history().unwrap();
    assert_eq!(
        (history.stop, history.first_kind, history.last_kind),
        (StopReason::NotRetryable, Some(FailureKind::Server), None)
    );
    assert!(matches!(history.first, Some(Cause::Operation(ScriptedError::Status { status: 500, .. }))));
    assert!(error.retry_after().is_some());
}

// Guarantee: retry 3.
#[test]
fn a_hint_beyond_the_deadline_or_the_total_time_fails_at_once() {
    for (total, stop) in [(None, StopReason::Deadline), (Some(MS(900)), StopReason::TotalTime)] {
        let (clock, time, service) = stage("503 retry-after 1s");
        let mut config = plain();
        config.max_elapsed = total;
        let pipeline = Pipeline::new()
            .then(Timeout::builder(if total.is_some() { MS(5000) } else { MS(900) }).clock(&clock).build())
            .then(Retry::builder(config).clock(&clock).build().unwrap())
            .classify(ScriptedService::classify);
        let start = time.now();
        let error = time.block_on(pipeline.call(|| service.call())).unwrap_err();
        assert_eq!((service.calls(), time.now(), error.history().unwrap().stop), (1, start, stop));
        assert_eq!(error.retry_after(), Some(MS(1000)));
    }
}

// Guarantee: retry 3.
#[test]
fn a_delay_longer_than_the_hint_is_not_shortened() {
    let (clock, time, service) = stage("503 retry-after 10ms, ok");
    let pipeline = Pipeline::new()
        .then(Retry::builder(plain()).clock(&clock).build().unwrap())
        .classify(ScriptedService::classify);
    time.block_on(pipeline.call(|| service.call())).unwrap();
    assert_eq!(service.gaps(), [MS(100)]);
}

// Guarantee: retry 6.
/// The same holds for a time-out and a rejection inside the retry.
#[test]
fn a_rejection_proves_that_nothing_was_sent_and_a_time_out_does_not() {
    let (clock, time, service) = stage("hang");
    let pipeline = Pipeline::new()
        .then(Retry::builder(plain()).clock(&clock).build().unwrap())
        .then(Timeout::builder(MS(10)).clock(&clock).build());
    let error = time.block_on(pipeline.call(not_idempotent(|| service.call()))).unwrap_err();
    assert_eq!((error.attempts(), error.history().unwrap().stop), (1, StopReason::NotIdempotent));
    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap();
    breaker.force_open(MS(500));
    let asks = Pipeline::new()
        .then(Retry::builder(plain().retry_rejections(true)).clock(&clock).build().unwrap())
        .then(breaker);
    assert_eq!(time.block_on(asks.call(not_idempotent(|| async { Ok::<_, ()>(7) }))).unwrap(), 7);
}

// Guarantee: retry 1.
#[test]
fn an_ignored_result_and_a_panic_are_not_retried() {
    let (clock, time, service) = stage("panic");
    let retry = || Retry::builder(plain()).clock(&clock).build().unwrap();
    let ignoring = Pipeline::new().then(retry()).classify(|_: &Result<(), ()>| Verdict::ignore());
    let error = time.block_on(ignoring.call(|| async { Err(()) })).unwrap_err();
    assert_eq!((error.attempts(), error.history().is_none(), error.verdict()), (1, true, Verdict::ignore()));
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = time.block_on(retry().call(|| service.call()));
    }));
    assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"the script says so"));
    assert_eq!((service.calls(), service.running()), (1, 0));
}

// Guarantee: retry 2.
#[test]
fn the_largest_number_of_attempts_does_not_overflow_the_delay() {
    let (clock, time, service) = stage("503");
    let config = plain().max_attempts(u32::MAX).max_elapsed(Duration::from_secs(86_400));
    let error =
        time.block_on(Retry::builder(config).clock(&clock).build().unwrap().call(|| service.call())).unwrap_err();
    assert_eq!(error.history().unwrap().stop, StopReason::TotalTime);
    assert_eq!(service.gaps().last(), Some(&config.backoff.cap));
    assert!(service.gaps().iter().all(|gap| *gap <= config.backoff.cap));
}

// Guarantee: retry 8.
/// Regression: an outer time-out discarded the earlier failures of the retry.
#[test]
fn a_call_ended_by_an_outer_time_out_keeps_its_first_cause() {
    let (clock, time, service) = stage("500, hang");
    for nested in [false, true] {
        let retry = |config: RetryConfig| Retry::builder(config.retry_nested(true)).clock(&clock).build().unwrap();
        let inner = nested.then(|| retry(plain().max_attempts(2)));
        let pipeline = Pipeline::new()
            .then(Timeout::builder(MS(700)).clock(&clock).build())
            .then(retry(plain()))
            .then(inner)
            .classify(ScriptedService::classify);
        let service = ScriptedService::new("500, 503, hang", &clock).unwrap();
        let error = time.block_on(pipeline.call(|| service.call())).unwrap_err();
        let history = error.history().unwrap();
        assert_eq!((error.is_timed_out(), error.attempts(), history.stop), (true, 3, StopReason::TimedOut));
        assert!(matches!(history.first, Some(Cause::Operation(ScriptedError::Status { status: 500, .. }))));
        assert_eq!((history.first_kind, history.last_kind), (Some(FailureKind::Server), Some(FailureKind::Timeout)));
        assert_eq!((history.elapsed, error.to_string().as_str()), (MS(700), "timed out after 700ms"));
    }
    // A time-out of the only attempt has no history.
    let alone =
        Pipeline::new().then(Timeout::builder(MS(700)).clock(&clock).build()).then(Retry::new(plain()).unwrap());
    time.block_on(service.call()).unwrap_err();
    assert!(time.block_on(alone.call(|| service.call())).unwrap_err().history().is_none());
}

#[test]
fn explain_warns_only_about_delays_that_do_not_grow() {
    let flat = |retry: Retry| {
        let warnings = Pipeline::new().then(retry).explain().warnings();
        warnings.iter().any(|warning| warning.contains("without growing delays"))
    };
    let builder = |attempts, backoff| Retry::builder(RetryConfig::default().max_attempts(attempts).backoff(backoff));
    let with = |attempts, backoff| builder(attempts, backoff).build().unwrap();
    let (growing, same) = (BackoffConfig::default(), BackoffConfig::default().between(MS(100), MS(100)));
    let constant = |jitter| growing.jitter(jitter).curve(Curve::Constant);
    assert!(flat(with(3, same)), "a cap that is the base");
    assert!(flat(with(3, constant(Jitter::Full))) && flat(with(9, constant(Jitter::None))));
    // Decorrelated delays grow by themselves, and a single delay cannot grow.
    assert!(!flat(with(3, constant(Jitter::Decorrelated))));
    assert!(!flat(with(2, same)) && !flat(with(1, same)));
    assert!(!flat(with(3, growing)) && !flat(with(3, growing.between(MS(100), MS(101)))));
    // Custom delays are not judged.
    assert!(!flat(builder(3, same).delays(|| std::iter::repeat(MS(5))).build().unwrap()));
}
