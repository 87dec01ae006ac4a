//! Fallback: its three forms, its mark, its conditions and its time.
use std::{
    future::{pending, ready},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use proptest::prelude::*;
use steadfast::{
    BoxedPipeline, CallError, Cause, FailureKind, KindSet, Outcome, Pipeline, PolicyKind, Verdict,
    call::{Attempt, AttemptInfo, CallContext, Policy, WithAttempt},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State, TripConfig},
    fallback::{Answer, Fallback, FallbackConfig, FallbackEvent},
    hedge::{Hedge, HedgeConfig},
    observe::Subscription,
    retry::{Retry, RetryConfig},
    testing::{ManualClock, ScriptedError, ScriptedService, drop_at_every_await},
    throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter},
    time::Clock,
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn world(script: &str, config: FallbackConfig) -> (Fallback, ScriptedService, Clock, ManualClock) {
    let (clock, time) = Clock::manual();
    let service = ScriptedService::new(script, &clock).unwrap();
    (Fallback::builder(config).name("f").clock(&clock).build().unwrap(), service, clock, time)
}

fn told(events: &mut Subscription<FallbackEvent>) -> Vec<FallbackEvent> {
    std::iter::from_fn(|| events.try_recv().unwrap()).map(|event| event.what).collect()
}

// Guarantee: fallback 1.
#[test]
fn the_fallback_can_be_a_value() {
    let (fallback, service, _, time) = world("503, ok", FallbackConfig::default());
    let mut events = fallback.events();
    let pipeline = Pipeline::new().then(fallback).classify(ScriptedService::classify);
    let answer = time.block_on(pipeline.call_or_marked(|| service.call(), |_| ready(Ok(7)))).unwrap();
    assert!(answer.is_degraded());
    assert_eq!(*answer.value(), 7);
    assert_eq!(
        (answer.error().unwrap().verdict().kind(), answer.error().unwrap().attempts()),
        (Some(FailureKind::Overloaded), 1)
    );
    let after = Cause::Operation(FailureKind::Overloaded);
    assert_eq!(told(&mut events), [FallbackEvent::FellBack { after }]);
    // A success is not replaced, its fallback does not run, and there is no event.
    let answer =
        time.block_on(pipeline.call_or_marked(|| service.call(), |_| -> std::future::Ready<_> { panic!("asked") }));
    assert!(matches!(answer, Ok(Answer::Own(200))));
    assert_eq!((answer.unwrap().into_value(), told(&mut events)), (200, vec![]));
}

// Guarantee: fallback 1.
#[test]
fn the_fallback_can_be_a_function_of_the_error() {
    let (fallback, service, _, time) = world("503 retry-after 3s", FallbackConfig::default());
    let pipeline = Pipeline::new().then(fallback).classify(ScriptedService::classify);
    let answer = time.block_on(pipeline.call_or_marked(
        || service.call(),
        |failed| {
            assert!(failed.value().is_none() && failed.rejection().is_none() && failed.error().is_some());
            let wait = failed.verdict().hint().retry_after().unwrap();
            let (kind, attempts) = (failed.kind(), failed.attempts());
            async move {
                assert_eq!((kind, attempts), (Some(FailureKind::Overloaded), 1));
                Ok(wait.as_secs() as u16)
            }
        },
    ));
    assert_eq!(answer.unwrap().into_value(), 3);
}

// Guarantee: fallback 1, 4.
#[test]
fn the_fallback_can_be_another_operation_within_the_remaining_time() {
    let (fallback, service, clock, time) = world("503 in 100ms", FallbackConfig::default().timeout(MS(300)));
    let replica = ScriptedService::new("204 in 100ms", &clock).unwrap();
    let to_replica = Pipeline::new();
    let pipeline = Pipeline::new().then(fallback).classify(ScriptedService::classify);
    let start = time.now();
    let other = |failed: steadfast::fallback::Failed<'_, u16, ScriptedError>| {
        let within = failed.within();
        assert_eq!(within.deadline(), Some(start + MS(400)));
        let (to_replica, replica) = (&to_replica, &replica);
        async move { Ok(to_replica.call_within(within, || replica.call()).await.unwrap()) }
    };
    let answer = time.block_on(pipeline.call_or_marked(|| service.call(), other)).unwrap();
    assert_eq!((answer.is_degraded(), answer.into_value(), time.now() - start), (true, 204, MS(200)));
}

// Guarantee: fallback 2.
#[test]
fn a_rejection_triggers_the_fallback_only_if_configured() {
    for (on, degraded) in [(true, true), (false, false)] {
        let (fallback, service, clock, time) = world("ok", FallbackConfig::default().on_rejections(on));
        let mut events = fallback.events();
        let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default()).clock(&clock).build().unwrap();
        breaker.isolate();
        let pipeline = Pipeline::new().then(fallback).then(breaker);
        let answer = time.block_on(pipeline.call_or_marked(
            || service.call(),
            |failed| {
                assert_eq!(failed.rejection().unwrap().by(), PolicyKind::CircuitBreaker);
                ready(Ok(7))
            },
        ));
        assert_eq!(answer.is_ok_and(|answer| answer.is_degraded()), degraded);
        let told = told(&mut events);
        let by = |after: &Cause<FailureKind>| matches!(after, Cause::Rejected(rejected) if rejected.by() == PolicyKind::CircuitBreaker);
        assert_eq!(matches!(&told[..], [FallbackEvent::FellBack { after }] if by(after)), degraded);
        assert_eq!(service.calls(), 0);
    }
}

// Guarantee: fallback 2.
#[test]
fn the_kinds_of_failure_are_configurable() {
    let only = KindSet::of(&[FailureKind::Client]);
    for (config, script, degraded) in [
        (FallbackConfig::default(), "404", false),
        (FallbackConfig::default(), "429", true),
        (FallbackConfig::default().fall_back_on(only), "404", true),
        (FallbackConfig::default().fall_back_on(only), "503", false),
    ] {
        let (fallback, service, _, time) = world(script, config);
        let pipeline = Pipeline::new().then(fallback).classify(ScriptedService::classify);
        let answer = time.block_on(pipeline.call_or_marked(|| service.call(), |_| ready(Ok(7))));
        assert_eq!(answer.is_ok(), degraded, "{config:?} {script}");
    }
    // An ignored outcome is not a failure.
    let (fallback, service, _, time) = world("503", FallbackConfig::default());
    let pipeline = Pipeline::new().then(fallback).classify(|_: &Result<u16, ScriptedError>| Verdict::ignore());
    assert!(time.block_on(pipeline.call_or(|| service.call(), |_| ready(Ok(7)))).is_err());
}

// Guarantee: fallback 3.
#[test]
fn a_failed_fallback_keeps_the_error_of_the_call() {
    let (fallback, service, clock, time) = world("503 retry-after 2s", FallbackConfig::default());
    let mut events = fallback.events();
    let replica = ScriptedService::new("reset", &clock).unwrap();
    let pipeline = Pipeline::new().then(fallback).classify(ScriptedService::classify);
    let error = time.block_on(pipeline.call_or(|| service.call(), |_| replica.call())).unwrap_err();
    assert_eq!((error.verdict().kind(), error.retry_after()), (Some(FailureKind::Overloaded), Some(MS(2000))));
    assert!(matches!(error.cause(), Cause::Operation(_)));
    assert!(error.to_string().contains("; the fallback also failed: "), "{error}");
    let after = Cause::Operation(FailureKind::Overloaded);
    assert_eq!(told(&mut events), [FallbackEvent::Failed { after, kind: Some(FailureKind::Other) }]);
    let mapped: CallError<String> = error.map_operation(|e| e.to_string());
    assert!(matches!(mapped.fallback(), Some(Cause::Operation(text)) if !text.is_empty()));
    // The same with the history of a retry.
    let retry = Retry::builder(RetryConfig::default().idempotent(true).max_attempts(2)).clock(&clock).build().unwrap();
    let fallback = Fallback::builder(FallbackConfig::default()).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(fallback).then(retry).classify(ScriptedService::classify);
    let error = time.block_on(pipeline.call_or(|| service.call(), |_| replica.call())).unwrap_err();
    assert_eq!((error.attempts(), error.history().unwrap().first_kind), (2, Some(FailureKind::Overloaded)));
    assert!(error.fallback().is_some());
    // A rejection stays a rejection.
    let limiter = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(1).queue(0).max_wait(MS(0)))
        .clock(&clock)
        .build()
        .unwrap();
    let _taken = limiter.try_acquire().unwrap();
    let fallback = Fallback::builder(FallbackConfig::default()).clock(&clock).build().unwrap();
    let error =
        time.block_on(Pipeline::new().then(fallback).then(&limiter).call_or(|| service.call(), |_| replica.call()));
    let error = error.unwrap_err();
    assert!(error.is_rejected() && error.fallback().is_some() && error.history().is_none());
}

// Guarantee: fallback 4.
#[test]
fn the_time_of_the_fallback_is_bounded_by_its_limit_and_by_the_deadline() {
    for (limit, left, given) in [(MS(50), 5000, 50), (MS(50), 30, 30), (Duration::MAX, 40, 40)] {
        let (fallback, service, clock, time) = world("503", FallbackConfig::default().timeout(limit));
        let mut events = fallback.events();
        let held = Arc::new(());
        let pipeline = Pipeline::new().then(fallback).classify(ScriptedService::classify);
        let start = time.now();
        let outer = AttemptInfo::with_deadline(clock.now() + MS(left));
        let hangs = |_: steadfast::fallback::Failed<'_, u16, ScriptedError>| {
            let held = held.clone();
            async move {
                let _held = held;
                pending().await
            }
        };
        let error = time.block_on(pipeline.call_within_or(outer, || service.call(), hangs)).unwrap_err();
        assert_eq!((time.now() - start, Arc::strong_count(&held)), (MS(given), 1));
        assert_eq!(error.verdict().kind(), Some(FailureKind::Overloaded), "the first cause");
        assert!(
            matches!(error.fallback(), Some(Cause::TimedOut(t)) if t.after == MS(given) && t.name.as_ref().is_some_and(|name| name.as_str() == "f"))
        );
        let after = Cause::Operation(FailureKind::Overloaded);
        assert_eq!(told(&mut events), [FallbackEvent::TimedOut { after, given: MS(given) }]);
    }
    // Without any time left the fallback is polled once: a ready value is used.
    let (fallback, service, clock, time) = world("hang", FallbackConfig::default());
    let mut events = fallback.events();
    let pipeline = Pipeline::new().then(fallback).then(Timeout::builder(Duration::MAX).clock(&clock).build());
    let outer = AttemptInfo::with_deadline(clock.now() + MS(10));
    let answer = time.block_on(pipeline.call_within_or_marked(outer, || service.call(), |_| ready(Ok(7)))).unwrap();
    assert_eq!((answer.error().unwrap().is_timed_out(), answer.into_value()), (true, 7));
    // The event names the time-out.
    assert!(
        matches!(&told(&mut events)[..], [FallbackEvent::FellBack { after: Cause::TimedOut(t) }] if t.after == MS(10))
    );
}

// Guarantee: fallback 1.
#[test]
fn a_value_that_was_judged_a_failure_is_replaced_but_not_lost() {
    let judge = |result: &Result<u16, ()>| match result {
        Ok(status) if *status >= 500 => Verdict::failure(FailureKind::Server),
        Ok(_) => Verdict::success(),
        Err(()) => Verdict::failure(FailureKind::Connect),
    };
    let (fallback, _, _, time) = world("ok", FallbackConfig::default());
    let pipeline = Pipeline::new().then(fallback).classify(judge);
    let answer = time.block_on(pipeline.call_or_marked(
        || ready(Ok(500)),
        |failed| {
            assert_eq!((failed.value(), failed.cause().is_none()), (Some(&500), true));
            ready(Ok(200))
        },
    ));
    let Ok(Answer::Degraded { value: 200, instead_of }) = answer else { panic!("{answer:?}") };
    assert_eq!(instead_of.unwrap(), 500);
    // A fallback value that is judged a failure has failed: the first value stays.
    let answer = time.block_on(pipeline.call_or_marked(|| ready(Ok(500)), |_| ready(Ok(503))));
    assert!(matches!(answer, Ok(Answer::Own(500))), "{answer:?}");
}

// Guarantee: fallback 2.
#[test]
fn an_outermost_fallback_replaces_time_outs_and_retried_failures() {
    let (fallback, service, clock, time) = world("503 in 1s, hang", FallbackConfig::default());
    let pipeline = Pipeline::new()
        .then(fallback)
        .then(Timeout::builder(MS(3000)).clock(&clock).build())
        .then(Retry::builder(RetryConfig::default().idempotent(true)).clock(&clock).build().unwrap())
        .classify(ScriptedService::classify);
    let answer = time.block_on(pipeline.call_or_marked(|| service.call(), |_| ready(Ok(7)))).unwrap();
    let error = answer.error().unwrap();
    assert_eq!((error.is_timed_out(), error.attempts(), error.history().is_some()), (true, 2, true));
    assert_eq!((service.running(), answer.into_value()), (0, 7));
}

// Guarantee: fallback 5.
#[test]
fn without_the_policy_a_call_falls_back_at_its_end() {
    let (fallback, service, _, time) =
        world("503", FallbackConfig::default().fall_back_on(KindSet::of(&[FailureKind::Connect])));
    let bare = Pipeline::new().classify(ScriptedService::classify);
    assert!(time.block_on(bare.call_or_marked(|| service.call(), |_| ready(Ok(7)))).unwrap().is_degraded());
    let pipeline = bare.clone().then(Some(fallback.clone()));
    assert!(time.block_on(pipeline.call_or(|| service.call(), |_| ready(Ok(7)))).is_err());
    let absent = bare.clone().then(None::<Fallback>);
    assert!(time.block_on(absent.call_or_marked(|| service.call(), |_| ready(Ok(7)))).unwrap().is_degraded());
    let boxed: BoxedPipeline<u16, ScriptedError> = pipeline.boxed();
    assert!(time.block_on(boxed.call_or(|| service.call(), |_| ready(Ok(7)))).is_err());
    let boxed = bare.boxed();
    assert!(time.block_on(boxed.call_or_marked(|| service.call(), |_| ready(Ok(7)))).unwrap().is_degraded());
    // A call without a fallback ignores the policy. An error of kind `client` is not replaced at
    // the end either.
    let (clock, _) = Clock::manual();
    let client = ScriptedService::new("404", &clock).unwrap();
    assert!(time.block_on(Pipeline::new().then(fallback).call(|| service.call())).is_err());
    let bare = Pipeline::new().classify(ScriptedService::classify);
    assert!(time.block_on(bare.call_or(|| client.call(), |_| ready(Ok(7)))).is_err());
}

// Guarantee: fallback 1.
#[test]
fn a_fallback_policy_can_be_called_without_a_pipeline() {
    let (fallback, service, _, time) = world("reset", FallbackConfig::default());
    let operation = WithAttempt(|attempt: AttemptInfo| {
        assert_eq!(attempt.number(), 1);
        service.call()
    });
    assert!(time.block_on(fallback.call_marked(operation, |_| ready(Ok(7)))).unwrap().is_degraded());
}

// Guarantee: call 3.
#[test]
fn explain_warns_about_each_wrong_place_of_a_fallback() {
    let (fallback, service, clock, time) = world("503", FallbackConfig::default());
    let config = CircuitBreakerConfig::default().trip(TripConfig::default().consecutive_failures(1));
    let breaker = CircuitBreaker::builder(config).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(breaker.clone()).then(fallback.clone());
    time.block_on(pipeline.call_or(|| service.call(), |_| ready(Ok(7)))).unwrap();
    assert_eq!(breaker.state(), State::Closed);
    let warns = |explained: Vec<String>, of: &str| assert!(explained.iter().any(|w| w.contains(of)), "{explained:?}");
    warns(pipeline.explain().warnings(), "never sees the failures");
    let hedge = Hedge::new(HedgeConfig::default()).unwrap();
    warns(Pipeline::new().then(hedge).then(fallback.clone()).explain().warnings(), "a hedge, where no fallback runs");
    let retry = Retry::new(RetryConfig::default().idempotent(true)).unwrap();
    warns(Pipeline::new().then(retry).then(fallback.clone()).explain().warnings(), "it repeats nothing");
    warns(Pipeline::new().then(Timeout::new(MS(1))).then(fallback.clone()).explain().warnings(), "no fallback runs");
    warns(Pipeline::new().then(fallback.clone()).then(fallback.clone()).explain().warnings(), "one fallback");
    let limiter = ConcurrencyLimiter::new(ConcurrencyLimitConfig::of(1)).unwrap();
    warns(Pipeline::new().then(limiter).then(fallback.clone()).explain().warnings(), "whose rejections it never sees");
    assert_eq!(Pipeline::new().then(fallback.clone()).explain().warnings(), Vec::<String>::new());
    let text = Pipeline::new().then(fallback).explain().to_string();
    assert!(text.contains("fallback `f`: a fallback after timeout, connect, throttled, overloaded, server, other and rejections, within 1s"), "{text}");
}

// Guarantee: fallback 2.
#[test]
fn a_fallback_inside_a_hedge_lets_failures_pass() {
    let (fallback, service, clock, time) = world("503", FallbackConfig::default());
    let hedge = Hedge::builder(HedgeConfig::after(MS(10)).idempotent(true)).clock(&clock).build().unwrap();
    let error = time.block_on(Pipeline::new().then(hedge).then(fallback).call_or(|| service.call(), |_| ready(Ok(7))));
    assert_eq!((error.unwrap_err().attempts(), service.calls()), (2, 2));
}

// Guarantee: fallback 2.
/// A custom policy outside may repeat a call that fell back: a later success is not marked.
#[test]
fn a_call_repeated_after_its_fallback_is_not_degraded() {
    struct Twice;
    impl Policy for Twice {
        async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
            inner.attempt(cx).await;
            inner.attempt(cx).await
        }
    }
    let (fallback, service, _, time) = world("503, ok, 503 x2", FallbackConfig::default());
    let pipeline = Pipeline::new().then(Twice).then(fallback);
    let answer = time.block_on(pipeline.call_or_marked(|| service.call(), |_| ready(Ok(7)))).unwrap();
    assert!(matches!(answer, Answer::Own(200)), "{answer:?}");
    // The fallback runs once per call: the second failure stands.
    assert!(time.block_on(pipeline.call_or(|| service.call(), |_| ready(Ok(7)))).is_err());
}

#[test]
fn reconfigure_applies_to_clones_and_rejects_invalid_settings() {
    let (fallback, service, _, time) = world("503", FallbackConfig::default());
    let clone = fallback.clone();
    let pipeline = Pipeline::new().then(fallback).classify(ScriptedService::classify);
    let degraded = || time.block_on(pipeline.call_or(|| service.call(), |_| ready(Ok(7)))).is_ok();
    assert!(degraded());
    let never = FallbackConfig::default().fall_back_on(KindSet::NONE).on_rejections(false).timeout(MS(5));
    let refusal = clone.reconfigure(never).unwrap_err();
    assert_eq!((refusal.field(), clone.config()), ("fall_back_on", FallbackConfig::default()));
    assert_eq!(clone.reconfigure(FallbackConfig::default().timeout(Duration::ZERO)).unwrap_err().field(), "timeout");
    assert!(degraded());
    clone.reconfigure(FallbackConfig::default().fall_back_on(KindSet::NONE)).unwrap();
    assert!(!degraded());
    clone.reconfigure(FallbackConfig::default().timeout(MS(5))).unwrap();
    assert!(degraded());
    let start = time.now();
    let hung = pipeline.call_or(|| service.call(), |_| pending());
    assert!(time.block_on(hung).is_err());
    assert_eq!(time.now() - start, MS(5));
}

// Guarantee: fallback 4.
#[test]
fn a_running_fallback_keeps_its_time_when_the_settings_change() {
    let (fallback, service, clock, time) = world("503", FallbackConfig::default().timeout(MS(100)));
    let pipeline = Pipeline::new().then(fallback.clone());
    let start = time.now();
    let change = async {
        clock.sleep(MS(50)).await;
        fallback.reconfigure(FallbackConfig::default().timeout(MS(5000))).unwrap();
    };
    let hangs = pipeline.call_or(|| service.call(), |_| pending());
    let (ended, ()) = time.block_on(futures::future::join(hangs, change));
    assert!(ended.unwrap_err().fallback().is_some());
    assert_eq!(time.now() - start, MS(100), "it keeps its time");
    assert!(time.block_on(pipeline.call_or(|| service.call(), |_| pending())).is_err());
    assert_eq!(time.now() - start, MS(5100));
}

#[test]
fn a_fallback_configuration_survives_a_round_trip_through_a_document() {
    for config in [
        FallbackConfig::default(),
        FallbackConfig::default().timeout(Duration::MAX),
        FallbackConfig::default().fall_back_on(KindSet::NONE).timeout(MS(1)),
    ] {
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<FallbackConfig>(&text).unwrap(), config, "{text}");
    }
    assert!(toml::from_str::<FallbackConfig>("time_out = \"1s\"").unwrap_err().to_string().contains("time_out"));
}

// Guarantee: call 5.
#[test]
fn a_dropped_call_drops_its_fallback_and_returns_all_permits() {
    let (fallback, service, clock, time) = world("503 in 10ms", FallbackConfig::default());
    let replica = ScriptedService::new("ok in 10ms", &clock).unwrap();
    let limiter = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(1).queue(0).max_wait(MS(0)))
        .clock(&clock)
        .build()
        .unwrap();
    let pipeline = Pipeline::new().then(fallback).then(limiter.clone());
    let polls = drop_at_every_await(
        &time,
        || pipeline.call_or(|| service.call(), |_| replica.call()),
        |_| assert_eq!((service.running(), replica.running(), limiter.available()), (0, 0, 1)),
    );
    assert_eq!(polls, 3);
}

// Guarantee: call 5.
#[test]
fn a_panic_in_the_fallback_unwinds() {
    let (fallback, service, _, time) = world("503", FallbackConfig::default());
    let call = fallback.call(|| service.call(), |_| async { panic!("on purpose") });
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| time.block_on(call))).is_err());
    assert!(time.block_on(fallback.call_marked(|| service.call(), |_| ready(Ok(7)))).unwrap().is_degraded());
}

// Guarantee: call 1.
#[test]
fn a_call_with_a_fallback_can_be_spawned() {
    fn is_send<T: Send>(_: &T) {}
    let (fallback, service, _, _) = world("503", FallbackConfig::default());
    let asked = AtomicUsize::new(0);
    let pipeline = Pipeline::new().then(fallback);
    let call = pipeline.call_or(
        || service.call(),
        |_| {
            asked.fetch_add(1, SeqCst);
            ready(Ok(7))
        },
    );
    is_send(&call);
}

#[derive(Debug, Clone, Copy)]
enum Sub {
    Gives,
    Fails,
    Hangs,
}

proptest! {
    // Guarantee: fallback 1, 2, 3.
    /// The model states each rule in one line.
    #[test]
    fn a_call_with_a_fallback_behaves_as_a_naive_model(
        status in prop::sample::select(vec![200u16, 404, 429, 500, 503]),
        kinds in prop::collection::vec(prop::sample::select(vec![
            FailureKind::Client, FailureKind::Throttled, FailureKind::Server, FailureKind::Overloaded,
        ]), 0..4),
        sub in prop::sample::select(vec![Sub::Gives, Sub::Fails, Sub::Hangs]),
        rejected: bool, on_rejections: bool, boxed: bool,
    ) {
        prop_assume!(on_rejections || !kinds.is_empty());
        let config = FallbackConfig::default().fall_back_on(KindSet::of(&kinds)).on_rejections(on_rejections);
        let (fallback, service, clock, time) = world(&status.to_string(), config);
        let limiter = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(1).queue(0).max_wait(MS(0))).clock(&clock).build().unwrap();
        let _taken = rejected.then(|| limiter.try_acquire().unwrap());
        let pipeline = Pipeline::new().then(fallback).then(limiter.clone()).classify(ScriptedService::classify);
        let instead = |_: steadfast::fallback::Failed<'_, u16, ScriptedError>| {
            let other = ScriptedService::new(match sub { Sub::Gives => "299", Sub::Fails => "500", Sub::Hangs => "hang" }, &clock);
            other.unwrap().call()
        };
        let start = time.now();
        let answer = if boxed {
            time.block_on(pipeline.boxed::<u16, ScriptedError>().call_or_marked(|| service.call(), instead))
        } else {
            time.block_on(pipeline.call_or_marked(|| service.call(), instead))
        };

        let kind = match status { 200 => None, 404 => Some(FailureKind::Client), 429 => Some(FailureKind::Throttled),
            503 => Some(FailureKind::Overloaded), _ => Some(FailureKind::Server) };
        let asked = if rejected { on_rejections } else { kind.is_some_and(|kind| kinds.contains(&kind)) };
        let waited = if asked && matches!(sub, Sub::Hangs) { Duration::from_secs(1) } else { Duration::ZERO };
        prop_assert_eq!(time.now() - start, waited);
        match answer {
            Ok(Answer::Own(value)) => prop_assert!(value == 200 && !rejected),
            Ok(Answer::Degraded { value, instead_of }) => {
                prop_assert!(value == 299 && asked && matches!(sub, Sub::Gives));
                prop_assert_eq!(instead_of.unwrap_err().is_rejected(), rejected);
            }
            Err(error) => {
                prop_assert!(!(asked && matches!(sub, Sub::Gives)) && (rejected || kind.is_some()));
                prop_assert_eq!(error.is_rejected(), rejected);
                prop_assert_eq!(error.fallback().is_some(), asked);
                prop_assert_eq!(error.verdict().kind(), if rejected { None } else { kind });
            }
        }
    }
}
