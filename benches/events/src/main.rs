//! How fast are commits, loads and replays? Ours beside rusqlite by hand, cqrs-es and eventcore, alternating in one run; and do
//! four processes commit as much as one? See README.md.

mod by_hand;
mod index;
mod ours;
mod processes;
#[path = "../../../tests/engines/server/mod.rs"]
mod server;
mod views;

use std::{
    collections::BTreeSet,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use index::Request;
use steadfast::backend::sqlite::Durability;

const USAGE: &str = "\
usage: steadfast-events [--quick] [--rounds N] [--cqrs-es PROGRAM] [--eventcore PROGRAM] [LINE ...]

  LINE               processes, append1, append16, postgres16, load, replay, aggregate16, view, lookup, copies, put, lag, size
                     (all by default)
  --quick            a smoke run: few events and one round; no figures to quote
  --rounds N         rounds for each line (5 by default)
  --cqrs-es PROGRAM  the built program of benches/cqrs_es, which cannot be linked with this one: both link SQLite
  --eventcore PROGRAM  likewise that of benches/eventcore";

/// Events of a stream.
pub const PER_STREAM: usize = 100;

/// An event of 100 bytes as JSON.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Booked {
    pub seats: u64,
    pub by: String,
}

impl Booked {
    pub fn of_100_bytes() -> Self {
        Self { seats: 2, by: "x".repeat(100 - r#"{"seats":2,"by":""}"#.len()) }
    }

    pub fn json() -> Vec<u8> {
        serde_json::to_vec(&Self::of_100_bytes()).expect("JSON")
    }
}

/// Returns the name of a stream in a filled file.
pub fn stream(n: usize) -> String {
    format!("stream-{n:06}")
}

pub async fn timed(work: impl Future<Output = ()>) -> Duration {
    let start = Instant::now();
    work.await;
    start.elapsed()
}

pub fn timed_here(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Ours,
    ByHand,
    CqrsEs,
    Eventcore,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Append,
    /// On PostgreSQL.
    AppendPostgres,
    Load,
    Replay,
    /// Commands of one aggregate.
    Aggregate,
    /// Events of a view.
    View,
    Index(Request),
}

/// One line of the table.
struct Line {
    name: &'static str,
    text: &'static str,
    work: Work,
    /// Number of operations.
    count: usize,
    callers: usize,
    subjects: &'static [Subject],
}

const LINES: [Line; 10] = [
    Line {
        name: "append1",
        text: "append of 1 event, 1 caller",
        work: Work::Append,
        count: 2_000,
        callers: 1,
        subjects: &[Subject::Ours, Subject::ByHand, Subject::CqrsEs, Subject::Eventcore],
    },
    Line {
        name: "append16",
        text: "append of 1 event, 16 callers",
        work: Work::Append,
        count: 16_000,
        callers: 16,
        subjects: &[Subject::Ours, Subject::ByHand, Subject::CqrsEs, Subject::Eventcore],
    },
    Line {
        name: "postgres16",
        text: "the same on PostgreSQL",
        work: Work::AppendPostgres,
        count: 16_000,
        callers: 16,
        subjects: &[Subject::Ours, Subject::ByHand],
    },
    Line {
        name: "load",
        text: "load of 100 events",
        work: Work::Load,
        count: 2_000,
        callers: 1,
        subjects: &[Subject::Ours, Subject::ByHand, Subject::CqrsEs, Subject::Eventcore],
    },
    Line {
        name: "replay",
        text: "replay, events",
        work: Work::Replay,
        count: 1_000_000,
        callers: 1,
        subjects: &[Subject::Ours, Subject::ByHand, Subject::CqrsEs, Subject::Eventcore],
    },
    Line {
        name: "aggregate16",
        text: "one aggregate, 16 callers",
        work: Work::Aggregate,
        count: 8_000,
        callers: 16,
        subjects: &[Subject::Ours, Subject::ByHand],
    },
    Line {
        name: "view",
        text: "view of 10,000 rows, events",
        work: Work::View,
        count: 1_000_000,
        callers: 1,
        subjects: &[Subject::Ours, Subject::ByHand],
    },
    Line { name: "lookup", text: "look-up of 10 rows", ..REQUEST },
    Line { name: "copies", text: "the same from copies", work: Work::Index(Request::Copies), ..REQUEST },
    Line { name: "put", text: "put with one changed key", work: Work::Index(Request::Put), count: 2_000, ..REQUEST },
];

const REQUEST: Line = Line {
    name: "",
    text: "",
    work: Work::Index(Request::Rows),
    count: 10_000,
    callers: 1,
    subjects: &[Subject::Ours, Subject::ByHand],
};

/// Events of the filled files, which loads and replays read.
const FILLED: usize = 1_000_000;
/// Events of the files whose sizes are compared.
const SIZED: usize = 100_000;

struct Options {
    rounds: usize,
    /// Divides the numbers.
    scale: usize,
    is_quick: bool,
    cqrs_es: Option<PathBuf>,
    eventcore: Option<PathBuf>,
    lines: BTreeSet<String>,
}

/// What all lines share.
struct World {
    folder: tempfile::TempDir,
    postgres: Option<server::Postgres>,
    filled: Vec<Subject>,
}

impl Options {
    fn program(&self, subject: Subject) -> &Path {
        let program = if subject == Subject::CqrsEs { &self.cqrs_es } else { &self.eventcore };
        program.as_deref().expect("it is given")
    }

    /// Runs a program of another package, which measures itself, and prints seconds.
    fn rival(&self, subject: Subject, file: &Path, work: &str, numbers: [usize; 2]) -> Duration {
        let mut command = Command::new(self.program(subject));
        command.arg(file).arg(work).args(numbers.map(|number| number.to_string()));
        let output = command.output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Duration::from_secs_f64(text.parse().expect("seconds"))
    }
}

impl World {
    fn postgres(&mut self) -> String {
        self.postgres.get_or_insert_with(server::Postgres::start).url()
    }

    /// Returns the file of a subject with many events.
    async fn filled(&mut self, subject: Subject, options: &Options) -> PathBuf {
        let file = self.folder.path().join(format!("{subject:?}.db"));
        if !self.filled.contains(&subject) {
            self.filled.push(subject);
            let events = FILLED / options.scale;
            match subject {
                Subject::Ours => ours::fill(&file.display().to_string(), events).await,
                Subject::ByHand => by_hand::fill(&file, events),
                _ => drop(options.rival(subject, &file, "fill", [events, 1])),
            }
        }
        file
    }

    /// Returns the time that one subject takes for a line.
    async fn run(&mut self, subject: Subject, line: &Line, count: usize, options: &Options) -> Duration {
        let (fresh, callers) = (tempfile::tempdir_in(self.folder.path()).expect("a folder"), line.callers);
        let file = fresh.path().join("bench.db");
        let place = file.display().to_string();
        match (line.work, subject) {
            (Work::Append, Subject::Ours) => {
                ours::append(ours::log(&place, Durability::Full).await, count, callers).await
            }
            (Work::Append, Subject::ByHand) => by_hand::append(&file, count, callers).await,
            (Work::Append, _) => options.rival(subject, &file, "append", [count, callers]),
            (Work::AppendPostgres, Subject::Ours) => {
                // A fresh server's tables for each round: ids of commands and versions begin anew.
                let url = server::Postgres::start();
                ours::append(ours::log(&url.url(), Durability::Full).await, count, callers).await
            }
            (Work::AppendPostgres, _) => by_hand::append_postgres(&self.postgres(), count, callers).await,
            (Work::Load, _) => {
                let (file, streams) = (self.filled(subject, options).await, FILLED / options.scale / PER_STREAM);
                match subject {
                    Subject::Ours => ours::load(&file.display().to_string(), streams, count).await,
                    Subject::ByHand => by_hand::load(&file, streams, count),
                    _ => options.rival(subject, &file, "load", [streams, count]),
                }
            }
            (Work::Replay, _) => {
                let file = self.filled(subject, options).await;
                match subject {
                    Subject::Ours => ours::replay(&file.display().to_string(), count).await,
                    Subject::ByHand => by_hand::replay(&file, count),
                    _ => options.rival(subject, &file, "replay", [count, 1]),
                }
            }
            (Work::Aggregate, Subject::Ours) => {
                ours::aggregate(ours::log(&place, Durability::Full).await, count, callers).await
            }
            (Work::Aggregate, _) => by_hand::aggregate(&file, count, callers),
            (Work::View, _) => {
                let log = self.filled(subject, options).await;
                match subject {
                    Subject::Ours => views::fold(&log.display().to_string(), &file, count).await,
                    _ => views::fold_by_hand(&log, &file, count),
                }
            }
            (Work::Index(request), Subject::Ours) => index::ours(&file, request, count).await,
            (Work::Index(request), _) => index::by_hand(&file, request, count).await,
        }
    }
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    if let Ok(told) = std::env::var(processes::CHILD) {
        runtime.block_on(async { tokio::spawn(async move { processes::child(&told).await }).await }).expect("no panic");
        return ExitCode::SUCCESS;
    }
    match arguments().and_then(|options| work(options, &runtime)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("steadfast-events: {error}");
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> Result<Options, String> {
    let mut options =
        Options { rounds: 5, scale: 1, is_quick: false, cqrs_es: None, eventcore: None, lines: BTreeSet::new() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quick" => (options.rounds, options.scale, options.is_quick) = (1, 20, true),
            "--cqrs-es" => options.cqrs_es = Some(words.next().ok_or("--cqrs-es wants a program")?.into()),
            "--eventcore" => options.eventcore = Some(words.next().ok_or("--eventcore wants a program")?.into()),
            "--rounds" => {
                let n = words.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
                options.rounds = n.ok_or("--rounds wants a number from 1")?;
            }
            line if ["processes", "lag", "size"].contains(&line) || LINES.iter().any(|known| known.name == line) => {
                options.lines.insert(word);
            }
            other => return Err(format!("unknown word {other}\n{USAGE}")),
        }
    }
    Ok(options)
}

fn work(options: Options, runtime: &tokio::runtime::Runtime) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let mut world = World { folder, postgres: None, filled: Vec::new() };
    let mut out = std::io::stdout().lock();
    let mut say = |text: String| writeln!(out, "{text}").map_err(|e| e.to_string());
    let is_wanted = |name: &str| options.lines.is_empty() || options.lines.contains(name);

    let mut is_fair = true;
    if is_wanted("processes") {
        let seconds = if options.is_quick { 1.0 } else { 6.0 };
        say("commits of one event, 16 callers in one process and 4 in each of four".to_owned())?;
        let file = |name: &str| world.folder.path().join(name).display().to_string();
        let files = [("SQLite, synced", file("full")), ("SQLite", file("relaxed"))];
        for (name, place) in files.into_iter().chain([("PostgreSQL", world.postgres())]) {
            let (line, holds) = processes::line(name, &place, options.rounds.min(3), seconds);
            is_fair &= holds;
            say(line)?;
        }
    }
    say("operations a second, medians; ratio: the first subject / this one".to_owned())?;
    for line in LINES.iter().filter(|line| is_wanted(line.name)) {
        let count = (line.count / options.scale).max(line.callers);
        let has = |subject: &&Subject| match subject {
            Subject::CqrsEs => options.cqrs_es.is_some(),
            Subject::Eventcore => options.eventcore.is_some(),
            _ => true,
        };
        let subjects: Vec<Subject> = line.subjects.iter().filter(has).copied().collect();
        let mut rates = vec![Vec::new(); subjects.len()];
        for round in 0..options.rounds {
            for turn in 0..subjects.len() {
                let at = (round + turn) % subjects.len();
                let took = runtime.block_on(world.run(subjects[at], line, count, &options));
                rates[at].push(count as f64 / took.as_secs_f64());
            }
        }
        let median = |mut rates: Vec<f64>| {
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2]
        };
        let medians: Vec<f64> = rates.into_iter().map(median).collect();
        let cells = subjects.iter().zip(&medians).enumerate().map(|(i, (subject, rate))| {
            let ratio = if i == 0 { String::new() } else { format!(" ({:.2})", medians[0] / rate) };
            format!("  {subject:?} {rate:.0}{ratio}")
        });
        say(format!("{:<30}{}", line.text, cells.collect::<String>()))?;
    }
    if is_wanted("lag") {
        let commits = 1_000 / options.scale;
        let mut lags = runtime.block_on(views::lags(world.folder.path(), commits));
        lags.sort_unstable();
        let of = |share: f64| lags[(commits as f64 * share) as usize].as_secs_f64() * 1e3;
        say(format!("from a commit to a view         median {:.2} ms, 99th percentile {:.2} ms", of(0.5), of(0.99)))?;
    }
    if is_wanted("size") {
        let (folder, events) =
            (tempfile::tempdir_in(world.folder.path()).map_err(|e| e.to_string())?, SIZED / options.scale);
        let ours = runtime.block_on(ours::size(folder.path(), events)) as f64 / events as f64;
        let by_hand = by_hand::size(folder.path(), events) as f64 / events as f64;
        say(format!("bytes an event on disk          Ours {ours:.0}  ByHand {by_hand:.0} ({:.2})", ours / by_hand))?;
    }
    if !is_fair && !options.is_quick {
        return Err(
            "four processes made less than half of one's commits, or one less than half of another's".to_owned()
        );
    }
    Ok(())
}
