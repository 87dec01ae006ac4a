//! Nested pipelines: rejections, marks, retries and budgets across them.
use std::{
    cell::Cell,
    convert::Infallible,
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use http::{Request, Response};
use steadfast::{
    Builder, Class, FailureKind, Hint, KindSet, Pipeline, Verdict,
    backoff::{BackoffConfig, Jitter},
    call::{AttemptInfo, idempotent, not_idempotent},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State},
    fallback::{Fallback, FallbackConfig},
    hedge::{Hedge, HedgeConfig},
    http::{ByStatus, status_of},
    outcome::{ByCallError, StopReason},
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig, RetryEvent},
    standard::{Standard, StandardConfig},
    time::Clock,
    timeout::Timeout,
    tower::{PipelineLayer, ReceivedRequests},
};
use tower_layer::Layer;
use tower_service::Service;

const S: fn(u64) -> Duration = Duration::from_secs;
const MS: fn(u64) -> Duration = Duration::from_millis;

fn retry(clock: &Clock, config: RetryConfig) -> Retry {
    builder(clock, config).build().unwrap()
}

fn builder(clock: &Clock, config: RetryConfig) -> Builder<Retry> {
    Retry::builder(config).clock(clock)
}

fn repeating() -> RetryConfig {
    RetryConfig::default().idempotent(true)
}

// Guarantee: call 7.
#[test]
fn a_rejection_by_a_nested_pipeline_is_a_rejection_of_the_outer_call() {
    let (clock, time) = Clock::manual();
    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap();
    let outer =
        CircuitBreaker::builder(CircuitBreakerConfig::default().count_window(1, 1)).clock(&clock).build().unwrap();
    breaker.force_open(S(30));
    let inner = Pipeline::new().then(breaker.clone());
    let asked = Cell::new(0);
    let call = |config| {
        let pipeline = Pipeline::new().then(retry(&clock, config)).then(outer.clone()).classify(ByCallError);
        asked.set(0);
        let (asked, inner) = (AtomicU32::new(0), &inner);
        let answer = time.block_on(pipeline.call(|| {
            asked.fetch_add(1, SeqCst);
            inner.call(|| ready(Ok::<_, ()>(7)))
        }));
        (answer, asked.load(SeqCst))
    };
    let start = time.now();
    let (answer, asked) = call(repeating());
    let error = answer.unwrap_err();
    assert_eq!((asked, time.now()), (1, start), "an open breaker means: stop asking");
    assert_eq!((error.is_rejected(), error.retry_after()), (true, Some(S(30))));
    assert_eq!(error.history().map(|history| history.stop), None, "not a failure that a retry repeats");
    assert_eq!((outer.state(), outer.snapshot().calls), (State::Closed, 0), "nobody's failure");
    assert_eq!(status_of(&error), 503);
    assert_eq!(error.into_operation().unwrap().attempts(), 0);
    // If rejections are retried, then after the time that the inner breaker states.
    let (answer, asked) = call(repeating().retry_rejections(true));
    assert_eq!((answer.unwrap(), asked), (7, 2));
    assert!((S(30)..S(31)).contains(&(time.now() - start)));
}

// Guarantee: call 7.
#[test]
fn an_error_of_a_nested_pipeline_keeps_its_verdict() {
    let (clock, time) = Clock::manual();
    let verdict = Verdict::failure(FailureKind::Throttled).weighing(9).with_retry_after(S(7));
    let inner = Pipeline::new().classify(move |_: &Result<(), ()>| verdict);
    let outer = Pipeline::new().classify(ByCallError);
    let error = time.block_on(outer.call(|| inner.call(|| ready(Err(()))))).unwrap_err();
    assert_eq!((error.verdict(), error.retry_after(), error.is_rejected()), (verdict, Some(S(7)), false));
    let inner = Pipeline::new().then(Timeout::builder(S(1)).clock(&clock).build());
    let error = time.block_on(outer.call(|| inner.call(std::future::pending::<Result<(), ()>>))).unwrap_err();
    assert_eq!(error.verdict().kind(), Some(FailureKind::Timeout));
    assert_eq!(Verdict::refused().class(), Class::Ignore);
    // A fallback runs if rejections trigger it.
    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap();
    breaker.isolate();
    let (inner, falls) =
        (Pipeline::new().then(breaker), Fallback::builder(FallbackConfig::default()).clock(&clock).build().unwrap());
    let outer = Pipeline::new().then(falls).classify(ByCallError);
    let answer =
        time.block_on(outer.call_or_marked(|| inner.call(|| ready(Ok::<_, ()>(1))), |_| ready(Ok(2)))).unwrap();
    assert!(answer.is_degraded());
}

// Guarantee: call 7.
/// An operation that must not run twice, with a hedge and a retry inside its attempt.
#[test]
fn the_mark_not_idempotent_travels_into_nested_pipelines() {
    let (clock, time) = Clock::manual();
    for marked in [true, false] {
        for hedged in [true, false] {
            let runs = AtomicU32::new(0);
            let hedge = hedged
                .then(|| Hedge::builder(HedgeConfig::after(MS(10)).idempotent(true)).clock(&clock).build().unwrap());
            let again = (!hedged).then(|| retry(&clock, repeating()));
            let inner = Pipeline::new().then(hedge).then(again);
            let charge = |attempt: AttemptInfo| {
                let (inner, runs, clock) = (&inner, &runs, &clock);
                async move {
                    let charge = || async {
                        runs.fetch_add(1, SeqCst);
                        clock.sleep(MS(50)).await;
                        if hedged { Ok(()) } else { Err("lost") }
                    };
                    inner.call_within(attempt, charge).await.map_err(|_| ())
                }
            };
            let outer = Pipeline::new();
            let call = steadfast::call::WithAttempt(charge);
            let _ = match marked {
                true => time.block_on(outer.call(not_idempotent(call))),
                false => time.block_on(outer.call(call)),
            };
            let more = if hedged { 2 } else { 3 };
            assert_eq!(runs.load(SeqCst), if marked { 1 } else { more }, "hedged: {hedged}");
        }
    }
    // An inner operation with its own mark, say a read on the way to the charge, keeps that mark,
    // also through two pipelines.
    let runs = Cell::new(0);
    let inner = Pipeline::new().then(retry(&clock, RetryConfig::default()));
    let charge = |attempt: AttemptInfo| {
        let runs = AtomicU32::new(0);
        let seen = time.block_on(inner.call_within(
            attempt,
            idempotent(|| {
                runs.fetch_add(1, SeqCst);
                ready(Err::<(), _>(()))
            }),
        ));
        assert!(seen.is_err());
        ready(Ok::<_, ()>(runs.load(SeqCst)))
    };
    let answer = time.block_on(Pipeline::new().call(not_idempotent(steadfast::call::WithAttempt(charge))));
    runs.set(answer.unwrap());
    assert_eq!(runs.get(), 3);
}

/// Counts the runs of an operation that fails with `kind` inside an outer and an inner retry.
/// Returns also the reason why the inner one stopped.
fn runs(outer: RetryConfig, marked: Option<bool>, inner: RetryConfig, kind: FailureKind) -> (u32, Option<StopReason>) {
    let (clock, time) = Clock::manual();
    let (runs, stopped) = (AtomicU32::new(0), std::sync::Mutex::new(None));
    let judge = move |result: &Result<(), ()>| {
        if result.is_err() { Verdict::failure(kind) } else { Verdict::success() }
    };
    let inner = Pipeline::new().then(retry(&clock, inner)).classify(judge);
    let outer = Pipeline::new().then(retry(&clock, outer)).classify(judge);
    let operation = steadfast::call::WithAttempt(|attempt: AttemptInfo| {
        let (inner, runs, stopped) = (&inner, &runs, &stopped);
        async move {
            let read = idempotent(|| {
                runs.fetch_add(1, SeqCst);
                ready(Err::<(), ()>(()))
            });
            let error = inner.call_within(attempt, read).await.unwrap_err();
            *stopped.lock().unwrap() = error.history().map(|history| history.stop);
            Err(())
        }
    });
    let _ = match marked {
        Some(true) => time.block_on(outer.call(idempotent(operation))),
        Some(false) => time.block_on(outer.call(not_idempotent(operation))),
        None => time.block_on(outer.call(operation)),
    };
    let stop = *stopped.lock().unwrap();
    (runs.load(SeqCst), stop)
}

// Guarantee: retry 7.
#[test]
fn an_inner_retry_leaves_only_those_failures_that_the_outer_one_repeats() {
    use FailureKind::{Connect, Overloaded, Timeout};
    let (inner, two) = (RetryConfig::default().max_attempts(4), RetryConfig::default().max_attempts(2));
    // The outer one repeats: the inner one leaves the attempts to it and reports that.
    assert_eq!(runs(two, Some(true), inner, Overloaded), (2, Some(StopReason::Nested)));
    assert_eq!(runs(two.idempotent(true), None, inner, Overloaded), (2, Some(StopReason::Nested)));
    // The outer one makes one attempt.
    assert_eq!(
        runs(RetryConfig::default().max_attempts(1), Some(true), inner, Overloaded),
        (4, Some(StopReason::Attempts))
    );
    // The outer one repeats only failures that prove that nothing was sent, as the operation must
    // not run twice.
    for marked in [None, Some(false)] {
        assert_eq!(runs(two, marked, inner, Overloaded), (4, Some(StopReason::Attempts)));
        assert_eq!(runs(two, marked, inner, Connect), (2, Some(StopReason::Nested)));
    }
    // The outer one repeats failures of another kind.
    let timeouts = two.retry_on(KindSet::of(&[Timeout]));
    assert_eq!(runs(timeouts, Some(true), inner, Overloaded), (4, Some(StopReason::Attempts)));
    assert_eq!(runs(timeouts, Some(true), inner, Timeout), (2, Some(StopReason::Nested)));
    // With `retry_nested` the inner one multiplies.
    assert_eq!(runs(two, Some(true), inner.retry_nested(true), Overloaded), (8, Some(StopReason::Attempts)));
}

// Guarantee: retry 7.
#[test]
fn an_inner_retry_reports_that_it_leaves_the_attempts_to_the_outer_one() {
    let (clock, time) = Clock::manual();
    let (outer, inner) = (retry(&clock, repeating()), retry(&clock, repeating()));
    let mut events = inner.events();
    let pipeline = Pipeline::new().then(outer).then(inner);
    let calls = AtomicU32::new(0);
    let error = time.block_on(pipeline.call(|| ready(Err::<(), _>(calls.fetch_add(1, SeqCst))))).unwrap_err();
    let history = error.history().unwrap();
    assert_eq!((error.attempts(), history.stop), (3, StopReason::Attempts));
    assert!(matches!(history.first, Some(steadfast::Cause::Operation(0))), "{history:?}");
    for _ in 0..2 {
        let event = events.try_recv().unwrap().unwrap().what;
        assert!(matches!(event, RetryEvent::GaveUp { attempts: 1, stop: StopReason::Nested, .. }), "{event:?}");
    }
}

/// A service that counts its requests, and calls another service through a pipeline with a retry.
#[derive(Clone)]
struct Handler {
    behind: Arc<AtomicU32>,
    retry: Retry,
}

impl Service<Request<()>> for Handler {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Response<()>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let Self { behind, retry } = self.clone();
        let attempt: AttemptInfo = *request.extensions().get().unwrap();
        Box::pin(async move {
            let ask = idempotent(|| {
                let answer = if behind.fetch_add(1, SeqCst) < 2 { Err("busy") } else { Ok(()) };
                ready(answer)
            });
            let status = if Pipeline::new().then(retry).call_within(attempt, ask).await.is_ok() { 200 } else { 502 };
            Ok(Response::builder().status(status).body(()).unwrap())
        })
    }
}

// Guarantee: call 7.
#[test]
fn the_standard_stack_of_a_server_does_not_suppress_retries_of_its_handler() {
    let (clock, time) = Clock::manual();
    for method in ["GET", "POST"] {
        let stack = Standard::builder(StandardConfig::default()).clock(&clock).build().unwrap();
        let pipeline = Pipeline::new().then(stack).classify(ByStatus::new());
        let behind = Arc::new(AtomicU32::new(0));
        let handler = Handler { behind: behind.clone(), retry: retry(&clock, RetryConfig::default()) };
        let mut service = PipelineLayer::new(pipeline).requests(ReceivedRequests::new()).answering().layer(handler);
        let request = Request::builder().method(method).uri("/").body(()).unwrap();
        let answer = time.block_on(service.call(request)).unwrap();
        assert_eq!((answer.status().as_u16(), behind.load(SeqCst)), (200, 3), "{method}");
    }
}

/// A service that answers 503 with a `retry-after`.
#[derive(Clone)]
struct Away(&'static str, Arc<AtomicU32>);

impl Service<Request<()>> for Away {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        self.1.fetch_add(1, SeqCst);
        ready(Ok(Response::builder().status(503).header("retry-after", self.0).body(()).unwrap()))
    }
}

// Guarantee: retry 3.
/// The request is moved into its only attempt; that is recorded beside the server's hint.
#[test]
fn a_hint_reaches_every_policy_even_if_the_request_cannot_be_repeated() {
    let (clock, time) = Clock::manual();
    for seconds in [60, 90, 600] {
        let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap();
        let pipeline = Pipeline::new().then(breaker.clone()).classify(ByStatus::new());
        let away = Away(seconds.to_string().leak(), Arc::default());
        let get = || Request::get("/").body(()).unwrap();
        let mut service = PipelineLayer::new(pipeline).layer(away.clone());
        assert_eq!(time.block_on(service.call(get())).unwrap().status(), 503);
        assert_eq!(breaker.state(), State::Open, "{seconds} s");
        let error = time.block_on(service.call(get())).unwrap_err();
        assert_eq!((error.retry_after(), away.1.load(SeqCst)), (Some(S(seconds)), 1));
    }
    // The hint also reaches the caller if the answer becomes an error; a retry states why it
    // stopped.
    let verdict = Verdict::failure(FailureKind::Overloaded).with_hint(Hint::RetryAfter(S(9)));
    let judge = move |_: &Result<Response<()>, &'static str>| verdict;
    let pipeline = Pipeline::new().then(retry(&clock, repeating())).classify(judge);
    let mut service = PipelineLayer::new(pipeline).once().layer(Refuses);
    let error = time.block_on(service.call(())).unwrap_err();
    assert_eq!((error.retry_after(), error.history().unwrap().stop), (Some(S(9)), StopReason::Spent));
}

#[derive(Clone)]
struct Refuses;

impl Service<()> for Refuses {
    type Response = Response<()>;
    type Error = &'static str;
    type Future = std::future::Ready<Result<Response<()>, &'static str>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), &'static str>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        ready(Err("busy"))
    }
}

// Guarantee: call 7.
#[test]
fn a_budget_counts_a_call_once_across_nested_pipelines() {
    let (clock, time) = Clock::manual();
    for hedged in [true, false] {
        let config = RetryBudgetConfig::default().ratio(1.0).min_per_second(0);
        let budget = RetryBudget::new(config).unwrap();
        let hedge = hedged.then(|| {
            Hedge::builder(HedgeConfig::after(S(1)).idempotent(true)).clock(&clock).budget(&budget).build().unwrap()
        });
        let again = (!hedged).then(|| builder(&clock, repeating().retry_nested(true)).budget(&budget).build().unwrap());
        let middle = Pipeline::new().then(Timeout::builder(S(5)).clock(&clock).build());
        let inner = Pipeline::new().then(hedge).then(again);
        let outer = Pipeline::new().then(builder(&clock, repeating()).budget(&budget).build().unwrap());
        for n in 1..=10 {
            let answer = time.block_on(outer.call_with(|attempt| {
                let (middle, inner, clock) = (&middle, &inner, &clock);
                async move {
                    let through = steadfast::call::WithAttempt(|attempt: AttemptInfo| async move {
                        let work = || async {
                            clock.sleep(MS(1)).await;
                            Ok::<_, ()>(())
                        };
                        inner.call_within(attempt, work).await.map_err(|_| ())
                    });
                    middle.call_within(attempt, through).await.map_err(|_| ())
                }
            }));
            answer.unwrap();
            assert_eq!(budget.balance(time.now()), n, "hedged: {hedged}");
        }
    }
}

/// One task retries immediate failures without a delay; another one ends it.
#[test]
fn a_retry_without_a_delay_lets_other_tasks_run() {
    for own_delays in [true, false] {
        let flat = BackoffConfig::default().between(MS(1), S(1)).jitter(Jitter::None).immediate_first(true);
        let config = repeating().max_attempts(if own_delays { u32::MAX } else { 2 }).backoff(flat);
        let (clock, time) = Clock::manual();
        let retry = builder(&clock, config);
        let retry = if own_delays { retry.delays(|| std::iter::repeat(Duration::ZERO)) } else { retry };
        let retry = retry.build().unwrap();
        let (ends, ran) = (AtomicU32::new(0), AtomicU32::new(0));
        let work = retry.call(idempotent(|| {
            ran.fetch_add(1, SeqCst);
            ready(if ends.load(SeqCst) == 1 || ran.load(SeqCst) > 10_000 { Ok(()) } else { Err(()) })
        }));
        let other = async { ends.store(1, SeqCst) };
        let (answer, ()) = time.block_on(async { futures::join!(work, other) });
        assert_eq!((answer.is_ok(), ran.load(SeqCst)), (true, 2), "own delays: {own_delays}");
    }
}

// Guarantee: retry 3.
#[test]
fn a_requested_wait_and_the_delay_of_the_retry_are_not_added() {
    let flat = |jitter| BackoffConfig::default().between(S(10), S(10)).jitter(jitter);
    for (asked, jitter, own, least, most) in [
        (S(10), Jitter::Equal, None, S(10), S(11)),
        (S(10), Jitter::Full, None, S(10), S(11)),
        (S(30), Jitter::Equal, None, S(30), S(33)),
        (S(1), Jitter::None, None, S(10), S(10)),
        (S(3), Jitter::Full, Some(S(5)), S(5), S(5)), // delays of one's own get no jitter
        (S(7), Jitter::Full, Some(S(5)), S(7), S(7)),
    ] {
        for _ in 0..20 {
            let (clock, time) = Clock::manual();
            let retry = builder(&clock, repeating().max_attempts(2).backoff(flat(jitter)));
            let retry = match own {
                Some(delay) => retry.delays(move || std::iter::repeat(delay)),
                None => retry,
            };
            let retry = retry.build().unwrap();
            let busy = Verdict::failure(FailureKind::Overloaded).with_retry_after(asked);
            let pipeline = Pipeline::new().then(retry).classify(move |_: &Result<(), ()>| busy);
            let start = time.now();
            let _ = time.block_on(pipeline.call(|| ready(Err(()))));
            let waited = time.now() - start;
            assert!((least..=most).contains(&waited), "{asked:?} beside {own:?} with {jitter:?}: {waited:?}");
        }
    }
}

// Guarantee: hedge 7.
#[test]
fn one_hint_stops_hedging_for_at_most_a_minute() {
    for seconds in [61, 86_400, 999_999_999] {
        let (clock, time) = Clock::manual();
        let hedge = Hedge::builder(HedgeConfig::after(MS(10)).idempotent(true)).clock(&clock).build().unwrap();
        let busy = Verdict::failure(FailureKind::Throttled).with_retry_after(S(seconds));
        let judge = move |result: &Result<u32, ()>| if result.is_err() { busy } else { Verdict::success() };
        let pipeline = Pipeline::new().then(hedge).classify(judge);
        let _ = time.block_on(pipeline.call(|| ready(Err(()))));
        let attempts = || {
            let runs = AtomicU32::new(0);
            let slow = || async {
                let n = runs.fetch_add(1, SeqCst);
                clock.sleep(MS(100)).await;
                Ok(n)
            };
            time.block_on(pipeline.call(slow)).unwrap();
            runs.load(SeqCst)
        };
        assert_eq!(attempts(), 1, "left alone");
        time.advance(S(60));
        assert_eq!(attempts(), 2, "{seconds} s");
    }
}

// Guarantee: call 7.
#[test]
fn a_call_whose_deadline_has_passed_does_not_run() {
    let (clock, time) = Clock::manual();
    time.advance(S(100));
    for late in [S(0), MS(1), S(50)] {
        let stack = Standard::builder(StandardConfig::default()).clock(&clock).build().unwrap();
        let attempt = AttemptInfo::with_deadline(time.now().saturating_sub(late));
        let runs = AtomicU32::new(0);
        let work = || ready(Ok::<_, ()>(runs.fetch_add(1, SeqCst)));
        let error = time.block_on(Pipeline::new().then(stack).call_within(attempt, work)).unwrap_err();
        assert!(error.is_timed_out(), "{error:?}");
        assert_eq!((error.attempts(), runs.load(SeqCst)), (0, 0));
        let timeout = Timeout::builder(S(5)).clock(&clock).build();
        let answer = time.block_on(Pipeline::new().then(timeout).call_within(attempt, work));
        assert!(answer.unwrap_err().is_timed_out() && runs.load(SeqCst) == 0);
    }
    // With a moment left it runs.
    let timeout = Timeout::builder(S(5)).clock(&clock).build();
    let attempt = AttemptInfo::with_deadline(time.now() + Duration::from_nanos(1));
    assert!(time.block_on(Pipeline::new().then(timeout).call_within(attempt, || ready(Ok::<_, ()>(())))).is_ok());
}

#[test]
fn a_reset_time_is_measured_by_the_clock_of_the_response() {
    use steadfast::{http::retry_after, time::Timestamp};
    let mut headers = http::HeaderMap::new();
    for (name, value) in [
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "1795251630"),
        ("date", "Sat, 21 Nov 2026 09:00:00 GMT"), // 1795251600
    ] {
        headers.insert(name, value.parse().unwrap());
    }
    for wrong in [0, 3_600_000, 86_400_000] {
        let now = Timestamp::from_millis(1_795_251_600_000 + wrong);
        assert_eq!(retry_after(&headers, now), Some(S(30)), "this clock is {wrong} ms ahead");
    }
}
