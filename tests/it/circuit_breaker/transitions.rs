//! Circuit breaker: its changes of state in a stream of their own.
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

/// In a storm, rejections push openings out of the ring of events; not out of this one.
#[test]
fn breaker_events_a_follower_of_transitions_misses_none_in_a_storm() {
    let open = OpenConfig::default().delays(S(1), S(1)).jitter(0.0);
    let (breaker, hand) = breaker(probes(1, 1.0).count_window(4, 4).open(open));
    let (mut events, mut transitions) = (breaker.events(), breaker.transitions());
    for _ in 0..50 {
        record(&breaker, FAILED, 4);
        (0..1000).for_each(|_| assert!(breaker.try_acquire().is_err()));
        hand.advance(S(1));
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
fn breaker_events_a_transition_tells_why_for_how_long_and_how_long_it_was_before() {
    let (breaker, hand) = breaker(probes(1, 1.0).count_window(4, 4).open_for(S(8), S(8)));
    let mut transitions = breaker.transitions();
    hand.advance(S(30));
    record(&breaker, FAILED, 4);
    hand.advance(S(9));
    let probe = breaker.try_acquire().unwrap();
    hand.advance(S(1));
    probe.record(FAILED);
    let told = all(&mut transitions);
    let of = |n: usize| &told[n].what;
    assert_eq!((of(0).rule, of(0).open_for, of(0).after), (Some(TripRule::FailureRate), Some(S(8)), S(30)));
    assert_eq!((of(1).rule, of(1).open_for, of(1).after), (None, None, S(9)));
    assert_eq!((of(2).rule, of(2).open_for, of(2).after), (Some(TripRule::Probes), Some(S(8)), S(1)));
    assert_eq!(told[2].at, hand.now());
}

/// What did not change is not told, but where an open one is opened anew.
#[test]
fn breaker_events_by_hand_only_changes_are_told() {
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

/// A follower in another task, from what is told alone, knows the state at any time.
#[test]
fn breaker_events_following_transitions_gives_the_state() {
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
