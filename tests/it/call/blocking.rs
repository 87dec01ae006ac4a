//! Calls of code that is not async.
use std::{
    cell::{Cell, RefCell},
    future::{Future, pending, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use steadfast::{
    BoxedPipeline, Pipeline, Priority, Verdict,
    call::{
        AttemptInfo, OperationName, WithAttempt, idempotent, named, not_idempotent, on_retry_blocking, with_priority,
    },
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State},
    fallback::{Fallback, FallbackConfig},
    hedge::{Hedge, HedgeConfig},
    outcome::{Retrying, StopReason},
    retry::{Retry, RetryConfig},
    testing::ManualClock,
    throttling::{
        AdaptiveLimitConfig, AdaptiveLimiter, ConcurrencyLimitConfig, ConcurrencyLimiter, KeyedRateLimiter, Quota,
        RateLimitConfig, RateLimiter,
    },
    time::{Clock, Instant, Sleep, block_on},
    timeout::Timeout,
};
use tokio::{
    runtime::Handle,
    sync::{Semaphore, oneshot},
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const SECOND: Duration = Duration::from_secs(1);

fn retry(clock: &Clock, config: RetryConfig) -> Retry {
    Retry::builder(config).clock(clock).build().unwrap()
}

/// Polls a future once, with a waker that counts.
fn polled<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

#[derive(Default)]
struct Wakes(AtomicU32);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Waits, without a runtime, until `is_so`.
fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        thread::yield_now();
    }
}

#[test]
fn a_call_that_blocks_is_repeated_after_its_delays() {
    let (clock, time) = Clock::manual();
    let pipeline = Pipeline::new().then(retry(&clock, RetryConfig::default().max_attempts(3)));
    let (start, tries) = (clock.now(), Cell::new(0));
    let operation = || {
        tries.set(tries.get() + 1);
        if tries.get() < 3 { Err("busy") } else { Ok(tries.get()) }
    };
    let result = time.run_blocking(|| pipeline.call_blocking(idempotent(operation)));
    assert_eq!(result.unwrap(), 3);
    assert!(clock.now() > start);
}

// Guarantee: call 10.
#[test]
fn a_call_that_blocks_needs_no_runtime() {
    assert!(Handle::try_current().is_err());
    let fast = steadfast::backoff::BackoffConfig::default().between(MS(1), MS(1));
    let pipeline = Pipeline::new()
        .then(Timeout::new(SECOND * 60))
        .then(Retry::new(RetryConfig::default().max_attempts(2).backoff(fast)).unwrap());
    let tries = Cell::new(0);
    let result = pipeline.call_blocking(idempotent(|| {
        tries.set(tries.get() + 1);
        if tries.get() == 1 { Err("busy") } else { Ok(()) }
    }));
    assert!(result.is_ok());
    block_on(async { Clock::quanta().sleep(MS(1)).await });
}

#[test]
fn neither_the_operation_nor_its_value_nor_its_error_need_be_send() {
    let pipeline = Pipeline::new().classify(|_: &Result<Rc<str>, Rc<str>>| Verdict::success());
    let captured = Rc::<str>::from("here");
    assert_eq!(&*pipeline.call_blocking(|| Ok(captured.clone())).unwrap(), "here");
    let error = Pipeline::new().call_blocking(|| Err::<(), Rc<str>>("away".into())).unwrap_err();
    assert_eq!(&*error.into_operation().unwrap(), "away");
}

#[test]
fn marks_hold_for_operations_that_block() {
    static NAME: OperationName = OperationName::new("read");
    let (clock, time) = Clock::manual();
    let pipeline = Pipeline::new().then(retry(&clock, RetryConfig::default().max_attempts(2)));
    let fails = || Err::<(), _>("away");
    let attempts = |call: &dyn Fn() -> u32| time.run_blocking(call);
    assert_eq!(attempts(&|| pipeline.call_blocking(fails).unwrap_err().attempts()), 1);
    assert_eq!(attempts(&|| pipeline.call_blocking(not_idempotent(fails)).unwrap_err().attempts()), 1);
    assert_eq!(attempts(&|| pipeline.call_blocking(idempotent(fails)).unwrap_err().attempts()), 2);
    let marked = || named(&NAME, with_priority(Priority::High, idempotent(fails)));
    assert_eq!(attempts(&|| pipeline.call_blocking(marked()).unwrap_err().attempts()), 2);
    let priority = Pipeline::new().call_blocking(with_priority(
        Priority::High,
        WithAttempt(|attempt: AttemptInfo| Ok::<_, ()>(attempt.priority())),
    ));
    assert_eq!(priority.unwrap(), Priority::High);
}

// Guarantee: call 10.
#[test]
fn a_result_after_the_deadline_is_the_call_s_result() {
    let (clock, time) = Clock::manual();
    let pipeline = Pipeline::new().then(Timeout::builder(SECOND).clock(&clock).build());
    let late = || {
        time.advance(SECOND * 5);
        Ok::<_, ()>("late")
    };
    assert_eq!(time.run_blocking(|| pipeline.call_blocking(late)).unwrap(), "late");
}

// Guarantee: call 10.
#[test]
fn the_time_in_which_an_operation_blocks_counts_into_the_deadline_and_the_total_time() {
    let (clock, time) = Clock::manual();
    let slow = || {
        time.advance(SECOND * 5);
        Err::<(), _>("slow")
    };
    let limited = Pipeline::new()
        .then(Timeout::builder(SECOND * 4).clock(&clock).build())
        .then(retry(&clock, RetryConfig::default()));
    let error = time.run_blocking(|| limited.call_blocking(idempotent(slow))).unwrap_err();
    assert_eq!((error.attempts(), error.history().unwrap().stop), (1, StopReason::Deadline));

    let total = retry(&clock, RetryConfig::default().max_elapsed(SECOND * 4));
    let error = time.run_blocking(|| total.call_blocking(idempotent(slow))).unwrap_err();
    assert_eq!((error.attempts(), error.history().unwrap().stop), (1, StopReason::TotalTime));
    assert_eq!(error.history().unwrap().elapsed, SECOND * 5);
}

#[test]
fn the_deadline_reaches_an_operation_that_blocks() {
    let (clock, time) = Clock::manual();
    let pipeline = Pipeline::new()
        .then(Timeout::builder(SECOND * 4).clock(&clock).build())
        .then(retry(&clock, RetryConfig::default().idempotent(true)));
    let mut left = Vec::new();
    let result = time.run_blocking(|| {
        pipeline.call_blocking_with(|attempt| {
            left.push(attempt.remaining(clock.now()).unwrap());
            time.advance(SECOND);
            if attempt.number() == 1 { Err("busy") } else { Ok(()) }
        })
    });
    assert!(result.is_ok());
    assert_eq!(left[0], SECOND * 4);
    assert!(left[1] <= SECOND * 3, "{left:?}");

    // An inner call within the attempt has the outer deadline.
    let inner = Pipeline::new();
    let nested = time.run_blocking(|| {
        pipeline.call_blocking_with(|attempt| {
            let deadline = WithAttempt(|inner: AttemptInfo| Ok::<_, ()>(inner.deadline() == attempt.deadline()));
            inner.call_blocking_within(attempt, deadline).map_err(|_| "never")
        })
    });
    assert!(nested.unwrap());
}

#[test]
fn a_time_out_ends_the_wait_of_a_call_that_blocks() {
    let (clock, time) = Clock::manual();
    let limiter =
        ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(1).max_wait(SECOND * 60)).clock(&clock).build().unwrap();
    let permit = limiter.try_acquire().unwrap();
    let pipeline = Pipeline::new().then(Timeout::builder(SECOND).clock(&clock).build()).then(limiter.clone());
    let start = clock.now();
    let error = time.run_blocking(|| pipeline.call_blocking(|| Ok::<_, ()>(()))).unwrap_err();
    assert!(error.is_timed_out() || error.is_rejected(), "{error:?}");
    assert!(clock.now() - start <= SECOND);
    drop(permit);
}

#[test]
fn each_policy_has_a_door_for_operations_that_block() {
    let (clock, time) = Clock::manual();
    let ok = || Ok::<_, &str>(7);
    time.run_blocking(|| {
        assert_eq!(Timeout::builder(SECOND).clock(&clock).build().call_blocking(ok).unwrap(), 7);
        assert_eq!(retry(&clock, RetryConfig::default()).call_blocking(ok).unwrap(), 7);

        let limiter = RateLimiter::builder(RateLimitConfig::from(Quota::new(1, SECOND)).max_wait(SECOND * 9));
        let limiter = limiter.clock(&clock).build().unwrap();
        let start = clock.now();
        (0..4).for_each(|_| assert_eq!(limiter.call_blocking(ok).unwrap(), 7));
        assert_eq!(clock.now() - start, SECOND * 3);

        let keyed = KeyedRateLimiter::<u32>::builder(RateLimitConfig::from(Quota::new(1, SECOND)).max_wait(SECOND * 9));
        let keyed = keyed.clock(&clock).build().unwrap();
        let start = clock.now();
        (0..3).for_each(|_| assert_eq!(keyed.for_key(1).call_blocking(ok).unwrap(), 7));
        assert_eq!(clock.now() - start, SECOND * 2);

        let limiter = ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(1).queue(0)).unwrap();
        let rejected = limiter.call_blocking(|| Ok::<_, ()>(limiter.call_blocking(ok).is_err()));
        assert!(rejected.unwrap());
        assert_eq!(AdaptiveLimiter::new(AdaptiveLimitConfig::default()).unwrap().call_blocking(ok).unwrap(), 7);

        let fallback = Fallback::new(FallbackConfig::default()).unwrap();
        let answer = fallback.call_blocking(|| Err::<u32, _>("away"), |_| Ok(1)).unwrap();
        assert_eq!(answer, 1);
    });
}

#[test]
fn a_breaker_counts_failures_and_slow_calls_of_operations_that_block() {
    let (clock, time) = Clock::manual();
    let config = CircuitBreakerConfig::default().count_window(10, 5);
    let breaker = CircuitBreaker::builder(config).clock(&clock).build().unwrap();
    for _ in 0..5 {
        assert!(breaker.call_blocking(|| Err::<(), _>("away")).is_err());
    }
    assert_eq!(breaker.state(), State::Open);
    assert!(breaker.call_blocking(|| Ok::<_, ()>(())).unwrap_err().is_rejected());

    let config = config.trip(config.trip.slow_calls(0.5, SECOND));
    let breaker = CircuitBreaker::builder(config).clock(&clock).build().unwrap();
    for _ in 0..5 {
        let slow = || {
            time.advance(SECOND * 2);
            Ok::<_, ()>(())
        };
        assert!(breaker.call_blocking(slow).is_ok());
    }
    assert_eq!(breaker.state(), State::Open);
}

#[test]
fn a_hedge_makes_one_attempt_at_a_time_of_an_operation_that_blocks() {
    let (clock, time) = Clock::manual();
    let hedge = Hedge::builder(HedgeConfig::default()).clock(&clock).build().unwrap();
    let tries = Cell::new(0);
    let result = time.run_blocking(|| {
        Pipeline::new().then(hedge).call_blocking(idempotent(|| {
            time.advance(SECOND * 60);
            tries.set(tries.get() + 1);
            Ok::<_, ()>(())
        }))
    });
    assert!(result.is_ok());
    assert_eq!(tries.get(), 1);
}

#[test]
fn a_boxed_pipeline_has_the_same_doors() {
    let (clock, time) = Clock::manual();
    let boxed: BoxedPipeline<u32, &str> =
        Pipeline::new().then(retry(&clock, RetryConfig::default().max_attempts(2).idempotent(true))).boxed();
    let tries = Cell::new(0);
    let result = time.run_blocking(|| {
        boxed.call_blocking(|| {
            tries.set(tries.get() + 1);
            if tries.get() == 1 { Err("busy") } else { Ok(7) }
        })
    });
    assert_eq!(result.unwrap(), 7);
    assert_eq!(time.run_blocking(|| boxed.call_blocking_with(|attempt| Ok(attempt.number()))).unwrap(), 1);
    let outer = AttemptInfo::with_deadline(Instant::FAR_FUTURE);
    assert_eq!(boxed.call_blocking_within(outer, || Ok(3)).unwrap(), 3);
    let answer = time.run_blocking(|| boxed.call_blocking_or(|| Err("away"), |failed| Ok(failed.attempts())));
    assert_eq!(answer.unwrap(), 2);
}

#[test]
fn a_fallback_that_blocks_may_capture_what_is_not_send() {
    let price = Rc::new(100);
    let pipeline = Pipeline::new();
    let answer = pipeline.call_blocking_or(
        || Err::<u32, _>("away"),
        |failed| {
            assert_eq!(failed.error(), Some(&"away"));
            Ok(*price)
        },
    );
    assert_eq!(answer.unwrap(), 100);
    let error = pipeline.call_blocking_or(|| Err::<u32, _>("away"), |_| Err("too")).unwrap_err();
    assert!(error.fallback().is_some());
}

#[test]
fn a_call_that_blocks_is_traced_as_any_other() {
    let _subscriber = tracing::subscriber::set_default(tracing_subscriber::registry());
    let result = Pipeline::new().named("traced").call_blocking(|| {
        assert!(!tracing::Span::current().is_none());
        Ok::<_, ()>(1)
    });
    assert_eq!(result.unwrap(), 1);
}

#[test]
fn threads_that_block_take_turns_at_a_permit() {
    const THREADS: u32 = 6;
    const ROUNDS: u32 = 300;
    let config = ConcurrencyLimitConfig::of(2).max_wait(SECOND * 600).queue(THREADS);
    let limiter = ConcurrencyLimiter::new(config).unwrap();
    let (inside, passed) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                assert!(Handle::try_current().is_err());
                for _ in 0..ROUNDS {
                    let work = || {
                        assert!(inside.fetch_add(1, Ordering::SeqCst) < 2);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        passed.fetch_add(1, Ordering::SeqCst);
                        Ok::<_, ()>(())
                    };
                    limiter.call_blocking(work).unwrap();
                }
            });
        }
    });
    assert_eq!(passed.load(Ordering::SeqCst), THREADS * ROUNDS);
}

// Guarantee: call 11.
#[test]
fn no_wake_up_of_a_thread_that_blocks_is_lost() {
    thread::scope(|scope| {
        let (requests, answers) = (std::sync::mpsc::channel::<oneshot::Sender<u32>>(), 5_000);
        let (send, receive) = requests;
        scope.spawn(move || receive.into_iter().enumerate().for_each(|(i, to)| to.send(i as u32).unwrap()));
        for i in 0..answers {
            let (to, from) = oneshot::channel();
            send.send(to).unwrap();
            assert_eq!(block_on(from), Ok(i));
        }
        drop(send);
    });
}

#[test]
fn a_thread_that_waits_for_a_rate_limit_is_woken_by_the_thread_that_moves_the_clock() {
    let (clock, time) = Clock::manual();
    let limiter = RateLimiter::builder(Quota::new(1, SECOND)).clock(&clock).build().unwrap();
    limiter.try_acquire().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| block_on(limiter.acquire()));
        until(|| time.next_timer().is_some());
        time.advance(SECOND);
        waiting.join().unwrap();
    });
}

#[test]
fn a_nested_call_that_blocks_has_its_own_policies_and_leaves_the_outer_one_in_order() {
    let (clock, time) = Clock::manual();
    let outer = Pipeline::new()
        .then(Timeout::builder(SECOND * 60).clock(&clock).build())
        .then(retry(&clock, RetryConfig::default().max_attempts(2).idempotent(true)));
    let inner = Pipeline::new().then(retry(&clock, RetryConfig::default().max_attempts(3).idempotent(true)));
    let (outer_tries, inner_tries) = (Cell::new(0), Cell::new(0));
    let call = || {
        outer_tries.set(outer_tries.get() + 1);
        let ask = || {
            inner_tries.set(inner_tries.get() + 1);
            if inner_tries.get() < 5 { Err("busy") } else { Ok(()) }
        };
        inner.call_blocking(ask).map_err(drop)
    };
    time.run_blocking(|| outer.call_blocking(call).map_err(drop)).unwrap();
    assert_eq!((outer_tries.get(), inner_tries.get()), (2, 5));
    // Real timers, too: that of the outer call fires while the inner one waits.
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(wakes.clone());
    let clock = Clock::tokio();
    block_on(async {
        let mut short = Box::pin(clock.sleep(MS(50)));
        assert!(polled(&mut short, &waker).is_pending());
        block_on(async { clock.sleep(MS(60)).await });
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        assert!(polled(&mut short, &waker).is_ready());
        clock.sleep(MS(1)).await;
    });
}

/// A sleep outside `block_on` and outside a runtime panics, as tokio's do.
fn is_outside() -> bool {
    catch_unwind(|| drop(Clock::tokio().sleep(SECOND))).is_err()
}

// Guarantee: call 11.
#[test]
fn a_panic_in_an_operation_that_blocks_leaves_its_thread_as_it_was() {
    let (clock, time) = Clock::manual();
    let limiter = ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(1).queue(0)).unwrap();
    let panics = || -> Result<(), ()> { panic!("the operation's own") };
    let call = || time.run_blocking(|| block_on(async { block_on(async { limiter.call_blocking(panics) }) }));
    assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
    assert!(is_outside());
    assert!(limiter.try_acquire().is_ok());
    // The clock of the test no longer drives this thread.
    thread::scope(|scope| {
        let (send, receive) = oneshot::channel();
        let mut sleep = Box::pin(clock.sleep(SECOND));
        assert!(polled(&mut sleep, Waker::noop()).is_pending());
        scope.spawn(move || send.send(()).unwrap());
        block_on(receive).unwrap();
        assert!(polled(&mut sleep, Waker::noop()).is_pending());
    });
}

/// Polls a sleep of `time` once in `block_on`, and takes it out.
fn begun_here(time: Duration, waker: &Waker) -> Pin<Box<Sleep>> {
    let mut taken = None;
    block_on(async {
        let mut sleep = Box::pin(Clock::tokio().sleep(time));
        assert!(polled(&mut sleep, waker).is_pending());
        taken = Some(sleep);
    });
    taken.unwrap()
}

// Guarantee: call 11.
#[test]
fn a_sleep_that_outlives_the_call_that_blocks_wakes_its_task_and_goes_on_elsewhere() {
    let wakes = Arc::new(Wakes::default());
    let sleep = begun_here(SECOND * 3600, &Waker::from(wakes.clone()));
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    // In a runtime, whose paused time jumps to its timer.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(sleep);
    // On another thread that blocks.
    let sleep = begun_here(MS(50), Waker::noop());
    thread::spawn(move || block_on(sleep)).join().unwrap();
    // On this thread, in a later call.
    block_on(begun_here(MS(50), Waker::noop()));
    // Nowhere: it is only dropped.
    drop(begun_here(SECOND, Waker::noop()));
}

#[test]
fn a_sleep_of_a_runtime_goes_on_in_a_call_that_blocks_its_thread() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        for clock in [Clock::tokio(), Clock::quanta()] {
            let mut sleep = Box::pin(clock.sleep(MS(50)));
            assert!(polled(&mut sleep, Waker::noop()).is_pending());
            block_on(sleep);
        }
    });
}

#[test]
fn an_operation_that_blocks_may_wait_in_a_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    // The runtime's paused time jumps to its next timer: the sleep, and not the end of a second.
    let waits = || {
        runtime.block_on(async {
            let (clock, start, mut seconds) = (Clock::tokio(), Clock::tokio().now(), tokio::time::interval(SECOND));
            seconds.tick().await; // at once
            tokio::select! {
                () = clock.sleep(MS(1)) => {}
                _ = seconds.tick() => {}
            }
            if clock.now() - start < SECOND { Ok(()) } else { Err("the sleep was a timer of the thread") }
        })
    };
    let pipeline = Pipeline::new().then(retry(&Clock::tokio(), RetryConfig::default()));
    pipeline.call_blocking(waits).unwrap();
    pipeline.call_blocking_with(|_| waits()).unwrap();
    pipeline.call_blocking_or(|| Err("away"), |_| waits()).unwrap();
    // A panic in it leaves the thread as it was.
    block_on(async {
        let panics = || -> Result<(), ()> { panic!("the operation's own") };
        assert!(catch_unwind(AssertUnwindSafe(|| pipeline.call_blocking(panics))).is_err());
        Clock::tokio().sleep(MS(1)).await;
    });
    assert!(is_outside());
}

#[test]
fn a_call_that_blocks_works_on_every_thread_of_a_runtime() {
    let fast = steadfast::backoff::BackoffConfig::default().between(MS(1), MS(1));
    let call = move || {
        let retry = Retry::new(RetryConfig::default().max_attempts(2).backoff(fast)).unwrap();
        let tries = Cell::new(0);
        retry.call_blocking(idempotent(|| {
            tries.set(tries.get() + 1);
            if tries.get() == 1 { Err("busy") } else { Ok(()) }
        }))
    };
    let one = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    one.block_on(async {
        assert!(call().is_ok());
        tokio::task::spawn_blocking(move || assert!(call().is_ok())).await.unwrap();
    });
    let many = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    many.block_on(async {
        tokio::spawn(async move { assert!(call().is_ok()) }).await.unwrap();
    });
}

// Inside a task, tokio's resources take from a budget that only the runtime refills. Without care a thread that blocks
// there would spin for ever.
#[test]
fn a_task_that_blocks_is_not_stopped_by_the_budget_of_its_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let semaphore = Semaphore::new(1);
        for _ in 0..1_000 {
            drop(block_on(semaphore.acquire()).unwrap());
        }
    });
}

#[test]
fn a_wait_until_the_end_of_time_ends_when_another_thread_wakes_it() {
    let (send, receive) = oneshot::channel();
    let mut receive = Box::pin(receive);
    let sleeps = thread::spawn(move || {
        block_on(async {
            let mut never = Box::pin(Clock::tokio().sleep_until(Instant::FAR_FUTURE));
            poll_fn(|cx| {
                assert!(never.as_mut().poll(cx).is_pending());
                receive.as_mut().poll(cx)
            })
            .await
        })
    });
    send.send(7).unwrap();
    assert_eq!(sleeps.join().unwrap(), Ok(7));
}

#[test]
fn a_call_that_blocks_leaves_the_park_token_of_its_thread_alone() {
    thread::current().unpark();
    let (send, receive) = oneshot::channel();
    // Not a scope, which parks its thread.
    let sends = thread::spawn(move || send.send(()).unwrap());
    block_on(receive).unwrap();
    sends.join().unwrap();
    thread::park(); // returns at once by the token
}

#[test]
#[should_panic(expected = "no timer left to wake it")]
fn a_test_of_code_that_blocks_panics_in_a_deadlock() {
    let (_, time): (Clock, ManualClock) = Clock::manual();
    time.run_blocking(|| block_on(pending::<()>()));
}

#[test]
#[should_panic(expected = "tokio's time is paused")]
fn a_thread_that_blocks_a_paused_runtime_panics_in_place_of_waiting_for_ever() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async { block_on(async { Clock::tokio().sleep(MS(2)).await }) });
}

#[test]
fn hooks_of_a_call_that_blocks_see_each_retry() {
    let (clock, time) = Clock::manual();
    let retry = Retry::builder(RetryConfig::default()).clock(&clock).build().unwrap();
    let (seen, all) = (Rc::new(RefCell::new(Vec::new())), Arc::new(AtomicU32::new(0)));
    let counted = all.clone();
    let pipeline = Pipeline::new().then(retry.clone()).on_retry(move |retrying: &Retrying<'_, u32, Rc<str>>| {
        assert_eq!(retrying.error().map(|error| &**error), Some("away"));
        counted.fetch_add(1, Ordering::SeqCst);
    });
    let away = || Err::<u32, Rc<str>>("away".into());
    let noted = || on_retry_blocking(away, |retrying| seen.borrow_mut().push(retrying.attempt()));

    time.run_blocking(|| pipeline.call_blocking(idempotent(noted()))).unwrap_err();
    assert_eq!((&*seen.take(), all.load(Ordering::SeqCst)), (&[1, 2][..], 2));
    time.run_blocking(|| retry.call_blocking(idempotent(noted()))).unwrap_err();
    assert_eq!((&*seen.take(), all.load(Ordering::SeqCst)), (&[1, 2][..], 2));
}
