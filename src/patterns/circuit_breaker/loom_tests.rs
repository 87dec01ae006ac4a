//! The breaker's lock-free parts under every interleaving of two threads.
use std::time::Duration;

use loom::{sync::Arc, thread};

use super::{
    CircuitBreakerConfig, State, TripConfig,
    config_parts::SlowStartConfig,
    loom_parts::seeded,
    state::{Core, Refusal, Ticket},
    window::{Counts, Mark, Setting},
};
use crate::{
    outcome::{FailureKind, TripRule},
    time::Instant,
};

const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

struct Breaker {
    core: Core,
    set: Setting,
}

impl Breaker {
    fn new(config: CircuitBreakerConfig) -> Arc<Self> {
        let set = Setting::new(config, &seeded(), None);
        Arc::new(Self { core: Core::new(&config, Instant::from_nanos(0), None), set })
    }

    fn reconfigure(&self, config: CircuitBreakerConfig) {
        self.set.replace(config);
        self.core.reconfigured(&self.set, NOW);
    }

    fn counts(&self) -> Counts {
        self.core.figures(NOW).counts
    }

    fn admit(&self) -> Option<Ticket> {
        self.core.admit(&self.set, || NOW).ok()
    }

    /// As a permit does: inlined in a full window, else out of line.
    fn succeed(&self) {
        if let Some(ticket) = self.core.admit_closed()
            && !self.core.success_at_once(ticket)
        {
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

/// Returns a configuration that opens if this share of the last `window` calls failed, of at least
/// `min` calls.
fn rate(window: u32, min: u32, share: f64) -> CircuitBreakerConfig {
    CircuitBreakerConfig::default().trip(TripConfig::default().failure_rate(share)).count_window(window, min)
}

/// Runs two functions on a breaker concurrently.
fn both(breaker: &Arc<Breaker>, one: fn(&Breaker), other: fn(&Breaker)) {
    let theirs = breaker.clone();
    let thread = thread::spawn(move || one(&theirs));
    other(breaker);
    thread.join().unwrap();
}

/// Returns an open breaker whose time is over.
fn ready(probes: u32) -> Arc<Breaker> {
    let breaker = Breaker::new(CircuitBreakerConfig::default().half_open_calls(probes, 1.0));
    breaker.core.open_manually(&breaker.set, Instant::from_nanos(1), Duration::from_nanos(1));
    breaker
}

#[test]
fn loom_breaker_exactly_the_permitted_calls_are_admitted() {
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
fn loom_breaker_a_dropped_probe_frees_its_permit_once() {
    loom::model(|| {
        let breaker = ready(1);
        let probe = breaker.admit().unwrap();
        let theirs = breaker.clone();
        let thread = thread::spawn(move || theirs.core.ignore(&theirs.set, probe, || NOW));
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
            theirs.core.close_manually(&theirs.set, NOW, true);
        });
        let mark = Mark { failure: Some(FailureKind::Server), ..Mark::default() };
        breaker.core.bad(&breaker.set, late, mark, || NOW);
        thread.join().unwrap();
        // The outcome came before the isolation, and the close emptied the window; or after it, and changed nothing.
        assert_eq!(breaker.state(), State::Closed);
        assert_eq!(breaker.core.figures(NOW).counts.failures, 0);
    });
}

#[test]
fn loom_breaker_no_trip_is_missed() {
    // Two failures fill a window of two, in any order.
    loom::model(|| {
        let breaker = Breaker::new(rate(2, 2, 1.0));
        both(&breaker, Breaker::fail, Breaker::fail);
        assert_eq!(breaker.state(), State::Open);
    });
    // A failure and a success are one half of two calls, in any order; in a time window too.
    for config in [rate(4, 2, 0.5), rate(4, 2, 0.5).time_window(Duration::from_secs(10), 10, 2)] {
        loom::model(move || {
            let breaker = Breaker::new(config);
            both(&breaker, Breaker::fail, Breaker::succeed);
            assert_eq!(breaker.state(), State::Open);
        });
    }
}

/// Regression: a record is judged over the window that it completes, not over one that other
/// threads have changed since.
#[test]
fn loom_breaker_each_record_is_judged_by_itself() {
    // The first of the two successes makes it one of two.
    loom::model(|| {
        let breaker = Breaker::new(rate(4, 2, 0.5));
        breaker.fail();
        both(&breaker, Breaker::succeed, Breaker::succeed);
        assert_eq!(breaker.state(), State::Open);
    });
    // "success, failure, success, success": a failure next makes it two of four; a success next pushes nothing bad out, but a
    // failure after it does.
    loom::model(|| {
        let breaker = Breaker::new(rate(4, 4, 0.5));
        breaker.succeed();
        breaker.fail();
        (0..2).for_each(|_| breaker.succeed());
        both(&breaker, Breaker::fail, Breaker::succeed);
        if breaker.state() == State::Closed {
            // So the success was first, and this makes "success, failure, success, success" again.
            (0..2).for_each(|_| breaker.succeed());
            breaker.fail();
        }
        assert_eq!(breaker.state(), State::Open);
    });
    // Three in a row, or one in a row after the success.
    loom::model(|| {
        let breaker = Breaker::new(CircuitBreakerConfig::default().trip(TripConfig::default().consecutive_failures(3)));
        (0..2).for_each(|_| breaker.fail());
        both(&breaker, Breaker::fail, Breaker::succeed);
        if breaker.state() == State::Closed {
            (0..2).for_each(|_| breaker.fail());
        }
        assert_eq!(breaker.state(), State::Open);
    });
}

/// All values of a rejection belong to one opening.
#[test]
fn loom_breaker_a_rejection_does_not_combine_two_openings() {
    loom::model(|| {
        let breaker = Breaker::new(CircuitBreakerConfig::default().half_open_calls(1, 1.0));
        let (old, new) = (Instant::from_nanos(10), Instant::from_nanos(100));
        breaker.core.open_manually(&breaker.set, old, Duration::from_nanos(90));
        let theirs = breaker.clone();
        let thread = thread::spawn(move || {
            let probe = theirs.core.admit(&theirs.set, || new).unwrap();
            let mark = Mark { unavailable: Some(Duration::from_nanos(7)), ..Mark::default() };
            theirs.core.bad(&theirs.set, probe, mark, || new);
        });
        // This caller read the clock before the second opening.
        let now = Instant::from_nanos(20);
        match breaker.core.admit(&breaker.set, || now) {
            Err(Refusal::Open { since, wait, rule, .. }) => {
                let first = (old, 80, TripRule::Manual);
                let second = (new, 87, TripRule::Unavailable);
                assert!([first, second].contains(&(since, wait, rule)), "{since:?} {wait} {rule}");
            }
            other => assert_eq!(other, Err(Refusal::ProbesTaken)),
        }
        thread.join().unwrap();
    });
}

/// Returns a half-open breaker with one of two probes in flight, which hangs at [`NOW`].
fn hanging() -> (Arc<Breaker>, Ticket) {
    let mut config = CircuitBreakerConfig::default().half_open_calls(2, 1.0);
    config.half_open.max_duration = Duration::from_secs(1);
    let breaker = Breaker::new(config);
    breaker.core.open_manually(&breaker.set, Instant::from_nanos(1), Duration::from_nanos(1));
    let hangs = breaker.core.admit(&breaker.set, || Instant::from_nanos(2)).unwrap();
    (breaker, hangs)
}

#[test]
fn loom_breaker_opens_once_if_its_probes_hang() {
    loom::model(|| {
        let (breaker, _hangs) = hanging();
        let theirs = breaker.clone();
        let thread = thread::spawn(move || theirs.admit());
        assert_eq!(breaker.admit(), None);
        assert_eq!(thread.join().unwrap(), None);
        assert_eq!((breaker.state(), breaker.core.word().generation()), (State::Open, 3));
        assert_eq!(breaker.core.figures(NOW).openings, 1);
    });
}

/// A probe that hung returns while a caller finds it hanging: either its result counts, or the
/// breaker opens.
#[test]
fn loom_breaker_a_late_probe_counts_or_is_too_late() {
    loom::model(|| {
        let (breaker, hangs) = hanging();
        let theirs = breaker.clone();
        let thread = thread::spawn(move || theirs.core.success(&theirs.set, hangs, || NOW));
        let ours = breaker.admit();
        thread.join().unwrap();
        match ours {
            Some(second) => {
                assert_eq!((breaker.state(), breaker.core.word().count()), (State::HalfOpen, 2));
                breaker.core.success(&breaker.set, second, || NOW);
                assert_eq!(breaker.state(), State::Closed);
            }
            None => assert_eq!((breaker.state(), breaker.core.figures(NOW).openings), (State::Open, 1)),
        }
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
        let counts = breaker.core.figures(NOW).counts;
        assert_eq!((breaker.state(), counts.calls, counts.failures), (State::Closed, 3, 1));
        (0..2).for_each(|_| breaker.fail());
        assert_eq!(breaker.state(), State::Open);
    });
}

#[test]
fn loom_breaker_a_success_ends_consecutive_failures_or_comes_before_them() {
    loom::model(|| {
        let breaker = Breaker::new(CircuitBreakerConfig::default().trip(TripConfig::default().consecutive_failures(3)));
        breaker.fail();
        both(&breaker, Breaker::fail, Breaker::succeed);
        assert_eq!(breaker.state(), State::Closed);
        // In any order, there is at most one consecutive failure now. (Regression: a success that gave up
        // when a failure came in between did not end the streak.)
        breaker.fail();
        assert_eq!(breaker.state(), State::Closed);
        (0..2).for_each(|_| breaker.fail());
        assert_eq!(breaker.state(), State::Open);
    });
}

/// The configuration is replaced while outcomes are recorded: each is counted once, in the old
/// window or the new one.
#[test]
fn loom_breaker_no_outcome_is_lost_while_the_window_is_resized() {
    for (from, to) in [(2, 3), (3, 2)] {
        for prepared in 0..3 {
            loom::model(move || {
                let breaker = Breaker::new(rate(from, from, 1.0));
                (0..prepared).for_each(|_| breaker.succeed());
                let theirs = breaker.clone();
                let thread = thread::spawn(move || {
                    theirs.succeed();
                    theirs.fail();
                });
                breaker.reconfigure(rate(to, to, 1.0));
                thread.join().unwrap();
                let counts = breaker.counts();
                // The window held at most `from` before it was changed, and holds at most `to` since.
                let (least, most) = ((prepared + 2).min(from).min(to), (prepared + 2).min(to));
                assert!((u64::from(least)..=u64::from(most)).contains(&counts.calls), "{counts:?}");
                assert_eq!(counts.failures, 1);
                // The window behaves as a new one: as many successes as it holds push the failure out.
                (1..to).for_each(|_| breaker.succeed());
                assert_eq!(breaker.counts().failures, 1);
                breaker.succeed();
                assert_eq!(breaker.counts().failures, 0);
            });
        }
    }
}

/// A success that began under the old configuration is judged by the new one.
#[test]
fn loom_breaker_no_trip_is_missed_while_the_rules_change() {
    loom::model(|| {
        let breaker = Breaker::new(rate(4, 4, 0.5));
        breaker.fail();
        let theirs = breaker.clone();
        let thread = thread::spawn(move || theirs.succeed());
        breaker.reconfigure(rate(4, 2, 0.5));
        thread.join().unwrap();
        assert_eq!(breaker.state(), State::Open, "one of two failed, and two are enough");
    });
    loom::model(|| {
        let row =
            |n| CircuitBreakerConfig::default().trip(TripConfig::default().consecutive_failures(n).failure_rate(1.0));
        let breaker = Breaker::new(row(4).count_window(10, 10));
        (0..2).for_each(|_| breaker.fail());
        let theirs = breaker.clone();
        let thread = thread::spawn(move || theirs.succeed());
        breaker.reconfigure(row(3).count_window(9, 9));
        thread.join().unwrap();
        (0..2).for_each(|_| breaker.fail());
        assert_eq!(breaker.state(), State::Closed, "the success has ended the streak");
        breaker.fail();
        assert_eq!(breaker.state(), State::Open);
    });
}

#[test]
fn loom_breaker_a_change_to_a_time_window_loses_no_failure() {
    loom::model(|| {
        let breaker = Breaker::new(rate(2, 2, 1.0));
        let theirs = breaker.clone();
        let thread = thread::spawn(move || theirs.succeed());
        breaker.reconfigure(rate(2, 2, 1.0).time_window(Duration::from_secs(10), 2, 9));
        breaker.fail();
        thread.join().unwrap();
        let counts = breaker.counts();
        // The success came before the windows were replaced, and is gone with them, or after.
        assert!((1..=2).contains(&counts.calls) && counts.failures == 1, "{counts:?}");
    });
}

/// The end of a slow start loses no outcome.
#[test]
fn loom_breaker_a_slow_start_ends_once_and_loses_no_outcome() {
    loom::model(|| {
        let breaker = Breaker::new(
            rate(4, 4, 1.0).half_open_calls(1, 1.0).slow_start(SlowStartConfig::linear(Duration::from_nanos(10), 0.5)),
        );
        let early = Instant::from_nanos(5);
        breaker.core.open_manually(&breaker.set, Instant::from_nanos(1), Duration::from_nanos(1));
        let probe = breaker.core.admit(&breaker.set, || early).unwrap();
        breaker.core.success(&breaker.set, probe, || early);
        assert!(breaker.core.word().in_slow_start());
        let ticket = breaker.core.admit(&breaker.set, || early).unwrap();
        let theirs = breaker.clone();
        let thread = thread::spawn(move || {
            theirs.core.success(&theirs.set, ticket, || NOW);
            theirs.admit().unwrap()
        });
        breaker.admit().unwrap();
        thread.join().unwrap();
        assert!(breaker.core.word().passes_all());
        assert_eq!(breaker.counts().calls, 1);
    });
}
