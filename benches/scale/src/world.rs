//! Processes of a service in virtual time, over one backend in memory.
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures::{
    Stream,
    future::{AbortHandle, Abortable},
    stream::FuturesUnordered,
};
use steadfast::{
    entropy::Entropy,
    lease::{Lease, StoreLease},
    notify::{InMemoryNotifier, Notifier},
    queue::{InMemoryQueue, Queue},
    store::{InMemoryStore, Store},
    time::{Clock, ManualClock},
};

use crate::counted::{Counts, Link, Tally};

pub const S: fn(u64) -> Duration = Duration::from_secs;
pub const MS: fn(u64) -> Duration = Duration::from_millis;

/// Time of a request to a port, and that of its answer.
const WAY: Duration = Duration::from_micros(500);

pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Tasks of all processes, on one thread.
#[derive(Clone, Default)]
pub struct Tasks(Arc<Mutex<TaskList>>);

#[derive(Default)]
struct TaskList {
    new: Vec<Task>,
    running: FuturesUnordered<Task>,
    waker: Option<Waker>,
}

impl Tasks {
    pub fn spawn(&self, task: Task) {
        let mut tasks = self.0.lock().expect("no panic");
        tasks.new.push(task);
        if let Some(waker) = tasks.waker.take() {
            waker.wake();
        }
    }

    /// Polls all tasks that were woken.
    fn poll(&self, cx: &mut Context<'_>) {
        loop {
            let mut tasks = self.0.lock().expect("no panic");
            tasks.waker = Some(cx.waker().clone());
            let (new, mut running) = (std::mem::take(&mut tasks.new), std::mem::take(&mut tasks.running));
            drop(tasks); // a task may spawn another one
            let is_new = !new.is_empty();
            running.extend(new);
            let has_ended = matches!(Pin::new(&mut running).poll_next(cx), Poll::Ready(Some(())));
            self.0.lock().expect("no panic").running = running;
            if !is_new && !has_ended {
                return;
            }
        }
    }
}

/// A backend and the processes that use it.
pub struct World {
    pub clock: Clock,
    time: ManualClock,
    pub tasks: Tasks,
    pub counts: Arc<Counts>,
    backends: Arc<Backends>,
}

struct Backends {
    store: Arc<dyn Store>,
    queue: Arc<dyn Queue>,
    notifier: Arc<dyn Notifier>,
}

/// One process: its randomness, and its way to the backend.
#[derive(Clone)]
pub struct Process {
    pub number: usize,
    /// Number of processes in all.
    pub of: usize,
    pub clock: Clock,
    pub entropy: Entropy,
    pub tasks: Tasks,
    link: Link,
    backends: Arc<Backends>,
}

impl Process {
    pub fn store(&self) -> Arc<dyn Store> {
        self.link.store(self.backends.store.clone())
    }

    pub fn queue(&self) -> Arc<dyn Queue> {
        self.link.queue(self.backends.queue.clone())
    }

    pub fn notifier(&self) -> Arc<dyn Notifier> {
        self.link.notifier(self.backends.notifier.clone())
    }

    /// Leases over the store.
    pub fn lease(&self) -> Arc<dyn Lease> {
        Arc::new(StoreLease::builder(self.store()).clock(&self.clock).build().expect("a store with leases"))
    }

    pub fn spawner(&self) -> impl Fn(Task) + Send + Sync + 'static + use<> {
        let tasks = self.tasks.clone();
        move |task| tasks.spawn(task)
    }

    /// Does something again and again, at random times: so often on average.
    pub async fn often<F: Future<Output = ()>>(&self, every: Duration, mut act: impl FnMut() -> F) {
        loop {
            let pause = every.mul_f64(2.0 * self.entropy.unit());
            self.clock.sleep(pause).await;
            act().await;
        }
    }
}

impl World {
    pub fn new() -> Self {
        let (clock, time) = Clock::manual();
        let backends = Backends {
            store: Arc::new(InMemoryStore::builder().clock(&clock).build()),
            queue: Arc::new(InMemoryQueue::builder("work").clock(&clock).build()),
            notifier: Arc::new(InMemoryNotifier::new()),
        };
        Self { clock, time, tasks: Tasks::default(), counts: Arc::default(), backends: Arc::new(backends) }
    }

    pub fn process(&self, number: usize, of: usize) -> Process {
        Process {
            number,
            of,
            clock: self.clock.clone(),
            entropy: Entropy::from_seed(number as u64 + 1),
            tasks: self.tasks.clone(),
            link: Link::new(&self.clock, WAY, &self.counts),
            backends: self.backends.clone(),
        }
    }

    /// Starts the work of a process, which the handle kills.
    pub fn start(&self, work: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let (handle, killed) = AbortHandle::new_pair();
        let work = Abortable::new(work, killed);
        self.tasks.spawn(Box::pin(async move {
            let _ = work.await;
        }));
        handle
    }

    /// Runs a future, with the tasks of all processes beside it.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        let tasks = self.tasks.clone();
        self.time.block_on(async move {
            let mut future = pin!(future);
            poll_fn(|cx| {
                let polled = future.as_mut().poll(cx);
                if polled.is_pending() {
                    tasks.poll(cx);
                }
                polled
            })
            .await
        })
    }

    /// Lets this time pass, and returns what passed the links meanwhile.
    pub fn pass(&self, time: Duration) -> Tally {
        let before = self.counts.now();
        self.run(self.clock.sleep(time));
        self.counts.now().since(before)
    }

    /// Lets time pass until a fact holds, and returns that time; `None` after the limit.
    pub fn until(&self, limit: Duration, look: Duration, mut holds: impl FnMut() -> bool) -> Option<Duration> {
        let began = self.clock.now();
        while !holds() {
            if self.clock.now() - began > limit {
                return None;
            }
            self.run(self.clock.sleep(look));
        }
        Some(self.clock.now() - began)
    }
}
