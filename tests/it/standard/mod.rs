//! The standard stack: its order, its document, its explanation.
mod change;
mod log_lines;
mod reconfigure;
mod registry;

use std::time::Duration;

use steadfast::{
    CallError, FailureKind, Pipeline, PolicyKind, Reason,
    call::idempotent,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, CircuitBreakerEvent, State, TripConfig},
    entropy::Entropy,
    outcome::TripRule,
    retry::{Retry, RetryConfig},
    standard::{Standard, StandardConfig},
    testing::{ManualClock, ScriptedError, ScriptedService},
    time::Clock,
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// A stack from a document, and a service from a script, on one clock.
struct Stage {
    stack: Standard,
    service: ScriptedService,
    clock: Clock,
    time: ManualClock,
}

impl Stage {
    fn new(document: &str, script: &str) -> Self {
        let (clock, time) = Clock::manual();
        let stack = Standard::builder(toml::from_str(document).unwrap())
            .name("drone")
            .clock(&clock)
            .entropy(&Entropy::from_seed(1))
            .build()
            .unwrap();
        Self { stack, service: ScriptedService::new(script, &clock).unwrap(), clock, time }
    }

    async fn call_async(&self) -> Result<u16, CallError<ScriptedError>> {
        let pipeline = Pipeline::new().then(self.stack.clone()).classify(ScriptedService::classify);
        pipeline.call(idempotent(|| self.service.call())).await
    }

    fn call(&self) -> Result<u16, CallError<ScriptedError>> {
        self.time.block_on(self.call_async())
    }
}

// Guarantee: standard 1.
/// A turn that would come after the deadline is rejected at once.
#[test]
fn the_timeout_is_outside_the_rate_limit() {
    let stage = Stage::new("timeout = '1s'\nrate_limit = { permits = 1, per = '2s', max_wait = '1m' }", "ok");
    stage.call().unwrap();
    let start = stage.time.now();
    let error = stage.call().unwrap_err();
    assert!(error.is_rejected());
    assert_eq!((stage.time.now(), error.retry_after()), (start, Some(MS(2000))));
}

// Guarantee: standard 1.
/// A call that waits for its turn holds no permit of the concurrency limit.
#[test]
fn the_rate_limit_is_outside_the_concurrency_limit() {
    let stage = Stage::new(
        "rate_limit = { permits = 1, per = '2s', max_wait = '1m' }\nconcurrency_limit = { capacity = 1, queue = 0 }",
        "ok",
    );
    stage.call().unwrap();
    let places = stage.stack.concurrency_limit().unwrap();
    let look = async {
        stage.clock.sleep(MS(1000)).await;
        places.available()
    };
    let (answer, free) = stage.time.block_on(async { futures::join!(stage.call_async(), look) });
    assert_eq!((answer.unwrap(), free), (200, 1));
    // A call that is rejected by the concurrency limit has used a permit of the rate limit.
    let held = places.try_acquire().unwrap();
    stage.time.advance(MS(2000));
    assert_eq!(
        stage.call().unwrap_err().to_string(),
        "rejected by the concurrency limit `drone.concurrency_limit`: queue full"
    );
    assert!(stage.stack.rate_limit().unwrap().try_acquire().is_err());
    drop(held);
}

// Guarantee: standard 1.
/// A call takes one permit of the rate limit for all its attempts, and holds its place between
/// them.
#[test]
fn the_limits_are_outside_the_retry() {
    let stage = Stage::new(
        "rate_limit = { permits = 1, per = '1m' }\nconcurrency_limit = { capacity = 1 }\n\
         retry = { max_attempts = 3, backoff = { base = '1s', jitter = 'none' } }",
        "503 x2, ok",
    );
    let places = stage.stack.concurrency_limit().unwrap();
    let look = async {
        stage.clock.sleep(MS(500)).await;
        (places.available(), stage.service.running())
    };
    let (answer, seen) = stage.time.block_on(async { futures::join!(stage.call_async(), look) });
    assert_eq!((answer.unwrap(), stage.service.calls(), seen), (200, 3, (0, 0)));
}

// Guarantee: standard 1.
/// Each attempt is counted, and the breaker's rejection ends the retry.
#[test]
fn the_retry_is_outside_the_breaker() {
    let stage =
        Stage::new("retry = { max_attempts = 5 }\ncircuit_breaker = { trip = { consecutive_failures = 2 } }", "503");
    let error = stage.call().unwrap_err();
    assert_eq!((stage.service.calls(), error.attempts(), error.is_rejected()), (2, 2, true));
    assert_eq!(stage.stack.circuit_breaker().unwrap().state(), State::Open);
}

// Guarantee: standard 1.
/// An attempt that hangs is a failure for both.
#[test]
fn retry_and_breaker_are_outside_the_attempt_timeout() {
    let stage =
        Stage::new("attempt_timeout = '100ms'\nretry = { backoff = { base = '1ms', cap = '1ms' } }", "hang, ok");
    let mut events = stage.stack.circuit_breaker().unwrap().events();
    assert_eq!(stage.call().unwrap(), 200);
    assert_eq!((stage.service.calls(), stage.service.dropped()), (2, 1));
    let event = events.try_recv().unwrap().unwrap();
    assert_eq!(event.what, CircuitBreakerEvent::Failed { kind: FailureKind::Timeout });
    assert_eq!(event.source.unwrap().as_str(), "drone.circuit_breaker");
}

// Guarantee: standard 1.
#[test]
fn the_timeout_bounds_attempts_and_waits_together() {
    let stage = Stage::new(
        "timeout = '1s'\nattempt_timeout = '400ms'\nretry = { max_attempts = 100, backoff = { jitter = 'none' } }",
        "hang",
    );
    let start = stage.time.now();
    let error = stage.call().unwrap_err();
    assert!(error.is_timed_out());
    // 400, wait 100, 400: the next delay of 200 would end after the deadline.
    assert_eq!((error.attempts(), stage.time.now() - start), (2, MS(900)));
    let stage = Stage::new("timeout = '1s'\nattempt_timeout = false", "hang");
    let error = stage.call().unwrap_err();
    assert_eq!(error.to_string(), "timed out after 1s (`drone.timeout`)");
}

// Guarantee: standard 1, 2.
#[test]
fn every_part_is_optional() {
    let parts = |document: &str| {
        let stack = Standard::new(toml::from_str(document).unwrap()).unwrap();
        [
            stack.timeout().is_some(),
            stack.rate_limit().is_some(),
            stack.concurrency_limit().is_some(),
            stack.retry().is_some(),
            stack.config().retry_budget.is_some(),
            stack.circuit_breaker().is_some(),
            stack.attempt_timeout().is_some(),
            stack.shed().is_some(),
            stack.adaptive_limit().is_some(),
            stack.hedge().is_some(),
            stack.client_throttle().is_some(),
            stack.fallback().is_some(),
        ]
    };
    assert_eq!(parts(""), [true, false, false, true, true, true, true, false, false, false, false, false]);
    let names = [
        "timeout",
        "rate_limit",
        "concurrency_limit",
        "retry",
        "retry_budget",
        "circuit_breaker",
        "attempt_timeout",
        "shed",
        "adaptive_limit",
        "hedge",
        "client_throttle",
        "fallback",
    ];
    // Each part alone.
    let alone = |on: Option<usize>| {
        let value = |i, name: &str| match (on == Some(i), name.contains("timeout")) {
            (false, _) => "false",
            (true, true) => "'5s'",
            (true, false) => "true",
        };
        names.iter().enumerate().map(|(i, name)| format!("{name} = {}\n", value(i, name))).collect::<String>()
    };
    for (on, name) in names.iter().enumerate() {
        let expected: [bool; 12] = std::array::from_fn(|i| i == on);
        assert_eq!(parts(&alone(Some(on))), expected, "{name}");
    }
    let none = alone(None);
    assert_eq!(parts(&none), [false; 12]);
    let mut tables =
        names.map(|name| if name.contains("timeout") { String::new() } else { format!("{name} = {{}}\n") });
    tables[2].clear(); // one of the two
    let mut on = [true; 12];
    on[2] = false;
    assert_eq!(parts(&tables.concat()), on);
    // A stack without parts lets everything pass.
    let stage = Stage::new(&none, "503, ok");
    assert_eq!(stage.call().unwrap_err().attempts(), 1);
    assert_eq!((stage.call().unwrap(), stage.time.next_timer()), (200, None));
}

// Guarantee: standard 2.
#[test]
fn an_empty_document_has_good_defaults() {
    let config: StandardConfig = toml::from_str("").unwrap();
    assert_eq!(config, StandardConfig::default());
    assert_eq!((config.timeout, config.attempt_timeout), (Some(MS(30_000)), Some(MS(10_000))));
    let stack = Standard::new(config).unwrap();
    assert_eq!(stack.explain().warnings(), [""; 0]);
    let stage = Stage::new("", "503 x2, ok");
    assert_eq!((stage.call().unwrap(), stage.service.calls()), (200, 3));
}

// Guarantee: standard 1.
/// Each part has its own name, too.
#[test]
fn clones_share_their_state_and_parts_have_names() {
    let stage = Stage::new("rate_limit = { permits = 5, per = '1m' }\nconcurrency_limit = true", "ok");
    let clone = stage.stack.clone();
    clone.circuit_breaker().unwrap().force_open(MS(100));
    let error = stage.call().unwrap_err();
    assert_eq!(error.retry_after(), Some(MS(100)));
    let steadfast::Cause::Rejected(rejected) = error.cause() else { panic!("{error:?}") };
    assert_eq!((rejected.by(), rejected.name()), (PolicyKind::CircuitBreaker, Some("drone.circuit_breaker")));
    assert!(matches!(rejected.reason(), Reason::CircuitOpen { rule: TripRule::Manual, .. }));
    while clone.rate_limit().unwrap().try_acquire().is_ok() {}
    let error = stage.call().unwrap_err();
    assert!(
        error.to_string().starts_with("rejected by the rate limit `drone.rate_limit`: limit reached; try again in 12s"),
        "{error}"
    );
    assert_eq!(stage.stack.clone().into_pipeline().name(), Some("drone"));
    assert_eq!(clone.config(), stage.stack.config());
}

// Guarantee: standard 4.
/// The whole text.
#[test]
fn explain_lists_the_parts_in_order() {
    let stage = Stage::new(
        "rate_limit = { permits = 50, per = '1s', burst = 5, max_wait = '100ms' }\n\
         concurrency_limit = { capacity = 8, queue = 4, max_wait = '250ms', order = 'newest_first' }\n\
         circuit_breaker = { trip = { failure_rate = 0.25, consecutive_failures = 7 } }",
        "ok",
    );
    let golden = "\
pipeline `drone`, outermost first:
  1. time-out `drone.timeout`: at most 30s
  2. rate limit `drone.rate_limit`: 50 calls every 1s, at most 5 at once; waits up to 100ms
  3. concurrency limit `drone.concurrency_limit`: 8 at once, 4 more wait up to 250ms, newest first
  4. retry `drone.retry`: at most 3 attempts, exponential back-off from 100ms to 20s, jitter full; repeats unmarked operations \
only after failures that prove that nothing was sent
  5. circuit breaker `drone.circuit_breaker`: opens on 25 % failures over the last 100 calls (at least 20), or 7 consecutive failures; \
for 5s to 60s
  6. time-out `drone.attempt_timeout`: at most 10s
";
    assert_eq!(stage.stack.explain().to_string(), golden);
    assert_eq!(stage.stack.clone().into_pipeline().explain().to_string(), golden);
    let kinds: Vec<_> = stage.stack.explain().layers().iter().map(|layer| layer.kind()).collect();
    let (limits, inner) = ([PolicyKind::RateLimit, PolicyKind::ConcurrencyLimit], PolicyKind::CircuitBreaker);
    assert_eq!(kinds, [PolicyKind::Timeout, limits[0], limits[1], PolicyKind::Retry, inner, PolicyKind::Timeout]);
    let nothing = Standard::new(StandardConfig::none()).unwrap().explain().to_string();
    assert_eq!(nothing, "pipeline, outermost first:\n  (no policy)\n");
}

// Guarantee: standard 4.
#[test]
fn explain_warns_about_risky_settings() {
    let warnings = |document: &str| Stage::new(document, "ok").stack.explain().warnings();
    let only = |document: &str, words: &[&str]| {
        let warnings = warnings(document);
        assert_eq!(warnings.len(), 1, "{document}: {warnings:?}");
        assert!(words.iter().all(|word| warnings[0].contains(word)), "{document}: {warnings:?}");
    };
    only("timeout = '5s'", &["time-out of 10s", "inside one of 5s", "never fires"]);
    only("retry_budget = false", &["`drone.retry`", "outside a circuit breaker", "no budget"]);
    only("retry_budget = false\ncircuit_breaker = false", &["neither a budget nor a circuit breaker", "multiplies"]);
    only("attempt_timeout = false", &["`drone.circuit_breaker`", "no time-out inside"]);
    only("retry = { backoff = { jitter = 'none' } }", &["`drone.retry`", "without jitter"]);
    assert_eq!(warnings("circuit_breaker = false"), [""; 0]);
    assert_eq!(warnings("timeout = '10s'"), [""; 0]);
    let text = Stage::new("timeout = '5s'", "ok").stack.explain().to_string();
    assert!(
        text.ends_with("\n  warning: a time-out of 10s inside one of 5s never fires: the outer one fires first\n"),
        "{text}"
    );
    // The same for a pipeline that is composed by the user.
    let pipeline = Pipeline::new()
        .then(
            CircuitBreaker::new(CircuitBreakerConfig::default().trip(TripConfig::default().consecutive_failures(3)))
                .unwrap(),
        )
        .then(Retry::new(RetryConfig::default()).unwrap())
        .then(Timeout::new(MS(100)))
        .then(Retry::new(RetryConfig::default()).unwrap());
    let warnings = pipeline.explain().warnings();
    assert!(warnings.iter().any(|w| w.contains("stands outside a retry")), "{warnings:?}");
    assert!(warnings.iter().any(|w| w.contains("inside another retry")), "{warnings:?}");
}
