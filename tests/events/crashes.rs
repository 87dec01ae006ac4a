//! Processes that end at each of their requests, and requests that fail.
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use steadfast::{
    backend::sqlite::{Sqlite, SqliteConfig},
    event_sourcing::{AggregateConfig, AggregateStore, EventStore, Expected::*},
    store::{InMemoryStore, Precondition, Store, Write},
    testing::{CrashingProcess, crash_at_every_write, fail_at_every_write},
};
use tokio::runtime::Runtime;

use crate::{
    aggregates::{Book, Seats, codec, states},
    append, event,
};

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A name that no other log of this test process has.
pub(crate) fn new_name() -> String {
    static LAST: AtomicU32 = AtomicU32::new(0);
    format!("log{}", LAST.fetch_add(1, Relaxed))
}

fn seats(log: &EventStore) -> AggregateStore<Seats> {
    let config = AggregateConfig::default().snapshot_every(2);
    AggregateStore::builder(log.clone(), codec(), config).snapshots(states(), 1).build().unwrap()
}

/// Commits, executes commands and trims; what was not answered is done again.
async fn does_all(store: Arc<dyn Store>, name: &str) {
    let log = loop {
        if let Ok(log) = EventStore::open(store.clone(), name).await {
            break log;
        }
    };
    let whole = || {
        append("whole", "a", Version(0), "A")
            .append("b", Any, [event("B"), event("B")])
            .expect("c", 0)
            .claim("badge")
            .write(Write::put("u/row", "1", Precondition::Absent))
    };
    while log.commit(whole()).await.is_err() {}
    let seats = seats(&log);
    for n in 0..5 {
        while seats.execute("conf", format!("book {n}"), Book(n + 1)).await.is_err() {}
    }
    while log.trim(3).await.is_err() {}
    while log.commit(append("last", "a", Version(1), "A").release("badge")).await.is_err() {}
}

/// A process that ends or fails at a request; another one does all again.
pub(crate) fn ends_at_any_request(runtime: &Runtime, store: &Arc<dyn Store>, process: &CrashingProcess) {
    let (name, crashing) = (new_name(), process.store(store.clone()));
    runtime.block_on(process.run(does_all(crashing, &name)));
    runtime.block_on(async {
        does_all(store.clone(), &name).await;
        let log = EventStore::open(store.clone(), &name).await.unwrap();
        for (stream, version) in [("a", 2), ("b", 2), ("c", 0), ("conf", 5)] {
            assert_eq!(log.version(stream).await.unwrap(), version, "{stream}");
        }
        let commits = log.commits(0, 99).await.unwrap();
        assert_eq!(commits.iter().map(|commit| commit.number).collect::<Vec<_>>(), (3..8).collect::<Vec<_>>());
        assert_eq!(log.holder("badge").await.unwrap(), None);
        let seats = seats(&log);
        assert_eq!(seats.load("conf").await.unwrap().0.booked, 15);
        assert!(seats.verify("conf").await.unwrap());
    });
}

// Guarantee: event_sourcing 4.
#[test]
fn a_process_in_memory_that_ends_or_fails_at_any_request_has_each_effect_once() {
    let (runtime, store) = (runtime(), Arc::new(InMemoryStore::new()) as Arc<dyn Store>);
    assert!(crash_at_every_write(|process| ends_at_any_request(&runtime, &store, process)) >= 10);
    assert!(fail_at_every_write(|process| ends_at_any_request(&runtime, &store, process)) >= 10);
}

// Guarantee: event_sourcing 4.
#[test]
fn a_process_on_a_file_that_ends_or_fails_at_any_request_has_each_effect_once() {
    let folder = tempfile::tempdir().unwrap();
    let store =
        Arc::new(Sqlite::open(SqliteConfig::at(folder.path().join("log.db"))).unwrap().store()) as Arc<dyn Store>;
    let runtime = runtime();
    assert!(crash_at_every_write(|process| ends_at_any_request(&runtime, &store, process)) >= 10);
    assert!(fail_at_every_write(|process| ends_at_any_request(&runtime, &store, process)) >= 10);
}

// Guarantee: event_sourcing 1.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_reader_of_a_file_sees_one_order_of_commits() {
    let folder = tempfile::tempdir().unwrap();
    let open =
        || Arc::new(Sqlite::open(SqliteConfig::at(folder.path().join("log.db"))).unwrap().store()) as Arc<dyn Store>;
    crate::commits::writers_of_four_handles([open(), open(), open(), open()], 15).await;
}
