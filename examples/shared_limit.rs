//! Two processes share a limit of 100 calls per second through one SQLite file, or the server of `--backend`, which then fails.
//! Of a cluster, the server that leads the store is killed while they count.
//!
//! Shown are the admissions of both processes, shared exactly and by leases, and the behaviour while the file cannot be
//! written: all calls pass, none pass, or each process continues with its share. The last line is the result as JSON.
#![allow(missing_docs, reason = "a program has no readers from outside")]
#[path = "common/engine.rs"]
mod engine;

use std::{
    collections::HashMap,
    error::Error,
    io::{self, Write as _},
    process::{ExitCode, Stdio},
    sync::Arc,
    time::Duration,
};

use clap::Parser;
use engine::{Engine, EngineAt};
use serde_json::json;
use steadfast::{
    backend::sqlite::{Sqlite, SqliteConfig},
    store::Store,
    throttling::{Quota, SharedRateLimitConfig, SharedRateLimiter, WhenDown},
    time::{Clock, Instant},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    sync::mpsc,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// Limit of both processes together per second, and its burst.
const LIMIT: u32 = 100;
const BURST: u32 = 10;
/// Interval of requests to each process: ten times the limit.
const ASK_EVERY: Duration = Duration::from_millis(2);
/// Allowance for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two processes share a limit of 100 calls a second through SQLite or a server.
#[derive(Parser)]
struct Args {
    /// Seconds of counting in each mode.
    #[arg(long, default_value_t = 3)]
    seconds: u32,
    /// Where the processes meet: `sqlite:FILE`, the URL of a server (`postgres://..`, `redis://..`, `nats://..`), or `postgres`,
    /// `redis`, `nats` or `nats:3` (a cluster of three) for servers of this run, which also fail. A temporary file by default.
    #[arg(long, value_name = "BACKEND")]
    backend: Option<EngineAt>,
    /// The configuration of a process, as JSON.
    #[arg(long, hide = true, requires = "name")]
    config: Option<String>,
    /// The name of its limit.
    #[arg(long, hide = true)]
    name: Option<String>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let done = match (&args.config, &args.name, Engine::of_parent()) {
        (Some(config), Some(name), Some(engine)) => be_a_process(config, name, &engine).await.map(|()| true),
        _ => count(args.seconds.max(1), args.backend.as_ref()).await,
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(io::stderr().lock(), "shared_limit: {error}");
            ExitCode::FAILURE
        }
    }
}

fn config() -> SharedRateLimitConfig {
    Quota::per_second(LIMIT).burst(BURST).into()
}

// ---- a process that is limited ----------------------------------------------------------------------------------------------

/// Reads one line for each call, and asks the limiter for all of them concurrently. Ends with its input.
async fn be_a_process(config: &str, name: &str, engine: &Engine) -> Result<()> {
    let config: SharedRateLimitConfig = serde_json::from_str(config)?;
    let store: Arc<dyn Store> = match engine.file() {
        Some(file) => Arc::new(Sqlite::open(SqliteConfig::at(file).lock_wait(MS * 100))?.store()),
        None => engine.open().await?.store(),
    };
    let limiter = SharedRateLimiter::new(store, name.to_owned(), config)?;
    // Leases permits in advance.
    tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.run(std::future::pending()).await }
    });
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        if line.starts_with('{') {
            limiter.reconfigure(serde_json::from_str::<SharedRateLimitConfig>(&line)?)?;
            continue;
        }
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let passes = limiter.acquire().await.is_ok();
            let _ = writeln!(io::stdout().lock(), "{line} {passes} {}", limiter.is_store_down());
        });
    }
    Ok(())
}

// ---- the control ----------------------------------------------------------------------------------------------------

/// Times of a request and of its answer by this process's clock: the decision lies in between.
struct Asked {
    at: Instant,
    answered: Instant,
    passes: bool,
}

struct Answer {
    process: usize,
    line: String,
    at: Instant,
}

struct Both {
    _children: Vec<Child>,
    stdins: Vec<ChildStdin>,
    answers: mpsc::UnboundedReceiver<Answer>,
    open: HashMap<u64, Instant>,
    number: u64,
    /// `true` for each process whose store was down at its last answer.
    down: [bool; 2],
    clock: Clock,
}

impl Both {
    fn start(config: SharedRateLimitConfig, name: &str, engine: &Engine) -> Result<Self> {
        let (clock, (tell, answers)) = (Clock::tokio(), mpsc::unbounded_channel());
        let (mut children, mut stdins) = (Vec::new(), Vec::new());
        for process in 0..2 {
            let mut child = Command::new(std::env::current_exe()?)
                .args(["--config", &serde_json::to_string(&config)?, "--name", name])
                .envs(engine.variables())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()?;
            let (stdin, stdout) = child.stdin.take().zip(child.stdout.take()).ok_or("a process without pipes")?;
            let (tell, clock) = (tell.clone(), clock.clone());
            tokio::spawn(async move {
                let mut lines = BufReader::new(stdout).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    let _ = tell.send(Answer { process, line, at: clock.now() });
                }
            });
            children.push(child);
            stdins.push(stdin);
        }
        let open = HashMap::new();
        Ok(Self { _children: children, stdins, answers, open, number: 0, down: [false; 2], clock })
    }

    async fn reconfigure(&mut self, config: SharedRateLimitConfig) -> Result<()> {
        let line = format!("{}\n", serde_json::to_string(&config)?);
        for stdin in &mut self.stdins {
            stdin.write_all(line.as_bytes()).await?;
        }
        Ok(())
    }

    /// Sends requests to both processes for this time, and waits for the answers.
    async fn ask(&mut self, how_long: Duration) -> Result<Vec<Asked>> {
        let (start, mut asked) = (self.clock.now(), Vec::new());
        let mut next = start;
        while next < start + how_long {
            for stdin in &mut self.stdins {
                self.number += 1;
                self.open.insert(self.number, self.clock.now());
                stdin.write_all(format!("{}\n", self.number).as_bytes()).await?;
            }
            next = (next + ASK_EVERY).max(self.clock.now());
            while let Some(answer) = self.answer(next).await? {
                asked.push(answer);
            }
        }
        let latest = self.clock.now() + PATIENCE;
        while !self.open.is_empty() {
            asked.push(self.answer(latest).await?.ok_or("a question has no answer")?);
        }
        Ok(asked)
    }

    /// Sends requests for this time, and then on until so many were admitted: a busy machine admits fewer in a second.
    async fn ask_for(&mut self, how_long: Duration, least: usize) -> Result<Vec<Asked>> {
        let (mut asked, latest) = (self.ask(how_long).await?, self.clock.now() + PATIENCE);
        while admitted(&asked) < least && self.clock.now() < latest {
            asked.extend(self.ask(MS * 100).await?);
        }
        Ok(asked)
    }

    async fn answer(&mut self, latest: Instant) -> Result<Option<Asked>> {
        let answer = tokio::select! {
            biased;
            answer = self.answers.recv() => answer.ok_or("a process has ended by itself")?,
            () = self.clock.sleep_until(latest) => return Ok(None),
        };
        let mut words = answer.line.split(' ');
        let mut word = || words.next().ok_or("half an answer");
        let (number, passes, down) = (word()?.parse()?, word()? == "true", word()? == "true");
        self.down[answer.process] = down;
        let at = self.open.remove(&number).ok_or("an answer to nothing")?;
        Ok(Some(Asked { at, answered: answer.at, passes }))
    }

    /// Sends requests until both processes have noticed.
    async fn until_down(&mut self, down: bool) -> Result<()> {
        let latest = self.clock.now() + PATIENCE;
        while self.down != [down; 2] {
            if self.clock.now() > latest {
                return Err(format!("the store is {}, and they do not see it", if down { "down" } else { "up" }).into());
            }
            self.ask(MS * 50).await?;
        }
        Ok(())
    }
}

fn admitted(asked: &[Asked]) -> usize {
    asked.iter().filter(|call| call.passes).count()
}

/// Returns the maximum number of calls that were certainly admitted within one second.
fn most_in_a_second(asked: &[Asked]) -> usize {
    let passed: Vec<&Asked> = asked.iter().filter(|call| call.passes).collect();
    let within = |from: Instant| passed.iter().filter(|call| call.at >= from && call.answered < from + SECOND).count();
    passed.iter().map(|call| within(call.at)).max().unwrap_or(0)
}

/// A backend that cannot be written.
enum Stuck<'a> {
    /// An open write transaction on the file: no other process can write.
    File(rusqlite::Connection),
    /// A server that was killed.
    Server(&'a Engine),
}

impl<'a> Stuck<'a> {
    fn hold(engine: &'a Engine) -> Result<Self> {
        let Some(file) = engine.file() else {
            engine.kill()?;
            return Ok(Self::Server(engine));
        };
        let connection = rusqlite::Connection::open(file)?;
        connection.busy_timeout(PATIENCE)?;
        connection.execute_batch("BEGIN IMMEDIATE")?;
        Ok(Self::File(connection))
    }

    fn release(self) -> Result<()> {
        match self {
            Self::File(connection) => connection.execute_batch("ROLLBACK")?,
            Self::Server(engine) => engine.start_again(),
        }
        Ok(())
    }
}

async fn count(seconds: u32, backend: Option<&EngineAt>) -> Result<bool> {
    let mut out = io::stdout();
    let folder = tempfile::tempdir()?;
    let engine = EngineAt::start_shared(backend, folder.path(), "limits.db")?;
    let place = if engine.file().is_some() { "SQLite file" } else { engine.place() };
    writeln!(out, "\ntwo processes, one limit of {LIMIT} calls a second ({BURST} at once) in one {place}\n")?;
    drop(engine.open().await?); // so that both find it made
    let (mut holds, mut summary) = (true, serde_json::Map::new());
    for (mode, config) in [("exact", config()), ("leased", config().leased(MS * 100))] {
        let name = engine.name(&format!("payments-{mode}"));
        let mut both = Both::start(config.when_down(WhenDown::FailClosed), &name, &engine)?;
        both.ask(MS * 300).await?; // until both are at work

        let slack = config.slack(Duration::ZERO);
        let start = both.clock.now();
        let least = (LIMIT * seconds) as usize / 2;
        let counted = async {
            let asked = both.ask_for(SECOND * seconds, least).await?;
            // A request of this period may have been answered slightly later.
            Ok::<_, Box<dyn Error + Send + Sync>>((asked, (both.clock.now() - start).as_secs_f64()))
        };
        let (counted, servers_killed) = tokio::join!(counted, engine.lose_leader(SECOND));
        let (asked, took) = counted?;
        let (all, most) = (admitted(&asked), most_in_a_second(&asked));
        let allowed = (f64::from(LIMIT) * took).ceil() as usize + (BURST + slack) as usize;
        let in_a_second = (LIMIT + BURST + slack) as usize;
        // Calls are still admitted.
        let keeps = all <= allowed && most <= in_a_second && all >= least;
        holds &= keeps;
        let verdict = |right: bool| if right { "" } else { ": WRONG" };
        writeln!(out, "  {mode}: {} requests in {took:.1} s", asked.len())?;
        writeln!(
            out,
            "    {all} admitted, {allowed} allowed; {most} in any second, {in_a_second} allowed ({LIMIT}, a burst of {BURST}, a \
             slack of {slack}){}",
            verdict(keeps)
        )?;

        let mut down = serde_json::Map::new();
        let fails = engine.file().is_some() || engine.is_private();
        let failing = if engine.file().is_some() { "the file cannot be written" } else { "the server is down" };
        for (name, when_down) in [
            ("fail_open", WhenDown::FailOpen),
            ("fail_closed", WhenDown::FailClosed),
            ("local_share", WhenDown::LocalShare(0.5)),
        ]
        .into_iter()
        // The server of a URL is not ours to kill.
        .filter(|_| fails)
        {
            both.reconfigure(config.when_down(when_down)).await?;
            both.until_down(false).await?;
            let stuck = Stuck::hold(&engine)?;
            both.until_down(true).await?;
            let start = both.clock.now();
            let least = if matches!(when_down, WhenDown::LocalShare(_)) { LIMIT as usize / 2 } else { 0 };
            let asked = both.ask_for(SECOND, least).await?;
            let took = (both.clock.now() - start).as_secs_f64();
            stuck.release()?;
            both.until_down(false).await?;
            let all = admitted(&asked);
            let right = match when_down {
                WhenDown::FailOpen => all == asked.len(),
                WhenDown::FailClosed => all == 0,
                // Half of the limit for each of the two processes, and half of a burst.
                WhenDown::LocalShare(_) => {
                    let most = (f64::from(LIMIT) * took).ceil() as usize + BURST as usize;
                    (least..=most).contains(&all)
                }
                _ => false,
            };
            holds &= right;
            writeln!(out, "    {failing}, {name}: {all} of {} in {took:.1} s{}", asked.len(), verdict(right))?;
            down.insert(name.to_owned(), json!({ "asked": asked.len(), "admitted": all }));
        }
        let mode_summary = json!({ "asked": asked.len(), "admitted": all, "allowed": allowed, "most_in_a_second": most,
            "allowed_in_a_second": in_a_second, "slack": slack, "servers_killed": servers_killed, "down": down });
        summary.insert(mode.to_owned(), mode_summary);
    }
    writeln!(out, "\nsummary: {}", serde_json::Value::Object(summary))?;
    Ok(holds)
}
