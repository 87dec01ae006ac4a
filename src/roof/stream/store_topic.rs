//! A topic over a store: its component, and the trait's methods.
use std::{fmt, sync::Arc, time::Duration};

use tokio::sync::Notify;

use super::{
    Appended, Bounds, Event, Read, Recorded, Topic,
    notices::{Announcer, notices_of},
    reader::Window,
    stored::{self, Head, OVERHEAD},
    turns::{self, Turn},
};
use crate::{
    build::{Builder, Common, Component, HasEntropy},
    config::Name,
    entropy::Entropy,
    notify::Notifier,
    port::{BoxFuture, Capabilities, Capability, PortError, PortErrorKind, PortFuture, ask},
    spawn::Spawner,
    store::{Key, Precondition, PutOptions, Store, StoreError, Version},
    sync::Mutex,
    time::Clock,
};

/// A topic over a store. The [module's page](super) has the details.
///
/// Clones share their state.
#[derive(Clone)]
pub struct StoreTopic(pub(super) Arc<StoreTopicInner>);

pub(super) struct StoreTopicInner {
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
    pub(super) name: Name,
    pub(super) identity: String,
    pub(super) can: Capabilities,
    /// Time for which ids are remembered; `None` if the store cannot forget them.
    pub(super) window: Option<Duration>,
    pub(super) parts: Vec<Partition>,
    pub(super) announcer: Option<Announcer>,
    pub(super) spawner: Spawner,
}

/// One partition, as this handle knows it.
pub(super) struct Partition {
    /// Name of the store's partition.
    pub(super) name: String,
    /// The newest head that was seen. Another process may have replaced it.
    pub(super) head: Mutex<Option<(Head, Version)>>,
    /// Rows that were read.
    pub(super) window: Mutex<Window>,
    /// Wakes waiting readers.
    pub(super) changed: Notify,
    /// This handle as a writer that competes with others; `None` while an append has it. Another
    /// append meanwhile is a writer of its own.
    pub(super) turn: Mutex<Option<Turn>>,
}

/// Time limit of one request to the store.
pub(super) const ATTEMPT: Duration = Duration::from_secs(5);

/// Default time for which ids are remembered: that of the queues.
const WINDOW: Duration = Duration::from_secs(300);

/// Most events of a request.
const MAX_BATCH: usize = 500;

/// Arguments of a topic, beside clock and entropy.
pub struct StoreTopicSpec {
    store: Arc<dyn Store>,
    name: Name,
    partitions: u16,
    notifier: Option<Arc<dyn Notifier>>,
    spawner: Spawner,
    window: Duration,
}

impl Builder<StoreTopic> {
    /// Announces appends through this notifier, so that readers in other processes wait less. They
    /// also poll. Notices are at least 20 ms apart: that of an append within 20 ms of another one
    /// is published by a task.
    pub fn notifier(mut self, notifier: Arc<dyn Notifier>) -> Self {
        self.spec.notifier = Some(notifier);
        self
    }

    /// Sets the spawner of notices that are published later. By default each is a task of the tokio
    /// runtime in which the append is made; outside of one each append publishes its own.
    pub fn spawner(mut self, spawn: impl Fn(BoxFuture<'static, ()>) + Send + Sync + 'static) -> Self {
        self.spec.spawner = Spawner::own(spawn);
        self
    }

    /// Sets the time for which the id of an event is remembered. 5 minutes by default.
    pub fn window(mut self, window: Duration) -> Self {
        self.spec.window = window;
        self
    }
}

impl Component for StoreTopic {
    /// The topic is created, or found, when this future is polled.
    type Built = PortFuture<'static, Self>;
    type Spec = StoreTopicSpec;

    fn assemble(spec: StoreTopicSpec, common: Common) -> Self::Built {
        Box::pin(open(spec, common))
    }
}

impl HasEntropy for StoreTopic {}

impl StoreTopic {
    /// Opens a topic with so many partitions, 1 to 1,024, and creates it if it does not exist.
    ///
    /// # Errors
    /// `Invalid` if the topic exists with another number of partitions, or a name or a number
    /// breaks a rule. `Unsupported` if the store lacks [`AtomicBatch`](Capability::AtomicBatch) or
    /// [`Linearizable`](Capability::Linearizable). Another error if the store failed: open it
    /// again.
    ///
    /// # Cancel safety
    /// If the future is dropped, the topic was created or not. Open it again.
    pub async fn open(store: Arc<dyn Store>, name: impl Into<Name>, partitions: u16) -> Result<Self, PortError> {
        Self::builder(store, name, partitions).build().await
    }

    /// Creates a builder with the arguments of [`open`](Self::open). Its `build` returns the future
    /// that opens the topic.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CStoreTopic%3E): `notifier`,
    /// `spawner`, `window`.
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    /// use steadfast::{store::InMemoryStore, stream::{StoreTopic, Topic}, time::Clock};
    ///
    /// # let (clock, driver) = Clock::manual();
    /// # driver.block_on(async {
    /// let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
    /// let minute = Duration::from_secs(60);
    /// let topic = StoreTopic::builder(store, "deliveries", 32).clock(&clock).window(minute);
    /// assert_eq!(topic.build().await?.partitions(), 32);
    /// # Ok::<_, steadfast::port::PortError>(())
    /// # }).unwrap();
    /// ```
    pub fn builder(store: Arc<dyn Store>, name: impl Into<Name>, partitions: u16) -> Builder<Self> {
        let (name, spawner) = (name.into(), Spawner::default());
        Builder::new(StoreTopicSpec { store, name, partitions, notifier: None, spawner, window: WINDOW })
    }
}

async fn open(spec: StoreTopicSpec, common: Common) -> Result<StoreTopic, PortError> {
    let StoreTopicSpec { store, name, partitions, notifier, spawner, window } = spec;
    let of_store = store.capabilities();
    of_store.require(Capability::AtomicBatch)?;
    of_store.require(Capability::Linearizable)?;
    let remembers = of_store.has(Capability::TimeToLive) && !window.is_zero();
    let can = limits(&of_store, remembers.then_some(window))?;
    if !(1..=1024).contains(&partitions) {
        return Err(PortError::invalid("partitions", format_args!("must lie between 1 and 1024, is {partitions}")));
    }
    let row_of_topic = format!("stream/topic/{name}");
    if name.as_str().is_empty() {
        return Err(PortError::invalid("name", "must not be empty"));
    }
    of_store.check_key("name", &row_of_topic)?;
    let (clock, entropy) = (common.clock.clone(), common.entropy());
    let new = entropy.id();
    let (of_it, identity) = find_or_create(&*store, &clock, &row_of_topic, (partitions, new)).await?;
    if of_it != partitions {
        let rule =
            format_args!("must be {of_it}, the number with which the topic {name:?} was created, is {partitions}");
        return Err(PortError::invalid("partitions", rule));
    }
    let parts = (0..partitions).map(|number| Partition {
        name: format!("stream/{number:05}/{name}"),
        head: Mutex::default(),
        window: Mutex::default(),
        changed: Notify::new(),
        turn: Mutex::new(Some(Turn::new(entropy.next_u64()))),
    });
    let parts = parts.collect();
    let announcer = notifier.map(|notifier| Announcer::new(notifier, notices_of(&identity)));
    Ok(StoreTopic(Arc::new(StoreTopicInner {
        clock,
        entropy,
        identity,
        can,
        window: remembers.then_some(window),
        parts,
        announcer,
        spawner,
        name,
        store,
    })))
}

/// Returns the limits of a topic over a store with these.
fn limits(store: &Capabilities, window: Option<Duration>) -> Result<Capabilities, PortError> {
    // A request writes its head, the ids of its events, and their rows, which are fewer than events unless
    // these are large. It may also end a turn.
    let least = 3 + turns::WRITES;
    if store.max_batch() < least {
        return Err(PortError::invalid("store", format_args!("must accept batches of {least} writes")));
    }
    let batch = (store.max_batch() / 2).min(store.max_batch() - least + 1).min(MAX_BATCH);
    let can = store.largest_batch(batch).largest_key(store.max_key().saturating_sub("i/".len()));
    let can = can.largest_value(store.max_value().saturating_sub(2 * OVERHEAD));
    Ok(match window {
        Some(window) => can.with(Capability::Deduplication).deduplicating_for(window),
        None => can.without(Capability::Deduplication),
    })
}

/// Returns the number of partitions and the identity of a topic, which is created if there is none.
async fn find_or_create(
    store: &dyn Store,
    clock: &Clock,
    row: &str,
    new: (u16, String),
) -> Result<(u16, String), PortError> {
    let key = Key::new(row, "topic");
    let timed_out = "the store did not answer in time";
    let get = || async { ask(clock, ATTEMPT, store.get(key)).await.map_err(|e| failed(e.or_timed_out(timed_out))) };
    if let Some(record) = get().await? {
        return stored::decode_topic(row, record.value);
    }
    let value = stored::encode_topic(new.0, &new.1);
    match ask(clock, ATTEMPT, store.put(key, value, PutOptions::from(Precondition::Absent))).await {
        Ok(_) => Ok(new),
        Err(error) => match error.or_timed_out(timed_out) {
            // Another process has created it meanwhile.
            StoreError::Conflict { .. } => match get().await? {
                Some(record) => stored::decode_topic(row, record.value),
                None => Err(stored::damaged(row)),
            },
            other => Err(failed(other)),
        },
    }
}

/// Returns the failure of a request that has no precondition which could fail.
pub(super) fn failed(error: StoreError) -> PortError {
    match error {
        StoreError::Failed(error) => error,
        other => PortError::new(PortErrorKind::Corrupt, format!("stream: another program wrote to the topic: {other}")),
    }
}

impl StoreTopicInner {
    /// Returns the partition with this number.
    pub(super) fn part(&self, partition: u16) -> Result<&Partition, PortError> {
        self.parts.get(usize::from(partition)).ok_or_else(|| {
            let rule = format_args!("must be below {}, the number of partitions, is {partition}", self.parts.len());
            PortError::invalid("partition", rule)
        })
    }
}

impl Topic for StoreTopic {
    fn capabilities(&self) -> Capabilities {
        self.0.can
    }

    fn identity(&self) -> String {
        self.0.identity.clone()
    }

    fn name(&self) -> &str {
        self.0.name.as_str()
    }

    fn partitions(&self) -> u16 {
        self.0.parts.len() as u16
    }

    fn append(&self, partition: u16, events: Vec<Event>) -> PortFuture<'_, Vec<Appended>> {
        Box::pin(async move {
            let appended = self.0.append(partition, events).await?;
            self.0.announce(partition, &appended).await;
            Ok(appended)
        })
    }

    fn read(&self, partition: u16, read: Read) -> PortFuture<'_, Vec<Recorded>> {
        Box::pin(self.0.read(partition, read))
    }

    fn bounds(&self, partition: u16) -> PortFuture<'_, Bounds> {
        Box::pin(self.0.bounds(partition))
    }

    fn trim(&self, partition: u16, before: u64) -> PortFuture<'_, u64> {
        Box::pin(self.0.trim(partition, before))
    }
}

impl fmt::Debug for StoreTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("StoreTopic");
        out.field("name", &self.0.name).field("partitions", &self.0.parts.len()).field("store", &self.0.store).finish()
    }
}
