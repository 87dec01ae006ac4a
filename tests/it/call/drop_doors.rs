//! Async methods that `drops.rs` does not cover, dropped at every await point in turn.
use std::time::Duration;

use steadfast::{
    Pipeline,
    call::AttemptInfo,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State},
    observe::Missed,
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    standard::{Standard, StandardConfig},
    testing::{ManualClock, ScriptedService, drop_at_every_await},
    throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter, Quota, RateLimitConfig, RateLimiter},
    time::Clock,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// A stack with every part switched on, and a service that keeps it busy.
fn busy() -> (Standard, ScriptedService, ManualClock) {
    let (clock, time) = Clock::manual();
    let config = StandardConfig::default()
        .retry(RetryConfig::default().idempotent(true))
        .timeout(MS(60_000))
        .rate_limit(RateLimitConfig::from(Quota::per_second(10).burst(2)).max_wait(MS(10_000)))
        .concurrency_limit(ConcurrencyLimitConfig::of(2).queue(2).max_wait(MS(10_000)))
        .circuit_breaker(CircuitBreakerConfig::default().count_window(1000, 1000))
        .attempt_timeout(MS(50));
    let service = ScriptedService::new("503 in 10ms, hang, ok in 20ms", &clock).unwrap();
    (Standard::builder(config).clock(&clock).build().unwrap(), service, time)
}

/// Checks that no permit is held, and that the breaker counts calls that ended, never dropped ones.
fn conserved(stack: &Standard, service: &ScriptedService) {
    let limiter = stack.concurrency_limit().unwrap();
    assert_eq!((limiter.available(), limiter.waiting(), service.running()), (2, 0, 0));
    let breaker = stack.circuit_breaker().unwrap().snapshot();
    assert_eq!(breaker.state, State::Closed);
    assert!(breaker.calls as usize <= service.calls());
}

// Guarantee: call 5.
#[test]
fn a_dropped_call_through_a_boxed_pipeline_returns_all_permits() {
    let (stack, service, time) = busy();
    let pipeline = Pipeline::new().then(stack.clone()).classify(ScriptedService::classify).boxed();
    let polls = drop_at_every_await(&time, || pipeline.call(|| service.call()), |_| conserved(&stack, &service));
    assert!(polls >= 2, "{polls}");
}

// Guarantee: call 5.
#[test]
fn a_dropped_call_with_tracing_returns_all_permits() {
    let (stack, service, time) = busy();
    let pipeline = Pipeline::new().then(stack.clone()).classify(ScriptedService::classify);
    let polls = tracing::subscriber::with_default(tracing_subscriber::registry(), || {
        drop_at_every_await(&time, || pipeline.call(|| service.call()), |_| conserved(&stack, &service))
    });
    assert!(polls >= 2, "{polls}");
}

// Guarantee: call 5.
#[test]
fn a_dropped_call_with_or_within_an_attempt_returns_all_permits() {
    let (stack, service, time) = busy();
    let pipeline = Pipeline::new().then(stack.clone()).classify(ScriptedService::classify);
    drop_at_every_await(&time, || pipeline.call_with(|_| service.call()), |_| conserved(&stack, &service));
    let (stack, service, time) = busy();
    let pipeline = Pipeline::new().then(stack.clone()).classify(ScriptedService::classify);
    let within = || pipeline.call_within(AttemptInfo::with_deadline(time.now() + MS(45)), || service.call());
    drop_at_every_await(&time, within, |_| conserved(&stack, &service));
}

// Guarantee: call 5.
/// Three concurrent calls for two permits, dropped at any point.
#[test]
fn dropped_calls_that_wait_for_each_other_return_all_permits() {
    let (stack, service, time) = busy();
    let pipeline = Pipeline::new().then(stack.clone()).classify(ScriptedService::classify);
    let three = || async {
        let call = || pipeline.call(|| service.call());
        futures::join!(call(), call(), call())
    };
    let polls = drop_at_every_await(&time, three, |_| conserved(&stack, &service));
    assert!(polls > 4, "{polls}");
    assert_eq!(service.most_running(), 2);
}

// Guarantee: call 5.
#[test]
fn a_dropped_wait_for_several_permits_returns_them() {
    for config in [Quota::per_second(10).burst(5).into(), RateLimitConfig::from(Quota::per_second(5)).strict()] {
        let (clock, time) = Clock::manual();
        let limiter = RateLimiter::builder(config).clock(&clock).build().unwrap();
        limiter.try_acquire_n(5).unwrap();
        let before = limiter.try_acquire().unwrap_err().retry_after();
        let polls = drop_at_every_await(
            &time,
            || limiter.acquire_n(3, MS(60_000)),
            |polls| {
                if polls < 2 {
                    assert_eq!(
                        limiter.try_acquire().unwrap_err().retry_after(),
                        before,
                        "no turn is kept by a dropped call"
                    );
                }
            },
        );
        assert_eq!(polls, 2);
    }
}

// Guarantee: call 5.
#[test]
fn light_calls_pass_when_a_waiting_heavy_call_is_dropped() {
    let (clock, time) = Clock::manual();
    let limiter = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(3).queue(4).max_wait(MS(1000)))
        .clock(&clock)
        .build()
        .unwrap();
    let taken = limiter.try_acquire().unwrap();
    let heavy = limiter.weighing(3);
    let polls = drop_at_every_await(
        &time,
        || heavy.acquire(),
        |_| {
            assert_eq!((limiter.available(), limiter.waiting()), (2, 0));
            assert!(limiter.try_acquire().is_ok(), "the mark of those that wait is gone with the last of them");
        },
    );
    assert_eq!(polls, 2);
    drop(taken);
}

// Guarantee: call 5.
/// The call is dropped after its permit was granted and before it was polled.
#[test]
fn a_permit_granted_to_a_dropped_call_goes_to_the_next_call() {
    let (clock, time) = Clock::manual();
    let limiter = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(1).queue(4).max_wait(MS(1000)))
        .clock(&clock)
        .build()
        .unwrap();
    let taken = limiter.try_acquire().unwrap();
    time.block_on(async {
        let (mut first, mut second) = (Box::pin(limiter.acquire()), Box::pin(limiter.acquire()));
        assert!(futures::poll!(&mut first).is_pending() && futures::poll!(&mut second).is_pending());
        drop(taken); // granted to the first, which has not looked yet
        drop(first);
        assert_eq!(limiter.waiting(), 0);
        drop(second.await.unwrap());
    });
    assert_eq!((limiter.available(), limiter.waiting()), (1, 0));
}

// Guarantee: call 5.
#[test]
fn a_dropped_probe_inside_a_retry_returns_its_permit() {
    let (clock, time) = Clock::manual();
    let breaker =
        CircuitBreaker::builder(CircuitBreakerConfig::default().half_open_calls(1, 1.0)).clock(&clock).build().unwrap();
    breaker.force_open(MS(1));
    time.advance(MS(1));
    let service = ScriptedService::new("ok in 10ms", &clock).unwrap();
    let budget = RetryBudget::new(RetryBudgetConfig::default()).unwrap();
    let retry = Retry::builder(RetryConfig::default().idempotent(true)).clock(&clock).budget(&budget).build().unwrap();
    let pipeline = Pipeline::new().then(retry).then(breaker.clone());
    let full = budget.balance(time.now());
    drop_at_every_await(
        &time,
        || pipeline.call(|| service.call()),
        |polls| {
            assert!(budget.balance(time.now()) >= full, "nothing was retried");
            if polls == 1 {
                assert_eq!(breaker.state(), State::HalfOpen);
                assert!(breaker.try_acquire().is_ok());
            }
        },
    );
    assert_eq!(breaker.state(), State::Closed);
}

#[test]
#[expect(clippy::await_holding_refcell_ref, reason = "one future at a time borrows, and is dropped before the next")]
fn a_dropped_wait_for_an_event_loses_no_event() {
    let (clock, time) = Clock::manual();
    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap();
    let events = std::cell::RefCell::new(breaker.events());
    let numbers = std::cell::RefCell::new(Vec::new());
    drop_at_every_await(
        &time,
        || async {
            let mut events = events.borrow_mut();
            let listens = async { numbers.borrow_mut().push(events.recv().await.unwrap().number) };
            let happens = async {
                clock.sleep(MS(1)).await;
                breaker.isolate();
            };
            futures::join!(listens, happens);
        },
        |_| {},
    );
    drop(breaker);
    while let Ok(Some(event)) = events.borrow_mut().try_recv() {
        numbers.borrow_mut().push(event.number);
    }
    assert_eq!(*numbers.borrow(), [1, 2], "both isolations, of which one came as its listener was dropped");
    assert_eq!(events.borrow_mut().try_recv(), Err(Missed::Closed));
}
