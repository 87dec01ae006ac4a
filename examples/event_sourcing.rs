//! Event sourcing: three processes sell the 500 seats of a conference to 2,000 callers, while processes are killed.
//!
//! Each booking is an event. A process decides about a booking on the state that it knows, and its commit says on which
//! version: if another process was faster, it is decided anew. Each booking sends a mail in its commit. Callers repeat what
//! was not answered, under the same id. The last line is the result as JSON. With `--plant no-version` the commits do not say on which version they were decided: the
//! conference is oversold, as a store without expected versions sells it.
#![allow(missing_docs, reason = "a program has no readers from outside")]
#[path = "common/mod.rs"]
mod common;
#[path = "common/engine.rs"]
mod engine;

use std::{
    collections::{BTreeMap, VecDeque},
    io::Write as _,
    process::{ExitCode, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
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
    event_sourcing::{
        Aggregate, AggregateConfig, AggregateStore, Commit, EventCodec, EventStore, EventStoreConfig, ExecuteError,
        Expected, Outbox, OutboxConfig,
    },
    port::Capability,
    queue::{Message, Queue, QueueExt as _},
    time::Clock,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, Command},
    sync::{mpsc, oneshot},
};

/// Sells the seats of a conference in several processes that are killed.
#[derive(Parser, Clone)]
struct Args {
    /// Number of seats.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    seats: u32,
    /// Number of callers, of whom each wants one seat.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    callers: u32,
    /// Number of processes.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    processes: u8,
    /// Number of kills of a random process.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(..=1_000))]
    kills: u32,
    /// A mistake to plant.
    #[arg(long)]
    plant: Option<Plant>,
    /// Place of the log: `sqlite:FILE`, the URL of a server, or `postgres` or `redis` for a server of this run. A temporary
    /// file by default.
    #[arg(long, value_name = "BACKEND")]
    backend: Option<EngineAt>,
    /// Seed of the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
enum Plant {
    /// Commits do not say on which version they were decided.
    NoVersion,
}

/// Maximum time in which no caller gets an answer.
const PATIENCE: Duration = Duration::from_secs(120);
/// Calls that a process has at once.
const AT_ONCE: usize = 16;
const CONFERENCE: &str = "conference";

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let done = match Engine::of_parent() {
        Some(engine) => sell(&args, &engine).await.map(|()| true),
        None => watch(&args).await,
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr().lock(), "event_sourcing: {error}");
            ExitCode::FAILURE
        }
    }
}

// ---- the domain -------------------------------------------------------------------------------------------------------------

#[derive(Default, Clone, Serialize, Deserialize)]
struct Seats {
    total: u32,
    booked: u32,
}

enum Ask {
    Open { seats: u32 },
    Book { caller: u32 },
}

#[derive(Serialize, Deserialize)]
enum SeatEvent {
    Opened { seats: u32 },
    Booked { caller: u32 },
}

impl SeatEvent {
    fn name(&self) -> &'static str {
        match self {
            Self::Opened { .. } => "Opened",
            Self::Booked { .. } => "Booked",
        }
    }
}

#[derive(Debug)]
struct SoldOut;

impl Aggregate for Seats {
    type Command = Ask;
    type Event = SeatEvent;
    type Error = SoldOut;

    fn decide(&self, ask: &Ask) -> std::result::Result<Vec<SeatEvent>, SoldOut> {
        match *ask {
            Ask::Open { seats } if self.total == 0 => Ok(vec![SeatEvent::Opened { seats }]),
            Ask::Open { .. } => Ok(Vec::new()),
            Ask::Book { .. } if self.booked >= self.total => Err(SoldOut),
            Ask::Book { caller } => Ok(vec![SeatEvent::Booked { caller }]),
        }
    }

    fn evolve(&mut self, event: &SeatEvent) {
        match event {
            SeatEvent::Opened { seats } => self.total = *seats,
            SeatEvent::Booked { .. } => self.booked += 1,
        }
    }
}

/// Name of the queue of mails in the log.
const MAILS: &str = "mails";

/// Returns the conference, and the queue of its mails.
async fn open(engine: &Engine) -> Result<(AggregateStore<Seats>, Arc<dyn Queue>)> {
    let backend = engine.open().await?;
    let mails = backend.queue(&engine.name(MAILS)).await?;
    let log = EventStore::builder(backend.store(), engine.name("conference"), EventStoreConfig::default())
        .notifier(backend.notifier())
        .outbox(MAILS, mails.capabilities())
        .build()
        .await?;
    let codec = EventCodec::new(Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes)), SeatEvent::name);
    let states = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    let seats =
        AggregateStore::builder(log, codec, AggregateConfig::default()).snapshots(states, 1).messages(|_, event| {
            match event {
                SeatEvent::Opened { .. } => Vec::new(),
                SeatEvent::Booked { caller } => vec![(MAILS.to_owned(), Message::new(caller.to_string()))],
            }
        });
    Ok((seats.build()?, mails))
}

// ---- a process that sells ---------------------------------------------------------------------------------------------------

/// Answers each line of its input, the number of a caller, with a line of its output.
async fn sell(args: &Args, engine: &Engine) -> Result<()> {
    let (seats, mails) = open(engine).await?;
    // One of the processes sends, the others stand by, and one of them goes on after a kill.
    let outbox = outbox(&seats, mails)?;
    let (answers, mut answered) = mpsc::unbounded_channel::<String>();
    let write = async move {
        let mut out = tokio::io::stdout();
        while let Some(line) = answered.recv().await {
            out.write_all(line.as_bytes()).await?;
            out.flush().await?;
        }
        Ok::<_, common::Failure>(())
    };
    let plant = args.plant;
    let read = async move {
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        while let Some(line) = lines.next_line().await? {
            let (caller, seats, answers) = (line.trim().parse::<u32>()?, seats.clone(), answers.clone());
            tokio::spawn(async move {
                let (word, conflicts) = book(&seats, caller, plant).await;
                let _ = answers.send(format!("{caller} {word} {conflicts}\n"));
            });
        }
        Ok(())
    };
    let send = async { Ok(outbox.run(std::future::pending()).await?) };
    tokio::try_join!(read, write, send)?;
    Ok(())
}

fn outbox(seats: &AggregateStore<Seats>, mails: Arc<dyn Queue>) -> Result<Outbox> {
    let config = OutboxConfig::default().standby(Duration::from_millis(200));
    Ok(Outbox::new(seats.log(), MAILS, mails, config)?)
}

/// Books a seat, and returns a word for what happened, and the number of conflicts.
async fn book(seats: &AggregateStore<Seats>, caller: u32, plant: Option<Plant>) -> (&'static str, u32) {
    let id = format!("booking-{caller}");
    if plant == Some(Plant::NoVersion) {
        return (book_blindly(seats, &id, caller).await.unwrap_or("failed"), 0);
    }
    match seats.execute(CONFERENCE, id, Ask::Book { caller }).await {
        Ok(done) if done.is_repeated => ("repeated", done.conflicts),
        Ok(done) => ("booked", done.conflicts),
        Err(ExecuteError::Rejected(SoldOut)) => ("rejected", 0),
        Err(ExecuteError::Conflict { attempts, .. }) => ("failed", attempts),
        Err(_) => ("failed", 0),
    }
}

/// The same by a commit that does not say on which version it was decided.
async fn book_blindly(seats: &AggregateStore<Seats>, id: &str, caller: u32) -> Result<&'static str> {
    let (state, _) = seats.load(CONFERENCE).await?;
    let Ok(events) = state.decide(&Ask::Book { caller }) else { return Ok("rejected") };
    let body = |event| serde_json::to_vec(event).map(|body| steadfast::event_sourcing::NewEvent::new("Booked", body));
    let events = events.iter().map(body).collect::<std::result::Result<Vec<_>, _>>()?;
    let done = seats.log().commit(Commit::new(id).append(CONFERENCE, Expected::Any, events)).await?;
    Ok(if done.is_repeated { "repeated" } else { "booked" })
}

// ---- the callers, and the judgement -----------------------------------------------------------------------------------------

/// Calls that wait for a process.
#[derive(Default)]
struct Calls {
    waiting: Mutex<VecDeque<(u32, oneshot::Sender<String>)>>,
    came: tokio::sync::Notify,
}

impl Calls {
    async fn next(&self) -> (u32, oneshot::Sender<String>) {
        loop {
            let came = self.came.notified();
            if let Some(call) = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front() {
                return call;
            }
            came.await;
        }
    }

    /// Calls once. `None` if the process died before it answered.
    async fn call(&self, caller: u32) -> Option<String> {
        let (answer, answered) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back((caller, answer));
        self.came.notify_one();
        answered.await.ok()
    }
}

/// A process, and the tasks that give it calls.
struct Process {
    child: Child,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Process {
    fn start(args: &Args, engine: &Engine, calls: &Arc<Calls>, served: Arc<AtomicU64>) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        if args.plant.is_some() {
            command.args(["--plant", "no-version"]);
        }
        let command = command.envs(engine.variables()).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let (mut stdin, stdout) = (child.stdin.take().ok_or("no input")?, child.stdout.take().ok_or("no output")?);
        let open = Arc::new(Mutex::new(BTreeMap::<u32, oneshot::Sender<String>>::new()));
        let room = Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
        let (mut tasks, calls) = (Vec::new(), calls.clone());
        let (given, freed) = (open.clone(), room.clone());
        tasks.push(tokio::spawn(async move {
            loop {
                let Ok(place) = room.acquire().await else { return };
                place.forget();
                let (caller, answer) = calls.next().await;
                given.lock().unwrap_or_else(PoisonError::into_inner).insert(caller, answer);
                if stdin.write_all(format!("{caller}\n").as_bytes()).await.is_err() {
                    return;
                }
            }
        }));
        tasks.push(tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let Some((caller, rest)) = line.split_once(' ') else { continue };
                let caller = caller.parse().unwrap_or(u32::MAX);
                let answer = open.lock().unwrap_or_else(PoisonError::into_inner).remove(&caller);
                served.fetch_add(1, Relaxed);
                freed.add_permits(1);
                // A caller that went away needs no answer.
                answer.map(|answer| answer.send(rest.to_owned()).ok());
            }
            // Its callers learn that it died.
            open.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }));
        Ok(Self { child, tasks })
    }

    /// `kill -9`.
    async fn kill(mut self) -> Result<()> {
        self.child.kill().await?;
        self.tasks[0].abort();
        Ok(())
    }
}

/// The answers to the callers.
#[derive(Default)]
struct Told {
    answers: AtomicU64,
    booked: Mutex<Vec<u32>>,
    repeated: AtomicU64,
    rejected: AtomicU64,
    conflicts: AtomicU64,
}

/// Asks for a seat until there is an answer. Each tenth caller asks again after its answer, as after a lost one.
async fn caller(calls: &Calls, told: &Told, caller: u32, clock: &Clock) -> Result<()> {
    let (mut since, mut seen) = (clock.now(), 0);
    let mut times = if caller.is_multiple_of(10) { 2 } else { 1 };
    while times > 0 {
        // The others have been answered meanwhile, or nobody.
        let answers = told.answers.load(Relaxed);
        if answers != std::mem::replace(&mut seen, answers) {
            since = clock.now();
        }
        if clock.now() - since > PATIENCE {
            return Err(format!("neither the caller {caller} nor another one has an answer within {PATIENCE:?}").into());
        }
        let Some(answer) = calls.call(caller).await else { continue };
        let (word, conflicts) = answer.split_once(' ').ok_or("an answer without conflicts")?;
        told.conflicts.fetch_add(conflicts.parse()?, Relaxed);
        match word {
            "booked" => told.booked.lock().unwrap_or_else(PoisonError::into_inner).push(caller),
            "repeated" => {
                told.repeated.fetch_add(1, Relaxed);
                told.booked.lock().unwrap_or_else(PoisonError::into_inner).push(caller);
            }
            "rejected" => drop(told.rejected.fetch_add(1, Relaxed)),
            _ => continue,
        }
        told.answers.fetch_add(1, Relaxed);
        times -= 1;
    }
    Ok(())
}

async fn watch(args: &Args) -> Result<bool> {
    let (folder, clock, entropy) = (tempfile::tempdir()?, Clock::tokio(), Entropy::from_seed(args.seed));
    let engine = EngineAt::start_shared(args.backend.as_ref(), folder.path(), "conference.db")?;
    let (seats, mails) = open(&engine).await?;
    let opened = seats.execute(CONFERENCE, "open", Ask::Open { seats: args.seats }).await;
    opened.map_err(|error| format!("the conference does not open: {error}"))?;

    let (calls, told) = (Arc::new(Calls::default()), Told::default());
    let served: Vec<_> = (0..args.processes).map(|_| Arc::new(AtomicU64::new(0))).collect();
    let mut processes = Vec::new();
    for served in &served {
        processes.push(Process::start(args, &engine, &calls, served.clone())?);
    }
    let Args { callers, processes: number, .. } = args;
    say(format!("  {} seats, {callers} callers, {number} processes on one {}", args.seats, engine.place()));
    let began = clock.now();
    // Callers come for about as long as the kills take.
    let span = Duration::from_millis(300) * args.kills.max(1);
    let called = futures::future::try_join_all((0..*callers).map(|number| {
        let (calls, told, clock, entropy) = (&calls, &told, &clock, &entropy);
        async move {
            clock.sleep(Duration::from_millis(entropy.up_to(span.as_millis() as u64))).await;
            caller(calls, told, number, clock).await
        }
    }));
    let mut kills = 0;
    let killed = async {
        while kills < args.kills {
            clock.sleep(Duration::from_millis(100 + entropy.up_to(300))).await;
            let i = entropy.up_to(u64::from(args.processes) - 1) as usize;
            processes.push(Process::start(args, &engine, &calls, served[i].clone())?);
            processes.swap_remove(i).kill().await?;
            kills += 1;
        }
        Ok::<_, common::Failure>(())
    };
    tokio::try_join!(called, killed)?;
    let took = clock.now() - began;
    drop(processes); // which kills them

    // What the last of them had not sent yet: a mail for each booking, and what may still come behind those that came twice.
    // Commits with the planted mistake have no mails.
    let booked = if args.plant.is_none() { seats.history(CONFERENCE).await?.len() as u64 - 1 } else { 0 };
    let sent = async {
        let until = clock.now() + PATIENCE;
        while mails.depth().await.is_ok_and(|depth| depth.total() < booked) && clock.now() < until {
            clock.sleep(Duration::from_millis(50)).await;
        }
        clock.sleep(Duration::from_secs(2)).await;
    };
    outbox(&seats, mails.clone())?.run(sent).await?;
    judge(args, &seats, &*mails, &told, (kills, took), &served).await
}

/// Counts what the log has, and compares it with what the callers were told.
async fn judge(
    args: &Args,
    seats: &AggregateStore<Seats>,
    mails: &dyn Queue,
    told: &Told,
    (kills, took): (u32, Duration),
    served: &[Arc<AtomicU64>],
) -> Result<bool> {
    let mut sold: BTreeMap<u32, u64> = BTreeMap::new();
    for (_, event) in seats.history(CONFERENCE).await? {
        if let SeatEvent::Booked { caller } = event {
            *sold.entry(caller).or_default() += 1;
        }
    }
    let all: u64 = sold.values().sum();
    let doubled: u64 = sold.values().map(|times| times - 1).sum();
    let booked = told.booked.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let lost = booked.iter().filter(|caller| !sold.contains_key(caller)).count();
    // A queue that knows de-duplication ids has no mail twice. Without one, a kill explains those of a page.
    let mut mailed: BTreeMap<u32, u64> = BTreeMap::new();
    while let Some(mail) = mails.receive_one(Duration::from_secs(60)).await? {
        *mailed.entry(std::str::from_utf8(&mail.body)?.parse()?).or_default() += 1;
        mails.complete(&mail.receipt).await?;
    }
    let mails_lost = sold.keys().filter(|caller| !mailed.contains_key(caller)).count();
    let explains = if mails.capabilities().has(Capability::Deduplication) { 0 } else { u64::from(kills) * 100 };
    let mails_doubled = mailed.values().map(|times| times - 1).sum::<u64>().saturating_sub(explains);
    let mails_of_nothing = mailed.keys().filter(|caller| !sold.contains_key(caller)).count();
    let oversold = all.saturating_sub(u64::from(args.seats));
    let served: Vec<_> = served.iter().map(|served| served.load(Relaxed)).collect();
    let slowest =
        served.iter().min().copied().unwrap_or(0) as f64 / served.iter().max().copied().unwrap_or(1).max(1) as f64;
    say(format!("  {all} seats sold after {:.1} s and {kills} kills", took.as_secs_f64()));
    if oversold > 0 {
        say(format!("  OVERSOLD: {oversold} bookings more than there are seats"));
    }
    let count = |counted: &AtomicU64| counted.load(Relaxed);
    let summary = json!({ "seats": args.seats, "sold": all, "oversold": oversold, "doubled": doubled, "lost": lost,
        "repeated": count(&told.repeated), "conflicts": count(&told.conflicts), "rejected": count(&told.rejected),
        "kills": kills, "mails_lost": mails_lost, "mails_doubled_unexplained": mails_doubled + mails_of_nothing as u64,
        "slowest_process": (slowest * 100.0).round() / 100.0 });
    say(format!("\nsummary: {summary}"));
    let mails_are_right = (mails_lost, mails_doubled, mails_of_nothing) == (0, 0, 0);
    Ok((oversold, doubled, lost) == (0, 0, 0) && mails_are_right && all == u64::from(args.seats.min(args.callers)))
}
