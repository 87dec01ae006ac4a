//! Circuit breaker: half-open, closing, manual control, and outcomes that change nothing.
use std::{future::pending, panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use steadfast::{
    FailureKind, KindSet, Pipeline, Reason, Verdict,
    circuit_breaker::{
        CircuitBreaker, CircuitBreakerConfig, CircuitBreakerEvent, HalfOpenConfig, OnTimeout, State, TripConfig,
    },
    testing::ManualClock,
};

use crate::circuit_breaker::{breaker, record};

const S: fn(u64) -> Duration = Duration::from_secs;
const FAILED: Verdict = Verdict::failure(FailureKind::Server);
const OK: Verdict = Verdict::success();

/// Returns an open breaker whose time is over: the next call is the first probe.
pub(crate) fn ready(config: CircuitBreakerConfig) -> (CircuitBreaker, ManualClock) {
    let (breaker, time) = breaker(config);
    breaker.force_open(S(1));
    time.advance(S(1));
    (breaker, time)
}

pub(crate) fn probes(n: u32, share: f64) -> CircuitBreakerConfig {
    CircuitBreakerConfig::default().half_open_calls(n, share)
}

// Guarantee: circuit_breaker 6.
#[test]
fn at_most_the_permitted_number_of_probes_pass_and_are_judged() {
    let (breaker, _hand) = ready(probes(3, 1.0));
    let mut flying: Vec<_> = (0..3).map(|_| breaker.try_acquire().unwrap()).collect();
    assert_eq!(breaker.try_acquire().unwrap_err().reason(), Reason::ProbesTaken);
    // A recorded probe does not free its permit: three are judged in all, not three at a time.
    flying.pop().unwrap().record(OK);
    assert!(breaker.try_acquire().is_err());
    flying.pop().unwrap().record(OK);
    assert_eq!(breaker.state(), State::HalfOpen);
    flying.pop().unwrap().record(OK);
    assert_eq!(breaker.state(), State::Closed);
}

// Guarantee: circuit_breaker 6.
#[test]
fn a_half_open_breaker_decides_as_soon_as_the_result_is_settled() {
    for (script, state) in [
        (&[OK, OK, OK][..], State::Closed),       // three of five suffice for 0.6
        (&[FAILED, FAILED, FAILED], State::Open), // after three failures 0.6 can no longer be reached
    ] {
        let (breaker, _hand) = ready(probes(5, 0.6));
        for (i, verdict) in script.iter().enumerate() {
            assert_eq!(breaker.state(), if i == 0 { State::Open } else { State::HalfOpen });
            breaker.try_acquire().unwrap().record(*verdict);
        }
        assert_eq!(breaker.state(), state);
    }
}

// Guarantee: circuit_breaker 6.
#[test]
fn a_slow_probe_fails_under_a_slow_call_rule() {
    let config = probes(1, 1.0).trip(TripConfig::default().slow_calls(0.5, S(1)));
    let (breaker, time) = ready(config);
    let probe = breaker.try_acquire().unwrap();
    time.advance(S(2));
    probe.record(OK);
    assert_eq!(breaker.state(), State::Open);
}

// Guarantee: circuit_breaker 6.
#[test]
fn a_dropped_or_ignored_probe_frees_its_permit() {
    let (breaker, _hand) = ready(probes(1, 1.0));
    for i in 0..100 {
        let probe = breaker.try_acquire().unwrap();
        assert!(breaker.try_acquire().is_err());
        if i % 2 == 0 {
            drop(probe);
        } else {
            probe.record(Verdict::ignore());
        }
        assert_eq!(breaker.state(), State::HalfOpen);
    }
    breaker.try_acquire().unwrap().record(OK);
    assert_eq!(breaker.state(), State::Closed);
}

// Guarantee: circuit_breaker 6.
/// Another crate remains half-open for ever on a healthy service.
#[test]
fn a_probe_that_hangs_cannot_block_the_breaker() {
    for (on_timeout, state) in [(OnTimeout::Open, State::Open), (OnTimeout::Close, State::Closed)] {
        let half_open = HalfOpenConfig::default().permitted_calls(1).max_duration(S(30)).on_timeout(on_timeout);
        let (breaker, time) = ready(CircuitBreakerConfig::default().half_open(half_open));
        let hangs = breaker.try_acquire().unwrap();
        time.advance(S(30) - Duration::from_nanos(1));
        assert!(breaker.try_acquire().is_err());
        assert_eq!(breaker.state(), State::HalfOpen);
        time.advance(Duration::from_nanos(1));
        assert_eq!(breaker.try_acquire().is_ok(), state == State::Closed);
        assert_eq!(breaker.state(), state);
        hangs.record(FAILED); // late
        assert_eq!(breaker.state(), state);
    }
}

// Guarantee: circuit_breaker 6.
#[test]
fn late_results_from_before_the_opening_change_nothing() {
    let (breaker, time) = breaker(probes(2, 1.0).count_window(4, 4));
    let late: Vec<_> = (0..20).map(|_| breaker.try_acquire().unwrap()).collect();
    record(&breaker, FAILED, 4);
    assert_eq!(breaker.state(), State::Open);
    time.advance(S(60));
    let probe = breaker.try_acquire().unwrap();
    let mut late = late.into_iter();
    late.by_ref().take(5).for_each(|permit| permit.record(OK));
    late.by_ref().take(5).for_each(|permit| permit.record(FAILED));
    late.by_ref().take(5).for_each(drop);
    assert_eq!(breaker.state(), State::HalfOpen);
    probe.record(OK);
    breaker.try_acquire().unwrap().record(OK);
    assert_eq!(breaker.state(), State::Closed);
    late.for_each(|permit| permit.record(FAILED));
    assert_eq!((breaker.state(), breaker.snapshot().failures), (State::Closed, 0));
}

// Guarantee: circuit_breaker 7.
#[test]
fn closing_empties_every_window() {
    let rules = TripConfig::default().failure_rate(0.5).consecutive_failures(4).weighted_failures(100, S(1000));
    for config in [probes(1, 1.0).count_window(10, 4), probes(1, 1.0).time_window(S(1000), 10, 4)] {
        let (breaker, time) = breaker(config.trip(rules));
        record(&breaker, FAILED.weighing(30), 3);
        breaker.force_open(S(1));
        time.advance(S(1));
        breaker.try_acquire().unwrap().record(OK);
        assert_eq!(breaker.state(), State::Closed);
        record(&breaker, FAILED.weighing(30), 3); // with the three from before, any rule would open it
        assert_eq!((breaker.state(), breaker.snapshot().failures), (State::Closed, 3));
        record(&breaker, FAILED, 1);
        assert_eq!(breaker.state(), State::Open);
    }
}

// Guarantee: circuit_breaker 9.
#[test]
fn an_isolated_breaker_never_probes_by_itself() {
    let (breaker, time) = breaker(CircuitBreakerConfig::default());
    breaker.isolate();
    time.advance(S(1_000_000));
    let rejected = breaker.try_acquire().unwrap_err();
    assert!(matches!(rejected.reason(), Reason::Isolated { .. }));
    assert_eq!((breaker.state(), rejected.retry_after()), (State::Isolated, None));
    breaker.close();
    assert!(breaker.try_acquire().is_ok());
}

// Guarantee: circuit_breaker 9.
#[test]
fn close_remembers_openings_and_reset_forgets_them() {
    let (breaker, _hand) = breaker(CircuitBreakerConfig::default().count_window(1, 1));
    for expected in [1, 2, 3] {
        record(&breaker, FAILED, 1);
        assert_eq!(breaker.snapshot().openings, expected);
        breaker.close();
    }
    breaker.reset();
    assert_eq!(breaker.snapshot().openings, 0);
    record(&breaker, FAILED, 1);
    assert_eq!(breaker.snapshot().openings, 1);
}

// Guarantee: circuit_breaker 9.
#[test]
fn a_breaker_that_is_forced_open_probes_after_its_time() {
    let (breaker, time) = breaker(probes(1, 1.0));
    breaker.force_open(S(10));
    breaker.force_open(S(20)); // again, while open: the last call counts
    assert_eq!(breaker.try_acquire().unwrap_err().retry_after(), Some(S(20)));
    time.advance(S(20));
    breaker.try_acquire().unwrap().record(OK);
    assert_eq!(breaker.state(), State::Closed);
}

// Guarantee: circuit_breaker 9.
#[test]
fn shadow_mode_measures_and_never_rejects() {
    let (breaker, time) = breaker(probes(1, 1.0).count_window(4, 4));
    breaker.set_shadow(true);
    let mut events = breaker.events();
    record(&breaker, FAILED, 4);
    assert_eq!(breaker.state(), State::Open);
    record(&breaker, OK, 10);
    assert_eq!((breaker.state(), breaker.snapshot().rejected), (State::Open, 10));
    time.advance(S(60));
    record(&breaker, OK, 1);
    assert_eq!(breaker.state(), State::Closed);
    let told: Vec<_> = std::iter::from_fn(|| events.try_recv().unwrap()).map(|e| e.what).collect();
    assert_eq!(told.iter().filter(|e| **e == CircuitBreakerEvent::Rejected).count(), 10);
    assert!(told.contains(&CircuitBreakerEvent::HalfOpened) && told.contains(&CircuitBreakerEvent::Closed));
}

/// `metrics.rs` reads the gauges themselves.
#[test]
fn each_manual_change_leads_to_one_state_and_each_state_has_its_own_name() {
    let (breaker, time) = breaker(probes(1, 1.0));
    let acts: [(&dyn Fn(), &str); 7] = [
        (&|| breaker.isolate(), "isolated"),
        (&|| breaker.force_open(S(1)), "open"),
        (&|| time.advance(S(2)), "open"), // a call, not time, makes it half-open
        (&|| drop(breaker.try_acquire()), "half_open"),
        (&|| breaker.close(), "closed"),
        (&|| breaker.isolate(), "isolated"),
        (&|| breaker.reset(), "closed"),
    ];
    for (i, (act, state)) in acts.into_iter().enumerate() {
        act();
        assert_eq!(breaker.state().as_str(), state, "after act {i}");
    }
    let names = State::ALL.map(State::as_str);
    assert_eq!(names, ["closed", "open", "half_open", "isolated"]);
}

#[test]
fn kinds_outside_the_set_count_as_successes() {
    let (breaker, _hand) = breaker(CircuitBreakerConfig::default().count_window(10, 10));
    record(&breaker, Verdict::failure(FailureKind::Client), 1000);
    assert_eq!((breaker.state(), breaker.snapshot().calls), (State::Closed, 10));
    let timeouts = CircuitBreakerConfig::default().count_window(10, 10).failures(KindSet::of(&[FailureKind::Timeout]));
    let (breaker, _hand) = self::breaker(timeouts);
    record(&breaker, FAILED, 100);
    assert_eq!(breaker.state(), State::Closed);
}

#[test]
fn ignored_and_dropped_calls_change_no_counter() {
    for config in
        [CircuitBreakerConfig::default().count_window(4, 1), CircuitBreakerConfig::default().time_window(S(9), 9, 1)]
    {
        let (breaker, _hand) = breaker(config);
        record(&breaker, Verdict::ignore(), 100);
        for _ in 0..100 {
            drop(breaker.try_acquire());
            drop(breaker.call(pending::<Result<(), ()>>));
        }
        let snapshot = breaker.snapshot();
        assert_eq!((snapshot.calls, snapshot.failures, snapshot.state), (0, 0, State::Closed));
    }
}

#[test]
fn a_call_cancelled_after_the_configured_time_counts_as_a_failure() {
    let (breaker, time) = breaker(CircuitBreakerConfig::default().count_window(4, 2).count_cancelled_after(S(3)));
    for (ran, failures) in [(2, 0), (3, 1), (9, 2)] {
        let permit = breaker.try_acquire().unwrap();
        time.advance(S(ran));
        drop(permit);
        if failures < 2 {
            assert_eq!(breaker.snapshot().failures, failures);
        }
    }
    assert_eq!(breaker.state(), State::Open);
}

#[test]
fn a_panic_counts_as_a_failure_frees_the_permit_and_unwinds() {
    let (breaker, time) = ready(probes(1, 1.0));
    let panics = || breaker.call(|| async { if true { panic!("boom") } else { Ok::<(), ()>(()) } });
    let caught = time.block_on(AssertUnwindSafe(panics()).catch_unwind());
    assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"boom"));
    assert_eq!(breaker.state(), State::Open);
    let Reason::CircuitOpen { last, .. } = breaker.try_acquire().unwrap_err().reason() else { panic!() };
    assert_eq!(last, Some(FailureKind::Panic));
}

#[test]
fn a_panic_outside_the_operation_does_not_count() {
    let (breaker, time) = breaker(CircuitBreakerConfig::default().count_window(1, 1));
    let caught = std::panic::catch_unwind(AssertUnwindSafe(|| {
        time.block_on(async {
            let mut call = Box::pin(breaker.call(pending::<Result<(), ()>>));
            assert!(futures::poll!(&mut call).is_pending());
            panic!("not the operation");
        })
    }));
    assert!(caught.is_err());
    assert_eq!((breaker.state(), breaker.snapshot().calls), (State::Closed, 0));
}

#[test]
fn a_rejection_by_an_inner_policy_is_ignored_by_an_outer_breaker() {
    let (outer, time) = breaker(CircuitBreakerConfig::default().count_window(1, 1));
    let (inner, _) = breaker(CircuitBreakerConfig::default());
    inner.isolate();
    let pipeline = Pipeline::new().then(outer.clone()).then(inner);
    assert!(time.block_on(pipeline.call(|| async { Ok::<_, ()>(()) })).unwrap_err().is_rejected());
    assert_eq!((outer.state(), outer.snapshot().calls), (State::Closed, 0));
}

// Guarantee: circuit_breaker 2.
/// Regression: the event of an opening at a success was sent only with the next event.
#[test]
fn an_opening_at_a_success_is_sent_at_once() {
    let config = CircuitBreakerConfig::default().trip(TripConfig::default().failure_rate(0.5));
    for config in [config.count_window(10, 3), config.time_window(S(10), 10, 3)] {
        let (breaker, _hand) = breaker(config);
        let mut events = breaker.events();
        record(&breaker, FAILED, 2);
        record(&breaker, OK, 1);
        let told: Vec<_> = std::iter::from_fn(|| events.try_recv().unwrap()).map(|e| e.what).collect();
        assert!(matches!(told.last(), Some(CircuitBreakerEvent::Opened { .. })), "{told:?}");
    }
}

/// Regression: if the set of kinds did not name it, a panic counted as a success, and closed a
/// half-open breaker.
#[test]
fn a_panic_is_a_failure_for_every_set_of_kinds() {
    let (breaker, time) = ready(probes(1, 1.0).failures(KindSet::of(&[FailureKind::Timeout])));
    let panics = breaker.call(|| async { if true { panic!("boom") } else { Ok::<(), ()>(()) } });
    assert!(time.block_on(AssertUnwindSafe(panics).catch_unwind()).is_err());
    assert_eq!(breaker.state(), State::Open);
}
