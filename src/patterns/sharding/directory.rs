//! The versioned map in a store. Each process keeps a copy, and changes it by compare-and-set.
use std::{fmt, sync::Arc, time::Duration};

use super::{
    ShardDirectoryConfig, ShardMeter, ShardingEvent as Event,
    map::{ShardId, ShardMap},
    move_steps::Chunk,
    stored,
};
use crate::{
    config::{ConfigError, Name, require},
    entropy::Entropy,
    notify::Notifier,
    observe::{self, Events, Hooks, Subscription},
    port::{Capability, Failure, PortError, PortErrorKind, ask},
    store::{Key, Store, StoreError, StoreExt, Version},
    sync::Mutex,
    time::Clock,
};

const PARTITION: &str = "shard-maps";

/// Time limit for publishing a change. Other processes also poll.
const TELLING: Duration = Duration::from_secs(1);

/// Error of a directory, or of a rebalancing.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ShardingError {
    /// The store failed. A [refresh](ShardDirectory::refresh) shows whether a change was made. A
    /// map in the format of a newer release is [`TooNew`](PortErrorKind::TooNew).
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no map with this name, or it cannot be read.
    #[error("the shard map `{0}` is missing or unreadable")]
    NoMap(Name),
    /// The map or the directory does not allow this. Nothing was changed.
    #[error(transparent)]
    Change(#[from] ConfigError),
    /// The change takes keys from the shard that owns them. Nothing was changed. Plan a move: its
    /// steps are installed at both shards, so that at most one of them accepts a write.
    #[error(
        "the change takes {chunk} from {from}: plan a move (`ShardMap::plan_to`, then `ShardDirectory::rebalance`)"
    )]
    NeedsMove {
        /// The affected keys.
        chunk: Chunk,
        /// The shard that owns the keys.
        from: ShardId,
        /// The owner after the change; `None` for a gap.
        to: Option<ShardId>,
    },
    /// The mover failed. The next run continues or rolls back the move.
    #[error("the mover failed: {0}")]
    Mover(PortError),
    /// Owners changed during each attempt to query all shards, until the retry time-out. Try again.
    #[error("owners changed during each attempt to query all shards")]
    Moving,
}

/// A shard map in a store, with a copy in this process. A clone is the same directory.
#[derive(Clone)]
pub struct ShardDirectory(pub(super) Arc<DirectoryCore>);

pub(super) struct DirectoryCore {
    pub(super) store: Arc<dyn Store>,
    pub(super) name: Name,
    pub(super) topic: String,
    pub(super) config: ShardDirectoryConfig,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
    pub(super) notifier: Option<Arc<dyn Notifier>>,
    pub(super) meter: Option<ShardMeter>,
    pub(super) events: Events<Event>,
    held: Mutex<Arc<ShardMap>>,
    /// Held while the map is read. Other tasks wait for it, and use the map that was read.
    reading: tokio::sync::Mutex<()>,
}

/// The chunks of a directory, from [`ShardDirectory::builder`].
#[derive(Debug)]
pub struct ShardDirectoryBuilder {
    store: Arc<dyn Store>,
    name: Name,
    config: ShardDirectoryConfig,
    clock: Clock,
    entropy: Entropy,
    notifier: Option<Arc<dyn Notifier>>,
    meter: Option<ShardMeter>,
    hooks: Hooks,
}

impl ShardDirectoryBuilder {
    /// Sets the clock. tokio's by default.
    #[must_use]
    pub fn clock(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    /// Sets the source of randomness for delays. Seeded by the system by default.
    #[must_use]
    pub fn entropy(mut self, entropy: &Entropy) -> Self {
        self.entropy = entropy.clone();
        self
    }

    /// Sets the notifier that publishes changes to other processes, and receives theirs: see
    /// [`run`](ShardDirectory::run).
    #[must_use]
    pub fn notifier(mut self, notifier: Arc<dyn Notifier>) -> Self {
        self.notifier = Some(notifier);
        self
    }

    /// Calls `hook` with each event, where it is sent, as
    /// [`Builder::on_event`](crate::Builder::on_event).
    #[must_use]
    pub fn on_event(mut self, hook: impl Fn(&observe::Event<Event>) + Send + Sync + 'static) -> Self {
        self.hooks.add(hook);
        self
    }

    /// Sets the meter that counts routed calls by shard and key. It takes a lock for each call.
    #[must_use]
    pub fn meter(mut self, meter: &ShardMeter) -> Self {
        self.meter = Some(meter.clone());
        self
    }

    /// Opens the map with this name.
    ///
    /// # Errors
    /// A setting violates its rule, the store is not linearizable or fails, or the map is missing,
    /// damaged or of a newer release.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn open(self) -> Result<ShardDirectory, ShardingError> {
        self.check()?;
        let map = read(&*self.store, &self.name).await?.0;
        Ok(ShardDirectory(Arc::new(DirectoryCore {
            topic: format!("steadfast/shards/{}", self.name),
            store: self.store,
            name: self.name,
            config: self.config,
            clock: self.clock,
            entropy: self.entropy,
            notifier: self.notifier,
            meter: self.meter,
            events: self.hooks.events(),
            held: Mutex::new(Arc::new(map)),
            reading: tokio::sync::Mutex::new(()),
        })))
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.config.check()?;
        require(!self.name.as_str().is_empty(), "name", "must not be empty")?;
        self.store.capabilities().require(Capability::Linearizable).map_err(|lacks| lacks.refuse("store"))
    }

    /// Writes the first map with this name, unless one exists, which stays unchanged. Then opens
    /// it.
    ///
    /// # Errors
    /// Same as [`open`](Self::open).
    ///
    /// # Cancel safety
    /// The map is written as a whole or not at all; call this again.
    pub async fn create(self, first: &ShardMap) -> Result<ShardDirectory, ShardingError> {
        self.check()?;
        match self.store.insert(Key::new(PARTITION, self.name.as_str()), first.to_text()).await {
            Ok(_) | Err(StoreError::Conflict { .. }) => self.open().await,
            Err(error) => Err(error.into()),
        }
    }
}

impl ShardDirectory {
    /// Creates a builder of the directory with this name.
    pub fn builder(
        store: Arc<dyn Store>,
        name: impl Into<Name>,
        config: ShardDirectoryConfig,
    ) -> ShardDirectoryBuilder {
        ShardDirectoryBuilder {
            store,
            name: name.into(),
            config,
            clock: Clock::default(),
            entropy: Entropy::default(),
            notifier: None,
            meter: None,
            hooks: Hooks::default(),
        }
    }

    /// Returns the name.
    pub fn name(&self) -> &Name {
        &self.0.name
    }

    /// Subscribes to the events from now on.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }

    /// Returns this process's copy of the map.
    pub fn map(&self) -> Arc<ShardMap> {
        self.0.held.lock().clone()
    }

    /// Reads the map from the store.
    ///
    /// # Errors
    /// [`ShardingError::NoMap`], [`ShardingError::Store`]. The copy stays unchanged.
    ///
    /// # Cancel safety
    /// Dropping the future keeps the copy unchanged.
    pub async fn refresh(&self) -> Result<Arc<ShardMap>, ShardingError> {
        let _reading = self.0.reading.lock().await;
        self.0.refresh().await
    }

    /// Reads the map if the copy still has this version. Of concurrent callers one reads.
    pub(super) async fn refresh_past(&self, version: u64) -> Result<Arc<ShardMap>, ShardingError> {
        let _reading = self.0.reading.lock().await;
        let held = self.map();
        if held.version() > version { Ok(held) } else { self.0.refresh().await }
    }

    /// Changes the map by compare-and-set, and retries on the newer map if another process was
    /// faster. The version is raised by one.
    ///
    /// A change takes no key from the shard that owns it, whether the key has rows or not. Shards
    /// learn of moves but not of changes, so the old owner would continue to accept writes. A
    /// change may pin keys without an owner, give a gap an owner, split, merge, and
    /// [begin](ShardMap::begin) a move, which the next [`rebalance`](Self::rebalance) carries out.
    /// For everything else [plan](ShardMap::plan_to) a move.
    ///
    /// # Errors
    /// The error of `change`, [`ShardingError::NeedsMove`], or an error of the store, after which a
    /// [refresh](Self::refresh) shows whether the change was made. [`ShardingError::Change`] if the
    /// strategy or the current move would change.
    ///
    /// # Cancel safety
    /// The change is made as a whole or not at all: refresh to see.
    pub async fn change(
        &self,
        mut change: impl FnMut(&mut ShardMap) -> Result<(), ConfigError> + Send,
    ) -> Result<Arc<ShardMap>, ShardingError> {
        loop {
            let (before, version) = self.0.read().await?;
            let mut map = before.clone();
            change(&mut map)?;
            before.check_change(&map)?;
            map.version = before.version() + 1;
            if let Some(map) = self.0.put(map, version).await? {
                return Ok(map);
            }
        }
    }
}

impl DirectoryCore {
    pub(super) async fn read(&self) -> Result<(ShardMap, Version), ShardingError> {
        read(&*self.store, &self.name).await
    }

    async fn refresh(&self) -> Result<Arc<ShardMap>, ShardingError> {
        match self.read().await {
            Ok((map, _)) => Ok(self.keep(map)),
            Err(error) => {
                let kind = match &error {
                    ShardingError::Store(error) => error.backend().map(PortError::kind),
                    _ => None,
                };
                self.event(|| Event::RefreshFailed { kind });
                Err(error)
            }
        }
    }

    /// Replaces this version of the map, and publishes the change. Returns `None` if another
    /// process was faster.
    pub(super) async fn put(&self, map: ShardMap, version: Version) -> Result<Option<Arc<ShardMap>>, ShardingError> {
        // No process would read it.
        require(map.version() <= ShardMap::MAX_VERSION, "version", "is the last one: write the map anew")?;
        match self.store.replace(Key::new(PARTITION, self.name.as_str()), map.to_text(), version).await {
            Ok(_) => {}
            Err(StoreError::Conflict { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let map = self.keep(map);
        if let Some(notifier) = &self.notifier {
            let notice = map.version().to_string();
            // A lost notice is compensated by polling.
            let _ = ask(&self.clock, TELLING, notifier.publish(&self.topic, notice.into())).await;
        }
        Ok(Some(map))
    }

    /// Stores a map unless the copy is newer; returns the newest.
    pub(super) fn keep(&self, map: ShardMap) -> Arc<ShardMap> {
        let (kept, from) = {
            let mut held = self.held.lock();
            let from = held.version();
            if map.version() > from {
                *held = Arc::new(map);
            }
            (held.clone(), from)
        };
        if kept.version() != from {
            let to = kept.version();
            self.event(|| Event::MapChanged { from, to });
        }
        kept
    }

    pub(super) fn event(&self, event: impl FnOnce() -> Event) {
        self.events.send(Some(&self.name), self.clock.now(), event);
    }
}

impl fmt::Debug for ShardDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ShardDirectory");
        shown.field("name", &self.0.name).field("version", &self.map().version()).finish_non_exhaustive()
    }
}

async fn read(store: &dyn Store, name: &Name) -> Result<(ShardMap, Version), ShardingError> {
    let unreadable = || ShardingError::NoMap(name.clone());
    let record = store.get(Key::new(PARTITION, name.as_str())).await?.ok_or_else(unreadable)?;
    let text = std::str::from_utf8(&record.value).map_err(|_| unreadable())?;
    if stored::is_newer(text) {
        let message = format!("the shard map `{name}` was written by a newer release");
        return Err(StoreError::from(PortError::new(PortErrorKind::TooNew, message)).into());
    }
    let map = ShardMap::from_text(text).ok_or_else(unreadable)?;
    Ok((map, record.version))
}
