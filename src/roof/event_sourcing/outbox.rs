//! The outbox: messages of commits are sent to their queues.
use std::{pin::pin, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    event::OutboxEvent,
    handle::COMMAND_ID,
    send::{ATTEMPT, unanswered},
    store::{EventStore, EventStoreInner},
    stored::{self, StoredCommit},
};
use crate::{
    backoff::{Backoff, BackoffConfig},
    build::{Builder, Common, Component, HasEntropy, HasEvents, debug_fields},
    config::{ConfigError, human, require, require_some_time, setters},
    entropy::Entropy,
    observe::{Events, Subscription},
    port::{AskError, Capability, ErrorClass, Failure, PortError, PortErrorKind, ask},
    queue::{Message, Queue},
    race::{First, race},
    store::{Key, Precondition, PutOptions, StoreError, Version},
    stream::{Read, Topic},
    time::Clock,
    work::{PatientSend, SendEnd},
};

/// Settings of an [`Outbox`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct OutboxConfig {
    /// Maximum number of commits between two checkpoints. 100 by default.
    pub page: u32,
    /// Delays between two requests to a queue that fails. 100 ms to 10 s with full jitter by
    /// default.
    pub retry: BackoffConfig,
    /// Time for which an outbox stands by after another one has moved the checkpoint. 5 s by
    /// default.
    #[serde(with = "human")]
    pub standby: Duration,
    /// Time limit of one request to the queue. 5 s by default.
    #[serde(with = "human")]
    pub call_timeout: Duration,
}

impl Default for OutboxConfig {
    fn default() -> Self {
        let (base, cap) = (Duration::from_millis(100), Duration::from_secs(10));
        let (standby, call_timeout) = (Duration::from_secs(5), Duration::from_secs(5));
        Self { page: 100, retry: BackoffConfig::default().between(base, cap), standby, call_timeout }
    }
}

setters! {
    impl OutboxConfig {
        page: u32,
        retry: BackoffConfig,
        standby: Duration,
        call_timeout: Duration,
    }
}

impl OutboxConfig {
    fn check(&self) -> Result<(), ConfigError> {
        require((1..=100_000).contains(&self.page), "page", "must lie between 1 and 100000")?;
        self.retry.check().map_err(|e| e.within("retry"))?;
        require_some_time(self.standby, "standby")?;
        require_some_time(self.call_timeout, "call_timeout")
    }
}

/// Sends the messages of a log's commits to one queue. The [module's page](super) has details.
///
/// Each process may run one: the others stand by.
pub struct Outbox {
    log: EventStore,
    /// Name of the queue in the log.
    name: String,
    queue: Arc<dyn Queue>,
    config: OutboxConfig,
    clock: Clock,
    entropy: Entropy,
    events: Events<OutboxEvent>,
}

debug_fields!(Outbox, |this| log: this.log, name: this.name, queue: this.queue, config: this.config);

/// Arguments of an outbox, beside clock and entropy.
pub struct OutboxSpec {
    log: EventStore,
    name: String,
    queue: Arc<dyn Queue>,
    config: OutboxConfig,
}

impl Component for Outbox {
    type Built = Result<Self, ConfigError>;
    type Spec = OutboxSpec;

    fn assemble(spec: OutboxSpec, common: Common) -> Self::Built {
        let OutboxSpec { log, name, queue, config } = spec;
        config.check()?;
        if !log.inner.outboxes.contains_key(&name) {
            return Err(ConfigError::new("name", format!("must be a queue that the log was built with, is {name:?}")));
        }
        let (clock, entropy, events) = (common.clock.clone(), common.entropy(), common.hooks.events());
        Ok(Self { log, name, queue, config, clock, entropy, events })
    }
}

impl HasEntropy for Outbox {}
impl HasEvents<OutboxEvent> for Outbox {}

/// Longest wait for a commit in one read.
const WAIT: Duration = Duration::from_secs(60);

impl Outbox {
    /// Creates an outbox for a queue, under the name with which the log was
    /// [built](EventStore::builder) and commits [send](super::Commit::send).
    ///
    /// # Errors
    /// If a setting breaks a rule, or the log was built without the name.
    pub fn new(
        log: &EventStore,
        name: impl Into<String>,
        queue: Arc<dyn Queue>,
        config: OutboxConfig,
    ) -> Result<Self, ConfigError> {
        Self::builder(log, name, queue, config).build()
    }

    /// Creates a builder with the arguments of [`new`](Self::new).
    pub fn builder(
        log: &EventStore,
        name: impl Into<String>,
        queue: Arc<dyn Queue>,
        config: OutboxConfig,
    ) -> Builder<Self> {
        Builder::new(OutboxSpec { log: log.clone(), name: name.into(), queue, config })
    }

    /// Sends messages until `shutdown` is ready. Each is sent at least once, in the order of the
    /// log, and the checkpoint is moved behind it.
    ///
    /// A queue that fails holds up its own messages alone. Failures of queue and store are events,
    /// and the requests are repeated.
    ///
    /// # Errors
    /// A permanent failure of the store; `Corrupt` if commits were trimmed whose messages were not
    /// sent; the error of the queue if it refuses a message for good. The checkpoint stays before
    /// that message.
    ///
    /// # Cancel safety
    /// If the future is dropped, messages that were sent behind the last checkpoint are sent again.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) -> Result<(), PortError> {
        let mut shutdown = pin!(shutdown);
        let mut delays = self.delays();
        loop {
            let pause = match self.turn(shutdown.as_mut()).await {
                Ok(Next::Stop) => return Ok(()),
                Ok(Next::More) => {
                    delays = self.delays();
                    continue;
                }
                Ok(Next::Pause) => self.config.standby,
                Err(error) if error.class() == ErrorClass::Permanent => return Err(error),
                Err(error) => {
                    self.send_event(|| OutboxEvent::StoreFailed { kind: Some(error.kind()) });
                    delays.next().unwrap_or_default()
                }
            };
            if let First::One(()) = race(shutdown.as_mut(), self.clock.sleep(pause)).await {
                return Ok(());
            }
        }
    }

    fn delays(&self) -> Backoff {
        Backoff::checked(self.config.retry, &self.entropy)
    }

    fn send_event(&self, event: impl FnOnce() -> OutboxEvent) {
        self.events.send(Some(&self.log.inner.name), self.clock.now(), event);
    }

    /// Sends the messages of the next commits.
    async fn turn(&self, mut shutdown: std::pin::Pin<&mut impl Future<Output = ()>>) -> Result<Next, PortError> {
        let log = &*self.log.inner;
        let (sent, version) = log.checkpoint(&self.name).await?;
        let read = Read::from(sent + 1).max(self.config.page as usize).wait(WAIT);
        let found = match race(shutdown.as_mut(), self.log.topic().read(0, read)).await {
            First::One(()) => return Ok(Next::Stop),
            First::Other(found) => found?,
        };
        let Some(last) = found.last().map(|recorded| recorded.position.offset) else { return Ok(Next::More) };
        if found[0].position.offset != sent + 1 {
            let message = format!("events: commits from {} on were trimmed before their messages were sent", sent + 1);
            return Err(PortError::new(PortErrorKind::Corrupt, message));
        }
        let mut messages = Vec::new();
        for recorded in &found {
            let commit = StoredCommit::open(recorded)?;
            let of_it = commit.messages.into_iter().zip(1..).filter(|((queue, _), _)| *queue == self.name);
            messages.extend(of_it.map(|((_, message), nth)| self.with_ids(message, (commit.number, nth))));
        }
        for messages in messages.chunks(self.queue.capabilities().max_batch().clamp(1, MAX_BATCH)) {
            let mut sent = self.send(messages, shutdown.as_mut()).await;
            if matches!(sent, Err(SendEnd::Refused(_))) && messages.len() > 1 {
                // The queue may be too small for all of them, and one that it refuses holds up none before it.
                for message in messages {
                    sent = self.send(std::slice::from_ref(message), shutdown.as_mut()).await;
                    if sent.is_err() {
                        break;
                    }
                }
            }
            match sent {
                Ok(()) => {}
                Err(SendEnd::Stopped) => return Ok(Next::Stop),
                Err(SendEnd::Refused(error)) => {
                    let refused = format!("events: the queue refused a message: {error}");
                    let refused = PortError::new(PortErrorKind::Other, refused);
                    return Err(error.backend().cloned().unwrap_or(refused));
                }
            }
        }
        if log.put_checkpoint(&self.name, last, version).await? {
            return Ok(Next::More);
        }
        self.send_event(|| OutboxEvent::StandsBy);
        Ok(Next::Pause)
    }

    /// Sends messages in one request, which is repeated while the queue is full or fails.
    async fn send(
        &self,
        messages: &[Message],
        shutdown: std::pin::Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), SendEnd> {
        let (limit, delays) = (self.config.call_timeout, self.delays());
        let send = PatientSend { queue: &*self.queue, clock: &self.clock, limit, delays };
        let failed = |error: &AskError<_>| self.send_event(|| OutboxEvent::SendFailed { kind: error.kind() });
        send.send(|_, _| messages.to_vec(), failed, shutdown).await
    }

    /// Gives a message the id of its command, and its de-duplication id, if the queue knows such.
    fn with_ids(&self, message: Message, (number, nth): (u64, u64)) -> Message {
        let id = || format!("{}/{number}.{nth}", self.log.inner.identity);
        let message = with_command_id(message, id);
        if !self.queue.capabilities().has(Capability::Deduplication) {
            return message;
        }
        message.deduplicate(id())
    }

    /// Subscribes to the events that follow.
    pub fn events(&self) -> Subscription<OutboxEvent> {
        self.events.subscribe()
    }
}

/// Gives a message this id as the id of its command, if it has none.
pub(super) fn with_command_id(mut message: Message, id: impl FnOnce() -> String) -> Message {
    message.headers.entry(COMMAND_ID.to_owned()).or_insert_with(id);
    message
}

/// Most messages of a request.
const MAX_BATCH: usize = 100;

/// The step behind a turn.
enum Next {
    More,
    /// Another outbox has moved the checkpoint.
    Pause,
    Stop,
}

impl EventStoreInner {
    /// Returns the number of the last commit whose messages were sent, and the version of its row.
    async fn checkpoint(&self, queue: &str) -> Result<(u64, Option<Version>), PortError> {
        let row = stored::outbox_row(queue);
        match self.get(&row).await? {
            Some((value, version)) => Ok((stored::decode_checkpoint(&row, value)?, Some(version))),
            None => Ok((0, None)),
        }
    }

    /// Moves a checkpoint. Returns `false` if another outbox has moved it.
    async fn put_checkpoint(&self, queue: &str, number: u64, version: Option<Version>) -> Result<bool, PortError> {
        let row = stored::outbox_row(queue);
        let options = PutOptions::from(version.map_or(Precondition::Absent, Precondition::Version));
        let put = self.store.put(Key::new(&self.partition, &row), stored::encode_checkpoint(number), options);
        match ask(&self.clock, ATTEMPT, put).await {
            Ok(_) => Ok(true),
            Err(AskError::Failed(StoreError::Conflict { .. })) => Ok(false),
            // The next turn reads it.
            Err(error) => Err(unanswered(error)),
        }
    }
}
