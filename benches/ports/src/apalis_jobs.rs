//! apalis with SQLite: jobs pushed one by one or together, and a worker with an empty handler.
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use apalis::prelude::*;
use apalis_sqlite::{Config, SqliteStorage};
use futures::future::BoxFuture;
use sqlx::{
    SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

use crate::{BODY, Mode, Work, measure::Subject};

struct Apalis {
    work: Work,
    pool: SqlitePool,
    /// Jobs that the workers of this round still have to do.
    left: Arc<AtomicUsize>,
    workers: AtomicUsize,
}

pub async fn subject(work: Work, mode: Mode, path: &Path) -> Arc<dyn Subject> {
    let synchronous = if mode == Mode::Durable { SqliteSynchronous::Full } else { SqliteSynchronous::Normal };
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(synchronous);
    // One connection: with more, its writers meet "database is locked".
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.expect("a pool");
    SqliteStorage::setup(&pool).await.expect("its schema");
    Arc::new(Apalis { work, pool, left: Arc::default(), workers: AtomicUsize::new(0) })
}

impl Apalis {
    async fn push(&self, n: usize) {
        let body = vec![BODY[0]; BODY.len()];
        let tasks: Vec<_> = (0..n).map(|_| TaskBuilder::new(serde_json_bytes(&body)).build()).collect();
        let mut transaction = self.pool.begin().await.expect("a transaction");
        apalis_sqlite::queries::push_tasks(&mut transaction, "jobs", &tasks).await.expect("a push");
        transaction.commit().await.expect("a commit");
    }

    async fn drain(&self, batch: usize) {
        let id = self.workers.fetch_add(1, Ordering::Relaxed);
        let config = Config::default().queue("jobs").batch_size(batch);
        let storage: SqliteStorage<Vec<u8>> = SqliteStorage::new(&self.pool).with_config(config);
        let worker = WorkerBuilder::new(format!("worker-{id}")).backend(storage).data(self.left.clone()).build(handle);
        worker.run().await.expect("a worker");
    }
}

/// Does nothing, and stops its worker after the last job.
async fn handle(_body: Vec<u8>, left: Data<Arc<AtomicUsize>>, worker: WorkerContext) -> Result<(), BoxDynError> {
    if left.fetch_sub(1, Ordering::AcqRel) == 1 {
        worker.stop()?;
    }
    Ok(())
}

/// A body as its codec has it.
fn serde_json_bytes(body: &[u8]) -> Vec<u8> {
    format!("[{}]", body.iter().map(u8::to_string).collect::<Vec<_>>().join(",")).into_bytes()
}

impl Subject for Apalis {
    fn prepare(&self, operations: usize) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            sqlx::query("DELETE FROM Jobs").execute(&self.pool).await.expect("a purge");
            if let Work::Take(n) = self.work {
                let mut left = operations * n;
                self.left.store(left, Ordering::Release);
                while left > 0 {
                    let some = left.min(256);
                    self.push(some).await;
                    left -= some;
                }
            }
        })
    }

    fn work(self: Arc<Self>, writer: usize, operations: usize) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            match self.work {
                Work::Send(n) => {
                    for _ in 0..operations {
                        self.push(n).await;
                    }
                }
                // Its workers do not end when the queue is empty, but when they are stopped: one does the work of all.
                Work::Take(n) if writer == 0 => self.drain(n).await,
                Work::Take(_) | Work::Forward(_) | Work::Get | Work::Put | Work::Cas | Work::Append => {}
            }
        })
    }
}
