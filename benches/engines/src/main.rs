//! What do the ports carry a second on a server? Ours beside the plain client by hand and apalis,
//! alternating in one run. See README.md.

mod apalis_jobs;
mod by_hand_postgres;
mod by_hand_redis;
mod measure;
mod ours;
#[path = "../../../tests/engines/server/mod.rs"]
mod server;
mod streams;

use std::{io::Write, process::ExitCode, time::Duration};

use measure::{Cell, Effort};

const USAGE: &str = "\
usage: steadfast-engines [--json] [--quick] [--rounds N] [--callers N] [--postgres | --redis] [WORK ...]

  WORK        get, put, cas, send1, send32, take1, take32 (all by default)
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
    /// Sends messages of 100 bytes, so many at once.
    Send(usize),
    /// Receives and completes messages, so many at once.
    Take(usize),
}

impl Work {
    pub const ALL: [Self; 7] =
        [Self::Get, Self::Put, Self::Cas, Self::Send(1), Self::Send(32), Self::Take(1), Self::Take(32)];

    pub fn name(self) -> String {
        match self {
            Self::Get => "get".into(),
            Self::Put => "put".into(),
            Self::Cas => "cas".into(),
            Self::Send(n) => format!("send{n}"),
            Self::Take(n) => format!("take{n}"),
        }
    }

    pub fn is_queue(self) -> bool {
        matches!(self, Self::Send(_) | Self::Take(_))
    }
}

/// The server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// With `synchronous_commit = on`.
    Postgres,
    /// With an append-only file that is synced always.
    Redis,
}

impl Engine {
    pub fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Redis => "redis",
        }
    }
}

pub const BODY: [u8; 100] = [b'x'; 100];
pub const RECORDS: usize = 1_000;

struct Arguments {
    json: bool,
    effort: Effort,
    callers: Vec<usize>,
    engines: Vec<Engine>,
    works: Vec<Work>,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let effort = Effort { rounds: 9, round: Duration::from_millis(300) };
        let mut arguments = Self { json: false, effort, callers: Vec::new(), engines: Vec::new(), works: Vec::new() };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--json" => arguments.json = true,
                "--quick" => arguments.effort = Effort { rounds: 1, round: Duration::from_millis(5) },
                "--postgres" => arguments.engines.push(Engine::Postgres),
                "--redis" => arguments.engines.push(Engine::Redis),
                "--rounds" => {
                    let rounds = words.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
                    arguments.effort.rounds = rounds.ok_or("--rounds wants a number from 1")?;
                }
                "--callers" => {
                    let callers = words.next().and_then(|n| n.parse().ok()).filter(|n| (1..=64).contains(n));
                    arguments.callers.push(callers.ok_or("--callers wants a number from 1 to 64")?);
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
        if arguments.engines.is_empty() {
            arguments.engines = vec![Engine::Postgres, Engine::Redis];
        }
        Ok(arguments)
    }
}

fn main() -> ExitCode {
    match Arguments::parse(std::env::args().skip(1)).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("steadfast-engines: {error}");
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
    for &engine in &arguments.engines {
        for &work in &arguments.works {
            for &callers in &arguments.callers {
                let cell = runtime.block_on(measure::cell(work, engine, callers, arguments.effort));
                say(if arguments.json { cell.json() } else { cell.line() })?;
            }
        }
    }
    Ok(())
}
