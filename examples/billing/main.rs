//! A batch job on a queue listener: an initiator splits transactions into items, processors in several processes take
//! them from a durable queue, and a controller adds up the results by customer and writes the bill. The queue is in a file, or on
//! the server of `--backend`.
//!
//! With `--kill 20` random processors are killed twenty times, and the bill is the same to the cent. The cost of the
//! requests to the queue is compared with that of pollers with a period of a second; both are counted. The last line is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
mod args;
#[path = "../common/engine.rs"]
mod engine;
mod naive;
mod plot;
mod pool;
mod processor;
mod transactions;

use std::{
    collections::BTreeSet,
    error::Error,
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
    sync::{Arc, Mutex},
    time::Duration,
};

use clap::Parser;
use serde_json::json;
use steadfast::{
    backend::Backend,
    entropy::Entropy,
    queue::{AnnouncingQueue, Message, Queue},
    queue_listener::{QueueListener, Work},
    store::{Scan, StoreExt},
    time::Clock,
};
use tokio::sync::Notify;

use args::Args;
use engine::{Engine, EngineAt};
use plot::Sample;
use pool::Pool;
use processor::{DONE, ITEMS, PARTIALS, REPORT, config};
use transactions::{Part, Totals, generate, merge};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let done = match (&args.processor, Engine::of_parent()) {
        (Some(folder), Some(engine)) => processor::process(folder, &engine).await.map(|()| true),
        _ => bill(&args).await,
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(io::stderr(), "billing: {error}");
            ExitCode::FAILURE
        }
    }
}

fn say(what: std::fmt::Arguments<'_>) -> Result<()> {
    Ok(writeln!(io::stdout(), "{what}")?)
}

async fn bill(args: &Args) -> Result<bool> {
    let files = [("--report", &args.report), ("--plot", &args.plot)];
    for (flag, path) in files {
        if let Some(path) = path {
            check(path).map_err(|e| format!("{flag} {}: {e}", path.display()))?;
        }
    }
    let folder = tempfile::tempdir()?;
    let (parts, expected) = generate(args, &folder.path().join("transactions.csv"))?;
    let engine = Arc::new(EngineAt::start_shared(args.backend.as_ref(), folder.path(), "billing.db")?);
    let backend = engine.open().await?;
    say(format_args!("{} transactions in {} items, {} processes", args.rows, parts.len(), args.processors))?;

    let clock = Clock::tokio();
    let start = clock.now();
    let pool = tokio::sync::Mutex::new(Pool::begin(folder.path(), &engine, args.processors.into())?);
    let samples = Mutex::new(Vec::new());
    let items = backend.queue(&engine.name(ITEMS)).await?;
    let controller = Controller::new(&backend, &engine, parts.len()).await?;
    let sampling = async {
        loop {
            let (standing, depth) = (pool.lock().await.standing(), processor::waiting(&*items).await?);
            let seconds = (clock.now() - start).as_secs_f64();
            let sample = Sample { seconds, depth, tasks: standing.tasks, requests: standing.requests };
            samples.lock().map_err(|_| "a panic")?.push(sample);
            clock.sleep(REPORT).await;
        }
    };
    let working = async {
        initiate(&backend, &engine, &parts).await?;
        let (all, kills) = tokio::join!(controller.run(), kill(args, &controller, &pool));
        all?;
        Ok::<_, Box<dyn Error + Send + Sync>>((kills?, clock.now() - start))
    };
    let (kills, took) = tokio::select! {
        worked = working => worked?,
        failed = sampling => return failed,
    };
    let busy = pool.lock().await.standing();
    let sampling_idle = async {
        let end = clock.now() + args.idle();
        while clock.now() < end {
            let standing = pool.lock().await.standing();
            let seconds = (clock.now() - start).as_secs_f64();
            let sample = Sample { seconds, depth: 0, tasks: standing.tasks, requests: standing.requests };
            samples.lock().map_err(|_| "a panic")?.push(sample);
            clock.sleep(REPORT).await;
        }
        Ok::<_, Box<dyn Error + Send + Sync>>(())
    };
    sampling_idle.await?;
    pool.lock().await.end().await?;
    let all = pool.lock().await.standing();

    let totals = add_up(&backend, &engine).await?;
    let (processes, rest) = (args.processors.into(), rest_of_an_hour(took));
    let figures = Figures {
        items: parts.len() as u64,
        seconds: took.as_secs_f64(),
        listener: Counted {
            busy: busy.requests,
            idle: all.requests.saturating_sub(busy.requests),
            rest: naive::listeners_idle(processes, rest)?,
        },
        naive: Counted {
            busy: naive::pollers_busy(processes, parts.len())?,
            idle: naive::pollers_idle(processes, args.idle()),
            rest: naive::pollers_idle(processes, rest),
        },
    };
    figures.compare(args)?;
    let (total, expected_total): (i64, i64) = (totals.values().sum(), expected.values().sum());
    let holds = totals == expected && kills == args.kill;
    let summary = json!({
        "rows": args.rows, "total_cents": total, "expected_cents": expected_total, "kills": kills,
        "requests": all.requests, "naive_requests": figures.naive.busy + figures.naive.idle,
        "rest_requests": figures.listener.rest, "naive_rest_requests": figures.naive.rest,
        "rows_per_s": (args.rows as f64 / figures.seconds).round(),
    });
    say(format_args!("summary: {summary}"))?;
    // After the report: an unwritable file does not affect it.
    let title = format!("{} transactions by {} processes, {} killed", args.rows, args.processors, args.kill);
    let samples = samples.into_inner().map_err(|_| "a panic")?;
    for ((flag, path), text) in files.into_iter().zip([bill_of(&totals), plot::draw(&title, &samples)]) {
        if let Some(path) = path {
            std::fs::write(path, text).map_err(|e| format!("{flag} {}: {e}", path.display()))?;
        }
    }
    Ok(holds)
}

/// Sends the items.
async fn initiate(backend: &Backend, engine: &Engine, parts: &[Part]) -> Result<()> {
    let name = engine.name(ITEMS);
    let items = AnnouncingQueue::new(backend.queue(&name).await?, backend.notifier(), name);
    for some in parts.chunks(500) {
        let messages: serde_json::Result<Vec<_>> =
            some.iter().map(|part| Ok(Message::new(serde_json::to_vec(part)?))).collect();
        items.send(messages?).await?;
    }
    Ok(())
}

/// Receives the finished items until all are done.
struct Controller {
    listener: QueueListener,
    items: usize,
    done: Mutex<BTreeSet<String>>,
    changed: Notify,
}

impl Controller {
    async fn new(backend: &Backend, engine: &Engine, items: usize) -> Result<Self> {
        let name = engine.name(DONE);
        let builder = QueueListener::builder(backend.queue(&name).await?, config().batch(100));
        let listener = builder.notifier(backend.notifier(), name).build()?;
        Ok(Self { listener, items, done: Mutex::default(), changed: Notify::new() })
    }

    fn done(&self) -> usize {
        self.done.lock().map_or(0, |done| done.len())
    }

    /// Waits until this many items are done.
    async fn reached(&self, items: usize) {
        loop {
            let changed = self.changed.notified();
            if self.done() >= items {
                return;
            }
            changed.await;
        }
    }

    async fn run(&self) -> Result<()> {
        let handler = async |work: Work| {
            // An item that was handled twice is reported twice, and counted once.
            if let Ok(mut done) = self.done.lock() {
                done.insert(String::from_utf8_lossy(&work.body).into_owned());
            }
            self.changed.notify_waiters();
        };
        Ok(self.listener.run(self.reached(self.items), handler).await?)
    }
}

/// Kills a random process after each interval of finished items.
async fn kill(args: &Args, controller: &Controller, pool: &tokio::sync::Mutex<Pool>) -> Result<u64> {
    let entropy = Entropy::from_seed(args.seed ^ 0xdead);
    for kill in 0..args.kill {
        let items = controller.items as u64 * (kill + 1) / (args.kill + 2);
        controller.reached(items as usize).await;
        pool.lock().await.kill(entropy.up_to(1 << 20) as usize).await?;
    }
    Ok(args.kill)
}

/// Adds up the partial results.
async fn add_up(backend: &Backend, engine: &Engine) -> Result<Totals> {
    let mut totals = Totals::new();
    for row in backend.store().scan_all(Scan::partition(engine.name(PARTIALS))).await? {
        merge(&mut totals, serde_json::from_slice(&row.value)?);
    }
    Ok(totals)
}

fn bill_of(totals: &Totals) -> String {
    let lines = totals.iter().map(|(customer, cents)| format!("{customer},{cents}\n"));
    std::iter::once("customer,cents\n".to_owned()).chain(lines).collect()
}

/// Refuses an unwritable file before the run.
fn check(path: &Path) -> io::Result<()> {
    let is_new = !path.try_exists()?;
    std::fs::File::options().write(true).create(true).truncate(false).open(path)?;
    if is_new { std::fs::remove_file(path) } else { Ok(()) }
}

/// Returns the rest of an hour after the work.
fn rest_of_an_hour(took: Duration) -> Duration {
    Duration::from_secs(3_600).saturating_sub(took)
}

/// Counted requests: during the work, while idle, and for the rest of an hour.
struct Counted {
    busy: u64,
    idle: u64,
    rest: u64,
}

/// Formats requests and their cost.
struct Figures {
    items: u64,
    seconds: f64,
    listener: Counted,
    naive: Counted,
}

impl Figures {
    fn compare(&self, args: &Args) -> Result<()> {
        let (listener, naive) = (&self.listener, &self.naive);
        say(format_args!("{} items in {:.1} s", self.items, self.seconds))?;
        say(format_args!("requests        listener      naive"))?;
        say(format_args!("busy          {:>10} {:>10}", listener.busy, naive.busy))?;
        say(format_args!("idle {:>5} s  {:>10} {:>10}", args.idle, listener.idle, naive.idle))?;
        say(format_args!("rest of 1 h   {:>10} {:>10}", listener.rest, naive.rest))?;
        // A month with one such bill per hour: busy during the work, idle for the rest.
        let money = |counted: &Counted| (30 * 24 * (counted.busy + counted.rest)) as f64 * args.price / 1e6;
        say(format_args!(
            "a bill an hour for a month, at {:.2} dollars for a million requests: {:.2} dollars, naive {:.2}",
            args.price,
            money(listener),
            money(naive)
        ))
    }
}
