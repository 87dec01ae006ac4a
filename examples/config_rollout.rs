//! A change of the settings that ends each process which parses it: one process of the fleet dies twice, and no other one
//! ever parses it. Two good changes reach all, stage by stage, while processes and drivers are killed.
//!
//! Each process records a number in a file of its own before it parses the documents. Two drivers share each roll-out.
//! Callers ask the fleet all the time, and each answer has the layers of one moment. The last line is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
#[path = "common/mod.rs"]
mod common;
#[path = "common/engine.rs"]
mod engine;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, OpenOptions},
    future::pending,
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Duration,
};

use clap::{Parser, ValueEnum};
use common::{Failure, Http, Result, answer, number, say, serve};
use engine::{Engine, EngineAt};
use futures::future::try_join_all;
use serde::Deserialize;
use serde_json::{Value, json};
use steadfast::{
    ConfigError, backend,
    config::{Effect, Reconfigure},
    config_store::{
        Change, ConfigPublisher, ConfigStore, ConfigStoreConfig, ConfigStoreEvent, Documents, PublisherConfig,
        RejectReason,
    },
    entropy::Entropy,
    observe::Event,
    reconfiguration::{Reconfigurer, ReconfigurerConfig, Rollout, RolloutConfig, RolloutError, RolloutEvent},
    time::Clock,
};
use tokio::{
    process::{Child, Command},
    sync::Notify,
};

const MS: fn(u64) -> Duration = Duration::from_millis;
/// Time in which a revision must prove itself in each process, and in each stage.
const PROOF: Duration = Duration::from_secs(2);
const STAGES: [f64; 3] = [0.05, 0.5, 1.0];
/// Exit code of a driver whose roll-out was aborted.
const ABORTED: u8 = 3;
/// Time in which all processes must run what they should.
const PATIENCE: Duration = Duration::from_secs(180);

/// Rolls changes out over processes that are killed, one of them by the change.
#[derive(Parser, Clone)]
struct Args {
    /// Number of processes that read the settings.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(2..=50))]
    processes: u64,
    /// Number of kills of a process or a driver, beside those by the bad change.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(..=1_000))]
    kills: u64,
    /// Place of the settings: `sqlite:FILE`, the URL of a server, or `postgres`, `redis` or `nats` for a server of this run.
    /// A temporary file by default.
    #[arg(long, value_name = "BACKEND")]
    backend: Option<EngineAt>,
    /// Seed of the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A defect on purpose, which the judgement must find.
    #[arg(long)]
    plant: Option<Plant>,
    #[arg(long, hide = true, default_value = "watch")]
    role: Role,
    /// Number of the member, or of the change that is driven.
    #[arg(long, hide = true, default_value_t = 0)]
    of: u64,
    #[arg(long, hide = true, default_value = ".")]
    folder: PathBuf,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
enum Plant {
    /// Each change reaches all processes in its only stage.
    OneStage,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
enum Role {
    Watch,
    Member,
    Drive,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    match (Engine::of_parent(), args.role) {
        (Some(engine), Role::Member) => ended(live(&args, &engine).await, 1),
        (Some(engine), Role::Drive) => ended(drive(&args, &engine).await, ABORTED),
        _ => common::end(watch(&args).await),
    }
}

fn ended(done: Result<bool>, if_not: u8) -> ExitCode {
    match done {
        Ok(is_good) => ExitCode::from(if is_good { 0 } else { if_not }),
        Err(error) => {
            let _ = writeln!(std::io::stderr().lock(), "config_rollout: {error}");
            ExitCode::FAILURE
        }
    }
}

// ---- a process of the fleet -------------------------------------------------------------------------------------------------

/// A document.
#[derive(Deserialize)]
struct Layer {
    moment: u64,
    /// A defect that no loader finds in time.
    #[serde(default)]
    is_deadly: bool,
}

/// What both layers say: the same moment, always.
#[derive(Clone, PartialEq)]
struct Settings {
    org: u64,
    billing: u64,
}

impl Settings {
    fn is_mixed(&self) -> bool {
        self.org != self.billing
    }
}

/// The part of a process that works with the settings.
#[derive(Clone)]
struct Prices(Arc<Mutex<Settings>>);

impl Reconfigure<Settings> for Prices {
    fn config(&self) -> Settings {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn validate(&self, _: &Settings) -> std::result::Result<Effect, ConfigError> {
        Ok(Effect::InPlace)
    }

    fn apply(&self, next: Settings) -> std::result::Result<(), ConfigError> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }
}

/// Files of a process, which outlive it.
struct Files {
    local: PathBuf,
    address: PathBuf,
    log: PathBuf,
}

impl Files {
    fn of(folder: &Path, member: u64) -> Self {
        let of = |what| folder.join(format!("member-{member}.{what}"));
        Self { local: of("db"), address: of("address"), log: of("log") }
    }

    /// Adds a line, with one write, which a kill cannot divide.
    fn note(log: &Path, line: &str) {
        let file = OpenOptions::new().create(true).append(true).open(log);
        let _ = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    }
}

fn load(documents: &Documents, log: &Path) -> Result<Settings> {
    let layer = |name| -> Result<Layer> { Ok(toml::from_str(documents.text(name)?)?) };
    let (org, billing) = (layer("org")?, layer("billing")?);
    if billing.is_deadly {
        Files::note(log, "parsed_bad");
        std::process::abort();
    }
    Ok(Settings { org: org.moment, billing: billing.moment })
}

/// Reads the settings, and answers callers, until it is killed.
async fn live(args: &Args, engine: &Engine) -> Result<bool> {
    let (files, backend) = (Files::of(&args.folder, args.of), engine.open().await?);
    let local = backend::open(&format!("sqlite:{}", files.local.display())).await?.store();
    let (parsed_in, quarantined_in) = (files.log.clone(), files.log.clone());
    let config = ConfigStoreConfig::default().poll_interval(MS(1_000)).trial(PROOF);
    let load = move |documents: &Documents| load(documents, &parsed_in);
    let settings = ConfigStore::builder(backend.store(), engine.name("shop"), load, config)
        .layers(["org", "billing"])
        .notifier(backend.notifier())
        .local(local)
        .member(format!("member-{}", args.of))
        .on_event(move |event: &Event<ConfigStoreEvent>| {
            if let ConfigStoreEvent::Rejected { reason: RejectReason::Quarantined, .. } = event.what {
                Files::note(&quarantined_in, "quarantined");
            }
        })
        .build()
        .await?;
    let first = settings.current().value().clone();
    let prices = Prices(Arc::new(Mutex::new(first.clone())));
    let changes = Reconfigurer::builder(first, ReconfigurerConfig::default())
        .part("prices", |settings: &mut Settings| settings, prices.clone())
        .build()?;
    let answers = settings.clone();
    let address = serve(move |_| {
        let mixed = (0..1_000).filter(|_| answers.current().is_mixed()).count();
        let mixed = mixed + usize::from(prices.config().is_mixed());
        async move { answer(200, mixed) }
    })
    .await?;
    // A reader sees the old address or the new one.
    let new = files.address.with_extension("new");
    fs::write(&new, address.to_string())?;
    fs::rename(new, &files.address)?;
    let accept = |next: Arc<steadfast::config_store::Revision<Settings>>| {
        let changes = changes.clone();
        async move { changes.submit(next.value().clone()).await }
    };
    settings.run(pending(), accept).await;
    Ok(true)
}

// ---- drivers ----------------------------------------------------------------------------------------------------------------

async fn publisher(engine: &Engine) -> Result<ConfigPublisher> {
    let backend = engine.open().await?;
    let built = ConfigPublisher::builder(backend.store(), engine.name("shop"), PublisherConfig::default());
    // Without readers: the defect is seen by none of them before it is too late.
    Ok(built.notifier(backend.notifier()).build()?)
}

fn rollout(publisher: &ConfigPublisher) -> Result<Rollout> {
    Ok(Rollout::new(publisher, RolloutConfig::default().bake(PROOF).look_interval(MS(200)))?)
}

/// Drives the roll-out that is under way to its end. Returns `true` if the change is in effect for all.
async fn drive(args: &Args, engine: &Engine) -> Result<bool> {
    let publisher = publisher(engine).await?;
    match rollout(&publisher)?.resume().await {
        // The other driver may have been faster.
        Ok(_) | Err(RolloutError::Aborted { .. } | RolloutError::NotUnderWay) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(publisher.head().await? == args.of)
}

// ---- the judgement ----------------------------------------------------------------------------------------------------------

/// A process that runs again whenever it has ended.
#[derive(Default)]
struct Kept {
    kill: Notify,
    is_running: AtomicBool,
}

impl Kept {
    /// Waits for its end by itself. Returns its exit code, or `None` if it was killed on demand.
    async fn once(&self, mut child: Child) -> Result<Option<i32>> {
        self.is_running.store(true, SeqCst);
        let code = tokio::select! {
            ended = child.wait() => Some(ended?.code().unwrap_or(-1)),
            () = self.kill.notified() => {
                child.kill().await?;
                None
            }
        };
        self.is_running.store(false, SeqCst);
        Ok(code)
    }

    /// Kills it with SIGKILL, if it runs.
    fn kill(&self) {
        if self.is_running.swap(false, SeqCst) {
            self.kill.notify_one();
        }
    }
}

struct Show<'a> {
    args: &'a Args,
    engine: &'a Engine,
    folder: &'a Path,
    clock: Clock,
    entropy: Entropy,
    publisher: ConfigPublisher,
    members: Vec<Kept>,
    calls: AtomicU64,
    lost: AtomicU64,
    mixed: AtomicU64,
    kills: AtomicU64,
}

impl Show<'_> {
    fn start(&self, role: &str, of: u64) -> Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--role", role, "--of", &of.to_string(), "--folder"]).arg(self.folder);
        Ok(command.envs(self.engine.variables()).kill_on_drop(true).spawn()?)
    }

    /// Starts a member whenever it has died.
    async fn keep(&self, member: u64) -> Result<()> {
        loop {
            let ended = self.members[member as usize].once(self.start("member", member)?).await?;
            self.kills.fetch_add(u64::from(ended.is_none()), Relaxed);
            self.clock.sleep(MS(50)).await;
        }
    }

    /// Asks one process after another, as a caller does who knows them all.
    async fn call(&self) -> Result<()> {
        let http = Http::new();
        loop {
            let first = self.entropy.up_to(self.args.processes - 1);
            let mut answered = None;
            for attempt in 0..10 * self.args.processes {
                let files = Files::of(self.folder, (first + attempt) % self.args.processes);
                let address = fs::read_to_string(files.address).ok().and_then(|text| text.parse().ok());
                if let Some(address) = address
                    && let Ok(reply) = http.get(address, "/").await
                    && let Some(mixed) = number(&reply)
                {
                    answered = Some(mixed);
                    break;
                }
                self.clock.sleep(MS(10)).await;
            }
            self.calls.fetch_add(1, Relaxed);
            self.lost.fetch_add(u64::from(answered.is_none()), Relaxed);
            self.mixed.fetch_add(answered.unwrap_or_default(), Relaxed);
            self.clock.sleep(MS(5)).await;
        }
    }

    /// Waits until all processes run a number, and it has proved itself in each.
    async fn settled(&self, number: u64) -> Result<()> {
        let until = self.clock.now() + PATIENCE;
        loop {
            let members = self.publisher.members().await?;
            let are_there = members.len() as u64 == self.args.processes;
            if are_there && members.iter().all(|member| member.number == number && !member.is_on_trial) {
                return Ok(());
            }
            if self.clock.now() > until {
                return Err(format!("not all processes run {number}: {members:?}").into());
            }
            self.clock.sleep(MS(100)).await;
        }
    }

    /// Publishes a change for its first stage, as a driver that ends there. Returns its number.
    async fn begin(&self, moment: u64, is_deadly: bool) -> Result<u64> {
        let layer = |more: &str| format!("moment = {moment}\n{more}");
        let more = if is_deadly { "is_deadly = true" } else { "" };
        let stages = if self.args.plant == Some(Plant::OneStage) { &STAGES[2..] } else { &STAGES[..] };
        let change = Change::to("org", layer("")).and(Change::to("billing", layer(more))).by("ada");
        let change = change.staged(stages.iter().copied());
        let rollout = rollout(&self.publisher)?;
        let mut events = rollout.events();
        tokio::select! {
            ended = rollout.run(change) => Err(format!("a roll-out ended with its first stage: {ended:?}").into()),
            entered = events.recv() => match entered.map_err(|missed| format!("{missed:?}"))?.what {
                RolloutEvent::StageEntered { number, .. } => Ok(number),
                other => Err(format!("a roll-out began with {other:?}").into()),
            }
        }
    }

    /// Drives a roll-out by a process that is killed on demand. Returns `true` if it ended well.
    async fn driven(&self, number: u64, driver: &Kept) -> Result<bool> {
        loop {
            match driver.once(self.start("drive", number)?).await? {
                Some(0) => return Ok(true),
                Some(code) if code == i32::from(ABORTED) => return Ok(false),
                Some(code) => return Err(format!("a driver ended with {code}").into()),
                None => drop(self.kills.fetch_add(1, Relaxed)),
            }
        }
    }

    /// Kills up to so many processes and drivers.
    async fn disturb(&self, kills: u64, drivers: &[Kept; 2], spares_members: bool) -> Result<()> {
        // A second death within its trial would be the revision's.
        let mut spared: BTreeSet<u64> =
            if spares_members { (0..self.args.processes).collect() } else { BTreeSet::new() };
        for _ in 0..kills {
            self.clock.sleep(MS(200 + self.entropy.up_to(800))).await;
            let member = self.entropy.up_to(self.args.processes - 1);
            if self.entropy.up_to(2) > 0 && spared.insert(member) {
                self.members[member as usize].kill();
            } else {
                drivers[self.entropy.up_to(1) as usize].kill();
            }
        }
        Ok(())
    }

    /// Rolls a change out by two drivers. Returns its number, and `true` if it is in effect for all.
    async fn roll_out(&self, moment: u64, is_deadly: bool, kills: u64) -> Result<(u64, bool)> {
        let number = self.begin(moment, is_deadly).await?;
        let drivers = [Kept::default(), Kept::default()];
        let both = try_join_all(drivers.iter().map(|driver| self.driven(number, driver)));
        let (ends, ()) = tokio::try_join!(both, self.disturb(kills, &drivers, is_deadly))?;
        if ends[0] != ends[1] {
            return Err(format!("two drivers of {number} see other ends: {ends:?}").into());
        }
        let end = if ends[0] { "is in effect for all" } else { "was aborted: all return to the one before" };
        say(format!("  revision {number} {end}"));
        Ok((number, ends[0]))
    }

    /// Publishes, rolls out, and returns the numbers of revisions and of aborted ones.
    async fn course(&self) -> Result<(u64, u64)> {
        let (mut good, mut aborted, mut moment) = (1, 0, 1);
        self.settled(good).await?;
        while moment < 4 || self.kills.load(Relaxed) < self.args.kills {
            moment += 1;
            let is_deadly = moment == 3;
            let left = self.args.kills - self.kills.load(Relaxed);
            let kills = if is_deadly { left.min(1) } else { left.min(self.args.processes).div_ceil(2) };
            let (number, is_in_effect) = self.roll_out(moment, is_deadly, kills).await?;
            aborted += u64::from(!is_in_effect);
            if is_in_effect {
                good = number;
            }
            self.settled(good).await?;
        }
        Ok((moment, aborted))
    }
}

async fn watch(args: &Args) -> Result<(Value, bool)> {
    let (folder, clock) = (tempfile::tempdir()?, Clock::tokio());
    let engine = EngineAt::start_shared(args.backend.as_ref(), folder.path(), "config.db")?;
    let publisher = publisher(&engine).await?;
    let first = Change::to("org", "moment = 1").and(Change::to("billing", "moment = 1")).by("ada");
    publisher.publish(first).await?;
    let Args { processes, kills, .. } = args;
    say(format!("  {processes} processes, two drivers and {kills} kills on one {}", engine.place()));
    let show = Show {
        args,
        engine: &engine,
        folder: folder.path(),
        clock,
        entropy: Entropy::from_seed(args.seed),
        publisher,
        members: (0..*processes).map(|_| Kept::default()).collect(),
        calls: AtomicU64::new(0),
        lost: AtomicU64::new(0),
        mixed: AtomicU64::new(0),
        kills: AtomicU64::new(0),
    };
    let fleet = try_join_all((0..*processes).map(|member| show.keep(member)));
    let course = async {
        show.settled(1).await?;
        let calls = try_join_all((0..3).map(|_| show.call()));
        tokio::select! { ended = show.course() => ended, ended = calls => Err(unending(ended)) }
    };
    let (revisions, aborted) =
        tokio::select! { ended = course => ended?, ended = fleet => return Err(unending(ended)) };
    judge(&show, revisions, aborted)
}

fn unending<T>(ended: Result<T>) -> Failure {
    ended.err().unwrap_or_else(|| "what has no end has ended".into())
}

/// Reads the logs of all processes.
fn judge(show: &Show<'_>, revisions: u64, aborted: u64) -> Result<(Value, bool)> {
    let mut parsed_bad = BTreeMap::new();
    let mut quarantined = 0;
    for member in 0..show.args.processes {
        let log = fs::read_to_string(Files::of(show.folder, member).log).unwrap_or_default();
        let count = |what: &str| log.lines().filter(|line| *line == what).count() as u64;
        if count("parsed_bad") > 0 {
            parsed_bad.insert(member, count("parsed_bad"));
        }
        // It says so at each start.
        quarantined += u64::from(count("quarantined") > 0);
    }
    let of = |counter: &AtomicU64| counter.load(Relaxed);
    let (calls, lost, mixed, kills) = (of(&show.calls), of(&show.lost), of(&show.mixed), of(&show.kills));
    say(format!("  parsed by {} of the processes; {calls} calls", parsed_bad.len()));
    let parses: u64 = parsed_bad.values().sum();
    let summary = json!({ "processes": show.args.processes, "revisions": revisions, "parsed_bad": parses,
        "quarantined": quarantined, "aborted": aborted, "mixed_reads": mixed, "lost_calls": lost, "kills": kills });
    let is_as_promised = (parses, parsed_bad.len(), quarantined, aborted, mixed, lost) == (2, 1, 1, 1, 0, 0);
    Ok((summary, is_as_promised && kills == show.args.kills && calls > 100))
}
