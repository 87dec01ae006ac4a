//! Circuit breaker, half-open: the time limit is for probes that hang, at any rate of calls.
use std::{
    collections::VecDeque,
    future::{pending, ready as ready_with},
    time::Duration,
};

use steadfast::{
    FailureKind, Pipeline, Verdict,
    circuit_breaker::{
        CircuitBreaker, CircuitBreakerConfig, HalfOpenConfig, KeyedBreakers, OnTimeout, OpenConfig, State,
    },
    entropy::Entropy,
    standard::{Standard, StandardConfig},
    testing::ManualClock,
    time::Clock,
    timeout::Timeout,
};

use crate::circuit_breaker::{breaker, states::ready};

const S: fn(u64) -> Duration = Duration::from_secs;
const FAILED: Verdict = Verdict::failure(FailureKind::Server);
const OK: Verdict = Verdict::success();

/// Intervals from one call per second to one call per day, in seconds.
const EVERY: [u64; 14] = [1, 2, 5, 7, 8, 10, 11, 15, 30, 31, 60, 600, 3600, 86_400];

/// Fails until the breaker is open, then succeeds at each call, one call per interval. The breaker
/// must not open again, and must close after exactly as many successes as it requires.
fn recovers(time: &ManualClock, every: Duration, breaker: impl Fn() -> CircuitBreaker, call: impl Fn(bool) -> bool) {
    while breaker().state() != State::Open {
        assert!(call(false), "closed, it lets every call pass");
        time.advance(every);
    }
    let half_open = breaker().config().half_open;
    let required = (half_open.success_rate * f64::from(half_open.permitted_calls)).ceil() as u32;
    let (mut good, mut refused) = (0, 0);
    while breaker().state() != State::Closed {
        let rests = breaker().snapshot().retry_after.is_some_and(|wait| !wait.is_zero());
        let passed = call(true);
        assert_eq!(passed, !rests, "every {every:?}, after {good} good calls");
        *if passed { &mut good } else { &mut refused } += 1;
        time.advance(every);
    }
    assert_eq!((good, breaker().snapshot().total_openings), (required, 1), "every {every:?}");
    assert!((0..100).all(|_| call(true)));
}

#[test]
fn a_healthy_service_closes_the_default_breaker_at_any_rate_of_calls() {
    for every in EVERY.map(S) {
        let (breaker, time) = breaker(CircuitBreakerConfig::default());
        recovers(&time, every, || breaker.clone(), |good| record(&breaker, good));

        let (clock, time) = Clock::manual();
        let hosts = KeyedBreakers::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap();
        // Held, as in a pipeline, and got anew at each call.
        let held = hosts.get(&"host");
        recovers(&time, every, || hosts.get(&"host"), |good| record(&held, good));

        let (clock, time) = Clock::manual();
        let stack =
            Standard::builder(StandardConfig::default()).clock(&clock).entropy(&Entropy::from_seed(1)).build().unwrap();
        let pipeline = Pipeline::new().then(stack.clone());
        let call = |good: bool| {
            let answer = || ready_with(if good { Ok(()) } else { Err("ill") });
            !time.block_on(pipeline.call(answer)).is_err_and(|error| error.is_rejected() && good)
        };
        let own = stack.circuit_breaker().unwrap();
        while own.state() != State::Open {
            call(false);
            time.advance(every);
        }
        let mut calls = 0;
        while own.state() != State::Closed {
            let rests = own.snapshot().retry_after.is_some_and(|wait| !wait.is_zero());
            assert_eq!(call(true), !rests, "every {every:?}");
            calls += 1;
            time.advance(every);
        }
        assert!(calls <= 4 + 7, "every {every:?}: {calls}"); // four successes, after up to six seconds of open time
        assert_eq!(own.snapshot().total_openings, 1);
    }
}

fn record(breaker: &CircuitBreaker, good: bool) -> bool {
    breaker.try_acquire().map(|permit| permit.record(if good { OK } else { FAILED })).is_ok()
}

/// Includes overlapping calls, with some probe always in flight.
#[test]
fn a_healthy_service_closes_the_breaker_whatever_number_of_calls_is_permitted() {
    for (permitted, share) in [(1, 1.0), (2, 0.5), (2, 1.0), (3, 0.7), (10, 0.8), (100, 1.0), (1000, 0.05)] {
        for every in [1, 9, 10, 29, 30, 31, 3600].map(S) {
            for lasts in [0, 5, 29].map(S) {
                let config = CircuitBreakerConfig::default().half_open_calls(permitted, share);
                let required = (share * f64::from(permitted)).ceil() as usize;
                let (breaker, time) = ready(config);
                let (mut flying, mut good) = (VecDeque::new(), 0);
                while breaker.state() != State::Closed {
                    let next = time.now() + every;
                    match breaker.try_acquire() {
                        Ok(permit) => flying.push_back((time.now() + lasts, permit)),
                        Err(refused) => assert_eq!(flying.len() + good, permitted as usize, "{refused}"),
                    }
                    while let Some((ends, permit)) = flying.pop_front_if(|(ends, _)| *ends <= next) {
                        time.advance(ends - time.now());
                        permit.record(OK);
                        good += usize::from(good < required);
                    }
                    time.advance(next - time.now());
                }
                assert_eq!(good, required);
                assert_eq!(
                    breaker.snapshot().total_openings,
                    1,
                    "{permitted} of {share}, every {every:?} for {lasts:?}"
                );
            }
        }
    }
}

/// One probe hangs: the others decide if they are enough; otherwise the breaker opens again.
#[test]
fn a_probe_that_hangs_is_bounded_at_any_rate_of_calls() {
    for (every, settled) in EVERY.into_iter().flat_map(|every| [(S(every), true), (S(every), false)]) {
        let (breaker, time) =
            ready(CircuitBreakerConfig::default().half_open_calls(3, if settled { 0.6 } else { 1.0 }));
        let hangs = breaker.try_acquire().unwrap();
        let began = time.now();
        while breaker.state() == State::HalfOpen && time.now() - began < S(1_000_000) {
            time.advance(every);
            if let Ok(permit) = breaker.try_acquire() {
                permit.record(OK);
            }
        }
        let took = time.now() - began;
        let in_time = every < S(30);
        assert_eq!(breaker.state(), if settled && in_time { State::Closed } else { State::Open }, "every {every:?}");
        // Decided by the first call after that time without a result.
        assert!(took <= every * 2 + S(30) + every, "every {every:?}: {took:?}");
        drop(hangs);
    }
}

/// Calls that take longer than `half_open.max_duration` succeed too late for their half-open state.
// Guarantee: circuit_breaker 6.
#[test]
fn a_service_whose_calls_take_longer_than_the_half_open_state_is_served_again() {
    for (takes, rate, on_timeout) in [
        (45, 1, OnTimeout::Open),
        (95, 1, OnTimeout::Open),
        (600, 1, OnTimeout::Open),
        (45, 20, OnTimeout::Open),
        (45, 1, OnTimeout::Close),
    ] {
        let (clock, time) = Clock::manual();
        let half_open = HalfOpenConfig::default().on_timeout(on_timeout);
        let config = CircuitBreakerConfig::default().half_open(half_open);
        let breaker = CircuitBreaker::builder(config).clock(&clock).build().unwrap();
        for _ in 0..100 {
            drop(breaker.try_acquire().map(|permit| permit.record(FAILED)));
        }
        assert_eq!(breaker.state(), State::Open);
        let mut in_flight = VecDeque::new();
        let mut served = 0;
        for _ in 0..3 * 3600 {
            time.advance(S(1));
            while in_flight.front().is_some_and(|(ends, _)| *ends <= time.now()) {
                let (_, permit): (_, steadfast::circuit_breaker::Permit<'_>) = in_flight.pop_front().unwrap();
                permit.record(OK);
                served += 1;
            }
            for _ in 0..rate {
                in_flight.extend(breaker.try_acquire().ok().map(|permit| (time.now() + S(takes), permit)));
            }
        }
        assert_eq!(breaker.state(), State::Closed, "calls of {takes} s, {on_timeout:?}");
        // It closes within some half-open states: within the first half of the time.
        assert!(served > 3600 * rate, "calls of {takes} s, {on_timeout:?}: {served}");
    }
}

/// Callers that give up free their permits, so that permits never run out. The time that they waited
/// still counts.
#[test]
fn a_service_that_hangs_is_detected_though_every_caller_gives_up() {
    for (on_timeout, state) in [(OnTimeout::Open, State::Open), (OnTimeout::Close, State::Closed)] {
        for every in [3, 60, 3600].map(S) {
            let half_open = HalfOpenConfig::default().max_duration(S(30)).on_timeout(on_timeout);
            let (clock, time) = Clock::manual();
            let open = OpenConfig::default().initial_delay(S(5)).max_delay(S(60)).jitter(0.0);
            let config = CircuitBreakerConfig::default().half_open(half_open).open(open);
            let breaker = CircuitBreaker::builder(config).clock(&clock).build().unwrap();
            let pipeline = Pipeline::new().then(Timeout::builder(S(2)).clock(&clock).build()).then(breaker.clone());
            breaker.force_open(S(1));
            time.advance(S(1));
            for _ in 0..15 {
                assert!(time.block_on(pipeline.call(pending::<Result<(), ()>>)).unwrap_err().is_timed_out());
                assert_eq!(breaker.state(), State::HalfOpen);
                time.advance(every);
            }
            let _ = breaker.try_acquire();
            assert_eq!(breaker.state(), state, "every {every:?}");
        }
    }
}

/// A result of any kind shows that the probes do not hang.
#[test]
fn cancelled_probes_between_results_do_not_open_the_breaker() {
    let (breaker, time) = ready(CircuitBreakerConfig::default().half_open_calls(10, 0.1).half_open_calls(10, 1.0));
    for _ in 0..10 {
        for _ in 0..14 {
            let given_up = breaker.try_acquire().unwrap();
            time.advance(S(2));
            drop(given_up);
        }
        breaker.try_acquire().unwrap().record(OK);
    }
    assert_eq!((breaker.state(), breaker.snapshot().total_openings), (State::Closed, 1));
}
