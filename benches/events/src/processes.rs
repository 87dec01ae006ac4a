//! Do four processes commit as much as one, and does each of them get its share?
use std::{
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use futures::future::join_all;
use steadfast::{
    backend::sqlite::Durability,
    event_sourcing::{Commit, Expected, NewEvent},
};

use crate::{Booked, ours};

/// Set for a child process: the number of callers, of seconds, the place, and a text before the ids of its commands.
pub const CHILD: &str = "STEADFAST_BENCH_COMMITS";
/// Streams that all processes append to.
const STREAMS: u64 = 100;
/// Callers of all processes.
const CALLERS: usize = 16;

/// Commits all the time, and says the number of commits and the longest one in microseconds.
pub async fn child(told: &str) {
    let words: Vec<&str> = told.splitn(4, ' ').collect();
    let [callers, seconds, place, prefix] = *words else { panic!("wants four words") };
    let (callers, seconds): (usize, f64) = (callers.parse().expect("a number"), seconds.parse().expect("a number"));
    let durability = if place.ends_with("relaxed") { Durability::Relaxed } else { Durability::Full };
    let log = ours::log(place, durability).await;
    // All processes have begun by then.
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    let began = Instant::now();
    let of_caller = |caller: usize| {
        let (log, prefix) = (log.clone(), prefix.to_owned());
        tokio::spawn(async move {
            let (mut commits, mut longest) = (0, Duration::ZERO);
            while began.elapsed().as_secs_f64() < seconds {
                let asked = Instant::now();
                let stream = format!("stream-{}", (commits * 61 + caller as u64 * 7) % STREAMS);
                let event = NewEvent::new("Booked", Booked::json());
                let commit = Commit::new(format!("{prefix}/{caller}/{commits}")).append(stream, Expected::Any, [event]);
                log.commit(commit).await.expect("a commit");
                (commits, longest) = (commits + 1, longest.max(asked.elapsed()));
            }
            (commits, longest)
        })
    };
    let done = join_all((0..callers).map(of_caller)).await;
    let done = done.into_iter().map(|task| task.expect("no panic"));
    let (commits, longest) = done.fold((0, Duration::ZERO), |(all, longest), (n, took)| (all + n, longest.max(took)));
    println!("{commits} {}", longest.as_micros());
}

fn start(place: &str, prefix: String, callers: usize, seconds: f64) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .env(CHILD, format!("{callers} {seconds} {place} {prefix}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut out = BufReader::new(child.stdout.take().expect("its output"));
    out.read_line(&mut String::new()).expect("a line");
    (child, out)
}

/// The commits of each process, the fewest first, and the longest one.
pub struct Competed {
    commits: Vec<u64>,
    longest: Duration,
}

impl Competed {
    pub fn all(&self) -> u64 {
        self.commits.iter().sum()
    }

    /// Commits of the slowest process beside those of the fastest.
    pub fn share(&self) -> f64 {
        self.commits[0] as f64 / self.commits[self.commits.len() - 1].max(1) as f64
    }
}

/// Lets so many processes commit. `run` tells its ids from those of other runs.
fn compete(place: &str, processes: usize, seconds: f64, run: &str) -> Competed {
    let start = |n: usize| start(place, format!("{run}.{n}"), CALLERS / processes, seconds);
    let mut all: Vec<_> = (0..processes).map(start).collect();
    // A closed input is the sign to begin.
    all.iter_mut().for_each(|(child, _)| drop(child.stdin.take()));
    let (mut commits, mut longest) = (Vec::new(), Duration::ZERO);
    for (mut child, mut out) in all {
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        let (done, waited) = line.trim().split_once(' ').expect("two numbers");
        commits.push(done.parse().expect("a number"));
        longest = longest.max(Duration::from_micros(waited.parse().expect("a number")));
        child.wait().expect("its end");
    }
    commits.sort_unstable();
    Competed { commits, longest }
}

/// Measures one place, alternating one process and four, and returns a line and whether the demands hold.
pub fn line(name: &str, place: &str, rounds: usize, seconds: f64) -> (String, bool) {
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        alone.push(compete(place, 1, seconds, &format!("{name}/{round}/alone")));
        together.push(compete(place, 4, seconds, &format!("{name}/{round}/together")));
    }
    let median = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let rate = |runs: &[Competed]| median(runs.iter().map(|run| run.all() as f64 / seconds).collect());
    let longest = |runs: &[Competed]| runs.iter().map(|run| run.longest).max().unwrap_or_default().as_secs_f64() * 1e3;
    let shares: Vec<f64> = together.iter().map(Competed::share).collect();
    let (share, worst) = (median(shares.clone()), shares.iter().copied().fold(1.0, f64::min));
    let ratio = rate(&together) / rate(&alone);
    let line = format!(
        "{name:<14} 1 process {:.0}/s, longest {:.0} ms; 4 processes {:.0}/s ({ratio:.2}), longest {:.0} ms, slowest beside \
         fastest {share:.2} (worst round {worst:.2})",
        rate(&alone),
        longest(&alone),
        rate(&together),
        longest(&together),
    );
    (line, share >= 0.5 && ratio >= 0.5)
}
