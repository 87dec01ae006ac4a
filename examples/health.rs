//! Twenty replicas of a service lose their database at once: ten leave, ten stay and answer what they can.
//!
//! Each replica has an address with `/livez` and `/readyz`. A prober asks all of them over HTTP, as a platform does. In each
//! round it also asks an address that is known to be good and one that is known to be bad; if either is misjudged, the
//! round is inconclusive. Meanwhile one replica is asked for a thousand reports a second. The last line is the result as
//! JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
mod common;
#[path = "common/engine.rs"]
mod engine;

use std::{
    net::SocketAddr,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use clap::Parser;
use common::{Http, Result, answer, say, serve};
use engine::EngineAt;
use futures::future::join_all;
use serde_json::{Value, json};
use steadfast::{
    health::{Check, Group, GroupReason, Health, HealthConfig, HealthStatus},
    time::Clock,
};
use tokio::sync::Notify;

const MS: fn(u64) -> Duration = Duration::from_millis;
const REPLICAS: usize = 20;
const CACHE_TTL: Duration = Duration::from_millis(500);

/// Twenty replicas of a service lose their database at once: ten leave, ten stay.
#[derive(Parser)]
struct Args {
    /// Where the replicas meet: `sqlite:FILE`, the URL of a server, or `postgres` or `redis` for a server of this run.
    /// Memory by default.
    #[arg(long, value_name = "BACKEND")]
    backend: Option<EngineAt>,
}

#[tokio::main]
async fn main() -> ExitCode {
    common::end(show(Args::parse()).await)
}

struct Replica {
    address: SocketAddr,
    health: Health,
}

/// Results of the prober.
#[derive(Default)]
struct Probed {
    rounds: AtomicU64,
    liveness_failures: AtomicU64,
    inconclusive: AtomicU64,
    /// Before its first result each replica is unready.
    are_ready: AtomicBool,
    most_left: AtomicU64,
}

async fn show(args: Args) -> Result<(Value, bool)> {
    let engine = args.backend.unwrap_or(EngineAt::Memory).start()?;
    let (backend, clock) = (engine.open().await?, Clock::tokio());
    let is_away = Arc::new(AtomicBool::new(false));
    let (fleet, stop) = (engine.name("shop"), Arc::new(Notify::new()));
    let mut replicas = Vec::new();
    for i in 0..REPLICAS {
        let database = is_away.clone();
        let ping = move || {
            let is_away = database.load(SeqCst);
            async move { if is_away { Err("connection refused") } else { Ok(()) } }
        };
        let config = HealthConfig::default().cache_ttl(CACHE_TTL).failure_threshold(2);
        let health = Health::builder(config)
            .name(&fleet)
            .check(Check::dependency("orders-db", ping).required())
            .check(Check::local("worker", || async { Ok::<_, String>(()) }).in_group(Group::Liveness))
            .fleet(backend.store(), format!("replica-{i}"))
            .build()?;
        replicas.push(Replica { address: listen(&health).await?, health });
    }
    let runs = replicas.iter().map(|replica| {
        let (health, stop) = (replica.health.clone(), stop.clone());
        tokio::spawn(async move { health.run(stop.notified()).await })
    });
    let runs = runs.collect::<Vec<_>>();
    let replicas = Arc::new(replicas);
    let probed = Arc::new(Probed::default());
    let prober = tokio::spawn(probe(replicas.clone(), probed.clone(), clock.clone()));
    until(&clock, || replicas.iter().all(|replica| replica.health.is_fit())).await?;
    say(format!("{REPLICAS} replicas over {} are ready", engine.place()));

    probed.are_ready.store(true, SeqCst);

    // A thousand reports a second for two seconds; a stalled machine takes longer, and is allowed as much more.
    let asked = &replicas[0].health;
    let (before, began) = (asked.executions("orders-db").unwrap_or_default(), clock.now());
    let mut reports = 0u64;
    while reports < 2_000 {
        clock.sleep(MS(10)).await;
        let due = ((clock.now() - began).as_millis() as u64).saturating_sub(reports);
        join_all((0..due).map(|_| asked.report(&Group::Readiness))).await;
        reports += due;
    }
    let executions = asked.executions("orders-db").unwrap_or_default() - before;
    let allowed = ((clock.now() - began).as_millis() / CACHE_TTL.as_millis()) as u64 + 1;
    say(format!("{reports} reports made {executions} executions of a check"));

    is_away.store(true, SeqCst);
    let states = || {
        let reports: Vec<_> = replicas.iter().map(|replica| replica.health.last_report(&Group::Readiness)).collect();
        let of = |reason| reports.iter().filter(|report| report.reason == Some(reason)).count();
        let degraded = reports.iter().filter(|report| report.status == HealthStatus::Degraded).count();
        (of(GroupReason::Ejected), of(GroupReason::Stayed), degraded)
    };
    until(&clock, || states().0 + states().1 == REPLICAS && states().0 == REPLICAS / 2).await?;
    clock.sleep(MS(2_000)).await;
    let (left, stayed, degraded) = states();
    say(format!("without their database {left} have left and {stayed} stay"));

    is_away.store(false, SeqCst);
    until(&clock, || states() == (0, 0, 0)).await?;
    say("with it all are ready again");
    stop.notify_waiters();
    prober.abort();
    for run in runs {
        run.await?;
    }
    let count = |counter: &AtomicU64| counter.load(SeqCst);
    let (failures, inconclusive) = (count(&probed.liveness_failures), count(&probed.inconclusive));
    let summary = json!({
        "replicas": REPLICAS,
        "left": left,
        "stayed": stayed,
        "degraded": degraded,
        "executions": executions,
        "reports": reports,
        "liveness_failures": failures,
        "rounds": count(&probed.rounds),
        "inconclusive": inconclusive,
    });
    let holds = (left, stayed, degraded) == (10, 10, 10)
        && count(&probed.most_left) <= 10
        && executions <= allowed
        && failures == 0
        && inconclusive == 0
        && count(&probed.rounds) > 10;
    Ok((summary, holds))
}

/// Serves the probes of a replica.
async fn listen(health: &Health) -> Result<SocketAddr> {
    let health = health.clone();
    serve(move |request| {
        let health = health.clone();
        async move {
            let group = match request.uri().path() {
                "/livez" => Group::Liveness,
                "/readyz" => Group::Readiness,
                _ => return answer(404, ""),
            };
            health.answer(&group, request.headers()).await
        }
    })
    .await
}

/// Asks all replicas, round after round.
async fn probe(replicas: Arc<Vec<Replica>>, probed: Arc<Probed>, clock: Clock) {
    let http = Http::new();
    loop {
        let good = http.get(replicas[0].address, "/livez").await;
        let bad = http.get(replicas[0].address, "/no-such-page").await;
        // A monitor that calls a missing page good, or a good one bad, says nothing about the others.
        let is_judged = good.is_ok_and(|page| page.status() == 200 && page.body() == "healthy")
            && bad.is_ok_and(|page| page.status() != 200);
        probed.inconclusive.fetch_add(u64::from(!is_judged), SeqCst);
        let lives = join_all(replicas.iter().map(|replica| http.get(replica.address, "/livez"))).await;
        let failed = lives.iter().filter(|page| !page.as_ref().is_ok_and(|page| page.status() == 200)).count();
        probed.liveness_failures.fetch_add(failed as u64, SeqCst);
        let counts = probed.are_ready.load(SeqCst);
        let ready = join_all(replicas.iter().map(|replica| http.get(replica.address, "/readyz"))).await;
        let left = ready.iter().filter(|page| page.as_ref().is_ok_and(|page| page.status() == 503)).count();
        probed.rounds.fetch_add(1, SeqCst);
        if counts {
            probed.most_left.fetch_max(left as u64, SeqCst);
        }
        clock.sleep(MS(100)).await;
    }
}

/// Waits for a fact, for two minutes at most.
async fn until(clock: &Clock, holds: impl Fn() -> bool) -> Result<()> {
    for _ in 0..6_000 {
        if holds() {
            return Ok(());
        }
        clock.sleep(MS(20)).await;
    }
    Err("what was expected did not come within two minutes".into())
}
