//! What do the rooms at the edge cost? Ours beside jsonwebtoken and a handler of axum, alternating in one run. See README.md.

mod gates;
mod keys;
mod seals;
mod tokens;

use std::{
    future::Future,
    io::Write,
    pin::Pin,
    process::ExitCode,
    time::{Duration, Instant},
};

const USAGE: &str = "\
usage: steadfast-edge [--quick] [--rounds N] [--only LINE]

  --quick       a smoke run of seconds; no figures to quote
  --rounds N    rounds for each line (41 by default)
  --only LINE   lines that contain this text alone, such as `verify`";

/// A subject: runs its work so often, and returns when it has.
pub type Work = Box<dyn FnMut(u32) -> Pin<Box<dyn Future<Output = ()>>>>;

/// One line of the table.
pub struct Line {
    pub name: &'static str,
    /// Most that ours may take of theirs.
    pub most: f64,
    pub ours: Work,
    pub theirs: Work,
}

/// Returns a subject of a function that is awaited so often.
pub fn often<F: Future<Output = ()>>(work: impl Fn() -> F + Clone + 'static) -> Work {
    Box::new(move |times| {
        let work = work.clone();
        Box::pin(async move {
            for _ in 0..times {
                work().await;
            }
        })
    })
}

struct Options {
    rounds: usize,
    /// Time of one turn of a subject.
    turn: Duration,
    only: Option<String>,
}

fn main() -> ExitCode {
    match arguments().and_then(|options| run(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("steadfast-edge: {error}");
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> Result<Options, String> {
    let mut options = Options { rounds: 41, turn: Duration::from_millis(60), only: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quick" => (options.rounds, options.turn) = (9, Duration::from_millis(20)),
            "--only" => options.only = Some(words.next().ok_or("--only wants a text")?),
            "--rounds" => {
                let n = words.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
                options.rounds = n.ok_or("--rounds wants a number from 1")?;
            }
            other => return Err(format!("unknown option {other}\n{USAGE}")),
        }
    }
    Ok(options)
}

/// Prints the table. Returns `true` if no line is above its limit.
fn run(options: &Options) -> Result<bool, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let mut out = std::io::stdout().lock();
        let mut say = |text: String| writeln!(out, "{text}").map_err(|e| e.to_string());
        say("| line | ours, µs | theirs, µs | ratio | at most |\n|---|---:|---:|---:|---:|".to_owned())?;
        let mut holds = true;
        let lines = tokens::lines().await.into_iter().chain(gates::lines()).chain(seals::lines()).chain(keys::lines());
        for mut line in lines.filter(|line| options.only.as_ref().is_none_or(|only| line.name.contains(only))) {
            let (ours, theirs, ratio) = compare(&mut line, options).await;
            say(format!("| {} | {ours:.2} | {theirs:.2} | {ratio:.3} | {} |", line.name, line.most))?;
            holds &= ratio <= line.most;
        }
        Ok(holds)
    })
}

/// Returns the medians in microseconds, and that of the ratios of neighbouring turns.
async fn compare(line: &mut Line, options: &Options) -> (f64, f64, f64) {
    // As many calls in a turn as theirs need for its time, and as ours.
    let [of_ours, of_theirs] = [calls(&mut line.ours, options.turn).await, calls(&mut line.theirs, options.turn).await];
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..options.rounds {
        let mut took = [0.0; 2];
        for turn in [round % 2, 1 - round % 2] {
            took[turn] = match turn {
                0 => micros(&mut line.ours, of_ours).await,
                _ => micros(&mut line.theirs, of_theirs).await,
            };
        }
        ours.push(took[0]);
        theirs.push(took[1]);
        ratios.push(took[0] / took[1]);
    }
    (median(ours), median(theirs), median(ratios))
}

/// Returns the number of calls that take about this time, after a first run.
async fn calls(work: &mut Work, time: Duration) -> u32 {
    let mut times = 1;
    loop {
        let start = Instant::now();
        work(times).await;
        let took = start.elapsed();
        if took * 4 >= time {
            let all = f64::from(times) * time.as_secs_f64() / took.as_secs_f64();
            return (all as u32).max(1);
        }
        times *= 2;
    }
}

async fn micros(work: &mut Work, times: u32) -> f64 {
    let start = Instant::now();
    work(times).await;
    start.elapsed().as_secs_f64() * 1e6 / f64::from(times)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
