//! The listener: its parts, and its control while it runs.
use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::sync::{Notify, watch};

use super::{
    Level, ListenerState, PriorityOrder, QueueListenerConfig, QueueListenerEvent as Event,
    control::{state::ControlState, watch::Paused},
    counters::Counters,
    poll::hints::Hints,
    run::{scaling::MINUTE, state::RunState},
    settle::unsettled::Unsettled,
};
use crate::{
    config::{ConfigError, Effect, Live, Name, Reconfigure},
    entropy::Entropy,
    observe::{Events, Subscription},
    queue::{IdempotencyFilter, Queue},
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
    pub(super) order: PriorityOrder,
    pub(super) config: Live<QueueListenerConfig>,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
    pub(super) hints: Option<Hints>,
    pub(super) filter: Option<IdempotencyFilter>,
    pub(super) rule: Rule,
    pub(super) name: Option<Name>,
    pub(super) counters: Counters,
    /// Messages that runs of this listener could not settle.
    pub(super) unsettled: Mutex<Unsettled>,
    pub(super) paused: watch::Sender<Paused>,
    pub(super) control: Option<Box<ControlState>>,
    /// `true` if forwards to a full queue are held until there is room.
    pub(super) holds: bool,
    pub(super) runs: Runs,
    pub(super) events: Events<Event>,
}

/// The rule that gives the number of tasks for a number of waiting messages.
pub(super) type Rule = Arc<dyn Fn(u64) -> u32 + Send + Sync>;

/// One of a listener's queues.
pub(super) struct Source {
    pub(super) queue: Arc<dyn Queue>,
    pub(super) level: Level,
    /// Maximum number of settlements of one request.
    pub(super) most: usize,
    /// `true` if the queue has dead letters.
    pub(super) has_dead_letters: bool,
    /// `true` if the queue wakes its receivers.
    pub(super) wakes: bool,
}

/// The runs of a listener.
#[derive(Default)]
pub(super) struct Runs {
    list: Mutex<Vec<Weak<RunState>>>,
    /// Notified when a run has no outstanding message.
    pub(super) idle: Notify,
}

impl Runs {
    pub(super) fn add(&self, run: &Arc<RunState>) {
        let mut runs = self.list.lock();
        runs.retain(|run| run.strong_count() > 0);
        runs.push(Arc::downgrade(run));
    }

    pub(super) fn remove(&self, run: &Arc<RunState>) {
        let this = Arc::downgrade(run);
        self.list.lock().retain(|run| !run.ptr_eq(&this));
        // After the run was removed, so that a `drain` that checks again does not wait for it.
        self.idle.notify_waiters();
    }

    pub(super) fn all(&self) -> Vec<Arc<RunState>> {
        self.list.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

impl Inner {
    /// Returns the time limit of one request.
    pub(super) fn call_limit(&self) -> Duration {
        self.config.load().call_limit()
    }

    pub(super) fn visibility(&self) -> Duration {
        self.config.load().visibility
    }

    /// Returns `true` if one of the queues wakes its receivers.
    pub(super) fn wakes(&self) -> bool {
        self.sources.iter().any(|source| source.wakes)
    }

    pub(super) fn event(&self, event: impl FnOnce() -> Event) {
        if self.events.wanted() {
            self.events.send(self.name.as_ref(), self.clock.now(), event);
        }
    }

    fn set_paused(&self, paused: bool) {
        self.paused.send_modify(|now| now.by_listener = paused);
    }
}

impl Reconfigure<QueueListenerConfig> for QueueListener {
    fn config(&self) -> QueueListenerConfig {
        self.config()
    }

    fn validate(&self, next: &QueueListenerConfig) -> Result<Effect, ConfigError> {
        next.check()?;
        next.check_wakes(self.0.hints.is_some())?;
        Ok(self.config().change_to(next))
    }

    fn apply(&self, next: QueueListenerConfig) -> Result<(), ConfigError> {
        self.reconfigure(next)
    }
}

impl QueueListener {
    /// Returns the current configuration.
    pub fn config(&self) -> QueueListenerConfig {
        self.0.config.now()
    }

    /// Replaces the configuration while the listener is in use, for all clones and their runs. The
    /// number of tasks follows `min_tasks` and `max_tasks`: more start at once, and those above the
    /// maximum end after their message. A running handler keeps its time limit, and a stop its
    /// times; all other settings hold from their next use on.
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    /// use steadfast::{queue::InMemoryQueue, queue_listener::{QueueListener, QueueListenerConfig}};
    ///
    /// let queue = Arc::new(InMemoryQueue::new("orders"));
    /// let listener = QueueListener::new(queue, QueueListenerConfig::default())?;
    /// let seconds = Duration::from_secs;
    /// listener.reconfigure(listener.config().tasks(1, 4).handler_timeout(seconds(9)))?;
    /// assert_eq!(listener.config().max_tasks, 4);
    ///
    /// let error = listener.reconfigure(listener.config().visibility(seconds(60))).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "invalid `visibility`: must stay as it is while the listener is in use",
    /// );
    /// # Ok::<_, steadfast::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// If a setting breaks its rule, or `visibility` or `margin` is another one: leases are divided
    /// by them. Nothing has changed then.
    pub fn reconfigure(&self, config: QueueListenerConfig) -> Result<(), ConfigError> {
        if let Effect::Restart(error) = self.validate(&config)? {
            return Err(error);
        }
        self.0.config.replace(config);
        self.0.runs.all().iter().for_each(|run| run.take_bounds());
        Ok(())
    }

    /// Subscribes to the events that follow.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }

    /// Returns the current state and counters.
    pub fn state(&self) -> ListenerState {
        let runs = self.0.runs.all();
        let buffered = runs.iter().map(|run| run.backlog.len() as u64).sum();
        runs.iter().take(1).for_each(|run| run.scaling.refresh(MINUTE));
        let paused = *self.0.paused.borrow();
        let paused_queues = self.0.control.as_ref().and_then(|control| control.paused()).unwrap_or_default();
        let paused = (paused.by_listener, paused.by_control, paused_queues);
        self.0.counters.state(buffered, paused)
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
            let idle = self.0.runs.idle.notified();
            if self.0.runs.all().iter().all(|run| run.is_idle()) {
                return;
            }
            idle.await;
        }
    }
}

crate::build::debug_fields!(QueueListener, |this| name: this.0.name, state: this.state());
