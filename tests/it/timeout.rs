//! Time-out: its limit, its deadline, its timers.
use std::{
    future::{Future, pending, poll_fn, ready},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use steadfast::{
    Cause, Outcome, Pipeline,
    call::{Attempt, AttemptInfo, CallContext, Failed, Policy},
    fallback::{Fallback, FallbackConfig},
    retry::{Retry, RetryConfig},
    testing::ScriptedService,
    time::{Clock, Instant, TimeSource},
    timeout::{Timeout, TimeoutEvent},
};

const MS: fn(u64) -> Duration = Duration::from_millis;

// Guarantee: timeout 1.
#[test]
fn a_time_out_covers_the_whole_call_with_retries() {
    let (clock, time) = Clock::manual();
    let service = ScriptedService::new("503 in 300ms", &clock).unwrap();
    let pipeline = Pipeline::new()
        .then(Timeout::builder(MS(1000)).name("total").clock(&clock).build())
        .then(
            Retry::builder(RetryConfig::default().idempotent(true).max_attempts(99))
                .clock(&clock)
                .delays(|| std::iter::repeat(MS(100)))
                .build()
                .unwrap(),
        )
        .classify(ScriptedService::classify);
    let start = time.now();
    let error = time.block_on(pipeline.call(|| service.call())).unwrap_err();
    assert_eq!((time.now() - start, error.attempts(), service.dropped()), (MS(1000), 3, 1));
    let Cause::TimedOut(timed_out) = error.cause() else { panic!("{error}") };
    assert_eq!((timed_out.name.as_ref().unwrap().as_str(), timed_out.after), ("total", MS(1000)));
    assert_eq!(error.to_string(), "timed out after 1s (`total`)");
}

// Guarantee: timeout 1.
#[test]
fn an_attempt_is_clipped_to_the_remaining_time() {
    let (clock, time) = Clock::manual();
    let service = ScriptedService::new("503 in 300ms, hang", &clock).unwrap();
    let pipeline = Pipeline::new()
        .then(Timeout::builder(MS(500)).name("total").clock(&clock).build())
        .then(
            Retry::builder(RetryConfig::default().idempotent(true))
                .clock(&clock)
                .delays(|| std::iter::repeat(MS(50)))
                .build()
                .unwrap(),
        )
        .then(Timeout::builder(MS(400)).name("attempt").clock(&clock).build())
        .classify(ScriptedService::classify);
    let start = time.now();
    let error = time.block_on(pipeline.call(|| service.call())).unwrap_err();
    assert_eq!(time.now() - start, MS(500));
    let Cause::TimedOut(timed_out) = error.cause() else { panic!("{error}") };
    assert_eq!((timed_out.name.as_ref().unwrap().as_str(), timed_out.after), ("attempt", MS(150)));
}

// Guarantee: timeout 1.
#[test]
fn the_deadline_travels_to_the_operation_and_into_an_inner_pipeline() {
    let (clock, time) = Clock::manual();
    let outer = Pipeline::new().then(Timeout::builder(MS(500)).clock(&clock).build());
    let inner = Pipeline::new().then(Timeout::builder(Duration::from_secs(60)).clock(&clock).build());
    let start = time.now();
    let clock = &clock;
    let inner = &inner;
    let error = time.block_on(outer.call_with(|attempt| async move {
        assert_eq!(attempt.remaining(clock.now()), Some(MS(500)));
        clock.sleep(MS(200)).await;
        assert_eq!(attempt.remaining(clock.now()), Some(MS(300)));
        inner.call_within(attempt, pending::<Result<(), ()>>).await
    }));
    let error = error.unwrap_err();
    assert_eq!(time.now() - start, MS(500));
    assert!(error.is_timed_out() || error.into_operation().is_ok_and(|inner| inner.is_timed_out()));
}

// Guarantee: timeout 1.
#[test]
fn a_deadline_from_outside_is_kept() {
    let (clock, time) = Clock::manual();
    let pipeline = Pipeline::new().then(Timeout::builder(Duration::from_secs(60)).clock(&clock).build());
    let start = time.now();
    let from_header = AttemptInfo::with_deadline(start + MS(70));
    let error = time.block_on(pipeline.call_within(from_header, pending::<Result<(), ()>>)).unwrap_err();
    assert!(error.is_timed_out());
    assert_eq!(time.now() - start, MS(70));
}

// Guarantee: timeout 2.
#[test]
fn the_work_is_dropped_before_the_error_returns() {
    let (clock, time) = Clock::manual();
    let timeout = Timeout::builder(MS(10)).clock(&clock).build();
    let held = Arc::new(());
    time.block_on(async {
        let error = timeout.call(|| {
            let held = held.clone();
            async move {
                pending::<()>().await;
                drop(held);
                Ok::<_, ()>(())
            }
        });
        assert!(error.await.is_err());
        assert_eq!(Arc::strong_count(&held), 1);
    });
}

// Guarantee: timeout 2.
#[test]
fn a_result_ready_in_the_same_poll_wins() {
    let (clock, time) = Clock::manual();
    let timeout = Timeout::builder(MS(10)).clock(&clock).build();
    let answer = time.block_on(timeout.call(|| async {
        clock.sleep(MS(10)).await;
        Ok::<_, ()>("just in time")
    }));
    assert_eq!(answer.unwrap(), "just in time");
}

// Guarantee: timeout 2.
#[test]
fn a_time_out_of_zero_polls_the_work_once() {
    let (clock, time) = Clock::manual();
    let timeout = Timeout::builder(Duration::ZERO).clock(&clock).build();
    assert_eq!(time.block_on(timeout.call(|| async { Ok::<_, ()>(1) })).unwrap(), 1);
    let polls = AtomicU32::new(0);
    let never = || {
        poll_fn(|_| {
            polls.fetch_add(1, SeqCst);
            Poll::<Result<(), ()>>::Pending
        })
    };
    assert!(time.block_on(timeout.call(never)).unwrap_err().is_timed_out());
    assert_eq!(polls.load(SeqCst), 1);
}

// Guarantee: timeout 2.
#[test]
fn the_longest_duration_does_not_overflow() {
    let (clock, time) = Clock::manual();
    let timeout = Timeout::builder(Duration::MAX).clock(&clock).build();
    let answer = time.block_on(timeout.call(|| async {
        clock.sleep(Duration::from_secs(100 * 365 * 86_400)).await;
        Ok::<_, ()>(1)
    }));
    assert_eq!(answer.unwrap(), 1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let longest = Timeout::new(Duration::MAX);
        let answer = longest.call(|| async {
            tokio::task::yield_now().await;
            Ok::<_, ()>(1)
        });
        assert_eq!(answer.await.unwrap(), 1);
    });
}

/// A clock that counts its readings.
#[derive(Default, Clone)]
struct Counted(Arc<AtomicU32>);

impl TimeSource for Counted {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.fetch_add(1, SeqCst).into())
    }

    fn sleep_until(&self, _: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(pending())
    }
}

#[test]
fn a_call_that_is_ready_at_once_reads_no_clock() {
    let source = Counted::default();
    let clock = Clock::from_source(source.clone());
    let breaker =
        steadfast::circuit_breaker::CircuitBreaker::builder(Default::default()).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new()
        .then(Timeout::builder(MS(1000)).clock(&clock).build())
        .then(Retry::builder(RetryConfig::default().idempotent(true)).clock(&clock).build().unwrap())
        .then(breaker)
        .then(Timeout::builder(MS(100)).clock(&clock).build());
    let (_, time) = Clock::manual();
    // Creating a breaker reads the clock once; calls do not.
    let made = source.0.load(SeqCst);
    assert!(made <= 1);
    for _ in 0..500 {
        time.block_on(pipeline.call(|| async { Ok::<_, ()>(1) })).unwrap();
    }
    assert_eq!(source.0.load(SeqCst), made);
}

#[test]
fn the_time_of_a_fallback_counts_from_its_first_wait() {
    let source = Counted::default();
    let fallback = |clock: &Clock| Fallback::builder(FallbackConfig::default()).clock(clock).build().unwrap();
    let pipeline = Pipeline::new().then(fallback(&Clock::from_source(source.clone())));
    let (clock, time) = Clock::manual();
    let answer = time.block_on(pipeline.call_or_marked(|| async { Err::<u32, _>("away") }, |_| ready(Ok(2)))).unwrap();
    assert_eq!((answer.error().unwrap().to_string(), answer.into_value()), ("away".into(), 2));
    assert_eq!(source.0.load(SeqCst), 0);

    let pipeline = Pipeline::new().then(fallback(&clock));
    let start = time.now();
    let slow = |_: Failed<'_, u32, &'static str>| {
        time.advance(MS(300)); // before it waits
        pending()
    };
    let error = time.block_on(pipeline.call_or(|| async { Err("away") }, slow)).unwrap_err();
    assert!(matches!(error.fallback(), Some(Cause::TimedOut(timed_out)) if timed_out.after == MS(1000)));
    assert_eq!(time.now() - start, MS(1300));
}

#[test]
fn the_default_clock_follows_the_paused_clock_of_tokio() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let clock = Clock::tokio();
        let before = clock.now();
        let error = Timeout::new(Duration::from_secs(3600)).call(pending::<Result<(), ()>>).await.unwrap_err();
        assert!(error.is_timed_out());
        let passed = clock.now() - before;
        assert!((Duration::from_secs(3600)..Duration::from_secs(3601)).contains(&passed), "{passed:?}");
    });
}

#[test]
fn a_time_out_that_fires_causes_an_event() {
    let (clock, time) = Clock::manual();
    let timeout = Timeout::builder(MS(10)).name("db").clock(&clock).build();
    let mut events = timeout.events();
    time.block_on(timeout.call(pending::<Result<(), ()>>)).unwrap_err();
    let event = events.try_recv().unwrap().unwrap();
    assert_eq!((event.number, event.source.unwrap().as_str()), (1, "db"));
    assert_eq!(event.what, TimeoutEvent::TimedOut { after: MS(10) });
}

// Guarantee: timeout 1.
#[test]
fn of_two_deadlines_the_nearer_one_counts() {
    let (clock, time) = Clock::manual();
    let timeout = |ms| Timeout::builder(MS(ms)).clock(&clock).build();
    let remaining = |outer, inner| {
        let pipeline = Pipeline::new().then(timeout(outer)).then(timeout(inner));
        let now = time.now();
        time.block_on(pipeline.call_with(|attempt| async move { Ok::<_, ()>(attempt.remaining(now)) })).unwrap()
    };
    assert_eq!((remaining(5000, 300), remaining(300, 5000)), (Some(MS(300)), Some(MS(300))));
    let from_outside = AttemptInfo::with_deadline(time.now() + MS(50));
    let (timeout, start) = (timeout(5000), time.now());
    let retry = Retry::builder(RetryConfig::default().idempotent(true))
        .clock(&clock)
        .delays(|| std::iter::repeat(MS(60)))
        .build()
        .unwrap();
    let pipeline = Pipeline::new().then(timeout).then(retry);
    let error = time.block_on(pipeline.call_within(from_outside, || async { Err::<(), _>(()) })).unwrap_err();
    assert_eq!((error.attempts(), time.now()), (1, start));
}

/// A policy that does not poll its work as an executor would.
#[derive(Clone, Copy, Debug)]
enum Odd {
    /// Polls it once and never again.
    Neglects,
    /// Polls it once, drops it in the same poll, and waits.
    Drops,
    /// Polls it with a waker that wakes no task.
    Deafens,
    /// Polls it as an executor would.
    Passes,
}

impl Policy for Odd {
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        let mut work = Some(Box::pin(inner.attempt(cx)));
        let mut polled = false;
        poll_fn(|task| {
            if std::mem::replace(&mut polled, true) && !matches!(self, Self::Deafens | Self::Passes) {
                return Poll::Pending;
            }
            let mut deaf = Context::from_waker(Waker::noop());
            let task = if matches!(self, Self::Deafens) { &mut deaf } else { task };
            let done = work.as_mut().map_or(Poll::Pending, |work| work.as_mut().poll(task));
            if matches!(self, Self::Drops) {
                work = None;
            }
            done
        })
        .await
    }
}

// Guarantee: timeout 1.
#[test]
fn an_outer_time_out_fires_even_if_the_inner_timer_is_lost() {
    for (odd, after) in
        [(Odd::Neglects, MS(2000)), (Odd::Drops, MS(2000)), (Odd::Deafens, MS(2000)), (Odd::Passes, MS(300))]
    {
        let (clock, time) = Clock::manual();
        let timeout = |ms| Timeout::builder(MS(ms)).clock(&clock).build();
        for nested in [false, true] {
            let (outer, inner) = (timeout(2000), timeout(300));
            let start = time.now();
            let error = if nested {
                let pipeline =
                    Pipeline::new().then(outer).then(timeout(5000)).then(odd).then(timeout(1000)).then(inner);
                time.block_on(pipeline.call(pending::<Result<(), ()>>)).unwrap_err()
            } else {
                time.block_on(Pipeline::new().then(outer).then(odd).then(inner).call(pending::<Result<(), ()>>))
                    .unwrap_err()
            };
            assert!(error.is_timed_out());
            assert_eq!(time.now() - start, after, "{odd:?}, nested: {nested}");
        }
    }
}

#[test]
fn nested_time_outs_arm_only_the_innermost_timer() {
    let (clock, time) = Clock::manual();
    let timeout = |ms| Timeout::builder(MS(ms)).clock(&clock).build();
    let timers = || format!("{time:?}").split("timers: ").nth(1).unwrap().trim_end_matches([' ', '}']).to_owned();
    let service = ScriptedService::new("hang, 503", &clock).unwrap();
    let retry = Retry::builder(RetryConfig::default().idempotent(true).max_attempts(2))
        .clock(&clock)
        .delays(|| std::iter::repeat(MS(100)))
        .build()
        .unwrap();
    let pipeline = Pipeline::new()
        .then(timeout(9000))
        .then(timeout(8000))
        .then(retry)
        .then(timeout(300))
        .classify(ScriptedService::classify);
    let mut call = Box::pin(pipeline.call(|| service.call()));
    let mut poll = || call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
    assert!(poll());
    assert_eq!(timers(), "1");
    time.advance(MS(100));
    assert!(poll());
    assert_eq!(timers(), "1");
    // The attempt is over: the retry waits, and the inner one of the two outer time-outs waits
    // beside it.
    time.advance(MS(200));
    assert!(poll());
    assert_eq!(timers(), "2");
    time.advance(MS(100));
    assert!(!poll());
    assert_eq!(timers(), "0");
}
