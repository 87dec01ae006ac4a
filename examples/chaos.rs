//! A pipeline under seeded chaos, with a healthy server: the injected faults by kind, and the effects on callers.
//!
//! Latency, faults, replaced answers, hangs and panics: first on calls without protection, then with the same
//! seed on a pipeline with time-outs, a retry and a fallback; then disabled. The last line is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
use std::{net::SocketAddr, process::ExitCode, time::Duration};

use futures::FutureExt;
use serde_json::json;
use steadfast::{
    FailureKind, Pipeline,
    backoff::BackoffConfig,
    call::{OperationName, Policy, idempotent, named},
    chaos::{Chaos, ChaosConfig, ChaosRule, Injected},
    entropy::Entropy,
    fallback::{Answer, Fallback, FallbackConfig},
    http::ByStatus,
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    timeout::Timeout,
};

#[path = "common/mod.rs"]
mod common;
use common::{Http, answer, end, no_arguments, say, serve};

const CALLS: u64 = 500;
const SEED: u64 = 42;
const ATTEMPT: Duration = Duration::from_millis(100);

static PRICE: OperationName = OperationName::new("price");

#[tokio::main]
async fn main() -> ExitCode {
    no_arguments(
        "A pipeline under seeded chaos, with a healthy server: the injected faults by kind, and the effects on callers.",
    );
    // Injected panics are caught and counted below; their traces are suppressed.
    std::panic::set_hook(Box::new(|_| ()));
    end(show().await)
}

/// Results of the calls.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
struct Saw {
    right: u64,
    degraded: u64,
    wrong: u64,
    panicked: u64,
}

fn chaos() -> Result<Chaos, steadfast::ConfigError> {
    let ms = Duration::from_millis;
    let rules = [
        ChaosRule::latency(ms(1), ms(20), 0.2),
        ChaosRule::fault(FailureKind::Connect, 0.1).operations(["price"]),
        ChaosRule::outcome(0.05),
        ChaosRule::hang(0.02),
        ChaosRule::panic(0.01),
    ];
    Chaos::builder(ChaosConfig::of(rules)).name("storm").entropy(&Entropy::from_seed(SEED)).build()
}

/// Makes sequential calls, so that the seed determines all results.
async fn storm<P: Policy>(pipeline: &Pipeline<P, ByStatus>, chaos: &Chaos, http: &Http, server: SocketAddr) -> Saw {
    let mut saw = Saw::default();
    for _ in 0..CALLS {
        let price = chaos.outcomes(named(&PRICE, || http.get(server, "/")), || Ok(answer(503, "made up")));
        let call = pipeline.call_or_marked(idempotent(price), |_| std::future::ready(Ok(answer(200, "yesterday's"))));
        match std::panic::AssertUnwindSafe(call).catch_unwind().await {
            Err(_) => saw.panicked += 1,
            Ok(Ok(Answer::Own(answer))) if answer.status() == 200 => saw.right += 1,
            Ok(Ok(Answer::Degraded { .. })) => saw.degraded += 1,
            Ok(_) => saw.wrong += 1,
        }
    }
    saw
}

async fn show() -> common::Result<(serde_json::Value, bool)> {
    let server = serve(|_| std::future::ready(answer(200, 117))).await?;
    let http = Http::new();
    say(format!("\n{CALLS} calls by seed {SEED}, one after another, to a server that is well\n"));
    let tell = |title: &str, saw: Saw, injected: Injected| {
        let Saw { right, degraded, wrong, panicked } = saw;
        say(format!(
            "  {title:<12} {right:>3} right, {degraded:>3} degraded, {wrong:>3} wrong or failed, {panicked:>2} panicked"
        ));
        let Injected { attempts, delayed, failed, replaced, hung, .. } = injected;
        say(format!(
            "  {:<12} {attempts} attempts met {delayed} delays, {failed} faults, {replaced} made-up answers, {hung} hangs, {} panics\n",
            "", injected.panicked
        ));
    };

    // Without protection except a time-out, which ends hangs. The fallback applies to no failure that occurs here.
    let bare_chaos = chaos()?;
    let nothing = FallbackConfig::default().fall_back_on(steadfast::KindSet::NONE);
    let bare = Pipeline::new().then(Fallback::new(nothing)?).then(Timeout::new(ATTEMPT)).then(bare_chaos.clone());
    let bare = bare.classify(ByStatus::new());
    let unprotected = storm(&bare, &bare_chaos, &http, server).await;
    tell("unprotected", unprotected, bare_chaos.injected());

    let storming = chaos()?;
    let quick = BackoffConfig::default().between(Duration::from_millis(1), Duration::from_millis(5));
    let budget = RetryBudget::new(RetryBudgetConfig::default().ratio(0.5))?;
    let pipeline = Pipeline::new()
        .then(Fallback::new(FallbackConfig::default())?)
        .then(Timeout::new(Duration::from_secs(2)))
        .then(Retry::builder(RetryConfig::default().max_attempts(3).backoff(quick)).budget(&budget).build()?)
        .then(Timeout::new(ATTEMPT))
        .then(storming.clone())
        .classify(ByStatus::new());
    let protected = storm(&pipeline, &storming, &http, server).await;
    let injected = storming.injected();
    tell("protected", protected, injected);
    for warning in pipeline.explain().warnings() {
        say(format!("  warning: {warning}"));
    }

    storming.set_enabled(false);
    let calm = storm(&pipeline, &storming, &http, server).await;
    say(String::new());
    tell("switched off", calm, storming.injected());

    let summary = json!({
        "calls": CALLS, "seed": SEED,
        "injected": {
            "attempts": injected.attempts, "delayed": injected.delayed, "failed": injected.failed, "replaced": injected.replaced,
            "hung": injected.hung, "panicked": injected.panicked,
        },
        "unprotected": { "right": unprotected.right, "wrong": unprotected.wrong, "panicked": unprotected.panicked },
        "protected": {
            "right": protected.right, "degraded": protected.degraded, "wrong": protected.wrong, "panicked": protected.panicked,
        },
    });
    // No policy catches a panic. Everything else is repaired.
    let Injected { delayed, failed, replaced, hung, panicked, .. } = injected;
    let holds = [delayed, failed, replaced, hung, panicked].iter().all(|n| *n > 0)
        && unprotected.right < CALLS * 9 / 10
        && protected.wrong == 0
        && protected.right + protected.degraded + protected.panicked == CALLS
        && protected.panicked == panicked
        && protected.degraded < CALLS / 50
        && calm == Saw { right: CALLS, ..Saw::default() }
        && storming.injected() == injected;
    Ok((summary, holds))
}
