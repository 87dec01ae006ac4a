//! What do a supervised poll, a health answer and a read of the settings cost? Ours beside tokio-metrics, a bare task, a
//! constant handler of axum and arc-swap, alternating in one run. See README.md.
use std::{
    future::poll_fn,
    hint::black_box,
    io::Write,
    pin::Pin,
    process::ExitCode,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Request},
    routing::get,
};
use steadfast::{
    config_store::{Change, ConfigPublisher, ConfigStore, ConfigStoreConfig, Documents, PublisherConfig},
    health::{Check, Group, Health, HealthConfig},
    store::InMemoryStore,
    supervisor::{Child, Restart, Supervisor, SupervisorConfig},
    time::Clock,
};
use tokio_metrics::TaskMonitor;
use tower_service::Service;

const USAGE: &str = "\
usage: steadfast-operations [--quick] [--rounds N]

  --quick     a smoke run: few polls and one round; no figures to quote
  --rounds N  rounds for each line (15 by default)";

/// The options of a run.
struct Options {
    rounds: usize,
    /// Divides the number of polls and of answers.
    scale: u64,
}

const POLLS: u64 = 1_000_000;
const ANSWERS: u64 = 200_000;
const READS: u64 = 5_000_000;

#[derive(Clone, Copy, Debug)]
enum Subject {
    Metered,
    TaskMonitor,
    Unmetered,
    Bare,
    Boxed,
    Answer,
    Constant,
    Current,
    LoadFull,
}

/// One line of the table.
struct Row {
    name: &'static str,
    /// Ours, and the other.
    subjects: [Subject; 2],
    at_most: f64,
    times: u64,
}

const ROWS: [Row; 5] = [
    Row { name: "metered poll", subjects: [Subject::Metered, Subject::TaskMonitor], at_most: 1.0, times: POLLS },
    Row { name: "unmetered poll", subjects: [Subject::Unmetered, Subject::Bare], at_most: 1.05, times: POLLS },
    Row { name: "beside a box", subjects: [Subject::Unmetered, Subject::Boxed], at_most: 1.05, times: POLLS },
    Row { name: "cached answer", subjects: [Subject::Answer, Subject::Constant], at_most: 1.5, times: ANSWERS },
    Row { name: "current()", subjects: [Subject::Current, Subject::LoadFull], at_most: 1.1, times: READS },
];

/// Is polled so many times, and is ready to run at once after each.
fn polled(times: u64) -> impl Future<Output = Result<(), String>> + Send + 'static {
    let mut left = times;
    poll_fn(move |cx| {
        left = black_box(left) - 1;
        if left == 0 {
            return Poll::Ready(Ok(()));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

async fn supervised(child: Child) -> Duration {
    let built = Supervisor::builder(SupervisorConfig::default()).child(child.restart(Restart::Transient));
    let supervisor = built.build().expect("valid settings");
    timed(async { drop(supervisor.run(std::future::pending()).await.expect("it ends")) }).await
}

fn child(times: u64) -> Child {
    Child::new("polled", move |_| polled(times))
}

async fn timed(work: impl Future<Output = ()>) -> Duration {
    let start = Instant::now();
    work.await;
    start.elapsed()
}

async fn asked(mut app: Router, times: u64) -> Duration {
    let request = || Request::get("/readyz").body(Body::empty()).expect("a request");
    let answer = app.call(request()).await.expect("an answer");
    assert_eq!(answer.status(), 200);
    timed(async {
        for _ in 0..times {
            black_box(app.call(request()).await.expect("an answer"));
        }
    })
    .await
}

/// Returns a store of settings that are their text.
async fn settings() -> ConfigStore<String> {
    let store = Arc::new(InMemoryStore::new());
    let publisher = ConfigPublisher::builder(store.clone(), "shop", PublisherConfig::default()).build();
    let published = publisher.expect("valid settings").publish(Change::to("billing", "retries = 3")).await;
    published.expect("a revision");
    let load = |documents: &Documents| documents.text("billing").map(str::to_owned);
    let built = ConfigStore::builder(store, "shop", load, ConfigStoreConfig::default()).layers(["billing"]);
    built.build().await.expect("settings")
}

async fn run(subject: Subject, times: u64) -> Duration {
    match subject {
        Subject::Metered => supervised(child(times)).await,
        Subject::Unmetered => supervised(child(times).unmetered()).await,
        Subject::TaskMonitor => {
            let task = TaskMonitor::new().instrument(polled(times));
            timed(async { tokio::spawn(task).await.expect("no panic").expect("it ends") }).await
        }
        Subject::Bare => timed(async { tokio::spawn(polled(times)).await.expect("no panic").expect("it ends") }).await,
        Subject::Boxed => {
            let task: Pin<Box<dyn Future<Output = Result<(), String>> + Send>> = Box::pin(polled(times));
            timed(async { tokio::spawn(task).await.expect("no panic").expect("it ends") }).await
        }
        Subject::Answer => {
            let check = Check::dependency("orders-db", || async { Ok::<_, String>(()) });
            let config =
                HealthConfig::default().cache_ttl(Duration::from_secs(3600)).stale_after(Duration::from_secs(5000));
            let health = Health::builder(config).check(check).build().expect("valid settings");
            let answer = async move |headers: HeaderMap| health.answer::<String>(&Group::Readiness, &headers).await;
            asked(Router::new().route("/readyz", get(answer)), times).await
        }
        Subject::Current => {
            let settings = settings().await;
            timed(async {
                for _ in 0..times {
                    black_box(black_box(&settings).current());
                }
            })
            .await
        }
        Subject::LoadFull => {
            let settings = ArcSwap::from_pointee("retries = 3".to_owned());
            timed(async {
                for _ in 0..times {
                    black_box(black_box(&settings).load_full());
                }
            })
            .await
        }
        Subject::Constant => asked(Router::new().route("/readyz", get(async || "healthy")), times).await,
    }
}

/// Returns the executions of a check for each of 60,000 reports within a minute.
fn executions() -> f64 {
    let (clock, time) = Clock::manual();
    let check = Check::dependency("orders-db", || async { Ok::<_, String>(()) });
    let built = Health::builder(HealthConfig::default()).clock(&clock).check(check);
    let health = built.build().expect("valid settings");
    let reports = 60_000;
    time.block_on(async {
        for _ in 0..reports {
            clock.sleep(Duration::from_millis(1)).await;
            black_box(health.report(&Group::Readiness).await);
        }
    });
    health.executions("orders-db").unwrap_or_default() as f64 / f64::from(reports)
}

fn main() -> ExitCode {
    match arguments().and_then(|options| work(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("steadfast-operations: {error}");
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> Result<Options, String> {
    let mut options = Options { rounds: 15, scale: 1 };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quick" => (options.rounds, options.scale) = (1, 50),
            "--rounds" => {
                let n = words.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
                options.rounds = n.ok_or("--rounds wants a number from 1")?;
            }
            other => return Err(format!("unknown option {other}\n{USAGE}")),
        }
    }
    Ok(options)
}

fn work(options: &Options) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|e| e.to_string())?;
    let mut out = std::io::stdout().lock();
    let mut say = |text: String| writeln!(out, "{text}").map_err(|e| e.to_string());
    say("nanoseconds each, medians; ratio: ours / the other".to_owned())?;
    for row in &ROWS {
        let times = row.times / options.scale;
        let mut costs = [Vec::new(), Vec::new()];
        for round in 0..options.rounds {
            for turn in 0..2 {
                let at = (round + turn) % 2;
                let subject = row.subjects[at];
                // On a worker, as a service's tasks are.
                let took = runtime.block_on(async move { tokio::spawn(run(subject, times)).await.expect("no panic") });
                costs[at].push(took.as_nanos() as f64 / times as f64);
            }
        }
        let [ours, other] = costs.map(median);
        let [ours_is, other_is] = row.subjects;
        let (name, most) = (row.name, row.at_most);
        say(format!(
            "{name:<15} {ours_is:?} {ours:.1}, {other_is:?} {other:.1}, ratio {:.2}, at most {most}",
            ours / other
        ))?;
    }
    say(format!("executions      {:.5} for each report at 1,000 a second, at most 0.001", executions()))
}

fn median(mut costs: Vec<f64>) -> f64 {
    costs.sort_by(f64::total_cmp);
    costs[costs.len() / 2]
}
