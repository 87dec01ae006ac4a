//! An event stream: a producer appends readings of devices to a partitioned topic, and several processes share its
//! partitions. The processes are killed while they work, and come back.
//!
//! Each reading takes effect in the order of its device, and none is lost. A reading takes effect again only after its owner
//! was killed, or had no answer from the store: on a cluster of servers, the one that leads the store is killed, too. The last
//! line is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
#[path = "common/mod.rs"]
mod common;
#[path = "common/engine.rs"]
mod engine;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    process::{ExitCode, Stdio},
    sync::Arc,
    time::Duration,
};

use clap::Parser;
use common::{Result, patiently, say};
use engine::{Engine, EngineAt};
use serde_json::json;
use steadfast::{
    backend::Backend,
    backoff::BackoffConfig,
    entropy::Entropy,
    leader_election::LeaderElectionConfig,
    queue_listener::IdleConfig,
    store::{PutOptions, Scan, Sequence, Store, StoreExt, Write},
    stream::{
        Delivered, Event, Producer, ProducerConfig, Read, StoreTopic, StreamProcessor, StreamProcessorConfig, Topic,
    },
    time::Clock,
};
use tokio::process::{Child, Command};

/// Processes an event stream in several processes that are killed.
#[derive(Parser, Clone)]
struct Args {
    /// Number of events.
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    events: u32,
    /// Number of partitions.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    partitions: u16,
    /// Number of processes.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    processes: u8,
    /// Number of kills of a random process.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(..=1_000))]
    kills: u32,
    /// Place of the stream: `sqlite:FILE`, the URL of a server, `postgres`, `redis` or `nats` for a server of this run, or
    /// `nats:3` for a cluster of three, one of which is killed. A temporary file by default.
    #[arg(long, value_name = "BACKEND")]
    backend: Option<EngineAt>,
    /// Seed of the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Maximum time without progress.
const PATIENCE: Duration = Duration::from_secs(180);
const DEVICES: u32 = 50;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let done = match Engine::of_parent() {
        Some(engine) => process(&args, &engine).await.map(|()| true),
        None => watch(&args).await,
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr().lock(), "event_stream: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns a member of the group.
async fn member(args: &Args, engine: &Engine, backend: &Backend) -> Result<StreamProcessor> {
    let topic = StoreTopic::open(backend.store(), engine.name("readings"), args.partitions).await?;
    // A term that suits kills every half a second: a dead owner is replaced within four seconds.
    let config = StreamProcessorConfig::default()
        .rebalance_interval(Duration::from_secs(1))
        .idle(IdleConfig::between(Duration::from_millis(20), Duration::from_millis(500)))
        .max_crashes(10)
        // An event is not at fault if the store cannot be reached.
        .max_deliveries(u32::MAX)
        .retry(BackoffConfig::default().between(Duration::from_millis(100), Duration::from_secs(2)))
        .election(LeaderElectionConfig::of_term(Duration::from_secs(3)));
    let group = engine.name("dashboard");
    let dead_letters = backend.queue(&engine.name("unreadable")).await?;
    let processor = StreamProcessor::builder(topic, group, backend.lease(), backend.store(), config)
        .member(format!("process-{}", std::process::id()))
        .notifier(backend.notifier())
        .dead_letters(dead_letters);
    Ok(processor.build()?)
}

/// Returns the partition of the store with the effects of a partition of the topic.
fn effects(engine: &Engine, partition: u16) -> String {
    format!("{}/{partition}", engine.name("effects"))
}

/// A process that owns some of the partitions.
async fn process(args: &Args, engine: &Engine) -> Result<()> {
    let (processor, store) = patiently(async || {
        let backend = engine.open().await?;
        Ok::<_, common::Failure>((member(args, engine, &backend).await?, backend.store()))
    })
    .await?;
    let handler = |event: Delivered| {
        let (name, store) = (effects(engine, event.position.partition), store.clone());
        async move {
            // The token fences the effect: an owner that was replaced changes nothing.
            let owner = Write::put("owner", event.position.to_string(), PutOptions::new().fence(event.token()));
            let effect = format!("{} {} {}", event.position.offset, event.token(), event.attempt());
            let done = store.batch(&name, vec![owner, Write::append("log/", effect)]).await;
            done.map(drop)
        }
    };
    processor.run(std::future::pending(), handler).await?;
    Ok(())
}

/// The processes of the group. One that was killed is replaced.
struct Group {
    processes: Vec<Child>,
    kills: u32,
}

impl Group {
    fn start(args: &Args, engine: &Engine) -> Result<Child> {
        Ok(Command::new(std::env::current_exe()?)
            .args(["--partitions", &args.partitions.to_string()])
            .envs(engine.variables())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()?)
    }

    /// `kill -9`, and another process in its place.
    async fn kill(&mut self, i: usize, args: &Args, engine: &Engine) -> Result<()> {
        self.processes[i].kill().await?;
        self.processes[i] = Self::start(args, engine)?;
        self.kills += 1;
        Ok(())
    }
}

/// Appends all events, at the rate at which they are processed while processes are killed.
async fn produce(args: &Args, engine: &Engine, backend: &Backend) -> Result<()> {
    let topic = StoreTopic::open(backend.store(), engine.name("readings"), args.partitions).await?;
    let (producer, clock) = (&Producer::new(topic, ProducerConfig::default())?, Clock::tokio());
    // About as long as the kills take.
    let pause = Duration::from_millis(600) * args.kills.max(1) / args.events.div_ceil(DEVICES);
    for first in (0..args.events).step_by(DEVICES as usize) {
        let numbers = first..args.events.min(first + DEVICES);
        let appends = numbers.map(|number| {
            let reading = Event::new(number.to_string()).key(format!("device-{}", number % DEVICES));
            let reading = reading.id(number.to_string());
            // The topic knows the id of an event that it had without an answer.
            patiently(async move || producer.append(reading.clone()).await)
        });
        futures::future::try_join_all(appends).await?;
        clock.sleep(pause).await;
    }
    Ok(())
}

async fn watch(args: &Args) -> Result<bool> {
    let (folder, clock, entropy) = (tempfile::tempdir()?, Clock::tokio(), Entropy::from_seed(args.seed));
    let engine = EngineAt::start_shared(args.backend.as_ref(), folder.path(), "stream.db")?;
    let backend = engine.open().await?;
    let observer = member(args, &engine, &backend).await?;
    let mut group = Group { processes: Vec::new(), kills: 0 };
    for _ in 0..args.processes {
        group.processes.push(Group::start(args, &engine)?);
    }
    let Args { events, partitions, processes, .. } = args;
    say(format!("  {events} events in {partitions} partitions, {processes} processes on one {}", engine.place()));
    let began = clock.now();
    let killed = async {
        while group.kills < args.kills {
            clock.sleep(Duration::from_millis(300 + entropy.up_to(600))).await;
            group.kill(entropy.up_to(u64::from(args.processes) - 1) as usize, args, &engine).await?;
        }
        Ok::<_, common::Failure>(())
    };
    // In the middle of the kills.
    let leaderless = async { Ok(engine.lose_leader(Duration::from_millis(300) * args.kills.max(1)).await) };
    let ((), (), servers_killed) = tokio::try_join!(produce(args, &engine, &backend), killed, leaderless)?;
    let (mut last, mut since) = (u64::MAX, clock.now());
    loop {
        let lag: u64 = patiently(async || observer.read_state().await).await?.iter().map(|state| state.lag).sum();
        if lag == 0 {
            break;
        }
        if lag != std::mem::replace(&mut last, lag) {
            since = clock.now();
        }
        if clock.now() - since > PATIENCE {
            return Err(format!("{lag} events are left, and nothing moves").into());
        }
        clock.sleep(Duration::from_millis(100)).await;
    }
    let took = clock.now() - began;
    let mut owners: BTreeMap<Option<String>, u16> = BTreeMap::new();
    observer.read_state().await?.into_iter().for_each(|state| *owners.entry(state.owner).or_default() += 1);
    drop(group.processes); // which kills them

    let found = Found::read(args, &engine, backend.store()).await?;
    let dead = backend.queue(&engine.name("unreadable")).await?.depth().await?.total();
    say(format!(
        "  all processed after {:.1} s and {} kills, by {} owners in turn; {} effects came again after a kill",
        took.as_secs_f64(),
        group.kills,
        found.owners,
        found.repeated
    ));
    let Found { lost, disordered, repeated, unexplained, owners: terms } = found;
    let summary = json!({ "events": events, "partitions": partitions, "processes": processes, "kills": group.kills,
        "servers_killed": servers_killed, "owners": terms, "repeated": repeated, "unexplained": unexplained, "dead_letters": dead,
        "out_of_order": disordered, "lost": lost, "shares": owners.into_values().collect::<Vec<_>>() });
    say(format!("\nsummary: {summary}"));
    Ok((lost, disordered, unexplained, dead) == (0, 0, 0, 0))
}

/// The judgement on the effects.
#[derive(Default)]
struct Found {
    lost: u64,
    /// Effects before that of the event of the same device before it.
    disordered: u64,
    /// Effects of an event beyond the first.
    repeated: u64,
    /// Those of them under the same owner, which was not killed, and in the first attempt: no effect before it was left without
    /// an answer.
    unexplained: u64,
    /// Terms of owners that had an effect.
    owners: usize,
}

impl Found {
    async fn read(args: &Args, engine: &Engine, store: Arc<dyn Store>) -> Result<Self> {
        let mut found = Self::default();
        let topic = StoreTopic::open(store.clone(), engine.name("readings"), args.partitions).await?;
        let mut events = 0;
        for partition in 0..args.partitions {
            let log = Scan::partition(effects(engine, partition)).sequence(Sequence::new("log/"), 0);
            let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
            let (mut next_new, mut owners) = (BTreeMap::<u64, u64>::new(), BTreeSet::new());
            let keys = devices_of(&topic, partition).await?;
            for row in store.scan_all(log).await? {
                let text = String::from_utf8_lossy(&row.value).into_owned();
                let numbers: Vec<u64> = text.split(' ').map(str::parse).collect::<std::result::Result<_, _>>()?;
                let [offset, token, attempt] = numbers[..] else { return Err("an effect without a token".into()) };
                owners.insert(token);
                match seen.insert(offset, token) {
                    None => {
                        let key = keys.get(offset as usize - 1).copied().ok_or("an effect of no event")?;
                        let before = next_new.insert(key, offset);
                        found.disordered += u64::from(before.is_some_and(|before| before > offset));
                    }
                    Some(before) => {
                        found.repeated += 1;
                        found.unexplained += u64::from(before == token && attempt == 1);
                    }
                }
            }
            events += keys.len();
            found.owners += owners.len();
            found.lost += keys.len() as u64 - seen.len() as u64;
        }
        found.lost += u64::from(args.events) - events as u64;
        Ok(found)
    }
}

/// Returns the device of each event of a partition, in the order of the offsets.
async fn devices_of(topic: &StoreTopic, partition: u16) -> Result<Vec<u64>> {
    let mut devices = Vec::new();
    loop {
        let events = topic.read(partition, Read::from(devices.len() as u64 + 1).max(500)).await?;
        if events.is_empty() {
            return Ok(devices);
        }
        for recorded in events {
            let key = recorded.event.key.unwrap_or_default();
            devices.push(key.trim_start_matches("device-").parse()?);
        }
    }
}
