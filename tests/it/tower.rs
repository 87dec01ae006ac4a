//! A pipeline as a layer around services; `poll_ready` reserves nothing that a drop would leak.
use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::{HeaderName, Request, Response, StatusCode};
use steadfast::{
    CallError, Cause, FailureKind, Outcome, Pipeline, Priority, Verdict,
    backoff::{BackoffConfig, Curve, Jitter},
    call::{Attempt, AttemptInfo, CallContext, Operation, OperationName, Policy, named, not_idempotent, with_priority},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State},
    hedge::{Hedge, HedgeConfig},
    http::{ByStatus, deadline},
    outcome::{Retrying, StopReason},
    retry::{Retry, RetryConfig},
    testing::{ScriptedError, ScriptedService, drop_at_every_await},
    throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter, Quota, RateLimiter},
    time::{Clock, ManualClock},
    timeout::Timeout,
    tower::{HttpRequests, OperationError, PipelineLayer, ReceivedRequests, Requests},
};
use tower_layer::Layer;
use tower_service::Service;

const MS: fn(u64) -> Duration = Duration::from_millis;

/// A scripted service with few permits; each clone reserves one in `poll_ready`, by tower's contract.
struct Places {
    free: Arc<AtomicUsize>,
    holds: bool,
    clones: Arc<AtomicUsize>,
    script: ScriptedService,
}

impl Places {
    fn new(script: &str, places: usize, clock: &Clock) -> Self {
        let free = Arc::new(AtomicUsize::new(places));
        Self { free, holds: false, clones: Arc::default(), script: ScriptedService::new(script, clock).unwrap() }
    }

    fn free(&self) -> usize {
        self.free.load(SeqCst)
    }
}

impl Clone for Places {
    fn clone(&self) -> Self {
        self.clones.fetch_add(1, SeqCst);
        Self { free: self.free.clone(), holds: false, clones: self.clones.clone(), script: self.script.clone() }
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        self.free.fetch_add(usize::from(self.holds), SeqCst);
    }
}

impl<Req> Service<Req> for Places {
    type Response = u16;
    type Error = ScriptedError;
    type Future = Pin<Box<dyn Future<Output = Result<u16, ScriptedError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ScriptedError>> {
        if !self.holds {
            match self.free.fetch_update(SeqCst, SeqCst, |free| free.checked_sub(1)) {
                Ok(_) => self.holds = true,
                Err(_) => return Poll::Pending, // for ever, as far as the test can tell
            }
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Req) -> Self::Future {
        assert!(std::mem::take(&mut self.holds), "called before it was ready");
        let place = Place(self.free.clone());
        let call = self.script.call();
        Box::pin(async move {
            let _place = place;
            call.await
        })
    }
}

struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn poll_ready<Req, S: Service<Req>>(service: &mut S) -> bool {
    matches!(service.poll_ready(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())))
}

fn retry(clock: &Clock) -> Retry {
    Retry::builder(RetryConfig::default().idempotent(true).backoff(every(MS(100)))).clock(clock).build().unwrap()
}

fn every(delay: Duration) -> BackoffConfig {
    BackoffConfig::default().curve(Curve::Constant).between(delay, delay).jitter(Jitter::None)
}

fn breaker(clock: &Clock) -> CircuitBreaker {
    CircuitBreaker::builder(CircuitBreakerConfig::default().count_window(2, 2)).clock(clock).build().unwrap()
}

fn world(script: &str, places: usize) -> (Clock, ManualClock, Places) {
    let (clock, time) = Clock::manual();
    let service = Places::new(script, places, &clock);
    (clock, time, service)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

// Guarantee: tower 1.
#[test]
fn ready_reserves_nothing_that_a_drop_would_leak() {
    let (clock, time, places) = world("ok", 1);
    let limiter = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(1)).clock(&clock).build().unwrap();
    let layer = PipelineLayer::new(Pipeline::new().then(limiter.clone()));
    let mut kept: Vec<_> = (0..100).map(|_| layer.layer(places.clone())).collect();
    for service in &mut kept {
        assert!(poll_ready::<(), _>(service) && poll_ready::<(), _>(service));
        drop(service.clone());
        assert_eq!((places.free(), limiter.available()), (1, 1));
    }
    kept.truncate(50); // ready, then dropped
    // Forty-nine clones are ready and never called: the last one still gets a permit.
    assert_eq!(time.block_on(kept[49].call(())).unwrap(), 200);
    // A future that was never polled holds nothing, either.
    let unpolled = kept[0].call(());
    assert_eq!((places.free(), limiter.available(), places.script.calls()), (1, 1, 1));
    drop(unpolled);
    assert_eq!((places.free(), limiter.available(), places.script.calls()), (1, 1, 1));
}

// Guarantee: tower 1.
#[test]
fn a_service_that_is_never_ready_is_bounded_and_refused() {
    let (clock, time, places) = world("ok", 0);
    let (breaker, timeout) = (breaker(&clock), Timeout::builder(MS(50)).clock(&clock).build());
    let limiter = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(1)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(breaker.clone()).then(limiter.clone()).then(timeout);
    let mut service = PipelineLayer::new(pipeline).layer(places.clone());
    for _ in 0..2 {
        assert!(poll_ready::<(), _>(&mut service), "the layer is ready where its service is not");
        let error = time.block_on(service.call(())).unwrap_err();
        assert!(matches!(error.cause(), Cause::TimedOut(_)), "{error}");
        assert_eq!(limiter.available(), 1);
    }
    // The open breaker rejects at once, without a poll of the service.
    assert_eq!(breaker.state(), State::Open);
    assert!(time.block_on(service.call(())).unwrap_err().is_rejected());
    assert_eq!((places.script.calls(), places.free()), (0, 0));
}

// Guarantee: tower 1.
#[test]
fn a_call_that_is_dropped_at_any_await_returns_all_permits() {
    let (clock, time, places) = world("503 in 10ms, hang", 1);
    let limiter = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(1)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new()
        .then(limiter.clone())
        .then(retry(&clock))
        .then(Timeout::builder(MS(100)).clock(&clock).build())
        .classify(ScriptedService::classify);
    let service = PipelineLayer::new(pipeline).layer(places.clone());
    let polls = drop_at_every_await(
        &time,
        || service.clone().call(()),
        |_| assert_eq!((places.free(), limiter.available(), places.script.running()), (1, 1, 0)),
    );
    assert!(polls > 3, "{polls}");
    // Also while it waits for readiness.
    let (clock, time, places) = world("ok", 0);
    let limiter = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(1)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(limiter.clone()).then(Timeout::builder(MS(100)).clock(&clock).build());
    let service = PipelineLayer::new(pipeline).layer(places.clone());
    let polls = drop_at_every_await(
        &time,
        || service.clone().call(()),
        |_| assert_eq!((places.free(), limiter.available()), (0, 1)),
    );
    assert_eq!(polls, 2);
}

// Guarantee: tower 1.
#[test]
fn no_permit_of_the_inner_service_is_held_between_two_attempts() {
    let (clock, time, places) = world("503, ok", 1);
    let pipeline = Pipeline::new().then(retry(&clock)).classify(ScriptedService::classify);
    let mut service = PipelineLayer::new(pipeline).layer(places.clone());
    let mut call = service.call(());
    let mut waits = 0;
    let answer = time.block_on(poll_fn(|task| {
        let poll = call.as_mut().poll(task);
        if poll.is_pending() {
            waits += 1;
            assert_eq!(places.free(), 1);
        }
        poll
    }));
    assert_eq!((answer.unwrap(), places.script.calls()), (200, 2));
    assert!(waits > 0);
}

// Guarantee: tower 3.
#[test]
fn clones_and_services_of_one_layer_share_their_state() {
    let (clock, time, places) = world("503", 5);
    let breaker = breaker(&clock);
    let pipeline = Pipeline::new().then(breaker.clone()).classify(ScriptedService::classify).named("shared");
    let layer = PipelineLayer::new(pipeline);
    let (mut one, other) = (layer.layer(places.clone()), layer.clone().layer(Places::new("ok", 5, &clock)));
    for _ in 0..2 {
        assert!(!time.block_on(one.clone().call(())).unwrap_err().is_rejected());
    }
    assert_eq!(breaker.state(), State::Open);
    assert!(time.block_on(one.call(())).unwrap_err().is_rejected());
    assert!(time.block_on(other.clone().call(())).unwrap_err().is_rejected());
    assert_eq!((places.script.calls(), other.get_ref().script.calls()), (2, 0));
    assert!(format!("{layer:?}").contains("shared"));
}

// Guarantees: tower 1 to 3.
#[test]
fn a_service_without_boxes_does_what_one_with_boxes_does() {
    let (clock, time, places) = world("503 in 10ms, ok, 503, 503, 503", 1);
    let limiter = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(1)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(limiter.clone()).then(retry(&clock)).classify(ScriptedService::classify);
    let layer = PipelineLayer::new(pipeline);
    let mut service = layer.unboxed(places.clone());
    let request = Counted::default();
    assert!(poll_ready::<Counted, _>(&mut service));
    assert_eq!((places.free(), limiter.available()), (1, 1), "ready reserves nothing");
    // The second attempt of one call, and the state that it shares with a boxed service.
    assert_eq!(time.block_on(service.clone().call(Counted(request.0.clone()))).unwrap(), 200);
    assert_eq!((places.script.calls(), request.0.load(SeqCst)), (2, 2));
    let (unpolled, mut boxed) = (service.call(Counted(request.0.clone())), layer.layer(places.clone()));
    assert_eq!((limiter.available(), places.script.calls()), (1, 2), "not begun");
    let error = time.block_on(unpolled).unwrap_err();
    assert_eq!(error.to_string(), time.block_on(boxed.call(request.clone())).unwrap_err().to_string());
    let polls = drop_at_every_await(
        &time,
        || layer.unboxed(Places::new("503 in 10ms, ok", 1, &clock)).call(request.clone()),
        |_| assert_eq!(limiter.available(), 1),
    );
    assert!(polls > 2, "{polls}");
}

/// A request that counts its clones.
#[derive(Default)]
struct Counted(Arc<AtomicUsize>);

impl Clone for Counted {
    fn clone(&self) -> Self {
        self.0.fetch_add(1, SeqCst);
        Self(self.0.clone())
    }
}

// Guarantee: tower 2.
#[test]
fn a_request_is_cloned_only_inside_a_retry() {
    let (clock, time, places) = world("503, 503, ok, ok", 1);
    let request = Counted::default();
    let pipeline = Pipeline::new().then(retry(&clock)).classify(ScriptedService::classify);
    let mut service = PipelineLayer::new(pipeline).layer(places.clone());
    assert_eq!(time.block_on(service.call(Counted(request.0.clone()))).unwrap(), 200);
    assert_eq!((places.script.calls(), request.0.load(SeqCst)), (3, 3));
    let mut plain = PipelineLayer::new(Pipeline::new()).layer(places.clone());
    assert_eq!(time.block_on(plain.call(Counted(request.0.clone()))).unwrap(), 200);
    assert_eq!(request.0.load(SeqCst), 3, "moved");
}

// Guarantee: tower 2.
#[test]
fn a_request_that_cannot_be_cloned_is_sent_once_and_keeps_its_error() {
    struct Unclonable;
    let (clock, time, places) = world("503 retry-after 1s", 1);
    let pipeline = Pipeline::new().then(retry(&clock)).classify(ScriptedService::classify);
    let layer = PipelineLayer::new(pipeline);
    let start = time.now();
    for error in [
        time.block_on(layer.clone().once().layer(places.clone()).call(Unclonable)).unwrap_err(),
        time.block_on(layer.requests(|_: &Unclonable| None).layer(places.clone()).call(Unclonable)).unwrap_err(),
    ] {
        assert!(matches!(error.cause(), Cause::Operation(ScriptedError::Status { status: 503, .. })), "{error}");
        assert_eq!((error.attempts(), error.history().unwrap().stop), (1, StopReason::Spent));
    }
    assert_eq!((places.script.calls(), places.free(), time.now()), (2, 1, start));
}

/// An operation that can be run once, written without the layer.
struct OneShot(Option<Verdict>);

static ONCE: OperationName = OperationName::new("once");

impl Operation for OneShot {
    type Output = ();
    type Error = Verdict;

    async fn run(&mut self, _: CallContext<'_>) -> Result<(), Verdict> {
        Err(self.0.take().unwrap())
    }

    fn is_spent(&self) -> bool {
        self.0.is_none()
    }
}

/// A policy that makes each attempt twice, also after a success.
struct Twice;

impl Policy for Twice {
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        inner.attempt(cx).await;
        inner.attempt(cx).await
    }
}

// Guarantee: tower 2.
#[test]
fn a_spent_operation_is_not_run_again_even_if_marked_as_idempotent() {
    let (clock, time) = Clock::manual();
    let judge = |result: &Result<(), Verdict>| result.unwrap_err();
    let pipeline = Pipeline::new().then(retry(&clock)).classify(judge);
    let once = || OneShot(Some(Verdict::failure(FailureKind::Connect)));
    let start = time.now();
    for error in [
        time.block_on(pipeline.call(once())).unwrap_err(),
        time.block_on(pipeline.call(not_idempotent(once()))).unwrap_err(),
        time.block_on(pipeline.call(with_priority(Priority::High, once()))).unwrap_err(),
        time.block_on(pipeline.call(named(&ONCE, once()))).unwrap_err(),
        time.block_on(retry(&clock).call(once())).unwrap_err(),
    ] {
        assert_eq!((error.attempts(), error.history().unwrap().stop), (1, StopReason::Spent));
    }
    assert_eq!(time.now(), start);
    // A further attempt is rejected, and runs nothing.
    let error = time.block_on(Pipeline::new().then(Twice).classify(judge).call(once())).unwrap_err();
    let Cause::Rejected(rejected) = error.cause() else { panic!("{error:?}") };
    let told = "rejected by the operation: it cannot run again";
    assert_eq!((rejected.to_string().as_str(), error.attempts()), (told, 1));
}

// Guarantee: tower 2.
#[test]
fn an_attempt_rejected_before_the_request_was_moved_may_be_repeated() {
    let (clock, time, places) = world("ok", 1);
    let limiter = RateLimiter::builder(Quota::per_second(1)).clock(&clock).build().unwrap();
    limiter.try_acquire().unwrap();
    let config = RetryConfig::default().idempotent(true).retry_rejections(true);
    let pipeline = Pipeline::new().then(Retry::builder(config).clock(&clock).build().unwrap()).then(limiter);
    let mut service = PipelineLayer::new(pipeline).once().layer(places.clone());
    assert_eq!(time.block_on(service.call(())).unwrap(), 200);
}

// Guarantee: tower 2.
#[test]
fn a_request_that_is_not_idempotent_is_not_repeated() {
    let post = || Request::post("/").body(()).unwrap();
    let (clock, time, places) = world("503", 1);
    let pipeline = Pipeline::new().then(retry(&clock)).classify(ScriptedService::classify);
    let mut service = PipelineLayer::new(pipeline).requests(HttpRequests::new()).layer(places.clone());
    assert_eq!(time.block_on(service.call(post())).unwrap_err().attempts(), 1);
    let mut keyed = post();
    keyed.headers_mut().insert("idempotency-key", "1".parse().unwrap());
    assert_eq!(time.block_on(service.call(keyed)).unwrap_err().attempts(), 3);
    assert_eq!(time.block_on(service.call(Request::get("/").body(()).unwrap())).unwrap_err().attempts(), 3);
}

// Guarantee: tower 2.
#[test]
fn a_hedge_has_a_clone_for_each_attempt_and_drops_the_loser() {
    let (clock, time, places) = world("hang, ok in 5ms", 2);
    let hedge = Hedge::builder(HedgeConfig::after(MS(10)).idempotent(true)).clock(&clock).build().unwrap();
    let layer = PipelineLayer::new(Pipeline::new().then(hedge));
    let request = Counted::default();
    let answer = time.block_on(layer.layer(places.clone()).call(Counted(request.0.clone())));
    assert_eq!((answer.unwrap(), places.script.calls(), places.script.dropped()), (200, 2, 1));
    assert_eq!((places.free(), request.0.load(SeqCst)), (2, 2));
    // Regression: a request without a mark was sent three times by a hedge in its default settings.
    let (clock, time, places) = world("ok in 50ms", 3);
    let hedge = Hedge::builder(HedgeConfig::after(MS(10)).max_attempts(3)).clock(&clock).build().unwrap();
    let layer = PipelineLayer::new(Pipeline::new().then(hedge));
    assert_eq!(time.block_on(layer.layer(places.clone()).call(Counted::default())).unwrap(), 200);
    assert_eq!(places.script.calls(), 1);
    // A request that cannot be cloned has one attempt.
    let (clock, time, places) = world("ok in 50ms", 2);
    let hedge = Hedge::builder(HedgeConfig::after(MS(10)).idempotent(true)).clock(&clock).build().unwrap();
    let mut once = PipelineLayer::new(Pipeline::new().then(hedge)).once().layer(places.clone());
    assert_eq!((time.block_on(once.call(())).unwrap(), places.script.calls()), (200, 1));
    // A drop at any await returns the permits of both attempts.
    let (clock, time, places) = world("hang x1000", 2);
    let hedge = Hedge::builder(HedgeConfig::after(MS(10)).idempotent(true)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(Timeout::builder(MS(30)).clock(&clock).build()).then(hedge);
    let service = PipelineLayer::new(pipeline).layer(places.clone());
    drop_at_every_await(&time, || service.clone().call(()), |_| assert_eq!(places.free(), 2));
}

// Guarantee: tower 3.
#[test]
fn errors_are_flat_or_boxed_and_hold_the_service_s_own() {
    let (clock, time, places) = world("503", 1);
    let layer = PipelineLayer::new(Pipeline::new().then(retry(&clock)).classify(ScriptedService::classify));
    let flat: CallError<ScriptedError> = time.block_on(layer.clone().layer(places.clone()).call(())).unwrap_err();
    let boxed = time.block_on(layer.boxing_errors().layer(places).call(())).unwrap_err();
    assert_eq!(boxed.to_string(), flat.to_string());
    let boxed = *boxed.downcast::<CallError<OperationError>>().unwrap();
    assert_eq!((boxed.attempts(), flat.attempts()), (3, 3));
    let Cause::Operation(own) = boxed.into_cause() else { panic!() };
    assert!(own.get_ref().is::<ScriptedError>());
    assert!(own.into_inner().is::<ScriptedError>());
}

/// An HTTP service whose handler is a function of the request.
#[derive(Clone)]
struct Handler<F>(F);

impl<F, B> Service<Request<B>> for Handler<F>
where
    F: FnMut(Request<B>) -> Response<String>,
{
    type Response = Response<String>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        std::future::ready(Ok((self.0)(request)))
    }
}

// Guarantee: tower 3.
#[test]
fn a_server_turns_its_rejections_into_responses() {
    let (clock, time) = Clock::manual();
    let limiter = RateLimiter::builder(Quota::per_minute(1)).clock(&clock).build().unwrap();
    let layer = PipelineLayer::new(Pipeline::new().then(limiter).classify(ByStatus::new())).once().answering();
    let mut service = layer.layer(Handler(|_: Request<()>| Response::new("hello".into())));
    let mut ask = || time.block_on(service.call(Request::new(()))).unwrap();
    assert_eq!(ask().into_body(), "hello");
    let refused = ask();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()["retry-after"], "60");
}

// Guarantee: tower 4.
#[test]
fn a_received_request_s_deadline_and_priority_reach_the_handler() {
    let (clock, time) = Clock::manual();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = seen.clone();
    let handler = Handler(move |request: Request<()>| {
        let info: &AttemptInfo = request.extensions().get().unwrap();
        told.lock().unwrap().push((info.priority(), info.deadline()));
        Response::new(String::new())
    });
    let requests =
        ReceivedRequests::new().believing_deadlines(&clock).believing_priority(HeaderName::from_static("x-priority"));
    let pipeline = Pipeline::new().then(Timeout::builder(MS(500)).clock(&clock).build()).classify(ByStatus::new());
    let mut service = PipelineLayer::new(pipeline).requests(requests).answering().layer(handler);
    let request = |fields: &[(&'static str, &str)]| {
        let mut request = Request::new(());
        for (name, value) in fields {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        request
    };
    let now = time.now();
    let mut marked = request(&[("x-priority", "low")]);
    marked.extensions_mut().insert(Priority::Critical);
    for (request, priority, left) in [
        (request(&[]), Priority::Normal, MS(500)),
        (request(&[("x-request-timeout-ms", "20"), ("x-priority", "HIGH")]), Priority::High, MS(20)),
        (request(&[("x-request-timeout-ms", "60000"), ("x-priority", "most")]), Priority::Normal, MS(500)),
        (marked, Priority::Critical, MS(500)),
    ] {
        time.block_on(service.call(request)).unwrap();
        assert_eq!(seen.lock().unwrap().pop(), Some((priority, Some(now + left))));
    }
    // Headers are trusted only if configured.
    let plain = ReceivedRequests::new();
    assert_eq!(plain.priority(&request(&[("x-priority", "critical")])), None);
    assert_eq!(plain.outer(&request(&[("x-request-timeout-ms", "1")])), None);
}

// Guarantee: tower 4.
#[test]
fn a_sent_request_has_the_remaining_time_of_the_call_as_a_header() {
    let (clock, time) = Clock::manual();
    let handler = Handler(|request: Request<()>| {
        let left = deadline::read(request.headers()).unwrap();
        Response::builder().status(503).body(left.as_millis().to_string()).unwrap()
    });
    let config = RetryConfig::default().idempotent(true).max_attempts(2).backoff(every(MS(300)));
    let pipeline = Pipeline::new()
        .then(Timeout::builder(MS(1000)).clock(&clock).build())
        .then(Retry::builder(config).clock(&clock).build().unwrap())
        .classify(ByStatus::new());
    let requests = HttpRequests::new().telling_deadlines(&clock);
    let mut service = PipelineLayer::new(pipeline).requests(requests).layer(handler);
    let start = time.now();
    let answer = time.block_on(service.call(Request::new(()))).unwrap();
    let waited = time.now() - start;
    assert_eq!(answer.into_body(), (MS(1000) - waited).as_millis().to_string());
}

// Guarantee: tower 4.
#[test]
fn a_received_deadline_bounds_the_handler_s_own_calls() {
    let (clock, time, places) = world("503 retry-after 30ms x2, hang", 1);
    let pipeline = Pipeline::new()
        .then(Timeout::builder(MS(5000)).clock(&clock).build())
        .then(retry(&clock))
        .classify(ScriptedService::classify);
    let layer = PipelineLayer::new(pipeline).requests(HttpRequests::new());
    let mut request = Request::new(());
    request.extensions_mut().insert(AttemptInfo::with_deadline(time.now() + MS(40)));
    let start = time.now();
    let error = time.block_on(layer.layer(places.clone()).call(request)).unwrap_err();
    // The delay of 100 ms does not fit before the deadline.
    assert_eq!((error.attempts(), error.history().unwrap().stop), (1, StopReason::Deadline));
    assert!(time.now() - start <= MS(40));
}

// Guarantee: tower 4.
#[test]
fn a_request_names_its_operation() {
    struct Known;
    impl Requests<&'static str> for Known {
        fn another(&self, request: &&'static str) -> Option<&'static str> {
            Some(*request)
        }
        fn name(&self, request: &&'static str) -> Option<&'static OperationName> {
            (*request == "once").then_some(&ONCE)
        }
    }
    impl Clone for Known {
        fn clone(&self) -> Self {
            Self
        }
    }
    struct Seen(Mutex<Vec<Option<&'static str>>>);
    impl Policy for Seen {
        async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
            self.0.lock().unwrap().push(cx.operation());
            inner.attempt(cx).await
        }
    }
    static SEEN: Seen = Seen(Mutex::new(Vec::new()));
    let (_, time, places) = world("ok", 1);
    let mut service = PipelineLayer::new(Pipeline::new().then(&SEEN)).requests(Known).layer(places);
    for request in ["once", "often"] {
        time.block_on(service.call(request)).unwrap();
    }
    assert_eq!(*SEEN.0.lock().unwrap(), [Some("once"), None]);
}

// Guarantee: tower 1.
#[test]
fn a_panic_returns_all_permits_and_is_resumed() {
    let (clock, time, places) = world("panic", 1);
    let limiter = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(1)).clock(&clock).build().unwrap();
    let mut service = PipelineLayer::new(Pipeline::new().then(limiter.clone())).layer(places.clone());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| time.block_on(service.call(()))));
    assert!(panicked.is_err());
    assert_eq!((places.free(), limiter.available()), (1, 1));
}

// Guarantee: tower 3.
#[test]
fn it_fits_axum_hyper_reqwest_and_tonic() {
    use axum::{Router, routing::get};
    use http_body_util::Empty;
    use hyper::body::Bytes;
    use hyper_util::{client::legacy, rt::TokioExecutor};

    fn is_grpc<S: tonic::client::GrpcService<tonic::body::Body>>(_: &S) {}

    block_on(async {
        let hits = Arc::new(AtomicUsize::new(0));
        let counted = hits.clone();
        let limiter = RateLimiter::new(Quota::per_minute(60).burst(5)).unwrap();
        let guard = PipelineLayer::new(Pipeline::new().then(limiter).classify(ByStatus::new()))
            .requests(ReceivedRequests::new())
            .answering();
        let flaky = move || {
            let n = counted.fetch_add(1, SeqCst);
            std::future::ready(if n.is_multiple_of(2) {
                (StatusCode::BAD_GATEWAY, "")
            } else {
                (StatusCode::OK, "fine")
            })
        };
        let app = Router::<()>::new().route("/", get(flaky)).layer(guard);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(axum::serve(listener, app).into_future());

        let at_once = || {
            Retry::new(RetryConfig::default().idempotent(true).max_attempts(2).backoff(every(Duration::from_nanos(1))))
                .unwrap()
        };
        let pipeline = || Pipeline::new().then(at_once()).classify(ByStatus::new());

        let hyper = legacy::Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
        let mut hyper = PipelineLayer::new(pipeline()).requests(HttpRequests::new()).layer(hyper);
        poll_fn(|task| hyper.poll_ready(task)).await.unwrap();
        let answer = hyper.call(Request::get(&uri).body(Empty::new()).unwrap()).await.unwrap();
        assert_eq!((answer.status().as_u16(), hits.load(SeqCst)), (200, 2));

        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let layer = PipelineLayer::new(pipeline()).requests(reqwest::Request::try_clone).boxing_errors();
        let request = client.get(&uri).build().unwrap();
        let answer = layer.layer(client).call(request).await.unwrap();
        assert_eq!((answer.text().await.unwrap(), hits.load(SeqCst)), ("fine".into(), 4));

        // The fifth permit is free; then the server rejects, and the client's classifier reads the time to return.
        let once = || Request::get(&uri).body(Empty::new()).unwrap();
        assert_eq!(hyper.call(once()).await.unwrap().status(), 429);
        assert_eq!(hits.load(SeqCst), 5);
    });
    let grpc = legacy::Client::builder(TokioExecutor::new()).build_http::<tonic::body::Body>();
    is_grpc(&PipelineLayer::new(Pipeline::new()).once().boxing_errors().layer(grpc));
}

#[test]
fn a_value_judged_a_failure_is_an_error_of_the_layer_s_service() {
    let (clock, time, places) = world("204 x2, ok", 1);
    let pipeline = Pipeline::new()
        .then(retry(&clock))
        .fail_when(|result: &Result<u16, ScriptedError>| matches!(result, Ok(204) | Err(_)))
        .error_for_value(|_| Err::<u16, _>(ScriptedError::Reset));
    let mut service = PipelineLayer::new(pipeline).layer(places);
    assert_eq!(time.block_on(service.call(())).unwrap(), 200);
    let (clock, time, places) = world("204", 1);
    let pipeline =
        Pipeline::new().then(retry(&clock)).fail_when(|result: &Result<u16, ScriptedError>| matches!(result, Ok(204)));
    let mut service = PipelineLayer::new(pipeline.error_for_value(|_| Err(ScriptedError::Reset))).layer(places);
    let error = time.block_on(service.call(())).unwrap_err();
    assert_eq!((error.attempts(), error.into_operation()), (3, Ok(ScriptedError::Reset)));
}

#[test]
fn the_hook_of_a_layers_pipeline_sees_each_retry() {
    let (clock, time) = Clock::manual();
    let config = RetryConfig::default().idempotent(true).backoff(BackoffConfig::default().jitter(Jitter::None));
    let retry = Retry::builder(config).clock(&clock).build().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let hooked = seen.clone();
    let pipeline = Pipeline::new().then(retry).classify(ScriptedService::classify);
    let pipeline = pipeline.on_retry(move |it: &Retrying<'_, u16, ScriptedError>| {
        hooked.lock().unwrap().push((it.attempt(), it.delay(), it.error().copied()));
    });
    let mut service = PipelineLayer::new(pipeline).layer(Places::new("503, reset, ok", 1, &clock));
    assert_eq!(time.block_on(service.call(1)).unwrap(), 200);
    let seen = seen.lock().unwrap();
    assert!(
        matches!(seen[..], [(1, first, Some(ScriptedError::Status { status: 503, .. })), (2, second, Some(ScriptedError::Reset))]
        if (first, second) == (MS(100), MS(200)))
    );
}
