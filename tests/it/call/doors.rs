//! Calls through a single policy, and through a boxed or traced pipeline, equal calls through a
//! plain pipeline.
//! They have the same answers, times, events and counters, whatever the service does.
use std::{fmt::Debug, time::Duration};

use futures::FutureExt;
use proptest::prelude::*;
use steadfast::{
    Pipeline,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
    entropy::Entropy,
    observe::Subscription,
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    standard::{Standard, StandardConfig},
    testing::{ManualClock, ScriptedService},
    throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter, Quota, RateLimitConfig, RateLimiter},
    time::Clock,
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const CALLS: usize = 12;

struct Stage {
    clock: Clock,
    time: ManualClock,
    service: ScriptedService,
}

/// The observations of some calls in a row: answers with their times, the service's view, and
/// events.
fn seen<E: Clone + Debug>(
    script: &str,
    run: impl FnOnce(&Stage) -> (Vec<String>, Subscription<E>, String),
) -> (Vec<String>, String, Vec<String>, String) {
    let (clock, time) = Clock::manual();
    let stage = Stage { service: ScriptedService::new(script, &clock).unwrap(), clock, time };
    let (answers, mut events, state) = run(&stage);
    let mut told = Vec::new();
    while let Ok(Some(event)) = events.try_recv() {
        told.push(format!("{event:?}"));
    }
    let service = &stage.service;
    (answers, format!("{:?} {} {}", service.called_at(), service.dropped(), service.running()), told, state)
}

impl Stage {
    /// Makes calls in a row, 40 ms apart; a panic is an answer, too.
    fn answers<F: Future<Output: Debug>>(&self, mut call: impl FnMut() -> F) -> Vec<String> {
        let mut one = || {
            self.time.advance(MS(40));
            let answer = self.time.block_on(std::panic::AssertUnwindSafe(call()).catch_unwind());
            format!("{:?} {:?}", self.time.now(), answer.map_err(|panic| panic.downcast_ref::<&str>().copied()))
        };
        (0..CALLS).map(|_| one()).collect()
    }
}

/// The two ways of calling one policy.
macro_rules! compare {
    ($script:expr, |$stage:ident| $policy:expr, |$it:ident| $state:expr) => {{
        let door = seen($script, |$stage| {
            let $it = $policy;
            let events = $it.events();
            ($stage.answers(|| $it.call(|| $stage.service.call())), events, format!("{:?}", $state))
        });
        let pipeline = seen($script, |$stage| {
            let $it = $policy;
            let (events, pipeline) = ($it.events(), Pipeline::new().then($it.clone()));
            ($stage.answers(|| pipeline.call(|| $stage.service.call())), events, format!("{:?}", $state))
        });
        prop_assert_eq!(door, pipeline);
    }};
}

fn script() -> impl Strategy<Value = String> {
    let step = prop::sample::select(vec![
        "ok",
        "ok x3",
        "ok in 20ms",
        "ok in 150ms",
        "503",
        "503 x2",
        "503 in 30ms",
        "503 retry-after 1s",
        "429 retry-after 90s",
        "reset",
        "404",
        "panic",
        "panic in 10ms",
    ]);
    prop::collection::vec(step, 1..12).prop_map(|steps| steps.join(", "))
}

/// Suppresses the messages of the hundreds of panics of these scripts.
fn quietly() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if panic.payload().downcast_ref() != Some(&"the script says so") {
                loud(panic);
            }
        }));
    });
}

fn standard(stage: &Stage) -> Standard {
    let config = StandardConfig::default()
        .retry(RetryConfig::default().idempotent(true))
        .timeout(MS(700))
        .rate_limit(RateLimitConfig::from(Quota::per_second(20).burst(2)))
        .concurrency_limit(ConcurrencyLimitConfig::of(1))
        .circuit_breaker(CircuitBreakerConfig::default().count_window(4, 4))
        .attempt_timeout(MS(100));
    Standard::builder(config).clock(&stage.clock).entropy(&Entropy::from_seed(5)).build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    // Guarantee: call 2.
    #[test]
    fn a_call_through_a_time_out_equals_a_call_through_its_pipeline(script in script()) {
        quietly();
        compare!(&script, |stage| Timeout::builder(MS(100)).name("t").clock(&stage.clock).build(), |timeout| timeout.limit());
    }

    // Guarantee: call 2.
    #[test]
    fn a_call_through_a_breaker_equals_a_call_through_its_pipeline(script in script(), slow: bool) {
        quietly();
        let mut config = CircuitBreakerConfig::default().count_window(4, 3).half_open_calls(2, 1.0);
        config.open.initial_delay = MS(50);
        if slow {
            config.trip.slow_call = Some(MS(100));
            config.trip.slow_call_rate = Some(0.5);
        }
        compare!(
            &script,
            |stage| CircuitBreaker::builder(config).clock(&stage.clock).entropy(&Entropy::from_seed(5)).build().unwrap(),
            |breaker| breaker.snapshot()
        );
    }

    // Guarantee: call 2.
    #[test]
    fn a_call_through_a_retry_equals_a_call_through_its_pipeline(script in script(), attempts in 1u32..5, idempotent: bool) {
        quietly();
        let budget = || RetryBudget::new(RetryBudgetConfig::default().ratio(0.5).min_per_second(1).window(MS(1000))).unwrap();
        let config = RetryConfig::default().max_attempts(attempts).idempotent(idempotent).max_elapsed(MS(600));
        compare!(
            &script,
            |stage| Retry::builder(config).clock(&stage.clock).entropy(&Entropy::from_seed(5)).budget(&budget()).build().unwrap(),
            |retry| retry.budget().map(|budget| budget.balance(steadfast::time::Instant::from_nanos(1_500_000_000)))
        );
    }

    // Guarantee: call 2.
    #[test]
    fn a_call_through_a_limiter_equals_a_call_through_its_pipeline(script in script()) {
        quietly();
        compare!(
            &script,
            |stage| ConcurrencyLimiter::builder(ConcurrencyLimitConfig::of(1)).clock(&stage.clock).build().unwrap(),
            |limiter| limiter.available()
        );
        compare!(
            &script,
            |stage| RateLimiter::builder(Quota::per_second(10)).clock(&stage.clock).build().unwrap(),
            |limiter| limiter.try_acquire().err().and_then(|rejected| rejected.retry_after())
        );
    }

    // Guarantee: call 2.
    /// The standard stack: plain, boxed, and with a `tracing` subscriber that wants spans.
    #[test]
    fn boxed_and_traced_calls_equal_plain_ones(script in script()) {
        quietly();
        let by = |boxed: bool| seen(&script, |stage| {
            let standard = standard(stage);
            let events = standard.circuit_breaker().unwrap().events();
            let pipeline = Pipeline::new().then(standard.clone()).classify(ScriptedService::classify);
            let answers = if boxed {
                let pipeline = pipeline.boxed();
                stage.answers(|| pipeline.call(|| stage.service.call()))
            } else {
                stage.answers(|| pipeline.call(|| stage.service.call()))
            };
            let breaker = standard.circuit_breaker().unwrap().snapshot();
            let places = standard.concurrency_limit().unwrap().available();
            assert_eq!(places, 1, "a call that is over holds nothing, also after a panic");
            (answers, events, format!("{breaker:?}"))
        });
        let plain = by(false);
        prop_assert_eq!(&plain, &by(true));
        let subscriber = || tracing_subscriber::registry();
        prop_assert_eq!(&plain, &tracing::subscriber::with_default(subscriber(), || by(false)));
        prop_assert_eq!(&plain, &tracing::subscriber::with_default(subscriber(), || by(true)));
    }
}
