//! SQLite: forwards between the queues of one file, by several processes that are killed.
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use steadfast::{
    backend::sqlite::{Sqlite, SqliteConfig},
    entropy::Entropy,
    port::{Failure, PortErrorKind},
    queue::{Message, Queue, QueueExt, Receive, Settle},
    time::Clock,
};

/// Set for the child processes of the test.
const CHILD: &str = "STEADFAST_TEST_FORWARDER";

const MESSAGES: usize = 60;

fn block<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A copy of a file has its name, but not the queues that were opened since. A message for one
/// would be lost, or be found by the queue that gets its number.
// Guarantee: queue 13.
#[test]
fn a_queue_that_a_copy_of_the_file_lacks_is_no_target() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| Sqlite::open(SqliteConfig::at(folder.path().join(name))).unwrap();
    let path = |name: &str| folder.path().join(name);
    drop(open("one.db").queue("jobs").unwrap());
    std::fs::copy(path("one.db"), path("copy.db")).unwrap();
    let (later, copy) = (open("one.db").queue("later").unwrap(), open("copy.db").queue("jobs").unwrap());
    block(async {
        copy.send_one(Message::new("a")).await.unwrap();
        let taken = copy.receive_one(Duration::from_secs(60)).await.unwrap().unwrap();
        for target in [later.address(), later.dead_letters().unwrap().address()] {
            let error = copy.forward(&taken.receipt, [(target.unwrap(), Message::new("b"))]).await.unwrap_err();
            assert_eq!(error.backend().unwrap().kind(), PortErrorKind::Unsupported);
        }
        let letters = copy.dead_letters().unwrap();
        copy.forward(&taken.receipt, [(letters.address().unwrap(), Message::new("b"))]).await.unwrap();
        assert_eq!(letters.depth().await.unwrap().total(), 1);
        assert_eq!(open("copy.db").queue("new").unwrap().depth().await.unwrap().total(), 0);
    });
}

// Guarantee: queue 13.
#[test]
fn a_queue_of_another_file_is_no_target() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| Sqlite::open(SqliteConfig::at(folder.path().join(name))).unwrap();
    let (one, other) = (open("one.db").queue("jobs").unwrap(), open("other.db").queue("jobs").unwrap());
    block(async {
        one.send_one(Message::new("a")).await.unwrap();
        let taken = one.receive_one(Duration::from_secs(60)).await.unwrap().unwrap();
        let address = other.address().unwrap();
        let error = one.forward(&taken.receipt, [(address.clone(), Message::new("b"))]).await.unwrap_err();
        assert_eq!(error.backend().unwrap().kind(), PortErrorKind::Unsupported);
        assert!(error.to_string().contains(&format!("cannot forward to `{address}`")), "{error}");
        assert_eq!(other.depth().await.unwrap().total(), 0);
        one.complete(&taken.receipt).await.unwrap();
    });
}

/// The address of a queue is the same in each process and after each restart.
#[test]
fn an_address_is_that_of_the_queue_in_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Sqlite::open(SqliteConfig::at(folder.path().join("state.db"))).unwrap();
    let address = |name: &str| open().queue(name).unwrap().address().unwrap();
    assert_eq!(address("jobs"), address("jobs"));
    assert_ne!(address("jobs"), address("others"));
    assert_eq!(address("jobs").to_string(), open().queue("jobs").unwrap().identity());
}

// Guarantee: queue 14.
#[test]
fn an_age_goes_on_when_the_file_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let (clock, time) = Clock::manual();
    let open = || Sqlite::open_with_clock(SqliteConfig::at(folder.path().join("state.db")), &clock).unwrap();
    let receive = |sqlite: Sqlite| {
        block(sqlite.queue("jobs").unwrap().receive(Receive::new(1, Duration::from_secs(1)))).unwrap().remove(0)
    };
    block(open().queue("jobs").unwrap().send_one(Message::new("a"))).unwrap();
    for seconds in 1..4 {
        time.advance(Duration::from_secs(2));
        assert_eq!(receive(open()).age, Duration::from_secs(2 * seconds));
    }
}

/// Forwards messages from each of two queues to the other, until the process is killed.
#[test]
fn child_that_forwards_until_it_is_killed() {
    let Ok(path) = std::env::var(CHILD) else { return };
    block(async {
        let sqlite = Sqlite::open(SqliteConfig::at(path)).unwrap();
        let queues = ["a", "b"].map(|name| sqlite.queue(name).unwrap());
        let addresses = queues.each_ref().map(|queue| queue.address().unwrap());
        for round in 0usize.. {
            let (from, to) = (&queues[round % 2], &addresses[(round + 1) % 2]);
            let taken = from.receive(Receive::new(4, Duration::from_millis(50))).await.unwrap();
            let forward = |body| Settle::forward([(to.clone(), Message::new(body))]);
            let hows = taken.into_iter().map(|taken| (taken.receipt, forward(taken.body)));
            for settled in from.settle(hows.collect()).await.unwrap() {
                // The lease may have ended, and another process may have the message.
                assert!(settled.is_ok() || settled.is_err_and(|error| error.is_lease_lost()));
            }
            // One write, so that lines of processes do not mix. A closed pipe means that the parent does not read any
            // more.
            let _ = std::io::stdout().lock().write_all(format!("\nCHILD {round}\n").as_bytes());
        }
    });
}

fn child(path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sqlite_forwards::child_that_forwards_until_it_is_killed", "--nocapture"])
        .env(CHILD, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

// Guarantee: queue 12.
#[test]
fn each_message_is_in_one_queue_whichever_forwarders_are_killed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let entropy = Entropy::from_seed(12);
    let open = || Sqlite::open(SqliteConfig::at(&path)).unwrap();
    let messages = (0..MESSAGES).map(|i| Message::new(i.to_string()));
    block(open().queue("a").unwrap().send(messages.collect())).unwrap();
    let mut moved = 0;
    for round in 0..15 {
        let mut children: Vec<_> = (0..3).map(|_| child(&path)).collect();
        let out = children[0].stdout.take().unwrap();
        let lines = BufReader::new(out).lines().map(Result::unwrap);
        let lines = lines.filter(|line| line.starts_with("CHILD")).take(1 + entropy.up_to(40) as usize);
        assert!(lines.count() > 0, "the child ended by itself");
        for child in &mut children {
            child.kill().unwrap();
            assert!(!child.wait().unwrap().success());
        }
        let file = rusqlite::Connection::open(&path).unwrap();
        let check: String = file.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(check, "ok");
        let mut places: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for name in ["a", "b"] {
            let peeked = block(open().queue(name).unwrap().peek(1000)).unwrap();
            moved += usize::from(name == "b" && !peeked.is_empty());
            for message in peeked {
                let number = std::str::from_utf8(&message.body).unwrap().parse().unwrap();
                places.entry(number).or_default().push(name);
            }
        }
        let right = (0..MESSAGES).all(|i| places.get(&i).is_some_and(|places| places.len() == 1));
        assert!(right && places.len() == MESSAGES, "round {round}: {places:?}");
    }
    assert!(moved > 0, "messages were forwarded");
}
