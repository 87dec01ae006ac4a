//! Circuit breaker: recovery by a health probe instead of callers' requests.
use std::{
    future::{Future, pending},
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::FutureExt;
use steadfast::{
    FailureKind, KindSet, Reason, Verdict,
    circuit_breaker::{
        CircuitBreaker, CircuitBreakerConfig, CircuitBreakerEvent, HalfOpenConfig, OnTimeout, OpenConfig, State,
        TripConfig,
    },
    outcome::TripRule,
    testing::{ManualClock, ScriptedService, drop_at_every_await},
    time::{Clock, Instant},
};

const S: fn(u64) -> Duration = Duration::from_secs;

fn breaker(config: CircuitBreakerConfig) -> (CircuitBreaker, Clock, ManualClock) {
    let (clock, time) = Clock::manual();
    let open = OpenConfig::default().initial_delay(S(1)).max_delay(S(8)).jitter(0.0);
    (CircuitBreaker::builder(config.open(open)).clock(&clock).build().unwrap(), clock, time)
}

/// Returns a probe that fails `fails` times and then succeeds, and that records the times of its
/// calls.
fn probe<'a>(
    clock: &'a Clock,
    fails: u32,
    asked: &'a Mutex<Vec<Instant>>,
) -> impl FnMut() -> std::pin::Pin<Box<dyn Future<Output = Result<(), &'static str>> + Send + 'a>> + 'a {
    let mut left = fails;
    move || {
        asked.lock().unwrap().push(clock.now());
        let bad = left > 0;
        left = left.saturating_sub(1);
        Box::pin(async move { if bad { Err("ill") } else { Ok(()) } })
    }
}

fn is_send<T: Send>(t: T) -> T {
    t
}

// Guarantee: circuit_breaker 8.
#[test]
fn the_loop_probes_after_each_open_time() {
    let (breaker, clock, time) = breaker(CircuitBreakerConfig::default().half_open_calls(2, 1.0));
    let asked = Mutex::new(Vec::new());
    let start = time.now();
    breaker.force_open(S(3));
    time.block_on(is_send(breaker.run(probe(&clock, 3, &asked), clock.sleep(S(60)))));
    // The forced opening lasts 3 s, those by failed probes 1, 2 and 4 s; then two probes succeed.
    let after: Vec<_> = asked.lock().unwrap().iter().map(|at| (*at - start).as_secs()).collect();
    assert_eq!(after, [3, 4, 6, 10, 10]);
    assert_eq!(breaker.state(), State::Closed);
    assert_eq!(time.now() - start, S(60), "the loop runs until shutdown");
}

// Guarantee: circuit_breaker 8.
#[test]
fn callers_do_not_probe_while_the_loop_runs() {
    let (breaker, clock, time) = breaker(CircuitBreakerConfig::default().half_open_calls(1, 1.0));
    breaker.force_open(S(1));
    let gate = tokio::sync::Semaphore::new(0);
    let probe = || async { gate.acquire().await.map(drop) };
    time.block_on(async {
        let mut run = Box::pin(breaker.run(probe, pending()));
        assert!(futures::poll!(&mut run).is_pending());
        clock.sleep(S(1)).await;
        // The open time is over, and the loop has not been polled yet.
        assert_eq!(breaker.try_acquire().unwrap_err().reason(), Reason::ProbesTaken);
        assert!(futures::poll!(&mut run).is_pending());
        assert_eq!(breaker.state(), State::HalfOpen);
        assert_eq!(breaker.try_acquire().unwrap_err().reason(), Reason::ProbesTaken);
        gate.add_permits(1);
        assert!(futures::poll!(&mut run).is_pending());
        assert_eq!(breaker.state(), State::Closed);
        assert!(breaker.try_acquire().is_ok());
    });
}

// Guarantee: circuit_breaker 8.
#[test]
fn callers_probe_again_after_the_loop_is_dropped() {
    let (breaker, _clock, time) = breaker(CircuitBreakerConfig::default().half_open_calls(1, 1.0));
    breaker.force_open(S(1));
    time.block_on(async {
        let mut run = Box::pin(breaker.run(async || Ok::<_, ()>(()), pending()));
        assert!(futures::poll!(&mut run).is_pending());
        time.advance(S(1));
        assert!(breaker.try_acquire().is_err());
        drop(run);
        breaker.try_acquire().unwrap().record(Verdict::success());
    });
    assert_eq!(breaker.state(), State::Closed);
}

// Guarantee: circuit_breaker 8.
#[test]
fn several_loops_probe_one_at_a_time() {
    let (breaker, clock, time) = breaker(CircuitBreakerConfig::default().half_open_calls(5, 1.0));
    breaker.force_open(S(1));
    let (running, most, all) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let probe = || async {
        most.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
        clock.sleep(Duration::from_millis(100)).await;
        running.fetch_sub(1, SeqCst);
        all.fetch_add(1, SeqCst);
        Ok::<_, ()>(())
    };
    let run = || breaker.run(probe, clock.sleep(S(20)));
    time.block_on(async { futures::join!(run(), run(), run()) });
    assert_eq!((most.load(SeqCst), all.load(SeqCst), breaker.state()), (1, 5, State::Closed));
}

// Guarantee: circuit_breaker 8.
#[test]
fn a_health_probe_that_hangs_is_dropped_and_the_half_open_state_times_out() {
    for (on_timeout, state) in [(OnTimeout::Open, State::Open), (OnTimeout::Close, State::Closed)] {
        let half_open =
            HalfOpenConfig::default().permitted_calls(1).success_rate(1.0).max_duration(S(10)).on_timeout(on_timeout);
        let (breaker, clock, time) = breaker(CircuitBreakerConfig::default().half_open(half_open));
        let service = ScriptedService::new("hang", &clock).unwrap();
        breaker.force_open(S(1));
        let probe = async || service.call().await.map(drop);
        time.block_on(breaker.run(probe, clock.sleep(Duration::from_millis(11_500))));
        assert_eq!((service.calls(), service.dropped(), service.running()), (1, 1, 0));
        assert_eq!(breaker.state(), state);
        if state == State::Open {
            let Reason::CircuitOpen { rule, .. } = breaker.try_acquire().unwrap_err().reason() else { panic!() };
            assert_eq!(rule, TripRule::HalfOpenTimeout);
        }
        assert!(breaker.snapshot().rejected <= 1, "attempts of the loop do not count as rejected calls");
    }
}

// Guarantee: circuit_breaker 8.
#[test]
fn every_error_of_a_health_probe_is_a_failure_and_so_is_slowness_under_a_slow_call_rule() {
    let kinds = CircuitBreakerConfig::default().half_open_calls(1, 1.0).failures(KindSet::of(&[FailureKind::Timeout]));
    let (one, clock, time) = breaker(kinds);
    one.force_open(S(1));
    time.block_on(one.run(async || Err::<(), _>("ill"), clock.sleep(Duration::from_millis(1500))));
    assert_eq!(one.state(), State::Open);

    let slow = TripConfig::default().slow_calls(0.5, Duration::from_millis(100));
    let (one, clock, time) = breaker(CircuitBreakerConfig::default().half_open_calls(1, 1.0).trip(slow));
    one.force_open(S(1));
    let probe = async || {
        clock.sleep(Duration::from_millis(200)).await;
        Ok::<_, ()>(())
    };
    time.block_on(one.run(probe, clock.sleep(Duration::from_millis(1500))));
    assert_eq!(one.state(), State::Open);
}

// Guarantee: circuit_breaker 8.
#[test]
fn an_isolated_breaker_is_not_probed() {
    let (breaker, clock, time) = breaker(CircuitBreakerConfig::default());
    let asked = Mutex::new(Vec::new());
    breaker.isolate();
    time.block_on(breaker.run(probe(&clock, 0, &asked), clock.sleep(S(100_000))));
    assert!(asked.lock().unwrap().is_empty());
    assert_eq!(breaker.state(), State::Isolated);
}

// Guarantee: circuit_breaker 8.
#[test]
fn the_loop_probes_after_each_of_several_openings() {
    let (breaker, clock, time) = breaker(CircuitBreakerConfig::default().half_open_calls(1, 1.0).count_window(1, 1));
    let asked = Mutex::new(Vec::new());
    let start = time.now();
    time.block_on(async {
        let fails = async {
            for at in [10, 100, 200] {
                clock.sleep_until(start + S(at)).await;
                breaker.try_acquire().unwrap().record(Verdict::failure(FailureKind::Server));
            }
        };
        futures::join!(fails, breaker.run(probe(&clock, 0, &asked), clock.sleep(S(300))));
    });
    let after: Vec<_> = asked.lock().unwrap().iter().map(|at| (*at - start).as_secs()).collect();
    assert_eq!(after, [11, 101, 201], "the calm between them is longer than `reset_after`");
}

// Guarantee: circuit_breaker 8.
#[test]
fn the_loop_waits_for_as_long_as_the_server_announced() {
    let (breaker, clock, time) = breaker(CircuitBreakerConfig::default().half_open_calls(1, 1.0));
    let asked = Mutex::new(Vec::new());
    let start = time.now();
    let away = steadfast::Hint::UnavailableFor(S(120));
    breaker.try_acquire().unwrap().record(Verdict::failure(FailureKind::Overloaded).with_hint(away));
    time.block_on(breaker.run(probe(&clock, 0, &asked), clock.sleep(S(121))));
    assert_eq!(*asked.lock().unwrap(), [start + S(120)]);
}

// Guarantee: circuit_breaker 8.
#[test]
fn failures_of_health_probes_are_sent_as_events() {
    let (breaker, clock, time) = breaker(CircuitBreakerConfig::default().half_open_calls(1, 1.0));
    breaker.force_open(S(1));
    let mut events = breaker.events();
    let asked = Mutex::new(Vec::new());
    time.block_on(breaker.run(probe(&clock, 1, &asked), clock.sleep(S(10))));
    let told: Vec<_> = std::iter::from_fn(|| events.try_recv().unwrap()).map(|event| event.what).collect();
    assert!(
        matches!(
            told[..],
            [
                CircuitBreakerEvent::HalfOpened,
                CircuitBreakerEvent::Failed { kind: FailureKind::Other },
                CircuitBreakerEvent::Opened { rule: TripRule::Probes, .. },
                CircuitBreakerEvent::HalfOpened,
                CircuitBreakerEvent::Closed,
            ]
        ),
        "{told:?}"
    );
}

// Guarantee: circuit_breaker 8.
#[test]
fn a_health_probe_that_panics_fails_and_the_panic_unwinds() {
    let (breaker, _clock, time) = breaker(CircuitBreakerConfig::default().half_open_calls(1, 1.0));
    breaker.force_open(S(1));
    let run = breaker.run(|| async { if true { panic!("boom") } else { Ok::<_, ()>(()) } }, pending());
    assert!(time.block_on(AssertUnwindSafe(run).catch_unwind()).is_err());
    assert_eq!(breaker.state(), State::Open);
    time.advance(S(60));
    assert!(breaker.try_acquire().is_ok(), "callers probe after the loop has ended");
}

#[test]
fn a_loop_dropped_at_any_await_frees_its_permits() {
    let (clock, time) = Clock::manual();
    let open = OpenConfig::default().initial_delay(S(1)).max_delay(S(1)).jitter(0.0);
    let make = || {
        CircuitBreaker::builder(CircuitBreakerConfig::default().half_open_calls(2, 1.0).open(open))
            .clock(&clock)
            .build()
            .unwrap()
    };
    let (service, current) =
        (ScriptedService::new("ok in 10ms, 503 in 10ms, ok in 10ms", &clock).unwrap(), Mutex::new(make()));
    let made = AtomicU32::new(0);
    let polls = drop_at_every_await(
        &time,
        || {
            let breaker = make();
            breaker.force_open(S(1));
            *current.lock().unwrap() = breaker.clone();
            made.fetch_add(1, SeqCst);
            let (service, clock) = (&service, &clock);
            async move { breaker.run(async || service.call().await.map(drop), clock.sleep(S(5))).await }
        },
        |_| {
            let breaker = current.lock().unwrap().clone();
            assert_eq!(service.running(), 0);
            if breaker.state() != State::Closed {
                time.advance(S(2));
                // No permit is lost: two callers probe, and close the breaker.
                (0..2).for_each(|_| breaker.try_acquire().unwrap().record(Verdict::success()));
            }
            assert_eq!(breaker.state(), State::Closed);
        },
    );
    assert!(polls >= 5 && made.load(SeqCst) as usize == polls + 1, "{polls}");
}

// Guarantee: circuit_breaker 8.
/// On real threads: while the loop runs, no caller of many is admitted as a probe.
#[test]
fn under_load_no_caller_probes_while_the_loop_runs() {
    let (breaker, clock, time) = breaker(CircuitBreakerConfig::default().half_open_calls(3, 1.0));
    breaker.force_open(S(1));
    let admitted = Arc::new(AtomicU32::new(0));
    time.block_on(async {
        let mut run = Box::pin(breaker.run(pending::<Result<(), ()>>, pending()));
        assert!(futures::poll!(&mut run).is_pending());
        clock.sleep(S(1)).await;
        assert!(futures::poll!(&mut run).is_pending());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..1000).filter(|_| breaker.try_acquire().is_ok()).for_each(|_| {
                        admitted.fetch_add(1, SeqCst);
                    })
                });
            }
        });
    });
    assert_eq!(admitted.load(SeqCst), 0);
}
