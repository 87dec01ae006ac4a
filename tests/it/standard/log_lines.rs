//! Lines of a failed call in `tracing`: its parts at `DEBUG`, and its outcome once.
use std::sync::{Arc, Mutex};

use steadfast::{
    Pipeline,
    call::{AttemptInfo, idempotent},
    entropy::Entropy,
    retry::{Retry, RetryConfig},
    standard::Standard,
    testing::{ManualClock, ScriptedService},
    time::Clock,
    timeout::Timeout,
};
use tracing::Level;
use tracing_subscriber::{filter::LevelFilter, layer::SubscriberExt};

use super::MS;

/// The lines at `INFO` or above, and the number of those at `DEBUG`.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<(Vec<String>, usize)>>);

struct Text(String);

impl tracing::field::Visit for Text {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!(" {field}={value:?}");
    }
}

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Lines {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        let (lines, details) = &mut *self.0.lock().unwrap();
        if *event.metadata().level() > Level::INFO {
            *details += 1;
            return;
        }
        let mut text = Text(format!("{} {}", event.metadata().level(), event.metadata().target()));
        event.record(&mut text);
        lines.push(text.0);
    }
}

/// Returns the lines at `INFO` or above that `call` causes, if a subscriber wants lines up to
/// `level`.
fn lines_up_to(level: LevelFilter, call: impl FnOnce()) -> Vec<String> {
    let lines = Lines::default();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(lines.clone()).with(level), call);
    std::mem::take(&mut lines.0.lock().unwrap().0)
}

/// Returns the lines at `INFO` or above that `call` causes, which do not depend on the lines that a
/// subscriber wants.
fn lines(call: impl Fn()) -> Vec<String> {
    let lines = lines_up_to(LevelFilter::INFO, &call);
    assert_eq!(lines_up_to(LevelFilter::TRACE, &call), lines);
    lines
}

fn stack(document: &str, clock: &Clock) -> Standard {
    let builder = Standard::builder(toml::from_str(document).unwrap()).name("shop").clock(clock);
    builder.entropy(&Entropy::from_seed(1)).build().unwrap()
}

/// Calls a service by this script through a stack by this document.
fn call(document: &str, script: &str) -> Vec<String> {
    lines(|| {
        let (clock, time) = Clock::manual();
        let service = ScriptedService::new(script, &clock).unwrap();
        let pipeline = stack(document, &clock).into_pipeline().classify(ScriptedService::classify);
        let _ = time.block_on(pipeline.call(idempotent(|| service.call())));
    })
}

/// A call whose attempts timed out sent six lines: three time-outs, two retries, and the outcome.
#[test]
fn a_failed_call_of_the_standard_stack_sends_one_line_for_its_outcome() {
    let attempts = "attempt_timeout = '1s'\nretry = { max_attempts = 3 }\n";
    for (document, script) in [
        (attempts.to_owned(), "hang"),
        (attempts.to_owned(), "500"),
        (format!("timeout = '1500ms'\n{attempts}"), "hang"),
        (format!("hedge = {{ delay = '100ms' }}\n{attempts}"), "hang"),
        (
            format!("circuit_breaker = {{ trip = {{ slow_call_rate = 1.0, slow_call = '10ms' }} }}\n{attempts}"),
            "500 in 1s",
        ),
        (format!("rate_limit = {{ permits = 1, per = '1h' }}\n{attempts}"), "503"),
        ("retry = false\nattempt_timeout = '1s'".to_owned(), "hang"),
    ] {
        let lines = call(&document, script);
        assert!(lines.len() == 1 && lines[0].starts_with("WARN steadfast::call"), "{document}: {lines:#?}");
        assert!(lines[0].contains("message=call failed pipeline=\"shop\""), "{lines:#?}");
    }
}

#[test]
fn a_call_that_succeeds_after_failures_and_one_that_is_rejected_at_once_send_no_line() {
    let nothing: [String; 0] = [];
    assert_eq!(call("attempt_timeout = '1s'", "hang, 500, ok"), nothing);
    assert_eq!(call("hedge = { delay = '100ms' }", "hang, ok"), nothing);
    assert_eq!(call("", "400"), nothing, "the caller's own matter: no policy had a part in it");
    let rejected = lines(|| {
        let (clock, time) = Clock::manual();
        let service = ScriptedService::new("ok", &clock).unwrap();
        let stack = stack("rate_limit = { permits = 1, per = '1h' }", &clock);
        let pipeline = stack.clone().into_pipeline();
        assert!(time.block_on(pipeline.call(idempotent(|| service.call()))).is_ok());
        for _ in 0..10 {
            assert!(time.block_on(pipeline.call(idempotent(|| service.call()))).is_err());
        }
        assert!(stack.rate_limit().unwrap().try_acquire().is_err());
    });
    assert_eq!(rejected, nothing, "during an overload each call has such lines");
}

#[test]
fn a_call_with_a_fallback_sends_a_line_only_if_that_fails_too() {
    let with_fallback = |document: &str, instead: &str| {
        lines(|| {
            let (clock, time) = Clock::manual();
            let service = ScriptedService::new("500", &clock).unwrap();
            let other = ScriptedService::new(instead, &clock).unwrap();
            let pipeline = stack(document, &clock).into_pipeline().classify(ScriptedService::classify);
            let _ = time.block_on(pipeline.call_or(idempotent(|| service.call()), |_| other.call()));
        })
    };
    for document in ["", "fallback = { timeout = '1s' }"] {
        assert_eq!(with_fallback(document, "ok"), [""; 0], "{document}");
        let failed = with_fallback(document, "503");
        assert!(failed.len() == 1 && failed[0].contains("fallback_failed=true"), "{failed:#?}");
    }
    let timed_out = with_fallback("fallback = { timeout = '1s' }", "hang");
    assert!(timed_out.len() == 1 && timed_out[0].contains("fallback_failed=true"), "{timed_out:#?}");
}

#[test]
fn a_stack_inside_a_stack_sends_one_line_for_the_outcome_of_the_outer_call() {
    let outer = "timeout = '1m'\nattempt_timeout = '10s'\nretry = { max_attempts = 2, retry_nested = true }";
    let inner = "attempt_timeout = '1s'\nretry = { max_attempts = 3, retry_nested = true }";
    for script in ["hang", "500"] {
        let one_pipeline = lines(|| {
            let (clock, time) = Clock::manual();
            let service = ScriptedService::new(script, &clock).unwrap();
            let pipeline = Pipeline::new().named("shop").then(stack(outer, &clock)).then(stack(inner, &clock));
            let pipeline = pipeline.classify(ScriptedService::classify);
            assert!(time.block_on(pipeline.call(idempotent(|| service.call()))).is_err());
        });
        assert_eq!(one_pipeline.len(), 1, "{one_pipeline:#?}");
        let two_pipelines = lines(|| {
            let (clock, time) = Clock::manual();
            let service = ScriptedService::new(script, &clock).unwrap();
            let within = stack(inner, &clock).into_pipeline().classify(ScriptedService::classify);
            let around = stack(outer, &clock).into_pipeline();
            let call = |attempt: AttemptInfo| within.call_within(attempt, idempotent(|| service.call()));
            let failed = time.block_on(around.call_with(call));
            assert!(failed.is_err());
        });
        assert_eq!(two_pipelines.len(), 1, "{two_pipelines:#?}");
    }
}

#[test]
fn a_call_through_one_policy_sends_one_line_for_its_outcome() {
    let hang = |time: &ManualClock, clock: &Clock, timeout: &Timeout| {
        let service = ScriptedService::new("hang", clock).unwrap();
        time.block_on(timeout.call(|| service.call())).unwrap_err();
    };
    let timed_out = lines(|| {
        let (clock, time) = Clock::manual();
        hang(&time, &clock, &Timeout::builder(MS(100)).clock(&clock).build());
    });
    assert!(timed_out.len() == 1 && timed_out[0].starts_with("WARN steadfast::call"), "{timed_out:#?}");
    let gave_up = lines(|| {
        let (clock, time) = Clock::manual();
        let service = ScriptedService::new("500", &clock).unwrap();
        let retry = Retry::builder(RetryConfig::default()).clock(&clock).build().unwrap();
        time.block_on(retry.call(idempotent(|| service.call()))).unwrap_err();
    });
    assert!(gave_up.len() == 1 && gave_up[0].starts_with("WARN steadfast::call"), "{gave_up:#?}");
}

/// A deadline from a header is not an attempt of this process, so the call reports its outcome.
#[test]
fn a_call_with_a_deadline_from_outside_sends_a_line_for_its_outcome() {
    let lines = lines(|| {
        let (clock, time) = Clock::manual();
        let service = ScriptedService::new("hang", &clock).unwrap();
        let pipeline = stack("", &clock).into_pipeline().classify(ScriptedService::classify);
        let deadline = AttemptInfo::with_deadline(clock.now() + MS(100));
        assert!(time.block_on(pipeline.call_within(deadline, idempotent(|| service.call()))).is_err());
    });
    assert_eq!(lines.len(), 1, "{lines:#?}");
}
