//! Requests for the depth of the queues, and the number of tasks that follows from it.
//
// Concurrency. `busy` decides events alone. No data is read on the strength of the time
// `again_at`, so `Relaxed` suffices. `wants_tasks` is published before `due` is notified.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use crate::{
    queue::{Depth, Queue},
    queue_listener::{
        QueueCall, QueueListenerEvent as Event,
        listener::Inner,
        run::{requests::Requests, state::RunState, tasks::Tasks},
    },
    time::Instant,
};

/// Minimum interval between two requests for the depth that only readers of the state want.
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// Reasons to request the depth.
pub(crate) struct Scaling {
    inner: Arc<Inner>,
    /// `true` if the latest poll found messages.
    busy: AtomicBool,
    /// Notified when the depth is to be requested; `wants_tasks` is `true` if that is to decide on
    /// more tasks.
    due: Notify,
    wants_tasks: AtomicBool,
    /// Nanoseconds at which the depth may be requested again.
    again_at: AtomicU64,
}

impl Scaling {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        let (busy, wants_tasks) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { inner, busy, due: Notify::new(), wants_tasks, again_at: AtomicU64::new(0) }
    }

    /// Records a poll that received messages. Returns `true` if more tasks are wanted.
    pub(crate) fn found(&self, messages: usize, now: Instant, tasks: &Tasks) -> bool {
        self.inner.counters.received.add(messages as u64);
        let config = self.inner.config.load();
        self.refresh(MINUTE);
        if !self.busy.load(Ordering::Acquire) && !self.busy.swap(true, Ordering::AcqRel) {
            self.inner.event(|| Event::WorkDetected { messages });
        } else if messages < config.batch || self.again_at.load(Ordering::Relaxed) > now.as_nanos() {
            return false;
        }
        self.again_at.store((now + config.rescale).as_nanos(), Ordering::Relaxed);
        let wants_tasks = tasks.scaler(|scaler| scaler.tasks < scaler.max);
        if wants_tasks {
            self.wants_tasks.store(true, Ordering::Release);
            self.due.notify_one();
        }
        wants_tasks
    }

    /// Records a poll that received none.
    pub(crate) fn found_nothing(&self) {
        if self.busy.load(Ordering::Acquire) && self.busy.swap(false, Ordering::AcqRel) {
            self.inner.event(|| Event::QueueEmpty);
            self.refresh(Duration::ZERO);
        }
    }

    /// Requests the depth of the queues, if the last request for it is older than this.
    pub(crate) fn refresh(&self, older_than: Duration) {
        if self.inner.counters.depth.is_older(older_than, self.inner.clock.now()) {
            self.due.notify_one();
        }
    }

    /// Requests the depth of the queues when notified, and starts as many tasks as the rule asks
    /// for if that was the reason.
    pub(crate) async fn run(&self, run: &RunState) {
        let (inner, depths) = (&self.inner, &self.inner.counters.depth);
        loop {
            self.due.notified().await;
            let wants_tasks = self.wants_tasks.swap(false, Ordering::AcqRel);
            depths.asked_at.store(inner.clock.now().as_nanos(), Ordering::Relaxed);
            let mut depth = None;
            for source in &inner.sources {
                if let Some(one) = depth_of(&run.requests, &*source.queue).await {
                    let all = depth.get_or_insert_with(Depth::default);
                    all.visible += one.visible;
                    all.delayed += one.delayed;
                    all.in_flight += one.in_flight;
                }
            }
            if let Some(depth) = depth {
                depths.last.lock().0 = Some(depth);
                let waiting = depth.visible + run.backlog.len() as u64;
                if wants_tasks && waiting > 0 {
                    let wanted = (inner.rule)(waiting);
                    run.grow(Some(depth), |_| wanted);
                }
            }
            let mut dead_letters = None;
            for dead in inner.sources.iter().filter_map(|source| source.queue.dead_letters()) {
                if let Some(depth) = depth_of(&run.requests, &*dead).await {
                    *dead_letters.get_or_insert(0) += depth.total();
                }
            }
            if dead_letters.is_some() {
                depths.last.lock().1 = dead_letters;
            }
        }
    }
}

async fn depth_of(requests: &Requests, queue: &dyn Queue) -> Option<Depth> {
    requests.make(QueueCall::Depth, requests.limit(), queue.depth()).await?.ok()
}
