//! The breaker's lock-free parts under every interleaving of two threads.
use std::time::Duration;

use loom::{sync::Arc, thread};

use super::{
    CircuitBreakerConfig, State, TripConfig,
    state::{Core, Setting, Ticket},
    tally::Mark,
};
use crate::{entropy::Entropy, observe::Events, outcome::FailureKind, time::Instant};

const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

struct Breaker {
    core: Core,
    set: Setting,
}

impl Breaker {
    fn new(config: CircuitBreakerConfig) -> Arc<Self> {
        let set = Setting { config, entropy: Entropy::from_seed(1), events: Events::new() };
        Arc::new(Self { core: Core::new(&set.config), set })
    }

    fn admit(&self) -> Option<Ticket> {
        self.core.admit(&self.set, || NOW).ok()
    }

    fn succeed(&self) {
        if let Some(ticket) = self.core.admit_closed() {
            self.core.success(&self.set, ticket, || NOW);
        }
    }

    fn fail(&self) {
        if let Some(ticket) = self.core.admit_closed() {
            let mark = Mark { failure: Some(FailureKind::Server), weight: 1, ..Mark::default() };
            self.core.bad(&self.set, ticket, mark, || NOW);
        }
    }

    fn state(&self) -> State {
        self.core.word().state()
    }
}

/// The last `window` calls, at least `min` of them, all failed (or this share of them).
fn rate(window: u32, min: u32, share: f64) -> CircuitBreakerConfig {
    CircuitBreakerConfig::default().trip(TripConfig::default().failure_rate(share)).count_window(window, min)
}

/// Runs two closures on a breaker at once.
fn both(breaker: &Arc<Breaker>, one: fn(&Breaker), other: fn(&Breaker)) {
    let theirs = breaker.clone();
    let thread = thread::spawn(move || one(&theirs));
    other(breaker);
    thread.join().unwrap();
}

/// Open, and its time over.
fn ready(probes: u32) -> Arc<Breaker> {
    let breaker = Breaker::new(CircuitBreakerConfig::default().probes(probes, 1.0));
    breaker.core.open_by_hand(&breaker.set, Instant::from_nanos(1), Duration::from_nanos(1));
    breaker
}

#[test]
fn loom_breaker_exactly_the_probes_are_admitted() {
    for probes in [1, 2] {
        loom::model(move || {
            let breaker = ready(probes);
            let theirs = breaker.clone();
            let thread = thread::spawn(move || (0..2).filter(|_| theirs.admit().is_some()).count());
            let ours = (0..2).filter(|_| breaker.admit().is_some()).count();
            assert_eq!(ours + thread.join().unwrap(), probes as usize);
            assert_eq!(breaker.state(), State::HalfOpen);
        });
    }
}

#[test]
fn loom_breaker_a_dropped_probe_gives_its_place_back_to_one() {
    loom::model(|| {
        let breaker = ready(1);
        let probe = breaker.admit().unwrap();
        let theirs = breaker.clone();
        let thread = thread::spawn(move || theirs.core.ignore(probe));
        let ours = breaker.admit();
        thread.join().unwrap();
        assert_eq!(breaker.admit().is_some(), ours.is_none());
        assert_eq!(breaker.core.word().count(), 1);
    });
}

#[test]
fn loom_breaker_a_late_outcome_cannot_move_another_generation() {
    loom::model(|| {
        let breaker = Breaker::new(rate(1, 1, 1.0));
        let late = breaker.core.admit_closed().unwrap();
        let theirs = breaker.clone();
        let thread = thread::spawn(move || {
            theirs.core.isolate(&theirs.set, NOW);
            theirs.core.close_by_hand(&theirs.set, NOW, true);
        });
        let mark = Mark { failure: Some(FailureKind::Server), ..Mark::default() };
        breaker.core.bad(&breaker.set, late, mark, || NOW);
        thread.join().unwrap();
        // It came before the isolation, which then closed it; or after, and changed nothing.
        assert_eq!(breaker.state(), State::Closed);
        assert_eq!(breaker.core.figures(&breaker.set.config, NOW).1.failures, 0);
    });
}

#[test]
fn loom_breaker_no_trip_is_missed() {
    // Two failures fill a window of two, whoever comes first.
    loom::model(|| {
        let breaker = Breaker::new(rate(2, 2, 1.0));
        both(&breaker, Breaker::fail, Breaker::fail);
        assert_eq!(breaker.state(), State::Open);
    });
    // A failure and a success are one half of two calls, whichever of them makes it two.
    loom::model(|| {
        let breaker = Breaker::new(rate(4, 2, 0.5));
        both(&breaker, Breaker::fail, Breaker::succeed);
        assert_eq!(breaker.state(), State::Open);
    });
}

#[test]
fn loom_breaker_no_outcome_is_lost_in_a_window_that_was_clean() {
    loom::model(|| {
        let breaker = Breaker::new(rate(3, 3, 1.0));
        (0..3).for_each(|_| breaker.succeed());
        both(&breaker, |b| (0..2).for_each(|_| b.fail()), Breaker::succeed);
        assert_eq!(breaker.state(), State::Closed, "two failures are not three");
        (0..2).for_each(|_| breaker.succeed());
        breaker.fail();
        // The successes have pushed the two failures out.
        let counts = breaker.core.figures(&breaker.set.config, NOW).1;
        assert_eq!((breaker.state(), counts.calls, counts.failures), (State::Closed, 3, 1));
        (0..2).for_each(|_| breaker.fail());
        assert_eq!(breaker.state(), State::Open);
    });
}

#[test]
fn loom_breaker_a_row_of_failures_is_ended_by_a_success_or_is_not() {
    loom::model(|| {
        let breaker = Breaker::new(CircuitBreakerConfig::default().trip(TripConfig::default().consecutive_failures(3)));
        breaker.fail();
        both(&breaker, Breaker::fail, Breaker::succeed);
        assert_eq!(breaker.state(), State::Closed);
        // Whatever the order was, there is at most one failure in a row now. (A success that gave up where a failure came in
        // between once let the row go on.)
        breaker.fail();
        assert_eq!(breaker.state(), State::Closed);
        (0..2).for_each(|_| breaker.fail());
        assert_eq!(breaker.state(), State::Open);
    });
}
