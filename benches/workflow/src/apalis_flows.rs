//! apalis-workflow with the storage of apalis-sqlite: each step is a job that pushes the next one.
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use apalis::{layers::WorkerBuilderExt, prelude::*};
use apalis_sqlite::{Config, SqliteStorage};
use apalis_workflow::{SteppedFlow, WorkflowSink};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

use crate::State;

async fn step(mut state: State) -> Result<State, BoxDynError> {
    state.done += 1;
    Ok(state)
}

/// The last step stops its worker after the last flow.
async fn last(_: State, left: Data<Arc<AtomicUsize>>, worker: WorkerContext) -> Result<(), BoxDynError> {
    if left.fetch_sub(1, Ordering::AcqRel) == 1 {
        worker.stop()?;
    }
    Ok(())
}

pub async fn run(folder: &Path, sagas: usize, concurrent: usize) -> Duration {
    let options = SqliteConnectOptions::new()
        .filename(folder.join("apalis.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full);
    // One connection: with more, its writers meet "database is locked".
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.expect("a pool");
    SqliteStorage::setup(&pool).await.expect("its schema");
    let config = Config::default().queue("flows").batch_size(concurrent);
    let mut storage: SqliteStorage<State> = SqliteStorage::new(&pool).with_config(config);
    for _ in 0..sagas {
        storage.push_start(State::new()).await.expect("a push");
    }
    let flow = SteppedFlow::new("bench").and_then(step).and_then(step).and_then(step).and_then(step).and_then(last);
    let left = Arc::new(AtomicUsize::new(sagas));
    let worker = WorkerBuilder::new("worker").backend(storage).data(left).concurrency(concurrent).build(flow);
    let start = Instant::now();
    worker.run().await.expect("a worker");
    start.elapsed()
}
