//! The shards of the records: the map places each record, and each shard's own check decides.
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    CallError, Cause, ConfigError,
    circuit_breaker::{CircuitBreaker, CircuitBreakerEvent},
    entropy::Entropy,
    observe::{Missed, Subscription},
    port::{ErrorClass, Failure, PortError, PortErrorKind, PortFuture},
    sharding::{
        Access, FanOut, FanOutConfig, KeyBytes, Move, Refused, RouteError, Routed, ShardDirectory,
        ShardDirectoryConfig, ShardError, ShardGuard, ShardId, ShardMap,
    },
    store::{Continuation, Key, Precondition, Record, Row, Scan, Store, StoreError, StoreExt, Version, Write},
    time::Clock,
};

use crate::pipelines::{self, ShardPipeline};

/// Partition of the records in each shard.
pub const REQUESTS: &str = "requests";
/// The map's name.
const MAP: &str = "deliveries";
/// Number of virtual shards: far more than shards.
const SLOTS: u32 = 4_096;
/// Rows in one request to a shard.
const PAGE: usize = 1_000;

/// Error of a shard's own side.
pub type Answer<T> = Result<T, ShardError<StoreError>>;
/// Error of a call to a shard through its pipeline.
pub type Failed = CallError<ShardError<StoreError>>;
/// Error of a call by key.
pub type Unrouted = RouteError<Failed>;
/// Opens the store of a shard.
pub type OpenShard = dyn Fn(ShardId) -> PortFuture<'static, Arc<dyn Store>> + Send + Sync;

/// A shard's own side: its rows, and its check of each request.
pub struct Shard {
    pub guard: ShardGuard,
    pub store: Arc<dyn Store>,
}

impl Shard {
    async fn get(&self, to: Routed, row: &str) -> Answer<Option<Record>> {
        let _entered = self.guard.enter(row, Access::Read, to.version)?;
        self.store.get(Key::new(REQUESTS, row)).await.map_err(ShardError::Failed)
    }

    async fn replace(&self, to: Routed, row: &str, value: Bytes, version: Version) -> Answer<Version> {
        let _entered = self.guard.enter(row, Access::Write, to.version)?;
        self.store.replace(Key::new(REQUESTS, row), value, version).await.map_err(ShardError::Failed)
    }

    /// Enters rows that are new: all, or none.
    async fn insert(&self, to: Routed, rows: &[(String, Bytes)]) -> Answer<Vec<Option<Version>>> {
        let enter = |(row, _): &(String, Bytes)| self.guard.enter(row.as_str(), Access::Write, to.version);
        let _entered: Vec<_> = rows.iter().map(enter).collect::<Result<_, _>>()?;
        let put = |(row, value): &(String, Bytes)| Write::put(row, value.clone(), Precondition::Absent);
        self.store.batch(REQUESTS, rows.iter().map(put).collect()).await.map_err(ShardError::Failed)
    }

    /// Returns a page of rows, and the start of the next page.
    pub async fn page(&self, after: Option<Continuation>) -> Answer<(Vec<Row>, Option<Continuation>)> {
        let mut scan = Scan::partition(REQUESTS).limit(PAGE);
        scan.after = after;
        let page = self.store.scan(&scan).await.map_err(ShardError::Failed)?;
        Ok((page.rows, page.next))
    }
}

/// A shard as the router sees it: its own side, behind a pipeline of its own.
pub struct Home {
    pub shard: Shard,
    pub pipeline: ShardPipeline,
    breaker: CircuitBreaker,
    turns: Mutex<Subscription<CircuitBreakerEvent>>,
    calls: AtomicU64,
    stale: AtomicU64,
    moving: AtomicU64,
    openings: AtomicU64,
}

/// Figures of a shard.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// Calls by key.
    pub calls: u64,
    /// Calls refused because of an outdated map.
    pub stale: u64,
    /// Calls refused during a move of the record.
    pub moving: u64,
    /// Calls that the breaker rejected.
    pub rejected: u64,
    /// Number of the breaker's openings.
    pub openings: u64,
}

impl Home {
    fn traffic(&self) -> Traffic {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match turns.try_recv() {
                Ok(Some(event)) if matches!(event.what, CircuitBreakerEvent::Opened { .. }) => {
                    self.openings.fetch_add(1, Ordering::Relaxed);
                }
                Ok(Some(_)) | Err(Missed::Events(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
        Traffic {
            calls: get(&self.calls),
            stale: get(&self.stale),
            moving: get(&self.moving),
            rejected: self.breaker.snapshot().rejected,
            openings: get(&self.openings),
        }
    }

    /// Records the shard's own result of a call by key.
    fn noted<T>(&self, answer: Answer<T>) -> Answer<T> {
        if let Err(ShardError::Refused(refused)) = &answer {
            let count = if matches!(refused, Refused::Stale(_)) { &self.stale } else { &self.moving };
            count.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }
}

/// All shards, and the router's copy of the map.
pub struct Shards {
    pub directory: ShardDirectory,
    open: Box<OpenShard>,
    homes: Mutex<BTreeMap<ShardId, Arc<Home>>>,
    fan_out: FanOut,
    clock: Clock,
    entropy: Entropy,
    /// Identity of the job that owns the shards.
    job: String,
}

/// Returns the first map of a job with this many shards.
pub fn first_map(shards: u32) -> Result<ShardMap, ConfigError> {
    ShardMap::hashed(SLOTS, &(0..shards).map(ShardId).collect::<Vec<_>>())
}

/// Formats an error.
pub fn why(e: impl std::fmt::Display) -> String {
    e.to_string()
}

impl Shards {
    /// Opens the shards of this job, `first` at the start; an existing map determines their number. A single shard at
    /// the start is the job's own store.
    pub async fn open(
        store: &Arc<dyn Store>,
        first: u32,
        open: Box<OpenShard>,
        clock: &Clock,
        entropy: &Entropy,
    ) -> Result<Arc<Self>, String> {
        let map = first_map(first).map_err(why)?;
        let directory = Self::directory(store, clock, entropy).create(&map).await.map_err(why)?;
        let config = FanOutConfig::default().timeout(Duration::from_secs(120));
        let fan_out = FanOut::builder(config).clock(clock).build().map_err(why)?;
        let shards = Self {
            directory,
            open,
            homes: Mutex::default(),
            fan_out,
            clock: clock.clone(),
            entropy: entropy.clone(),
            job: job_of(&**store).await.map_err(why)?,
        };
        let map = shards.directory.map();
        let target = map.moving().map(|work| work.to);
        for shard in map.shards().into_iter().chain(target) {
            shards.add(shard).await?;
        }
        Ok(Arc::new(shards))
    }

    /// Returns a separate copy of the map over the job's store, for a mover.
    pub fn directory(
        store: &Arc<dyn Store>,
        clock: &Clock,
        entropy: &Entropy,
    ) -> steadfast::sharding::ShardDirectoryBuilder {
        ShardDirectory::builder(store.clone(), MAP, ShardDirectoryConfig::default()).clock(clock).entropy(entropy)
    }

    /// Opens a shard, unless it is open. It uses the newest map, and the file of another job is refused.
    pub async fn add(&self, id: ShardId) -> Result<Arc<Home>, String> {
        if let Some(home) = self.homes().get(&id) {
            return Ok(home.clone());
        }
        let store = (self.open)(id).await.map_err(|e| format!("{id}: {e}"))?;
        let wanted = format!("{id} of {}", self.job);
        let at = Key::new("job", "shard");
        let kept = store.update(at, |kept| kept.is_none().then(|| wanted.clone().into())).await;
        let kept = kept.map_err(|e| format!("{id}: {e}"))?.map(|record| record.value).unwrap_or_default();
        if kept != wanted.as_bytes() {
            return Err(format!("{id} belongs to another job, or is another shard"));
        }
        let guard = ShardGuard::open(id, &self.directory).await.map_err(why)?;
        let (pipeline, breaker) = pipelines::shard(id, &self.clock, &self.entropy).map_err(why)?;
        let turns = Mutex::new(breaker.events());
        let home = Home {
            shard: Shard { guard, store },
            pipeline,
            breaker,
            turns,
            calls: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            moving: AtomicU64::new(0),
            openings: AtomicU64::new(0),
        };
        // Another task may have opened it: a shard has one guard.
        Ok(self.homes().entry(id).or_insert_with(|| Arc::new(home)).clone())
    }

    fn homes(&self) -> std::sync::MutexGuard<'_, BTreeMap<ShardId, Arc<Home>>> {
        self.homes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the shard with this number; opens one that another process added.
    pub async fn home(&self, shard: ShardId) -> Result<Arc<Home>, PortError> {
        self.add(shard).await.map_err(|why| PortError::new(PortErrorKind::Unavailable, why))
    }

    /// Returns the record of this row.
    pub async fn get(&self, row: &str) -> Result<Option<Record>, Unrouted> {
        let call = |to: Routed| async move {
            let home = self.called(to).await?;
            let home = &*home;
            let get = || async move { home.noted(home.shard.get(to, row).await) };
            Ok(home.pipeline.call(get).await?)
        };
        self.directory.route(row, call).await
    }

    /// Replaces the record of this row, if it is of this version still.
    pub async fn replace(&self, row: &str, value: Bytes, version: Version) -> Result<Version, Unrouted> {
        let value = &value;
        let call = |to: Routed| async move {
            let home = self.called(to).await?;
            let home = &*home;
            let replace = || async move { home.noted(home.shard.replace(to, row, value.clone(), version).await) };
            Ok(home.pipeline.call(replace).await?)
        };
        self.directory.route(row, call).await
    }

    async fn called(&self, to: Routed) -> Result<Arc<Home>, ShardError<Failed>> {
        let home = self.home(to.shard).await.map_err(|_| Refused::Moving)?;
        home.calls.fetch_add(1, Ordering::Relaxed);
        Ok(home)
    }

    /// Enters new rows, each in its shard. No move is in progress then.
    pub async fn insert(&self, rows: Vec<(String, Bytes)>) -> Result<BTreeMap<String, Version>, String> {
        let map = self.directory.map();
        let mut of: BTreeMap<ShardId, Vec<(String, Bytes)>> = BTreeMap::new();
        for row in rows {
            let shard = map.shard_of(row.0.as_str()).ok_or("the map has a gap")?;
            of.entry(shard).or_default().push(row);
        }
        let all: Vec<ShardId> = of.keys().copied().collect();
        let (of, version) = (&of, map.version());
        let entered = self.fan_out.run(&all, |shard| async move {
            let (home, rows) = (self.home(shard).await.map_err(why)?, &of[&shard]);
            let home = &*home;
            let mut versions = Vec::new();
            for some in rows.chunks(home.shard.store.capabilities().max_batch().clamp(1, 500)) {
                let insert = || home.shard.insert(Routed::new(shard, version), some);
                versions.extend(home.pipeline.call(insert).await.map_err(why)?);
            }
            Ok::<_, String>(versions)
        });
        let mut found = BTreeMap::new();
        for (shard, versions) in entered.await.complete().map_err(why)? {
            for ((row, _), version) in of[&shard].iter().zip(versions) {
                found.insert(row.clone(), version.ok_or("a record that was put has no version")?);
            }
        }
        Ok(found)
    }

    /// Reads all rows of all shards by pages, and folds each shard's rows with `fold`, which learns whether the shard
    /// owns the row. Each record is seen once at its owner, also during moves. A failing shard is retried until
    /// `patience` is over.
    pub async fn read<A: Default>(
        &self,
        patience: Duration,
        fold: impl Fn(&mut A, Row, bool),
    ) -> Result<BTreeMap<ShardId, A>, String> {
        let until = self.clock.now() + patience;
        let config = FanOutConfig::default().timeout(patience + Duration::from_secs(60));
        let fan_out = FanOut::builder(config).clock(&self.clock).build().map_err(why)?;
        let fold = &fold;
        let read = |shard: ShardId, map: Arc<ShardMap>| async move {
            let home = self.home(shard).await.map_err(why)?;
            let (mut sum, mut after) = (A::default(), None);
            loop {
                let page = || home.shard.page(after.clone());
                let (rows, next) = match home.pipeline.call(page).await {
                    Ok(page) => page,
                    Err(_) if self.clock.now() < until => {
                        self.clock.sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                    Err(error) => return Err(error.to_string()),
                };
                for row in rows {
                    let is_home = map.shard_of(row.row.as_str()) == Some(shard);
                    if is_home || !on_the_move(&map, shard, &row.row) {
                        fold(&mut sum, row, is_home);
                    }
                }
                match next {
                    Some(next) => after = Some(next),
                    None => return Ok(sum),
                }
            }
        };
        let answers = self.directory.query_all(&fan_out, read).await.map_err(why)?;
        Ok(answers.complete().map_err(why)?.into_iter().collect())
    }

    /// Returns the figures of each shard.
    pub fn traffic(&self) -> BTreeMap<ShardId, Traffic> {
        self.homes().iter().map(|(shard, home)| (*shard, home.traffic())).collect()
    }
}

/// Returns `true` if the row may be at this shard although another owns it: copied already, or not yet deleted.
fn on_the_move(map: &ShardMap, shard: ShardId, row: &str) -> bool {
    let ends = |work: &&Move| [work.from, work.to].contains(&shard);
    map.moving().filter(ends).is_some_and(|work| map.chunk_contains(&work.chunk, KeyBytes::of(row).as_slice()))
}

/// Returns the identity of this job's shards, different from that of another job on the same input.
async fn job_of(store: &dyn Store) -> Result<String, StoreError> {
    let fresh = format!("{:016x}", Entropy::from_os().next_u64());
    let job = store.update(Key::new("job", "shards"), |kept| kept.is_none().then(|| fresh.clone().into())).await?;
    Ok(job.map(|record| String::from_utf8_lossy(&record.value).into_owned()).unwrap_or_default())
}

/// Returns the minimum wait if the shard was unavailable and may recover.
pub fn away(error: &Unrouted) -> Option<Duration> {
    match error {
        RouteError::Refused(_) => Some(Duration::ZERO),
        RouteError::Failed(error) => match error.cause() {
            Cause::Operation(failed) if failed.class() == ErrorClass::Permanent => None,
            _ => Some(error.retry_after().unwrap_or_default()),
        },
        _ => None,
    }
}

/// Returns `true` if the failed request may have been applied.
pub fn in_doubt(error: &Unrouted) -> bool {
    match error {
        RouteError::Failed(error) => match error.cause() {
            Cause::Operation(failed) => failed.may_have_been_applied(),
            Cause::Rejected(_) => false,
            // A time-out, and whatever else may end a call.
            _ => true,
        },
        _ => false,
    }
}

/// Returns `true` if the record changed since it was read.
pub fn conflicts(error: &Unrouted) -> bool {
    matches!(error, RouteError::Failed(error)
        if matches!(error.cause(), Cause::Operation(ShardError::Failed(StoreError::Conflict { .. }))))
}
