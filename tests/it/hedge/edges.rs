//! Hedge: settings, hot replacement, warnings, drops, panics.
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use steadfast::{
    Pipeline,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
    hedge::{Hedge, HedgeConfig, HedgeDelay, PercentileConfig},
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    testing::{ScriptedService, drop_at_every_await},
    throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter},
    time::Clock,
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

#[test]
fn an_invalid_hedge_configuration_is_rejected_with_the_field() {
    let refused = |config: HedgeConfig| Hedge::new(config).unwrap_err().field().to_owned();
    let percentile = |p: PercentileConfig| refused(HedgeConfig::default().delay(HedgeDelay::Percentile(p)));
    let p = PercentileConfig::default();
    assert_eq!([0, 11].map(|n| refused(HedgeConfig::default().max_attempts(n))), ["max_attempts"; 2]);
    assert_eq!([0.0, -0.5, 1.5, f64::NAN].map(|share| percentile(p.percentile(share))), ["delay.percentile"; 4]);
    assert_eq!(percentile(p.floor(Duration::ZERO).until_known(MS(1))), "delay.floor");
    assert_eq!(percentile(p.floor(MS(2)).until_known(MS(1))), "delay.until_known");
    assert_eq!(percentile(p.min_samples(9).window(MS(1000))), "delay.min_samples");
    assert_eq!(percentile(p.min_samples(10).window(MS(99))), "delay.window");
    assert_eq!(percentile(p.min_samples(10).window(Duration::from_secs(3601))), "delay.window");
    for good in [
        HedgeConfig::default(),
        HedgeConfig::after(Duration::ZERO).idempotent(true).max_attempts(10),
        HedgeConfig::after(Duration::MAX).idempotent(true).max_attempts(1),
        HedgeConfig::percentile(1.0).idempotent(true),
    ] {
        assert!(Hedge::new(good).is_ok());
    }
}

#[test]
fn a_hedge_configuration_survives_a_round_trip_through_a_document() {
    for config in [
        HedgeConfig::default(),
        HedgeConfig::after(MS(50)).idempotent(true).max_attempts(3),
        HedgeConfig::percentile(0.5).idempotent(true),
    ] {
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<HedgeConfig>(&text).unwrap(), config, "{text}");
    }
    let wrong =
        [("delays = \"1s\"", "delays"), ("delay = 5", "a duration"), ("delay = { percentil = 1 }", "percentil")];
    for (text, word) in wrong {
        let error = toml::from_str::<HedgeConfig>(text).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn reconfigure_applies_to_clones_and_rejects_invalid_settings() {
    let (clock, time) = Clock::manual();
    let service = ScriptedService::new("ok in 60ms", &clock).unwrap();
    let hedge = Hedge::builder(HedgeConfig::after(MS(50)).idempotent(true)).clock(&clock).build().unwrap();
    let clone = hedge.clone();
    let call = || time.block_on(clone.call(|| service.call())).unwrap();
    call();
    assert_eq!(service.calls(), 2);
    // Invalid settings change nothing.
    let bad = HedgeConfig::after(MS(1)).idempotent(true).max_attempts(99);
    assert_eq!(hedge.reconfigure(bad).unwrap_err().field(), "max_attempts");
    assert_eq!(hedge.config(), HedgeConfig::after(MS(50)).idempotent(true));
    // Later valid ones apply, to clones as well.
    hedge.reconfigure(HedgeConfig::after(MS(100)).idempotent(true)).unwrap();
    call();
    assert_eq!(service.calls(), 3);
    hedge.reconfigure(HedgeConfig::after(MS(10)).idempotent(true).max_attempts(1)).unwrap();
    call();
    assert_eq!(service.calls(), 4);
}

#[test]
fn a_waiting_call_keeps_its_delay_and_takes_the_new_bound() {
    let (clock, time) = Clock::manual();
    let service = ScriptedService::new("hang, hang, ok in 5ms", &clock).unwrap();
    let hedge =
        Hedge::builder(HedgeConfig::after(MS(10)).idempotent(true).max_attempts(2)).clock(&clock).build().unwrap();
    let mut call = Box::pin(hedge.call(|| service.call()));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(call.as_mut().poll(&mut cx).is_pending());
    hedge.reconfigure(HedgeConfig::after(MS(1000)).idempotent(true).max_attempts(3)).unwrap();
    let start = time.now();
    time.block_on(call).unwrap();
    assert_eq!((service.calls(), time.now() - start), (3, MS(25)), "its own delay, the new bound");
}

#[test]
fn reconfigure_keeps_recent_latencies_unless_the_window_changes() {
    let (clock, time) = Clock::manual();
    let config = |share, window| {
        let p = PercentileConfig::default()
            .percentile(share)
            .min_samples(10)
            .window(window)
            .floor(MS(1))
            .until_known(MS(500));
        HedgeConfig::default().idempotent(true).delay(HedgeDelay::Percentile(p))
    };
    let minute = Duration::from_secs(60);
    let hedge = Hedge::builder(config(0.5, minute)).clock(&clock).build().unwrap();
    for n in 1..=20 {
        let call = hedge.call(|| async {
            clock.sleep(MS(n * 10)).await;
            Ok::<_, ()>(())
        });
        time.block_on(call).unwrap();
    }
    time.advance(Duration::from_secs(1));
    assert!((MS(100)..MS(115)).contains(&hedge.delay()), "{:?}", hedge.delay());
    hedge.reconfigure(config(0.95, minute)).unwrap();
    assert!((MS(190)..MS(215)).contains(&hedge.delay()), "{:?}", hedge.delay());
    hedge.reconfigure(config(0.95, minute * 2)).unwrap();
    assert_eq!(hedge.delay(), MS(500), "another window begins anew");
}

// Guarantee: call 3.
#[test]
fn explain_warns_about_risky_hedges() {
    let budget = RetryBudget::new(RetryBudgetConfig::default()).unwrap();
    let hedge = |config| Hedge::new(config).unwrap();
    let good = Hedge::builder(HedgeConfig::default().idempotent(true)).budget(&budget).build().unwrap();
    let warns = |explanation: steadfast::call::Explanation, word: &str| {
        let warnings = explanation.warnings();
        assert!(warnings.iter().any(|w| w.contains(word)), "{word}: {warnings:?}");
    };
    let of = |config| Pipeline::new().then(hedge(config)).explain();
    warns(of(HedgeConfig::default()), "no budget");
    let unmarked = || async { Ok::<_, ()>(()) };
    warns(Pipeline::new().then(hedge(HedgeConfig::default())).explain_for(&unmarked), "not marked as idempotent");
    warns(of(HedgeConfig::after(Duration::ZERO).idempotent(true)), "2 times the load");
    let retry = Retry::new(RetryConfig::default().idempotent(false)).unwrap();
    warns(Pipeline::new().then(retry).then(good.clone()).explain(), "the retry treats as not idempotent");
    warns(Pipeline::new().then(good.clone()).then(good.clone()).explain(), "inside another hedge");
    let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
    warns(Pipeline::new().then(breaker).then(good.clone()).explain(), "inside a circuit breaker");
    let charge = steadfast::call::not_idempotent(|| async { Ok::<_, ()>(()) });
    let pipeline = Pipeline::new().then(good);
    warns(pipeline.explain_for(&charge), "not marked as idempotent");
    assert_eq!(pipeline.explain_for(&|| async { Ok::<_, ()>(()) }).warnings(), [""; 0]);
    assert!(
        pipeline.explain().to_string().contains("1. hedge: up to 2 attempts at once, each after the time that 95 %")
    );
}

// Guarantee: hedge 4.
#[test]
fn a_hedge_inside_a_hedge_leaves_the_attempts_to_the_outer_one() {
    let (clock, time) = Clock::manual();
    let hedge =
        Hedge::builder(HedgeConfig::after(MS(10)).idempotent(true).max_attempts(2)).clock(&clock).build().unwrap();
    let service = ScriptedService::new("ok in 100ms", &clock).unwrap();
    time.block_on(Pipeline::new().then(hedge.clone()).then(hedge).call(|| service.call())).unwrap();
    assert_eq!(service.calls(), 2);
}

// Guarantee: hedge 3.
#[test]
fn each_hedged_attempt_has_its_own_retries() {
    let (clock, time) = Clock::manual();
    let hedge =
        Hedge::builder(HedgeConfig::after(MS(10)).idempotent(true).max_attempts(2)).clock(&clock).build().unwrap();
    let retry = Retry::builder(RetryConfig::default().idempotent(true).max_attempts(2))
        .clock(&clock)
        .delays(|| [MS(1)].into_iter())
        .build()
        .unwrap();
    let service = ScriptedService::new("503 in 20ms, 503 in 30ms, 503 in 40ms, 503 in 50ms", &clock).unwrap();
    let error = time.block_on(Pipeline::new().then(hedge).then(retry).call(|| service.call())).unwrap_err();
    assert_eq!((error.attempts(), service.calls()), (4, 4));
    assert!(error.history().is_some_and(|history| history.first.is_some()), "{error}");
}

// Guarantee: hedge 6.
// Guarantee: call 5.
#[test]
fn a_hedge_dropped_at_any_await_returns_all_permits() {
    let (clock, time) = Clock::manual();
    let places = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(3)).clock(&clock).build().unwrap();
    let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default().count_window(1000, 1000))
        .clock(&clock)
        .build()
        .unwrap();
    let service = ScriptedService::new("hang, 503 in 5ms, ok in 30ms", &clock).unwrap();
    let hedge =
        Hedge::builder(HedgeConfig::after(MS(10)).idempotent(true).max_attempts(3)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new()
        .then(hedge.clone())
        .then(places.clone())
        .then(breaker.clone())
        .then(Timeout::builder(MS(100)).clock(&clock).build())
        .classify(ScriptedService::classify);
    let mut ended = 0;
    let polls = drop_at_every_await(
        &time,
        || pipeline.call(|| service.call()),
        |_| {
            assert_eq!((places.available(), places.waiting(), service.running()), (3, 0, 0));
            let counts = breaker.snapshot();
            ended = service.calls() - service.dropped();
            assert_eq!(counts.calls as usize, ended, "what was dropped is not counted");
        },
    );
    assert!(polls >= 3, "{polls}");
    assert!(ended >= 1);
    assert_eq!(time.next_timer(), None, "no timer is left behind");
    let boxed = pipeline.boxed();
    drop_at_every_await(&time, || boxed.call(|| service.call()), |_| assert_eq!(places.available(), 3));
}

// Guarantee: call 5.
#[test]
fn a_panic_in_any_attempt_unwinds_and_returns_all_permits() {
    for script in ["panic in 5ms", "hang, panic in 5ms", "503, panic"] {
        let (clock, time) = Clock::manual();
        let places = ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(3)).clock(&clock).build().unwrap();
        let service = ScriptedService::new(script, &clock).unwrap();
        let hedge = Hedge::builder(HedgeConfig::after(MS(10)).idempotent(true)).clock(&clock).build().unwrap();
        let pipeline = Pipeline::new().then(hedge).then(places.clone());
        let panicked = catch_unwind(AssertUnwindSafe(|| time.block_on(pipeline.call(|| service.call()))));
        assert!(panicked.is_err(), "{script}");
        assert_eq!((places.available(), service.running()), (3, 0), "{script}");
    }
}

// Guarantee: call 1.
#[test]
fn hedged_calls_can_be_spawned_and_can_borrow() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    let (clock, time) = Clock::manual();
    let hedge = Hedge::builder(HedgeConfig::after(MS(10)).idempotent(true)).clock(&clock).build().unwrap();
    let pipeline = Pipeline::new().then(hedge);
    let name = String::from("borrowed");
    let call = is_send(pipeline.call(|| async { Ok::<_, ()>(name.len()) }));
    assert_eq!(time.block_on(call).unwrap(), 8);
    let pipeline = std::sync::Arc::new(pipeline);
    let spawned = is_send(async move { pipeline.call(|| async { Ok::<_, ()>(1) }).await });
    assert_eq!(time.block_on(spawned).unwrap(), 1);
}
