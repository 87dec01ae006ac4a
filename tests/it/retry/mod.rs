//! Retry: attempts, hints, rejections, budgets, idempotence, nesting and errors. (Delays are in
//! `backoff.rs`.)
mod backoff;
mod edges;
mod idempotence;

use std::time::Duration;

use steadfast::{
    Builder, Cause, FailureKind, Hint, KindSet, Pipeline, Verdict,
    backoff::{BackoffConfig, Jitter},
    call::not_idempotent,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
    entropy::Entropy,
    outcome::StopReason,
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig, RetryEvent},
    testing::{ManualClock, ScriptedError, ScriptedService},
    throttling::{Quota, RateLimiter},
    time::Clock,
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Delays of 100 ms, 200 ms, 400 ms and so on, without jitter.
fn plain() -> RetryConfig {
    RetryConfig::default().idempotent(true).backoff(BackoffConfig::default().jitter(Jitter::None))
}

struct Stage {
    clock: Clock,
    time: ManualClock,
    service: ScriptedService,
}

impl Stage {
    fn new(script: &str) -> Self {
        let (clock, time) = Clock::manual();
        let service = ScriptedService::new(script, &clock).unwrap();
        Self { clock, time, service }
    }

    fn builder(&self, config: RetryConfig) -> Builder<Retry> {
        Retry::builder(config).clock(&self.clock).entropy(&Entropy::from_seed(7))
    }

    fn retry(&self, config: RetryConfig) -> Retry {
        self.builder(config).build().unwrap()
    }

    fn call(&self, retry: &Retry) -> Result<u16, steadfast::CallError<ScriptedError>> {
        let pipeline = Pipeline::new().then(retry.clone()).classify(ScriptedService::classify);
        self.time.block_on(pipeline.call(|| self.service.call()))
    }
}

fn stop(error: &steadfast::CallError<ScriptedError>) -> Option<StopReason> {
    error.history().map(|h| h.stop)
}

// Guarantee: retry 1.
#[test]
fn max_attempts_bounds_the_calls_and_one_attempt_never_waits() {
    for n in 1..=5 {
        let stage = Stage::new("503");
        let start = stage.time.now();
        let error = stage.call(&stage.retry(plain().max_attempts(n))).unwrap_err();
        assert_eq!((stage.service.calls(), error.attempts()), (n as usize, n));
        if n == 1 {
            assert_eq!(stage.time.now(), start);
        }
    }
    assert_eq!(Retry::new(plain().max_attempts(0)).unwrap_err().field(), "max_attempts");
}

// Guarantee: retry 1.
#[test]
fn attempts_count_from_one_for_the_operation_and_in_events() {
    let stage = Stage::new("503 x2, ok");
    let retry = stage.retry(plain());
    let mut events = retry.events();
    let pipeline = Pipeline::new().then(retry).classify(ScriptedService::classify);
    let mut seen = Vec::new();
    let answer = stage.time.block_on(pipeline.call_with(|attempt| {
        seen.push(attempt.number());
        stage.service.call()
    }));
    assert_eq!((answer.unwrap(), seen), (200, vec![1, 2, 3]));
    let mut told = Vec::new();
    while let Ok(Some(event)) = events.try_recv() {
        told.push(event.what);
    }
    let cause = || Cause::Operation(FailureKind::Overloaded);
    assert_eq!(
        told,
        [
            RetryEvent::Retrying { attempt: 1, cause: cause(), delay: MS(100) },
            RetryEvent::Retrying { attempt: 2, cause: cause(), delay: MS(200) },
            RetryEvent::Recovered { attempts: 3 },
        ]
    );
}

// Guarantee: retry 1.
#[test]
fn a_delay_beyond_the_total_time_returns_the_last_error_at_once() {
    let stage = Stage::new("503 in 10ms");
    let start = stage.time.now();
    let error = stage.call(&stage.retry(plain().max_attempts(9).max_elapsed(MS(350)))).unwrap_err();
    // 10 + 100 + 10 fits, then 200 ms more start the third attempt at 320; 400 more would start at 730.
    assert_eq!((stage.service.calls(), stop(&error)), (3, Some(StopReason::TotalTime)));
    assert_eq!(stage.time.now() - start, MS(10 + 100 + 10 + 200 + 10));
    assert!(matches!(error.cause(), Cause::Operation(ScriptedError::Status { status: 503, .. })));
}

// Guarantee: retry 1.
#[test]
fn a_delay_beyond_the_deadline_returns_the_last_error_at_once() {
    let stage = Stage::new("503 in 10ms");
    let pipeline = Pipeline::new()
        .then(Timeout::builder(MS(300)).clock(&stage.clock).build())
        .then(stage.retry(plain().max_attempts(9)))
        .classify(ScriptedService::classify);
    let start = stage.time.now();
    let error = stage.time.block_on(pipeline.call(|| stage.service.call())).unwrap_err();
    assert_eq!((stage.service.calls(), stop(&error)), (2, Some(StopReason::Deadline)));
    assert_eq!(stage.time.now() - start, MS(120));
    assert!(!error.is_timed_out());
}

// Guarantee: retry 3.
#[test]
fn a_hint_is_honoured_and_jitter_only_adds_to_it() {
    let mut gaps = Vec::new();
    for seed in 0..50 {
        let stage = Stage::new("503 retry-after 5s, ok");
        let config = RetryConfig::default().idempotent(true); // full jitter, 100 ms
        let retry = stage.builder(config).entropy(&Entropy::from_seed(seed)).build().unwrap();
        assert_eq!(stage.call(&retry).unwrap(), 200);
        let gap = stage.service.gaps()[0];
        assert!((MS(5000)..=MS(5100)).contains(&gap), "{gap:?}");
        gaps.push(gap);
    }
    assert!(gaps.iter().any(|gap| *gap > MS(5010)) && gaps.iter().any(|gap| *gap < MS(5090)), "spread: {gaps:?}");
    let stage = Stage::new("503 retry-after 5s, ok");
    stage.call(&stage.retry(plain())).unwrap();
    assert_eq!(stage.service.gaps(), [MS(5000)]);
}

// Guarantee: retry 3.
#[test]
fn a_hint_above_the_maximum_fails_at_once_with_the_hint_in_the_error() {
    let stage = Stage::new("503 retry-after 2m");
    let start = stage.time.now();
    let error = stage.call(&stage.retry(plain().max_hint(MS(60_000)))).unwrap_err();
    assert_eq!((stage.service.calls(), stage.time.now()), (1, start));
    assert_eq!(stop(&error), Some(StopReason::HintTooLong));
    assert_eq!(error.retry_after(), Some(Duration::from_secs(120)));
}

// Guarantee: retry 3.
#[test]
fn a_negative_push_back_means_no_retry() {
    let (clock, time) = Clock::manual();
    let mut calls = 0;
    let pipeline = Pipeline::new()
        .then(Retry::builder(plain()).clock(&clock).build().unwrap())
        .classify(|_: &Result<(), ()>| Verdict::failure(FailureKind::Overloaded).with_hint(Hint::DoNotRetry));
    let error = time.block_on(pipeline.call(|| {
        calls += 1;
        async { Err(()) }
    }));
    assert_eq!(error.unwrap_err().history().unwrap().stop, StopReason::DoNotRetry);
    assert_eq!(calls, 1);
}

// Guarantee: retry 4.
#[test]
fn an_open_breaker_inside_is_not_retried() {
    let stage = Stage::new("ok");
    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).clock(&stage.clock).build().unwrap();
    breaker.force_open(Duration::from_secs(5));
    let start = stage.time.now();
    for (ask, waits) in [(false, MS(0)), (true, MS(5000))] {
        let config = plain().retry_rejections(ask);
        let pipeline = Pipeline::new().then(stage.retry(config)).then(breaker.clone());
        let answer = stage.time.block_on(pipeline.call(|| stage.service.call()));
        assert_eq!(answer.is_ok(), ask);
        assert_eq!(stage.time.now() - start, waits);
    }
    assert_eq!(stage.service.calls(), 1);
}

// Guarantee: retry 4.
#[test]
fn a_rejection_is_retried_only_if_its_time_fits() {
    let stage = Stage::new("ok");
    let limiter = RateLimiter::builder(Quota::per_minute(1)).clock(&stage.clock).build().unwrap();
    limiter.try_acquire().unwrap();
    let config = plain().retry_rejections(true).max_hint(MS(1000));
    let pipeline = Pipeline::new().then(stage.retry(config)).then(limiter);
    let error = stage.time.block_on(pipeline.call(|| stage.service.call())).unwrap_err();
    assert!(error.is_rejected());
    assert_eq!((error.attempts(), stop(&error)), (0, Some(StopReason::HintTooLong)));
    assert_eq!(error.retry_after(), Some(Duration::from_secs(60)));
}

// Guarantee: retry 5.
/// Regression seen in another library: 20,000 calls.
#[test]
fn a_budget_bounds_the_retries_of_ten_thousand_failing_requests() {
    let stage = Stage::new("503");
    let config = RetryBudgetConfig::default().ratio(0.2).min_per_second(10);
    let floor = 10 * 10;
    let budget = RetryBudget::new(config).unwrap();
    // All requests come at one moment, so no budget is earned by waiting.
    let retry =
        stage.builder(plain().max_attempts(2)).budget(&budget).delays(|| std::iter::repeat(MS(0))).build().unwrap();
    for _ in 0..10_000 {
        let _ = stage.call(&retry);
    }
    let calls = stage.service.calls();
    assert!(calls <= 12_000 + floor, "{calls}");
    assert!(calls >= 11_000, "the budget is there to be used: {calls}");
}

// Guarantee: retry 5.
#[test]
fn an_empty_budget_returns_the_original_outcome() {
    let stage = Stage::new("503");
    let budget = RetryBudget::new(RetryBudgetConfig::default().ratio(0.0).min_per_second(1).window(MS(1000))).unwrap();
    let retry = stage.builder(plain()).budget(&budget).build().unwrap();
    let first = stage.call(&retry).unwrap_err();
    assert_eq!((first.attempts(), stop(&first)), (2, Some(StopReason::Budget)));
    assert_eq!(first.into_operation(), Ok(ScriptedError::Status { status: 503, retry_after: None }));
    assert_eq!(stage.call(&retry).unwrap_err().attempts(), 1);
    stage.time.advance(MS(1100));
    assert_eq!(stage.call(&retry).unwrap_err().attempts(), 2);
}

// Guarantee: retry 5.
#[test]
fn a_budget_is_shared_and_a_time_out_costs_more() {
    let (clock, time) = Clock::manual();
    let budget =
        RetryBudget::new(RetryBudgetConfig::default().ratio(0.0).min_per_second(1).cost(1).timeout_cost(4)).unwrap();
    let one = Retry::builder(plain().max_attempts(2)).clock(&clock).budget(&budget).build().unwrap();
    let other = one.clone();
    let call = |retry: &Retry, kind| {
        let pipeline = Pipeline::new().then(retry.clone()).classify(move |_: &Result<(), ()>| Verdict::failure(kind));
        time.block_on(pipeline.call(|| async { Err(()) })).unwrap_err().attempts()
    };
    assert_eq!(budget.balance(time.now()), 10);
    assert_eq!(call(&one, FailureKind::Timeout), 2);
    assert_eq!(call(&other, FailureKind::Timeout), 2);
    assert_eq!(budget.balance(time.now()), 2);
    assert_eq!(call(&one, FailureKind::Timeout), 1);
    assert_eq!(call(&one, FailureKind::Server), 2);
}

// Guarantee: retry 6.
#[test]
fn an_operation_that_is_not_idempotent_is_retried_only_if_it_was_not_sent() {
    for (kind, attempts) in [(FailureKind::Connect, 3), (FailureKind::Timeout, 1), (FailureKind::Server, 1)] {
        let (clock, time) = Clock::manual();
        let retry = |config| Retry::builder(config).clock(&clock).build().unwrap();
        let judge = move |_: &Result<(), ()>| Verdict::failure(kind);
        let by_call = Pipeline::new().then(retry(plain())).classify(judge);
        let error = time.block_on(by_call.call(not_idempotent(|| async { Err(()) }))).unwrap_err();
        assert_eq!(error.attempts(), attempts, "{kind}");
        let by_setting = Pipeline::new().then(retry(plain().idempotent(false))).classify(judge);
        assert_eq!(time.block_on(by_setting.call(|| async { Err(()) })).unwrap_err().attempts(), attempts);
        if attempts == 1 {
            assert_eq!(error.history().unwrap().stop, StopReason::NotIdempotent);
        }
    }
}

// Guarantee: retry 7.
#[test]
fn a_retry_inside_another_does_not_multiply_attempts() {
    let stage = Stage::new("503");
    let nested = |config: RetryConfig| {
        let inner = stage.retry(config);
        Pipeline::new().then(stage.retry(plain())).then(inner).classify(ScriptedService::classify)
    };
    stage.time.block_on(nested(plain()).call(|| stage.service.call())).unwrap_err();
    assert_eq!(stage.service.calls(), 3);
    stage.time.block_on(nested(plain().retry_nested(true)).call(|| stage.service.call())).unwrap_err();
    assert_eq!(stage.service.calls(), 3 + 9);
}

// Guarantee: retry 7.
#[test]
fn a_retry_in_a_nested_pipeline_does_not_multiply_attempts() {
    let stage = Stage::new("503");
    let inner = Pipeline::new().then(stage.retry(plain())).classify(ScriptedService::classify);
    let outer = Pipeline::new().then(stage.retry(plain()));
    let call = outer.call_with(|attempt| inner.call_within(attempt, || stage.service.call()));
    stage.time.block_on(call).unwrap_err();
    assert_eq!(stage.service.calls(), 3);
}

// Guarantee: retry 8.
#[test]
fn the_final_error_keeps_first_and_last_cause_attempts_and_time() {
    let stage = Stage::new("500 in 10ms, reset, 503");
    let error = stage.call(&stage.retry(plain())).unwrap_err();
    let history = error.history().unwrap();
    assert!(matches!(history.first, Some(Cause::Operation(ScriptedError::Status { status: 500, .. }))));
    assert_eq!((history.first_kind, history.last_kind), (Some(FailureKind::Server), Some(FailureKind::Overloaded)));
    assert_eq!((error.attempts(), history.stop, history.elapsed), (3, StopReason::Attempts, MS(10 + 100 + 200)));
    assert_eq!(error.to_string(), "status 503 (after 3 attempts in 310ms: all attempts used)");
}

#[test]
fn only_the_configured_kinds_are_retried() {
    for (kinds, calls) in [(KindSet::of(&[FailureKind::Overloaded]), 3), (KindSet::of(&[FailureKind::Timeout]), 1)] {
        let stage = Stage::new("503");
        let error = stage.call(&stage.retry(plain().retry_on(kinds))).unwrap_err();
        assert_eq!(error.attempts(), calls);
    }
    let stage = Stage::new("404");
    let error = stage.call(&stage.retry(plain())).unwrap_err();
    assert_eq!(error.attempts(), 1);
    assert!(error.history().is_none());
}

#[test]
fn custom_delays_are_used_unchanged_and_end_the_retry_when_exhausted() {
    let stage = Stage::new("503");
    let retry = stage.builder(plain().max_attempts(9)).delays(|| [MS(7), MS(0), MS(11)].into_iter()).build().unwrap();
    let error = stage.call(&retry).unwrap_err();
    assert_eq!((stage.service.gaps(), stop(&error)), (vec![MS(7), MS(0), MS(11)], Some(StopReason::BackoffEnded)));
}

#[test]
fn a_value_that_is_judged_a_failure_is_retried_and_finally_returned() {
    let (clock, time) = Clock::manual();
    let mut page = 0;
    let pipeline =
        Pipeline::new().then(Retry::builder(plain()).clock(&clock).build().unwrap()).classify(|r: &Result<u32, ()>| {
            match r {
                Ok(n) if *n < 9 => Verdict::failure(FailureKind::Other),
                _ => Verdict::success(),
            }
        });
    let last = time.block_on(pipeline.call(|| {
        page += 1;
        let page = page;
        async move { Ok(page) }
    }));
    assert_eq!(last.unwrap(), 3);
}

#[test]
fn presets_fit_interactive_and_batch_work() {
    let (interactive, batch) = (RetryConfig::interactive(), RetryConfig::batch());
    assert!(interactive.max_attempts < batch.max_attempts && interactive.backoff.cap < batch.backoff.cap);
    assert!(Retry::new(interactive).is_ok() && Retry::new(batch).is_ok());
}
