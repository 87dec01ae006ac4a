//! What does a stream processor carry a second? Ours beside a bare loop over the same topic, alternating in one run. See
//! README.md.
use std::{
    cell::Cell,
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    lease::StoreLease,
    store::{InMemoryStore, Key, Precondition, PutOptions, Store, Version},
    stream::{Event, Read, Recorded, StoreTopic, StreamProcessor, StreamProcessorConfig, Topic},
    work::EventDisposition,
};
use tokio::sync::Notify;

const USAGE: &str = "usage: stream [--quick] [--rounds N]";
const PARTITIONS: u16 = 32;
const BATCH: usize = 500;
const BODY: [u8; 100] = [7; 100];
/// A checkpoint is written after so many events, or this time.
const EVERY: (u64, Duration) = (1_000, Duration::from_secs(1));

/// Counts the events of a run, and measures from the first to the last.
struct Count {
    left: Cell<usize>,
    first: Cell<Option<Instant>>,
    took: Cell<Duration>,
    done: Notify,
}

impl Count {
    fn new(events: usize) -> Self {
        Self { left: Cell::new(events), first: Cell::default(), took: Cell::default(), done: Notify::new() }
    }

    fn one(&self) {
        let first = self.first.get().unwrap_or_else(Instant::now);
        self.first.set(Some(first));
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0 {
            self.took.set(first.elapsed());
            self.done.notify_waiters();
        }
    }
}

async fn filled(store: Arc<dyn Store>, batches: usize) -> StoreTopic {
    let topic = StoreTopic::open(store, "events", PARTITIONS).await.expect("a topic");
    for partition in 0..PARTITIONS {
        for batch in 0..batches {
            let event = |i| Event::new(&BODY[..]).key(format!("key-{}", (batch * BATCH + i) % 100));
            topic.append(partition, (0..BATCH).map(event).collect()).await.expect("an append");
        }
    }
    topic
}

async fn ours(topic: StoreTopic, store: Arc<dyn Store>, count: &Count) {
    let leases = Arc::new(StoreLease::builder(store.clone()).build().expect("leases"));
    let config = StreamProcessorConfig::default();
    let processor = StreamProcessor::new(topic, "group", leases, store, config).expect("a processor");
    let handler = async |_| {
        count.one();
        EventDisposition::Complete
    };
    processor.run(count.done.notified(), handler).await.expect("it runs");
}

/// One partition: no owner, no order of keys, no limits, no dead letters, and each batch is waited for as a whole.
async fn loop_over(
    topic: &StoreTopic,
    store: &dyn Store,
    partition: u16,
    events: u64,
    handler: impl AsyncFn(Recorded),
) {
    let row = format!("p/{partition}");
    let (mut next, mut written, mut since) = (1, 1, Instant::now());
    let mut version: Option<Version> = None;
    while next <= events {
        let some = topic.read(partition, Read::from(next).max(BATCH)).await.expect("events");
        for event in some {
            handler(event).await;
            next += 1;
        }
        if next - written >= EVERY.0 || since.elapsed() >= EVERY.1 {
            let how = version.map_or(PutOptions::new(), |version| PutOptions::from(Precondition::Version(version)));
            let put = store.put(Key::new("checkpoints", &row), next.to_string().into(), how);
            version = Some(put.await.expect("a checkpoint"));
            (written, since) = (next, Instant::now());
        }
    }
}

async fn bare(topic: StoreTopic, store: Arc<dyn Store>, events: u64, count: &Count) {
    let handler = async |_: Recorded| count.one();
    join_all((0..PARTITIONS).map(|partition| loop_over(&topic, &*store, partition, events, handler))).await;
}

async fn run(is_ours: bool, file: Option<&Path>, batches: usize) -> Duration {
    let store: Arc<dyn Store> = match file {
        Some(file) => {
            let sqlite = Sqlite::open(SqliteConfig::at(file).durability(Durability::Full)).expect("it opens");
            Arc::new(sqlite.store())
        }
        None => Arc::new(InMemoryStore::new()),
    };
    let topic = filled(store.clone(), batches).await;
    let count = Count::new(usize::from(PARTITIONS) * batches * BATCH);
    match is_ours {
        true => ours(topic, store, &count).await,
        false => bare(topic, store, (batches * BATCH) as u64, &count).await,
    }
    assert_eq!(count.left.get(), 0);
    count.took.get()
}

fn main() -> ExitCode {
    let (mut rounds, mut batches) = (9, 100);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match &*word {
            "--quick" => (rounds, batches) = (1, 1),
            "--rounds" => rounds = words.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0).unwrap_or(rounds),
            other => {
                eprintln!("unknown option {other}\n{USAGE}");
                return ExitCode::FAILURE;
            }
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    println!(
        "{:>8} {:>10} {:>10} {:>6}   (events a second, medians; ratio: ours / loop)",
        "store", "steadfast", "loop", "ratio"
    );
    for in_file in [false, true] {
        let mut rates = [const { Vec::new() }; 2];
        for round in 0..rounds {
            for turn in 0..2 {
                let at = (round + turn) % 2;
                let folder = tempfile::tempdir().expect("a temporary folder");
                let file = folder.path().join("events.db");
                let took = runtime.block_on(run(at == 0, in_file.then_some(file.as_path()), batches));
                rates[at].push((usize::from(PARTITIONS) * batches * BATCH) as f64 / took.as_secs_f64());
            }
        }
        let [ours, bare] = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2]
        });
        let name = if in_file { "SQLite" } else { "memory" };
        println!("{name:>8} {ours:>10.0} {bare:>10.0} {:>6.2}", ours / bare);
    }
    ExitCode::SUCCESS
}
