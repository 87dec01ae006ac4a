//! Control of a queue's listeners from anywhere: pause, resume, and cancellation of messages.
pub(super) mod state;
pub(super) mod watch;

use std::{collections::HashSet, fmt, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    build::{Builder, Common, Component},
    config::{ConfigError, Name, require, require_some_time},
    notify::Notifier,
    port::{Capability, ask},
    queue::{MessageId, Queue},
    store::{DeleteOptions, Key, PutOptions, Scan, Store, StoreError, StoreExt},
    time::Clock,
};

/// Pauses queues and cancels messages for the listeners of all processes, through records in a
/// [`Store`] that they share. An operator's tool needs no listener for it.
///
/// A listener obeys the control that its builder was given
/// ([`control`](super::QueueListener::builder)). It reads the records when a notice arrives, and
/// otherwise together with what it does anyway: before a poll and when it renews the lease of a
/// running handler, at most once per [`poll`](QueueControl::builder). While a queue is paused, it
/// reads them once per `poll`. A lost notice therefore delays an effect, and never prevents it.
///
/// Clones share their state.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use steadfast::{
///     notify::InMemoryNotifier,
///     queue::{InMemoryQueue, Message, Queue, QueueExt},
///     queue_listener::{QueueControl, QueueListener, QueueListenerConfig, Work},
///     store::InMemoryStore,
///     time::Clock,
/// };
///
/// # let (clock, driver) = Clock::manual();
/// # driver.block_on(async {
/// let queue = Arc::new(InMemoryQueue::builder("exports").clock(&clock).build());
/// // In production: a store and a notifier that the processes share.
/// let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
/// let notifier = Arc::new(InMemoryNotifier::new());
/// let control = QueueControl::builder(store).notifier(notifier, "control").clock(&clock).build()?;
/// let config = QueueListenerConfig::default();
/// let listener =
///     QueueListener::builder(queue.clone(), config).control(&control).clock(&clock).build()?;
///
/// let id = queue.send_one(Message::new("export of a year")).await?;
/// let handler = async |work: Work| {
///     work.cancelled().await; // or the end of the work
///     Err("the export was stopped half way")
/// };
/// let operator = async {
///     clock.sleep(Duration::from_secs(60)).await;
///     control.cancel(&queue, &id).await?;
///     control.pause(&queue).await?;
///     clock.sleep(Duration::from_secs(1)).await;
///     assert_eq!((listener.state().cancelled, listener.state().paused), (1, true));
///     Ok::<_, steadfast::store::StoreError>(())
/// };
/// let shutdown = clock.sleep(Duration::from_secs(120));
/// let (stopped, operated) = tokio::join!(listener.run(shutdown, handler), operator);
/// (stopped?, operated?);
/// let letters = queue.dead_letters().unwrap().peek(1).await?;
/// assert!(letters[0].reason.as_ref().unwrap().starts_with("cancelled"));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct QueueControl(Arc<Parts>);

struct Parts {
    store: Arc<dyn Store>,
    notices: Option<(Arc<dyn Notifier>, Name)>,
    poll: Duration,
    keep: Duration,
    clock: Clock,
}

/// Arguments of a queue control, beside the clock.
pub struct QueueControlSpec {
    store: Arc<dyn Store>,
    notices: Option<(Arc<dyn Notifier>, Name)>,
    poll: Duration,
    keep: Duration,
}

/// Default interval between two reads.
const POLL: Duration = Duration::from_secs(10);

/// Default time for which a cancellation is kept: twice the longest snooze.
const KEEP: Duration = Duration::from_secs(14 * 24 * 3600);

/// Time limit of one notice.
const PATIENCE: Duration = Duration::from_secs(1);

/// Row of the record that pauses a queue.
const PAUSED: &str = "paused";

/// Prefix of the rows that cancel messages.
const CANCELLED: &str = "cancelled/";

/// Maximum number of rows of one page.
const PAGE: usize = 1000;

/// Records of one queue.
#[derive(Debug, Default)]
pub(super) struct Records {
    pub(super) is_paused: bool,
    /// Texts of the ids of cancelled messages.
    pub(super) cancelled: HashSet<String>,
}

impl Builder<QueueControl> {
    /// Publishes a notice of this topic after each change, and lets listeners subscribe to it.
    /// Without one they see it at their next poll or renewal of a lease, and read at most once
    /// per [`poll`](Self::poll).
    pub fn notifier(mut self, notifier: Arc<dyn Notifier>, topic: impl Into<Name>) -> Self {
        self.spec.notices = Some((notifier, topic.into()));
        self
    }

    /// Sets the interval between two reads of a listener without a notice. 10 s by default.
    pub fn poll(mut self, poll: Duration) -> Self {
        self.spec.poll = poll;
        self
    }

    /// Sets the time for which a cancellation is kept. A message that is delivered later is not
    /// cancelled. 14 days by default.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.spec.keep = keep;
        self
    }
}

impl Component for QueueControl {
    type Built = Result<Self, ConfigError>;
    type Spec = QueueControlSpec;

    fn assemble(spec: QueueControlSpec, Common { clock, .. }: Common) -> Self::Built {
        let QueueControlSpec { store, notices, poll, keep } = spec;
        store.capabilities().require(Capability::TimeToLive).map_err(|lacks| lacks.refuse("store"))?;
        require(poll >= Duration::from_millis(10), "poll", "must be at least 10ms")?;
        require_some_time(keep, "keep")?;
        Ok(Self(Arc::new(Parts { store, notices, poll, keep, clock })))
    }
}

impl QueueControl {
    /// Creates a control without notices, whose records are in this store.
    ///
    /// # Errors
    /// If the store lacks [`TimeToLive`](Capability::TimeToLive).
    pub fn new(store: Arc<dyn Store>) -> Result<Self, ConfigError> {
        Self::builder(store).build()
    }

    /// Creates a builder of a control whose records are in this store.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CQueueControl%3E): `notifier`,
    /// `poll`, `keep`.
    pub fn builder(store: Arc<dyn Store>) -> Builder<Self> {
        Builder::new(QueueControlSpec { store, notices: None, poll: POLL, keep: KEEP })
    }

    /// Pauses the queue until [`resume`](Self::resume), also across restarts. Its listeners begin
    /// no poll, and release messages that no handler has begun. Running handlers continue.
    ///
    /// The queue is known by its [`identity`](Queue::identity). Messages can still be sent.
    ///
    /// # Errors
    /// Any error of the store.
    ///
    /// # Cancel safety
    /// The queue is paused or not, and the caller cannot tell which. A repeated call does no harm.
    pub async fn pause(&self, queue: &dyn Queue) -> Result<(), StoreError> {
        self.put(queue, PAUSED, PutOptions::new()).await
    }

    /// Resumes a paused queue.
    ///
    /// # Errors
    /// Any error of the store.
    ///
    /// # Cancel safety
    /// The queue is resumed or not, and the caller cannot tell which. A repeated call does no harm.
    pub async fn resume(&self, queue: &dyn Queue) -> Result<(), StoreError> {
        self.0.store.delete(Key::new(&partition(queue), PAUSED), DeleteOptions::new()).await?;
        self.announce().await;
        Ok(())
    }

    /// Returns `true` if the queue is paused.
    ///
    /// # Errors
    /// Any error of the store.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn is_paused(&self, queue: &dyn Queue) -> Result<bool, StoreError> {
        Ok(self.0.store.get(Key::new(&partition(queue), PAUSED)).await?.is_some())
    }

    /// Cancels a message of the queue, by the id that `send` returned for it. A tool that has the
    /// id's text, say from a log, passes [`MessageId::new(text)`](MessageId::new).
    ///
    /// - **A message that no handler has begun** becomes a dead letter when it is its turn, with a
    ///   reason that begins with "cancelled", and no handler sees it. Until then it stays in the
    ///   queue, and those of its group behind it.
    /// - **A message that a handler works on**: its handler is asked to stop
    ///   ([`Work::cancelled`](super::Work::cancelled)), in whichever process it runs. It is not
    ///   dropped. If it completes nevertheless, the message is handled. With any other result the
    ///   message becomes a dead letter, and is not tried again. A handler of a whole batch is not
    ///   asked to stop; its results apply in the same way.
    /// - **A message that is settled** stays so.
    ///
    /// In a queue without dead letters a cancelled message is removed.
    ///
    /// # Errors
    /// Any error of the store. A message that does not exist is none.
    ///
    /// # Cancel safety
    /// The message is cancelled or not, and the caller cannot tell which. A repeated call does no
    /// harm.
    pub async fn cancel(&self, queue: &dyn Queue, id: &MessageId) -> Result<(), StoreError> {
        self.put(queue, &cancelled_row(id), PutOptions::new().ttl(self.0.keep)).await
    }

    /// Returns the ids, as text, of the cancelled messages that have not ended yet.
    ///
    /// # Errors
    /// Any error of the store.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn list_cancellations(&self, queue: &dyn Queue) -> Result<Vec<String>, StoreError> {
        let mut ids: Vec<_> = self.read(&partition(queue)).await?.cancelled.into_iter().collect();
        ids.sort_unstable();
        Ok(ids)
    }

    async fn put(&self, queue: &dyn Queue, row: &str, options: PutOptions) -> Result<(), StoreError> {
        // The time is for people who look into the store.
        let value = Bytes::from(self.0.clock.wall().to_string());
        self.0.store.put(Key::new(&partition(queue), row), value, options).await?;
        self.announce().await;
        Ok(())
    }

    /// Publishes a notice. If that fails, listeners see the change within `poll`.
    async fn announce(&self) {
        let Some((notifier, topic)) = &self.0.notices else { return };
        let _ = ask(&self.0.clock, PATIENCE, notifier.publish(topic.as_str(), Bytes::new())).await;
    }

    /// Reads the records of one queue, in one request for each thousand.
    pub(super) async fn read(&self, partition: &str) -> Result<Records, StoreError> {
        let mut records = Records::default();
        for row in self.0.store.scan_all(Scan::partition(partition).limit(PAGE)).await? {
            match row.row.strip_prefix(CANCELLED) {
                Some(id) => drop(records.cancelled.insert(id.to_owned())),
                None => records.is_paused |= row.row == PAUSED,
            }
        }
        Ok(records)
    }

    /// Deletes the cancellation of a message that ended.
    pub(super) async fn forget(&self, partition: &str, id: &MessageId) -> Result<bool, StoreError> {
        self.0.store.delete(Key::new(partition, &cancelled_row(id)), DeleteOptions::new()).await
    }

    pub(super) fn notices(&self) -> Option<&(Arc<dyn Notifier>, Name)> {
        self.0.notices.as_ref()
    }

    pub(super) fn interval(&self) -> Duration {
        self.0.poll
    }
}

/// Returns the partition of a queue's records.
pub(super) fn partition(queue: &dyn Queue) -> String {
    format!("queue_control/{}", queue.identity())
}

fn cancelled_row(id: &MessageId) -> String {
    format!("{CANCELLED}{id}")
}

impl fmt::Debug for QueueControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { store, poll, keep, .. } = &*self.0;
        f.debug_struct("QueueControl")
            .field("store", store)
            .field("poll", poll)
            .field("keep", keep)
            .finish_non_exhaustive()
    }
}
