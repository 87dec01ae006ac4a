//! Circuit breaker: regressions, and limits of its settings.
use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use steadfast::{
    FailureKind, Hint, KindSet, Reason, Verdict,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, CircuitBreakerEvent, OpenConfig, State, TripConfig},
};

use crate::{
    circuit_breaker::states::{probes, ready},
    circuit_breaker::{breaker, record},
};

const S: fn(u64) -> Duration = Duration::from_secs;
const FAILED: Verdict = Verdict::failure(FailureKind::Server);
const OK: Verdict = Verdict::success();

/// Regression: the event of an opening at a success was sent only with the next event.
#[test]
fn the_event_of_an_opening_at_a_success_is_sent_at_once() {
    let rules = TripConfig::default().failure_rate(0.5);
    for config in [probes(1, 1.0).count_window(10, 4), probes(1, 1.0).time_window(S(10), 10, 4)] {
        let (breaker, _hand) = breaker(config.trip(rules));
        record(&breaker, FAILED, 3);
        let mut events = breaker.events();
        record(&breaker, OK, 1);
        assert_eq!(breaker.state(), State::Open);
        let told = events.try_recv().unwrap().map(|e| e.what);
        assert!(matches!(told, Some(CircuitBreakerEvent::Opened { .. })), "{told:?}");
    }
}

// Guarantee: circuit_breaker 7.
/// Regression: after 256 changes of state, time windows counted outcomes of an older generation.
#[test]
fn closing_empties_the_time_windows_after_any_number_of_state_changes() {
    let rules = TripConfig::default().failure_rate(1.0).weighted_failures(100, S(1000));
    let (breaker, _hand) = breaker(probes(1, 1.0).time_window(S(1000), 10, 100).trip(rules));
    record(&breaker, FAILED.weighing(90), 1);
    for _ in 0..256 {
        breaker.close();
        assert_eq!(breaker.snapshot().failures, 0);
    }
    record(&breaker, FAILED.weighing(10), 1);
    assert_eq!(breaker.state(), State::Closed);
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

// Guarantee: circuit_breaker 5.
/// Regression: a breaker that was opened or closed manually after a long calm did not count the calm.
#[test]
fn the_calm_before_a_manual_change_counts() {
    let acts: [fn(&CircuitBreaker); 3] = [|b| b.force_open(S(1)), CircuitBreaker::isolate, |_| ()];
    for act in acts {
        let (breaker, time) = breaker(CircuitBreakerConfig::default().count_window(1, 1));
        for _ in 0..4 {
            record(&breaker, FAILED, 1);
            breaker.close();
        }
        time.advance(S(2 * 60)); // two of four are forgotten
        act(&breaker);
        breaker.close();
        record(&breaker, FAILED, 1);
        assert_eq!(breaker.snapshot().openings, 3);
    }
}

// Guarantee: circuit_breaker 9.
/// Regression: a rejection carried the kind of a failure from before the reset.
#[test]
fn reset_forgets_the_last_failure() {
    let (breaker, _hand) = breaker(CircuitBreakerConfig::default());
    record(&breaker, FAILED, 1);
    breaker.reset();
    breaker.force_open(S(1));
    let Reason::CircuitOpen { last, .. } = breaker.try_acquire().unwrap_err().reason() else { panic!() };
    assert_eq!(last, None);
}

// Guarantee: circuit_breaker 2.
#[test]
fn a_window_as_long_as_min_calls_is_judged_when_it_is_full() {
    let rules = TripConfig::default().failure_rate(0.2);
    let (breaker, _hand) = breaker(CircuitBreakerConfig::default().trip(rules).count_window(5, 5));
    record(&breaker, FAILED, 1);
    record(&breaker, OK, 3);
    assert_eq!(breaker.state(), State::Closed);
    record(&breaker, OK, 1); // the fifth call; the failure is still among them
    assert_eq!(breaker.state(), State::Open);
}

// Guarantee: circuit_breaker 5.
#[test]
fn no_factor_and_no_hint_overflows() {
    let open = OpenConfig::default().factor(f64::MAX).max_delay(Duration::MAX).jitter(1.0).max_hint(Duration::MAX);
    let (breaker, time) = breaker(CircuitBreakerConfig::default().count_window(1, 1).open(open));
    for verdict in
        [FAILED, FAILED, FAILED.with_retry_after(Duration::MAX), FAILED.with_hint(Hint::UnavailableFor(Duration::MAX))]
    {
        record(&breaker, verdict, 1);
        assert!(breaker.try_acquire().unwrap_err().retry_after() >= Some(S(5)));
        breaker.close();
    }
    time.advance(S(1));
    breaker.force_open(Duration::MAX);
    time.advance(S(3600 * 24 * 365 * 100));
    assert!(breaker.try_acquire().is_err());
}

// Guarantee: circuit_breaker 1.
#[test]
fn unavailable_for_no_time_probes_at_once() {
    let (breaker, _hand) = breaker(probes(1, 1.0));
    record(&breaker, FAILED.with_hint(Hint::UnavailableFor(Duration::ZERO)), 1);
    assert_eq!(breaker.state(), State::Open);
    breaker.try_acquire().unwrap().record(OK);
    assert_eq!(breaker.state(), State::Closed);
}

// Guarantee: circuit_breaker 9.
#[test]
fn a_manual_change_while_half_open_makes_its_probes_late() {
    type Act = fn(&CircuitBreaker);
    let acts: [(Act, State); 4] = [
        (|b| b.force_open(S(9)), State::Open),
        (CircuitBreaker::isolate, State::Isolated),
        (CircuitBreaker::close, State::Closed),
        (CircuitBreaker::reset, State::Closed),
    ];
    for (act, state) in acts {
        let (breaker, time) = ready(probes(3, 1.0).count_window(1, 1));
        let flying: Vec<_> = (0..3).map(|_| breaker.try_acquire().unwrap()).collect();
        act(&breaker);
        for (probe, verdict) in flying.into_iter().zip([OK, FAILED, Verdict::ignore()]) {
            probe.record(verdict);
            assert_eq!(breaker.state(), state);
        }
        breaker.force_open(S(1));
        time.advance(S(1));
        // The next cycle has all its permits.
        let next: Vec<_> = (0..3).map(|_| breaker.try_acquire().unwrap()).collect();
        assert!(breaker.try_acquire().is_err());
        next.into_iter().for_each(|probe| probe.record(OK));
        assert_eq!(breaker.state(), State::Closed);
    }
}

// Guarantee: circuit_breaker 3.
#[test]
fn a_clock_that_jumps_far_ahead_leaves_an_empty_window() {
    let rules = TripConfig::default().failure_rate(0.5).weighted_failures(100, S(10));
    let (breaker, time) = breaker(CircuitBreakerConfig::default().trip(rules).time_window(S(10), 10, 4));
    record(&breaker, FAILED, 3);
    time.advance(S(3600 * 24 * 365));
    assert_eq!(breaker.snapshot().failures, 0);
    record(&breaker, FAILED, 3);
    assert_eq!((breaker.state(), breaker.snapshot().calls), (State::Closed, 3));
    record(&breaker, FAILED, 1);
    assert_eq!(breaker.state(), State::Open);
}
