//! The type of a call is shallow enough for users of the crate.
//! The compiler limits how deep types nest: 128 levels in a crate without a limit of its own. Each
//! `async fn` around a call adds four: sixteen functions are 64 levels of the user's own. This file has no limit of its own, as most crates.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]
use std::time::Duration;

use steadfast::{
    Outcome, Pipeline,
    call::{Attempt, CallContext, Policy, Switch, idempotent},
    hedge::HedgeConfig,
    standard::{Standard, StandardConfig},
    testing::ScriptedService,
    time::Clock,
    timeout::Timeout,
};

/// Defines functions that call each other in this order.
macro_rules! handlers {
    ($outer:ident $inner:ident $($rest:ident)*) => {
        async fn $outer(calls: &Pipeline<impl Policy>, id: &str) -> usize {
            $inner(calls, id).await
        }
        handlers!($inner $($rest)*);
    };
    ($innermost:ident) => {};
}

handlers! {
    f01 f02 f03 f04 f05 f06 f07 f08 f09 f10 f11 f12 f13 f14 f15 f16
}

async fn f16(calls: &Pipeline<impl Policy>, id: &str) -> usize {
    calls.call(|| async { Ok::<_, std::io::Error>(id.len()) }).await.unwrap()
}

// Guarantee: standard 5.
/// Regression: the stack took 142 levels, so that no crate could call it without a
/// `recursion_limit` of its own, and then 116, which left room for six such functions.
#[tokio::test]
async fn the_standard_stack_can_be_called_through_sixteen_async_functions() {
    let calls = Pipeline::new().then(Standard::new(StandardConfig::default()).unwrap());
    assert_eq!(tokio::spawn(async move { f01(&calls, "an id").await }).await.unwrap(), 5);
}

/// A policy of the user's own that is `around` and nothing else.
struct Wrapped<P>(P);

impl<P: Policy> Policy for Wrapped<P> {
    async fn around<A: Attempt>(&self, inner: A, cx: CallContext<'_>) -> Outcome {
        self.0.around(inner, cx).await
    }
}

fn stack() -> Standard {
    Standard::new(StandardConfig::default()).unwrap()
}

// Guarantee: standard 6.
/// Regression: the compiler needed hours and all memory for a stack inside another one.
#[tokio::test]
async fn a_standard_stack_inside_another_can_be_called_through_sixteen_async_functions() {
    let calls = Pipeline::new().then(stack()).then(stack());
    assert_eq!(tokio::spawn(async move { f01(&calls, "an id").await }).await.unwrap(), 5);
    // Also through other policies, the user's own among them, and more than once: a time-out outside takes levels, too.
    let between = Timeout::new(Duration::from_secs(1));
    let calls = Pipeline::new().then(stack()).then(between.clone()).then(Wrapped(Some(stack()))).then(stack());
    assert_eq!(tokio::spawn(async move { f09(&calls, "an id").await }).await.unwrap(), 5);
    let calls =
        Pipeline::new().then(Wrapped((stack(), between.clone()))).then(((between, Switch::new(stack())), stack()));
    assert_eq!(tokio::spawn(async move { f09(&calls, "an id").await }).await.unwrap(), 5);
}

// Guarantee: standard 6.
/// The operation of one pipeline enters another, as `Pipeline::call_within` describes.
#[tokio::test]
async fn a_standard_stack_inside_an_attempt_of_another_can_be_called_through_async_functions() {
    async fn ask(outer: &Pipeline<impl Policy>, inner: &Pipeline<impl Policy>, id: &str) -> usize {
        let length = |attempt| inner.call_within(attempt, || async { Ok::<_, std::io::Error>(id.len()) });
        outer.call_with(length).await.unwrap()
    }
    async fn g1(outer: &Pipeline<impl Policy>, inner: &Pipeline<impl Policy>, id: &str) -> usize {
        g2(outer, inner, id).await
    }
    async fn g2(outer: &Pipeline<impl Policy>, inner: &Pipeline<impl Policy>, id: &str) -> usize {
        g3(outer, inner, id).await
    }
    async fn g3(outer: &Pipeline<impl Policy>, inner: &Pipeline<impl Policy>, id: &str) -> usize {
        ask(outer, inner, id).await
    }
    let (outer, inner) = (Pipeline::new().then(stack()), Pipeline::new().then(stack()));
    assert_eq!(tokio::spawn(async move { g1(&outer, &inner, "an id").await }).await.unwrap(), 5);
}

// Guarantee: standard 6.
/// Each policy of an inner stack still works: its hedge starts a second attempt, and its time-out ends both.
#[test]
fn a_hedge_in_an_inner_stack_hedges() {
    let (clock, time) = Clock::manual();
    let mut config = StandardConfig::default();
    (config.timeout, config.hedge) =
        (Some(Duration::from_secs(2)), Some(HedgeConfig::after(Duration::from_millis(50)).idempotent(true)));
    let inner = Standard::builder(config).clock(&clock).build().unwrap();
    let outer = Standard::builder(StandardConfig::default()).clock(&clock).build().unwrap();
    let calls = Pipeline::new().then(outer).then(inner).classify(ScriptedService::classify);
    let service = ScriptedService::new("ok in 1s, ok in 20ms, ok in 1m, ok in 1m", &clock).unwrap();
    let start = time.now();
    assert_eq!(time.block_on(calls.call(idempotent(|| service.call()))).unwrap(), 200);
    assert_eq!((time.now() - start, service.calls()), (Duration::from_millis(70), 2));
    let error = time.block_on(calls.call(|| service.call())).unwrap_err();
    assert!(error.is_timed_out() && service.calls() == 4, "{error}");
}
