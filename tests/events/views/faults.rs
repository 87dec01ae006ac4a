//! Processes that end at each of their requests, and requests that fail.
use std::convert::Infallible;

use steadfast::{
    backend::sqlite::{Sqlite, SqliteConfig},
    store::{Scan, StoreExt},
    testing::{CrashingProcess, crash_at_every_write, fail_at_every_write},
    work::IdleConfig,
};
use tokio::runtime::Runtime;

use super::*;
use crate::crashes::{new_name, runtime};

fn open(store: &Arc<dyn Store>, log: &EventStore, name: &str, version: u32) -> View<Sales> {
    // Of real time: the other projector is gone in all of these tests.
    let (short, idle) =
        (Duration::from_millis(2), IdleConfig::between(Duration::from_millis(1), Duration::from_millis(5)));
    let config = ViewConfig::default().version(version).page(5).idle(idle).standby(short);
    View::builder(store.clone(), name.to_owned(), Sales, json(), config).source(log.topic(), events()).build().unwrap()
}

/// Projects until the view has all of the log.
async fn catches_up(view: &View<Sales>, log: &EventStore) {
    let token = log.token().await.unwrap();
    loop {
        let has_it = async { while view.get_after("tv-1", &token, SECOND / 100).await.is_err() {} };
        if view.run(has_it).await.is_ok() {
            return;
        }
    }
}

/// Builds, loads, goes on to another version, builds it anew, and deletes the first one.
async fn does_all(store: Arc<dyn Store>, log: &EventStore, name: &str) {
    let (one, two) = (open(&store, log, name, 1), open(&store, log, name, 2));
    while one.rebuild().await.is_err() {}
    let load = async |nth: u64| {
        Ok::<_, Infallible>(if nth < 2 { vec![(format!("loaded-{nth}"), Total::default())] } else { Vec::new() })
    };
    while one.regenerate(load).await.is_err() {}
    while two.rebuild().await.is_err() {}
    while two.retire(1).await.is_err() {}
    while two.rebuild().await.is_err() {}
}

/// A process that ends or fails at a request; another one does all again.
fn ends_at_any_request(
    runtime: &Runtime,
    store: &Arc<dyn Store>,
    log: &EventStore,
    facts: &[Fact],
    process: &CrashingProcess,
) {
    let (name, crashing) = (new_name(), process.store(store.clone()));
    runtime.block_on(process.run(does_all(crashing, log, &name)));
    runtime.block_on(async {
        let two = open(store, log, &name, 2);
        while two.retire(1).await.is_err() {}
        catches_up(&two, log).await;
        two.rebuild().await.unwrap();
        catches_up(&two, log).await;
        // The rows of the generation before go last.
        let look = async || {
            let rows = store.scan_all(Scan::partition(format!("view/{name}"))).await.unwrap();
            rows.into_iter().map(|row| row.row).filter(|row| !row.starts_with("v/")).collect::<Vec<_>>()
        };
        let generation = two.state().await.unwrap().generation.unwrap();
        two.run(async {
            while look().await.iter().any(|row| !row.contains(&format!("/2/{generation}"))) {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
        assert_rows(&two, facts).await;
    });
}

pub(crate) fn ends_at_any(runtime: &Runtime, store: &Arc<dyn Store>) {
    let facts = facts(8);
    let log = runtime.block_on(async {
        let log = EventStore::open(store.clone(), new_name()).await.unwrap();
        commit(&log, &facts).await;
        log
    });
    let run = |process: &CrashingProcess| ends_at_any_request(runtime, store, &log, &facts, process);
    assert!(crash_at_every_write(run) >= 20);
    assert!(fail_at_every_write(run) >= 20);
}

// Guarantee: materialized_view 2, 4.
#[test]
fn a_projector_in_memory_that_ends_or_fails_at_any_request_folds_each_event_once() {
    ends_at_any(&runtime(), &memory());
}

// Guarantee: materialized_view 2, 4.
#[test]
fn a_projector_on_a_file_that_ends_or_fails_at_any_request_folds_each_event_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(SqliteConfig::at(folder.path().join("log.db"))).unwrap().store();
    ends_at_any(&runtime(), &(Arc::new(store) as Arc<dyn Store>));
}
