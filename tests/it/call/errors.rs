//! Errors of calls in functions with `?`: ordinary errors, `anyhow::Error`, and boxed ones.
use std::{error::Error, fmt, time::Duration};

use steadfast::{
    CallError, Cause, FailureKind, Pipeline, PolicyError, PolicyKind,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
    outcome::{ByCallError, DynError, StopReason},
    retry::{Retry, RetryConfig},
    testing::ManualClock,
    throttling::{Quota, RateLimiter},
    time::Clock,
    timeout::Timeout,
};

type Boxed = Box<dyn Error + Send + Sync>;

/// An operation's error with a source.
#[derive(Debug)]
struct Away(fmt::Error);

impl fmt::Display for Away {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("away")
    }
}

impl Error for Away {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

fn pipeline() -> (Pipeline<impl steadfast::call::Policy>, ManualClock) {
    let (clock, time) = Clock::manual();
    let retry = Retry::builder(RetryConfig::default().max_attempts(2).idempotent(true)).clock(&clock).build().unwrap();
    (Pipeline::new().then(retry), time)
}

/// The texts of an error and of its sources.
fn chain(error: &(dyn Error + 'static)) -> Vec<String> {
    let mut texts = vec![error.to_string()];
    let mut next = error.source();
    while let Some(source) = next {
        texts.push(source.to_string());
        next = source.source();
    }
    texts
}

fn assert_chain(error: &(dyn Error + 'static)) {
    let texts = chain(error);
    assert!(texts[0].starts_with("away (after 2 attempts in "), "{texts:?}");
    assert_eq!(texts[1..], [fmt::Error.to_string()]);
}

#[test]
fn a_call_error_of_an_ordinary_error_converts_by_a_question_mark_and_keeps_the_sources() {
    let (pipeline, time) = pipeline();
    let operation = || async { Err::<(), _>(Away(fmt::Error)) };
    let boxed: Result<(), Boxed> = time.block_on(async { Ok(pipeline.call(operation).await?) });
    let boxed = boxed.unwrap_err();
    assert_chain(&*boxed);
    assert_eq!(boxed.downcast_ref::<CallError<Away>>().unwrap().attempts(), 2);
    let any: anyhow::Result<()> = time.block_on(async { Ok(pipeline.call(operation).await?) });
    let any = any.unwrap_err();
    assert_chain(any.as_ref());
    assert_eq!(any.downcast_ref::<CallError<Away>>().unwrap().attempts(), 2);
}

#[test]
fn a_call_error_of_anyhow_s_error_converts_to_anyhow_and_back() {
    let (pipeline, time) = pipeline();
    let operation = || async { Err::<(), _>(anyhow::Error::new(Away(fmt::Error))) };
    let any: anyhow::Result<()> =
        time.block_on(async { Ok(pipeline.call(operation).await.map_err(CallError::into_std)?) });
    let any = any.unwrap_err();
    assert_chain(any.as_ref());
    let error = any.downcast::<CallError<DynError<anyhow::Error>>>().unwrap();
    assert_eq!(error.attempts(), 2);
    assert!(error.history().unwrap().first.is_some());
    let Cause::Operation(cause) = error.cause() else { panic!("the operation failed") };
    assert!(cause.get_ref().is::<Away>());
    let own = error.into_operation().unwrap().into_inner();
    assert_eq!(own.downcast::<Away>().unwrap().to_string(), "away");
}

#[test]
fn a_call_error_of_a_boxed_error_converts_to_a_boxed_error_and_back() {
    let (pipeline, time) = pipeline();
    let operation = || async { Err::<(), Boxed>(Away(fmt::Error).into()) };
    let boxed: Result<(), Boxed> =
        time.block_on(async { Ok(pipeline.call(operation).await.map_err(CallError::into_std)?) });
    let boxed = boxed.unwrap_err();
    assert_chain(&*boxed);
    let error = boxed.downcast::<CallError<DynError<Boxed>>>().unwrap();
    assert_eq!(error.attempts(), 2);
    let own = error.into_operation().unwrap().into_inner();
    assert_eq!(own.downcast::<Away>().unwrap().to_string(), "away");
}

#[test]
fn the_parts_of_an_error_are_those_of_its_methods() {
    let (pipeline, time) = pipeline();
    let failed = || async { Err::<u8, _>("away") };
    let call = pipeline.call_or(failed, |_| async { Err("the fallback too") });
    let parts = time.block_on(call).unwrap_err().into_parts();
    assert_eq!(parts.cause, Cause::Operation("away"));
    assert!(parts.verdict.is_failure());
    assert_eq!(parts.attempts, 2);
    assert_eq!(parts.history.unwrap().first, Some(Cause::Operation("away")));
    assert_eq!(parts.fallback, Some(Cause::Operation("the fallback too")));
    let parts = time.block_on(Pipeline::new().call(failed)).unwrap_err().into_parts();
    assert_eq!((parts.cause, parts.attempts), (Cause::Operation("away"), 1));
    assert!(parts.history.is_none() && parts.fallback.is_none());
}

/// The error of a service, with one variant for the policies.
#[derive(Debug, thiserror::Error, PartialEq)]
enum AppError {
    #[error("format: {0}")]
    Format(#[from] fmt::Error),
    #[error("number: {0}")]
    Number(#[from] std::num::ParseIntError),
    #[error(transparent)]
    Policy(PolicyError),
}

impl<E: Into<Self>> From<CallError<E>> for AppError {
    fn from(error: CallError<E>) -> Self {
        error.into_operation().map_or_else(Self::Policy, E::into)
    }
}

#[test]
fn one_conversion_in_the_service_serves_the_calls_of_all_its_operations() {
    let (clock, time) = Clock::manual();
    let limiter = RateLimiter::builder(Quota::per_second(4)).clock(&clock).build().unwrap();
    let timeout = Timeout::builder(Duration::from_secs(1)).name("whole").clock(&clock).build();
    let inner = Pipeline::new().then(limiter);
    let outer = Pipeline::new().then(timeout).classify(ByCallError);
    let plain = &inner;
    let called: Result<(), AppError> = time.block_on(async {
        let four = plain.call(|| async { "4".parse::<u32>() }).await?;
        plain.call(|| async { Ok::<_, fmt::Error>(four) }).await?;
        plain.call(|| async { Ok::<_, AppError>(four) }).await?;
        Ok(plain.call(|| async { Err(fmt::Error) }).await?)
    });
    assert_eq!(called, Err(AppError::Format(fmt::Error)));

    // A rejection by the pipeline, and by one inside another one.
    let four = || async { "4".parse::<u32>() };
    let rejected: Result<u32, AppError> = time.block_on(async { Ok(plain.call(four).await?) });
    let nested: Result<u32, AppError> =
        time.block_on(async { Ok(outer.call_with(|attempt| plain.call_within(attempt, four)).await?) });
    for called in [rejected, nested] {
        let Err(AppError::Policy(error)) = called else { panic!("rejected: {called:?}") };
        assert_eq!(error.retry_after(), Some(Duration::from_millis(250)));
        assert!(error.to_string().starts_with("rejected by the rate limit: limit reached"), "{error}");
        assert!(matches!(error, PolicyError::Rejected(rejected) if rejected.by() == PolicyKind::RateLimit));
    }
    let hangs = || std::future::pending::<Result<u32, CallError<fmt::Error>>>();
    let late: Result<u32, AppError> = time.block_on(async { Ok(outer.call(hangs).await?) });
    let Err(AppError::Policy(error)) = late else { panic!("timed out: {late:?}") };
    assert_eq!((error.retry_after(), &*error.to_string()), (None, "timed out after 1s (`whole`)"));
}

#[test]
fn a_nested_error_flattens_to_that_of_the_inner_call() {
    let (pipeline, time) = pipeline();
    let outer = Pipeline::new().classify(ByCallError);
    let error = time.block_on(outer.call(|| pipeline.call(|| async { Err::<u8, _>("away") }))).unwrap_err();
    assert!(error.history().is_none());
    let error = error.flatten();
    // The inner retry made both attempts, and its history is kept.
    assert_eq!((error.cause(), error.attempts()), (&Cause::Operation("away"), 2));
    assert_eq!(error.history().unwrap().stop, StopReason::Attempts);
    assert_eq!(error.verdict().kind(), Some(FailureKind::Other));
}

#[test]
fn a_nested_error_flattens_with_the_history_and_the_fallback_of_the_outer_call() {
    let (pipeline, time) = pipeline();
    let inner = Pipeline::new();
    let pipeline = pipeline.classify(ByCallError);
    let failed = || inner.call(|| async { Err::<u8, _>("away") });
    let call = pipeline.call_or(failed, |_| inner.call(|| async { Err("the fallback too") }));
    let error = time.block_on(call).unwrap_err().flatten();
    assert_eq!((error.cause(), error.attempts()), (&Cause::Operation("away"), 2));
    let history = error.history().unwrap();
    assert_eq!((&history.first, history.stop), (&Some(Cause::Operation("away")), StopReason::Attempts));
    assert_eq!(error.fallback(), Some(&Cause::Operation("the fallback too")));
}

#[test]
fn a_nested_error_keeps_a_rejection_by_the_outer_policies() {
    let (_, time) = Clock::manual();
    let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
    breaker.isolate();
    let outer = Pipeline::new().then(breaker);
    let inner = Pipeline::new();
    let call = outer.call(|| inner.call(|| async { Ok::<u8, &str>(7) }));
    let error = time.block_on(call).unwrap_err().flatten();
    assert!(error.is_rejected() && error.attempts() == 0, "{error}");
}
