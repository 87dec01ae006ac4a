//! Pipeline, behaviours 2 and 3: the standard stack.
use std::time::Duration;

use steadfast::{
    Cause, Pipeline, PolicyKind,
    circuit_breaker::State,
    standard::{Standard, StandardConfig},
    testing::ScriptedService,
    time::Clock,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn stack(document: &str) -> Standard {
    Standard::new(toml::from_str(document).unwrap()).unwrap()
}

const EVERYTHING: &str = r#"
    timeout = "2s"
    rate_limit = { permits = 5, per = "10s" }
    concurrency_limit = { capacity = 2, queue = 0 }
    retry = { max_attempts = 3, backoff = { base = "10ms", jitter = "none" } }
    circuit_breaker = { window = { calls = 10 }, min_calls = 4 }
    attempt_timeout = "100ms"
"#;

#[test]
fn pipeline_2_one_documented_order() {
    let layers = stack(EVERYTHING).explain().layers().iter().map(|l| l.kind()).collect::<Vec<_>>();
    use PolicyKind::*;
    assert_eq!(layers, [Timeout, RateLimit, ConcurrencyLimit, Retry, CircuitBreaker, Timeout]);
}

#[test]
fn pipeline_2_the_order_holds_in_behaviour() {
    let (clock, hand) = Clock::manual();
    let stack = stack(EVERYTHING).named("drone").with_clock(&clock);
    let breaker = stack.circuit_breaker().unwrap().clone();
    let pipeline = Pipeline::new().then(stack.clone()).classify(ScriptedService::classify);
    let service = ScriptedService::new("hang", &clock).unwrap();
    let start = hand.now();
    let error = hand.block_on(pipeline.call(|| service.call())).unwrap_err();
    // Each attempt hangs for 100 ms, and is one failure to the breaker; one call is one permit to the limits.
    let Cause::TimedOut(timed_out) = error.cause() else { panic!("{error}") };
    assert_eq!(timed_out.name.as_ref().unwrap().as_str(), "drone.attempt_timeout");
    assert_eq!(
        (hand.now() - start, error.attempts(), breaker.snapshot().failures),
        (MS(100 + 10 + 100 + 20 + 100), 3, 3)
    );
    // The fourth failure opens the breaker, and its rejection ends the retry at once.
    let error = hand.block_on(pipeline.call(|| service.call())).unwrap_err();
    assert_eq!((error.is_rejected(), error.attempts(), breaker.state()), (true, 1, State::Open));
    // The rate limit stands outside: its fifth and last permit of ten seconds goes, though the breaker is open.
    for _ in 0..3 {
        assert!(hand.block_on(pipeline.call(|| service.call())).unwrap_err().is_rejected());
    }
    let error = hand.block_on(pipeline.call(|| service.call())).unwrap_err();
    let Cause::Rejected(rejected) = error.cause() else { panic!("{error}") };
    assert_eq!((rejected.by(), rejected.name()), (PolicyKind::RateLimit, Some("drone.rate_limit")));
    assert_eq!(service.calls(), 4);
}

#[test]
fn pipeline_2_the_total_time_bounds_everything() {
    let (clock, hand) = Clock::manual();
    let stack = stack(
        "timeout = \"250ms\"\nattempt_timeout = \"100ms\"\nretry = { max_attempts = 9, backoff = { base = \"1ms\", jitter = \"none\" } }",
    );
    let pipeline = Pipeline::new().then(stack.with_clock(&clock));
    let start = hand.now();
    let error = hand.block_on(pipeline.call(std::future::pending::<Result<(), ()>>)).unwrap_err();
    assert!(error.is_timed_out());
    assert_eq!((hand.now() - start, error.attempts()), (MS(250), 3));
}

#[test]
fn pipeline_2_every_part_is_optional() {
    let parts = ["timeout", "retry", "retry_budget", "circuit_breaker", "attempt_timeout"];
    for part in parts {
        let stack = stack(&format!("{part} = false"));
        let gone = [
            stack.timeout().is_none(),
            stack.retry().is_none(),
            stack.retry().is_some_and(|retry| retry.budget().is_none()),
            stack.circuit_breaker().is_none(),
            stack.attempt_timeout().is_none(),
        ];
        assert_eq!(gone, parts.map(|p| p == part), "{part}");
    }
    let none = Standard::new(StandardConfig::none()).unwrap();
    assert!(none.explain().layers().is_empty());
    assert!(none.rate_limit().is_none() && none.concurrency_limit().is_none());
    let (_, hand) = Clock::manual();
    assert_eq!(hand.block_on(none.into_pipeline().call(|| async { Ok::<_, ()>(3) })).unwrap(), 3);
}

#[test]
fn pipeline_2_a_clone_shares_its_state() {
    let stack = stack("");
    stack.clone().circuit_breaker().unwrap().isolate();
    assert_eq!(stack.circuit_breaker().unwrap().state(), State::Isolated);
}

#[test]
fn pipeline_3_the_defaults_explain_without_a_warning_and_bad_settings_with_one() {
    let explanation = stack("").named("billing").explain();
    assert_eq!(explanation.warnings(), Vec::<String>::new());
    assert_eq!(
        explanation.to_string(),
        "pipeline `billing`, outermost first:\n  \
         1. time-out `billing.timeout`: at most 30s\n  \
         2. retry `billing.retry`: at most 3 attempts, exponential back-off from 100ms to 20s, jitter full\n  \
         3. circuit breaker `billing.circuit_breaker`: opens on 50 % failures over the last 100 calls (at least 20); for 5s to 60s\n  \
         4. time-out `billing.attempt_timeout`: at most 10s\n"
    );
    let warned = |document: &str| stack(document).explain().warnings().join("\n");
    assert!(warned("timeout = \"1s\"").contains("never fires"));
    assert!(warned("retry_budget = false").contains("no budget"));
    assert!(warned("attempt_timeout = false").contains("no time-out inside it"));
}
