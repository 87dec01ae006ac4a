//! A slow start, a registry's limit and the values of an opening, each by itself, under every
//! interleaving of two threads.
use std::time::Duration;

use loom::{sync::Arc, thread};

use super::{
    CircuitBreakerConfig, State,
    open_limit::OpenLimit,
    state::{Core, Gate, Refusal},
    window::{ALL, Setting},
};
use crate::{build::Common, entropy::Entropy, outcome::TripRule, time::Instant};

const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

/// The same randomness in each run of a model.
pub(super) fn seeded() -> Common {
    Common { entropy: Some(Entropy::from_seed(1)), ..Common::default() }
}

#[test]
fn loom_breaker_a_slow_start_admits_its_share_of_racing_calls() {
    loom::model(|| {
        let gate = Arc::new(Gate::new(true));
        gate.begin_slow_start(NOW);
        let theirs = gate.clone();
        let thread = thread::spawn(move || (0..2).filter(|_| theirs.passes(ALL / 2)).count());
        let ours = (0..2).filter(|_| gate.passes(ALL / 2)).count();
        assert_eq!(ours + thread.join().unwrap(), 2);
    });
}

#[test]
fn loom_breaker_a_registry_opens_at_most_its_share() {
    loom::model(|| {
        let limit = Arc::new(OpenLimit::new(0.5));
        (0..3).for_each(|_| limit.add_member()); // of three, one
        let theirs = limit.clone();
        let thread = thread::spawn(move || theirs.try_open());
        let ours = limit.try_open();
        assert!(ours ^ thread.join().unwrap());
        assert_eq!(limit.open(), 1);
        limit.count_closed();
        assert!(limit.try_open());
    });
}

/// Bug: a breaker that was opened or isolated while it was open wrote the new values before the
/// word. A rejection at that moment had the start of one opening and the end of another.
#[test]
fn loom_breaker_a_rejection_does_not_combine_an_opening_with_the_one_that_replaces_it() {
    let (old, new) = (Instant::from_nanos(10), Instant::from_nanos(50));
    let enter = |(core, set): &(Core, Setting), state, at| match state {
        State::Open => core.open_manually(set, at, Duration::from_nanos(90)),
        _ => core.isolate(set, at),
    };
    let states = [State::Open, State::Isolated];
    for (first, second) in states.into_iter().flat_map(|first| states.map(|second| (first, second))) {
        loom::model(move || {
            let config = CircuitBreakerConfig::default();
            let core = Core::new(&config, Instant::from_nanos(0), None);
            let breaker = Arc::new((core, Setting::new(config, &seeded(), None)));
            enter(&breaker, first, old);
            let theirs = breaker.clone();
            let thread = thread::spawn(move || enter(&theirs, second, new));
            let seen = breaker.0.admit(&breaker.1, || Instant::from_nanos(20)).unwrap_err();
            thread.join().unwrap();
            let (rule, last) = (TripRule::Manual, None);
            let expected = [(first, old, 80), (second, new, 120)].map(|(state, since, wait)| match state {
                State::Open => Refusal::Open { since, rule, last, wait },
                _ => Refusal::Isolated { since },
            });
            assert!(expected.contains(&seen), "{seen:?}");
        });
    }
}
