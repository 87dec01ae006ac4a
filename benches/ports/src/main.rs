//! What do the ports carry a second? Ours beside the same by hand and apalis, alternating in one
//! run. See README.md.

mod apalis_jobs;
mod by_hand_nats;
mod by_hand_postgres;
mod by_hand_redis;
mod by_hand_sqlite;
mod measure;
mod ours;
#[path = "../../../tests/engines/server/mod.rs"]
mod server;
mod streams;

use std::{io::Write, process::ExitCode, time::Duration};

use measure::{Cell, Effort};

const USAGE: &str = "\
usage: steadfast-ports [--json] [--quick] [--rounds N] [--callers N] [MODE ...] [WORK ...]

  MODE        --memory, --relaxed, --durable (these three by default), --postgres, --redis, --nats
  WORK        get, put, cas, append, events500, send1, send32, take1, take32, forward32 (all by default)
  --json      one JSON object a line instead of a table
  --quick     a smoke run: short rounds, and few of them; no figures to quote
  --rounds N  rounds for each line (9 by default)
  --callers N only with so many callers (1 and 16 by default)";

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Reads one of 1,000 records of 100 bytes.
    Get,
    /// Writes one of 1,000 records of 100 bytes.
    Put,
    /// Writes a record of the caller's own in place of the version that it wrote before.
    Cas,
    /// Appends a row of 100 bytes to one sequence, which all callers share.
    Append,
    /// Appends events of 100 bytes to one of 32 partitions of a topic, so many in a request.
    Events(usize),
    /// Sends messages of 100 bytes, so many at once.
    Send(usize),
    /// Receives and completes messages, so many at once.
    Take(usize),
    /// Ends received messages and sends others to a second queue, so many at once.
    Forward(usize),
}

impl Work {
    pub const ALL: [Self; 10] = [
        Self::Get,
        Self::Put,
        Self::Cas,
        Self::Append,
        Self::Events(500),
        Self::Send(1),
        Self::Send(32),
        Self::Take(1),
        Self::Take(32),
        Self::Forward(32),
    ];

    pub fn name(self) -> String {
        match self {
            Self::Get => "get".into(),
            Self::Put => "put".into(),
            Self::Cas => "cas".into(),
            Self::Append => "append".into(),
            Self::Events(n) => format!("events{n}"),
            Self::Send(n) => format!("send{n}"),
            Self::Take(n) => format!("take{n}"),
            Self::Forward(n) => format!("forward{n}"),
        }
    }

    /// Whether it belongs to the queue.
    pub fn is_queue(self) -> bool {
        matches!(self, Self::Send(_) | Self::Take(_) | Self::Forward(_))
    }
}

/// Where it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In this process's memory.
    Memory,
    /// In SQLite, each write synced.
    Durable,
    /// In SQLite, writes not synced.
    Relaxed,
    /// In PostgreSQL with `synchronous_commit = on`.
    Postgres,
    /// In Redis with an append-only file that is synced always.
    Redis,
    /// In NATS with streams that are synced always.
    Nats,
}

impl Mode {
    const ALL: [Self; 6] = [Self::Memory, Self::Relaxed, Self::Durable, Self::Postgres, Self::Redis, Self::Nats];

    /// Whether the ports can do this there.
    fn can(self, work: Work) -> bool {
        match work {
            // By hand in a file only.
            Work::Events(_) => matches!(self, Self::Memory | Self::Durable | Self::Relaxed),
            Work::Append | Work::Forward(_) => self != Self::Nats,
            _ => true,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Durable => "durable",
            Self::Relaxed => "relaxed",
            Self::Postgres => "postgres",
            Self::Redis => "redis",
            Self::Nats => "nats",
        }
    }
}

/// What a record or a message holds.
pub const BODY: [u8; 100] = [7; 100];

/// How many records a store holds.
pub const RECORDS: usize = 1000;

struct Arguments {
    json: bool,
    effort: Effort,
    callers: Vec<usize>,
    modes: Vec<Mode>,
    works: Vec<Work>,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let effort = Effort { rounds: 9, round: Duration::from_millis(150) };
        let mut arguments = Self { json: false, effort, callers: Vec::new(), modes: Vec::new(), works: Vec::new() };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--json" => arguments.json = true,
                "--quick" => arguments.effort = Effort { rounds: 1, round: Duration::from_millis(5) },
                "--rounds" => {
                    let rounds = words.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
                    arguments.effort.rounds = rounds.ok_or("--rounds wants a number from 1")?;
                }
                "--callers" => {
                    let callers = words.next().and_then(|n| n.parse().ok()).filter(|n| (1..=64).contains(n));
                    arguments.callers.push(callers.ok_or("--callers wants a number from 1 to 64")?);
                }
                option
                    if let Some(mode) =
                        Mode::ALL.into_iter().find(|mode| option.strip_prefix("--") == Some(mode.name())) =>
                {
                    arguments.modes.push(mode);
                }
                option if option.starts_with('-') => return Err(format!("unknown option {option}\n{USAGE}")),
                name => {
                    let work = Work::ALL.into_iter().find(|work| work.name() == name);
                    arguments.works.push(work.ok_or_else(|| format!("unknown work {name}\n{USAGE}"))?);
                }
            }
        }
        if arguments.works.is_empty() {
            arguments.works = Work::ALL.to_vec();
        }
        if arguments.callers.is_empty() {
            arguments.callers = vec![1, 16];
        }
        if arguments.modes.is_empty() {
            arguments.modes = Mode::ALL[..3].to_vec();
        }
        Ok(arguments)
    }
}

fn main() -> ExitCode {
    match Arguments::parse(std::env::args().skip(1)).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("steadfast-ports: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|e| e.to_string())?;
    let mut out = std::io::stdout().lock();
    let mut say = |text: String| writeln!(out, "{text}").map_err(|e| e.to_string());
    if !arguments.json {
        say(Cell::head())?;
    }
    for &mode in &arguments.modes {
        for &work in arguments.works.iter().filter(|work| mode.can(**work)) {
            for &callers in &arguments.callers {
                let cell = runtime.block_on(measure::cell(work, mode, callers, arguments.effort));
                say(if arguments.json { cell.json() } else { cell.line() })?;
            }
        }
    }
    Ok(())
}
