//! SQLite: processes killed while they send and receive. Acknowledged writes are there, no message
//! is completed twice, and the file opens without repair.
use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
    time::Duration,
};

use steadfast::{
    backend::sqlite::{Sqlite, SqliteConfig},
    entropy::Entropy,
    queue::{Message, Queue, QueueExt, Receive},
};

/// Set for the child process of the test.
const CHILD: &str = "STEADFAST_TEST_CHILD";

/// Sends and completes, and reports each response, until the process is killed.
#[test]
fn child_that_sends_and_receives_until_it_is_killed() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let (round, path) = told.split_once(' ').unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let queue = Sqlite::open(SqliteConfig::at(path)).unwrap().queue("jobs").unwrap();
        let sender = queue.clone();
        let round = round.to_owned();
        let sends = tokio::spawn(async move {
            for i in 0.. {
                let body = format!("{round}-{i}");
                sender.send_one(Message::new(body.clone())).await.unwrap();
                say(&format!("sent {body}"));
            }
        });
        loop {
            let taken = queue.receive(Receive::new(3, Duration::from_millis(500))).await.unwrap();
            for delivery in taken {
                let body = String::from_utf8(delivery.body.to_vec()).unwrap();
                say(&format!("completing {body}"));
                // A lost lease is a response, too: the time was over, and another process has the
                // message.
                match queue.complete(&delivery.receipt).await {
                    Ok(()) => say(&format!("completed {body}")),
                    Err(error) => assert!(error.is_lease_lost(), "{error}"),
                }
            }
            assert!(!sends.is_finished());
        }
    });
}

fn say(line: &str) {
    // One write, so that lines of processes do not mix. A closed pipe means that the parent does
    // not read any more.
    let _ = std::io::stdout().lock().write_all(format!("\nCHILD {line}\n").as_bytes());
}

// Guarantee: queue 1.
#[test]
fn fifty_kills_lose_nothing_and_complete_nothing_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let entropy = Entropy::from_seed(50);
    let (mut sent, mut completing, mut completed) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for round in 0..50 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sqlite_killed::child_that_sends_and_receives_until_it_is_killed", "--nocapture"])
            .env(CHILD, format!("{round} {}", path.display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        // Kills the process at a random number of lines, and reads its output to the end.
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut read = |line: String| {
            let Some(said) = line.strip_prefix("CHILD ") else { return };
            match said.split_once(' ').unwrap() {
                ("sent", body) => assert!(sent.insert(body.to_owned())),
                ("completing", body) => drop(completing.insert(body.to_owned())),
                (_, body) => completed.push(body.to_owned()),
            }
        };
        for line in lines.by_ref().filter(|line| line.starts_with("CHILD")).take(1 + entropy.up_to(60) as usize) {
            read(line);
        }
        child.kill().unwrap();
        lines.for_each(&mut read);
        assert!(!child.wait().unwrap().success());
        let file = rusqlite::Connection::open(&path).unwrap();
        let check: String = file.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(check, "ok");
    }
    let once: BTreeSet<&String> = completed.iter().collect();
    assert_eq!(once.len(), completed.len(), "nothing is completed twice");
    let left = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let queue = Sqlite::open(SqliteConfig::at(&path)).unwrap().queue("jobs").unwrap();
        let all = queue.peek(1000).await.unwrap();
        assert!(all.len() < 1000, "the peek shows all of them");
        all.into_iter().map(|m| String::from_utf8(m.body.to_vec()).unwrap()).collect::<BTreeSet<_>>()
    });
    for body in &completed {
        assert!(!left.contains(body), "{body} was completed, and is there");
    }
    // A message is in the queue or was completed. If its completion was in progress at the kill, it
    // may be either.
    let gone: Vec<_> = sent.iter().filter(|body| !left.contains(*body) && !completing.contains(*body)).collect();
    assert!(gone.is_empty(), "sent, and neither there nor completed: {gone:?}");
    println!("50 kills: {} sent, {} completed, {} left", sent.len(), completed.len(), left.len());
    assert!(sent.len() > 50 && completed.len() > 50);
}
