//! Hooks that see each retry, and operations that see the failure before their attempt.
use std::{
    fmt::Debug,
    future::ready,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex},
    time::Duration,
};

use steadfast::{
    BoxedPipeline, Cause, FailureKind, Hint, Pipeline, PolicyKind, Reason, Verdict,
    backoff::{BackoffConfig, Jitter},
    call::{
        AttemptInfo, CallContext, Operation, OperationName, idempotent, named, on_retry, with_last_failure,
        with_priority,
    },
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
    hedge::{Hedge, HedgeConfig},
    outcome::{LastFailure, Retrying},
    retry::{Retry, RetryConfig, RetryEvent},
    standard::{Standard, StandardConfig},
    testing::{ManualClock, ScriptedError, ScriptedService},
    throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter},
    time::Clock,
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Delays of 100 ms, 200 ms, 400 ms and so on, for operations that may run twice.
fn plain() -> RetryConfig {
    RetryConfig::default().idempotent(true).backoff(BackoffConfig::default().jitter(Jitter::None))
}

fn world(script: &str, config: RetryConfig) -> (ScriptedService, Retry, Clock, ManualClock) {
    let (clock, time) = Clock::manual();
    let service = ScriptedService::new(script, &clock).unwrap();
    let retry = Retry::builder(config).name("r").clock(&clock).build().unwrap();
    (service, retry, clock, time)
}

/// Lines that hooks wrote.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn note<T: Debug, E: Debug>(&self, by: &str, retrying: &Retrying<'_, T, E>) {
        let (attempt, delay) = (retrying.attempt(), retrying.delay());
        let seen = match (retrying.value(), retrying.cause()) {
            (Some(value), None) => format!("{value:?}"),
            (None, Some(Cause::Operation(error))) => format!("{error:?}"),
            (None, Some(Cause::Rejected(rejected))) => rejected.reason().as_str().to_owned(),
            (None, Some(Cause::TimedOut(timed_out))) => timed_out.to_string(),
            other => format!("{other:?}"),
        };
        self.0.lock().unwrap().push(format!("{by} {attempt} {delay:?} {seen}"));
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

// Guarantee: retry 9.
#[test]
fn a_hook_sees_the_error_the_kind_the_delay_and_the_attempt_before_the_wait() {
    let (service, retry, _, time) = world("503 in 10ms, reset, ok", plain());
    let pipeline = Pipeline::new().named("mail").then(retry).classify(ScriptedService::classify);
    let (start, mut seen) = (time.now(), Vec::new());
    static SEND: OperationName = OperationName::new("send");
    let operation = on_retry(named(&SEND, || service.call()), |retrying| {
        assert_eq!((retrying.retry(), retrying.operation(), retrying.hedge()), (Some("r"), Some("send"), 0));
        assert!(retrying.value().is_none() && retrying.rejection().is_none());
        let error = *retrying.error().unwrap();
        seen.push((retrying.attempt(), retrying.delay(), retrying.kind(), error, time.now() - start));
    });
    assert_eq!(time.block_on(pipeline.call(operation)).unwrap(), 200);
    let status = ScriptedService::new("503", &Clock::manual().0).unwrap();
    let status = time.block_on(status.call()).unwrap_err();
    assert_eq!(
        seen,
        [
            (1, MS(100), Some(FailureKind::Overloaded), status, MS(10)),
            (2, MS(200), Some(FailureKind::Other), ScriptedError::Reset, MS(110)),
        ]
    );
}

// Guarantee: retry 9.
#[test]
fn a_hook_runs_once_for_each_retry_and_not_after_the_last_attempt() {
    for (script, config, hooked) in [
        ("ok", plain(), 0),
        ("503", plain(), 2),
        ("503", plain().max_attempts(1), 0),
        ("404", plain(), 0),
        ("503", plain().idempotent(false), 0),
        ("503 retry-after 61s", plain(), 0),
        ("503, ok", plain(), 1),
    ] {
        let (service, retry, _, time) = world(script, config);
        let mut events = retry.events();
        let pipeline = Pipeline::new().then(retry).classify(ScriptedService::classify);
        let mut seen = 0;
        let _ = time.block_on(pipeline.call(on_retry(|| service.call(), |_| seen += 1)));
        let told = std::iter::from_fn(|| events.try_recv().unwrap());
        assert_eq!((seen, told.filter(|e| matches!(e.what, RetryEvent::Retrying { .. })).count()), (hooked, hooked));
    }
}

#[test]
fn a_hook_sees_the_hint_and_the_delay_that_follows_it() {
    let (service, retry, _, time) = world("503 retry-after 2s, ok", plain());
    let pipeline = Pipeline::new().then(retry).classify(ScriptedService::classify);
    let mut seen = None;
    let operation = on_retry(|| service.call(), |it| seen = Some((it.verdict().hint(), it.delay())));
    time.block_on(pipeline.call(operation)).unwrap();
    assert_eq!(seen, Some((Hint::RetryAfter(Duration::from_secs(2)), Duration::from_secs(2))));
}

/// Judges every value below 400 a success.
fn by_status(result: &Result<u16, String>) -> Verdict {
    match result {
        Ok(status) if *status < 400 => Verdict::success(),
        _ => Verdict::failure(FailureKind::Server),
    }
}

#[test]
fn a_hook_sees_the_value_that_was_judged_a_failure() {
    let (_, retry, _, time) = world("ok", plain());
    let log = Log::default();
    let pipeline = Pipeline::new().then(retry).classify(by_status);
    let mut answers = vec![Ok(200), Err("lost".to_owned()), Ok(500)];
    let operation = on_retry(|| ready(answers.pop().unwrap()), |it| log.note("hook", it));
    assert_eq!(time.block_on(pipeline.call(operation)).unwrap(), 200);
    assert_eq!(log.take(), ["hook 1 100ms 500", "hook 2 200ms \"lost\""]);
    let texts = |it: &Retrying<'_, u16, String>| log.0.lock().unwrap().push(it.to_string());
    let mut answers = vec![Ok(200), Err("lost".to_owned()), Ok(500)];
    time.block_on(pipeline.call(on_retry(|| ready(answers.pop().unwrap()), texts))).unwrap();
    assert_eq!(
        log.take(),
        [
            "attempt 1 failed: the value was judged a failure (server); the next one starts in 100ms",
            "attempt 2 failed: lost; the next one starts in 200ms",
        ]
    );
}

#[test]
fn a_hook_sees_rejections_and_time_outs() {
    let (service, retry, clock, time) = world("hang, ok", plain().retry_rejections(true));
    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap();
    breaker.force_open(MS(50));
    let limit = Timeout::builder(MS(30)).name("attempt").clock(&clock).build();
    let pipeline = Pipeline::new().then(retry.clone()).then(breaker).then(limit);
    let (log, mut events) = (Log::default(), retry.events());
    let operation = on_retry(|| service.call(), |it| log.note("hook", it));
    time.block_on(pipeline.call(operation)).unwrap();
    assert_eq!(log.take(), ["hook 1 100ms circuit_open", "hook 2 200ms timed out after 30ms (`attempt`)"]);
    // The events name the same causes.
    let causes = std::iter::from_fn(|| events.try_recv().unwrap()).filter_map(|event| match event.what {
        RetryEvent::Retrying { cause, .. } => Some((cause.kind(), cause.to_string())),
        _ => None,
    });
    let causes: Vec<_> = causes.collect();
    assert!(causes[0].1.starts_with("rejected by the circuit breaker: open"), "{causes:?}");
    let timed_out = (Some(FailureKind::Timeout), "timed out after 30ms (`attempt`)".to_owned());
    assert_eq!((causes[0].0, &causes[1]), (None, &timed_out));
}

#[test]
fn an_event_says_that_a_policy_inside_the_operation_rejected_the_call() {
    let (_, retry, _, time) = world("ok", plain());
    let mut events = retry.events();
    let refused = |_: &Result<(), ()>| Verdict::refused().with_retry_after(MS(70));
    let pipeline = Pipeline::new().then(retry).classify(refused);
    time.block_on(pipeline.call(|| ready(Err(())))).unwrap_err();
    let RetryEvent::GaveUp { cause: Cause::Rejected(rejected), .. } = events.try_recv().unwrap().unwrap().what else {
        panic!("not a rejection")
    };
    assert_eq!((rejected.by(), rejected.retry_after()), (PolicyKind::Custom("operation"), Some(MS(70))));
    assert!(matches!(rejected.reason(), Reason::Custom(_)));
}

// Guarantee: retry 9.
#[test]
fn the_hook_of_a_pipeline_sees_all_its_calls_after_the_hook_of_the_call() {
    let (service, _, clock, time) = world("503, ok, 503, ok, 503, ok, 503, ok", plain());
    let log = Log::default();
    let hook = {
        let log = log.clone();
        move |it: &Retrying<'_, u16, ScriptedError>| log.note("pipeline", it)
    };
    let retry = || Retry::builder(plain()).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(retry()).classify(ScriptedService::classify).on_retry(hook);
    time.block_on(pipeline.call(on_retry(|| service.call(), |it| log.note("call", it)))).unwrap();
    let error = "Status { status: 503, retry_after: None }";
    let line = |by| format!("{by} 1 100ms {error}");
    assert_eq!(log.take(), [line("call"), line("pipeline")]);
    let answer = time.block_on(pipeline.call_or_marked(|| service.call(), |_| ready(Ok(1)))).unwrap();
    assert!(!answer.is_degraded());
    assert_eq!(log.take(), [line("pipeline")]);
    let boxed: BoxedPipeline<u16, ScriptedError> = pipeline.boxed();
    time.block_on(boxed.call(on_retry(|| service.call(), |it| log.note("call", it)))).unwrap();
    assert_eq!(log.take(), [line("call"), line("pipeline")]);
    time.block_on(boxed.call_or(|| service.call(), |_| ready(Ok(1)))).unwrap();
    assert_eq!(log.take(), [line("pipeline")]);
}

#[test]
fn the_hooks_of_a_standard_stack_see_its_retries() {
    let (service, _, clock, time) = world("503, 503, ok, 503, ok", plain());
    let log = Log::default();
    let config = StandardConfig::default().retry(plain()).timeout(None).attempt_timeout(None);
    let stack = Standard::builder(config).name("mail").clock(&clock).build().unwrap();
    let hooked = log.clone();
    let pipeline =
        stack.into_pipeline().classify(ScriptedService::classify).on_retry(move |it| hooked.note("pipeline", it));
    time.block_on(pipeline.call(on_retry(|| service.call(), |it| assert_eq!(it.retry(), Some("mail.retry"))))).unwrap();
    let error = "Status { status: 503, retry_after: None }";
    assert_eq!(log.take(), [format!("pipeline 1 100ms {error}"), format!("pipeline 2 200ms {error}")]);
    let boxed: BoxedPipeline<u16, ScriptedError> = pipeline.boxed();
    time.block_on(boxed.call(|| service.call())).unwrap();
    assert_eq!(log.take().len(), 1);
}

#[test]
fn nested_pipelines_call_the_hook_of_the_pipeline_that_retries() {
    // A retry inside an attempt of another one leaves the attempts to the outer one, unless it is told not to.
    for (nested, outer_lines, inner_lines) in [(false, 1, 0), (true, 0, 1)] {
        let (service, outer, clock, time) = world("503, ok", plain());
        let inner = Retry::builder(plain().retry_nested(nested)).clock(&clock).build().unwrap();
        let (log, inner_log) = (Log::default(), Log::default());
        let note = |log: &Log| {
            let log = log.clone();
            move |it: &Retrying<'_, u16, ScriptedError>| log.note("inner", it)
        };
        let inner = Pipeline::new().then(inner).classify(ScriptedService::classify).on_retry(note(&inner_log));
        let outer = Pipeline::new().then(outer).classify(steadfast::outcome::ByCallError);
        let outer = outer.on_retry(|it: &Retrying<'_, u16, steadfast::CallError<ScriptedError>>| log.note("outer", it));
        let answer = time.block_on(outer.call_with(|attempt| inner.call_within(attempt, || service.call())));
        assert_eq!((answer.unwrap(), log.take().len(), inner_log.take().len()), (200, outer_lines, inner_lines));
    }
}

#[test]
fn a_retry_alone_and_a_traced_call_run_the_hook() {
    let (_, retry, _, time) = world("ok", plain());
    let log = Log::default();
    let call = || {
        let mut answers = vec![Ok(1), Err("b"), Err("a")];
        time.block_on(retry.call(on_retry(move || ready(answers.pop().unwrap()), |it| log.note("hook", it)))).unwrap();
        assert_eq!(log.take(), ["hook 1 100ms \"a\"", "hook 2 200ms \"b\""]);
    };
    call();
    tracing::subscriber::with_default(tracing_subscriber::registry(), call);
}

#[test]
fn marks_pass_the_hook_and_the_last_failure_on() {
    static READ: OperationName = OperationName::new("read");
    let (_, retry, _, time) = world("ok", plain().idempotent(false));
    let (mut hooked, mut last) = (0, Vec::new());
    let ask = with_last_failure(|_, before: Option<LastFailure<'_, u8>>| {
        last.push(before.and_then(|it| it.error().copied()));
        ready(if last.len() < 3 { Err(last.len() as u8) } else { Ok(()) })
    });
    let ask = idempotent(with_priority(steadfast::Priority::High, named(&READ, on_retry(ask, |_| hooked += 1))));
    time.block_on(retry.call(on_retry(ask, |it| assert_eq!(it.operation(), Some("read"))))).unwrap();
    assert_eq!((hooked, last), (2, vec![None, Some(1), Some(2)]));
}

#[test]
fn an_operation_of_a_users_own_sees_its_retries() {
    struct Own(Vec<u32>);
    impl Operation for &mut Own {
        type Output = ();
        type Error = u32;

        async fn run(&mut self, _: CallContext<'_>) -> Result<(), u32> {
            Err(self.0.len() as u32)
        }

        fn on_retry(&mut self, retrying: &Retrying<'_, (), u32>) {
            self.0.push(*retrying.error().unwrap());
        }
    }
    let (_, retry, _, time) = world("ok", plain());
    let mut own = Own(vec![]);
    assert_eq!(time.block_on(retry.call(&mut own)).unwrap_err().into_operation(), Ok(2));
    assert_eq!(own.0, [0, 1]);
}

// Guarantee: retry 9.
#[test]
fn a_hook_that_panics_ends_its_call_and_returns_all_permits() {
    let (service, retry, clock, time) = world("503", plain());
    let places = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(2)).clock(&clock).build().unwrap();
    let inside = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(2)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(places.clone()).then(retry).then(inside.clone());
    let pipeline = pipeline.classify(ScriptedService::classify);
    for by_call in [true, false] {
        let hooked =
            pipeline.clone().on_retry(move |_: &Retrying<'_, u16, ScriptedError>| assert!(by_call, "pipeline"));
        let operation = on_retry(|| service.call(), |_| assert!(!by_call, "call"));
        let call = catch_unwind(AssertUnwindSafe(|| time.block_on(hooked.call(operation))));
        let text = call.unwrap_err().downcast_ref::<&str>().map(|text| (*text).to_owned());
        assert_eq!(text.as_deref(), Some(if by_call { "call" } else { "pipeline" }));
        assert_eq!((places.available(), inside.available(), service.running()), (2, 2, 0));
    }
}

#[test]
fn a_retry_inside_a_hedge_calls_the_hook_with_the_number_of_the_hedge() {
    let (_, retry, clock, time) = world("ok", plain().retry_nested(true));
    let hedge = Hedge::builder(HedgeConfig::after(MS(10)).idempotent(true)).clock(&clock).build().unwrap();
    let hooked = Log::default();
    let log = hooked.clone();
    let pipeline = Pipeline::new().then(hedge).then(retry).on_retry(move |it: &Retrying<'_, u32, u32>| {
        log.note(&format!("pipeline, hedge {}:", it.hedge()), it);
    });
    let mut started = 0;
    let (log, seen) = (hooked.clone(), Log::default());
    // Both attempts of the hedge fail once, and succeed when they are repeated.
    let ask = with_last_failure(|attempt: AttemptInfo, last: Option<LastFailure<'_, u32>>| {
        started += 1;
        let (n, clock, last) = (started, clock.clone(), last.and_then(|it| it.error().copied()));
        seen.0.lock().unwrap().push(format!("{} {n} {last:?}", attempt.hedge()));
        async move {
            clock.sleep(MS(30)).await;
            if last.is_some() { Ok(n) } else { Err(n) }
        }
    });
    time.block_on(pipeline.call(on_retry(ask, |it| log.note("call", it)))).unwrap();
    assert_eq!(
        hooked.take(),
        ["call 1 100ms 1", "pipeline, hedge 0: 1 100ms 1", "call 1 100ms 2", "pipeline, hedge 1: 1 100ms 2"]
    );
    assert_eq!(seen.take(), ["0 1 None", "1 2 None", "0 3 Some(1)", "1 4 Some(2)"]);
}

#[test]
fn an_attempt_inside_a_hedge_sees_the_failure_that_a_retry_around_the_hedge_repeats() {
    let (_, retry, clock, time) = world("ok", plain());
    let hedge = Hedge::builder(HedgeConfig::after(MS(10)).idempotent(true)).clock(&clock).build().unwrap();
    let (mut started, seen) = (0, Log::default());
    // Both attempts of the hedge fail, and so does the call until the retry repeats it.
    let ask = with_last_failure(|attempt: AttemptInfo, last: Option<LastFailure<'_, u32>>| {
        started += 1;
        let (n, clock, last) = (started, clock.clone(), last.and_then(|it| it.error().copied()));
        seen.0.lock().unwrap().push(format!("{} {n} {last:?}", attempt.hedge()));
        async move {
            clock.sleep(MS(30)).await;
            if last.is_some() { Ok(n) } else { Err(n) }
        }
    });
    assert_eq!(time.block_on(Pipeline::new().then(retry).then(hedge).call(ask)).unwrap(), 3);
    assert_eq!(seen.take(), ["0 1 None", "1 2 None", "0 3 Some(2)", "1 4 Some(2)"]);
}

// Guarantee: retry 10.
#[test]
fn the_next_attempt_sees_time_outs_rejections_errors_and_judged_values() {
    let (_, retry, clock, time) = world("ok", plain().max_attempts(9).retry_rejections(true));
    let limit = Timeout::builder(MS(30)).clock(&clock).build();
    let pipeline = Pipeline::new().then(retry).then(limit).classify(by_status);
    let mut seen = Vec::new();
    let ask = with_last_failure(|attempt: AttemptInfo, last: Option<LastFailure<'_, String>>| {
        seen.push(last.map(|last| match last.cause() {
            None => format!("{:?}", last.kind()),
            Some(cause) => cause.to_string(),
        }));
        let (n, clock) = (attempt.number(), clock.clone());
        async move {
            match n {
                1 => Err("lost".to_owned()),
                2 => Ok(500),
                3 => {
                    clock.sleep(MS(40)).await;
                    Ok(200)
                }
                4 => Err("lost again".to_owned()),
                _ => Ok(200),
            }
        }
    });
    assert_eq!(time.block_on(pipeline.call(ask)).unwrap(), 200);
    let seen: Vec<_> = seen.iter().map(|it| it.as_deref()).collect();
    assert_eq!(seen, [None, Some("lost"), Some("Some(Server)"), Some("timed out after 30ms"), Some("lost again")]);

    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap();
    breaker.force_open(MS(50));
    let retry = Retry::builder(plain().retry_rejections(true)).clock(&clock).build().unwrap();
    let mut seen = Vec::new();
    let ask = with_last_failure(|_, last: Option<LastFailure<'_, ()>>| {
        seen.push(last.and_then(|last| Some((last.rejection()?.by(), last.kind()))));
        ready(Ok(()))
    });
    time.block_on(Pipeline::new().then(retry).then(breaker).call(ask)).unwrap();
    assert_eq!(seen, [Some((PolicyKind::CircuitBreaker, None))]);
}

#[test]
fn the_final_error_still_has_the_first_and_the_last_cause() {
    let (_, retry, _, time) = world("ok", plain());
    let mut n = 0;
    let ask = with_last_failure(|_, _| {
        n += 1;
        ready(Err::<(), _>(n))
    });
    let error = time.block_on(retry.call(ask)).unwrap_err();
    assert_eq!(error.history().unwrap().first, Some(Cause::Operation(1)));
    assert_eq!(error.into_operation(), Ok(3));
}
