//! SQLite: expired rows are deleted, and the size of requests is limited.
use std::{
    path::Path,
    process::Command,
    task::{Context, Waker},
    time::Duration,
};

use bytes::Bytes;
use rusqlite::Connection;
use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    notify::{Notice, Notices, Notifier},
    queue::{Message, Queue, QueueExt, Receive},
    store::{Key, PutOptions, Scan, Store, Write},
    testing::conformance::run,
    time::{Clock, ManualClock},
};

const SECOND: Duration = Duration::from_secs(1);

fn open(path: &Path) -> (Sqlite, ManualClock) {
    let (clock, time) = Clock::manual();
    let config = SqliteConfig::at(path).durability(Durability::Relaxed).deduplication_window(SECOND);
    (Sqlite::open_with_clock(config, &clock).unwrap(), time)
}

/// Returns the number of rows of a table.
fn rows(path: &Path, table: &str) -> i64 {
    let file = Connection::open(path).unwrap();
    file.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
}

// Guarantee: queue 7.
#[test]
fn duplicates_within_a_request_are_recognized_without_a_window() {
    let folder = tempfile::tempdir().unwrap();
    let config = SqliteConfig::at(folder.path().join("state.db")).deduplication_window(Duration::ZERO);
    let queue = Sqlite::open(config).unwrap().queue("jobs").unwrap();
    let twice = vec![Message::new("a").deduplicate("x"), Message::new("b").deduplicate("x")];
    run(async {
        let ids = queue.send(twice).await.unwrap();
        assert_eq!(ids[0], ids[1]);
        assert_eq!(queue.depth().await.unwrap().total(), 1);
    });
}

/// With 2,500 writes a second that expire after a second, hardly more rows remain than have not
/// expired.
#[test]
fn expired_records_are_deleted_as_fast_as_new_ones_are_written() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.db");
        let (sqlite, time) = open(&path);
        let (store, queue) = (sqlite.store(), sqlite.queue("jobs").unwrap());
        let options = PutOptions::new().ttl(SECOND);
        for i in 0..15_000 {
            time.advance(SECOND / 2500);
            store.put(Key::new("p", &i.to_string()), "x".into(), options).await.unwrap();
        }
        let left = rows(&path, "records");
        assert!(left < 2500 + 200, "{left} of 15,000 records are there, 2,500 have not ended");
        for i in 0..100 {
            time.advance(SECOND / 25);
            let writes = (0..100).map(|j| Write::put(format!("{i} {j}"), "x", options)).collect();
            store.batch("batches", writes).await.unwrap();
        }
        let left = rows(&path, "records");
        assert!(left < 2500 + 400, "{left} of 10,000 records of batches are there");
        for i in 0..7_500 {
            time.advance(SECOND / 2500);
            queue.send_one(Message::new("a").deduplicate(i.to_string())).await.unwrap();
        }
        let left = rows(&path, "sent");
        assert!(left < 2500 + 200, "{left} of 7,500 de-duplication ids are there, 2,500 have not ended");
    });
}

/// Without further writes, a scan that skips many expired rows requests one sweep of them.
#[test]
fn expired_records_are_deleted_after_a_scan_skipped_them() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.db");
        let (sqlite, time) = open(&path);
        let store = sqlite.store();
        for i in 0..20 {
            let options = PutOptions::new().ttl(SECOND);
            let writes = (0..1000).map(|j| Write::put(format!("{i} {j}"), "x", options)).collect();
            store.batch("p", writes).await.unwrap();
        }
        time.advance(SECOND * 2);
        // The writer's thread is a real one.
        for looks in 0.. {
            assert_eq!(store.scan(&Scan::partition("p")).await.unwrap().rows, []);
            let left = rows(&path, "records");
            if left == 0 {
                break;
            }
            assert!(looks < 30_000, "{left} records that ended are there");
            crate::wait_for_a_real_thread(1);
        }
    });
}

async fn publish(sqlite: &Sqlite, topic: &str, text: impl ToString) {
    sqlite.notifier().publish(topic, Bytes::from(text.to_string())).await.unwrap();
}

fn message(text: impl ToString) -> Notice {
    Notice::Message(Bytes::from(text.to_string()))
}

async fn subscribe(sqlite: &Sqlite, topic: &str) -> Notices {
    sqlite.notifier().subscribe(topic).await.unwrap()
}

#[test]
fn a_busy_topic_makes_no_gap_in_a_quiet_one() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let (sqlite, time) = open(&folder.path().join("state.db"));
        let mut quiet = subscribe(&sqlite, "quiet").await;
        for i in 0..24_000 {
            time.advance(SECOND / 3000);
            publish(&sqlite, "busy", i).await;
            if i % 1000 == 0 {
                publish(&sqlite, "quiet", i).await;
            }
        }
        for i in 0..24 {
            assert_eq!(quiet.recv().await, message(i * 1000));
        }
    });
}

#[test]
fn a_subscriber_behind_the_kept_notices_receives_a_gap_and_then_all_kept_ones() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let (sqlite, time) = open(&folder.path().join("state.db"));
        let mut behind = subscribe(&sqlite, "t").await;
        let mut before_any = subscribe(&sqlite, "t").await;
        publish(&sqlite, "t", "first").await;
        assert_eq!(behind.recv().await, message("first"));
        for i in 0..10_050 {
            publish(&sqlite, "t", i).await;
        }
        for subscriber in [&mut behind, &mut before_any] {
            assert_eq!(subscriber.recv().await, Notice::Gap);
            for i in 50..10_050 {
                assert_eq!(subscriber.recv().await, message(i));
            }
        }
        // Notices also expire by age, for a subscriber that read none of them.
        let mut late = subscribe(&sqlite, "t").await;
        publish(&sqlite, "t", "old").await;
        time.advance(SECOND * 601);
        publish(&sqlite, "other", "x").await;
        for looks in 0.. {
            let left = rows(&folder.path().join("state.db"), "notices");
            if left == 1 {
                break;
            }
            assert!(looks < 30_000, "{left} notices are there after ten minutes");
            crate::wait_for_a_real_thread(1);
        }
        assert_eq!(late.recv().await, Notice::Gap);
        publish(&sqlite, "t", "new").await;
        assert_eq!(late.recv().await, message("new"));
    });
}

#[test]
fn a_receive_returns_at_most_its_limit_of_bytes_but_at_least_one_message() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let (sqlite, _hand) = open(&folder.path().join("state.db"));
        let queue = sqlite.queue("jobs").unwrap();
        const MEBIBYTE: usize = 1 << 20;
        queue.send_one(Message::new(vec![0; 20 * MEBIBYTE])).await.unwrap();
        for _ in 0..40 {
            queue.send_one(Message::new(vec![1; MEBIBYTE])).await.unwrap();
        }
        let peeked = queue.peek(1000).await.unwrap();
        assert_eq!(peeked.len(), 1);
        let mut sizes = Vec::new();
        loop {
            let taken = queue.receive(Receive::new(1000, SECOND * 60)).await.unwrap();
            if taken.is_empty() {
                break;
            }
            sizes.push(taken.iter().map(|delivery| delivery.body.len() / MEBIBYTE).sum::<usize>());
        }
        assert_eq!(sizes, [20, 16, 16, 8]);
    });
}

/// Both walk all messages of the queue. A future that did so in place would be ready at its first
/// poll.
#[test]
fn depth_and_peek_do_not_walk_the_queue_on_the_callers_thread() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let (sqlite, _hand) = open(&folder.path().join("state.db"));
        let queue = sqlite.queue("jobs").unwrap();
        for _ in 0..40 {
            queue.send(vec![Message::new("a"); 1000]).await.unwrap();
        }
        let mut depth = queue.depth();
        let mut peek = queue.peek(10);
        assert!(depth.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(peek.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(depth.await.unwrap().visible, 40_000);
        assert_eq!(peek.await.unwrap().len(), 10);
    });
}

const CHILD: &str = "STEADFAST_TEST_TIME_NAMESPACE";

/// A process in a time namespace, whose clock since boot is an hour ahead, has the same file time.
///
/// Not every machine allows its user to create a namespace. `scripts/verify` runs this where it is
/// possible, and reports where it is not. Tests with injected clocks (`time/machine.rs`) check
/// everywhere that the namespace's offset is subtracted.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "needs the right to make a time namespace: run it with `--ignored`"]
fn a_process_in_a_time_namespace_has_the_same_time() {
    let key = Key::new("p", "r");
    if let Ok(path) = std::env::var(CHILD) {
        run(async {
            let sqlite = Sqlite::open(SqliteConfig::at(path)).unwrap();
            assert!(sqlite.store().get(key).await.unwrap().is_some(), "the record had half an hour left");
            let options = PutOptions::new().ttl(SECOND * 1800);
            sqlite.store().put(Key::new("p", "of the child"), "x".into(), options).await.unwrap();
        });
        return;
    }
    for offset in ["3600", "-600"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.db");
        run(async {
            let sqlite = Sqlite::open(SqliteConfig::at(&path)).unwrap();
            sqlite.store().put(key, "x".into(), PutOptions::new().ttl(SECOND * 1800)).await.unwrap();
            let child = Command::new("unshare")
                .args(["--time", "--boottime", offset, "--fork"])
                .arg(std::env::current_exe().unwrap())
                .args(["--ignored", "--exact", "sqlite_bounds::a_process_in_a_time_namespace_has_the_same_time"])
                .env(CHILD, &path)
                .status();
            let ended = child.expect("`unshare` (util-linux) is not there");
            assert!(ended.success(), "the child failed, or this user may not make a time namespace: {ended}");
            let ends = "SELECT max(ends) - min(ends) FROM records";
            let apart: i64 = Connection::open(&path).unwrap().query_row(ends, [], |row| row.get(0)).unwrap();
            assert!(apart < 300_000_000, "the child's time is {} s from this process's", apart / 1_000_000);
            assert!(sqlite.store().get(Key::new("p", "of the child")).await.unwrap().is_some());
            let again = Sqlite::open(SqliteConfig::at(&path)).unwrap();
            assert!(again.store().get(key).await.unwrap().is_some());
        });
    }
}
