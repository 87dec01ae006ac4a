//! Circuit breaker: slow start after closing, totals and gauges, flapping, thresholds without
//! head-room.
use std::time::Duration;

use steadfast::{
    FailureKind, Pipeline, Reason, Verdict,
    circuit_breaker::{
        CircuitBreaker, CircuitBreakerConfig, CircuitBreakerEvent, OpenConfig, SlowStartConfig, State, TripConfig,
    },
    observe::Subscription,
    testing::ManualClock,
    timeout::Timeout,
};

use crate::{
    circuit_breaker::states::{probes, ready},
    circuit_breaker::{breaker, record},
};

const S: fn(u64) -> Duration = Duration::from_secs;
const FAILED: Verdict = Verdict::failure(FailureKind::Server);
const OK: Verdict = Verdict::success();

fn told(events: &mut Subscription<CircuitBreakerEvent>) -> Vec<CircuitBreakerEvent> {
    std::iter::from_fn(|| events.try_recv().unwrap()).map(|event| event.what).collect()
}

/// Returns a breaker that a probe has just closed, with this slow start.
fn in_slow_start(slow_start: SlowStartConfig) -> (CircuitBreaker, ManualClock) {
    let (breaker, time) = ready(probes(1, 1.0).count_window(100, 100).slow_start(slow_start));
    breaker.try_acquire().unwrap().record(OK);
    assert_eq!(breaker.state(), State::Closed);
    (breaker, time)
}

/// Returns the number of calls, of `calls`, that pass.
fn admitted(breaker: &CircuitBreaker, calls: usize) -> usize {
    (0..calls)
        .filter(|_| {
            breaker.try_acquire().is_ok_and(|permit| {
                permit.record(OK);
                true
            })
        })
        .count()
}

// Guarantee: circuit_breaker 7.
#[test]
fn a_stepped_slow_start_admits_its_shares() {
    let (breaker, time) = in_slow_start(SlowStartConfig::stepped(S(10), 0.2, 4));
    for share in [0.2, 0.4, 0.6, 0.8] {
        for at in [S(0), Duration::from_millis(2499)] {
            time.advance(at);
            let passed = admitted(&breaker, 1000);
            assert!(passed.abs_diff((share * 1000.0) as usize) <= 1, "{passed} of 1000 at {share}");
            assert!((breaker.snapshot().share - share).abs() < 1e-9);
        }
        time.advance(Duration::from_millis(1));
    }
    assert_eq!(admitted(&breaker, 1000), 1000);
    assert_eq!(breaker.snapshot().share, 1.0);
}

// Guarantee: circuit_breaker 7.
#[test]
fn the_share_of_a_linear_slow_start_grows_continuously() {
    let (breaker, time) = in_slow_start(SlowStartConfig::linear(S(10), 0.1));
    let mut before = 0;
    for tenth in 0..10 {
        let passed = admitted(&breaker, 1000);
        let share = 100 + 90 * tenth;
        assert!(passed.abs_diff(share) <= 1, "{passed}, not {share}");
        assert!(passed > before);
        before = passed;
        time.advance(S(1));
    }
    assert_eq!(admitted(&breaker, 1000), 1000);
}

// Guarantee: circuit_breaker 7.
#[test]
fn the_first_call_of_a_slow_start_passes_and_a_rejection_names_the_slow_start() {
    let (breaker, _hand) = in_slow_start(SlowStartConfig::linear(S(10), 0.5));
    assert!(breaker.try_acquire().is_ok());
    let rejected = breaker.try_acquire().unwrap_err();
    assert_eq!((rejected.reason(), rejected.retry_after()), (Reason::SlowStart, None));
    assert_eq!(rejected.to_string(), "rejected by the circuit breaker `db`: in slow start after an outage");
    assert!(breaker.try_acquire().is_ok());
    assert_eq!(breaker.snapshot().rejected, 1);
}

// Guarantee: circuit_breaker 7.
#[test]
fn without_a_slow_start_all_calls_pass_after_closing() {
    let (breaker, _hand) = ready(probes(1, 1.0));
    breaker.try_acquire().unwrap().record(OK);
    assert_eq!(admitted(&breaker, 1000), 1000);
}

// Guarantee: circuit_breaker 7.
#[test]
fn a_manual_close_skips_the_slow_start_and_ends_one() {
    for act in [CircuitBreaker::close, CircuitBreaker::reset] {
        let (breaker, _hand) = breaker(CircuitBreakerConfig::default().slow_start(SlowStartConfig::default()));
        breaker.isolate();
        act(&breaker);
        assert_eq!(admitted(&breaker, 100), 100);
        // It ends a slow start too.
        let (breaker, _hand) = in_slow_start(SlowStartConfig::default());
        act(&breaker);
        assert_eq!(admitted(&breaker, 100), 100);
    }
}

// Guarantee: circuit_breaker 7.
#[test]
fn the_end_of_a_slow_start_is_sent_once() {
    let (breaker, time) = in_slow_start(SlowStartConfig::linear(S(10), 0.5));
    let mut events = breaker.events();
    time.advance(S(10));
    assert_eq!(admitted(&breaker, 10), 10);
    assert_eq!(told(&mut events), [CircuitBreakerEvent::SlowStartEnded]);
}

// Guarantee: circuit_breaker 7.
#[test]
fn failures_during_a_slow_start_open_the_breaker() {
    let (breaker, time) = ready(probes(1, 1.0).count_window(4, 4).slow_start(SlowStartConfig::linear(S(10), 0.5)));
    breaker.try_acquire().unwrap().record(OK);
    let mut failures = 0;
    while breaker.state() == State::Closed {
        if let Ok(permit) = breaker.try_acquire() {
            permit.record(FAILED);
            failures += 1;
        }
    }
    assert_eq!((failures, breaker.state()), (4, State::Open));
    time.advance(S(60));
    breaker.try_acquire().unwrap().record(OK);
    let passed = admitted(&breaker, 100);
    assert!(passed.abs_diff(50) <= 1, "a new slow start: {passed}");
}

// Guarantee: circuit_breaker 7.
#[test]
fn a_slow_start_ends_if_it_is_configured_away_and_continues_if_it_is_changed() {
    let (breaker, time) = in_slow_start(SlowStartConfig::linear(S(10), 0.5));
    assert!(admitted(&breaker, 100) <= 51);
    breaker.reconfigure(probes(1, 1.0)).unwrap();
    assert_eq!(admitted(&breaker, 100), 100);
    // One that is made longer continues.
    let (breaker, _) = (in_slow_start(SlowStartConfig::linear(S(10), 0.5)).0, time);
    breaker.reconfigure(probes(1, 1.0).slow_start(SlowStartConfig::stepped(S(100), 0.25, 1))).unwrap();
    assert!(admitted(&breaker, 100).abs_diff(25) <= 1);
}

// Guarantee: circuit_breaker 7.
#[test]
fn shadow_mode_lets_all_calls_pass_in_a_slow_start() {
    let (breaker, _hand) = in_slow_start(SlowStartConfig::linear(S(10), 0.25));
    breaker.set_shadow(true);
    assert_eq!(admitted(&breaker, 100), 100);
    assert!(breaker.snapshot().rejected.abs_diff(75) <= 1, "it counts the calls that it would have rejected");
}

// Guarantee: circuit_breaker 7.
/// Eight threads at one share: exactly that share of their calls passes.
#[test]
fn eight_threads_pass_exactly_the_share_of_a_slow_start() {
    let (breaker, _hand) = in_slow_start(SlowStartConfig::stepped(S(10), 0.25, 1));
    let passed: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| admitted(&breaker, 1000))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(passed, 2000);
}

// Guarantee: circuit_breaker 13.
#[test]
fn the_snapshot_has_the_state_as_a_number_and_the_time_in_it() {
    let (breaker, time) = breaker(probes(1, 1.0));
    time.advance(S(100));
    let gauge = || (breaker.state().number(), breaker.snapshot().in_state);
    assert_eq!(gauge(), (0, S(100)));
    breaker.force_open(S(10));
    time.advance(S(10));
    assert_eq!(gauge(), (1, S(10)));
    let probe = breaker.try_acquire().unwrap();
    time.advance(S(3));
    assert_eq!(gauge(), (2, S(3)));
    probe.record(OK);
    time.advance(S(7));
    assert_eq!(gauge(), (0, S(7)));
    breaker.isolate();
    time.advance(S(5));
    assert_eq!(gauge(), (3, S(5)));
    let snapshot = breaker.snapshot();
    assert_eq!(State::ALL.map(|state| snapshot.time_in(state)), [S(107), S(10), S(3), S(5)]);
    for state in State::ALL {
        let gauges = state.gauges();
        assert_eq!(gauges.iter().map(|(_, value)| value).sum::<u8>(), 1);
        assert!(gauges.contains(&(state.as_str(), 1)));
    }
}

// Guarantee: circuit_breaker 13.
#[test]
fn closing_a_closed_breaker_does_not_restart_its_time_in_the_state() {
    let (breaker, time) = breaker(probes(1, 1.0));
    time.advance(S(10));
    breaker.close();
    breaker.reset();
    time.advance(S(10));
    let snapshot = breaker.snapshot();
    assert_eq!((snapshot.in_state, snapshot.time_in(State::Closed)), (S(20), S(20)));
    // Opened again, it remains in the open state.
    breaker.force_open(S(5));
    time.advance(S(2));
    breaker.force_open(S(5));
    time.advance(S(1));
    assert_eq!((breaker.snapshot().in_state, breaker.snapshot().retry_after), (S(3), Some(S(4))));
}

// Guarantee: circuit_breaker 13.
#[test]
fn totals_cover_the_whole_life_of_a_breaker() {
    let (breaker, time) = breaker(probes(1, 1.0).count_window(4, 4));
    for n in 1..=3 {
        record(&breaker, FAILED, 4);
        assert!(breaker.try_acquire().is_err());
        time.advance(S(60));
        breaker.try_acquire().unwrap().record(OK);
        breaker.reset(); // keeps the totals
        let snapshot = breaker.snapshot();
        assert_eq!((snapshot.total_openings, snapshot.total_failures, snapshot.rejected), (n, 4 * n, n));
        assert_eq!(snapshot.time_in(State::Open), S(60 * n));
    }
}

/// Opens the breaker `n` times, each time `closed_for` after it has closed, and returns the
/// flapping events.
fn flap(breaker: &CircuitBreaker, time: &ManualClock, n: usize, closed_for: Duration) -> Vec<CircuitBreakerEvent> {
    let mut events = breaker.events();
    for _ in 0..n {
        time.advance(closed_for);
        record(breaker, FAILED, 1);
        time.advance(breaker.snapshot().retry_after.unwrap());
        breaker.try_acquire().unwrap().record(OK);
        assert_eq!(breaker.state(), State::Closed);
    }
    told(&mut events).into_iter().filter(|event| matches!(event, CircuitBreakerEvent::Flapped { .. })).collect()
}

#[test]
fn openings_soon_after_closing_are_sent_as_flapping() {
    let config = probes(1, 1.0).count_window(1, 1).open(OpenConfig::default().reset_after(S(60)));
    let (breaker, time) = breaker(config);
    let flapped = |times| CircuitBreakerEvent::Flapped { times };
    // The first opening comes after no closing; the next two are two in a row; then the breaker flaps.
    assert_eq!(flap(&breaker, &time, 3, S(59)), []);
    assert_eq!(flap(&breaker, &time, 2, S(59)), [flapped(3), flapped(4)]);
    // Calm ends the flapping.
    assert_eq!(flap(&breaker, &time, 3, S(60)), []);
    assert_eq!(flap(&breaker, &time, 3, S(1)), [flapped(3)]);
    breaker.reset();
    assert_eq!(flap(&breaker, &time, 2, S(1)), []);
}

/// The breaker does not close during a long outage.
#[test]
fn a_long_outage_is_not_flapping() {
    let (breaker, time) = breaker(probes(1, 1.0).count_window(1, 1));
    let mut events = breaker.events();
    record(&breaker, FAILED, 1);
    for _ in 0..10 {
        time.advance(S(60));
        breaker.try_acquire().unwrap().record(FAILED);
    }
    assert!(!told(&mut events).iter().any(|event| matches!(event, CircuitBreakerEvent::Flapped { .. })));
}

#[test]
fn thresholds_without_head_room_cause_warnings() {
    let warnings = |config: CircuitBreakerConfig| {
        let breaker = CircuitBreaker::new(config).unwrap();
        let warnings = Pipeline::new().then(breaker).then(Timeout::new(S(1))).explain().warnings();
        warnings.into_iter().filter(|warning| warning.contains("head-room")).collect::<Vec<_>>()
    };
    let rate = |share| CircuitBreakerConfig::default().trip(TripConfig::default().failure_rate(share));
    let row = |n| CircuitBreakerConfig::default().trip(TripConfig::default().consecutive_failures(n));
    assert!(warnings(CircuitBreakerConfig::default()).is_empty());
    for good in [rate(0.5).count_window(10, 10), rate(0.1).count_window(1_000_000, 1_000_000), row(2), probes(1, 1.0)] {
        assert!(warnings(good).is_empty(), "{good:?}");
    }
    for (bad, what) in [
        (rate(0.1).count_window(100, 10), "10 % failures over 10 calls"),
        (rate(0.5).count_window(10, 2), "50 % failures over 2 calls"),
        (rate(0.04).count_window(1_000_000, 1_000_000), "4 % failures over 1000000 calls"),
        (row(1), "1 consecutive failures"),
        (probes(10, 1.0), "opening again after 1 bad of 10 probes"),
    ] {
        let warnings = warnings(bad);
        assert!(warnings.len() == 1 && warnings[0].contains(what), "{warnings:?}");
    }
}
