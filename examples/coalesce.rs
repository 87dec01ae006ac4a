//! A thousand callers with the same key share one call, retries included; the first caller may be dropped.
//!
//! The first request fails, and is retried once for all callers. Then the caller that drives the call is
//! dropped: another caller continues, and the server gets no second request. The last line is the result as JSON.
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
use serde_json::json;
use steadfast::{
    Pipeline,
    call::idempotent,
    coalesce::Coalesce,
    http::ByStatus,
    retry::{Retry, RetryConfig},
    time::Clock,
    timeout::Timeout,
};

#[path = "common/mod.rs"]
mod common;
use common::{Http, answer, end, no_arguments, number, say, serve};

const CALLERS: usize = 1_000;
/// Half of it is longer than a busy machine stalls.
const SLOW: Duration = Duration::from_millis(1_000);

#[tokio::main]
async fn main() -> ExitCode {
    no_arguments(
        "A thousand callers with the same key share one call, retries included; the first caller may be dropped.",
    );
    end(show().await)
}

async fn show() -> common::Result<(serde_json::Value, bool)> {
    let asked = Arc::new(AtomicU64::new(0));
    let server = serve({
        let (asked, has_failed) = (asked.clone(), AtomicBool::new(false));
        move |_| {
            asked.fetch_add(1, SeqCst);
            let fails = !has_failed.swap(true, SeqCst);
            async move {
                Clock::tokio().sleep(SLOW).await;
                answer(if fails { 503 } else { 200 }, 117)
            }
        }
    })
    .await?;
    let (http, clock) = (Http::new(), Clock::tokio());
    let load = || asked.swap(0, SeqCst);

    // Around the pipeline, which retries, counts and limits the one call. All callers get its error, so it is cloneable.
    let pipeline = Pipeline::new()
        .then(Timeout::new(SLOW * 20))
        .then(Retry::new(RetryConfig::interactive())?)
        .classify(ByStatus::new());
    let prices: Coalesce<String, Result<u64, Arc<str>>> = Coalesce::new();
    let ask = |product: &str| {
        let (product, path, prices) = (product.to_owned(), format!("/{product}"), &prices);
        let (http, pipeline) = (http.clone(), pipeline.clone());
        let call = || async move {
            match pipeline.call(idempotent(|| http.get(server, &path))).await {
                Ok(answer) if answer.status() == 200 => number(&answer).ok_or_else(|| "not a price".into()),
                Ok(answer) => Err(answer.status().as_str().into()),
                Err(error) => Err(error.to_string().into()),
            }
        };
        async move { prices.run(product.as_str(), call).await }
    };

    say(format!("\n{CALLERS} ask for one price at once; the first request fails\n"));
    let start = clock.now();
    let answers = join_all((0..CALLERS).map(|_| ask("tea"))).await;
    let answered = answers.iter().filter(|answer| matches!(answer, Ok(Ok(117)))).count();
    let (requests, took) = (load(), clock.now() - start);
    say(format!("  {answered} answered, {requests} requests, {} ms", took.as_millis()));

    say("\nwho drives the call is dropped in the middle; ten wait\n");
    let impatient = Timeout::new(SLOW / 2);
    let leader = impatient.call(|| async { Ok::<_, ()>(ask("milk").await) });
    let (leader, others) = futures::join!(leader, join_all((0..10).map(|_| ask("milk"))));
    let left = leader.is_err_and(|error| error.is_timed_out());
    let promoted = others.iter().filter(|answer| matches!(answer, Ok(Ok(117)))).count();
    let after = load();
    say(format!("  the first left: {left}; {promoted} answered, {after} request"));

    let summary = json!({
        "callers": CALLERS, "answered": answered, "requests": requests, "ms": took.as_millis() as u64,
        "leader_left": left, "answered_then": promoted, "requests_then": after, "under_way": prices.under_way(),
    });
    let holds = answered == CALLERS && requests == 2 && left && promoted == 10 && after == 1 && prices.under_way() == 0;
    Ok((summary, holds))
}
