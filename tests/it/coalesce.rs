//! Coalescing: one execution per key, two polls per waiting caller, and a new driver when the first
//! is dropped.
use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::future::join_all;
use steadfast::{
    CallError, Pipeline,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
    coalesce::{Coalesce, Lost},
    port::BoxFuture,
    retry::{Retry, RetryConfig},
    testing::{ScriptedError, ScriptedService, drop_at_every_await},
    throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter},
    time::Clock,
    timeout::Timeout,
};

const S: fn(u64) -> Duration = Duration::from_secs;

/// Counts how often a future is polled.
async fn polls<F: Future>(future: F, count: &AtomicUsize) -> F::Output {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| {
        count.fetch_add(1, SeqCst);
        future.as_mut().poll(cx)
    })
    .await
}

// Guarantee: coalesce 1, 2.
#[test]
fn a_key_has_one_execution_and_each_waiting_caller_two_polls() {
    let (clock, time) = Clock::manual();
    let calls = Arc::new(AtomicUsize::new(0));
    let coalesce: Coalesce<u32, usize> = Coalesce::new();
    let counts: Vec<AtomicUsize> = (0..1000).map(|_| AtomicUsize::new(0)).collect();
    let results = time.block_on(join_all(counts.iter().map(|count| {
        let (calls, clock) = (calls.clone(), clock.clone());
        let work = move || async move {
            for _ in 0..50 {
                clock.sleep(S(1)).await;
            }
            calls.fetch_add(1, SeqCst)
        };
        polls(coalesce.run(&1, work), count)
    })));
    assert!(results.into_iter().all(|result| result == Ok(0)));
    assert_eq!((calls.load(SeqCst), coalesce.under_way()), (1, 0));
    // The driver is polled once per step of the work, the others on arrival and at the end.
    let counts: Vec<usize> = counts.into_iter().map(AtomicUsize::into_inner).collect();
    assert!(counts[1..].iter().all(|n| *n == 2), "{counts:?}");
}

/// The driving caller is dropped at every await point; the waiting caller gets the result of the
/// same execution.
// Guarantee: coalesce 3.
#[test]
fn a_dropped_driver_is_replaced_by_a_waiting_caller() {
    let (clock, time) = Clock::manual();
    let started = Arc::new(AtomicUsize::new(0));
    let coalesce: Coalesce<String, u32> = Coalesce::new();
    let ask = || {
        let (started, clock) = (started.clone(), clock.clone());
        coalesce.run("k", move || {
            started.fetch_add(1, SeqCst);
            async move {
                clock.sleep(S(1)).await;
                clock.sleep(S(1)).await;
                7
            }
        })
    };
    let waits = Mutex::new(None);
    drop_at_every_await(
        &time,
        || {
            let leader = ask();
            started.store(0, SeqCst);
            async {
                let mut leader = std::pin::pin!(leader);
                std::future::poll_fn(|cx| {
                    let polled = leader.as_mut().poll(cx);
                    // A second caller arrives as soon as the work has started.
                    let mut waits = waits.lock().unwrap();
                    if polled.is_pending() && waits.is_none() {
                        let mut other = Box::pin(ask());
                        assert!(
                            other
                                .as_mut()
                                .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
                                .is_pending()
                        );
                        *waits = Some(other);
                    }
                    polled
                })
                .await
            }
        },
        |_| {
            if let Some(other) = waits.lock().unwrap().take() {
                assert_eq!(time.block_on(other), Ok(7));
                assert_eq!(started.load(SeqCst), 1);
            }
            assert_eq!(coalesce.under_way(), 0);
        },
    );
}

// Guarantee: coalesce 4.
#[test]
fn work_without_callers_is_dropped_or_finished() {
    let (clock, time) = Clock::manual();
    let ended = Arc::new(AtomicUsize::new(0));
    let work = |ended: &Arc<AtomicUsize>| {
        let (ended, clock) = (ended.clone(), clock.clone());
        move || async move {
            clock.sleep(S(1)).await;
            ended.fetch_add(1, SeqCst)
        }
    };
    let polled_once = |future: &mut std::pin::Pin<Box<dyn Future<Output = Result<usize, Lost>> + '_>>| {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(future.as_mut().poll(&mut cx).is_pending());
    };
    let coalesce: Coalesce<u32, usize> = Coalesce::new();
    let mut only: std::pin::Pin<Box<dyn Future<Output = _> + '_>> = Box::pin(coalesce.run(&1, work(&ended)));
    polled_once(&mut only);
    drop(only);
    time.advance(S(2));
    assert_eq!((ended.load(SeqCst), coalesce.under_way()), (0, 0));

    let spawned: Arc<Mutex<Vec<BoxFuture<'static, ()>>>> = Arc::default();
    let to = spawned.clone();
    let coalesce: Coalesce<u32, usize> = Coalesce::finishing(move |task| to.lock().unwrap().push(task));
    let mut only: std::pin::Pin<Box<dyn Future<Output = _> + '_>> = Box::pin(coalesce.run(&1, work(&ended)));
    polled_once(&mut only);
    drop(only);
    let task = spawned.lock().unwrap().pop().unwrap();
    time.block_on(task);
    assert_eq!((ended.load(SeqCst), coalesce.under_way()), (1, 0));
}

// Guarantee: coalesce 5.
#[test]
fn a_panic_ends_one_execution_and_leaves_the_key_usable() {
    let (clock, time) = Clock::manual();
    let coalesce: Coalesce<u32, u32> = Coalesce::new();
    let panics = catch_unwind(AssertUnwindSafe(|| time.block_on(coalesce.run(&1, || async { panic!("on purpose") }))));
    assert!(panics.is_err());
    let next = coalesce.run(&1, || async move {
        clock.sleep(S(1)).await;
        7
    });
    assert_eq!(time.block_on(next), Ok(7));
}

#[test]
fn a_forgotten_execution_is_not_joined() {
    let (clock, time) = Clock::manual();
    let coalesce: Coalesce<u32, u32> = Coalesce::new();
    let (old_clock, new_clock) = (clock.clone(), clock.clone());
    let old = coalesce.run(&1, || async move {
        old_clock.sleep(S(2)).await;
        1
    });
    let new = async {
        clock.sleep(S(1)).await;
        coalesce.forget(&1);
        coalesce
            .run(&1, || async move {
                new_clock.sleep(S(2)).await;
                2
            })
            .await
    };
    assert_eq!(time.block_on(futures::future::join(old, new)), (Ok(1), Ok(2)));
}

type Shared = Result<u16, Arc<CallError<ScriptedError>>>;

/// Around a pipeline, k callers are one call of it: one series of retries, one permit, one outcome
/// for the breaker.
// Guarantee: coalesce 1.
#[test]
fn around_a_pipeline_k_callers_are_one_call_of_it() {
    let (clock, time) = Clock::manual();
    let service = ScriptedService::new("503 in 1s, ok in 1s, 503", &clock).unwrap();
    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap();
    let limiter = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(1).queue(0).max_wait(S(0)))
        .clock(&clock)
        .build()
        .unwrap();
    let retry = Retry::builder(RetryConfig::default().idempotent(true).max_attempts(2)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(limiter.clone()).then(retry).then(breaker.clone());
    let coalesce: Coalesce<u32, Shared> = Coalesce::new();
    let ask = || {
        let (pipeline, service) = (pipeline.clone(), service.clone());
        coalesce.run(&1, || async move { pipeline.call(|| service.call()).await.map_err(Arc::new) })
    };
    let answers = time.block_on(join_all((0..100).map(|_| ask())));
    assert!(answers.iter().all(|answer| matches!(answer, Ok(Ok(200)))), "{answers:?}");
    assert_eq!((service.calls(), limiter.available()), (2, 1));
    // An error is also a result, and the same for all.
    let answers = time.block_on(join_all((0..100).map(|_| ask())));
    let errors: Vec<_> = answers.into_iter().map(|answer| answer.unwrap().unwrap_err()).collect();
    assert!(errors.iter().all(|error| Arc::ptr_eq(error, &errors[0]) && error.attempts() == 2));
    assert_eq!(service.calls(), 4);
}

/// A caller that times out does not affect the others, although it drove the call.
// Guarantee: coalesce 3.
#[test]
fn a_time_out_of_one_caller_does_not_end_the_others() {
    let (clock, time) = Clock::manual();
    let service = ScriptedService::new("ok in 10s", &clock).unwrap();
    let coalesce: Coalesce<u32, Shared> = Coalesce::new();
    let ask = || {
        let service = service.clone();
        coalesce.run(&1, || async move { Pipeline::new().call(|| service.call()).await.map_err(Arc::new) })
    };
    let impatient = Timeout::builder(S(1)).clock(&clock).build();
    let first = impatient.call(|| async { Ok::<_, ()>(ask().await) });
    let (first, others) = time.block_on(futures::future::join(first, join_all((0..10).map(|_| ask()))));
    assert!(first.unwrap_err().is_timed_out());
    assert!(others.into_iter().all(|answer| matches!(answer, Ok(Ok(200)))));
    assert_eq!((service.calls(), service.dropped()), (1, 0));
}

/// Dropped at every await point, the only caller releases everything that the pipeline held.
// Guarantee: coalesce 4.
#[test]
fn a_call_dropped_around_a_pipeline_releases_everything() {
    let (clock, time) = Clock::manual();
    let service = ScriptedService::new("503 in 1s, ok in 1s", &clock).unwrap();
    let limiter = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(1)).clock(&clock).build().unwrap();
    let retry = Retry::builder(RetryConfig::default().idempotent(true)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(retry).then(limiter.clone());
    let coalesce: Coalesce<u32, Shared> = Coalesce::new();
    let polls = drop_at_every_await(
        &time,
        || {
            let (pipeline, service) = (pipeline.clone(), service.clone());
            coalesce.run(&1, || async move { pipeline.call(|| service.call()).await.map_err(Arc::new) })
        },
        |_| assert_eq!((service.running(), limiter.available(), coalesce.under_way()), (0, 1, 0)),
    );
    assert!(polls >= 2, "{polls}");
}

/// Regression: such work used to wait for itself without end.
// Guarantee: coalesce 6.
#[test]
fn work_that_asks_for_its_own_key_is_refused() {
    let (_clock, time) = Clock::manual();
    let prices: Coalesce<u32, Result<u32, Lost>> = Coalesce::new();
    let inner = prices.clone();
    let answer = time.block_on(prices.run(&1, || async move {
        // The work of another key may ask for keys, except for one that waits for it.
        let again = inner.clone();
        let through = inner.run(&2, || async move { again.run(&1, || async { Ok(1) }).await? }).await?;
        assert_eq!(through, Err(Lost::OwnKey));
        inner.run(&1, || async { Ok(1) }).await?
    }));
    assert_eq!(answer, Ok(Err(Lost::OwnKey)));
    assert_eq!(prices.under_way(), 0);
    assert_eq!(time.block_on(prices.run(&1, || async { Ok(7) })), Ok(Ok(7)));
}
