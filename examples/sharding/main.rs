//! The orders of many tenants in four SQLite files, each behind its own process, over HTTP; a fifth is added. With `--backend`
//! the shards are name spaces of a server instead.
//!
//! Shown are an even distribution, reads by key and by fan-out, a killed shard without an effect on the others,
//! and a fifth shard that gets its share during writes and reads, from movers that are killed in between. At the
//! end every row of every file is counted. The last line is the result as JSON.
#![allow(missing_docs, unreachable_pub, reason = "a program has no readers from outside")]
#[path = "../common/engine.rs"]
mod engine;
mod load;
mod mover;
mod router;
mod shard;
mod wire;

use std::{
    collections::BTreeMap,
    error::Error,
    fmt,
    io::{self, Write as _},
    process::{ExitCode, Stdio},
    time::Duration,
};

use clap::Parser;
use futures::{StreamExt, stream};
use steadfast::{
    circuit_breaker::State,
    sharding::{ShardDirectory, ShardDirectoryConfig, ShardId, ShardMap, merge_sorted, skew},
    time::Clock,
};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::{
    engine::{Engine, EngineAt},
    load::Load,
    router::Router,
    wire::{Answer, Ask, Order},
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const VIRTUAL: u32 = 4_096;
/// Time limit of an attempt of a request to a shard: no request fails on a busy machine.
const REQUEST: Duration = Duration::from_secs(10);
const ORDERS_EACH: u32 = 3;
const FIRST: [ShardId; 4] = [ShardId(0), ShardId(1), ShardId(2), ShardId(3)];
const FIFTH: ShardId = ShardId(4);

/// Orders in four shards; one is killed, a fifth is added, its mover is killed.
#[derive(Parser)]
struct Args {
    /// Number of tenants. Each has three orders.
    #[arg(long, default_value_t = 4_000, value_parser = clap::value_parser!(u32).range(50..=1_000_000))]
    tenants: u32,
    /// Number of movers that are killed, each at another step, before one may finish.
    #[arg(long, default_value_t = 3)]
    kills: u32,
    /// Place of the map and the shards: `sqlite:FILE`, the URL of a server (`postgres://..`, `redis://..`), or `postgres` or
    /// `redis` for a server of this run. Temporary files by default.
    #[arg(long, value_name = "BACKEND")]
    backend: Option<EngineAt>,
    #[arg(long, hide = true)]
    mover: bool,
    #[arg(long, hide = true)]
    shard: Option<u32>,
    #[arg(long, hide = true)]
    hold: Option<u32>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let engine = Engine::of_parent();
    if engine.is_some() {
        std::thread::spawn(end_with_parent);
    }
    let done = match (engine, args.shard) {
        (Some(engine), Some(shard)) => shard::serve(&engine, ShardId(shard)).await.map(|()| true),
        (Some(engine), None) if args.mover => mover::rebalance(&engine, &all(), args.hold).await.map(|()| true),
        _ => show(&args).await,
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(io::stderr().lock(), "sharding: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Ends this process at the end of its input: the process that started it is gone, also if it was killed.
fn end_with_parent() {
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    std::process::exit(1);
}

fn all() -> Vec<ShardId> {
    FIRST.into_iter().chain([FIFTH]).collect()
}

fn say(what: impl fmt::Display) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{what}")
}

// ---- processes --------------------------------------------------------------------------------------------------------------

/// A process of this program, and its output.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// Open as long as this process lives.
    _input: Option<ChildStdin>,
}

impl Process {
    fn start(engine: &Engine, args: impl IntoIterator<Item = String>) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.envs(engine.variables()).args(args);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let lines = BufReader::new(child.stdout.take().ok_or("a process without a pipe")?).lines();
        Ok(Self { _input: child.stdin.take(), child, lines })
    }

    /// Starts a shard, which listens.
    async fn shard(engine: &Engine, shard: ShardId) -> Result<Self> {
        let mut process = Self::start(engine, [format!("--shard={}", shard.0)])?;
        process.lines.next_line().await?.ok_or_else(|| format!("{shard} did not start"))?;
        Ok(process)
    }

    /// Kills the process by SIGKILL.
    async fn kill(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }
}

// ---- the control ------------------------------------------------------------------------------------------------------------

/// Every row of every file, with the shards that hold it.
type Rows = BTreeMap<(u32, u32), Vec<(ShardId, u64)>>;

async fn everything(router: &Router) -> Result<Rows> {
    let mut rows = Rows::new();
    for (shard, answer) in router.ask_all(&Ask::Everything).await.complete()? {
        let Answer::Orders(orders) = answer else { return Err("a shard that answers something else".into()) };
        for Order { tenant, number, cents } in orders {
            rows.entry((tenant, number)).or_default().push((shard, cents));
        }
    }
    Ok(rows)
}

fn shares(rows: &Rows) -> Result<Vec<u64>> {
    let mut counts = BTreeMap::new();
    rows.values().flatten().for_each(|(shard, _)| *counts.entry(*shard).or_default() += 1);
    let total: u64 = counts.values().sum();
    for (shard, count) in &counts {
        let share = *count as f64 / total as f64;
        let bar = "█".repeat((share * 120.0).round() as usize);
        say(format_args!("  {shard}  {count:>6} rows  {:>4.1} %  {bar}", share * 100.0))?;
    }
    Ok(counts.into_values().collect())
}

async fn show(args: &Args) -> Result<bool> {
    let folder = tempfile::tempdir()?;
    let engine = EngineAt::start_shared(args.backend.as_ref(), folder.path(), "map.db")?;
    let (engine, stores) = (&engine, if engine.file().is_some() { "files" } else { "name spaces" });
    let map = ShardMap::hashed(VIRTUAL, &FIRST)?;
    let store = engine.open().await?.store();
    let builder = ShardDirectory::builder(store, engine.name("orders"), ShardDirectoryConfig::default());
    builder.create(&map).await?;
    let mut shards = Vec::new();
    for shard in FIRST {
        shards.push(Process::shard(engine, shard).await?);
    }
    let router = Router::open(engine).await?;
    let load = Load::new(args.tenants, ORDERS_EACH);
    let keys = u64::from(args.tenants) * u64::from(ORDERS_EACH);

    say(format_args!(
        "\n{keys} orders of {} tenants, {VIRTUAL} virtual shards in {} {stores}, a process each\n",
        args.tenants,
        FIRST.len()
    ))?;
    load.fill(&router).await?;
    let before = everything(&router).await?;
    let counts = shares(&before)?;
    let mut as_it_should = before.len() as u64 == keys;
    say(format_args!("  the largest has {:.3} times the mean\n", skew(&counts)))?;

    as_it_should &= ask_all_shards(&router, keys).await?;
    as_it_should &= lose_a_shard(&router, &load, engine, &mut shards).await?;

    shards.push(Process::shard(engine, FIFTH).await?);
    let plan = map.plan(&all())?;
    say(format_args!("{FIFTH} comes in: {} moves, while orders are written and read\n", plan.len()))?;
    let work = load.run(&router);
    let seen = tokio::spawn(work);
    for mover in 0..=args.kills {
        // The first mover is stopped in its second move, each further one a step later.
        let hold = (mover < args.kills).then_some(if mover == 0 { 6 } else { 2 });
        watch(engine, mover + 1, hold).await?;
    }
    load.stop();
    let seen = seen.await??;
    say(format_args!(
        "\n  during the move {} writes and {} reads; {} failed, {} returned old values; the slowest took {} ms\n",
        seen.writes,
        seen.reads,
        seen.failed,
        seen.old,
        seen.slowest.as_millis()
    ))?;

    let after = everything(&router).await?;
    let counts = shares(&after)?;
    say(format_args!("  the largest has {:.3} times the mean\n", skew(&counts)))?;
    let moved = after.iter().filter(|(key, at)| at.iter().any(|(shard, _)| before[key].iter().all(|b| b.0 != *shard)));
    let moved = moved.count();
    let lost = load.lost(&after);
    let doubled = after.values().filter(|at| at.len() > 1).count();
    let map = router.directory.refresh().await?;
    let strays = after.iter().filter(|((tenant, _), at)| at.iter().any(|(s, _)| map.shard_of(tenant) != Some(*s)));
    let strays = strays.count();
    say(format_args!(
        "  {strays} rows are where the map has them not, {doubled} are in two {stores}, {lost} are lost\n"
    ))?;
    let ideal = keys as usize / all().len();
    say(format_args!(
        r#"summary: {{"keys":{keys},"moved":{moved},"ideal_moved":{ideal},"lost":{lost},"doubled":{doubled}}}"#
    ))?;
    as_it_should &= lost == 0 && doubled == 0 && strays == 0 && seen.failed == 0 && seen.old == 0;
    // The choice of moved tenants is random: five standard deviations.
    let spread = 5.0 * (f64::from(args.tenants) * 0.2 * 0.8).sqrt() * f64::from(ORDERS_EACH);
    Ok(as_it_should && moved.abs_diff(ideal) as f64 <= spread && after.len() as u64 == keys)
}

/// Asserts properties across all shards.
async fn ask_all_shards(router: &Router, keys: u64) -> Result<bool> {
    let totals = router.ask_all(&Ask::Total).await.complete()?;
    let sum = totals.iter().fold((0, 0), |(n, sum), (_, answer)| match answer {
        Answer::Total { orders, cents } => (n + orders, sum + cents),
        _ => (n, sum),
    });
    let largest = router.ask_all(&Ask::Largest { count: 3 }).await.complete()?;
    let sorted = largest.into_iter().map(|(_, answer)| match answer {
        Answer::Orders(orders) => orders.into_iter().map(std::cmp::Reverse),
        _ => Vec::new().into_iter().map(std::cmp::Reverse),
    });
    let top: Vec<_> = merge_sorted(sorted, 3).iter().map(|order| format!("{} cents", order.0.cents)).collect();
    say(format_args!("  over all shards: {} orders, {} cents; the largest: {}\n", sum.0, sum.1, top.join(", ")))?;
    Ok(sum.0 == keys && top.len() == 3)
}

/// Kills one shard: the others continue, a fan-out names the missing shard, and only its own breaker opens.
async fn lose_a_shard(router: &Router, load: &Load, engine: &Engine, shards: &mut [Process]) -> Result<bool> {
    let (lost, clock) = (ShardId(2), Clock::tokio());
    shards[2].child.kill().await?;
    let (mut partial, mut missing) = (0, String::new());
    for _ in 0..200 {
        let answers = router.ask_all(&Ask::Total).await;
        partial +=
            u32::from(answers.results.len() == 3 && answers.failures.len() == 1 && answers.failures[0].0 == lost);
        if let Err(failed) = answers.complete() {
            missing = failed.to_string();
        }
    }
    let (mut answered, mut not) = (0, 0);
    let reads: Vec<_> = load.keys().step_by(10).collect();
    let mut reads = stream::iter(reads).map(|(tenant, number)| router.get(tenant, number)).buffer_unordered(16);
    while let Some(read) = reads.next().await {
        if read.is_ok() { answered += 1 } else { not += 1 }
    }
    let open = |router: &Router| -> Vec<String> {
        let open = router.breakers().into_iter().filter(|breaker| breaker.snapshot().state != State::Closed);
        open.filter_map(|breaker| breaker.name().map(ToString::to_string)).collect()
    };
    let opened = open(router);
    say(format_args!("{lost} is killed\n\n  {partial} of 200 sums over all shards are partial: {missing}"))?;
    say(format_args!(
        "  {answered} orders were read, {not} could not be; open is the breaker of {}",
        opened.join(", ")
    ))?;
    shards[2] = Process::shard(engine, lost).await?;
    let back = clock.now();
    while !open(router).is_empty() {
        clock.sleep(Duration::from_millis(20)).await;
        let _ = router.ask_all(&Ask::Total).await;
    }
    say(format_args!("  after its restart it gets calls again after {} ms\n", (clock.now() - back).as_millis()))?;
    Ok(partial == 200 && opened == [lost.to_string()] && not > 0)
}

/// Runs a mover and prints its output; kills it at the step at which it stops.
async fn watch(engine: &Engine, number: u32, hold: Option<u32>) -> Result<()> {
    let hold = hold.map(|step| format!("--hold={step}"));
    let mut mover = Process::start(engine, std::iter::once("--mover".to_owned()).chain(hold))?;
    while let Some(line) = mover.lines.next_line().await? {
        say(format_args!("  mover {number}  {line}"))?;
        if line.contains(mover::HOLDS) {
            // Meanwhile orders of the chunk wait.
            Clock::tokio().sleep(Duration::from_millis(200)).await;
            mover.kill().await?;
            return Ok(say(format_args!("  mover {number}  is killed"))?);
        }
    }
    if mover.child.wait().await?.success() { Ok(()) } else { Err("a mover failed".into()) }
}
