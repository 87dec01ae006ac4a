//! Moves records between shards, and adds a shard during the job.
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    Cause,
    port::{ErrorClass, Failure, PortError, PortErrorKind, PortFuture},
    sharding::{KeyBytes, Move, Mover, ShardDirectory, ShardError, ShardId, ShardMap, ShardingError},
    store::{DeleteOptions, PutOptions, Store, StoreError, Write},
    time::{Clock, Instant},
};

use crate::shards::{Failed, Home, REQUESTS, Shards};

/// Moves the rows of a part between shards. Each operation passes the shards' own checks.
pub struct Carrier {
    shards: Arc<Shards>,
    /// Rows that changed between their copy and the freeze, and were copied again.
    pub caught_up: AtomicU64,
}

type Rows = BTreeMap<String, Bytes>;

impl Carrier {
    pub fn new(shards: &Arc<Shards>) -> Self {
        Self { shards: shards.clone(), caught_up: AtomicU64::new(0) }
    }

    /// All rows of the part that lie at this shard.
    async fn rows(&self, home: &Home, work: &Move, map: &ShardMap) -> Result<Rows, PortError> {
        let (mut rows, mut after) = (Rows::new(), None);
        loop {
            let page = || async {
                let _entered = home.shard.guard.enter_move(work)?;
                home.shard.page(after.clone()).await
            };
            let (page, next) = home.pipeline.call(page).await.map_err(failed)?;
            let has = |row: &str| map.chunk_contains(&work.chunk, KeyBytes::of(row).as_slice());
            rows.extend(page.into_iter().filter(|row| has(&row.row)).map(|row| (row.row, row.value)));
            match next {
                Some(next) => after = Some(next),
                None => return Ok(rows),
            }
        }
    }

    async fn write(&self, home: &Home, work: &Move, writes: &[Write]) -> Result<(), PortError> {
        for some in writes.chunks(home.shard.store.capabilities().max_batch().clamp(1, 500)) {
            let write = || async {
                let _entered = home.shard.guard.enter_move(work)?;
                home.shard.store.batch(REQUESTS, some.to_vec()).await.map_err(ShardError::Failed)
            };
            let answer: Result<_, Failed> = home.pipeline.call(write).await;
            answer.map_err(failed)?;
        }
        Ok(())
    }

    /// Copies the part's rows from the source to the target; returns the number of rows that differed.
    async fn level(&self, work: &Move, map: &ShardMap) -> Result<u64, PortError> {
        let (from, to) = (self.shards.home(work.from).await?, self.shards.home(work.to).await?);
        let wanted = self.rows(&from, work, map).await?;
        let there = self.rows(&to, work, map).await?;
        let put = |(row, value): (&String, &Bytes)| Write::put(row, value.clone(), PutOptions::new());
        let mut writes: Vec<Write> = wanted.iter().filter(|(row, v)| there.get(*row) != Some(v)).map(put).collect();
        let gone = there.keys().filter(|row| !wanted.contains_key(*row));
        writes.extend(gone.map(|row| Write::delete(row, DeleteOptions::new())));
        self.write(&to, work, &writes).await?;
        Ok(writes.len() as u64)
    }
}

impl Mover for Carrier {
    fn install<'a>(&'a self, shard: ShardId, map: &'a Arc<ShardMap>) -> PortFuture<'a, ()> {
        Box::pin(async move {
            self.shards.home(shard).await?.shard.guard.install(map.clone()).await;
            Ok(())
        })
    }

    fn copy<'a>(&'a self, work: &'a Move, map: &'a Arc<ShardMap>) -> PortFuture<'a, ()> {
        Box::pin(async move { self.level(work, map).await.map(drop) })
    }

    fn catch_up<'a>(&'a self, work: &'a Move, map: &'a Arc<ShardMap>) -> PortFuture<'a, ()> {
        Box::pin(async move {
            let changed = self.level(work, map).await?;
            self.caught_up.fetch_add(changed, Ordering::Relaxed);
            Ok(())
        })
    }

    fn drop_rows<'a>(&'a self, shard: ShardId, work: &'a Move, map: &'a Arc<ShardMap>) -> PortFuture<'a, ()> {
        Box::pin(async move {
            let home = self.shards.home(shard).await?;
            let rows = self.rows(&home, work, map).await?;
            let drops: Vec<Write> = rows.keys().map(|row| Write::delete(row, DeleteOptions::new())).collect();
            self.write(&home, work, &drops).await
        })
    }
}

impl std::fmt::Debug for Carrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Carrier").field("caught_up", &self.caught_up).finish_non_exhaustive()
    }
}

/// Converts the error of a failed call; the next run repeats the step.
fn failed(error: Failed) -> PortError {
    match error.cause() {
        Cause::Operation(ShardError::Failed(StoreError::Failed(port))) => port.clone(),
        _ => PortError::new(PortErrorKind::Unavailable, error.to_string()),
    }
}

/// Adds a shard, and moves its share to it.
pub struct Growth {
    pub shards: Arc<Shards>,
    /// The mover's own copy of the map: the router learns of moves when a shard refuses it.
    pub directory: ShardDirectory,
    pub clock: Clock,
    /// Time for which a failing move is retried.
    pub patience: Duration,
}

/// Result of the addition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grown {
    pub shard: ShardId,
    /// Time of the addition, from the start.
    pub at: Duration,
    /// Duration of the moves.
    pub took: Duration,
    /// Moves that failed and were continued.
    pub failed: usize,
    /// Rows that changed between their copy and the freeze.
    pub caught_up: u64,
}

impl Growth {
    /// Finishes the move of a killed run; returns `true` if there was one.
    pub async fn resume(&self) -> Result<bool, String> {
        let (carrier, mut tried) = (Carrier::new(&self.shards), 0);
        let until = self.clock.now() + self.patience;
        loop {
            match self.directory.resume(&carrier).await {
                Ok(any) => return Ok(any),
                Err(error) => self.again(&error, until, &mut tried).await?,
            }
        }
    }

    /// Adds this shard.
    pub async fn add(&self, shard: ShardId, start: Instant) -> Result<Grown, String> {
        let began = self.clock.now();
        self.shards.add(shard).await?;
        let (carrier, mut tried) = (Carrier::new(&self.shards), 0);
        loop {
            let moved = async {
                // A plan requires a map without a move in progress.
                self.directory.resume(&carrier).await?;
                let map = self.directory.map();
                let mut wanted = map.shards();
                wanted.push(shard);
                wanted.sort_unstable();
                wanted.dedup();
                self.directory.rebalance(&map.plan(&wanted)?, &carrier).await?;
                Ok::<(), ShardingError>(())
            };
            match moved.await {
                Ok(()) => break,
                Err(error) => self.again(&error, began + self.patience, &mut tried).await?,
            }
        }
        let (at, took) = (began - start, self.clock.now() - began);
        let caught_up = carrier.caught_up.load(Ordering::Relaxed);
        Ok(Grown { shard, at, took, failed: tried, caught_up })
    }

    /// Waits before a retry, unless the error is permanent.
    async fn again(&self, error: &ShardingError, until: Instant, tried: &mut usize) -> Result<(), String> {
        let hopeless = match error {
            ShardingError::Mover(error) => error.class() == ErrorClass::Permanent,
            ShardingError::Store(error) => error.class() == ErrorClass::Permanent,
            _ => true,
        };
        if hopeless || self.clock.now() >= until {
            return Err(error.to_string());
        }
        *tried += 1;
        self.clock.sleep(Duration::from_millis(50)).await;
        Ok(())
    }
}
