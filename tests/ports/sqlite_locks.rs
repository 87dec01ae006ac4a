//! SQLite: another program holds the database's lock, or the process is out of file descriptors.
use std::{
    future::Future,
    path::Path,
    pin::pin,
    process::Command,
    task::{Context, Poll, Waker},
    time::Duration,
};

use rusqlite::Connection;
use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    port::{ErrorClass, Failure, PortErrorKind},
    queue::{Message, Queue, QueueExt, Receive},
    store::{Key, PutOptions, Store, StoreExt},
    testing::conformance::run,
    time::Clock,
};

/// Simulates another program that has begun to write without the lock beside the file.
fn foreign_lock(path: &Path) -> Connection {
    let foreign = Connection::open(path).unwrap();
    foreign.execute_batch("BEGIN IMMEDIATE").unwrap();
    foreign
}

/// Polls the future once.
fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Writes that meet the lock together fail together: none of them waits for its own time after the
/// others.
#[test]
fn writes_behind_a_foreign_lock_fail_together_after_one_wait() {
    for durability in [Durability::Full, Durability::Relaxed] {
        run(async {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("state.db");
            let config = SqliteConfig::at(&path).durability(durability).lock_wait(Duration::from_secs(1));
            let store = Sqlite::open(config).unwrap().store();
            let foreign = foreign_lock(&path);
            let (answered, mut answers) = tokio::sync::mpsc::unbounded_channel();
            for i in 0..100 {
                let (store, answered) = (store.clone(), answered.clone());
                tokio::spawn(async move {
                    let row = i.to_string();
                    let put = store.put(Key::new("p", &row), "x".into(), PutOptions::new()).await;
                    answered.send(put).unwrap();
                });
            }
            let first = answers.recv().await.unwrap().expect_err("the lock is held");
            assert_eq!(first.backend().unwrap().kind(), PortErrorKind::Throttled, "{first}");
            drop(foreign);
            let mut failed = 1;
            for _ in 1..100 {
                failed += u32::from(answers.recv().await.unwrap().is_err());
            }
            assert!(failed >= 50, "{failed} of 100 had waited for as long when the first was answered");
            store.insert(Key::new("p", "after"), "x").await.unwrap();
        });
    }
}

/// If the lock is released in time, all writes succeed.
#[test]
fn writes_behind_a_foreign_lock_succeed_once_it_is_released() {
    for durability in [Durability::Full, Durability::Relaxed] {
        run(async {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("state.db");
            let store = Sqlite::open(SqliteConfig::at(&path).durability(durability)).unwrap().store();
            let foreign = foreign_lock(&path);
            let writers: Vec<_> = (0..100)
                .map(|i| {
                    let store = store.clone();
                    tokio::spawn(async move { store.insert(Key::new("p", &i.to_string()), "x").await })
                })
                .collect();
            crate::wait_for_a_real_thread(50);
            drop(foreign);
            for writer in writers {
                writer.await.unwrap().unwrap();
            }
        });
    }
}

#[test]
fn a_write_behind_a_foreign_lock_does_not_block_the_callers_thread() {
    for durability in [Durability::Full, Durability::Relaxed] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.db");
        let sqlite = Sqlite::open(SqliteConfig::at(&path).durability(durability)).unwrap();
        let (store, queue) = (sqlite.store(), sqlite.queue("jobs").unwrap());
        let foreign = foreign_lock(&path);
        let mut put = pin!(store.put(Key::new("p", "r"), "x".into(), PutOptions::new()));
        let mut send = pin!(queue.send(vec![Message::new("a")]));
        // A write that waited in place would fail in its first poll.
        assert!(poll_once(put.as_mut()).is_pending());
        assert!(poll_once(send.as_mut()).is_pending());
        drop(foreign);
        run(async {
            put.await.unwrap();
            send.await.unwrap();
        });
    }
}

#[test]
fn the_visibility_time_out_begins_once_a_receive_has_the_lock() {
    for durability in [Durability::Full, Durability::Relaxed] {
        run(async {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("state.db");
            let (clock, time) = Clock::manual();
            let config = SqliteConfig::at(&path).durability(durability).lock_wait(Duration::from_secs(60));
            let sqlite = Sqlite::open_with_clock(config, &clock).unwrap();
            let queue = sqlite.queue("jobs").unwrap();
            queue.send_one(Message::new("a")).await.unwrap();
            let foreign = foreign_lock(&path);
            let receiver = queue.clone();
            let waits = tokio::spawn(async move { receiver.receive(Receive::new(1, Duration::from_secs(2))).await });
            crate::wait_for_a_real_thread(200);
            time.advance(Duration::from_secs(3));
            drop(foreign);
            let taken = waits.await.unwrap().unwrap();
            assert_eq!(taken.len(), 1);
            let again = queue.receive(Receive::new(1, Duration::from_secs(2))).await.unwrap();
            assert_eq!(again, [], "it was handed out twice");
            queue.complete(&taken[0].receipt).await.unwrap();
        });
    }
}

const CHILD: &str = "STEADFAST_TEST_DESCRIPTORS";

/// Runs in a process of its own with few file descriptors.
#[test]
fn out_of_file_descriptors_is_transient() {
    let Ok(path) = std::env::var(CHILD) else {
        let folder = tempfile::tempdir().unwrap();
        let child = Command::new("sh")
            .args(["-c", "ulimit -n 64; exec \"$0\" --exact sqlite_locks::out_of_file_descriptors_is_transient"])
            .arg(std::env::current_exe().unwrap())
            .env(CHILD, folder.path().join("state.db"))
            .status();
        assert!(child.unwrap().success());
        return;
    };
    run(async {
        let sqlite = Sqlite::open(SqliteConfig::at(&path)).unwrap();
        let store = sqlite.store();
        store.insert(Key::new("p", "r"), "kept").await.unwrap();
        let all: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        for error in [
            store.get(Key::new("p", "r")).await.expect_err("a get").backend().cloned().unwrap(),
            sqlite.queue("jobs").expect_err("a queue"),
            Sqlite::open(SqliteConfig::at(&path)).expect_err("a second handle"),
        ] {
            assert_eq!(error.class(), ErrorClass::Transient, "{error}");
            assert_eq!(error.kind(), PortErrorKind::Unavailable, "{error}");
        }
        drop(all);
        assert_eq!(store.get(Key::new("p", "r")).await.unwrap().unwrap().value, "kept");
        sqlite.queue("jobs").unwrap().send_one(Message::new("a")).await.unwrap();
    });
}
