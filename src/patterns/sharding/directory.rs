//! The versioned map in a store: every process keeps a copy, and changes are made by compare-and-set.
use std::{fmt, sync::Arc, time::Duration};

use super::{
    ShardDirectoryConfig, ShardMeter, ShardingEvent as Event,
    map::{ShardId, ShardMap},
    step::Part,
    wire,
};
use crate::{
    config::{ConfigError, Name, require},
    entropy::Entropy,
    notify::Notifier,
    observe::{Events, Subscription},
    port::{Capability, Failure, PortError, PortErrorKind},
    race::race,
    store::{Key, Store, StoreError, StoreExt, Version},
    sync::Mutex,
    time::Clock,
};

const PARTITION: &str = "shard-maps";

/// How long telling others may take. They look by themselves, too.
const TELLING: Duration = Duration::from_secs(1);

/// Why a directory, or a rebalancing by it, failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ShardingError {
    /// The store failed. Whether a change was made shows a [refresh](ShardDirectory::refresh). A
    /// map in a form of a newer release is [`TooNew`](PortErrorKind::TooNew).
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no map of this name, or it cannot be read.
    #[error("there is no shard map `{0}` that can be read")]
    NoMap(Name),
    /// The change is not one that the map takes; or the directory cannot be made so. Nothing was changed.
    #[error(transparent)]
    Change(#[from] ConfigError),
    /// The change takes keys from the shard that owns them. Nothing was changed. Plan a move: its
    /// steps are told to both shards, so that at most one of them acknowledges a write.
    #[error("the change takes {part} from {from}: plan a move (`ShardMap::plan_to`, then `ShardDirectory::rebalance`)")]
    NeedsMove {
        /// The keys.
        part: Part,
        /// The shard that owns them.
        from: ShardId,
        /// The shard that the change gives them to; `None` for a gap.
        to: Option<ShardId>,
    },
    /// The mover failed. The move goes on, or is given up, by the next run.
    #[error("the mover failed: {0}")]
    Mover(PortError),
    /// Owners changed while all shards were asked, each time, until the patience ended. Ask again.
    #[error("owners changed while all shards were asked")]
    Moving,
}

/// A shard map in a store, and this process's copy of it. A clone is the same directory.
#[derive(Clone)]
pub struct ShardDirectory(pub(super) Arc<Inner>);

pub(super) struct Inner {
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
    /// Held by the one who reads the map: the others wait, and take what it read.
    reading: tokio::sync::Mutex<()>,
}

/// What a directory is made of. From [`ShardDirectory::builder`].
#[derive(Debug)]
pub struct ShardDirectoryBuilder {
    store: Arc<dyn Store>,
    name: Name,
    config: ShardDirectoryConfig,
    clock: Clock,
    entropy: Entropy,
    notifier: Option<Arc<dyn Notifier>>,
    meter: Option<ShardMeter>,
}

impl ShardDirectoryBuilder {
    /// Sets the settings.
    #[must_use]
    pub const fn config(mut self, config: ShardDirectoryConfig) -> Self {
        self.config = config;
        self
    }

    /// Reads the time from this clock. tokio's by default.
    #[must_use]
    pub fn clock(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    /// Draws from this stream: pauses. Seeded by the system by default.
    #[must_use]
    pub fn entropy(mut self, entropy: &Entropy) -> Self {
        self.entropy = entropy.clone();
        self
    }

    /// Tells others of a change by notices, and hears of theirs: see [`run`](ShardDirectory::run).
    #[must_use]
    pub fn notifier(mut self, notifier: Arc<dyn Notifier>) -> Self {
        self.notifier = Some(notifier);
        self
    }

    /// Counts what is routed: which shards, which keys. Takes a lock for each call.
    #[must_use]
    pub fn meter(mut self, meter: &ShardMeter) -> Self {
        self.meter = Some(meter.clone());
        self
    }

    /// Opens the map of this name.
    ///
    /// # Errors
    /// Where a setting breaks its rule, the store is not linearizable, there is no such map, it is
    /// damaged, a newer release wrote it, or the store fails.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn open(self) -> Result<ShardDirectory, ShardingError> {
        self.check()?;
        let map = read(&*self.store, &self.name).await?.0;
        Ok(ShardDirectory(Arc::new(Inner {
            topic: format!("steadfast/shards/{}", self.name),
            store: self.store,
            name: self.name,
            config: self.config,
            clock: self.clock,
            entropy: self.entropy,
            notifier: self.notifier,
            meter: self.meter,
            events: Events::new(),
            held: Mutex::new(Arc::new(map)),
            reading: tokio::sync::Mutex::new(()),
        })))
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.config.check()?;
        require(!self.name.as_str().is_empty(), "name", "must not be empty")?;
        self.store.capabilities().require(Capability::Linearizable).map_err(|lacks| lacks.refuse("store"))
    }

    /// Writes the first map of this name, unless there is one already, which is left as it is; then opens it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    ///
    /// # Cancel safety
    /// The map is written whole or not at all; call it again.
    pub async fn create(self, first: &ShardMap) -> Result<ShardDirectory, ShardingError> {
        self.check()?;
        match self.store.insert(Key::new(PARTITION, self.name.as_str()), first.to_text()).await {
            Ok(_) | Err(StoreError::Conflict { .. }) => self.open().await,
            Err(error) => Err(error.into()),
        }
    }
}

impl ShardDirectory {
    /// A directory of this name, to be set up.
    pub fn builder(store: Arc<dyn Store>, name: impl Into<Name>) -> ShardDirectoryBuilder {
        ShardDirectoryBuilder {
            store,
            name: name.into(),
            config: ShardDirectoryConfig::default(),
            clock: Clock::default(),
            entropy: Entropy::default(),
            notifier: None,
            meter: None,
        }
    }

    /// What it is called.
    pub fn name(&self) -> &Name {
        &self.0.name
    }

    /// Events from now on.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }

    /// This process's copy.
    pub fn map(&self) -> Arc<ShardMap> {
        self.0.held.lock().clone()
    }

    /// Reads the map anew.
    ///
    /// # Errors
    /// [`ShardingError::NoMap`], [`ShardingError::Store`]. The copy from before stays.
    ///
    /// # Cancel safety
    /// Dropped, the copy stays as it was.
    pub async fn refresh(&self) -> Result<Arc<ShardMap>, ShardingError> {
        let _reading = self.0.reading.lock().await;
        self.0.refresh().await
    }

    /// Reads the map anew if the copy is of this version still. Of many who ask at once one reads.
    pub(super) async fn refresh_past(&self, version: u64) -> Result<Arc<ShardMap>, ShardingError> {
        let _reading = self.0.reading.lock().await;
        let held = self.map();
        if held.version() > version { Ok(held) } else { self.0.refresh().await }
    }

    /// Changes the map by compare-and-set, again on the newer map wherever another was faster; the version is raised by one.
    ///
    /// A change takes no key from the shard that owns it, whether the key has rows or not: shards
    /// hear of moves, and not of changes, so the old owner would go on to acknowledge writes. It
    /// may pin keys without an owner, give a gap an owner, split, merge, and
    /// [begin](ShardMap::begin) a move, which the next [`rebalance`](Self::rebalance) performs. For
    /// all else [plan](ShardMap::plan_to) a move.
    ///
    /// # Errors
    /// What `change` says; [`ShardingError::NeedsMove`]; [`ShardingError::Change`] where the
    /// strategy or the move under way would be another; what the store says, after which a
    /// [refresh](Self::refresh) shows whether the change was made.
    ///
    /// # Cancel safety
    /// The change is made whole or not at all: refresh to see.
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

impl Inner {
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

    /// Puts a map in the place of this version of it, and tells others; `None` where another was faster.
    pub(super) async fn put(&self, map: ShardMap, version: Version) -> Result<Option<Arc<ShardMap>>, ShardingError> {
        match self.store.replace(Key::new(PARTITION, self.name.as_str()), map.to_text(), version).await {
            Ok(_) => {}
            Err(StoreError::Conflict { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let map = self.keep(map);
        if let Some(notifier) = &self.notifier {
            let notice = map.version().to_string();
            // A notice that is lost is found by looking.
            race(notifier.publish(&self.topic, notice.into()), self.clock.sleep(TELLING)).await;
        }
        Ok(Some(map))
    }

    /// Keeps a map unless there is a newer one; gives the newest.
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
    if wire::is_newer(text) {
        let message = format!("the shard map `{name}` was written by a newer release");
        return Err(StoreError::from(PortError::new(PortErrorKind::TooNew, message)).into());
    }
    let map = ShardMap::from_text(text).ok_or_else(unreadable)?;
    Ok((map, record.version))
}
