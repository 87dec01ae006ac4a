//! Retry: the operations that are repeated after a failure that does not prove that nothing was
//! sent.
use std::{
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    time::Duration,
};

use steadfast::{
    FailureKind, Pipeline, Priority, Verdict,
    call::{OperationName, idempotent, named, not_idempotent, with_priority},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
    hedge::{Hedge, HedgeConfig},
    outcome::StopReason,
    retry::{Retry, RetryConfig, RetryEvent},
    standard::{Standard, StandardConfig},
    time::Clock,
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// A bank that charges the card at once and answers after the time `answer`.
async fn charge(charges: &AtomicU32, clock: &Clock, answer: Duration) -> Result<u32, std::io::Error> {
    let receipt = charges.fetch_add(1, SeqCst) + 1;
    clock.sleep(answer).await;
    Ok(receipt)
}

// Guarantee: retry 6.
#[test]
fn an_unmarked_charge_whose_answer_comes_too_late_is_sent_once() {
    for answer in [MS(301), MS(400), Duration::from_secs(3), Duration::MAX] {
        let (clock, time) = Clock::manual();
        let payments = Pipeline::new()
            .then(Timeout::builder(Duration::from_secs(2)).clock(&clock).build())
            .then(Retry::builder(RetryConfig::interactive()).clock(&clock).build().unwrap())
            .then(CircuitBreaker::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap())
            .then(Timeout::builder(MS(300)).clock(&clock).build());
        let charges = AtomicU32::new(0);
        let error = time.block_on(payments.call(|| charge(&charges, &clock, answer))).unwrap_err();
        assert_eq!(charges.load(SeqCst), 1, "{answer:?}");
        assert_eq!(error.history().unwrap().stop, StopReason::NotIdempotent);
    }
}

// Guarantee: retry 6.
#[test]
fn the_standard_stack_sends_an_unmarked_charge_once() {
    let (clock, time) = Clock::manual();
    let stack = Standard::builder(StandardConfig::default()).clock(&clock).build().unwrap().into_pipeline();
    let charges = AtomicU32::new(0);
    time.block_on(stack.call(|| charge(&charges, &clock, Duration::from_secs(60)))).unwrap_err();
    assert_eq!(charges.load(SeqCst), 1);
}

// Guarantee: retry 6.
#[test]
fn a_failure_that_proves_that_nothing_was_sent_is_repeated_without_a_mark() {
    for (kind, attempts) in [
        (FailureKind::Connect, 3),
        (FailureKind::Timeout, 1),
        (FailureKind::Throttled, 1),
        (FailureKind::Overloaded, 1),
        (FailureKind::Server, 1),
        (FailureKind::Other, 1),
    ] {
        let (clock, time) = Clock::manual();
        let retry = Retry::builder(RetryConfig::default()).clock(&clock).build().unwrap();
        let pipeline = Pipeline::new().then(retry).classify(move |_: &Result<(), ()>| Verdict::failure(kind));
        let error = time.block_on(pipeline.call(|| async { Err(()) })).unwrap_err();
        assert_eq!(error.attempts(), attempts, "{kind}");
    }
}

// Guarantee: retry 6.
#[test]
fn a_mark_takes_precedence_over_the_setting_and_an_outer_mark_over_inner_ones() {
    static CHARGE: OperationName = OperationName::new("charge");
    let fails = || async { Err::<(), _>(()) };
    for setting in [false, true] {
        let (clock, time) = Clock::manual();
        let retry = Retry::builder(RetryConfig::default().idempotent(setting)).clock(&clock).build().unwrap();
        let pipeline = Pipeline::new().then(retry.clone());
        let unmarked = if setting { 3 } else { 1 };
        for (attempts, error) in [
            (unmarked, time.block_on(pipeline.call(fails)).unwrap_err()),
            (unmarked, time.block_on(pipeline.call(named(&CHARGE, fails))).unwrap_err()),
            (unmarked, time.block_on(pipeline.call_with(|_| fails())).unwrap_err()),
            (unmarked, time.block_on(retry.call(fails)).unwrap_err()),
            (3, time.block_on(pipeline.call(idempotent(fails))).unwrap_err()),
            (3, time.block_on(retry.call(idempotent(fails))).unwrap_err()),
            (3, time.block_on(pipeline.call(named(&CHARGE, idempotent(fails)))).unwrap_err()),
            (3, time.block_on(pipeline.call(with_priority(Priority::High, idempotent(fails)))).unwrap_err()),
            (3, time.block_on(pipeline.call(idempotent(not_idempotent(fails)))).unwrap_err()),
            (1, time.block_on(pipeline.call(not_idempotent(fails))).unwrap_err()),
            (1, time.block_on(pipeline.call(not_idempotent(idempotent(fails)))).unwrap_err()),
        ] {
            assert_eq!(error.attempts(), attempts, "setting {setting}");
        }
    }
}

// Guarantee: retry 6.
#[test]
fn a_missing_mark_is_reported_in_the_error_and_the_event() {
    let (clock, time) = Clock::manual();
    let retry = Retry::builder(RetryConfig::default()).clock(&clock).build().unwrap();
    let mut events = retry.events();
    let error = time.block_on(retry.call(|| async { Err::<(), _>("reset") })).unwrap_err();
    assert_eq!(error.history().unwrap().stop.to_string(), "not marked as idempotent, and may have been sent");
    let told = events.try_recv().unwrap().unwrap().what;
    assert!(matches!(told, RetryEvent::GaveUp { attempts: 1, stop: StopReason::NotIdempotent, .. }), "{told:?}");
}

#[test]
fn explain_states_how_a_retry_treats_unmarked_operations() {
    let told = |config, mark: Option<bool>| {
        let pipeline = Pipeline::new().then(Retry::new(config).unwrap()).then(Timeout::new(MS(300)));
        let work = || async { Ok::<_, ()>(()) };
        match mark {
            None => pipeline.explain_for(&work),
            Some(true) => pipeline.explain_for(&idempotent(work)),
            Some(false) => pipeline.explain_for(&not_idempotent(work)),
        }
        .to_string()
    };
    let (careful, trusting) = (RetryConfig::default(), RetryConfig::default().idempotent(true));
    let warning = "repeats an operation that is not marked as idempotent only after";
    for (config, mark, assumption, warns) in [
        (careful, None, "repeats unmarked operations only after failures that prove that nothing was sent", true),
        (careful, Some(true), "repeats unmarked operations only after", false),
        (careful, Some(false), "repeats unmarked operations only after", true),
        (trusting, None, "assumes that unmarked operations are idempotent", false),
        (trusting, Some(true), "assumes that unmarked operations are idempotent", false),
        (trusting, Some(false), "assumes that unmarked operations are idempotent", true),
    ] {
        let text = told(config, mark);
        assert!(text.contains(assumption), "{text}");
        assert_eq!(text.contains(warning), warns, "{mark:?}: {text}");
    }
}

#[test]
fn explain_warns_if_hedge_and_retry_treat_unmarked_operations_differently() {
    let hedged = |config: HedgeConfig, mark: Option<bool>| {
        let (clock, time) = Clock::manual();
        let pipeline = Pipeline::new().then(Hedge::builder(config).clock(&clock).build().unwrap());
        let charges = AtomicU32::new(0);
        let work = || charge(&charges, &clock, MS(400));
        match mark {
            None => time.block_on(pipeline.call(work)),
            Some(true) => time.block_on(pipeline.call(idempotent(work))),
            Some(false) => time.block_on(pipeline.call(not_idempotent(work))),
        }
        .unwrap();
        charges.load(SeqCst)
    };
    let config = HedgeConfig::after(MS(50)).idempotent(true);
    let runs = |config| [None, Some(true), Some(false)].map(|mark| hedged(config, mark));
    assert_eq!((runs(config), runs(config.idempotent(false))), ([2, 2, 1], [1, 2, 1]));
    let retry = Retry::new(RetryConfig::default()).unwrap();
    let pipeline = Pipeline::new().then(retry).then(Hedge::new(config).unwrap());
    let warns = |warnings: Vec<String>| warnings.iter().any(|w| w.contains("the retry treats as not idempotent"));
    assert!(warns(pipeline.explain().warnings()));
    assert!(!warns(pipeline.explain_for(&idempotent(|| async { Ok::<_, ()>(()) })).warnings()));
}
