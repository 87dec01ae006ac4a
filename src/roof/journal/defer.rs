//! The journal, and the functions that defer calls.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{Entry, JournalConfig, JournalEvent as Event, Served};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents, HasName},
    config::{ConfigError, Name, Reconfigure, apply_newest, reconfigurable},
    observe::{Events, Subscription},
    outcome::CallError,
    port::{Capability, Failure, PortError, ask},
    queue::{IdempotencyFilter, Queue, QueueError, QueueExt},
    queue_listener::QueueListener,
    store::Store,
    sync::Mutex,
    throttling::{RateLimitConfig, RateLimiter},
    time::Clock,
};

/// Keeps refused calls in a queue and replays them later. The [module's page](super) has the
/// details.
///
/// Clones are the same journal.
#[derive(Clone)]
pub struct Journal(pub(super) Arc<Inner>);

pub(super) struct Inner {
    parts: Parts,
    config: Mutex<JournalConfig>,
    pub(super) pace: RateLimiter,
    /// `true` while entries wait for the gate. Only the exchange decides which entry reports the
    /// change, so `Relaxed` suffices.
    waiting: AtomicBool,
    events: Events<Event>,
}

/// The parts of a journal.
struct Parts {
    queue: Arc<dyn Queue>,
    filter: Option<IdempotencyFilter>,
    /// Has an entropy.
    common: Common,
}

impl Parts {
    fn listener(&self, config: &JournalConfig) -> Result<QueueListener, ConfigError> {
        let mut builder = QueueListener::builder(self.queue.clone(), config.listener());
        builder.common = self.common.clone();
        if let Some(filter) = &self.filter {
            builder = builder.idempotency_filter(filter.clone());
        }
        builder.build()
    }
}

/// Arguments of a journal, beside name, clock and entropy.
pub struct JournalSpec {
    queue: Arc<dyn Queue>,
    config: JournalConfig,
    memory: Option<(Arc<dyn Store>, Duration)>,
}

impl Builder<Journal> {
    /// Records replayed keys in this store for `window`, and replays none of them again. For
    /// services that do not support idempotency keys. (If a process is killed between the call and
    /// the record, the call is repeated.) The store must have
    /// [`TimeToLive`](crate::port::Capability::TimeToLive), and the window must not be zero.
    ///
    /// The records belong to the journal's queue, by its [`identity`](Queue::identity). Journals of
    /// different queues may share a store, and journals of one queue share their records, whatever
    /// their names.
    pub fn remembering(mut self, store: Arc<dyn Store>, window: Duration) -> Self {
        self.spec.memory = Some((store, window));
        self
    }
}

impl Component for Journal {
    type Built = Result<Self, ConfigError>;
    type Spec = JournalSpec;

    fn assemble(spec: JournalSpec, common: Common) -> Self::Built {
        let JournalSpec { queue, config, memory } = spec;
        let filter = memory.map(|(store, window)| {
            let partition = format!("journal {}", queue.identity());
            IdempotencyFilter::new(store, partition, window).by(|delivery| {
                match delivery.headers.get(super::IDEMPOTENCY_KEY) {
                    Some(key) => key.clone(),
                    None => delivery.id.to_string(),
                }
            })
        });
        let common = Common { entropy: Some(common.entropy()), ..common };
        let parts = Parts { queue, filter, common };
        config.check()?;
        parts.listener(&config)?;
        let pace = RateLimiter::builder(config.quota()).clock(&parts.common.clock);
        let pace = pace.build().map_err(|e| ConfigError::new("per_second", e.rule().to_owned()))?;
        let (waiting, events) = (AtomicBool::new(false), parts.common.hooks.events());
        Ok(Self(Arc::new(Inner { pace, parts, config: Mutex::new(config), waiting, events })))
    }
}

impl HasName for Journal {}
impl HasEntropy for Journal {}
impl HasEvents<Event> for Journal {}

reconfigurable!(Journal, JournalConfig, |this, next| {
    next.check()?;
    this.0.parts.listener(next)?;
    this.0.pace.validate(&this.0.pace_of(next)).map_err(|e| ConfigError::new("per_second", e.rule().to_owned()))
});

impl Journal {
    /// Creates a journal in this queue. The queue belongs to the journal alone: other messages
    /// become dead letters.
    ///
    /// # Errors
    /// If a setting breaks its rule.
    pub fn new(queue: Arc<dyn Queue>, config: JournalConfig) -> Result<Self, ConfigError> {
        Self::builder(queue, config).build()
    }

    /// Creates a builder with the arguments of [`new`](Self::new).
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CJournal%3E): `remembering`.
    pub fn builder(queue: Arc<dyn Queue>, config: JournalConfig) -> Builder<Self> {
        Builder::new(JournalSpec { queue, config, memory: None })
    }

    /// Changes the settings at run time: the pace at once, the others from the next
    /// [`run`](Self::run) on.
    ///
    /// # Errors
    /// If a setting breaks a rule; then nothing has changed.
    pub fn reconfigure(&self, config: JournalConfig) -> Result<(), ConfigError> {
        self.validate(&config)?;
        *self.0.config.lock() = config;
        apply_newest(|| self.config(), |config| self.0.pace.apply(self.0.pace_of(config)))?;
        self.0.emit(|| Event::ConfigChanged);
        Ok(())
    }

    /// Returns the current settings.
    pub fn config(&self) -> JournalConfig {
        *self.0.config.lock()
    }

    /// Returns the name.
    pub fn name(&self) -> Option<&str> {
        self.0.parts.common.name.as_ref().map(Name::as_str)
    }

    /// Returns the queue of the journal. Its depth is the number of pending entries; its dead
    /// letters are the entries that failed.
    pub fn queue(&self) -> &Arc<dyn Queue> {
        &self.0.parts.queue
    }

    /// Subscribes to the events that follow.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }

    /// Defers a body under this idempotency key. Once this returned, the entry is as durable as the
    /// queue.
    ///
    /// # Errors
    /// See [`defer_entry`](Self::defer_entry).
    ///
    /// # Cancel safety
    /// See [`defer_entry`](Self::defer_entry).
    pub async fn defer(&self, key: impl Into<String>, body: impl Into<bytes::Bytes>) -> Result<(), QueueError> {
        self.defer_entry(Entry::new(key, body)).await
    }

    /// Defers an entry. A queue with [`Deduplication`](Capability::Deduplication) keeps one entry
    /// per key in its window, so an entry that may have been deferred can safely be deferred again.
    ///
    /// # Errors
    /// Those of the queue, and `TimedOut` if it takes too long. `Unsupported` if the entry has an
    /// order key and the queue has no [`Groups`](Capability::Groups); `Invalid` if the entry has no
    /// key.
    ///
    /// # Cancel safety
    /// Not cancel safe: the entry may have been deferred. Defer it again under the same key.
    pub async fn defer_entry(&self, entry: Entry) -> Result<(), QueueError> {
        if entry.key.is_empty() {
            return Err(PortError::invalid("key", "must not be empty").into());
        }
        let Parts { queue, common: Common { clock, .. }, .. } = &self.0.parts;
        let key = self.0.events.wanted().then(|| entry.key.clone());
        let message = entry.into_message(queue.capabilities().has(Capability::Deduplication));
        let sent = ask(clock, self.config().call_timeout(), queue.send_one(message)).await;
        let Err(failure) = sent.map_err(|error| error.or_timed_out("the journal's queue timed out")) else {
            self.0.emit(|| Event::Deferred { key: key.unwrap_or_default() });
            return Ok(());
        };
        let kind = failure.backend().map(PortError::kind);
        self.0.emit(|| Event::DeferFailed { key: key.unwrap_or_default(), kind });
        Err(failure)
    }

    /// Defers a call that a policy rejected, such as an open breaker or a shedder. Any other result
    /// is returned unchanged, and so is the rejection if the queue fails
    /// ([`DeferFailed`](Event::DeferFailed) reports it).
    ///
    /// A rejection says that the last attempt was not sent. An earlier attempt of the same call may
    /// have been, so send it under the same key.
    ///
    /// # Errors
    /// The error of the call.
    ///
    /// # Cancel safety
    /// See [`defer_entry`](Self::defer_entry).
    pub async fn or_defer<T, E>(
        &self,
        result: Result<T, CallError<E>>,
        entry: impl FnOnce() -> Entry,
    ) -> Result<Served<T>, CallError<E>> {
        match result {
            Ok(value) => Ok(Served::Now(value)),
            Err(error) if error.is_rejected() => match self.defer_entry(entry()).await {
                Ok(()) => Ok(Served::Later),
                Err(_) => Err(error),
            },
            Err(error) => Err(error),
        }
    }
}

impl Inner {
    /// Returns the settings of the pace after a change to `next`.
    fn pace_of(&self, next: &JournalConfig) -> RateLimitConfig {
        self.pace.config().with_quota(next.quota())
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.parts.common.clock
    }

    pub(super) fn listener(&self) -> Result<QueueListener, ConfigError> {
        let config = *self.config.lock();
        self.parts.listener(&config)
    }

    pub(super) fn emit(&self, event: impl FnOnce() -> Event) {
        self.events.send(self.parts.common.name.as_ref(), self.parts.common.clock.now(), event);
    }

    /// Reports once that entries wait, however many there are.
    pub(super) fn report_waiting(&self, wait: std::time::Duration) {
        if !self.waiting.swap(true, Relaxed) {
            self.emit(|| Event::Waiting { wait });
        }
    }

    pub(super) fn report_replaying(&self) {
        if self.waiting.load(Relaxed) && self.waiting.swap(false, Relaxed) {
            self.emit(|| Event::Replaying);
        }
    }
}

crate::build::debug_fields!(Journal, |this|
    name: this.0.parts.common.name, queue: this.0.parts.queue, config: this.config()
);
