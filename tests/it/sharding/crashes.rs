//! A mover that crashes at any of its requests, to the map's store and to the shards.
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use steadfast::{
    port::{Failure, PortError, PortErrorKind, PortFuture},
    sharding::{
        Access, Chunk, KeyBytes, Move, Mover, PlannedMove, Refused, Routed, ShardDirectory, ShardDirectoryConfig,
        ShardError, ShardGuard, ShardId, ShardMap, Step,
    },
    store::{Key, PutOptions, Scan, Store, StoreExt},
    testing::{CrashingProcess, crash_at_every_write, fail_at_every_write},
};

use crate::engines::{Engine, World};

const KEYS: u64 = 4;
/// The range that moves, and a key in it that is deleted during the move.
const CHUNK: (u64, u64) = (1, 3);
const DELETED: u64 = 2;

fn partition(shard: ShardId) -> String {
    format!("shard {shard}")
}

fn unavailable(why: impl ToString) -> PortError {
    PortError::new(PortErrorKind::Unavailable, why.to_string())
}

fn count(value: &[u8]) -> u64 {
    std::str::from_utf8(value).unwrap().parse().unwrap()
}

/// The shards: their guards live on when a mover crashes, and so do their rows.
struct Shards {
    world: World,
    guards: Vec<ShardGuard>,
    /// Number of acknowledged writes of each key since its deletion.
    written: Mutex<BTreeMap<u64, u64>>,
}

/// A mover whose requests pass through this store.
#[derive(Clone)]
struct ByRequests<'a> {
    shards: &'a Shards,
    store: Arc<dyn Store>,
    fails_at: Option<Step>,
}

impl std::fmt::Debug for ByRequests<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ByRequests")
    }
}

impl Shards {
    fn new(engine: Engine, first: &ShardMap, shards: u32) -> Self {
        let world = engine.world();
        let directory = world.run(directory(&world, world.store.clone()).create(first)).unwrap();
        let guards = (0..shards).map(|id| ShardGuard::new(ShardId(id), directory.map())).collect();
        let shards = Self { world, guards, written: Mutex::default() };
        assert_eq!(shards.write_all(|_| false), 0);
        shards
    }

    fn guard(&self, shard: ShardId) -> &ShardGuard {
        &self.guards[shard.0 as usize]
    }

    /// Adds one to each key by a router, or deletes it. Returns the number of refusals.
    fn write_all(&self, deletes: impl Fn(u64) -> bool) -> usize {
        let store = &self.world.store;
        self.world.run(async {
            let router = directory(&self.world, store.clone()).open().await.unwrap();
            let mut refused = 0;
            for key in 0..KEYS {
                let deletes = deletes(key);
                let written = router.route(&key, |to: Routed| async move {
                    let _permit = self.guard(to.shard).enter(&key, Access::Write, to.version)?;
                    let (partition, row) = (partition(to.shard), key.to_string());
                    let at = Key::new(&partition, &row);
                    if deletes {
                        store.delete(at, Default::default()).await.unwrap();
                    } else {
                        let count = store.get(at).await.unwrap().map_or(0, |record| count(&record.value)) + 1;
                        store.put(at, count.to_string().into(), PutOptions::new()).await.unwrap();
                    }
                    Ok::<_, ShardError<()>>(())
                });
                let written = written.await;
                let mut all = self.written.lock().unwrap();
                match written {
                    Ok(()) if deletes => drop(all.remove(&key)),
                    Ok(()) => *all.entry(key).or_default() += 1,
                    Err(_) => refused += 1,
                }
            }
            refused
        })
    }

    /// Asserts that each key is at the one shard that the map names, as it was last written.
    fn assert_whole(&self, map: &ShardMap) {
        let mut found = BTreeMap::new();
        for shard in self.guards.iter().map(ShardGuard::shard) {
            let rows = self.world.run(self.world.store.scan_all(Scan::partition(partition(shard)))).unwrap();
            for row in rows {
                let key: u64 = row.row.parse().unwrap();
                assert_eq!(map.shard_of(&key), Some(shard), "{key} is at the wrong shard");
                assert_eq!(found.insert(key, count(&row.value)), None, "{key} is at two shards");
            }
        }
        assert_eq!(found, *self.written.lock().unwrap());
    }

    /// Moves by a process that crashes. Then others write, and another mover continues or undoes the
    /// move, and completes the plan.
    fn test(&self, process: &CrashingProcess, plan: &[PlannedMove], [gives_up, undoes]: [bool; 2]) {
        let (world, store) = (&self.world, process.store(self.world.store.clone()));
        let fails_at = gives_up.then_some(Step::Frozen);
        let moves = async {
            let directory = directory(world, store.clone()).open().await?;
            let mover = ByRequests { shards: self, store, fails_at };
            let moved = directory.rebalance(plan, &mover).await;
            if gives_up {
                directory.roll_back(&mover).await?;
            } else {
                moved?;
            }
            Ok::<_, steadfast::sharding::ShardingError>(())
        };
        let ended = world.run(process.run(moves));
        self.write_all(|key| key == DELETED);
        let others = ByRequests { shards: self, store: world.store.clone(), fails_at: None };
        let directory = world.run(directory(world, world.store.clone()).open()).unwrap();
        if undoes {
            world.run(directory.roll_back(&others)).unwrap();
        }
        world.run(directory.resume(&others)).unwrap();
        assert_eq!(self.write_all(|_| false), 0, "no key is blocked: {ended:?}");
        self.assert_whole(&directory.map());
        world.run(directory.rebalance(plan, &others)).unwrap();
        assert_eq!(self.write_all(|_| false), 0);
        let map = world.run(directory.refresh()).unwrap();
        assert!(map.moving().is_none() && plan.iter().all(|made| map.owner_of(&made.chunk) == Some(made.to)));
        self.assert_whole(&map);
    }
}

fn directory(world: &World, store: Arc<dyn Store>) -> steadfast::sharding::ShardDirectoryBuilder {
    // One attempt: no time passes.
    let config = ShardDirectoryConfig::default().retry_timeout(std::time::Duration::ZERO);
    ShardDirectory::builder(store, "orders", config).clock(&world.clock)
}

impl ByRequests<'_> {
    async fn rows(
        &self,
        shard: ShardId,
        work: &Move,
        map: &ShardMap,
    ) -> Result<Vec<(String, bytes::Bytes)>, PortError> {
        let scan = Scan::partition(partition(shard));
        let rows = self.store.scan_all(scan).await.map_err(|error| error.backend().unwrap().clone())?;
        let has = |row: &str| map.chunk_contains(&work.chunk, KeyBytes::of(&row.parse::<u64>().unwrap()).as_slice());
        Ok(rows.into_iter().filter(|row| has(&row.row)).map(|row| (row.row, row.value)).collect())
    }

    async fn delete(&self, shard: ShardId, row: &str) -> Result<(), PortError> {
        let deleted = self.store.delete(Key::new(&partition(shard), row), Default::default()).await;
        deleted.map(drop).map_err(|error| error.backend().unwrap().clone())
    }

    async fn copy_rows(&self, work: &Move, map: &ShardMap) -> Result<(), PortError> {
        let entered =
            |shard| self.shards.guard(shard).enter_move(work).map_err(|refused: Refused| unavailable(refused));
        let (_from, _to) = (entered(work.from)?, entered(work.to)?);
        let rows = self.rows(work.from, work, map).await?;
        for (row, _) in self.rows(work.to, work, map).await? {
            if !rows.iter().any(|(name, _)| *name == row) {
                self.delete(work.to, &row).await?;
            }
        }
        for (row, value) in rows {
            let put = self.store.put(Key::new(&partition(work.to), &row), value, PutOptions::new()).await;
            put.map_err(|error| error.backend().unwrap().clone())?;
        }
        Ok(())
    }
}

impl Mover for ByRequests<'_> {
    fn install<'a>(&'a self, shard: ShardId, map: &'a Arc<ShardMap>) -> PortFuture<'a, ()> {
        Box::pin(async move {
            self.shards.guard(shard).install(map.clone()).await;
            Ok(())
        })
    }
    fn copy<'a>(&'a self, work: &'a Move, map: &'a Arc<ShardMap>) -> PortFuture<'a, ()> {
        Box::pin(self.copy_rows(work, map))
    }
    fn catch_up<'a>(&'a self, work: &'a Move, map: &'a Arc<ShardMap>) -> PortFuture<'a, ()> {
        Box::pin(async move {
            self.copy_rows(work, map).await?;
            if self.fails_at == Some(Step::Frozen) { Err(unavailable("the mover gives up")) } else { Ok(()) }
        })
    }
    fn drop_rows<'a>(&'a self, shard: ShardId, work: &'a Move, map: &'a Arc<ShardMap>) -> PortFuture<'a, ()> {
        Box::pin(async move {
            let _permit = self.shards.guard(shard).enter_move(work).map_err(unavailable)?;
            for (row, _) in self.rows(shard, work, map).await? {
                self.delete(shard, &row).await?;
            }
            Ok(())
        })
    }
}

/// A range that moves online, a key that moves apart, an offline move, and a shard that is added.
fn plans() -> Vec<(ShardMap, Vec<PlannedMove>)> {
    let ranges = ShardMap::ranges(&[(0_u64, Some(ShardId(0)))]).unwrap();
    let range = PlannedMove::new(Chunk::keys(&CHUNK.0, Some(&CHUNK.1)), ShardId(0), ShardId(1));
    let apart = PlannedMove::new(Chunk::key(&0_u64), ShardId(0), ShardId(1));
    let hashed = ShardMap::hashed(8, &[ShardId(0)]).unwrap();
    let added = hashed.plan(&[ShardId(0), ShardId(1)]).unwrap();
    vec![(ranges.clone(), vec![range.clone(), apart]), (ranges, vec![range.offline()]), (hashed, added)]
}

/// A mover that completes its plan or gives up, and others that complete its move or undo it.
const COURSES: [[bool; 2]; 4] = [[false, false], [false, true], [true, false], [true, true]];

fn crashes(engine: Engine, plans: &[(ShardMap, Vec<PlannedMove>)]) {
    for (map, plan) in plans {
        for course in COURSES {
            let requests = crash_at_every_write(|process| Shards::new(engine, map, 2).test(process, plan, course));
            assert!(requests > 10, "{requests}");
        }
    }
}

// Guarantee: sharding 9.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn a_mover_that_crashes_at_any_request_loses_and_duplicates_no_row() {
    crashes(Engine::Memory, &plans());
    // A file for each run takes its time.
    crashes(Engine::Sqlite, &plans()[2..]);
}

// Guarantee: sharding 9.
#[test]
fn a_mover_that_gets_an_error_from_any_request_loses_and_duplicates_no_row() {
    for (map, plan) in plans() {
        for course in COURSES {
            fail_at_every_write(|process| Shards::new(Engine::Memory, &map, 2).test(process, &plan, course));
        }
    }
}
