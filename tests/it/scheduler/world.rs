//! Processes that schedule sagas over one queue and one store.
use std::{future::Future, sync::Arc, time::Duration};

use steadfast::{
    entropy::Entropy,
    queue::{InMemoryQueue, Queue, QueueExt},
    queue_listener::IdleConfig,
    saga::{Plan, Saga},
    scheduler::{STATUS, Scheduler, SchedulerConfig, Submission},
    store::Store,
    time::Clock,
};

use crate::{
    engines::{Engine, World as Backend},
    saga::world::{S, State, World as Services, codec},
};

pub(crate) struct World {
    pub(crate) saga: Services,
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) replies: Arc<dyn Queue>,
    pub(crate) clock: Clock,
    _backend: Option<Backend>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::over(Services::new())
    }

    pub(crate) fn over(saga: Services) -> Self {
        let queue = Arc::new(InMemoryQueue::builder("orders").clock(&saga.clock).build());
        let replies = Arc::new(InMemoryQueue::builder("web-1").clock(&saga.clock).build());
        let clock = saga.clock.clone();
        Self { saga, queue, replies, clock, _backend: None }
    }

    pub(crate) fn on(engine: Engine) -> Self {
        let backend = engine.world();
        let saga = Services::over(&backend.clock, &backend.time, backend.store.clone());
        let replies = Arc::new(InMemoryQueue::builder("web-1").clock(&saga.clock).build());
        let (queue, clock) = (backend.queue.clone(), saga.clock.clone());
        Self { saga, queue, replies, clock, _backend: Some(backend) }
    }

    /// Settings with polls a second apart.
    pub(crate) fn config() -> SchedulerConfig {
        SchedulerConfig::default().idle(IdleConfig::between(S(1), S(1)))
    }

    pub(crate) fn process<P>(&self, name: &str, plan: Plan<State, P>) -> Scheduler<State> {
        self.process_on(name, plan, self.saga.store.clone(), self.queue.clone())
    }

    pub(crate) fn process_on<P>(
        &self,
        name: &str,
        plan: Plan<State, P>,
        store: Arc<dyn Store>,
        queue: Arc<dyn Queue>,
    ) -> Scheduler<State> {
        let seed = name.bytes().fold(7, |seed: u64, byte| seed * 31 + u64::from(byte));
        let saga = Saga::builder("trip", store, codec(), plan, Services::config())
            .clock(&self.clock)
            .entropy(&Entropy::from_seed(seed))
            .build()
            .unwrap();
        let replies = self.replies.clone();
        Scheduler::builder(saga, queue, Self::config())
            .clock(&self.clock)
            .entropy(&Entropy::from_seed(seed + 1))
            .replies(move |name| (name == "web-1").then(|| replies.clone()))
            .build()
            .unwrap()
    }

    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.saga.block_on(future)
    }

    pub(crate) fn submit(&self, orders: &Scheduler<State>, submission: Submission<State>) {
        self.block_on(orders.submit(submission)).unwrap();
    }

    /// Runs processes for this time, and stops them.
    pub(crate) fn run(&self, processes: &[&Scheduler<State>], time: Duration) {
        self.block_on(async {
            let runs = processes.iter().map(|orders| orders.run(self.clock.sleep(time)));
            futures::future::try_join_all(runs).await.unwrap();
        });
    }

    /// Runs a process for this time, and kills it.
    pub(crate) fn kill_after(&self, orders: &Scheduler<State>, time: Duration) {
        assert!(self.saga.within(time, orders.run(std::future::pending())).is_none());
    }

    /// Returns the status messages so far, as words, and removes them.
    pub(crate) fn told(&self) -> Vec<String> {
        let mut told = Vec::new();
        while let Some(reply) = self.block_on(self.replies.receive_one(S(30))).unwrap() {
            told.push(format!("{} {}", reply.headers["correlation-id"], reply.headers[STATUS]));
            self.block_on(self.replies.complete(&reply.receipt)).unwrap();
        }
        told
    }

    pub(crate) fn depths(&self) -> (u64, u64) {
        let depth = |queue: &dyn Queue| steadfast::time::block_on(queue.depth()).unwrap().total();
        (depth(&*self.queue), depth(&*self.queue.dead_letters().unwrap()))
    }
}

pub(crate) fn order(id: &str) -> Submission<State> {
    Submission::new(id, State::new())
}
