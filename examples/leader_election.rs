//! Three processes on one SQLite file elect a leader, which is repeatedly killed, paused and asked to resign. With
//! `--backend` they meet on a server instead. `--by bully` and `--by ring` show the elections by messages.
//!
//! The leader writes to a resource under the token of its term. The late write of a leader that was paused is
//! refused: by then the resource has seen a higher token. The last line is the result as JSON.
//!
//! The asserted bounds are those of the election plus the measured delays of the machine: each process
//! reports the duration of its calls to the file, and the delay of its timers.
#![allow(missing_docs, reason = "a program has no readers from outside")]
#[path = "common/by_message.rs"]
mod by_message;
#[path = "common/engine.rs"]
mod engine;

use std::{
    error::Error,
    io::{self, Write as _},
    process::{ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use clap::Parser;
use engine::{Engine, EngineAt};
use serde_json::json;
use steadfast::{
    leader_election::{LeaderElection, LeaderElectionConfig, Term},
    lease::{Acquired, Held, Lease, LeaseError, Renewed, StoreLease},
    notify::InMemoryNotifier,
    port::{BoxFuture, Capabilities, Capability, FencingToken},
    store::{InMemoryStore, Key, Precondition, PutOptions, Scan, Store, StoreError, StoreExt, Write},
    time::{Clock, Instant},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    sync::mpsc,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const TERM: Duration = Duration::from_secs(1);
/// Duration of a leader's work between the check of its term and its write. Most pauses fall here.
const WORK: Duration = Duration::from_millis(50);
/// Allowance for pipes and signals, beside the measured delays.
const ALLOWANCE: Duration = Duration::from_millis(20);
/// Interval at which a process measures the delay of its timers.
const TICK: Duration = Duration::from_millis(5);
const NODES: usize = 3;
/// Partition of what the leader writes to.
const RESOURCE: &str = "resource";

/// Three processes elect a leader on one SQLite file or server; leaders are killed, paused and asked to resign.
#[derive(Parser)]
struct Args {
    /// Number of times that the leader is killed, paused, and asked to resign (each).
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Where the processes meet: `sqlite:FILE`, the URL of a server (`postgres://..`, `redis://..`, `nats://..`), or
    /// `postgres`, `redis` or `nats` for a server of this run. A temporary file by default.
    #[arg(long, value_name = "BACKEND")]
    backend: Option<EngineAt>,
    /// Shows an election by messages instead: five nodes in memory, one of which vanishes, and a divided network.
    #[arg(long, value_enum, conflicts_with_all = ["rounds", "backend"])]
    by: Option<by_message::By>,
    #[arg(long, hide = true)]
    node: Option<usize>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let done = match (args.node, Engine::of_parent(), args.by) {
        (Some(node), Some(engine), _) => be_a_node(node, &engine).await.map(|()| true),
        (_, _, Some(by)) => by_message::show(by).map_err(Into::into),
        _ => disturb(args.rounds, args.backend.as_ref()).await,
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(io::stderr().lock(), "leader_election: {error}");
            ExitCode::FAILURE
        }
    }
}

fn config() -> LeaderElectionConfig {
    LeaderElectionConfig::of_term(TERM)
}

// ---- a node -----------------------------------------------------------------------------------------------------------------

/// Campaigns, and works while it leads. Reports events on its output; ends with its input.
async fn be_a_node(node: usize, engine: &Engine) -> Result<()> {
    let backend = engine.open().await?;
    let (store, resource) = (backend.store(), engine.name(RESOURCE));
    let added = Arc::new(Added::default());
    let leases = Arc::new(Timed { leases: backend.lease(), added: added.clone() });
    let name = engine.name("example");
    let election = LeaderElection::builder(leases, name, config()).candidate(format!("node-{node}")).build()?;
    tokio::spawn(added.clone().tell());
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    loop {
        let mut leadership = tokio::select! {
            leadership = election.campaign() => leadership?,
            command = commands.next_line() => match command? {
                Some(_) => continue, // asked to resign, and leads no longer
                None => return Ok(()),
            },
        };
        say(format_args!("added {}", added.micros()))?;
        say(format_args!("elected {}", leadership.token()))?;
        // A separate task, so that it ends by itself: a dropped task could not show its late write.
        let work = tokio::spawn(work(store.clone(), resource.clone(), leadership.term(), node));
        let resign = tokio::select! {
            _ = leadership.lost() => false,
            command = commands.next_line() => match command? {
                Some(_) => true,
                None => return Ok(()),
            },
        };
        if resign {
            work.abort();
            let _ = work.await;
            let token = leadership.token();
            leadership.resign().await?;
            say(format_args!("resigned {token}"))?;
            Clock::tokio().sleep(TERM).await; // let others lead
        } else {
            let token = leadership.token();
            work.await??;
            say(format_args!("ended {token}"))?;
        }
    }
}

/// The delays that this machine adds to an election: the duration of calls, and the delay of timers.
#[derive(Debug, Default)]
struct Added(AtomicU64);

impl Added {
    fn add(&self, time: Duration) {
        self.0.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    fn micros(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Waits for a tick, and records its delay.
    async fn tick(&self) {
        let clock = Clock::tokio();
        let began = clock.now();
        clock.sleep(TICK).await;
        // A timer of the runtime has a resolution of a millisecond.
        self.add((clock.now() - began).saturating_sub(TICK + Duration::from_millis(1)));
    }

    /// Reports the delay when it has grown.
    async fn tell(self: Arc<Self>) {
        let mut told = 0;
        loop {
            self.tick().await;
            let now = self.micros();
            if now > told + 1_000 && say(format_args!("added {now}")).is_err() {
                return;
            }
            told = if now > told + 1_000 { now } else { told };
        }
    }
}

/// Leases that record the duration of their calls.
#[derive(Debug)]
struct Timed {
    leases: Arc<dyn Lease>,
    added: Arc<Added>,
}

impl Lease for Timed {
    fn capabilities(&self) -> Capabilities {
        self.leases.capabilities()
    }
    fn acquire<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        term: Duration,
    ) -> BoxFuture<'a, std::result::Result<Acquired, LeaseError>> {
        Box::pin(async move {
            let began = Clock::tokio().now();
            let acquired = self.leases.acquire(name, holder, term).await;
            self.added.add(Clock::tokio().now() - began);
            acquired
        })
    }
    fn renew<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        token: FencingToken,
        term: Duration,
    ) -> BoxFuture<'a, std::result::Result<Renewed, LeaseError>> {
        self.leases.renew(name, holder, token, term)
    }
    fn release<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        token: FencingToken,
    ) -> BoxFuture<'a, std::result::Result<(), LeaseError>> {
        self.leases.release(name, holder, token)
    }
    fn read<'a>(&'a self, name: &'a str) -> BoxFuture<'a, std::result::Result<Option<Held>, LeaseError>> {
        self.leases.read(name)
    }
    fn request_release<'a>(
        &'a self,
        name: &'a str,
        token: FencingToken,
    ) -> BoxFuture<'a, std::result::Result<(), LeaseError>> {
        self.leases.request_release(name, token)
    }
}

/// Checks the term, works, and writes. Anything may happen between the check and the write; the token guards it.
async fn work(store: Arc<dyn Store>, resource: String, term: Term, node: usize) -> Result<()> {
    while term.is_leader() {
        Clock::tokio().sleep(WORK).await;
        let token = term.token();
        let written = loop {
            match write(&*store, &resource, &term, node).await {
                Err(StoreError::Conflict { .. }) => {} // another writer was faster: again, on what it wrote
                written => break written,
            }
        };
        match written {
            Ok(()) => say(format_args!("accepted {token}"))?,
            Err(StoreError::Fenced { .. }) => say(format_args!("refused {token}"))?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// One write to the resource: its number increases and its log names the writer, both or neither. Without batches, one
/// record holds the log.
async fn write(store: &dyn Store, resource: &str, term: &Term, node: usize) -> std::result::Result<(), StoreError> {
    if !store.capabilities().has(Capability::AtomicBatch) {
        let (key, token) = (Key::new(resource, "log"), term.token());
        let before = store.get(key).await?;
        let log = before.as_ref().map(|record| String::from_utf8_lossy(&record.value).into_owned()).unwrap_or_default();
        let same = before.map_or(Precondition::Absent, |record| Precondition::Version(record.version));
        let options = PutOptions::new().when(same).fence(token);
        return store.put(key, format!("{log}{token} {node}\n").into(), options).await.map(drop);
    }
    let before = store.get(Key::new(resource, "number")).await?;
    let number: u64 = before.as_ref().and_then(|r| std::str::from_utf8(&r.value).ok()?.parse().ok()).unwrap_or(0) + 1;
    let same = before.map_or(Precondition::Absent, |record| Precondition::Version(record.version));
    let writes = vec![
        Write::put("number", number.to_string(), PutOptions::new().when(same).fence(term.token())),
        Write::put(format!("log {number:08}"), format!("{} {node}", term.token()), Precondition::Absent),
    ];
    store.batch(resource, writes).await.map(|_| ())
}

fn say(what: std::fmt::Arguments<'_>) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{what}")
}

// ---- the disturbances ------------------------------------------------------------------------------------------------------

/// A line of a node's output.
struct Said {
    at: Instant,
    node: usize,
    what: String,
    token: u64,
}

struct Nodes {
    engine: Engine,
    running: Vec<(Child, ChildStdin)>,
    said: mpsc::UnboundedReceiver<Said>,
    tell: mpsc::UnboundedSender<Said>,
    clock: Clock,
    start: Instant,
    terms: usize,
    /// Delays of the machine in microseconds, in each node since its start, and here.
    added: [u64; NODES],
    here: Arc<Added>,
}

impl Nodes {
    fn new(engine: Engine) -> Result<Self> {
        let clock = Clock::tokio();
        let ((tell, said), start) = (mpsc::unbounded_channel(), clock.now());
        let here = Arc::new(Added::default());
        let ticks = here.clone();
        tokio::spawn(async move {
            loop {
                ticks.tick().await;
            }
        });
        let added = [0; NODES];
        let mut nodes = Self { engine, running: Vec::new(), said, tell, clock, start, terms: 0, added, here };
        for node in 0..NODES {
            let running = nodes.spawn(node)?;
            nodes.running.push(running);
        }
        Ok(nodes)
    }

    fn spawn(&self, node: usize) -> Result<(Child, ChildStdin)> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--node", &node.to_string()])
            .envs(self.engine.variables())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (stdin, stdout) = child.stdin.take().zip(child.stdout.take()).ok_or("a node without pipes")?;
        let (tell, clock) = (self.tell.clone(), self.clock.clone());
        tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let Some((what, token)) = line.split_once(' ') else { continue };
                let token = token.parse().unwrap_or_default();
                let _ = tell.send(Said { at: clock.now(), node, what: what.to_owned(), token });
            }
        });
        Ok((child, stdin))
    }

    fn signal(&self, node: usize, signal: &str) -> Result<()> {
        let pid = self.running[node].0.id().ok_or("a node has ended by itself")?.to_string();
        let sent = std::process::Command::new("kill").args([signal, &pid]).status()?;
        if sent.success() { Ok(()) } else { Err(format!("kill {signal} {pid}: {sent}").into()) }
    }

    /// Reads output until the expected line; returns `None` if that takes too long.
    async fn hear(&mut self, within: Duration, mut wanted: impl FnMut(&Said) -> bool) -> Result<Option<Said>> {
        let until = self.clock.now() + within;
        loop {
            let said = tokio::select! {
                said = self.said.recv() => said.ok_or("all nodes have ended")?,
                () = self.clock.sleep_until(until) => return Ok(None),
            };
            match said.what.as_str() {
                "elected" => self.terms += 1,
                "added" => self.added[said.node] = said.token,
                _ => {}
            }
            if wanted(&said) {
                return Ok(Some(said));
            }
        }
    }

    /// Returns the delays of the machine so far, in each node, and here.
    fn added(&self) -> ([u64; NODES], u64) {
        (self.added, self.here.micros())
    }

    /// Waits until this leader has written three times. One that the machine delays for longer than its term is followed by
    /// another one, which is returned instead.
    async fn working(&mut self, mut leader: Said, patience: Duration) -> Result<Said> {
        let mut written = 0;
        while written < 3 {
            let token = leader.token;
            let of = |said: &Said| match said.what.as_str() {
                "elected" => said.token > token,
                what => what == "accepted" && said.token == token,
            };
            let said = self.hear(patience, of).await?.ok_or("the leader does not write")?;
            (leader, written) = if said.what == "elected" { (said, 0) } else { (leader, written + 1) };
        }
        Ok(leader)
    }

    fn show(&self, at: Instant, what: &str) -> Result<()> {
        Ok(writeln!(io::stdout().lock(), "  {:>7.2} s  {what}", (at - self.start).as_secs_f64())?)
    }
}

/// A time without a leader, and the part that the machine added.
#[derive(Clone, Copy)]
struct Gap {
    took: Duration,
    added: Duration,
}

/// The times without a leader, by the cause.
#[derive(Default)]
struct Gaps {
    killed: Vec<Gap>,
    paused: Vec<Gap>,
    /// Paused while it held the file's lock: no other node can lead until it continues.
    paused_with_the_lock: Vec<Gap>,
    resigned: Vec<Gap>,
}

async fn disturb(rounds: usize, backend: Option<&EngineAt>) -> Result<bool> {
    let folder = tempfile::tempdir()?;
    let engine = EngineAt::start_shared(backend, folder.path(), "election.db")?;
    let (place, resource) = (engine.place(), engine.name(RESOURCE));
    drop(engine.open().await?); // a server that is not there is an error before the nodes ask for it
    let mut nodes = Nodes::new(engine)?;
    let (mut refused, mut gaps) = (0, Gaps::default());
    let rounds_of_all = rounds * 3;
    writeln!(
        io::stdout().lock(),
        "\n{NODES} processes, one {place}, terms of {TERM:?}; {rounds} kills, {rounds} pauses, {rounds} resignations\n"
    )?;

    let patience = TERM * 60;
    let mut leader = nodes.hear(patience, |said| said.what == "elected").await?.ok_or("no node was elected")?;
    nodes.show(leader.at, &format!("node-{} leads, token {}", leader.node, leader.token))?;
    for round in 0..rounds_of_all {
        leader = nodes.working(leader, patience).await?;
        let (node, token) = (leader.node, leader.token);
        nodes.clock.sleep(WORK / 2).await; // into the middle of its work
        let next = |said: &Said| said.what == "elected" && said.token > token;
        let mut stopped = false;
        let before = nodes.added();
        let (from, gaps) = match round % 3 {
            0 => {
                nodes.signal(node, "-KILL")?;
                let at = nodes.clock.now();
                nodes.show(at, &format!("node-{node} is killed"))?;
                leader = nodes.hear(patience, next).await?.ok_or("no node follows a killed leader")?;
                nodes.running[node].0.wait().await?;
                nodes.running[node] = nodes.spawn(node)?;
                nodes.added[node] = 0;
                (at, &mut gaps.killed)
            }
            1 => {
                nodes.signal(node, "-STOP")?;
                let at = nodes.clock.now();
                nodes.show(at, &format!("node-{node} is paused"))?;
                match nodes.hear(TERM * 3, next).await? {
                    Some(successor) => {
                        (leader, stopped) = (successor, true);
                        (at, &mut gaps.paused)
                    }
                    None => {
                        // It was paused with the file's lock, and all others wait for it. It continues, without a late write.
                        nodes.signal(node, "-CONT")?;
                        leader = nodes.hear(patience, next).await?.ok_or("no node follows a paused leader")?;
                        (at, &mut gaps.paused_with_the_lock)
                    }
                }
            }
            _ => {
                nodes.running[node].1.write_all(b"resign\n").await?;
                let resigned = |said: &Said| (said.what == "resigned" && said.token == token) || next(said);
                let said = nodes.hear(patience, resigned).await?.ok_or("it does not resign")?;
                if said.what == "elected" {
                    // Its term was over before it was asked.
                    leader = said;
                    continue;
                }
                let at = said.at;
                nodes.show(at, &format!("node-{node} resigns"))?;
                leader = nodes.hear(patience, next).await?.ok_or("no node follows a leader that resigned")?;
                (at, &mut gaps.resigned)
            }
        };
        let took = leader.at - from;
        let after = nodes.added();
        let micros = after.0[leader.node].saturating_sub(before.0[leader.node]) + (after.1 - before.1);
        gaps.push(Gap { took, added: Duration::from_micros(micros) });
        let (who, new) = (leader.node, leader.token);
        nodes.show(leader.at, &format!("node-{who} leads, token {new}: after {} ms", took.as_millis()))?;
        if stopped {
            // The resource has to see the new token before it can refuse the old one.
            let written = |said: &Said| said.what == "accepted" && said.token == new;
            nodes.hear(patience, written).await?.ok_or("the new leader does not write")?;
            nodes.signal(node, "-CONT")?;
            // A write that it had made before the pause is told late as accepted: the log shows when it was made.
            let late = |said: &Said| {
                said.node == node && said.token == token && ["refused", "ended"].contains(&said.what.as_str())
            };
            let late = nodes.hear(patience, late).await?.ok_or("a node does not continue")?;
            nodes.show(late.at, &format!("node-{node} continues under token {token}: {}", late.what))?;
            refused += usize::from(late.what == "refused");
        }
    }
    let (terms, delays) = (nodes.terms, nodes.here.clone());
    nodes.running.clear(); // which kills them

    let store = nodes.engine.open().await?.store();
    let log = store.scan_all(Scan::partition(resource).prefix("log").limit(1000)).await?;
    let log: Vec<String> = log
        .iter()
        .flat_map(|row| String::from_utf8_lossy(&row.value).lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let writers: Vec<(u64, String)> = log
        .iter()
        .filter_map(|line| line.split_once(' ').map(|(token, node)| (token.parse(), node.to_owned())))
        .filter_map(|(token, node)| Some((token.ok()?, node)))
        .collect();
    // In the order of the log: a token below one before it, or one token of two nodes, is a second leader at that time.
    let two = |pair: &&[(u64, String)]| pair[1].0 < pair[0].0 || (pair[1].0 == pair[0].0 && pair[1].1 != pair[0].1);
    let overlaps = writers.windows(2).filter(two).count();
    let accepted = writers.windows(2).filter(|pair| pair[1].0 < pair[0].0).count();

    let here = resign_here(&delays).await?;
    let (poll, no_poll) = (config().poll + ALLOWANCE, Duration::from_millis(100));
    let bounds = [
        ("a kill", &gaps.killed, TERM + poll),
        ("a pause", &gaps.paused, TERM + poll),
        ("a resignation, across processes", &gaps.resigned, poll),
        ("a resignation, in one process", &here, no_poll),
    ];
    let mut out = io::stdout().lock();
    writeln!(out, "\n  {} writes, {terms} terms, {overlaps} overlaps in the resource's log", writers.len())?;
    writeln!(out, "  late writes: {refused} refused, {accepted} accepted")?;
    let mut holds = overlaps == 0 && writers.len() == log.len() && terms > rounds_of_all;
    for (what, gaps, bound) in bounds {
        let within = gaps.iter().all(|gap| gap.took <= bound + gap.added);
        holds &= within;
        let worst = gaps.iter().max_by_key(|gap| gap.took.saturating_sub(gap.added));
        let (took, added) = worst.map_or((0, 0), |gap| (gap.took.as_millis(), gap.added.as_millis()));
        let (n, bound, verdict) = (gaps.len(), bound.as_millis(), if within { "" } else { ": TOO LONG" });
        writeln!(
            out,
            "  a new leader after {what}, {n} times: at worst after {took} ms, of which the machine added {added}; allowed are \
             {bound} ms and that{verdict}"
        )?;
    }
    let millis = |gaps: &[Gap]| gaps.iter().map(|gap| gap.took.as_millis()).collect::<Vec<_>>();
    let added = |gaps: &[Gap]| gaps.iter().map(|gap| gap.added.as_millis()).collect::<Vec<_>>();
    let summary = json!({
        "rounds": rounds, "terms": terms, "writes": writers.len(), "overlaps": overlaps,
        "late_writes_refused": refused, "late_writes_accepted": accepted,
        "paused_with_the_lock": gaps.paused_with_the_lock.len(),
        "takeovers_ms": {
            "killed": millis(&gaps.killed), "paused": millis(&gaps.paused), "resigned": millis(&gaps.resigned),
            "resigned_in_one_process": millis(&here),
        },
        "of_them_added_by_the_machine_ms": {
            "killed": added(&gaps.killed), "paused": added(&gaps.paused), "resigned": added(&gaps.resigned),
        },
        "term_ms": TERM.as_millis(), "poll_ms": config().poll.as_millis(), "allowance_ms": ALLOWANCE.as_millis(),
    });
    writeln!(out, "\nsummary: {summary}")?;
    Ok(holds)
}

/// Measures the time until a second candidate leads, with a notifier between both, and the delays of the machine meanwhile.
async fn resign_here(delays: &Added) -> Result<Vec<Gap>> {
    let (clock, mut gaps) = (Clock::tokio(), Vec::new());
    let (store, notifier) = (Arc::new(InMemoryStore::new()), Arc::new(InMemoryNotifier::new()));
    let candidate = |name: &str| -> Result<LeaderElection> {
        let leases = Arc::new(StoreLease::new(store.clone())?);
        // The defaults: terms of 15 s, polls every 2 s. The notice makes the change fast.
        Ok(LeaderElection::builder(leases, "here", LeaderElectionConfig::default())
            .candidate(name)
            .notifier(notifier.clone())
            .build()?)
    };
    let (one, other) = (candidate("one")?, candidate("other")?);
    let mut leadership = one.campaign().await?;
    for n in 0..5 {
        let next = if n % 2 == 0 { &other } else { &one };
        let campaign = next.campaign();
        let resign = async {
            clock.sleep(WORK).await; // so that the other one waits for the notice already
            let (at, before) = (clock.now(), delays.micros());
            leadership.resign().await.map(|()| (at, before))
        };
        let (elected, at) = tokio::join!(async { campaign.await.map(|new| (new, clock.now())) }, resign);
        let ((new, since), (at, before)) = (elected?, at?);
        // The tick that was delayed meanwhile has ended by then.
        clock.sleep(TICK * 2).await;
        gaps.push(Gap { took: since - at, added: Duration::from_micros(delays.micros() - before) });
        leadership = new;
    }
    leadership.resign().await?;
    Ok(gaps)
}
