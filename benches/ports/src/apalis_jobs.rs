//! apalis: jobs pushed together, and a worker with an empty handler.
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use apalis::prelude::*;
use apalis_postgres::{PgPool, PostgresStorage};
use apalis_redis::RedisStorage;
use apalis_sqlite::SqliteStorage;
use futures::future::BoxFuture;
use sqlx::{
    SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

use crate::{BODY, Mode, Work, measure::Subject};

const QUEUE: &str = "jobs";

/// Jobs that the workers of a round still have to do.
type Left = Arc<AtomicUsize>;

struct Jobs<S> {
    work: Work,
    storage: S,
    left: Left,
    workers: AtomicUsize,
}

/// Does nothing, and stops its worker after the last job.
async fn handle(_body: Vec<u8>, left: Data<Left>, worker: WorkerContext) -> Result<(), BoxDynError> {
    if left.fetch_sub(1, Ordering::AcqRel) == 1 {
        worker.stop()?;
    }
    Ok(())
}

trait Storage: Send + Sync + 'static {
    fn purge(&self) -> BoxFuture<'_, ()>;
    fn push(&self, n: usize) -> BoxFuture<'_, ()>;
    fn drain(&self, worker: String, batch: usize, left: Left) -> BoxFuture<'_, ()>;
}

struct OnSqlite(SqlitePool);

pub async fn sqlite(work: Work, mode: Mode, path: &Path) -> Arc<dyn Subject> {
    let synchronous = if mode == Mode::Durable { SqliteSynchronous::Full } else { SqliteSynchronous::Normal };
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(synchronous);
    // One connection: with more, its writers meet "database is locked".
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.expect("a pool");
    SqliteStorage::setup(&pool).await.expect("its schema");
    Arc::new(Jobs { work, storage: OnSqlite(pool), left: Left::default(), workers: AtomicUsize::new(0) })
}

impl Storage for OnSqlite {
    fn purge(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            sqlx::query("DELETE FROM Jobs").execute(&self.0).await.expect("a purge");
        })
    }

    // With its own queries in one transaction: its sink syncs each job by itself.
    fn push(&self, n: usize) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let body = format!("[{}]", BODY.map(|byte| byte.to_string()).join(",")).into_bytes();
            let tasks: Vec<_> = (0..n).map(|_| TaskBuilder::new(body.clone()).build()).collect();
            let mut transaction = self.0.begin().await.expect("a transaction");
            apalis_sqlite::queries::push_tasks(&mut *transaction, QUEUE, &tasks).await.expect("a push");
            transaction.commit().await.expect("a commit");
        })
    }

    fn drain(&self, worker: String, batch: usize, left: Left) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let config = apalis_sqlite::Config::default().queue(QUEUE).batch_size(batch);
            let storage: SqliteStorage<Vec<u8>> = SqliteStorage::new(&self.0).with_config(config);
            let worker = WorkerBuilder::new(worker).backend(storage).data(left).build(handle);
            worker.run().await.expect("a worker");
        })
    }
}

struct OnPostgres(PgPool);

pub async fn postgres(work: Work, url: &str) -> Arc<dyn Subject> {
    let pool = PgPool::connect(url).await.expect("a pool");
    PostgresStorage::setup(&pool).await.expect("its schema");
    Arc::new(Jobs { work, storage: OnPostgres(pool), left: Left::default(), workers: AtomicUsize::new(0) })
}

impl OnPostgres {
    fn storage(&self, batch: usize) -> PostgresStorage<Vec<u8>> {
        let config = apalis_postgres::Config::default().queue(QUEUE).batch_size(batch);
        PostgresStorage::new(&self.0).with_config(config)
    }
}

impl Storage for OnPostgres {
    fn purge(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            sqlx::query("DELETE FROM apalis.jobs").execute(&self.0).await.expect("a purge");
        })
    }

    fn push(&self, n: usize) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.storage(n).push_bulk(vec![BODY.to_vec(); n]).await.expect("a push") })
    }

    fn drain(&self, worker: String, batch: usize, left: Left) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let worker = WorkerBuilder::new(worker).backend(self.storage(batch)).data(left).build(handle);
            worker.run().await.expect("a worker");
        })
    }
}

struct OnRedis(apalis_redis::ConnectionManager);

pub async fn redis(work: Work, url: &str) -> Arc<dyn Subject> {
    let storage = OnRedis(apalis_redis::connect(url).await.expect("it connects"));
    Arc::new(Jobs { work, storage, left: Left::default(), workers: AtomicUsize::new(0) })
}

impl OnRedis {
    fn storage(&self, batch: usize) -> RedisStorage<Vec<u8>> {
        let config = apalis_redis::Config::default().queue(QUEUE).batch_size(batch);
        RedisStorage::new(self.0.clone()).with_config(config)
    }
}

impl Storage for OnRedis {
    fn purge(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let () = redis::cmd("FLUSHDB").query_async(&mut self.0.clone()).await.expect("a purge");
        })
    }

    fn push(&self, n: usize) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.storage(n).push_bulk(vec![BODY.to_vec(); n]).await.expect("a push") })
    }

    fn drain(&self, worker: String, batch: usize, left: Left) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let worker = WorkerBuilder::new(worker).backend(self.storage(batch)).data(left).build(handle);
            worker.run().await.expect("a worker");
        })
    }
}

impl<S: Storage> Subject for Jobs<S> {
    fn prepare(&self, operations: usize) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.storage.purge().await;
            if let Work::Take(n) = self.work {
                let mut left = operations * n;
                self.left.store(left, Ordering::Release);
                while left > 0 {
                    let some = left.min(256);
                    self.storage.push(some).await;
                    left -= some;
                }
            }
        })
    }

    fn work(self: Arc<Self>, caller: usize, operations: usize) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            match self.work {
                Work::Send(n) => {
                    for _ in 0..operations {
                        self.storage.push(n).await;
                    }
                }
                // Its workers do not end when the queue is empty, but when they are stopped: one does the work of all.
                Work::Take(n) if caller == 0 => {
                    let worker = format!("worker-{}", self.workers.fetch_add(1, Ordering::Relaxed));
                    self.storage.drain(worker, n, self.left.clone()).await;
                }
                Work::Take(_)
                | Work::Forward(_)
                | Work::Get
                | Work::Put
                | Work::Cas
                | Work::Append
                | Work::Events(_) => {}
            }
        })
    }
}
