//! Circuit breaker: the rules, the windows, the open state.
mod edges;
mod health;
mod keyed;
mod life;
mod reconfigure;
mod seldom;
mod shared;
mod shared_crashes;
mod states;
mod transitions;

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use steadfast::{
    FailureKind, Hint, PolicyKind, Reason, Rejected, Verdict,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, CircuitBreakerEvent, OpenConfig, State, TripConfig},
    entropy::Entropy,
    outcome::TripRule,
    testing::ManualClock,
    time::Clock,
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const S: fn(u64) -> Duration = Duration::from_secs;
const FAILED: Verdict = Verdict::failure(FailureKind::Server);
const OK: Verdict = Verdict::success();

pub(crate) fn breaker(config: CircuitBreakerConfig) -> (CircuitBreaker, ManualClock) {
    let (clock, time) = Clock::manual();
    let breaker =
        CircuitBreaker::builder(config).name("db").clock(&clock).entropy(&Entropy::from_seed(5)).build().unwrap();
    (breaker, time)
}

pub(crate) fn record(breaker: &CircuitBreaker, verdict: Verdict, times: usize) {
    for _ in 0..times {
        breaker.try_acquire().expect("closed").record(verdict);
    }
}

/// Records failures until the breaker is open, and returns their number.
fn failures_to_open(breaker: &CircuitBreaker) -> usize {
    (1..10_000)
        .find(|_| {
            record(breaker, FAILED, 1);
            breaker.state() == State::Open
        })
        .unwrap()
}

fn only(rules: TripConfig) -> CircuitBreakerConfig {
    CircuitBreakerConfig::default().trip(rules)
}

fn opened_by(breaker: &CircuitBreaker) -> TripRule {
    match breaker.try_acquire().unwrap_err().reason() {
        Reason::CircuitOpen { rule, .. } => rule,
        other => panic!("{other:?}"),
    }
}

// Guarantee: circuit_breaker 1.
#[test]
fn each_rule_opens_the_breaker_and_the_error_and_the_event_name_the_rule() {
    let window = |rules| only(rules).count_window(10, 5);
    let rules = TripConfig::default();
    for (config, rule) in [
        (window(rules.failure_rate(0.5)), TripRule::FailureRate),
        (window(rules.consecutive_failures(5)), TripRule::ConsecutiveFailures),
        (window(rules.weighted_failures(10, S(10))), TripRule::WeightedFailures),
    ] {
        let (breaker, _hand) = breaker(config);
        let mut events = breaker.events();
        assert_eq!(failures_to_open(&breaker), 5, "{rule}");
        assert_eq!(opened_by(&breaker), rule);
        let told = std::iter::from_fn(|| events.try_recv().unwrap()).find_map(|e| match e.what {
            CircuitBreakerEvent::Opened { rule, .. } => Some(rule),
            _ => None,
        });
        assert_eq!(told, Some(rule));
    }
}

// Guarantee: circuit_breaker 1.
#[test]
fn the_rules_are_joined_by_or() {
    let rules = TripConfig::default().failure_rate(0.9).consecutive_failures(3);
    let (breaker, _hand) = breaker(only(rules).count_window(100, 100));
    record(&breaker, OK, 50);
    assert_eq!(failures_to_open(&breaker), 3);
    assert_eq!(opened_by(&breaker), TripRule::ConsecutiveFailures);
}

// Guarantee: circuit_breaker 1.
#[test]
fn a_success_ends_consecutive_failures() {
    let (breaker, _hand) = breaker(only(TripConfig::default().consecutive_failures(3)));
    for _ in 0..20 {
        record(&breaker, FAILED, 2);
        record(&breaker, OK, 1);
    }
    assert_eq!(breaker.state(), State::Closed);
    assert_eq!(failures_to_open(&breaker), 3);
}

// Guarantee: circuit_breaker 1.
#[test]
fn slow_calls_open_the_breaker_though_they_succeed() {
    let config = only(TripConfig::default().slow_calls(0.5, MS(100))).count_window(10, 4);
    let (breaker, time) = breaker(config);
    for (took, state) in [(100, State::Closed), (101, State::Closed), (101, State::Closed), (5, State::Open)] {
        let permit = breaker.try_acquire().unwrap();
        time.advance(MS(took));
        permit.record(OK);
        assert_eq!(breaker.state(), state);
    }
    assert_eq!(opened_by(&breaker), TripRule::SlowCallRate);
}

// Guarantee: circuit_breaker 1.
#[test]
fn weights_by_kind_add_up_within_their_period_alone() {
    let config = only(TripConfig::default().weighted_failures(9, S(10)));
    let needed = |kind| {
        let (breaker, _hand) = breaker(config);
        (1..100)
            .find(|_| {
                record(&breaker, Verdict::failure(kind), 1);
                breaker.state() == State::Open
            })
            .unwrap()
    };
    assert_eq!((needed(FailureKind::Connect), needed(FailureKind::Timeout), needed(FailureKind::Server)), (3, 9, 5));
    let (breaker, time) = breaker(config);
    record(&breaker, FAILED.weighing(8), 1);
    time.advance(S(10));
    record(&breaker, FAILED.weighing(8), 1);
    assert_eq!(breaker.state(), State::Closed);
    record(&breaker, FAILED.weighing(1), 1);
    assert_eq!(breaker.state(), State::Open);
}

// Guarantee: circuit_breaker 1.
#[test]
fn one_outcome_opens_the_breaker_for_the_time_that_it_announces() {
    let (breaker, _hand) = breaker(CircuitBreakerConfig::default());
    record(&breaker, FAILED.with_hint(Hint::UnavailableFor(S(300))), 1);
    assert_eq!(opened_by(&breaker), TripRule::Unavailable);
    assert_eq!(breaker.try_acquire().unwrap_err().retry_after(), Some(S(300)));
}

// Guarantee: circuit_breaker 2.
#[test]
fn the_rate_is_judged_from_min_calls_on_at_a_success_too() {
    let (breaker, _hand) = breaker(only(TripConfig::default().failure_rate(0.5)).count_window(10, 5));
    record(&breaker, FAILED, 3);
    record(&breaker, OK, 1);
    assert_eq!(breaker.state(), State::Closed);
    record(&breaker, OK, 1); // 3 of 5
    assert_eq!(breaker.state(), State::Open);
}

// Guarantee: circuit_breaker 2.
/// Another crate needs 1,000 failures.
#[test]
fn after_a_thousand_successes_five_failures_in_a_window_of_ten_open_the_breaker() {
    let (breaker, _hand) = breaker(only(TripConfig::default().failure_rate(0.5)).count_window(10, 10));
    record(&breaker, OK, 1000);
    assert_eq!(failures_to_open(&breaker), 5);
}

// Guarantee: circuit_breaker 2.
#[test]
fn a_failure_leaves_the_count_window_after_as_many_calls_as_it_holds() {
    let (breaker, _hand) = breaker(only(TripConfig::default().failure_rate(0.2)).count_window(10, 10));
    record(&breaker, OK, 20);
    for _ in 0..50 {
        record(&breaker, FAILED, 1);
        record(&breaker, OK, 9); // the failure is now the oldest; the next call pushes it out
    }
    assert_eq!((breaker.state(), breaker.snapshot().failures), (State::Closed, 1));
    record(&breaker, OK, 1);
    assert_eq!(breaker.snapshot().failures, 0);
}

// Guarantee: circuit_breaker 3.
#[test]
fn an_outcome_counts_for_the_time_window_less_one_bucket_and_not_for_longer_than_the_window() {
    let config = only(TripConfig::default().failure_rate(1.0)).time_window(S(10), 10, 1000);
    for offset in [0, 1, 250, 999] {
        let (breaker, time) = breaker(config);
        time.advance(MS(5000 + offset));
        record(&breaker, FAILED, 1);
        time.advance(MS(9000));
        assert_eq!(breaker.snapshot().failures, 1, "{offset}");
        time.advance(MS(1000));
        assert_eq!(breaker.snapshot().failures, 0, "{offset}");
    }
}

// Guarantee: circuit_breaker 3.
#[test]
fn a_time_window_opens_on_the_calls_that_are_left_in_it() {
    let (breaker, time) = breaker(only(TripConfig::default().failure_rate(0.5)).time_window(S(10), 10, 4));
    record(&breaker, OK, 100);
    time.advance(S(6));
    record(&breaker, FAILED, 3);
    time.advance(S(5)); // the successes are gone
    assert_eq!(breaker.state(), State::Closed);
    record(&breaker, OK, 1); // 3 of 4, judged at a success
    assert_eq!(breaker.state(), State::Open);
}

// Guarantee: circuit_breaker 4, 12.
#[test]
fn an_open_breaker_rejects_without_running_the_operation_and_describes_the_opening() {
    let config = CircuitBreakerConfig::default().count_window(4, 4).open_for(S(8), S(8));
    let (breaker, time) = breaker(config);
    time.advance(S(1));
    record(&breaker, FAILED, 3);
    record(&breaker, Verdict::failure(FailureKind::Timeout), 1);
    let since = time.now();
    time.advance(S(3));
    let ran = AtomicU32::new(0);
    let error = time.block_on(breaker.call(|| {
        ran.fetch_add(1, SeqCst);
        async { Ok::<_, ()>(()) }
    }));
    let error = error.unwrap_err();
    assert_eq!((ran.load(SeqCst), error.attempts(), error.retry_after()), (0, 0, Some(S(5))));
    let rejected: Rejected = breaker.try_acquire().unwrap_err();
    assert_eq!((rejected.by(), rejected.name()), (PolicyKind::CircuitBreaker, Some("db")));
    let last = Some(FailureKind::Timeout);
    assert_eq!(rejected.reason(), Reason::CircuitOpen { since, rule: TripRule::FailureRate, last });
    assert_eq!(
        rejected.to_string(),
        "rejected by the circuit breaker `db`: open (failure rate; last failure: timeout); try again in 5s"
    );
    assert_eq!(breaker.snapshot().rejected, 2);
}

// Guarantee: circuit_breaker 4.
/// Another crate admits 200 of 200.
#[test]
fn of_ten_thousand_racing_callers_exactly_the_permitted_number_pass() {
    const THREADS: usize = 8;
    let (breaker, time) = breaker(CircuitBreakerConfig::default().half_open_calls(5, 1.0));
    // Transitions instead of events: rejections would push other events out.
    let mut transitions = breaker.transitions();
    for round in 0..20 {
        breaker.force_open(S(1));
        time.advance(S(1));
        let (admitted, barrier) = (AtomicU32::new(0), Barrier::new(THREADS));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    barrier.wait();
                    for _ in 0..10_000 / THREADS {
                        if let Ok(permit) = breaker.try_acquire() {
                            admitted.fetch_add(1, SeqCst);
                            std::mem::forget(permit); // in flight for ever
                        }
                    }
                });
            }
        });
        assert_eq!(admitted.load(SeqCst), 5, "round {round}");
    }
    let to: Vec<State> = std::iter::from_fn(|| transitions.try_recv().unwrap()).map(|change| change.what.to).collect();
    assert_eq!(to, [State::Open, State::HalfOpen].repeat(20), "each round half-opened it once");
}

// Guarantee: circuit_breaker 4.
#[test]
fn the_first_caller_after_the_open_time_is_the_first_probe() {
    let (breaker, time) = breaker(CircuitBreakerConfig::default());
    breaker.force_open(S(2));
    time.advance(S(2) - Duration::from_nanos(1));
    assert_eq!(breaker.try_acquire().unwrap_err().retry_after(), Some(Duration::from_nanos(1)));
    time.advance(Duration::from_nanos(1));
    let probe = breaker.try_acquire().unwrap();
    assert_eq!(breaker.state(), State::HalfOpen);
    drop(probe);
}

/// Opens the breaker `n` times, and returns the duration of each opening.
fn open_times(breaker: &CircuitBreaker, time: &ManualClock, n: usize) -> Vec<Duration> {
    (0..n)
        .map(|_| {
            while breaker.state() == State::Closed {
                record(breaker, FAILED, 1);
            }
            let wait = breaker.try_acquire().unwrap_err().retry_after().unwrap();
            time.advance(wait);
            while let Ok(probe) = breaker.try_acquire() {
                probe.record(OK);
                if breaker.state() == State::Closed {
                    break;
                }
            }
            wait
        })
        .collect()
}

fn open(jitter: f64) -> OpenConfig {
    OpenConfig::default().initial_delay(S(1)).factor(2.0).max_delay(S(10)).jitter(jitter).reset_after(S(60))
}

// Guarantee: circuit_breaker 5.
#[test]
fn the_open_time_grows_with_consecutive_openings_up_to_the_maximum() {
    let (breaker, time) = breaker(CircuitBreakerConfig::default().open(open(0.0)));
    assert_eq!(open_times(&breaker, &time, 6), [S(1), S(2), S(4), S(8), S(10), S(10)]);
    assert_eq!(breaker.snapshot().openings, 6);
}

// Guarantee: circuit_breaker 5.
#[test]
fn the_open_time_shrinks_only_after_reset_after_in_the_closed_state() {
    let (breaker, time) = breaker(CircuitBreakerConfig::default().open(open(0.0)));
    open_times(&breaker, &time, 3);
    time.advance(S(59));
    assert_eq!(open_times(&breaker, &time, 1), [S(8)]);
    time.advance(S(120)); // two of four are forgotten
    assert_eq!(open_times(&breaker, &time, 1), [S(4)]);
    time.advance(S(100_000));
    assert_eq!(open_times(&breaker, &time, 1), [S(1)]);
}

// Guarantee: circuit_breaker 5.
#[test]
fn jitter_lengthens_the_open_time_within_the_maximum() {
    let (breaker, time) = breaker(CircuitBreakerConfig::default().open(open(0.5)));
    let times = open_times(&breaker, &time, 8);
    for (time, least) in times.iter().zip([1, 2, 4, 8, 10, 10, 10, 10]) {
        assert!((S(least)..=S(least * 3 / 2).max(MS(least * 1500)).min(S(10))).contains(time), "{times:?}");
    }
    assert!(times[0] != S(1) || times[1] != S(2));
}

// Guarantee: circuit_breaker 5.
#[test]
fn a_hint_lengthens_the_open_time_and_never_shortens_it() {
    for (hint, open_for) in [(S(30), S(30)), (MS(10), S(1)), (S(86_400), S(900))] {
        let (breaker, _hand) = breaker(CircuitBreakerConfig::default().count_window(1, 1).open(open(0.0)));
        record(&breaker, FAILED.with_retry_after(hint), 1);
        assert_eq!(breaker.try_acquire().unwrap_err().retry_after(), Some(open_for));
    }
}

#[test]
fn a_clone_in_another_thread_is_the_same_breaker() {
    let (breaker, _hand) = breaker(CircuitBreakerConfig::default().count_window(10, 10));
    let other = Arc::new(breaker.clone());
    std::thread::spawn(move || record(&other, FAILED, 10)).join().unwrap();
    assert_eq!(breaker.state(), State::Open);
}
