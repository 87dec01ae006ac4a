//! A manual clock, and a spawner whose tasks run on the test's thread.
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt, Stream, stream::FuturesUnordered};
use steadfast::{
    store::{DeleteOptions, Key, Page, PutOptions, Scan, Store, StoreFuture, Version},
    time::{Clock, ManualClock},
};

pub(crate) const S: fn(u64) -> Duration = Duration::from_secs;
pub(crate) const MS: fn(u64) -> Duration = Duration::from_millis;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Tasks that a component has spawned.
#[derive(Clone, Default)]
pub(crate) struct Pool(Arc<Mutex<Tasks>>);

#[derive(Default)]
struct Tasks {
    new: Vec<Task>,
    running: FuturesUnordered<Task>,
    waker: Option<Waker>,
}

impl Pool {
    /// Adds a task, which runs while [`World::run`] does.
    pub(crate) fn spawn(&self, task: Task) {
        let mut tasks = self.0.lock().unwrap();
        tasks.new.push(task);
        if let Some(waker) = tasks.waker.take() {
            waker.wake();
        }
    }

    /// Polls all tasks that were woken.
    fn poll(&self, cx: &mut Context<'_>) {
        loop {
            let mut tasks = self.0.lock().unwrap();
            tasks.waker = Some(cx.waker().clone());
            let (new, mut running) = (std::mem::take(&mut tasks.new), std::mem::take(&mut tasks.running));
            drop(tasks); // a task may spawn another one
            let is_new = !new.is_empty();
            running.extend(new);
            let ended = matches!(Pin::new(&mut running).poll_next(cx), Poll::Ready(Some(())));
            self.0.lock().unwrap().running = running;
            if !is_new && !ended {
                return;
            }
        }
    }
}

pub(crate) struct World {
    pub(crate) clock: Clock,
    pub(crate) time: ManualClock,
    pub(crate) pool: Pool,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::at(&Clock::manual().1)
    }

    /// Creates a world on the clock of another one.
    pub(crate) fn at(time: &ManualClock) -> Self {
        Self { clock: time.clock(), time: time.clone(), pool: Pool::default() }
    }

    /// Returns the future with the spawned tasks beside it.
    pub(crate) fn with_tasks<F: Future>(&self, future: F) -> impl Future<Output = F::Output> {
        let pool = self.pool.clone();
        async move {
            let mut future = pin!(future);
            poll_fn(|cx| {
                let polled = future.as_mut().poll(cx);
                pool.poll(cx);
                polled
            })
            .await
        }
    }

    /// Runs a future with the spawned tasks, until it ends or this time has passed.
    pub(crate) fn run<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        let limit = self.clock.sleep(limit);
        let limited = async {
            let (mut future, mut limit) = (pin!(future.fuse()), pin!(limit.fuse()));
            futures::select_biased! {
                output = future => Some(output),
                () = limit => None,
            }
        };
        self.time.block_on(self.with_tasks(limited))
    }
}

/// A store that counts its requests.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) requests: Arc<AtomicUsize>,
    pub(crate) reads: Arc<AtomicUsize>,
}

impl Counted {
    fn count(&self) -> &dyn Store {
        self.requests.fetch_add(1, SeqCst);
        &*self.store
    }
}

impl Store for Counted {
    forward_store! { store: capabilities, get, batch }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        self.count().put(key, value, options)
    }
    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> StoreFuture<'a, bool> {
        self.count().delete(key, options)
    }
    fn scan<'a>(&'a self, scan: &'a Scan) -> StoreFuture<'a, Page> {
        self.reads.fetch_add(1, SeqCst);
        self.count().scan(scan)
    }
}

/// A store whose pages have few rows.
#[derive(Debug)]
pub(crate) struct SmallPages {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) rows: usize,
}

impl Store for SmallPages {
    forward_store! { store: capabilities, get, put, delete, batch }

    fn scan<'a>(&'a self, scan: &'a Scan) -> StoreFuture<'a, Page> {
        Box::pin(async move { self.store.scan(&scan.clone().limit(self.rows)).await })
    }
}

/// A store each of whose requests first makes one to another store, such as one that is slow.
#[cfg(feature = "object_store")]
#[derive(Debug)]
pub(crate) struct Slowed<S> {
    pub(crate) by: S,
    pub(crate) store: Arc<dyn Store>,
}

#[cfg(feature = "object_store")]
impl<S: Store> Store for Slowed<S> {
    forward_store! { store: capabilities, delete, scan, batch }

    fn get<'a>(&'a self, key: Key<'a>) -> StoreFuture<'a, Option<steadfast::store::Record>> {
        Box::pin(async move {
            self.by.get(key).await?;
            self.store.get(key).await
        })
    }
    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            self.by.put(key, value.clone(), options).await?;
            self.store.put(key, value, options).await
        })
    }
}
