//! A materialized view: electronics sold by product, from orders and customers, while projectors are killed.
//!
//! Three processes follow two logs, and one of them folds. A new version of the view comes in live, its processes and its
//! rebuild are killed, and readers are served all the time. Each read is compared with the events up to its place. The last
//! line is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
#[path = "common/mod.rs"]
mod common;
#[path = "common/engine.rs"]
mod engine;

use std::{
    collections::BTreeMap,
    io::Write as _,
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use clap::{Parser, ValueEnum};
use common::{Result, say};
use engine::{Engine, EngineAt};
use serde::{Deserialize, Serialize};
use serde_json::json;
use steadfast::{
    codec::Codec,
    entropy::Entropy,
    event_sourcing::{Commit, EventCodec, EventStore, Expected},
    materialized_view::{Projection, Sourced, View, ViewConfig, ViewError},
    time::Clock,
    work::IdleConfig,
};
use tokio::process::{Child, Command};

/// Follows orders and customers in several processes that are killed.
#[derive(Parser, Clone)]
struct Args {
    /// Number of commits before the first projector begins; as many follow.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(10..=100_000))]
    commits: u64,
    /// Number of kills of a random process.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(..=1_000))]
    kills: u32,
    /// Place of logs and view: `sqlite:FILE`, the URL of a server, or `postgres` or `redis` for a server of this run. A
    /// temporary file by default.
    #[arg(long, value_name = "BACKEND")]
    backend: Option<EngineAt>,
    /// Seed of the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, hide = true, default_value = "watch")]
    role: Role,
    #[arg(long, hide = true, default_value_t = 1)]
    version: u32,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
enum Role {
    Watch,
    Project,
    Rebuild,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let done = match Engine::of_parent() {
        Some(engine) => work(&args, &engine).await.map(|()| true),
        None => watch(&args).await,
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr().lock(), "materialized_view: {error}");
            ExitCode::FAILURE
        }
    }
}

// ---- the domain -------------------------------------------------------------------------------------------------------------

#[derive(Clone, Serialize, Deserialize)]
struct Item {
    product: String,
    category: String,
    cents: u64,
}

#[derive(Clone, Serialize, Deserialize)]
enum Fact {
    Ordered { customer: u64, items: Vec<Item> },
    Registered { region: String },
}

impl Fact {
    fn name(&self) -> &'static str {
        match self {
            Self::Ordered { .. } => "Ordered",
            Self::Registered { .. } => "Registered",
        }
    }
}

/// What is known of a product, or of a region.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
struct Sold {
    pieces: u64,
    cents: u64,
    last_customer: u64,
}

/// The electronics that were sold, by product, and the customers by region. From version 2 on also each category.
struct Electronics {
    version: u32,
}

impl Electronics {
    /// The rows that an item counts for.
    fn rows(&self, item: &Item) -> Vec<String> {
        let product = (item.category == "electronics").then(|| item.product.clone());
        let category = (self.version >= 2).then(|| format!("all {}", item.category));
        product.into_iter().chain(category).collect()
    }
}

impl Projection for Electronics {
    type Event = Fact;
    type Row = Sold;

    fn keys(&self, event: &Sourced<Fact>) -> Vec<String> {
        match &event.event {
            Fact::Ordered { items, .. } => items.iter().flat_map(|item| self.rows(item)).collect(),
            Fact::Registered { region } => vec![format!("customers {region}")],
        }
    }

    fn fold(&self, key: &str, row: Option<Sold>, event: &Sourced<Fact>) -> Option<Sold> {
        let mut sold = row.unwrap_or_default();
        match &event.event {
            Fact::Ordered { customer, items } => {
                for item in items.iter().filter(|item| self.rows(item).iter().any(|row| row == key)) {
                    sold.pieces += 1;
                    sold.cents += item.cents;
                    sold.last_customer = *customer;
                }
            }
            Fact::Registered { .. } => sold.pieces += 1,
        }
        Some(sold)
    }
}

fn codec() -> EventCodec<Fact> {
    EventCodec::new(Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes)), Fact::name)
}

/// The logs of orders and of customers.
async fn logs(engine: &Engine) -> Result<[EventStore; 2]> {
    let backend = engine.open().await?;
    let open = |name| EventStore::open(backend.store(), engine.name(name));
    Ok([open("orders").await?, open("customers").await?])
}

async fn view(engine: &Engine, version: u32) -> Result<View<Electronics>> {
    let (backend, [orders, customers]) = (engine.open().await?, logs(engine).await?);
    let idle = IdleConfig::between(Duration::from_millis(5), Duration::from_millis(200));
    // Small pages, so that a build takes long enough to be killed.
    let config = ViewConfig::default().version(version).page(20).idle(idle).standby(Duration::from_millis(300));
    let rows = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    let view = View::builder(backend.store(), engine.name("electronics"), Electronics { version }, rows, config)
        .source(orders.topic(), codec())
        .source(customers.topic(), codec())
        .notifier(backend.notifier())
        .build()?;
    Ok(view)
}

/// A process that projects, or rebuilds, until it is killed.
async fn work(args: &Args, engine: &Engine) -> Result<()> {
    let view = view(engine, args.version).await?;
    match args.role {
        Role::Rebuild => Ok(view.rebuild().await?),
        _ => match view.run(std::future::pending()).await {
            // The next version took its place.
            Err(ViewError::Retired) => Ok(()),
            ended => Ok(ended?),
        },
    }
}

// ---- the writer, the readers, and the judgement -----------------------------------------------------------------------------

/// The facts of both logs, by commits.
#[derive(Default)]
struct Written(Mutex<[Vec<Vec<Fact>>; 2]>);

const PRODUCTS: u64 = 12;

impl Written {
    /// Makes the next commit.
    async fn write(&self, logs: &[EventStore; 2], entropy: &Entropy) -> Result<()> {
        let log = usize::from(entropy.up_to(9) == 0);
        let region = || ["north", "south"][entropy.up_to(1) as usize].to_owned();
        let item = |_| {
            let product = entropy.up_to(PRODUCTS - 1);
            let category = if product.is_multiple_of(3) { "books" } else { "electronics" };
            let cents = 100 + entropy.up_to(900);
            Item { product: format!("product {product}"), category: category.to_owned(), cents }
        };
        let fact = |_| match log {
            0 => Fact::Ordered { customer: entropy.up_to(99), items: (0..=entropy.up_to(2)).map(item).collect() },
            _ => Fact::Registered { region: region() },
        };
        let facts: Vec<Fact> = (0..=entropy.up_to(2)).map(fact).collect();
        let events = facts.iter().map(|fact| codec().encode(fact)).collect::<std::result::Result<Vec<_>, _>>()?;
        // Known before a reader can see it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[log].push(facts);
        logs[log].commit(Commit::unnamed().append("facts", Expected::Any, events)).await?;
        Ok(())
    }

    /// Returns the row as of these places, by the plainest way; `None` if there is none.
    fn row(&self, of: &Electronics, key: &str, places: [u64; 2]) -> Option<Sold> {
        let written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let commits = written.iter().zip(places).flat_map(|(commits, place)| commits.iter().take(place as usize));
        commits.flatten().fold(None, |row, fact| {
            let event = Sourced::new("", steadfast::stream::Position::new(0, 1), fact.clone());
            if of.keys(&event).iter().any(|of| of == key) { of.fold(key, row, &event) } else { row }
        })
    }

    fn events(&self) -> usize {
        let written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        written.iter().flatten().map(Vec::len).sum()
    }
}

#[derive(Default)]
struct Seen {
    reads: AtomicU64,
    wrong_rows: AtomicU64,
    went_back: AtomicU64,
    empty_reads: AtomicU64,
    diverged: AtomicU64,
}

/// Reads rows until the end, and compares each.
async fn read(
    engine: &Engine,
    (version, seed): (u32, u64),
    written: &Written,
    seen: &Seen,
    ends: &AtomicBool,
) -> Result<()> {
    let (view, of, entropy) = (view(engine, version).await?, Electronics { version }, Entropy::from_seed(seed));
    let count = |counter: &AtomicU64, is_so: bool| {
        counter.fetch_add(u64::from(is_so), Relaxed);
    };
    view.ready().await?;
    let mut last = [0, 0];
    while !ends.load(Relaxed) {
        let key = match entropy.up_to(PRODUCTS + 3) {
            nth if nth < PRODUCTS => format!("product {nth}"),
            nth if nth < PRODUCTS + 2 => format!("customers {}", ["north", "south"][(nth - PRODUCTS) as usize]),
            _ => "all books".to_owned(),
        };
        match view.get(&key).await {
            Ok(read) => {
                let places = [engine.name("orders"), engine.name("customers")]
                    .map(|log| read.as_of.offset(&log, 0).unwrap_or_default());
                count(&seen.went_back, places[0] < last[0] || places[1] < last[1]);
                let wanted = written.row(&of, &key, places);
                count(&seen.empty_reads, read.row.is_none() && wanted.is_some());
                // The last customer depends on the order, and is compared, too.
                count(&seen.wrong_rows, read.row != wanted);
                last = places;
            }
            Err(ViewError::Building { .. }) => count(&seen.empty_reads, true),
            Err(ViewError::Diverged { .. }) => count(&seen.diverged, true),
            Err(error) => return Err(error.into()),
        }
        count(&seen.reads, true);
        Clock::tokio().sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

fn start(engine: &Engine, role: &str, version: u32) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--role", role, "--version", &version.to_string()]);
    Ok(command.envs(engine.variables()).kill_on_drop(true).spawn()?)
}

async fn watch(args: &Args) -> Result<bool> {
    let (folder, clock, entropy) = (tempfile::tempdir()?, Clock::tokio(), Entropy::from_seed(args.seed));
    let engine = EngineAt::start_shared(args.backend.as_ref(), folder.path(), "view.db")?;
    let (logs, written, seen) = (logs(&engine).await?, Arc::new(Written::default()), Arc::new(Seen::default()));
    for _ in 0..args.commits {
        written.write(&logs, &entropy).await?;
    }
    say(format!("  {} commits, 3 projectors, {} kills on one {}", args.commits, args.kills, engine.place()));
    let ends = Arc::new(AtomicBool::new(false));
    let readers = |version: u32| {
        (0..2u64).map(move |nth| (version, u64::from(version) * 10 + nth)).map(|of| {
            let (engine, written, seen, ends) = (&engine, &*written, &*seen, &*ends);
            async move { read(engine, of, written, seen, ends).await }
        })
    };
    let began = clock.now();
    let (mut kills, mut rebuilds_killed, mut failed) = (0, 0, 0);
    let course = async {
        let mut projectors: Vec<(u32, Child)> = Vec::new();
        for _ in 0..3 {
            projectors.push((1, start(&engine, "project", 1)?));
        }
        let two = view(&engine, 2).await?;
        // While one version is served, the next one comes in, and is built anew.
        let third = args.kills.max(3) / 3;
        for round in 0.. {
            clock.sleep(Duration::from_millis(50 + entropy.up_to(300))).await;
            if round == third {
                for _ in 0..2 {
                    projectors.push((2, start(&engine, "project", 2)?));
                }
            }
            if kills == args.kills {
                if round > third {
                    break;
                }
                continue;
            }
            // A rebuild of the second version, which is killed while it is at work, at least once.
            if round > third && (rebuilds_killed == 0 || entropy.up_to(1) == 0) {
                let mut child = start(&engine, "rebuild", 2)?;
                while two.state().await?.next.is_none() && child.try_wait()?.is_none() {
                    clock.sleep(Duration::from_millis(2)).await;
                }
                match child.try_wait()? {
                    Some(ended) => failed += u64::from(!ended.success()),
                    None => {
                        child.kill().await?;
                        (kills, rebuilds_killed) = (kills + 1, rebuilds_killed + 1);
                    }
                }
                continue;
            }
            kills += 1;
            let i = entropy.up_to(projectors.len() as u64 - 1) as usize;
            let version = projectors[i].0;
            failed += u64::from(projectors[i].1.try_wait()?.is_some_and(|ended| !ended.success()));
            projectors[i].1.kill().await?;
            projectors[i] = (version, start(&engine, "project", version)?);
        }
        two.ready().await?;
        two.rebuild().await?;
        Ok::<_, common::Failure>(projectors)
    };
    let writes = async {
        for _ in 0..args.commits {
            written.write(&logs, &entropy).await?;
            clock.sleep(Duration::from_millis(3)).await;
        }
        Ok::<_, common::Failure>(())
    };
    let judged = async {
        let (projectors, ()) = tokio::try_join!(course, writes)?;
        let wrong = judge(&engine, &logs, &written).await?;
        ends.store(true, Relaxed);
        Ok((projectors, wrong))
    };
    let (read_one, read_two) = (futures::future::try_join_all(readers(1)), futures::future::try_join_all(readers(2)));
    let ((mut projectors, (rows, wrong, generations)), ..) = tokio::try_join!(judged, read_one, read_two)?;
    // Processes of the first version are told that it is gone.
    view(&engine, 2).await?.retire(1).await?;
    let retired = matches!(view(&engine, 1).await?.get("product 1").await, Err(ViewError::Retired));
    for (_, projector) in &mut projectors {
        failed += u64::from(projector.try_wait()?.is_some_and(|ended| !ended.success()));
    }
    drop(projectors); // which kills them
    let count = |counter: &AtomicU64| counter.load(Relaxed);
    let took = (clock.now() - began).as_secs_f64();
    say(format!("  {} reads in {took:.1} s, {kills} kills", count(&seen.reads)));
    let wrong_rows = wrong + count(&seen.wrong_rows);
    let summary = json!({ "events": written.events(), "rows": rows, "wrong_rows": wrong_rows,
        "went_back": count(&seen.went_back), "empty_reads": count(&seen.empty_reads), "generations": generations,
        "diverged": count(&seen.diverged), "kills": kills, "rebuilds_killed": rebuilds_killed, "failed": failed });
    say(format!("\nsummary: {summary}"));
    let bad = wrong_rows + count(&seen.went_back) + count(&seen.empty_reads) + count(&seen.diverged) + failed;
    // With fewer kills there is none left for a rebuild.
    let is_as_asked = kills == args.kills && (rebuilds_killed > 0 || args.kills < 3);
    Ok(bad == 0 && retired && generations >= 3 && is_as_asked)
}

/// Compares all rows of both versions once they have all events. Returns the number of rows, of wrong ones, and of
/// generations.
async fn judge(engine: &Engine, logs: &[EventStore; 2], written: &Written) -> Result<(u64, u64, u64)> {
    let (mut wrong, mut rows, mut generations) = (0, 0, 0);
    let all = written.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for version in [1, 2] {
        let (view, of) = (view(engine, version).await?, Electronics { version });
        let mut wanted: BTreeMap<String, Option<Sold>> = BTreeMap::new();
        for fact in all.iter().flatten().flatten() {
            let event = Sourced::new("", steadfast::stream::Position::new(0, 1), fact.clone());
            for key in of.keys(&event).into_iter().collect::<std::collections::BTreeSet<_>>() {
                let row = wanted.remove(&key).flatten();
                wanted.insert(key.clone(), of.fold(&key, row, &event));
            }
        }
        for (key, row) in &wanted {
            for log in logs {
                view.get_after(key, &log.token().await?, Duration::from_secs(180)).await?;
            }
            wrong += u64::from(view.get(key).await?.row != *row);
        }
        let state = view.state().await?;
        wrong += state.rows.abs_diff(wanted.len() as u64);
        (rows, generations) = (state.rows, generations + state.generation.unwrap_or_default());
    }
    Ok((rows, wrong, generations))
}
