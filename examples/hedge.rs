//! A service with one slow answer in twenty: the tail of its latencies with and without a hedge, and the cost.
//!
//! Then all answers are slow: a budget bounds the additional load of the hedge. The last line is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
use std::{
    net::SocketAddr,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::{StreamExt, stream};
use serde_json::json;
use steadfast::{
    Pipeline,
    call::Policy,
    entropy::Entropy,
    hedge::{Hedge, HedgeConfig},
    retry::{RetryBudget, RetryBudgetConfig},
    time::Clock,
};

#[path = "common/mod.rs"]
mod common;
use common::{Http, answer, end, no_arguments, say, serve};

const CALLS: u64 = 800;
const AT_ONCE: usize = 8;
const FAST: Duration = Duration::from_millis(5);
const SLOW: Duration = Duration::from_millis(400);
/// Longer than a busy machine delays one answer in twenty: each of those would cost a hedge.
const LATE: Duration = Duration::from_millis(120);
/// Maximum additional load of hedges.
const RATIO: f64 = 0.1;

#[tokio::main]
async fn main() -> ExitCode {
    no_arguments(
        "A service with one slow answer in twenty: the tail of its latencies with and without a hedge, and the cost.",
    );
    end(show().await)
}

/// Returns the sorted latencies of calls, and the number of those that got a slow answer.
async fn latencies<P: Policy>(
    pipeline: &Pipeline<P>,
    http: &Http,
    server: SocketAddr,
    calls: u64,
) -> (Vec<Duration>, usize) {
    let one = |_| async {
        let clock = Clock::tokio();
        let start = clock.now();
        let answer = pipeline.call(|| http.get(server, "/")).await.ok()?;
        Some((clock.now() - start, answer.body() == "slow"))
    };
    let answers = stream::iter(0..calls).map(one).buffer_unordered(AT_ONCE).filter_map(std::future::ready);
    let (mut took, slow): (Vec<_>, Vec<_>) = answers.unzip().await;
    took.sort();
    (took, slow.into_iter().filter(|slow| *slow).count())
}

fn percentile(sorted: &[Duration], share: f64) -> Duration {
    let at = ((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(at).copied().unwrap_or_default()
}

async fn show() -> common::Result<(serde_json::Value, bool)> {
    let (asked, all_slow) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let server = serve({
        let (asked, all_slow, entropy) = (asked.clone(), all_slow.clone(), Entropy::from_seed(7));
        move |_| {
            asked.fetch_add(1, SeqCst);
            let slow = all_slow.load(SeqCst) || entropy.unit() < 0.05;
            async move {
                Clock::tokio().sleep(if slow { SLOW } else { FAST }).await;
                answer(200, if slow { "slow" } else { "fast" })
            }
        }
    })
    .await?;
    let http = Http::new();
    let budget = || RetryBudget::new(RetryBudgetConfig::default().ratio(RATIO).min_per_second(0));
    let hedge = Hedge::new(HedgeConfig::after(LATE).idempotent(true))?;
    let within_budget = || Hedge::builder(HedgeConfig::after(LATE).idempotent(true)).budget(&budget()?).build();
    let (without, with) = (Pipeline::new().then(None::<Hedge>), Pipeline::new().then(Some(within_budget()?)));

    say(format!("\n{CALLS} calls, one answer in twenty takes {SLOW:?} in place of {FAST:?}; a hedge after {LATE:?}\n"));
    say("                      p50       p95       p99   slow answers   requests");
    let (mut p99, mut tails, mut loads) = (Vec::new(), Vec::new(), Vec::new());
    for (title, pipeline) in [("without", &without), ("with a hedge", &with)] {
        let (took, slow) = latencies(pipeline, &http, server, CALLS).await;
        let load = asked.swap(0, SeqCst);
        let of = |share| percentile(&took, share).as_millis();
        say(format!(
            "  {title:<14} {:>5} ms  {:>5} ms  {:>5} ms   {slow:>12}   {load:>8}",
            of(0.5),
            of(0.95),
            of(0.99)
        ));
        p99.push(percentile(&took, 0.99));
        tails.push(slow);
        loads.push((took.len() as u64, load));
    }

    say(format!("\nnow every answer takes {SLOW:?}\n"));
    all_slow.store(true, SeqCst);
    let calls = CALLS / 8;
    for (title, hedge) in [("no budget", hedge.clone()), ("a budget", within_budget()?)] {
        let (took, _) = latencies(&Pipeline::new().then(hedge), &http, server, calls).await;
        let load = asked.swap(0, SeqCst);
        say(format!("  {title:<14} {calls} calls, {load} requests"));
        loads.push((took.len() as u64, load));
    }

    let [plain, hedged, unbounded, bounded] = loads[..] else { return Err("four rounds".into()) };
    let summary = json!({
        "calls": CALLS, "p99_ms_without": p99[0].as_millis() as u64, "p99_ms_with": p99[1].as_millis() as u64,
        "slow_answers_without": tails[0], "slow_answers_with": tails[1],
        "requests_without": plain.1, "requests_with": hedged.1, "budget": RATIO,
        "all_slow": { "calls": calls, "requests_without_budget": unbounded.1, "requests_with_budget": bounded.1 },
    });
    let in_budget = |(calls, load): (u64, u64)| load as f64 <= calls as f64 * (1.0 + RATIO);
    // Counts, not times: a machine that is stalled for a moment makes any answer late.
    let holds = plain == (CALLS, CALLS)
        && (hedged.0, unbounded.0, bounded.0) == (CALLS, calls, calls)
        && tails[1] < tails[0] / 2
        && in_budget(hedged)
        && !in_budget(unbounded)
        && in_budget(bounded);
    Ok((summary, holds))
}
