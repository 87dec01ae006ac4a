//! Pipeline: order of policies, shared state, explanation, and the flat error.
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use steadfast::{
    BoxedPipeline, CallError, Cause, FailureKind, Outcome, Pipeline, PolicyKind, Reason, Rejected, Verdict,
    backoff::{BackoffConfig, Jitter},
    call::{Attempt, CallContext, Operation, Policy},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State},
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    testing::ScriptedService,
    time::Clock,
    timeout::Timeout,
};

const S: fn(u64) -> Duration = Duration::from_secs;

/// A policy that records when calls enter and leave.
#[derive(Clone)]
struct Mark(&'static str, Arc<std::sync::Mutex<String>>);

impl Policy for Mark {
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        self.1.lock().unwrap().push_str(&format!("({}", self.0));
        let outcome = inner.attempt(cx).await;
        self.1.lock().unwrap().push(')');
        outcome
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    Clock::manual().1.block_on(future)
}

// Guarantee: call 1.
#[test]
fn policies_run_in_the_order_in_which_they_were_added() {
    let log = Arc::default();
    let mark = |name| Mark(name, Arc::clone(&log));
    let pipeline = Pipeline::new().then(mark("a")).then(mark("b")).then(mark("c"));
    run(pipeline.call(|| async { Ok::<_, ()>(()) })).unwrap();
    assert_eq!(*log.lock().unwrap(), "(a(b(c)))");
}

// Guarantee: call 1.
#[test]
fn a_pipeline_serves_operations_of_any_type_that_may_borrow() {
    let pipeline = Pipeline::new().then(Timeout::new(S(1)));
    let text = String::from("lent");
    assert_eq!(run(pipeline.call(|| async { Ok::<_, fmt::Error>(text.as_str()) })).unwrap(), "lent");
    assert_eq!(run(pipeline.call(|| async { Err::<u8, _>([7u8; 40]) })).unwrap_err().into_operation(), Ok([7; 40]));
    assert_eq!(run(pipeline.call(async || Ok::<_, ()>(text.len()))).unwrap(), 4);
}

// Guarantee: call 2.
#[test]
fn clones_and_a_policy_used_twice_share_state() {
    let breaker = CircuitBreaker::new(CircuitBreakerConfig::default().count_window(4, 4)).unwrap();
    let one = Pipeline::new().then(breaker.clone());
    let other = Pipeline::new().then(Timeout::new(S(1))).then(breaker.clone());
    for _ in 0..2 {
        run(one.clone().call(|| async { Err::<(), _>(()) })).unwrap_err();
        run(other.call(|| async { Err::<(), _>(()) })).unwrap_err();
    }
    assert_eq!(breaker.state(), State::Open);
}

// Guarantee: call 1.
#[test]
fn a_call_can_be_spawned_with_the_data_that_it_borrows() {
    fn is_send_and_sync<T: Send + Sync>(_: &T) {}
    let pipeline = Pipeline::new()
        .then(Timeout::new(S(1)))
        .then(Retry::new(RetryConfig::default().idempotent(true)).unwrap())
        .then(CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap());
    is_send_and_sync(&pipeline);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    runtime.block_on(async {
        let task = tokio::spawn(async move {
            let url = String::from("http://example");
            let tries = AtomicU32::new(0);
            let answer = pipeline.call(|| async {
                tokio::task::yield_now().await;
                tries.fetch_add(1, SeqCst);
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(url.len())
            });
            (answer.await.unwrap(), tries.load(SeqCst))
        });
        assert_eq!(task.await.unwrap(), (14, 1));
    });
}

// Guarantee: call 2.
#[test]
fn a_boxed_pipeline_fits_into_a_field_and_behaves_the_same() {
    struct Repository {
        calls: BoxedPipeline<u16, steadfast::testing::ScriptedError>,
    }
    let (clock, time) = Clock::manual();
    let service = ScriptedService::new("503 x2, ok", &clock).unwrap();
    let retry = Retry::builder(RetryConfig::default().idempotent(true)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().named("repository").then(retry).classify(ScriptedService::classify);
    let repository = Repository { calls: pipeline.boxed() };
    assert_eq!(time.block_on(repository.calls.clone().call(|| service.call())).unwrap(), 200);
    assert_eq!(service.calls(), 3);
    assert!(repository.calls.explain().to_string().contains("`repository`"));
}

// Guarantee: call 1.
#[test]
fn a_custom_operation_may_keep_state_across_attempts() {
    struct Counting<'a>(&'a mut u32);
    impl Operation for Counting<'_> {
        type Output = u32;
        type Error = &'static str;
        async fn run(&mut self, cx: CallContext<'_>) -> Result<u32, &'static str> {
            *self.0 += cx.attempt();
            if *self.0 < 6 { Err("again") } else { Ok(*self.0) }
        }
    }
    let (clock, time) = Clock::manual();
    let pipeline =
        Pipeline::new().then(Retry::builder(RetryConfig::default().idempotent(true)).clock(&clock).build().unwrap());
    let mut sum = 0;
    assert_eq!(time.block_on(pipeline.call(Counting(&mut sum))).unwrap(), 6);
}

// Guarantee: call 6.
#[test]
fn a_policy_that_makes_no_attempt_causes_an_error_and_no_panic() {
    struct Lazy;
    impl Policy for Lazy {
        async fn around<A: Attempt>(&self, _: A, _: CallContext<'_>) -> Outcome {
            Outcome::Judged(steadfast::Class::Success)
        }
    }
    let error = run(Pipeline::new().then(Lazy).call(|| async { Ok::<_, fmt::Error>(()) })).unwrap_err();
    assert_eq!(error.to_string(), "rejected by the policy: it neither made an attempt nor rejected the call");
}

// Guarantee: call 6.
#[test]
fn the_error_is_flat_in_any_order_of_policies() {
    let (clock, time) = Clock::manual();
    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).name("db").clock(&clock).build().unwrap();
    breaker.force_open(S(3));
    let retry = || Retry::builder(RetryConfig::default().idempotent(true)).clock(&clock).build().unwrap();
    let timeout = || Timeout::builder(S(1)).clock(&clock).build();
    let check = |error: CallError<()>| {
        assert!(error.is_rejected() && !error.is_timed_out());
        assert_eq!((error.attempts(), error.retry_after()), (0, Some(S(3))));
        assert!(matches!(error.cause(), Cause::Rejected(r) if r.name() == Some("db")));
    };
    let work = || async { Ok::<(), ()>(()) };
    check(time.block_on(Pipeline::new().then(timeout()).then(retry()).then(breaker.clone()).call(work)).unwrap_err());
    check(time.block_on(Pipeline::new().then(breaker.clone()).then(retry()).then(timeout()).call(work)).unwrap_err());
    check(time.block_on(Pipeline::new().then(retry()).then(timeout()).then(breaker).call(work)).unwrap_err());
}

// Guarantee: call 6.
#[test]
fn one_classifier_serves_all_policies_and_judges_values() {
    let (clock, time) = Clock::manual();
    let breaker =
        CircuitBreaker::builder(CircuitBreakerConfig::default().count_window(3, 3)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new()
        .then(Retry::builder(RetryConfig::default().idempotent(true)).clock(&clock).build().unwrap())
        .then(breaker.clone())
        .classify(|r: &Result<u16, ()>| match r {
            Ok(500..) => Verdict::failure(FailureKind::Server),
            Ok(404) => Verdict::ignore(),
            _ => Verdict::success(),
        });
    let calls = AtomicU32::new(0);
    let answer = |status| {
        let calls = &calls;
        move || {
            calls.fetch_add(1, SeqCst);
            async move { Ok::<u16, ()>(status) }
        }
    };
    assert_eq!(time.block_on(pipeline.call(answer(404))).unwrap(), 404);
    assert_eq!((calls.load(SeqCst), breaker.snapshot().calls), (1, 0));
    assert_eq!(time.block_on(pipeline.call(answer(503))).unwrap(), 503); // after three attempts, the value itself
    assert_eq!((calls.load(SeqCst), breaker.state()), (4, State::Open));
}

#[test]
fn errors_can_be_mapped_and_have_a_source() {
    let error = run(Pipeline::new().call(|| async { Err::<(), _>(fmt::Error) })).unwrap_err();
    assert_eq!(error.to_string(), fmt::Error.to_string());
    assert_eq!(error.verdict().kind(), Some(FailureKind::Other));
    let mapped = error.map_operation(|e| std::io::Error::other(e.to_string()));
    assert!(std::error::Error::source(&mapped).is_none());
    let custom = Rejected::new(PolicyKind::Custom("gate"), Reason::Custom("closed")).with_retry_after(S(2));
    assert_eq!(custom.to_string(), "rejected by the gate: closed; try again in 2s");
}

/// The warnings of a pipeline whose explanation contains them.
fn warnings<P: Policy, C>(pipeline: &Pipeline<P, C>) -> String {
    pipeline.explain().warnings().join("\n")
}

// Guarantee: call 3.
#[test]
fn explain_lists_the_policies_in_order() {
    let pipeline = Pipeline::new()
        .named("billing")
        .then(Timeout::builder(S(2)).name("total").build())
        .then(
            Retry::builder(RetryConfig::default().idempotent(true))
                .budget(&RetryBudget::new(RetryBudgetConfig::default()).unwrap())
                .build()
                .unwrap(),
        )
        .then(CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap())
        .then(Timeout::new(Duration::from_millis(300)));
    assert_eq!(
        pipeline.explain().to_string(),
        "pipeline `billing`, outermost first:\n  \
         1. time-out `total`: at most 2s\n  \
         2. retry: at most 3 attempts, exponential back-off from 100ms to 20s, jitter full; assumes that unmarked \
         operations are idempotent\n  \
         3. circuit breaker: opens on 50 % failures over the last 100 calls (at least 20); for 5s to 60s\n  \
         4. time-out: at most 300ms\n"
    );
    assert_eq!(pipeline.explain().layers().len(), 4);
    assert!(Pipeline::new().explain().to_string().contains("(no policy)"));
}

// Guarantee: call 3.
#[test]
fn explain_warns_about_risky_settings() {
    let retry = || Retry::new(RetryConfig::default().idempotent(true)).unwrap();
    let breaker = || CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
    let timeout = |s| Timeout::new(S(s));
    let warned = [
        (warnings(&Pipeline::new().then(timeout(1)).then(timeout(5))), "never fires"),
        (warnings(&Pipeline::new().then(timeout(1)).then(retry())), "neither a budget nor a circuit breaker"),
        (
            warnings(&Pipeline::new().then(retry()).then(breaker()).then(timeout(1))),
            "no budget: until the breaker opens",
        ),
        (warnings(&Pipeline::new().then(retry())), "no time-out around its attempts"),
        (warnings(&Pipeline::new().then(retry()).then(retry())), "stands inside another retry"),
        (warnings(&Pipeline::new().then(breaker())), "no time-out inside it"),
        (warnings(&Pipeline::new().then(breaker()).then(retry())), "stands outside a retry"),
        (
            warnings(
                &Pipeline::new().then(
                    Retry::new(
                        RetryConfig::default().idempotent(true).backoff(BackoffConfig::default().jitter(Jitter::None)),
                    )
                    .unwrap(),
                ),
            ),
            "without jitter",
        ),
    ];
    for (text, expected) in warned {
        assert!(text.contains(expected), "{text:?} lacks {expected:?}");
    }
}
