//! Lines of a shop's till become receipts: three filters between queues, each in three processes, which are killed.
//!
//! `parse` reads a line, and sends what is none to a queue of odd lines; `price` adds the price; `print` writes the receipt.
//! Each process logs what it handles, which a kill repeats. Each receipt comes out once all the same, and those of a till
//! in order, where the queues have groups: on NATS they have none. The last line is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
#[path = "common/mod.rs"]
mod common;
#[path = "common/engine.rs"]
mod engine;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    time::Duration,
};

use clap::Parser;
use common::{Result, say};
use engine::{Engine, EngineAt};
use serde_json::{Value, json};
use steadfast::{
    backend::Backend,
    backoff::BackoffConfig,
    entropy::Entropy,
    pipes_and_filters::{Emit, Filter, LINEAGE},
    port::Capability,
    queue::{Delivery, Message, Queue, QueueExt, Receive, Settle},
    queue_listener::{IdleConfig, QueueListenerConfig, Work},
    time::Clock,
};
use tokio::process::{Child, Command};

/// Runs three filters in nine processes that are killed.
#[derive(Parser, Clone)]
struct Args {
    /// Number of lines.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    lines: u32,
    /// Number of processes of each filter.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=8))]
    processes: u8,
    /// Number of kills of a random process.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(..=1_000))]
    kills: u32,
    /// Place of the queues: `sqlite:FILE`, the URL of a server, or `postgres`, `redis` or `nats` for a server of this run. A
    /// temporary file by default.
    #[arg(long, value_name = "BACKEND")]
    backend: Option<EngineAt>,
    /// Seed of the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Name of the filter that this process runs, and folder of its log.
    #[arg(long, hide = true, requires = "log")]
    filter: Option<String>,
    #[arg(long, hide = true)]
    log: Option<PathBuf>,
}

/// Maximum time without progress.
const PATIENCE: Duration = Duration::from_secs(120);
const FILTERS: [&str; 3] = ["parse", "price", "print"];
/// The queues before, between and behind the filters.
const QUEUES: [&str; 4] = ["lines", "sales", "priced", "receipts"];
const TILLS: u32 = 8;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let done = match (&args.filter, &args.log, Engine::of_parent()) {
        (Some(filter), Some(log), Some(engine)) => run_filter(filter, log, &engine).await.map(|()| true),
        _ => watch(&args).await,
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr().lock(), "pipes_and_filters: {error}");
            ExitCode::FAILURE
        }
    }
}

// ---- a process of one filter ------------------------------------------------------------------------------------------------

async fn queue(backend: &Backend, engine: &Engine, name: &str) -> Result<std::sync::Arc<dyn Queue>> {
    Ok(backend.queue(&engine.name(name)).await?)
}

async fn run_filter(name: &str, log: &Path, engine: &Engine) -> Result<()> {
    let backend = engine.open().await?;
    let at = FILTERS.iter().position(|filter| *filter == name).ok_or("no such filter")?;
    let (input, output) = (queue(&backend, engine, QUEUES[at]).await?, queue(&backend, engine, QUEUES[at + 1]).await?);
    let config = QueueListenerConfig::default()
        .tasks(1, 4)
        .visibility(Duration::from_secs(2))
        .idle(IdleConfig::between(Duration::from_millis(10), Duration::from_millis(200)))
        // On NATS results are sent before their message ends. Its queues must recognize them for longer than all these
        // attempts take: four minutes of five.
        .retry(BackoffConfig::default().between(Duration::from_millis(50), Duration::from_secs(1)))
        .handler_timeout(Duration::from_secs(5))
        .max_attempts(30)
        .max_expiries(30);
    let filter = Filter::builder(name.to_owned(), input, config)
        .output(output)
        .named_output("odd", queue(&backend, engine, "odd").await?)
        .build()?;
    let mut log = fs::OpenOptions::new().append(true).create(true).open(log)?;
    let noted = std::cell::RefCell::new(&mut log);
    let clock = Clock::tokio();
    filter
        .run(std::future::pending(), async |work: Work| {
            let text = String::from_utf8_lossy(&work.body).into_owned();
            // One write for the whole line, since nine processes append to the file.
            let line = format!("{name} {} {text}\n", std::process::id());
            noted.borrow_mut().write_all(line.as_bytes()).map_err(|error| error.to_string())?;
            clock.sleep(Duration::from_millis(5)).await;
            handled(name, &text)
        })
        .await?;
    Ok(())
}

/// The business of each filter.
fn handled(filter: &str, text: &str) -> std::result::Result<Emit, String> {
    let one = |value: Value| Emit::one(Message::new(value.to_string()));
    let json = |text: &str| serde_json::from_str::<Value>(text).map_err(|error| error.to_string());
    Ok(match filter {
        "parse" => match text.split(' ').collect::<Vec<_>>()[..] {
            [number, article, amount] => match (number.parse::<u32>(), amount.parse::<u32>()) {
                (Ok(number), Ok(amount)) => one(json!({ "number": number, "article": article, "amount": amount })),
                _ => Emit::to("odd", Message::new(text.to_owned())),
            },
            _ => Emit::to("odd", Message::new(text.to_owned())),
        },
        "price" => {
            let mut sale = json(text)?;
            let each = if sale["article"] == "pear" { 30 } else { 20 };
            sale["cents"] = json!(sale["amount"].as_u64().ok_or("no amount")? * each);
            one(sale)
        }
        _ => {
            let sale = json(text)?;
            Emit::one(Message::new(format!(
                "{}: {} {}, {} cents",
                sale["number"], sale["amount"], sale["article"], sale["cents"]
            )))
        }
    })
}

// ---- the control ------------------------------------------------------------------------------------------------------------

/// Every 50th line is damaged.
fn is_odd(number: u32) -> bool {
    number % 50 == 49
}

fn line(number: u32, has_groups: bool) -> Message {
    let article = if number.is_multiple_of(3) { "pear" } else { "apple" };
    let amount = if is_odd(number) { "some".to_owned() } else { (1 + number % 5).to_string() };
    let message = Message::new(format!("{number} {article} {amount}")).header(LINEAGE, format!("line-{number}"));
    if has_groups { message.group(format!("till-{}", number % TILLS)) } else { message }
}

/// The processes of all filters. One that was killed is replaced.
struct Pool {
    processes: Vec<(Child, usize)>,
    log: PathBuf,
    kills: u32,
}

impl Pool {
    fn start(&self, filter: usize, engine: &Engine) -> Result<Child> {
        Ok(Command::new(std::env::current_exe()?)
            .args(["--filter", FILTERS[filter], "--log"])
            .arg(&self.log)
            .envs(engine.variables())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()?)
    }

    /// `kill -9`, and another process in its place.
    async fn kill(&mut self, i: usize, engine: &Engine) -> Result<()> {
        let filter = self.processes[i].1;
        self.processes[i].0.kill().await?;
        self.processes[i].0 = self.start(filter, engine)?;
        self.kills += 1;
        Ok(())
    }
}

/// Reads messages until none is left, and returns them in their order.
async fn read(queue: &dyn Queue, read: &mut Vec<Delivery>) -> Result<()> {
    loop {
        let taken = queue.receive(Receive::new(32, Duration::from_secs(60))).await?;
        if taken.is_empty() {
            return Ok(());
        }
        let settlements = taken.iter().map(|delivery| (delivery.receipt.clone(), Settle::Complete)).collect();
        for settled in queue.settle(settlements).await? {
            settled?;
        }
        read.extend(taken);
    }
}

/// Returns the number of a line or of a receipt.
fn number(body: &[u8]) -> Option<u32> {
    String::from_utf8_lossy(body).split([' ', ':']).next()?.parse().ok()
}

async fn watch(args: &Args) -> Result<bool> {
    let (folder, clock, entropy) = (tempfile::tempdir()?, Clock::tokio(), Entropy::from_seed(args.seed));
    let engine = EngineAt::start_shared(args.backend.as_ref(), folder.path(), "till.db")?;
    let backend = engine.open().await?;
    let mut queues = Vec::new();
    for name in QUEUES {
        queues.push(queue(&backend, &engine, name).await?);
    }
    let (receipts, odd) = (queues[3].clone(), queue(&backend, &engine, "odd").await?);
    let has_groups = queues[0].capabilities().has(Capability::Groups);
    if !has_groups {
        say("  the queues have no groups: the order of a till is not kept");
    }
    let mut pool = Pool { processes: Vec::new(), log: folder.path().join("handled.log"), kills: 0 };
    for filter in 0..FILTERS.len() {
        for _ in 0..args.processes {
            let process = pool.start(filter, &engine)?;
            pool.processes.push((process, filter));
        }
    }
    say(format!("  {} lines, {} processes on one {}", args.lines, pool.processes.len(), engine.place()));

    let began = clock.now();
    let (mut came, mut odd_lines, mut sent, mut next_kill) = (Vec::new(), Vec::new(), 0, clock.now());
    let (mut last, mut since) = (0, began);
    loop {
        // The lines come while processes are killed.
        let share = if args.kills == 0 { 1.0 } else { f64::from(pool.kills + 1) / f64::from(args.kills) };
        while sent < args.lines && f64::from(sent) < share * f64::from(args.lines) {
            queues[0].send_one(line(sent, has_groups)).await?;
            sent += 1;
        }
        if pool.kills < args.kills && clock.now() >= next_kill {
            pool.kill(entropy.up_to(pool.processes.len() as u64 - 1) as usize, &engine).await?;
            next_kill = clock.now() + Duration::from_millis(50 + entropy.up_to(300));
        }
        read(&*receipts, &mut came).await?;
        read(&*odd, &mut odd_lines).await?;
        let through = came.len() + odd_lines.len();
        if through != std::mem::replace(&mut last, through) {
            since = clock.now();
        }
        let is_over = through >= args.lines as usize && pool.kills >= args.kills;
        if is_over || clock.now() - since > PATIENCE {
            break;
        }
        clock.sleep(Duration::from_millis(20)).await;
    }
    let took = clock.now() - began;
    // Messages that were delivered before a kill come back, and repeated results would arrive.
    clock.sleep(Duration::from_secs(4)).await;
    let until = clock.now() + PATIENCE;
    for queue in &queues[..3] {
        while queue.depth().await?.total() > 0 && clock.now() < until {
            clock.sleep(Duration::from_millis(50)).await;
        }
    }
    read(&*receipts, &mut came).await?;
    read(&*odd, &mut odd_lines).await?;

    let mut by_till: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let mut times: BTreeMap<u32, u32> = BTreeMap::new();
    for delivery in came.iter().chain(&odd_lines) {
        let number = number(&delivery.body).ok_or("a receipt without a number")?;
        *times.entry(number).or_default() += 1;
        if let Some(till) = delivery.group.clone()
            && !is_odd(number)
        {
            by_till.entry(till).or_default().push(number);
        }
    }
    let lineages: BTreeSet<_> = came.iter().chain(&odd_lines).filter_map(|came| came.headers.get(LINEAGE)).collect();
    let lost = (0..args.lines).filter(|number| !times.contains_key(number)).count();
    let doubled: u32 = times.values().map(|times| times - 1).sum();
    let out_of_order = by_till.values().filter(|numbers| !numbers.is_sorted()).count();
    let mut left = 0;
    let mut dead = 0;
    for queue in &queues[..3] {
        left += queue.depth().await?.total();
        dead += queue.dead_letters().ok_or("no dead letters")?.depth().await?.total();
    }
    // The log: each line at least once in each filter, and again after a kill.
    let log = fs::read_to_string(&pool.log)?;
    let logged: BTreeSet<_> = log
        .lines()
        .filter_map(|line| line.split_once(' ').and_then(|(f, rest)| Some((f, rest.split_once(' ')?.1))))
        .collect();
    let repeated = log.lines().count() - logged.len();
    let expected = 3 * args.lines as usize - 2 * odd_lines.len();
    say(format!(
        "  all came through after {:.1} s and {} kills; {repeated} pieces of work were done again, and no result came twice",
        took.as_secs_f64(),
        pool.kills
    ));
    let summary = json!({ "lines": args.lines, "receipts": came.len(), "odd": odd_lines.len(), "lost": lost,
        "doubled": doubled, "out_of_order": out_of_order, "left": left, "dead": dead, "kills": pool.kills,
        "handled": log.lines().count(), "repeated": repeated, "seconds": (took.as_secs_f64() * 10.0).round() / 10.0 });
    say(format!("\nsummary: {summary}"));
    let whole = logged.len() == expected && lineages.len() == args.lines as usize;
    Ok(whole && (lost, doubled, out_of_order, left, dead) == (0, 0, 0, 0, 0) && pool.kills == args.kills)
}
