//! The same writes by hand: a start, a write for each step, the last of which is the end.
use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::join_all;
use rusqlite::{Connection, params};
use steadfast::{
    queue::{Receive, Settle},
    store::{DeleteOptions, InMemoryStore, Key, Precondition, PutOptions, Store, StoreExt, Write},
};

use crate::{STEPS, State, ours::World};

const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

/// A record of the size of a saga's: the state, and a line for each step.
fn record(state: &State) -> Vec<u8> {
    let mut record = vec![b'-'; 300];
    serde_json::to_writer(&mut record, state).expect("JSON");
    record
}

/// Runs one saga over a store.
async fn one(store: &dyn Store, id: &str) {
    let (row, index) = (format!("r/{id}"), format!("i/{id}"));
    let mut state = State::new();
    let start =
        vec![Write::put(&*row, record(&state), Precondition::Absent), Write::put(&*index, "open", PutOptions::new())];
    let versions = store.batch("saga/bench", start).await.expect("a start");
    let mut version = versions[0].expect("a version");
    for step in 1..=STEPS {
        state.done += 1;
        if step < STEPS {
            let key = Key::new("saga/bench", &row);
            version = store.replace(key, record(&state), version).await.expect("a step");
        } else {
            let when = PutOptions::from(Precondition::Version(version)).ttl(WEEK);
            let end = vec![Write::put(&*row, record(&state), when), Write::delete(&*index, DeleteOptions::new())];
            store.batch("saga/bench", end).await.expect("an end");
        }
    }
}

pub async fn memory(sagas: usize) {
    let store = InMemoryStore::new();
    for n in 0..sagas {
        one(&store, &n.to_string()).await;
    }
}

/// A loop over the queue, for so many messages at once.
pub async fn listen(world: &World, sagas: usize, concurrent: usize) {
    let mut left = sagas;
    while left > 0 {
        let taken = world.queue.receive(Receive::new(concurrent, Duration::from_secs(60))).await.expect("a receive");
        join_all(taken.iter().map(async |delivery| one(&*world.store, &delivery.headers["saga-id"]).await)).await;
        left -= taken.len();
        let settlements = taken.into_iter().map(|delivery| (delivery.receipt, Settle::Complete)).collect();
        assert!(world.queue.settle(settlements).await.expect("a settle").iter().all(Result::is_ok));
    }
}

/// One connection, and writes that are synced.
pub fn open(folder: &Path) -> Arc<Mutex<Connection>> {
    let file = Connection::open(folder.join("by_hand.db")).expect("it opens");
    file.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
         CREATE TABLE sagas (id TEXT PRIMARY KEY, version INTEGER NOT NULL, is_open INTEGER NOT NULL, record BLOB NOT NULL);
         CREATE INDEX open_sagas ON sagas (id) WHERE is_open;",
    )
    .expect("its schema");
    Arc::new(Mutex::new(file))
}

pub async fn rusqlite(file: Arc<Mutex<Connection>>, sagas: usize, concurrent: usize) {
    let one_after_the_other = |task: usize| {
        let file = file.clone();
        tokio::task::spawn_blocking(move || {
            for n in (task..sagas).step_by(concurrent) {
                let mut state = State::new();
                for version in 0..=STEPS {
                    state.done = version as u32;
                    let (id, record, is_open) = (n.to_string(), record(&state), version < STEPS);
                    let file = file.lock().expect("no panic");
                    let changed = if version == 0 {
                        let start = "INSERT INTO sagas VALUES (?1, 0, 1, ?2)";
                        file.prepare_cached(start).and_then(|mut sql| sql.execute(params![id, record]))
                    } else {
                        let step = "UPDATE sagas SET version = version + 1, is_open = ?4, record = ?2
                                    WHERE id = ?1 AND version = ?3";
                        file.prepare_cached(step)
                            .and_then(|mut sql| sql.execute(params![id, record, version as i64 - 1, is_open]))
                    };
                    assert_eq!(changed, Ok(1));
                }
            }
        })
    };
    for task in join_all((0..concurrent).map(one_after_the_other)).await {
        task.expect("no panic");
    }
}
