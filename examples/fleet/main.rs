//! A shop that runs as several processes over one engine, while they are killed and paused, cut off, and the engine restarts.
//!
//! Each process accepts orders into a queue and handles those of all: it looks up the price in a cache, keeps a limit that all
//! share, pays at a gateway behind a shared breaker, and writes the order to the shard of its tenant. Four processes own a shard
//! each. One is elected to sweep the receipts, and moves a shard's rows away and back. The first process disturbs the others; at
//! the end it judges by what they have written into their logs. The last line is the result as JSON, and the exit code is 1 if
//! anything that was promised did not hold.
#![allow(missing_docs, unreachable_pub, reason = "a program has no readers from outside")]
mod cache;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/engine.rs"]
mod engine;
mod faults;
mod ingest;
mod judge;
mod limits;
mod listener;
mod log;
#[path = "../sharding/mover.rs"]
#[allow(dead_code, reason = "that example uses all of it")]
mod mover;
mod node;
mod plot;
mod processes;
#[path = "../sharding/router.rs"]
#[allow(dead_code, reason = "that example uses all of it")]
mod router;
#[path = "../sharding/shard.rs"]
#[allow(dead_code, reason = "that example uses all of it")]
mod shard;
mod sweeper;
#[path = "../sharding/wire.rs"]
#[allow(dead_code, reason = "that example uses all of it")]
mod wire;
mod world;

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use clap::{Parser, ValueEnum};
use futures::future::try_join_all;
use steadfast::{
    Pipeline,
    sharding::{ShardDirectory, ShardDirectoryConfig, ShardId, ShardMap},
    time::Clock,
    timeout::Timeout,
};

use common::{end, say};
use engine::{Engine, EngineAt};
use judge::{Rows, Run};
use log::Logs;
use processes::Processes;
use shard::Shared;
use wire::{Answer, Ask, Http};

type Result<T, E = common::Failure> = std::result::Result<T, E>;

const MS: fn(u64) -> Duration = Duration::from_millis;
const VIRTUAL: u32 = 4_096;
/// Maximum number of shards; each is owned by one process.
const SHARDS: usize = 4;
/// Maximum time for the processes to start, and then for one more order to be done.
const PATIENCE: Duration = Duration::from_secs(90);
/// Time limit of an attempt of a request to a shard.
const REQUEST: Duration = Duration::from_secs(1);

/// A service of several processes over one engine that are killed, paused and cut off: nothing that was accepted is lost.
#[derive(Parser, Clone)]
struct Args {
    /// Number of processes.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..=16))]
    processes: u32,
    /// Where the processes meet: `sqlite:FILE`, the URL of a server (`postgres://..`, `redis://..`, `nats://..`), or `postgres`,
    /// `redis`, `nats` or `nats:3` (a cluster of three) for servers of this run, which are restarted, and whose connections are
    /// cut. A temporary file by default.
    #[arg(long, value_name = "BACKEND")]
    backend: Option<EngineAt>,
    /// Seconds for which orders are accepted.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(5..=86_400))]
    seconds: u64,
    /// Number of processes that are killed. Between two kills, processes are paused or cut off, or the engine restarts.
    #[arg(long, default_value_t = 6)]
    kills: u32,
    /// Orders that all processes together accept in a second.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rate: u32,
    /// Seed of the faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File for the plot, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Folder in which the logs of the processes stay. A temporary one by default.
    #[arg(long, value_name = "FOLDER")]
    logs: Option<PathBuf>,
    /// First of the ports on which the processes serve their metrics, one each. No metrics by default.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..=65_520))]
    metrics: Option<u16>,
    /// A defect that is planted, which the judge has to find.
    #[arg(long, value_name = "DEFECT")]
    plant: Vec<Plant>,
    #[arg(long, hide = true)]
    node: Option<usize>,
    #[arg(long, hide = true, default_value_t = 0)]
    life: u32,
    #[arg(long, hide = true)]
    world: Option<std::net::SocketAddr>,
}

/// A defect of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Plant {
    /// A listener that completes some orders without handling them.
    Listener,
    /// A leader that writes without its token, also for some time after it was deposed.
    Leader,
    /// A cache that does not invalidate what was changed.
    Cache,
    /// A limit that each process counts by itself.
    Limit,
    /// A listener that handles some orders twice.
    Twice,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    match (args.node, args.world, Engine::of_parent()) {
        (Some(node), Some(world), Some(engine)) => match node::run(node, world, &args, engine).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("fleet: process {node}: {error}");
                ExitCode::FAILURE
            }
        },
        _ => end(show(&args).await),
    }
}

/// Returns the number of shards of so many processes.
fn shards(processes: u32) -> Vec<ShardId> {
    (0..(processes as usize).min(SHARDS)).map(|shard| ShardId(shard as u32)).collect()
}

async fn show(args: &Args) -> Result<(serde_json::Value, bool)> {
    let (folder, clock) = (tempfile::tempdir()?, Clock::tokio());
    let place = args.logs.clone().unwrap_or_else(|| folder.path().join("logs"));
    std::fs::create_dir_all(&place).map_err(|error| format!("--logs {}: {error}", place.display()))?;
    let engine = Arc::new(EngineAt::start_shared(args.backend.as_ref(), folder.path(), "fleet.db")?);
    let store = engine.open().await?.store();
    let builder = ShardDirectory::builder(store, engine.name("orders"), ShardDirectoryConfig::default());
    builder.create(&ShardMap::hashed(VIRTUAL, &shards(args.processes))?).await?;
    let (world, address) = world::World::open().await?;

    let logs = Arc::new(Mutex::new(Logs::new(place)));
    let processes = Processes::start(args, &engine, address, &logs)?;
    let reading = tokio::spawn(read(logs.clone()));
    wait("the processes start", PATIENCE, || logs_of(&logs).leaders().next().is_some()).await?;
    say(format!(
        "\n{} processes over one {}, {} kills in {} s\n",
        args.processes,
        engine.place(),
        args.kills,
        args.seconds
    ));

    let begin = clock.wall().as_millis();
    let faults = faults::disturb(args, &engine, &processes, &world, &logs).await?;
    let left = (begin + args.seconds * 1_000).saturating_sub(clock.wall().as_millis());
    clock.sleep(MS(left)).await;
    processes.drain().await;
    let close = clock.wall().as_millis();
    finish(&logs).await;
    // Late duplicates, late writes and stale values still show.
    clock.sleep(MS(3_000)).await;
    let rows = audit(&engine).await?;
    let ended = processes.end().await;
    clock.sleep(MS(100)).await;
    reading.abort();
    let mut logs = logs_of(&logs);
    logs.read();

    let run = Run { args, engine: &engine, logs: &logs, faults: &faults, rows: &rows, ended, begin, close };
    plot::draw(&run, say);
    if let Some(file) = &args.plot {
        std::fs::write(file, plot::svg(&run)).map_err(|error| format!("--plot {}: {error}", file.display()))?;
    }
    Ok(judge::judge(&run))
}

fn logs_of(logs: &Mutex<Logs>) -> std::sync::MutexGuard<'_, Logs> {
    logs.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the logs while they grow.
async fn read(logs: Arc<Mutex<Logs>>) {
    loop {
        logs_of(&logs).read();
        Clock::tokio().sleep(MS(100)).await;
    }
}

/// Waits until what was accepted is done, or no more is done.
async fn finish(logs: &Mutex<Logs>) {
    let undone = || logs_of(logs).undone();
    loop {
        let before = undone();
        if before == 0 || wait("one more order is done", PATIENCE, || undone() < before).await.is_err() {
            return;
        }
    }
}

/// Waits until the condition holds.
async fn wait(what: &str, patience: Duration, holds: impl Fn() -> bool) -> Result<()> {
    let clock = Clock::tokio();
    let until = clock.now() + patience;
    while !holds() {
        if clock.now() > until {
            return Err(format!("{what}: not within {patience:?}").into());
        }
        clock.sleep(MS(100)).await;
    }
    Ok(())
}

/// Reads every order from the shards, with the number of shards that own it: one.
async fn audit(engine: &Engine) -> Result<Rows> {
    let (clock, shared, http) = (Clock::tokio(), Shared::open(engine).await?, Http::new());
    let directory = shared.directory().await?;
    let until = clock.now() + PATIENCE;
    loop {
        let map = directory.refresh().await?;
        let read = async |shard: ShardId| {
            let address = shared.address(shard).await?.ok_or("a shard that was not started")?;
            // All rows of a shard take longer than a request of the service may.
            let ask = Pipeline::new().then(Timeout::new(Duration::from_secs(20)));
            match ask.call(|| http.ask(address, &Ask::Everything)).await.map_err(|error| format!("{shard}: {error}"))? {
                Answer::Orders(orders) => Ok((shard, orders)),
                other => Err(format!("{shard} answers {other:?}").into()),
            }
        };
        match try_join_all(map.shards().into_iter().map(read)).await {
            // During a move, rows are at two shards.
            Ok(answers) if map.moving().is_none() && directory.refresh().await?.version() == map.version() => {
                let mut rows = Rows::new();
                for (shard, orders) in answers {
                    for order in orders {
                        let owned = map.shard_of(&order.tenant) == Some(shard);
                        *rows.entry(order.number).or_default() += usize::from(owned);
                    }
                }
                return Ok(rows);
            }
            Err(error) if clock.now() > until => return Err(error),
            _ if clock.now() > until => return Err("the moves of shards do not end".into()),
            _ => clock.sleep(MS(200)).await,
        }
    }
}
