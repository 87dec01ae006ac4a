//! Errors of calls in functions with `?`: ordinary errors, `anyhow::Error`, and boxed ones.
use std::{error::Error, fmt};

use steadfast::{
    CallError, Cause, Pipeline,
    outcome::DynError,
    retry::{Retry, RetryConfig},
    testing::ManualClock,
    time::Clock,
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
