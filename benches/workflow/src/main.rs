//! What do a saga and a scheduler carry a second? Ours beside steno, apalis-workflow, durare and the same writes by hand,
//! alternating in one run. See README.md.

mod apalis_flows;
mod by_hand;
mod ours;
mod steno_sagas;

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

const USAGE: &str = "\
usage: steadfast-workflow [--quick] [--rounds N] [--durare PROGRAM] [--only SUBJECT]

  --quick           a smoke run: few sagas and one round; no figures to quote
  --rounds N        rounds for each line (9 by default)
  --durare PROGRAM  the built program of benches/durare, which cannot be linked with this one: both link SQLite
  --only SUBJECT    one subject alone, such as `Ours`, for a profiler";

/// The options of a run.
struct Options {
    rounds: usize,
    /// Divides the number of sagas.
    scale: usize,
    durare: Option<PathBuf>,
    only: Option<String>,
}

/// Number of steps of a saga; each is ready at once.
pub const STEPS: usize = 5;

/// A state of 100 bytes as JSON.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct State {
    pub done: u32,
    pub text: String,
}

impl State {
    pub fn new() -> Self {
        Self { done: 0, text: "x".repeat(100 - r#"{"done":0,"text":""}"#.len()) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Ours,
    ByHand,
    Steno,
    Durare,
    Scheduler,
    Loop,
    Apalis,
}

/// One line of the table.
struct Cell {
    name: &'static str,
    sagas: usize,
    concurrent: usize,
    /// In memory, or in a file whose writes are synced.
    is_durable: bool,
    subjects: &'static [Subject],
}

const CELLS: [Cell; 4] = [
    Cell {
        name: "saga, memory",
        sagas: 20_000,
        concurrent: 1,
        is_durable: false,
        subjects: &[Subject::Ours, Subject::ByHand, Subject::Steno],
    },
    Cell {
        name: "saga, SQLite",
        sagas: 100,
        concurrent: 1,
        is_durable: true,
        subjects: &[Subject::Ours, Subject::ByHand, Subject::Durare],
    },
    Cell {
        name: "saga, SQLite, 16 at once",
        sagas: 640,
        concurrent: 16,
        is_durable: true,
        subjects: &[Subject::Ours, Subject::ByHand, Subject::Durare],
    },
    Cell {
        name: "scheduler, SQLite, 16 at once",
        sagas: 640,
        concurrent: 16,
        is_durable: true,
        subjects: &[Subject::Scheduler, Subject::Loop, Subject::Apalis],
    },
];

/// Returns the time that one subject takes for a cell.
async fn run(subject: Subject, cell: &'static Cell, sagas: usize, durare: Option<PathBuf>) -> Duration {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (folder, concurrent) = (folder.path(), cell.concurrent);
    match subject {
        Subject::Durare => durare_program(&durare.expect("it is given"), folder, sagas, concurrent),
        Subject::Apalis => apalis_flows::run(folder, sagas, concurrent).await,
        Subject::Steno => timed(steno_sagas::run(sagas)).await,
        Subject::Scheduler | Subject::Loop => {
            let world = ours::submitted(folder, sagas).await;
            timed(async {
                match subject {
                    Subject::Loop => by_hand::listen(&world, sagas, concurrent).await,
                    _ => ours::schedule(&world, sagas, concurrent).await,
                }
            })
            .await
        }
        Subject::ByHand if cell.is_durable => {
            let file = by_hand::open(folder);
            timed(by_hand::rusqlite(file, sagas, concurrent)).await
        }
        Subject::ByHand => timed(by_hand::memory(sagas)).await,
        Subject::Ours => {
            let saga = ours::saga(cell.is_durable.then_some(folder));
            timed(ours::run(saga, sagas, concurrent)).await
        }
    }
}

async fn timed(work: impl Future<Output = ()>) -> Duration {
    let start = Instant::now();
    work.await;
    start.elapsed()
}

/// The program measures itself, and prints seconds.
fn durare_program(program: &Path, folder: &Path, sagas: usize, concurrent: usize) -> Duration {
    let file = folder.join("durare.db");
    let mut command = Command::new(program);
    let output = command.arg(file).arg(sagas.to_string()).arg(concurrent.to_string()).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Duration::from_secs_f64(text.parse().expect("seconds"))
}

fn main() -> ExitCode {
    match arguments().and_then(|options| work(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("steadfast-workflow: {error}");
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> Result<Options, String> {
    let mut options = Options { rounds: 9, scale: 1, durare: None, only: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quick" => (options.rounds, options.scale) = (1, 20),
            "--durare" => options.durare = Some(words.next().ok_or("--durare wants a program")?.into()),
            "--only" => options.only = Some(words.next().ok_or("--only wants a subject")?),
            "--rounds" => {
                let n = words.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
                options.rounds = n.ok_or("--rounds wants a number from 1")?;
            }
            other => return Err(format!("unknown option {other}\n{USAGE}")),
        }
    }
    Ok(options)
}

fn work(options: &Options) -> Result<(), String> {
    let Options { rounds, scale, durare, only } = options;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|e| e.to_string())?;
    let mut out = std::io::stdout().lock();
    let mut say = |text: String| writeln!(out, "{text}").map_err(|e| e.to_string());
    say("sagas of 5 steps a second, medians; ratio: the first subject / this one".to_owned())?;
    for cell in &CELLS {
        let sagas = (cell.sagas / scale).max(cell.concurrent);
        let has = |subject: &&Subject| {
            let is_wanted = only.as_ref().is_none_or(|only| format!("{subject:?}") == *only);
            is_wanted && (**subject != Subject::Durare || durare.is_some())
        };
        let subjects: Vec<Subject> = cell.subjects.iter().filter(has).copied().collect();
        let mut rates = vec![Vec::new(); subjects.len()];
        for round in 0..*rounds {
            for turn in 0..subjects.len() {
                let at = (round + turn) % subjects.len();
                let (subject, durare) = (subjects[at], durare.clone());
                let took = runtime.block_on(async move {
                    // On a worker, as a service's tasks are.
                    tokio::spawn(run(subject, cell, sagas, durare)).await.expect("no panic")
                });
                rates[at].push(sagas as f64 / took.as_secs_f64());
            }
        }
        let medians: Vec<f64> = rates
            .into_iter()
            .map(|mut rates| {
                rates.sort_by(f64::total_cmp);
                rates[rates.len() / 2]
            })
            .collect();
        let line = subjects.iter().zip(&medians).map(|(subject, rate)| {
            let ratio = if *rate == medians[0] { String::new() } else { format!(" ({:.2})", medians[0] / rate) };
            format!("  {subject:?} {rate:.0}{ratio}")
        });
        say(format!("{:<30}{}", cell.name, line.collect::<String>()))?;
    }
    Ok(())
}
