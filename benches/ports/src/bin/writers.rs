//! Do processes that append to one partition all the time get equal shares? Real processes, over SQLite and PostgreSQL. See
//! README.md.
use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, ExitCode, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use steadfast::{
    backend::{
        postgres::{Postgres as Backend, PostgresConfig},
        sqlite::{Durability, Sqlite, SqliteConfig},
    },
    store::Store,
    stream::{Event, Producer, ProducerConfig, StoreTopic},
};

#[path = "../../../../tests/engines/server/mod.rs"]
mod server;

const USAGE: &str = "usage: writers [--processes N] [--seconds N] [--quick]";
/// Set for a child process: its place, and the number of seconds.
const CHILD: &str = "STEADFAST_BENCH_WRITER";

async fn store(place: &str) -> Arc<dyn Store> {
    if place.starts_with("postgres") {
        return Arc::new(Backend::connect(PostgresConfig::at(place)).await.expect("a server").store());
    }
    let durability = if place.ends_with("relaxed") { Durability::Relaxed } else { Durability::Full };
    Arc::new(Sqlite::open(SqliteConfig::at(place).durability(durability)).expect("a file").store())
}

/// Appends all the time, and says the number of appends and the longest wait in microseconds.
async fn child(place: &str, seconds: u64) {
    let topic = StoreTopic::open(store(place).await, "events", 1).await.expect("a topic");
    let producer = Producer::new(topic, ProducerConfig::default()).expect("valid settings");
    // All processes have begun by then.
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    let (began, mut appends, mut longest) = (Instant::now(), 0, Duration::ZERO);
    while began.elapsed() < Duration::from_secs(seconds) {
        let asked = Instant::now();
        producer.append(Event::new(&[7; 100][..])).await.expect("an append");
        (appends, longest) = (appends + 1, longest.max(asked.elapsed()));
    }
    println!("{appends} {}", longest.as_micros());
}

fn start(place: &str, seconds: u64) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .env(CHILD, format!("{seconds} {place}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut out = BufReader::new(child.stdout.take().expect("its output"));
    out.read_line(&mut String::new()).expect("a line");
    (child, out)
}

/// Returns the appends of each process, and the longest wait.
fn compete(place: &str, processes: usize, seconds: u64) -> (Vec<u64>, Duration) {
    let mut all: Vec<_> = (0..processes).map(|_| start(place, seconds)).collect();
    // A closed input is the sign to begin.
    all.iter_mut().for_each(|(child, _)| drop(child.stdin.take()));
    let (mut appends, mut longest) = (Vec::new(), Duration::ZERO);
    for (mut child, mut out) in all {
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        let (done, waited) = line.trim().split_once(' ').expect("two numbers");
        appends.push(done.parse().expect("a number"));
        longest = longest.max(Duration::from_micros(waited.parse().expect("a number")));
        child.wait().expect("its end");
    }
    appends.sort_unstable();
    (appends, longest)
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    if let Ok(told) = std::env::var(CHILD) {
        let (seconds, place) = told.split_once(' ').expect("two words");
        runtime.block_on(child(place, seconds.parse().expect("a number")));
        return ExitCode::SUCCESS;
    }
    let (mut processes, mut seconds) = (4, 6);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
        match &*word {
            "--quick" => seconds = 1,
            "--processes" => processes = number().unwrap_or(4) as usize,
            "--seconds" => seconds = number().unwrap_or(6),
            other => {
                eprintln!("unknown option {other}\n{USAGE}");
                return ExitCode::FAILURE;
            }
        }
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let server = server::Postgres::start();
    let mut is_fair = true;
    for (name, place) in [("SQLite, full", file("full")), ("SQLite", file("relaxed")), ("PostgreSQL", server.url())] {
        let (alone, _) = compete(&place, 1, seconds);
        let (appends, longest) = compete(&place, processes, seconds);
        let (least, most) = (appends.first().copied().unwrap_or(0), appends.last().copied().unwrap_or(0));
        println!("{name:>12}: alone {}, together {appends:?}, longest wait {longest:.1?}", alone[0]);
        is_fair &= least * 2 >= most && longest <= Duration::from_secs(1);
    }
    if !is_fair {
        eprintln!("a process made less than half of another one's appends, or waited for more than a second");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
