//! A scheduler as its users hold it.
use std::{sync::Arc, time::Duration};

use super::{SchedulerConfig, SchedulerEvent as Event, Submission, reply::Replies, submission};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents},
    config::{ConfigError, Effect, Live, Name, Reconfigure, apply_newest},
    observe::{Events, Subscription},
    port::{Capability, PortError, ask},
    queue::{Message, Queue, QueueError, QueueExt},
    queue_listener::{QueueListener, QueueListenerConfig},
    saga::{Saga, SagaError, SagaStatus},
    store::Write,
};

/// Runs sagas from a queue. The [module's page](super) has the details.
///
/// Clones share their state.
pub struct Scheduler<T>(pub(super) Arc<SchedulerInner<T>>);

pub(super) struct SchedulerInner<T> {
    pub(super) saga: Saga<T>,
    pub(super) queue: Arc<dyn Queue>,
    pub(super) config: Live<SchedulerConfig>,
    pub(super) listener: QueueListener,
    pub(super) common: Common,
    pub(super) replies: Option<Replies>,
    pub(super) rows: Option<Rows<T>>,
    pub(super) events: Events<Event>,
    pub(super) name: Name,
}

/// Returns the rows that are written together with the start of a saga.
pub(super) type Rows<T> = Arc<dyn Fn(&str, &T) -> Vec<Write> + Send + Sync>;

/// Arguments of a scheduler, beside clock and entropy.
pub struct SchedulerSpec<T> {
    saga: Saga<T>,
    queue: Arc<dyn Queue>,
    config: SchedulerConfig,
    replies: Option<Replies>,
    rows: Option<Rows<T>>,
}

impl<T: Send + Sync + 'static> Builder<Scheduler<T>> {
    /// Sends status messages: `find` returns the queue of a name that a submission gave. Status
    /// messages for unknown names are not sent.
    pub fn replies(mut self, find: impl Fn(&str) -> Option<Arc<dyn Queue>> + Send + Sync + 'static) -> Self {
        self.spec.replies = Some(Arc::new(find));
        self
    }

    /// Writes rows together with the start of each saga, all or none: the order beside its
    /// progress. Their names must begin with `u/`.
    pub fn rows(mut self, rows: impl Fn(&str, &T) -> Vec<Write> + Send + Sync + 'static) -> Self {
        self.spec.rows = Some(Arc::new(rows));
        self
    }
}

impl<T: Send + Sync + 'static> Component for Scheduler<T> {
    type Built = Result<Self, ConfigError>;
    type Spec = SchedulerSpec<T>;

    fn assemble(spec: SchedulerSpec<T>, common: Common) -> Self::Built {
        let SchedulerSpec { saga, queue, config, replies, rows } = spec;
        config.check()?;
        // A submission is accepted once.
        queue.capabilities().require(Capability::Deduplication).map_err(|lacks| lacks.refuse("queue"))?;
        let common = Common { entropy: Some(common.entropy()), ..common };
        let (events, name) = (common.hooks.events(), saga.name().into());
        let mut listener = QueueListener::builder(queue.clone(), config.listener(saga.core().longest_step()));
        listener.common = Common { name: Some(Name::clone(&name)), ..common.clone() };
        let (listener, config) = (listener.build()?, Live::new(config));
        let inner = SchedulerInner { saga, queue, config, listener, common, replies, rows, events, name };
        Ok(Self(Arc::new(inner)))
    }
}

impl<T: Send + Sync + 'static> Reconfigure<SchedulerConfig> for Scheduler<T> {
    fn config(&self) -> SchedulerConfig {
        self.config()
    }

    fn validate(&self, next: &SchedulerConfig) -> Result<Effect, ConfigError> {
        next.check()?;
        match self.0.listener.validate(&self.0.listener_config(next))? {
            Effect::Restart(error) => Ok(Effect::Restart(error)),
            _ => Ok(Effect::of_change(&self.config(), next)),
        }
    }

    fn apply(&self, next: SchedulerConfig) -> Result<(), ConfigError> {
        self.reconfigure(next)
    }
}

impl<T: Send + Sync + 'static> HasEntropy for Scheduler<T> {}
impl<T: Send + Sync + 'static> HasEvents<Event> for Scheduler<T> {}

impl<T: Send + Sync + 'static> Scheduler<T> {
    /// Creates a scheduler of a saga and a queue, which belongs to it alone: other messages become
    /// dead letters.
    ///
    /// # Errors
    /// If a setting breaks a rule, or the queue lacks
    /// [`Deduplication`](Capability::Deduplication).
    pub fn new(saga: Saga<T>, queue: Arc<dyn Queue>, config: SchedulerConfig) -> Result<Self, ConfigError> {
        Self::builder(saga, queue, config).build()
    }

    /// Creates a builder with the arguments of [`new`](Self::new). Give it the clock of the saga.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CScheduler%3CT%3E%3E):
    /// `replies`, `rows`.
    pub fn builder(saga: Saga<T>, queue: Arc<dyn Queue>, config: SchedulerConfig) -> Builder<Self> {
        Builder::new(SchedulerSpec { saga, queue, config, replies: None, rows: None })
    }

    /// Submits a saga. Once this returned, it is started, whatever process dies, as far as the
    /// queue is durable. A second submission of an id has no effect.
    ///
    /// # Errors
    /// Those of the queue: `Full` if it is full, `Unsupported` for an ordering key without
    /// [`Groups`](Capability::Groups). `Invalid` if the id is empty or too long, the state cannot
    /// be encoded, or the [headers](field@Submission::headers) break a rule.
    ///
    /// # Cancel safety
    /// If the future is dropped, the saga was submitted or not. Submit it again.
    pub async fn submit(&self, submission: Submission<T>) -> Result<(), QueueError> {
        let core = self.0.saga.core();
        core.check_id(&submission.id).map_err(|error| PortError::invalid("id", error))?;
        submission.check_headers()?;
        let body = self.0.saga.encode(&submission.state).map_err(|error| PortError::invalid("state", error))?;
        self.0.send(&self.0.queue, submission.into_message(body)).await
    }

    /// Returns the status of a saga; `None` before it was started, and when its retention is over.
    ///
    /// # Errors
    /// Same as [`Saga::read`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn read(&self, id: &str) -> Result<Option<SagaStatus<T>>, SagaError> {
        self.0.saga.read(id).await
    }

    /// Ends the delay of a saga that waits for its next attempt, in any process; if none waits now,
    /// the next delay is skipped.
    ///
    /// # Errors
    /// Same as [`Saga::wake`], and `Store` if the queue fails.
    ///
    /// # Cancel safety
    /// If the future is dropped, the saga was woken or not. Wake it again.
    pub async fn wake(&self, id: &str) -> Result<(), SagaError> {
        let origin = self.0.saga.core().wake(id).await?;
        let sent = self.0.send(&self.0.queue, submission::wake(id, origin)).await;
        sent.map_err(|error| match error {
            QueueError::Failed(error) => SagaError::Store(error),
            QueueError::LeaseLost => SagaError::Superseded,
        })
    }

    /// Returns the current settings.
    pub fn config(&self) -> SchedulerConfig {
        self.0.config.now()
    }

    /// Replaces the settings while the scheduler is in use, for all clones and their runs. More
    /// sagas begin at once under a higher `concurrency`; under a lower one those that run go on.
    /// The settings of the steps are replaced by [`Saga::reconfigure`]: a stop waits for them by
    /// those in effect when it begins.
    ///
    /// # Errors
    /// If a setting breaks its rule, or `visibility` is another one. Nothing has changed then.
    pub fn reconfigure(&self, config: SchedulerConfig) -> Result<(), ConfigError> {
        if let Effect::Restart(error) = self.validate(&config)? {
            return Err(error);
        }
        self.0.config.replace(config);
        self.0.update_listener()
    }

    /// Returns the saga, whose methods cancel, retry and skip.
    pub fn saga(&self) -> &Saga<T> {
        &self.0.saga
    }

    /// Subscribes to the events that follow.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }
}

impl<T: Send + Sync + 'static> SchedulerInner<T> {
    /// Returns the settings of the listener, by these and by those of the saga in effect.
    fn listener_config(&self, config: &SchedulerConfig) -> QueueListenerConfig {
        config.listener(self.saga.core().longest_step())
    }

    /// Gives the listener the settings in effect, also those of the saga.
    pub(super) fn update_listener(&self) -> Result<(), ConfigError> {
        let newest = || self.listener_config(&self.config.now());
        apply_newest(newest, |config| self.listener.reconfigure(*config))
    }

    pub(super) fn event(&self, event: impl FnOnce() -> Event) {
        self.events.send(Some(&self.name), self.common.clock.now(), event);
    }

    /// Returns the time limit of a request to the queue.
    pub(super) fn limit(&self) -> Duration {
        self.config.load().visibility / 6
    }

    /// Sends one message, within the time limit of a request.
    pub(super) async fn send(&self, queue: &Arc<dyn Queue>, message: Message) -> Result<(), QueueError> {
        let sent = ask(&self.common.clock, self.limit(), queue.send_one(message)).await;
        sent.map(drop).map_err(|error| error.or_timed_out("the queue of a scheduler did not answer in time"))
    }
}

impl<T> Clone for Scheduler<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

crate::build::debug_fields!([T] Scheduler<T>, |this| saga: this.0.saga, queue: this.0.queue, config: this.0.config);
