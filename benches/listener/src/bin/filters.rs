//! What does a filter carry a second on SQLite, each write synced? Forwarded results beside results that are sent before
//! their message ends, and beside a hand-written transaction, alternating in one run. See README.md.
use std::{
    path::Path,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use rusqlite::{Connection, TransactionBehavior, params};
use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    pipes_and_filters::{Emit, Filter},
    port::{BoxFuture, Capabilities},
    queue::{Address, Delivery, Depth, Message, MessageId, Peeked, Queue, QueueError, Receipt, Receive, Settle},
    queue_listener::{QueueListenerConfig, Work},
};
use tokio::sync::Notify;

const USAGE: &str = "usage: filters [--quick] [--rounds N]";
const BATCH: usize = 32;
const BODY: [u8; 100] = [7; 100];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// Results and the end of their message are one step.
    Forward,
    /// Results are sent, then their message ends.
    Sent,
    /// Two transactions for each batch: one takes it, one ends it and inserts the results.
    ByHand,
    /// One transaction for each batch: no message is hidden while it is handled, so there is one reader.
    OneByHand,
}

impl Subject {
    const ALL: [Self; 4] = [Self::Forward, Self::Sent, Self::ByHand, Self::OneByHand];
}

/// A queue as one of another engine.
#[derive(Debug)]
struct Elsewhere(Arc<dyn Queue>);

impl Queue for Elsewhere {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn identity(&self) -> String {
        self.0.identity()
    }
    fn address(&self) -> Option<Address> {
        None
    }
    fn send<'a>(&'a self, messages: Vec<Message>) -> BoxFuture<'a, Result<Vec<MessageId>, QueueError>> {
        self.0.send(messages)
    }
    fn receive<'a>(&'a self, receive: Receive) -> BoxFuture<'a, Result<Vec<Delivery>, QueueError>> {
        self.0.receive(receive)
    }
    fn settle<'a>(
        &'a self,
        settlements: Vec<(Receipt, Settle)>,
    ) -> BoxFuture<'a, Result<Vec<Result<(), QueueError>>, QueueError>> {
        self.0.settle(settlements)
    }
    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> BoxFuture<'a, Result<(), QueueError>> {
        self.0.extend(receipt, visibility)
    }
    fn mark_begun<'a>(
        &'a self,
        receipt: &'a Receipt,
        visibility: Duration,
        begun: bool,
    ) -> BoxFuture<'a, Result<(), QueueError>> {
        self.0.mark_begun(receipt, visibility, begun)
    }
    fn depth(&self) -> BoxFuture<'_, Result<Depth, QueueError>> {
        self.0.depth()
    }
    fn peek(&self, max: usize) -> BoxFuture<'_, Result<Vec<Peeked>, QueueError>> {
        self.0.peek(max)
    }
    fn purge(&self) -> BoxFuture<'_, Result<u64, QueueError>> {
        self.0.purge()
    }
    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        self.0.dead_letters()
    }
}

/// How long the filter takes for the messages: its input is filled before.
async fn ours(subject: Subject, tasks: u32, messages: usize, folder: &Path) -> Duration {
    let config = SqliteConfig::at(folder.join("queues.db")).durability(Durability::Full);
    let sqlite = Sqlite::open(config).expect("it opens");
    let [input, output] = ["in", "out"].map(|name| Arc::new(sqlite.queue(name).expect("a queue")) as Arc<dyn Queue>);
    for some in vec![(); messages].chunks(1000) {
        input.send(some.iter().map(|()| Message::new(&BODY[..])).collect()).await.expect("a send");
    }
    let to = if subject == Subject::Forward { output.clone() } else { Arc::new(Elsewhere(output.clone())) };
    let config = QueueListenerConfig::default().batch(BATCH).tasks(tasks, tasks);
    let filter = Filter::builder("enrich", input, config).output(to).allow_duplicates().build().expect("a filter");
    let (left, done) = (AtomicUsize::new(messages), Notify::new());
    let handler = async |work: Work| {
        if left.fetch_sub(1, Ordering::AcqRel) == 1 {
            done.notify_one();
        }
        Emit::one(Message::new(work.body.clone()))
    };
    let start = Instant::now();
    filter.run(done.notified(), handler).await.expect("it runs");
    let took = start.elapsed();
    assert_eq!(filter.listener().state().handled, messages as u64);
    assert_eq!(output.depth().await.expect("a depth").total(), messages as u64);
    took
}

fn now() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_micros() as i64
}

/// Creates the queues by hand, and fills the first.
fn filled(messages: usize, folder: &Path) -> Connection {
    let mut connection = Connection::open(folder.join("queues.db")).expect("it opens");
    let schema = |name| {
        format!(
            "CREATE TABLE {name} (id INTEGER PRIMARY KEY AUTOINCREMENT, body BLOB, headers TEXT, visible_at INTEGER,
                 receipt INTEGER, deliveries INTEGER);
             CREATE INDEX {name}_by_time ON {name} (visible_at, id);"
        )
    };
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;").expect("its settings");
    connection.execute_batch(&[schema("input"), schema("output")].concat()).expect("the schema");
    let fill = connection.transaction().expect("a transaction");
    for _ in 0..messages {
        let sql = "INSERT INTO input (body, visible_at, deliveries) VALUES (?, ?, 0)";
        fill.prepare_cached(sql).and_then(|mut insert| insert.execute(params![BODY, now()])).expect("a row");
    }
    fill.commit().expect("a commit");
    connection
}

/// The same by hand, as an async service has to: each batch in a thread for blocking work.
async fn by_hand(subject: Subject, messages: usize, folder: &Path) -> Duration {
    let mut connection = filled(messages, folder);
    let start = Instant::now();
    let mut left = messages;
    while left > 0 {
        let step = move || {
            let done = batch(&mut connection, subject).expect("a batch");
            (connection, done)
        };
        let done;
        (connection, done) = tokio::task::spawn_blocking(step).await.expect("no panic");
        left -= done;
    }
    start.elapsed()
}

fn batch(connection: &mut Connection, subject: Subject) -> rusqlite::Result<usize> {
    let mut transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let receipt = now();
    let mut taken: Vec<(i64, Vec<u8>)> = Vec::new();
    {
        let take = "UPDATE input SET visible_at = ?1 + 60000000, receipt = ?2, deliveries = deliveries + 1
                    WHERE id IN (SELECT id FROM input WHERE visible_at <= ?1 ORDER BY visible_at, id LIMIT ?3)
                    RETURNING id, body";
        let mut take = transaction.prepare_cached(take)?;
        let mut found = take.query(params![now(), receipt, BATCH as i64])?;
        while let Some(message) = found.next()? {
            taken.push((message.get(0)?, message.get(1)?));
        }
    }
    if subject == Subject::ByHand {
        transaction.commit()?;
        transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    }
    {
        let mut done = transaction.prepare_cached("DELETE FROM input WHERE id = ? AND receipt = ?")?;
        let send = "INSERT INTO output (body, headers, visible_at, deliveries) VALUES (?, ?, ?, 0)";
        let mut send = transaction.prepare_cached(send)?;
        for (id, body) in &taken {
            assert_eq!(done.execute(params![id, receipt])?, 1);
            send.execute(params![body, format!("{id}/enrich.0"), now()])?;
        }
    }
    transaction.commit()?;
    Ok(taken.len())
}

async fn run(subject: Subject, tasks: u32, messages: usize) -> Duration {
    let folder = tempfile::tempdir().expect("a temporary folder");
    match subject {
        Subject::Forward | Subject::Sent => ours(subject, tasks, messages, folder.path()).await,
        _ => by_hand(subject, messages, folder.path()).await,
    }
}

fn main() -> ExitCode {
    let (mut rounds, mut messages) = (9, 4_000);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match &*word {
            "--quick" => (rounds, messages) = (1, 100),
            "--rounds" => rounds = words.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0).unwrap_or(rounds),
            other => {
                eprintln!("unknown option {other}\n{USAGE}");
                return ExitCode::FAILURE;
            }
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    println!(
        "{:>5} {:>10} {:>10} {:>6} {:>10} {:>6} {:>10} {:>6}   (messages a second, medians; ratios: forward / the other)",
        "tasks", "forward", "sent", "ratio", "by hand", "ratio", "one", "ratio"
    );
    for tasks in [1, 16] {
        let mut rates = [const { Vec::new() }; Subject::ALL.len()];
        for round in 0..rounds {
            for turn in 0..rates.len() {
                let at = (round + turn) % rates.len();
                // On a worker, as a service's tasks are.
                let took = runtime.block_on(async move { tokio::spawn(run(Subject::ALL[at], tasks, messages)).await });
                rates[at].push(messages as f64 / took.expect("no panic").as_secs_f64());
            }
        }
        let [forward, sent, by_hand, one] = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2]
        });
        println!(
            "{tasks:>5} {forward:>10.0} {sent:>10.0} {:>6.2} {by_hand:>10.0} {:>6.2} {one:>10.0} {:>6.2}",
            forward / sent,
            forward / by_hand,
            forward / one
        );
    }
    ExitCode::SUCCESS
}
