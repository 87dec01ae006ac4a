//! The listener: what it is made of, and what may be asked of it while it runs.
use std::{
    fmt,
    sync::{Arc, Weak},
};

use tokio::sync::{Notify, watch};

use super::{
    Level, ListenerState, PriorityOrder, QueueListenerBuilder, QueueListenerConfig, QueueListenerEvent as Event,
    counters::Counters, poll::hints::Hints, run::state::Shift, settle::unsettled::Unsettled,
};
use crate::{
    config::Name,
    entropy::Entropy,
    observe::{Events, Subscription},
    queue::{Depth, IdempotencyFilter, Queue},
    sync::Mutex,
    time::Clock,
};

/// Takes messages from a queue, and hands them to a handler. The [module's page](super) says how.
///
/// A clone is the same listener: pausing one pauses all, and they count together.
#[derive(Clone)]
pub struct QueueListener(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) sources: Vec<Source>,
    pub(super) levels: Vec<Level>,
    pub(super) order: PriorityOrder,
    pub(super) config: QueueListenerConfig,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
    pub(super) hints: Option<Hints>,
    pub(super) filter: Option<IdempotencyFilter>,
    pub(super) rule: Rule,
    pub(super) name: Option<Name>,
    pub(super) counters: Counters,
    pub(super) depth: Mutex<Option<Depth>>,
    /// What runs of this listener could not settle.
    pub(super) unsettled: Mutex<Unsettled>,
    pub(super) paused: watch::Sender<bool>,
    pub(super) shifts: Mutex<Vec<Weak<Shift>>>,
    /// A run has nothing in hand.
    pub(super) rests: Notify,
    pub(super) events: Events<Event>,
}

/// How many tasks so many waiting messages ask for.
pub(super) type Rule = Arc<dyn Fn(u64) -> u32 + Send + Sync>;

/// One of a listener's queues.
pub(super) struct Source {
    pub(super) queue: Arc<dyn Queue>,
    /// How many settlements one request may have.
    pub(super) most: usize,
    /// It has a queue of dead letters.
    pub(super) sets_aside: bool,
}

impl Inner {
    pub(super) fn event(&self, event: impl FnOnce() -> Event) {
        if self.events.wanted() {
            self.events.send(self.name.as_ref(), self.clock.now(), event);
        }
    }
}

impl QueueListener {
    /// Begins to make a listener of this queue.
    pub fn builder(queue: Arc<dyn Queue>) -> QueueListenerBuilder {
        QueueListenerBuilder::new(queue)
    }

    /// Its settings.
    pub fn config(&self) -> &QueueListenerConfig {
        &self.0.config
    }

    /// What it does from now on.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }

    /// How it stands.
    pub fn state(&self) -> ListenerState {
        let shifts: Vec<_> = self.0.shifts.lock().iter().filter_map(Weak::upgrade).collect();
        let buffered = shifts.iter().map(|shift| shift.backlog(|backlog| backlog.len()) as u64).sum();
        self.0.counters.state(buffered, *self.0.depth.lock(), *self.0.paused.borrow())
    }

    /// Takes no more messages until [`resume`](Self::resume), and hands back those that no handler has begun with. Handlers that run go on.
    ///
    /// It is a state and not a request: it holds for runs that begin later, and is not lost while the queue cannot be reached.
    pub fn pause(&self) {
        self.0.paused.send_replace(true);
    }

    /// Takes messages again, at once.
    pub fn resume(&self) {
        self.0.paused.send_replace(false);
    }

    /// Pauses, and waits until no handler runs and everything is settled.
    ///
    /// # Cancel safety
    /// Dropped, it leaves the listener paused.
    pub async fn drain(&self) {
        self.pause();
        loop {
            let rests = self.0.rests.notified();
            let shifts: Vec<_> = self.0.shifts.lock().iter().filter_map(Weak::upgrade).collect();
            if shifts.iter().all(|shift| shift.rests()) {
                return;
            }
            drop(shifts);
            rests.await;
        }
    }
}

impl fmt::Debug for QueueListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueListener")
            .field("name", &self.0.name)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
