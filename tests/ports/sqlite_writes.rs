//! SQLite: many concurrent writers, several handles, dropped futures.
use std::{
    sync::Arc,
    task::{Context, Waker},
};

use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    store::{Key, PutOptions, Scan, Store, StoreExt},
    testing::conformance::run,
};

fn open(folder: &tempfile::TempDir, durability: Durability) -> Sqlite {
    Sqlite::open(SqliteConfig::at(folder.path().join("state.db")).durability(durability)).unwrap()
}

#[test]
fn concurrent_writers_share_commits_and_each_has_its_own_result() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let sqlite = open(&folder, Durability::Full);
        let store = Arc::new(sqlite.store());
        store.insert(Key::new("p", "taken"), "x").await.unwrap();
        let before = sqlite.commits();
        let writers: Vec<_> = (0..256)
            .map(|i: usize| {
                let store = store.clone();
                tokio::spawn(async move {
                    let row = if i.is_multiple_of(4) { "taken".to_owned() } else { i.to_string() };
                    store.insert(Key::new("p", &row), i.to_string()).await
                })
            })
            .collect();
        for (i, writer) in writers.into_iter().enumerate() {
            let inserted = writer.await.unwrap();
            assert_eq!(inserted.is_err_and(|e| e.is_conflict()), i.is_multiple_of(4), "{i}");
        }
        let commits = sqlite.commits() - before;
        assert!(commits < 200, "256 writes took {commits} commits");
        assert_eq!(store.scan_all(Scan::partition("p")).await.unwrap().len(), 193);
    });
}

// Guarantee: store 1.
#[test]
fn four_handles_that_count_together_lose_no_update() {
    for durability in [Durability::Full, Durability::Relaxed] {
        run(async {
            const EACH: usize = 50;
            let folder = tempfile::tempdir().unwrap();
            let key = Key::new("p", "counter");
            let counters: Vec<_> = (0..4)
                .map(|_| {
                    let store = open(&folder, durability).store();
                    tokio::spawn(async move {
                        for _ in 0..EACH {
                            let add = |record: Option<&steadfast::store::Record>| {
                                let text = record.map_or("0", |r| std::str::from_utf8(&r.value).unwrap()).to_owned();
                                Some((text.parse::<usize>().unwrap() + 1).to_string().into())
                            };
                            store.update(key, add).await.unwrap();
                        }
                    })
                })
                .collect();
            for counter in counters {
                counter.await.unwrap();
            }
            let record = open(&folder, durability).store().get(key).await.unwrap().unwrap();
            assert_eq!(record.value, (4 * EACH).to_string());
        });
    }
}

// Guarantee: store 9.
#[test]
fn a_dropped_write_is_applied_whole_or_not_at_all_and_blocks_no_other() {
    for durability in [Durability::Full, Durability::Relaxed] {
        run(async {
            let folder = tempfile::tempdir().unwrap();
            let sqlite = open(&folder, durability);
            let store = sqlite.store();
            for i in 0..50 {
                let writes = vec![
                    steadfast::store::Write::put("a", i.to_string(), PutOptions::new()),
                    steadfast::store::Write::put("b", i.to_string(), PutOptions::new()),
                ];
                let mut write = store.batch("p", writes);
                // Polled once, the write is submitted.
                let _ = write.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                drop(write);
                let page = store.scan(&Scan::partition("p")).await.unwrap();
                if let [a, b] = &page.rows[..] {
                    assert_eq!(a.value, b.value);
                }
            }
            // A later write runs after it.
            store.insert(Key::new("q", "r"), "after").await.unwrap();
            let page = store.scan(&Scan::partition("p")).await.unwrap();
            assert_eq!((&page.rows[0].value[..], &page.rows[1].value[..]), (&b"49"[..], &b"49"[..]));
        });
    }
}

#[test]
fn dropping_handles_with_pending_writes_loses_no_acknowledged_write() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        for round in 0..5 {
            let store = open(&folder, Durability::Full).store();
            let writers: Vec<_> = (0..20)
                .map(|i| {
                    let store = store.clone();
                    let row = format!("{round}-{i}");
                    tokio::spawn(async move { store.insert(Key::new("p", &row), "x").await.map(|_| row) })
                })
                .collect();
            drop(store);
            let mut answered = Vec::new();
            for writer in writers {
                answered.push(writer.await.unwrap().unwrap());
            }
            let again = open(&folder, Durability::Full).store();
            for row in answered {
                assert!(again.get(Key::new("p", &row)).await.unwrap().is_some(), "{row}");
            }
        }
    });
}

/// Writes in place do not sync. The thread checkpoints the log meanwhile, and the log starts again.
#[test]
fn the_log_of_relaxed_writes_is_checkpointed() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let store = open(&folder, Durability::Relaxed).store();
        let value = vec![7; 4096];
        for i in 0..8000 {
            store.put(Key::new("p", &(i % 50).to_string()), value.clone().into(), PutOptions::new()).await.unwrap();
        }
        let log = std::fs::metadata(folder.path().join("state.db-wal")).unwrap().len();
        assert!(log < 16 << 20, "{log} bytes of log after 8,000 writes of 4 KiB");
    });
}
