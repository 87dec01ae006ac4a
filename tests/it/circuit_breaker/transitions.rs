//! Circuit breaker: the stream of its state transitions.
use std::time::Duration;

use steadfast::{
    FailureKind, Verdict,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, OpenConfig, State, Transition},
    observe::{Event, Missed, Subscription},
    outcome::TripRule,
};

use crate::{
    circuit_breaker::states::probes,
    circuit_breaker::{breaker, record},
};

const S: fn(u64) -> Duration = Duration::from_secs;
const FAILED: Verdict = Verdict::failure(FailureKind::Server);
const OK: Verdict = Verdict::success();

fn all(transitions: &mut Subscription<Transition>) -> Vec<Event<Transition>> {
    std::iter::from_fn(|| transitions.try_recv().unwrap()).collect()
}

fn ways(told: &[Event<Transition>]) -> Vec<(State, State)> {
    told.iter().map(|event| (event.what.from, event.what.to)).collect()
}

/// Under load, rejections push openings out of the buffer of events, but not out of this stream.
#[test]
fn a_subscriber_of_transitions_misses_none_under_load() {
    let open = OpenConfig::default().initial_delay(S(1)).max_delay(S(1)).jitter(0.0);
    let (breaker, time) = breaker(probes(1, 1.0).count_window(4, 4).open(open));
    let (mut events, mut transitions) = (breaker.events(), breaker.transitions());
    for _ in 0..50 {
        record(&breaker, FAILED, 4);
        (0..1000).for_each(|_| assert!(breaker.try_acquire().is_err()));
        time.advance(S(1));
        breaker.try_acquire().unwrap().record(OK);
    }
    assert!(matches!(events.try_recv(), Err(Missed::Events(_))));
    let told = all(&mut transitions);
    let cycle = [(State::Closed, State::Open), (State::Open, State::HalfOpen), (State::HalfOpen, State::Closed)];
    assert_eq!(ways(&told), cycle.repeat(50));
    assert!(told.iter().zip(1..).all(|(event, number)| event.number == number));
    assert!(told.iter().all(|event| event.source.as_ref().is_some_and(|name| name.as_str() == "db")));
}

#[test]
fn a_transition_has_its_rule_the_open_time_and_the_time_in_the_state_before() {
    let (breaker, time) = breaker(probes(1, 1.0).count_window(4, 4).open_for(S(8), S(8)));
    let mut transitions = breaker.transitions();
    time.advance(S(30));
    record(&breaker, FAILED, 4);
    time.advance(S(9));
    let probe = breaker.try_acquire().unwrap();
    time.advance(S(1));
    probe.record(FAILED);
    let told = all(&mut transitions);
    let of = |n: usize| &told[n].what;
    assert_eq!((of(0).rule, of(0).open_for, of(0).after), (Some(TripRule::FailureRate), Some(S(8)), S(30)));
    assert_eq!((of(1).rule, of(1).open_for, of(1).after), (None, None, S(9)));
    assert_eq!((of(2).rule, of(2).open_for, of(2).after), (Some(TripRule::Probes), Some(S(8)), S(1)));
    assert_eq!(told[2].at, time.now());
}

/// A call that changes nothing sends nothing, except if an open breaker is opened again.
#[test]
fn manual_calls_send_a_transition_only_if_they_change_the_state_or_open_the_breaker_again() {
    let (breaker, _hand) = breaker(CircuitBreakerConfig::default());
    let mut transitions = breaker.transitions();
    let acts: [fn(&CircuitBreaker); 8] = [
        CircuitBreaker::close,
        CircuitBreaker::reset,
        CircuitBreaker::isolate,
        CircuitBreaker::isolate,
        |b| b.force_open(S(1)),
        |b| b.force_open(S(2)),
        CircuitBreaker::close,
        |b| b.reconfigure(CircuitBreakerConfig::default().count_window(30, 3)).unwrap(),
    ];
    acts.iter().for_each(|act| act(&breaker));
    let (closed, isolated, open) = (State::Closed, State::Isolated, State::Open);
    assert_eq!(ways(&all(&mut transitions)), [(closed, isolated), (isolated, open), (open, open), (open, closed)]);
}

/// The transitions alone give the state at any time.
#[test]
fn the_transitions_give_the_state() {
    let (breaker, _hand) = breaker(CircuitBreakerConfig::default().count_window(2, 1));
    let mut transitions = breaker.transitions();
    let mut known = breaker.state();
    std::thread::scope(|scope| {
        for n in 0..4 {
            let breaker = &breaker;
            scope.spawn(move || {
                for i in 0..60 {
                    match (i + n) % 4 {
                        0 => breaker.isolate(),
                        1 => breaker.force_open(Duration::ZERO),
                        2 => drop(breaker.try_acquire().map(|permit| permit.record(FAILED))),
                        _ => breaker.close(),
                    }
                }
            });
        }
    });
    for event in all(&mut transitions) {
        assert_eq!(event.what.from, known);
        known = event.what.to;
    }
    assert_eq!(known, breaker.state());
}
