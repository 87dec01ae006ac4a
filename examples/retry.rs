//! A server that fails now and then, and then for good: what a retry mends, what it costs, and what a budget spares the server.
//!
//! One request in three fails, with `retry-after` now and then: every call succeeds. Then all fail: without a budget the load triples, with
//! one it grows by a fifth. The last line is the result as JSON.
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
        "A server that fails now and then, and then for good: what a retry mends, what it costs, and what a budget spares the server.",
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

    // All calls here are reads, which may be sent twice: so the retry is told, once. A charge would
    // be marked by itself, and would carry an idempotency key. The classifier takes a 503 for a
    // failure, and reads `retry-after` from it.
    let fast = BackoffConfig::default().between(Duration::from_millis(2), Duration::from_millis(50));
    let retry = Retry::new(RetryConfig::default().max_attempts(3).backoff(fast).idempotent(true))?;
    let pipeline = Pipeline::new().then(retry.clone()).classify(ByStatus::new());

    say(format!("\na server of which one request in three fails, {CALLS} calls, one after another\n"));
    let (mut succeeded, mut longest) = (0, Duration::ZERO);
    for _ in 0..CALLS {
        let start = clock.now();
        succeeded += u64::from(pipeline.call(|| http.get(server, "/")).await.is_ok_and(|r| r.status() == 200));
        longest = longest.max(clock.now() - start);
    }
    let flaky = load();
    say(format!("  {succeeded} succeeded, {flaky} requests; the longest waited {longest:?}, for it was asked to"));

    say(format!("\nnow all fail, {CALLS} calls at once\n"));
    is_down.store(true, SeqCst);
    join_all((0..CALLS).map(|_| pipeline.call(|| http.get(server, "/")))).await;
    let without = load();
    say(format!("  without a budget   {without} requests"));

    let budget = RetryBudget::new(RetryBudgetConfig::default().ratio(0.2).min_per_second(0))?;
    let within_budget = Pipeline::new().then(retry.with_budget(&budget)).classify(ByStatus::new());
    join_all((0..CALLS).map(|_| within_budget.call(|| http.get(server, "/")))).await;
    let with = load();
    say(format!("  with a budget      {with} requests"));

    // The answer of a last attempt is an answer: a 503. An error of the way there would be a `CallError` with its history.
    let nobody = std::net::SocketAddr::from(([127, 0, 0, 1], 9));
    let error = pipeline.call(|| http.get(nobody, "/")).await.err().ok_or("somebody answered")?;
    say(format!("\n  and nobody there: {error}"));
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
