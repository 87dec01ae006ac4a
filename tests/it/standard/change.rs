//! The standard stack: its document is replaced while calls run.
use std::time::Duration;

use futures::{StreamExt, stream::FuturesUnordered};
use steadfast::{
    Priority,
    call::{idempotent, with_priority},
    circuit_breaker::State,
    entropy::Entropy,
    standard::{Standard, StandardConfig},
    testing::ScriptedService,
    throttling::Gauge,
    time::Clock,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// A document with every part on.
const ALL: &str = r#"
    fallback = { timeout = "1s" }
    timeout = "20s"
    shed = { limits.cpu = { soft = 0.7, hard = 0.9 } }
    rate_limit = { permits = 1000, per = "1s", max_wait = "15s" }
    adaptive_limit = { initial = 50, max = 100, queue = 20000, max_wait = "15s" }
    retry = { max_attempts = 4, backoff = { base = "10ms", cap = "100ms" } }
    retry_budget = { ratio = 0.5 }
    hedge = { delay = "80ms" }
    client_throttle = { k = 2.0 }
    circuit_breaker = { trip = { consecutive_failures = 50 } }
    attempt_timeout = "500ms"
"#;

/// A document with some parts off, and different settings for all others.
const OTHER: &str = r#"
    fallback = { on_rejections = false }
    timeout = "30s"
    shed = false
    rate_limit = { permits = 2000, per = "1s", burst = 1, max_wait = "20s" }
    concurrency_limit = { capacity = 40, queue = 20000, max_wait = "20s", order = "newest_first" }
    retry = { max_attempts = 6, backoff = { base = "1ms", cap = "10ms" } }
    retry_budget = false
    hedge = false
    client_throttle = false
    circuit_breaker = { window = { time = "10s" }, trip = { failure_rate = 0.9 } }
    attempt_timeout = "700ms"
"#;

fn document(text: &str) -> StandardConfig {
    toml::from_str(text).unwrap()
}

fn stack(clock: &Clock, text: &str) -> Standard {
    Standard::builder(document(text))
        .name("billing")
        .clock(clock)
        .entropy(&Entropy::from_seed(7))
        .gauge("cpu", Gauge::new())
        .build()
        .unwrap()
}

// Guarantee: standard 3.
/// Calls begin all the time; some are retried, some are hedged. The document changes every few
/// milliseconds.
#[test]
fn the_document_can_be_replaced_while_10_000_calls_run() {
    let (clock, time) = Clock::manual();
    let stack = stack(&clock, ALL);
    let script = "ok x7 in 20ms, 503 in 5ms, ok in 200ms, ok x3 in 1ms, ".repeat(1_500) + "ok";
    let service = ScriptedService::new(&script, &clock).unwrap();
    let pipeline = stack.clone().into_pipeline().classify(ScriptedService::classify);
    let calls: FuturesUnordered<_> = (0..10_000_u64)
        .map(|n| {
            let (pipeline, service, clock) = (&pipeline, &service, &clock);
            async move {
                clock.sleep(MS(n)).await;
                let priority = if n % 2 == 0 { Priority::High } else { Priority::Normal };
                pipeline.call(idempotent(with_priority(priority, || service.call()))).await
            }
        })
        .collect();
    let changes = async {
        for n in 0..1_000 {
            clock.sleep(MS(10)).await;
            stack.reconfigure(document(if n % 2 == 0 { OTHER } else { ALL })).unwrap();
        }
    };
    let (answers, ()) = time.block_on(async { futures::join!(calls.collect::<Vec<_>>(), changes) });
    let lost: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    assert_eq!(answers.len(), 10_000);
    assert!(lost.is_empty(), "{} of them, the first: {}", lost.len(), lost[0]);
    at_rest(&stack);
    stack.reconfigure(document(OTHER)).unwrap();
    at_rest(&stack);
}

fn at_rest(stack: &Standard) {
    assert_eq!(stack.adaptive_limit().map_or(0, |limit| limit.in_flight()), 0);
    assert_eq!(stack.concurrency_limit().map_or(0, |limit| i64::from(limit.config().capacity) - limit.available()), 0);
    assert_eq!(stack.circuit_breaker().unwrap().state(), State::Closed);
}

// Guarantee: standard 3.
/// An open breaker stays open under other settings, also while it is switched off for a time. A
/// limit keeps its used permits.
#[test]
fn parts_keep_their_state_when_the_document_is_replaced() {
    let (clock, time) = Clock::manual();
    let stack = stack(&clock, ALL);
    stack.circuit_breaker().unwrap().isolate();
    let full = "rate_limit = { permits = 2, per = '1h' }\nretry = false\ncircuit_breaker = ";
    for breaker in ["{ trip = { consecutive_failures = 3 } }", "{ min_calls = 7 }", "false", "true"] {
        stack.reconfigure(document(&format!("{full}{breaker}"))).unwrap();
        assert!(stack.circuit_breaker().is_none_or(|breaker| breaker.state() == State::Isolated), "{breaker}");
    }
    let pipeline = stack.clone().into_pipeline();
    let call =
        || time.block_on(pipeline.call(|| async { Ok::<_, std::io::Error>(1) })).map_err(|error| error.to_string());
    assert!(call().unwrap_err().contains("circuit breaker `billing.circuit_breaker`"));
    stack.reconfigure(document(&format!("{full}false"))).unwrap();
    assert_eq!(call().unwrap(), 1);
    for permits in [2, 2] {
        stack.reconfigure(document(&format!("rate_limit = {{ permits = {permits}, per = '1h' }}"))).unwrap();
        assert!(call().unwrap_err().contains("rate limit `billing.rate_limit`"), "two permits were used");
    }
}

// Guarantee: standard 2.
/// The next valid document applies.
#[test]
fn an_invalid_document_changes_nothing() {
    let (clock, _) = Clock::manual();
    let stack = stack(&clock, ALL);
    let before = stack.explain().to_string();
    for (bad, told) in [
        ("fallback = { timeout = '0s' }", "invalid `fallback.timeout`"),
        ("timeout = '0s'", "invalid `timeout`: must be longer than zero"),
        (
            "shed = { sustain = '1s', limits.disk = { soft = 1, hard = 2 } }",
            "invalid `shed.limits.cpu`: must be present: a gauge of this name is watched",
        ),
        ("rate_limit = { permits = 0 }", "invalid `rate_limit.permits`"),
        ("concurrency_limit = { capacity = 0 }", "invalid `concurrency_limit.capacity`"),
        ("adaptive_limit = { min = 0 }", "invalid `adaptive_limit.min`"),
        (
            "adaptive_limit = true\nconcurrency_limit = true",
            "invalid `adaptive_limit`: must be off if `concurrency_limit` is on",
        ),
        ("retry = { max_attempts = 0 }", "invalid `retry.max_attempts`"),
        ("retry_budget = { ratio = -1.0 }", "invalid `retry_budget.ratio`"),
        ("hedge = { max_attempts = 0 }", "invalid `hedge.max_attempts`"),
        ("client_throttle = { k = 0.5 }", "invalid `client_throttle.k`"),
        ("circuit_breaker = { min_calls = 0 }", "invalid `circuit_breaker.min_calls`"),
        ("attempt_timeout = '0s'", "invalid `attempt_timeout`"),
    ] {
        // Everything else in the document is valid, and different.
        let changed = format!(
            "{bad}\n{}",
            OTHER
                .lines()
                .filter(|line| {
                    let field = line.split('=').next().unwrap().trim();
                    let is_exclusive = bad.contains("adaptive") && field == "concurrency_limit";
                    !(field.is_empty() || is_exclusive || bad.lines().any(|bad| bad.starts_with(field)))
                })
                .collect::<Vec<_>>()
                .join("\n")
        );
        let error = stack.reconfigure(document(&changed)).unwrap_err().to_string();
        assert!(error.starts_with(told), "{error}");
        assert_eq!(stack.explain().to_string(), before, "{bad}");
        assert_eq!(stack.config(), document(ALL));
    }
    stack.reconfigure(document(OTHER)).unwrap();
    assert_eq!(stack.config(), document(OTHER));
    assert_ne!(stack.explain().to_string(), before);
}

// Guarantee: standard 3.
/// The explanations are the same, whatever the stack was before.
#[test]
fn a_changed_stack_equals_a_new_one_with_the_same_document() {
    let (clock, _) = Clock::manual();
    for from in [ALL, OTHER, ""] {
        for to in [ALL, OTHER, ""] {
            let changed = stack(&clock, from);
            changed.reconfigure(document(to)).unwrap();
            assert_eq!(changed.explain().to_string(), stack(&clock, to).explain().to_string());
        }
    }
}
