//! apalis with its own storages and an empty handler.
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
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

use crate::{Cell, Mode};

/// Does nothing, and stops its worker after the last job.
async fn handle(_body: Vec<u8>, left: Data<Arc<AtomicUsize>>, worker: WorkerContext) -> Result<(), BoxDynError> {
    if left.fetch_sub(1, Ordering::AcqRel) == 1 {
        worker.stop()?;
    }
    Ok(())
}

pub async fn run(cell: Cell, folder: &Path) -> Duration {
    let left = Arc::new(AtomicUsize::new(cell.messages));
    match cell.mode {
        Mode::Memory => {
            let mut storage = MemoryStorage::new();
            for _ in 0..cell.messages {
                storage.push(vec![7u8; 100]).await.expect("a push");
            }
            let worker = WorkerBuilder::new("worker").backend(storage).data(left).concurrency(cell.tasks).build(handle);
            let start = Instant::now();
            worker.run().await.expect("a worker");
            start.elapsed()
        }
        Mode::Sqlite => {
            let options = SqliteConnectOptions::new()
                .filename(folder.join("apalis.db"))
                .create_if_missing(true)
                .journal_mode(SqliteJournalMode::Wal)
                .synchronous(SqliteSynchronous::Full);
            // One connection: with more, its writers meet "database is locked".
            let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.expect("a pool");
            SqliteStorage::setup(&pool).await.expect("its schema");
            let body = format!("[{}]", ["7"; 100].join(",")).into_bytes();
            let mut rest = cell.messages;
            while rest > 0 {
                let some = rest.min(256);
                let tasks: Vec<_> = (0..some).map(|_| TaskBuilder::new(body.clone()).build()).collect();
                let mut transaction = pool.begin().await.expect("a transaction");
                apalis_sqlite::queries::push_tasks(&mut transaction, "jobs", &tasks).await.expect("a push");
                transaction.commit().await.expect("a commit");
                rest -= some;
            }
            let config = Config::default().queue("jobs").batch_size(cell.batch);
            let storage: SqliteStorage<Vec<u8>> = SqliteStorage::new(&pool).with_config(config);
            let worker = WorkerBuilder::new("worker").backend(storage).data(left).concurrency(cell.tasks).build(handle);
            let start = Instant::now();
            worker.run().await.expect("a worker");
            start.elapsed()
        }
    }
}
