//! What does a queue listener carry a second? Ours beside a hand-written loop and apalis, alternating in one run. See README.md.

mod apalis_jobs;
mod ours;

use std::{
    io::Write,
    process::ExitCode,
    time::{Duration, Instant},
};

const USAGE: &str = "\
usage: steadfast-listener [--quick] [--rounds N] [--memory | --sqlite] [--allocations]

  --quick        a smoke run: few messages and one round; no figures to quote
  --rounds N     rounds for each line (9 by default)
  --allocations  allocations a message of the listener and of the loop, in memory, instead of rates";

/// Where the messages lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Memory,
    Sqlite,
}

/// Who takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A hand-written loop over the queue, in so many spawned tasks.
    Loop,
    /// The same loop, its tasks in one future.
    LoopInPlace,
    /// The listener, its tasks spawned.
    Spawned,
    /// The listener, its tasks in one future.
    Listener,
    Apalis,
}

impl Subject {
    const ALL: [Self; 5] = [Self::Loop, Self::Spawned, Self::LoopInPlace, Self::Listener, Self::Apalis];
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub mode: Mode,
    pub batch: usize,
    pub tasks: usize,
    pub messages: usize,
}

/// How long one subject takes for a cell: the queue is filled before.
async fn run(subject: Subject, cell: Cell) -> Duration {
    let folder = tempfile::tempdir().expect("a temporary folder");
    match subject {
        Subject::Apalis => apalis_jobs::run(cell, folder.path()).await,
        _ => {
            let queue = ours::filled(cell, folder.path()).await;
            let start = Instant::now();
            match subject {
                Subject::Loop => ours::by_hand(&queue, cell).await,
                Subject::LoopInPlace => ours::by_hand_in_place(&queue, cell).await,
                Subject::Spawned => ours::spawned(&queue, cell).await,
                _ => ours::listener(&queue, cell).await,
            }
            start.elapsed()
        }
    }
}

fn main() -> ExitCode {
    match arguments().and_then(|(modes, rounds, scale, allocations)| work(&modes, rounds, scale, allocations)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("steadfast-listener: {error}");
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> Result<(Vec<Mode>, usize, usize, bool), String> {
    let (mut modes, mut rounds, mut scale, mut allocations) = (vec![], 9, 1, false);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quick" => (rounds, scale) = (1, 50),
            "--memory" => modes.push(Mode::Memory),
            "--sqlite" => modes.push(Mode::Sqlite),
            "--allocations" => allocations = true,
            "--rounds" => {
                let n = words.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
                rounds = n.ok_or("--rounds wants a number from 1")?;
            }
            other => return Err(format!("unknown option {other}\n{USAGE}")),
        }
    }
    if modes.is_empty() {
        modes = vec![Mode::Memory, Mode::Sqlite];
    }
    Ok((modes, rounds, scale, allocations))
}

fn work(modes: &[Mode], rounds: usize, scale: usize, allocations: bool) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|e| e.to_string())?;
    let mut out = std::io::stdout().lock();
    let mut say = |text: String| writeln!(out, "{text}").map_err(|e| e.to_string());
    if allocations {
        return ours::allocations(&mut say);
    }
    say(format!(
        "{:<7} {:>5} {:>5} {:>10} {:>10} {:>5} {:>10} {:>10} {:>5} {:>10} {:>6}   (messages a second, medians; ratios: listener / loop, listener / apalis)",
        "mode", "batch", "tasks", "loop", "spawned", "ratio", "in place", "listener", "ratio", "apalis", "ratio"
    ))?;
    for &mode in modes {
        for batch in [1, 32] {
            for tasks in [1, 4, 16] {
                let messages = match (mode, batch) {
                    (Mode::Memory, _) => 200_000,
                    (Mode::Sqlite, 1) => 500,
                    (Mode::Sqlite, _) => 5_000,
                };
                let cell = Cell { mode, batch, tasks, messages: (messages / scale).max(10) };
                let mut rates = [const { Vec::new() }; Subject::ALL.len()];
                for round in 0..rounds {
                    for turn in 0..rates.len() {
                        let at = (round + turn) % rates.len();
                        let took = runtime.block_on(async move {
                            // On a worker, as a service's tasks are.
                            tokio::spawn(run(Subject::ALL[at], cell)).await.expect("no panic")
                        });
                        rates[at].push(cell.messages as f64 / took.as_secs_f64());
                    }
                }
                let [by_hand, spawned, in_place, listener, apalis] = rates.map(|mut rates| {
                    rates.sort_by(f64::total_cmp);
                    rates[rates.len() / 2]
                });
                say(format!(
                    "{:<7} {batch:>5} {tasks:>5} {by_hand:>10.0} {spawned:>10.0} {:>5.2} {in_place:>10.0} {listener:>10.0} {:>5.2} {apalis:>10.0} {:>6.2}",
                    format!("{mode:?}").to_lowercase(),
                    spawned / by_hand,
                    listener / in_place,
                    listener / apalis,
                ))?;
            }
        }
    }
    Ok(())
}
