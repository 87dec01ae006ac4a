//! Operations that are not `Send`: `call_local`.
#![allow(missing_docs, clippy::unwrap_used, clippy::type_complexity, reason = "tests")]
use std::{
    cell::{Cell, RefCell},
    future::Future,
    pin::pin,
    rc::Rc,
    task::{Context, Waker},
    time::Duration,
};

use steadfast::{
    CallError, Cause, FailureKind, Pipeline, Verdict,
    call::{Policy, idempotent, on_retry_local},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
    hedge::{Hedge, HedgeConfig, HedgeDelay},
    outcome::Retrying,
    retry::{Retry, RetryConfig},
    testing::ManualClock,
    throttling::{Quota, RateLimiter},
    time::Clock,
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// A value and an error that are not `Send`.
type Answer = Result<Rc<str>, Rc<Cell<u32>>>;

fn judge(answer: &Answer) -> Verdict {
    match answer {
        Ok(_) => Verdict::success(),
        Err(status) if status.get() == 404 => Verdict::failure(FailureKind::Client),
        Err(_) => Verdict::failure(FailureKind::Server),
    }
}

fn stack() -> (Pipeline<impl Policy, fn(&Answer) -> Verdict>, CircuitBreaker, Clock, ManualClock) {
    let (clock, time) = Clock::manual();
    let retry = Retry::builder(RetryConfig::default().max_attempts(3)).clock(&clock).build().unwrap();
    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new()
        .then(Timeout::builder(MS(60_000)).clock(&clock).build())
        .then(retry)
        .then(breaker.clone())
        .then(Timeout::builder(MS(100)).clock(&clock).build())
        .classify(judge as fn(&Answer) -> Verdict);
    (pipeline, breaker, clock, time)
}

#[test]
fn a_local_operation_is_judged_repeated_and_timed_out_as_any_other() {
    let (pipeline, breaker, clock, time) = stack();
    let runs = Rc::new(RefCell::new(Vec::new()));
    let operation = || {
        let (runs, clock) = (runs.clone(), clock.clone());
        async move {
            let n = runs.borrow().len();
            runs.borrow_mut().push(n);
            match n {
                0 => Err(Rc::new(Cell::new(503))),
                1 => {
                    clock.sleep(MS(1_000)).await; // longer than the inner time-out
                    Err(Rc::new(Cell::new(0)))
                }
                _ => Ok(Rc::from("third")),
            }
        }
    };
    let value = time.block_on(pipeline.call_local(idempotent(operation))).unwrap();
    assert_eq!((&*value, runs.borrow().len()), ("third", 3));
    assert_eq!(Rc::strong_count(&runs), 1, "nothing of the call is left");
    assert_eq!(breaker.snapshot().failures, 2);

    let gone = Rc::new(Cell::new(404));
    let error: CallError<_> =
        time.block_on(pipeline.call_local(idempotent(|| async { Err(gone.clone()) }))).unwrap_err();
    assert_eq!((error.attempts(), error.verdict().kind()), (1, Some(FailureKind::Client)));
    assert!(Rc::ptr_eq(&error.into_operation().unwrap(), &gone));
    // Without a mark it might run twice, so it is not repeated.
    let error = time.block_on(pipeline.call_local(|| async { Err(Rc::new(Cell::new(503))) })).unwrap_err();
    assert_eq!(error.attempts(), 1);
}

#[test]
fn a_local_call_dropped_at_any_await_leaves_nothing() {
    for polls in 0..8 {
        let (pipeline, breaker, _, time) = stack();
        let held = Rc::new(());
        let operation = || {
            let held = held.clone();
            async move {
                for _ in 0..2 {
                    tokio::task::yield_now().await;
                }
                let _held = held;
                Err(Rc::new(Cell::new(503)))
            }
        };
        {
            let mut call = pin!(pipeline.call_local(idempotent(operation)));
            for _ in 0..polls {
                assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
                time.advance(MS(1));
            }
        }
        assert_eq!(Rc::strong_count(&held), 1, "after {polls} polls");
        let seen = breaker.snapshot();
        assert_eq!(seen.calls, seen.failures, "after {polls} polls");
    }
}

#[test]
fn a_local_operation_is_hedged() {
    let (clock, time) = Clock::manual();
    let hedge = Hedge::builder(HedgeConfig::default().delay(HedgeDelay::Fixed(MS(10)))).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(hedge);
    let runs = Rc::new(Cell::new(0));
    let operation = || {
        let (runs, clock) = (runs.clone(), clock.clone());
        async move {
            runs.set(runs.get() + 1);
            let n = Rc::new(runs.get());
            clock.sleep(if *n == 1 { MS(1_000) } else { MS(5) }).await;
            Ok::<_, Rc<()>>(n)
        }
    };
    assert_eq!(*time.block_on(pipeline.call_local(idempotent(operation))).unwrap(), 2);
    assert_eq!(Rc::strong_count(&runs), 1, "the slow attempt is dropped");
}

#[test]
fn a_boxed_pipeline_calls_local_operations() {
    let (pipeline, _, _, time) = stack();
    let pipeline = pipeline.boxed::<Rc<str>, Rc<Cell<u32>>>();
    let value = time.block_on(pipeline.call_local(|| async { Ok(Rc::from("boxed")) })).unwrap();
    assert_eq!(&*value, "boxed");
}

#[tokio::test(flavor = "current_thread")]
async fn a_local_call_runs_in_a_local_set() {
    let local = tokio::task::LocalSet::new();
    let call = local.run_until(async {
        tokio::task::spawn_local(async {
            let pipeline = Pipeline::new().then(Timeout::new(Duration::MAX));
            pipeline.call_local(|| async { Ok::<_, Rc<()>>(*Rc::new(7)) }).await.unwrap()
        })
        .await
    });
    assert_eq!(call.await.unwrap(), 7);
}

/// The future must not be `Send`, also if the operation is: it is dropped on the thread that wrapped it.
#[test]
fn the_future_of_a_local_call_is_not_send() {
    trait AmbiguousIfSend<A> {
        fn check(&self) {}
    }
    impl<T> AmbiguousIfSend<()> for T {}
    impl<T: Send> AmbiguousIfSend<u8> for T {}
    let pipeline = Pipeline::new();
    // This line does not compile if the future is `Send`.
    pipeline.call_local(|| async { Ok::<_, ()>(1) }).check();
}

#[test]
fn hooks_of_a_local_call_see_errors_time_outs_rejections_and_values() {
    let (clock, time) = Clock::manual();
    let retry = Retry::builder(RetryConfig::default().max_attempts(9).retry_rejections(true)).clock(&clock);
    let limiter = RateLimiter::builder(Quota::per_second(1_000)).clock(&clock).build().unwrap();
    limiter.pause(MS(1));
    let judge = |answer: &Answer| match answer {
        Ok(value) if value.is_empty() => Verdict::failure(FailureKind::Overloaded),
        answer => judge(answer),
    };
    let hooked = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let pipeline_saw = hooked.clone();
    let pipeline = Pipeline::new()
        .then(retry.build().unwrap())
        .then(limiter)
        .then(Timeout::builder(MS(100)).clock(&clock).build())
        .classify(judge)
        .on_retry(move |it: &Retrying<'_, Rc<str>, Rc<Cell<u32>>>| {
            pipeline_saw.lock().unwrap().push((it.attempt(), it.kind()));
        });
    let (runs, seen) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
    let operation = || {
        let clock = clock.clone();
        runs.set(runs.get() + 1);
        let n = runs.get();
        async move {
            match n {
                1 => Err(Rc::new(Cell::new(503))),
                2 => Ok(Rc::from("")),
                3 => {
                    clock.sleep(MS(200)).await;
                    Ok(Rc::from("late"))
                }
                _ => Ok(Rc::from("done")),
            }
        }
    };
    let hook = |it: &Retrying<'_, Rc<str>, Rc<Cell<u32>>>| {
        let what = match it.cause() {
            None => format!("value {:?}", it.value().unwrap()),
            Some(Cause::Operation(error)) => format!("error {}", error.get()),
            Some(Cause::Rejected(rejected)) => rejected.reason().as_str().to_owned(),
            Some(other) => format!("{other:?}"),
        };
        seen.borrow_mut().push(what);
    };
    let call = pipeline.call_local(idempotent(on_retry_local(operation, hook)));
    assert_eq!(&*time.block_on(call).unwrap(), "done");
    let timed_out = "TimedOut(TimedOut { name: None, after: 100ms })";
    assert_eq!(*seen.borrow(), ["rate_limited", "error 503", "value \"\"", timed_out]);
    let kinds = [None, Some(FailureKind::Server), Some(FailureKind::Overloaded), Some(FailureKind::Timeout)];
    assert_eq!(*hooked.lock().unwrap(), [(1, kinds[0]), (2, kinds[1]), (3, kinds[2]), (4, kinds[3])]);
    // A boxed pipeline behaves the same.
    runs.set(0);
    seen.borrow_mut().clear();
    let call = pipeline.boxed::<Rc<str>, Rc<Cell<u32>>>();
    assert_eq!(&*time.block_on(call.call_local(idempotent(on_retry_local(operation, hook)))).unwrap(), "done");
    assert_eq!(*seen.borrow(), ["error 503", "value \"\"", timed_out]);
}
