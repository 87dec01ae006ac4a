//! The listener: its parts, and its control while it runs.
use std::{
    fmt,
    sync::{Arc, Weak, atomic::AtomicU64},
};

use tokio::sync::{Notify, watch};

use super::{
    Level, ListenerState, PriorityOrder, QueueListenerConfig, QueueListenerEvent as Event,
    control::{state::ControlState, watch::Paused},
    counters::Counters,
    poll::hints::Hints,
    run::state::{MINUTE, RunState},
    settle::unsettled::Unsettled,
};
use crate::{
    config::Name,
    entropy::Entropy,
    observe::{Events, Subscription},
    queue::{Depth, IdempotencyFilter, Queue},
    sync::Mutex,
    time::Clock,
};

/// Takes messages from a queue and passes them to a handler. The [module's page](super) has the
/// details.
///
/// Clones are the same listener: a pause of one pauses all, and they share their counters.
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
    /// Depth of the queues, and number of their dead letters, at the last request.
    pub(super) depth: Mutex<(Option<Depth>, Option<u64>)>,
    /// Nanoseconds at which the depth was requested last, zero if never. It decides only whether it
    /// is requested again, so `Relaxed` suffices.
    pub(super) depth_at: AtomicU64,
    /// Messages that runs of this listener could not settle.
    pub(super) unsettled: Mutex<Unsettled>,
    pub(super) paused: watch::Sender<Paused>,
    pub(super) control: Option<Box<ControlState>>,
    /// `true` if forwards to a full queue are held until there is room.
    pub(super) holds: bool,
    pub(super) runs: Mutex<Vec<Weak<RunState>>>,
    /// Notified when a run has no outstanding message.
    pub(super) idle: Notify,
    pub(super) events: Events<Event>,
}

/// The rule that gives the number of tasks for a number of waiting messages.
pub(super) type Rule = Arc<dyn Fn(u64) -> u32 + Send + Sync>;

/// One of a listener's queues.
pub(super) struct Source {
    pub(super) queue: Arc<dyn Queue>,
    /// Maximum number of settlements of one request.
    pub(super) most: usize,
    /// `true` if the queue has dead letters.
    pub(super) has_dead_letters: bool,
    /// `true` if the queue wakes its receivers.
    pub(super) wakes: bool,
}

impl Inner {
    /// Returns `true` if one of the queues wakes its receivers.
    pub(super) fn wakes(&self) -> bool {
        self.sources.iter().any(|source| source.wakes)
    }

    pub(super) fn event(&self, event: impl FnOnce() -> Event) {
        if self.events.wanted() {
            self.events.send(self.name.as_ref(), self.clock.now(), event);
        }
    }
}

impl Inner {
    fn set_paused(&self, paused: bool) {
        self.paused.send_modify(|now| now.by_listener = paused);
    }
}

impl QueueListener {
    /// Returns the configuration.
    pub fn config(&self) -> &QueueListenerConfig {
        &self.0.config
    }

    /// Subscribes to the events that follow.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }

    /// Returns the current state and counters.
    pub fn state(&self) -> ListenerState {
        let runs: Vec<_> = self.0.runs.lock().iter().filter_map(Weak::upgrade).collect();
        let buffered = runs.iter().map(|run| run.backlog(|backlog| backlog.len()) as u64).sum();
        runs.iter().take(1).for_each(|run| run.refresh_depth(MINUTE));
        let paused = *self.0.paused.borrow();
        let paused_queues = self.0.control.as_ref().and_then(|control| control.paused()).unwrap_or_default();
        let paused = (paused.by_listener || paused.by_control, paused_queues);
        self.0.counters.state(buffered, *self.0.depth.lock(), paused)
    }

    /// Stops taking messages until [`resume`](Self::resume), and releases those that no handler has
    /// begun. Running handlers continue.
    ///
    /// A pause is a state, not a request: it also holds for runs that begin later, and it is not
    /// lost while the queue cannot be reached. It concerns this listener alone; a
    /// [`QueueControl`](super::QueueControl) pauses a queue for all of them.
    pub fn pause(&self) {
        self.0.set_paused(true);
    }

    /// Resumes taking messages, at once. Queues that a [`QueueControl`](super::QueueControl) paused
    /// stay paused.
    pub fn resume(&self) {
        self.0.set_paused(false);
    }

    /// Pauses, then waits until no handler runs and everything is settled.
    ///
    /// # Cancel safety
    /// A dropped `drain` leaves the listener paused.
    pub async fn drain(&self) {
        self.pause();
        loop {
            let idle = self.0.idle.notified();
            let runs: Vec<_> = self.0.runs.lock().iter().filter_map(Weak::upgrade).collect();
            if runs.iter().all(|run| run.check_idle()) {
                return;
            }
            drop(runs);
            idle.await;
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
