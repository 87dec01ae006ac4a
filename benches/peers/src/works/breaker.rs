//! Circuit breaker: a call through it while closed, and a rejection while open; async and sync doors apart.
//!
//! Everyone: count window of 100, opens at 50 % failures, open for an hour (nothing may half-open in mid-run).
//! Who has no count window is named with what it has instead.

use super::{
    Failed, Instance, Subject, Work, Worker, beside, call_loop, failing, instance, leak, operation, operation_sync,
    ours, poll_loop, rival,
};
use failsafe::futures::CircuitBreaker as _;
use std::cell::Cell;
use std::future::ready;
use std::hint::black_box;
use std::time::Duration;
use steadfast::Classify;
use steadfast::circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, TripConfig};
use steadfast::outcome::ErrIsFailure;
use steadfast::time::Clock;
use tower::{Layer, Service, ServiceExt};
use tower_resilience::circuitbreaker::CircuitBreakerLayer;

const OPEN_FOR: Duration = Duration::from_secs(3600);
/// Enough failures to open every one of them.
const TO_OPEN: u64 = 400;

pub const CLOSED: Work = Work {
    name: "breaker_closed",
    about: "an async call that succeeds, through a closed breaker",
    subjects: || asynchronous(false),
    light: true,
};

pub const CLOSED_SYNC: Work = Work {
    name: "breaker_closed_sync",
    about: "the same through the sync doors",
    subjects: || sync(false),
    light: true,
};

pub const ONE_PERCENT: Work = Work {
    name: "breaker_closed_1_percent",
    about: "an async call through a closed breaker, of which each hundredth fails",
    subjects: one_percent,
    light: true,
};

pub const OPEN: Work = Work {
    name: "breaker_open",
    about: "an async call rejected by an open breaker",
    subjects: || asynchronous(true),
    light: true,
};

pub const OPEN_SYNC: Work =
    Work { name: "breaker_open_sync", about: "the same through the sync doors", subjects: || sync(true), light: true };

fn recloser() -> recloser::Recloser {
    recloser::Recloser::custom().error_rate(0.5).closed_len(100).half_open_len(10).open_wait(OPEN_FOR).build()
}

fn nobreak() -> nobreak::CircuitBreaker {
    nobreak::builder().with_failure_threshold(5).with_open_duration(OPEN_FOR).build()
}

type Failsafe<P> = failsafe::StateMachine<P, ()>;

fn failsafe_consecutive() -> Failsafe<failsafe::failure_policy::ConsecutiveFailures<failsafe::backoff::Constant>> {
    let policy = failsafe::failure_policy::consecutive_failures(5, failsafe::backoff::constant(OPEN_FOR));
    failsafe::Config::new().failure_policy(policy).build()
}

fn circuitbreaker_rs() -> circuitbreaker_rs::CircuitBreaker<circuitbreaker_rs::DefaultPolicy, Failed> {
    circuitbreaker_rs::CircuitBreaker::<circuitbreaker_rs::DefaultPolicy, Failed>::builder()
        .failure_threshold(0.5)
        .min_throughput(100)
        .cooldown(OPEN_FOR)
        .build()
}

fn steadfast(open: bool) -> CircuitBreaker {
    on(open, &Clock::default())
}

fn on(open: bool, clock: &Clock) -> CircuitBreaker {
    let config = CircuitBreakerConfig::default()
        .count_window(100, 100)
        .trip(TripConfig::default().failure_rate(0.5))
        .open_for(OPEN_FOR, OPEN_FOR);
    let breaker = CircuitBreaker::builder(config).clock(clock).build().expect("a valid configuration");
    if open {
        breaker.force_open(OPEN_FOR);
    }
    breaker
}

/// Opens the breaker if asked, by failing through the very same worker shape.
fn opened(open: bool, mut fail: Worker) {
    if open {
        fail(TO_OPEN);
    }
}

fn asynchronous(open: bool) -> Vec<Subject> {
    vec![
        // Count window of 100 at 50 %, on the default clock.
        ours("steadfast call", move || {
            let breaker = leak(steadfast(open));
            instance(move |_| poll_loop(async move || black_box(breaker).call(|| operation()).await))
        }),
        beside("steadfast call (quanta clock)", move || {
            let breaker = leak(on(open, &Clock::quanta()));
            if open {
                breaker.force_open(OPEN_FOR);
            }
            instance(move |_| poll_loop(async move || black_box(breaker).call(|| operation()).await))
        }),
        // Count window of 100 at 50 %.
        rival("recloser 1.4 async", move || {
            let breaker = leak(recloser::AsyncRecloser::from(recloser()));
            opened(open, poll_loop(async move || breaker.call(failing()).await));
            instance(move |_| poll_loop(async move || black_box(breaker).call(operation()).await))
        }),
        // 5 consecutive failures; std mutex.
        rival("nobreak 0.1 async", move || {
            let breaker = leak(nobreak());
            opened(open, poll_loop(async move || breaker.call_async(failing).await.is_ok()));
            instance(move |_| poll_loop(async move || black_box(breaker).call_async(|| operation()).await))
        }),
        // 5 consecutive failures.
        rival("failsafe 1.3 async, consecutive", move || {
            let breaker = leak(failsafe_consecutive());
            opened(open, poll_loop(async move || breaker.call(failing()).await));
            instance(move |_| poll_loop(async move || black_box(breaker).call(operation()).await))
        }),
        // Its default: success rate 80 % over 30 s, or 5 consecutive failures; open for 10 s and more.
        rival("failsafe 1.3 async, default", move || {
            let breaker = leak(failsafe::Config::new().build());
            opened(open, poll_loop(async move || breaker.call(failing()).await));
            instance(move |_| poll_loop(async move || black_box(breaker).call(operation()).await))
        }),
        // 50 % of all calls since it closed, or 5 consecutive failures: no window.
        rival("circuitbreaker-rs 0.1 async", move || {
            let breaker = leak(circuitbreaker_rs());
            opened(open, poll_loop(async move || breaker.call_async(failing).await.is_ok()));
            instance(move |_| poll_loop(async move || black_box(breaker).call_async(|| operation()).await))
        }),
        // Count window of 100 at 50 %.
        rival("tower-resilience 0.13", move || tower_resilience(open)).parks(),
        beside("(floor) await the operation", || instance(|_| poll_loop(operation))),
    ]
}

/// The outcomes of calls of which each hundredth fails.
fn seldom_failing() -> impl Fn() -> Result<u32, Failed> {
    let calls = Cell::new(0);
    move || {
        calls.set((calls.get() + 1) % 100);
        if calls.get() == 0 { Err(Failed) } else { Ok(7) }
    }
}

fn one_percent() -> Vec<Subject> {
    macro_rules! worker {
        (|$outcome:ident| $call:expr) => {
            instance(move |_| {
                let next = seldom_failing();
                poll_loop(async move || {
                    let $outcome = next();
                    $call.await.is_ok()
                })
            })
        };
    }
    vec![
        ours("steadfast call", || {
            let breaker = leak(steadfast(false));
            worker!(|outcome| black_box(breaker).call(move || ready(black_box(outcome))))
        }),
        rival("recloser 1.4 async", || {
            let breaker = leak(recloser::AsyncRecloser::from(recloser()));
            worker!(|outcome| black_box(breaker).call(ready(black_box(outcome))))
        }),
        rival("nobreak 0.1 async", || {
            let breaker = leak(nobreak());
            worker!(|outcome| black_box(breaker).call_async(move || ready(black_box(outcome))))
        }),
        rival("failsafe 1.3 async, consecutive", || {
            let breaker = leak(failsafe_consecutive());
            worker!(|outcome| black_box(breaker).call(ready(black_box(outcome))))
        }),
        rival("circuitbreaker-rs 0.1 async", || {
            let breaker = leak(circuitbreaker_rs());
            worker!(|outcome| black_box(breaker).call_async(move || ready(black_box(outcome))))
        }),
    ]
}

fn tower_resilience(open: bool) -> Instance {
    let layer = CircuitBreakerLayer::builder()
        .failure_rate_threshold(0.5)
        .sliding_window_size(100)
        .wait_duration_in_open(OPEN_FOR);
    let (layer, handle) = layer.build_with_handle().expect("a valid configuration");
    let service = layer.layer(tower::service_fn(|(): ()| operation()));
    if open {
        let mut force = Box::pin(handle.force_open());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(force.as_mut().poll(&mut context).is_ready(), "nobody else holds its lock");
    }
    instance(move |_| {
        let mut service = service.clone();
        poll_loop(async move || black_box(&mut service).ready().await?.call(()).await)
    })
}

fn sync(open: bool) -> Vec<Subject> {
    let outcome = || -> Result<u32, Failed> { black_box(Err(Failed)) };
    vec![
        ours("steadfast try_acquire, record", move || {
            let breaker = leak(steadfast(open));
            instance(move |_| {
                call_loop(move || {
                    let permit = black_box(breaker).try_acquire().map_err(drop)?;
                    let answer = operation_sync();
                    permit.record(ErrIsFailure.classify(&answer));
                    answer.map_err(drop)
                })
            })
        }),
        rival("recloser 1.4 sync", move || {
            let breaker = leak(recloser());
            opened(open, call_loop(move || breaker.call(outcome)));
            instance(move |_| call_loop(move || black_box(breaker).call(|| operation_sync())))
        }),
        rival("nobreak 0.1 sync", move || {
            let breaker = leak(nobreak());
            opened(open, call_loop(move || breaker.call(outcome).is_ok()));
            instance(move |_| call_loop(move || black_box(breaker).call(|| operation_sync())))
        }),
        rival("failsafe 1.3 sync, consecutive", move || {
            use failsafe::CircuitBreaker;
            let breaker = leak(failsafe_consecutive());
            opened(open, call_loop(move || CircuitBreaker::call(breaker, outcome)));
            instance(move |_| call_loop(move || CircuitBreaker::call(black_box(breaker), || operation_sync())))
        }),
        rival("circuitbreaker-rs 0.1 sync", move || {
            let breaker = leak(circuitbreaker_rs());
            opened(open, call_loop(move || breaker.call(outcome).is_ok()));
            instance(move |_| call_loop(move || black_box(breaker).call(|| operation_sync())))
        }),
        beside("(floor) call the operation", || instance(|_| call_loop(operation_sync))),
    ]
}
