//! A prober before the shops of three tenants, over real HTTP.
//!
//! Ada's shop is well. Bob's has lost its database. Carol's answers each unknown page with 200, and its page of readiness
//! is gone: only the expected text tells. Then the known good page fails, so the prober cannot judge, and says so. At last
//! the prober closes the breaker of calls to Bob's shop, when its database is back. The last line is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
mod common;

use std::{
    future::pending,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use common::{Result, answer, say, serve};
use serde_json::{Value, json};
use steadfast::{
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State},
    health::{Check, Group, Health, HealthConfig, HealthStatus, Prober, ProberConfig, Round, RoundOutcome, Target},
    time::Clock,
};

#[tokio::main]
async fn main() -> ExitCode {
    common::no_arguments(
        "A prober before the shops of three tenants: one fails, and one answers a missing page with 200.",
    );
    common::end(show().await)
}

async fn show() -> Result<(Value, bool)> {
    let (has_database, is_good) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
    let database = has_database.clone();
    let ping = move || {
        let is_there = database.load(SeqCst);
        async move { if is_there { Ok(()) } else { Err("connection refused") } }
    };
    let config = HealthConfig::default().cache_ttl(Duration::from_millis(50)).success_threshold(1);
    let bob = Health::builder(config).name("bob").check(Check::dependency("database", ping).required()).build()?;
    let good = is_good.clone();
    let server = serve(move |request| {
        let (bob, is_good) = (bob.clone(), good.load(SeqCst));
        async move {
            match request.uri().path() {
                "/good" => answer(if is_good { 200 } else { 500 }, "all is well"),
                "/ada/readyz" => answer(200, "healthy"),
                "/bob/readyz" => bob.answer(&Group::Readiness, request.headers()).await,
                path if path.starts_with("/carol/") => answer(200, "this page is not here"),
                _ => answer(404, "this page is not here"),
            }
        }
    })
    .await?;
    let target = |name: &str, path: &str| Target::new(name.to_owned(), format!("http://{server}{path}"));
    let prober = Prober::builder(ProberConfig::default())
        .target(target("ada", "/ada/readyz").text("healthy"))
        .target(target("bob", "/bob/readyz").text("healthy"))
        .target(target("carol", "/carol/readyz").text("healthy"))
        .known_good(target("good", "/good").text("all is well"))
        .known_bad(target("bad", "/no-such-page"))
        .build()?;

    let first = prober.round().await;
    tell(&first);
    is_good.store(false, SeqCst);
    let blind = prober.round().await;
    tell(&blind);
    is_good.store(true, SeqCst);

    // Calls to Bob's shop are rejected until the prober finds it well.
    let breaker =
        CircuitBreaker::builder(CircuitBreakerConfig::default().half_open_calls(1, 1.0)).name("bob").build()?;
    breaker.force_open(Duration::from_millis(200));
    has_database.store(true, SeqCst);
    let (clock, mut events) = (Clock::tokio(), breaker.events());
    let closed = async {
        while breaker.state() != State::Closed {
            events.recv().await?;
        }
        Ok::<_, common::Failure>(())
    };
    tokio::select! {
        () = breaker.run(|| prober.ask("bob"), pending()) => {}
        closed = closed => closed?,
        () = clock.sleep(Duration::from_secs(30)) => return Err("the breaker did not close within half a minute".into()),
    }
    say("Bob's database is back: the prober has closed the breaker");
    let last = prober.round().await;
    tell(&last);

    let unhealthy = |round: &Round| {
        let unhealthy = round.targets.iter().filter(|probe| probe.status == HealthStatus::Unhealthy);
        unhealthy.map(|probe| probe.target.to_string()).collect::<Vec<_>>()
    };
    let (before, after) = (unhealthy(&first), unhealthy(&last));
    let inconclusive =
        [&first, &blind, &last].iter().filter(|round| round.outcome == RoundOutcome::Inconclusive).count();
    let holds = before == ["bob", "carol"] && after == ["carol"] && inconclusive == 1;
    let summary = json!({
        "targets": first.targets.len(),
        "unhealthy": before,
        "unhealthy_later": after,
        "rounds": 3,
        "inconclusive": inconclusive,
        "warnings": prober.explain().warnings().len(),
    });
    Ok((summary, holds))
}

fn tell(round: &Round) {
    match round.outcome {
        RoundOutcome::Conclusive(worst) => say(format!("\nthe worst target is {}", worst.as_str())),
        _ => return say("\nthe prober itself has a problem: the round is inconclusive"),
    }
    for probe in &round.targets {
        let (code, why) = (probe.code.unwrap_or_default(), probe.failure.map_or("", |failure| failure.as_str()));
        say(format!(
            "  {:<6} {:<10} {code} {why:<13} {:?}",
            probe.target.as_str(),
            probe.status.as_str(),
            probe.latency
        ));
    }
}
