//! A server that fails sometimes, and then permanently: the effect of a retry, its cost, and the effect of a budget.
//!
//! One request in three fails, sometimes with `retry-after`: every call succeeds. Then all fail: without a budget
//! the load triples, with one it grows by a fifth. The last line is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::future::join_all;
use hyper::header::{HeaderValue, RETRY_AFTER};
use serde_json::json;
use steadfast::{
    Pipeline,
    backoff::BackoffConfig,
    http::ByStatus,
    outcome::StopReason,
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    time::Clock,
};

#[path = "common/mod.rs"]
mod common;
use common::{Http, answer, end, no_arguments, say, serve};

const CALLS: u64 = 300;

#[tokio::main]
async fn main() -> ExitCode {
    no_arguments(
        "A server that fails sometimes, and then permanently: the effect of a retry, its cost, and the effect of a budget.",
    );
    end(show().await)
}

async fn show() -> common::Result<(serde_json::Value, bool)> {
    let (asked, is_down) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let server = serve({
        let (asked, is_down) = (asked.clone(), is_down.clone());
        move |_| {
            let n = asked.fetch_add(1, SeqCst) + 1;
            let mut reply = answer(if is_down.load(SeqCst) || n % 3 == 0 { 503 } else { 200 }, n);
            if n % 150 == 0 {
                reply.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            std::future::ready(reply)
        }
    })
    .await?;
    let (http, clock) = (Http::new(), Clock::tokio());
    let load = || asked.swap(0, SeqCst);

    // All calls here are reads, which may be sent twice, so the retry's setting says so. A charge would
    // be marked by itself, and would have an idempotency key. The classifier judges a 503 a
    // failure, and reads `retry-after` from it.
    let fast = BackoffConfig::default().between(Duration::from_millis(2), Duration::from_millis(50));
    let config = RetryConfig::default().max_attempts(3).backoff(fast).idempotent(true);
    let pipeline = Pipeline::new().then(Retry::new(config)?).classify(ByStatus::new());

    say(format!("\na server of which one request in three fails, {CALLS} calls, one after another\n"));
    let (mut succeeded, mut longest) = (0, Duration::ZERO);
    for _ in 0..CALLS {
        let start = clock.now();
        succeeded += u64::from(pipeline.call(|| http.get(server, "/")).await.is_ok_and(|r| r.status() == 200));
        longest = longest.max(clock.now() - start);
    }
    let flaky = load();
    say(format!("  {succeeded} succeeded, {flaky} requests; the longest wait was {longest:?}, as the server asked"));

    say(format!("\nnow all fail, {CALLS} calls at once\n"));
    is_down.store(true, SeqCst);
    join_all((0..CALLS).map(|_| pipeline.call(|| http.get(server, "/")))).await;
    let without = load();
    say(format!("  without a budget   {without} requests"));

    let budget = RetryBudget::new(RetryBudgetConfig::default().ratio(0.2).min_per_second(0))?;
    let within_budget = Pipeline::new().then(Retry::builder(config).budget(&budget).build()?).classify(ByStatus::new());
    join_all((0..CALLS).map(|_| within_budget.call(|| http.get(server, "/")))).await;
    let with = load();
    say(format!("  with a budget      {with} requests"));

    // The last attempt's response is returned: a 503. A transport error would be a `CallError` with its history.
    let nobody = std::net::SocketAddr::from(([127, 0, 0, 1], 9));
    let error = pipeline.call(|| http.get(nobody, "/")).await.err().ok_or("a closed port answered")?;
    say(format!("\n  without a server: {error}"));
    let stopped = error.history().is_some_and(|history| history.stop == StopReason::Attempts);

    let summary = json!({
        "calls": CALLS, "flaky_succeeded": succeeded, "flaky_requests": flaky, "longest_ms": longest.as_millis() as u64,
        "down_requests": without, "down_requests_with_budget": with, "attempts_with_nobody_there": error.attempts(),
    });
    let holds = succeeded == CALLS
        && longest >= Duration::from_secs(1)
        && without == 3 * CALLS
        && with <= CALLS * 12 / 10
        && error.attempts() == 3
        && stopped;
    Ok((summary, holds))
}
