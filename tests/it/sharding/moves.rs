//! Maps that change: stale routers, moves, crashes of movers, guards and directories.
use std::{
    collections::{BTreeMap, HashSet},
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use steadfast::{
    Pipeline,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State, TripConfig},
    notify::InMemoryNotifier,
    port::{ByFailure, PortError, PortErrorKind, PortFuture},
    sharding::{
        Access, Chunk, FanOut, FanOutConfig, FanOutResult, KeyBytes, Move, Mover, PlannedMove, Refused, RouteError,
        Routed, ShardDirectory, ShardDirectoryConfig, ShardError, ShardGuard, ShardId, ShardMap, ShardMeter,
        ShardingError, ShardingEvent, StaleMap, Step,
    },
    store::{InMemoryStore, Key, Store},
    testing::{
        drop_at_every_await,
        faults::{FaultConfig, FaultNetwork},
    },
    time::{Clock, ManualClock},
};

const KEYS: u64 = 60;
const MS: fn(u64) -> Duration = Duration::from_millis;

fn ids(n: u32) -> Vec<ShardId> {
    (0..n).map(ShardId).collect()
}

/// Four shards in memory behind a slow network.
#[derive(Debug)]
struct World {
    clock: Clock,
    shards: Vec<(ShardGuard, Mutex<BTreeMap<u64, u64>>)>,
    /// Acknowledged writes of each key.
    written: Mutex<BTreeMap<u64, u64>>,
}

impl World {
    fn new(map: &Arc<ShardMap>, clock: &Clock) -> Self {
        let shard = |id| (ShardGuard::new(id, map.clone()), Mutex::default());
        Self { clock: clock.clone(), shards: ids(4).into_iter().map(shard).collect(), written: Mutex::default() }
    }

    async fn add(&self, to: Routed, key: u64) -> Result<(), ShardError<()>> {
        let (guard, rows) = &self.shards[to.shard.0 as usize];
        let _permit = guard.enter(&key, Access::Write, to.version)?;
        *rows.lock().unwrap().entry(key).or_default() += 1;
        *self.written.lock().unwrap().entry(key).or_default() += 1;
        Ok(())
    }

    /// Adds one to each key, and returns the number of refused calls.
    async fn add_to_all(&self, router: &ShardDirectory) -> usize {
        let mut refused = 0;
        for key in 0..KEYS {
            refused += usize::from(router.route(&key, |to| self.add(to, key)).await.is_err());
        }
        refused
    }

    /// Waits for a request to a shard.
    async fn travel(&self) {
        self.clock.sleep(MS(1)).await;
    }

    async fn copy_rows(&self, work: &Move, map: &ShardMap) -> Result<(), PortError> {
        let [from, to] = [work.from, work.to].map(|shard| &self.shards[shard.0 as usize]);
        let has = |key: &u64| map.chunk_contains(&work.chunk, KeyBytes::of(key).as_slice());
        let read = {
            let _permit = from.0.enter_move(work).map_err(refused)?;
            let rows = from.1.lock().unwrap();
            rows.iter().filter(|row| has(row.0)).map(|(k, v)| (*k, *v)).collect::<BTreeMap<_, _>>()
        };
        self.clock.sleep(MS(1)).await;
        let _permit = to.0.enter_move(work).map_err(refused)?;
        let mut rows = to.1.lock().unwrap();
        rows.retain(|key, _| !has(key));
        rows.extend(read);
        Ok(())
    }

    /// Asserts that each key is at the one shard that the map names, and that no write was lost or duplicated.
    fn assert_whole(&self, map: &ShardMap, why: &dyn std::fmt::Debug) {
        let mut seen = HashSet::new();
        for (guard, rows) in &self.shards {
            for (key, count) in rows.lock().unwrap().iter() {
                assert!(seen.insert(*key), "{key} is duplicated: {why:?}");
                assert_eq!(map.shard_of(key), Some(guard.shard()), "{key}: {why:?}");
                assert_eq!(self.written.lock().unwrap().get(key), Some(count), "{key}: {why:?}");
            }
        }
        assert_eq!(seen.len(), self.written.lock().unwrap().len(), "{why:?}");
    }
}

fn refused(refused: Refused) -> PortError {
    PortError::new(PortErrorKind::Unavailable, refused.to_string())
}

impl Mover for World {
    fn install<'a>(&'a self, shard: ShardId, map: &'a Arc<ShardMap>) -> PortFuture<'a, ()> {
        Box::pin(async move {
            self.travel().await;
            self.shards[shard.0 as usize].0.install(map.clone()).await;
            Ok(())
        })
    }
    fn copy<'a>(&'a self, work: &'a Move, map: &'a Arc<ShardMap>) -> PortFuture<'a, ()> {
        Box::pin(async move {
            self.travel().await;
            self.copy_rows(work, map).await
        })
    }
    fn catch_up<'a>(&'a self, work: &'a Move, map: &'a Arc<ShardMap>) -> PortFuture<'a, ()> {
        Box::pin(async move {
            self.copy_rows(work, map).await?;
            self.travel().await;
            Ok(())
        })
    }
    fn drop_rows<'a>(&'a self, shard: ShardId, work: &'a Move, map: &'a Arc<ShardMap>) -> PortFuture<'a, ()> {
        Box::pin(async move {
            let (guard, rows) = &self.shards[shard.0 as usize];
            let _permit = guard.enter_move(work).map_err(refused)?;
            let has = |key: &u64| map.chunk_contains(&work.chunk, KeyBytes::of(key).as_slice());
            self.travel().await;
            rows.lock().unwrap().retain(|key, _| !has(key));
            Ok(())
        })
    }
}

/// A router and a mover with a directory each, and a world with a row for each key.
struct Scene {
    time: ManualClock,
    clock: Clock,
    store: Arc<InMemoryStore>,
    router: ShardDirectory,
    mover: ShardDirectory,
    world: World,
}

impl Scene {
    fn new(first: &ShardMap) -> Self {
        let (clock, time) = Clock::manual();
        Self::on(first, &clock, &time)
    }

    fn on(first: &ShardMap, clock: &Clock, time: &ManualClock) -> Self {
        let (clock, time) = (clock.clone(), time.clone());
        let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
        let slow = FaultConfig::default().latency(MS(1), MS(1));
        let network = FaultNetwork::new(slow, 1, &clock).unwrap();
        let directory = |name| {
            let config = ShardDirectoryConfig::default().retry_timeout(Duration::ZERO);
            ShardDirectory::builder(Arc::new(network.client(name).store(store.clone())), "orders", config).clock(&clock)
        };
        let (router, mover, world) = time.block_on(async {
            let router = directory("router").create(first).await.unwrap();
            let mover = directory("mover").open().await.unwrap();
            let world = World::new(&router.map(), &clock);
            assert_eq!(world.add_to_all(&router).await, 0);
            (router, mover, world)
        });
        Self { time, clock, store, router, mover, world }
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.time.block_on(future)
    }

    /// Finishes the plan after a disturbance, with writes before and after it, and checks all rows.
    fn finish(&self, plan: &[PlannedMove], why: &dyn std::fmt::Debug) {
        self.run(async {
            self.world.add_to_all(&self.router).await;
            self.mover.rebalance(plan, &self.world).await.unwrap();
            assert_eq!(self.world.add_to_all(&self.router).await, 0, "{why:?}");
            let map = self.router.refresh().await.unwrap();
            assert!(map.moving().is_none());
            self.world.assert_whole(&map, why);
        });
    }
}

fn plans() -> Vec<(ShardMap, Vec<PlannedMove>)> {
    let hashed = ShardMap::hashed(64, &ids(2)).unwrap();
    let (first, all) = (ShardId(0), Chunk::keys(&10_u64, Some(&30)));
    let ranges = ShardMap::ranges(&[(0_u64, Some(first))]).unwrap();
    let apart = PlannedMove::new(Chunk::key(&7_u64), first, ShardId(3));
    vec![
        (hashed.clone(), hashed.plan(&ids(3)).unwrap()),
        (ranges.clone(), vec![PlannedMove::new(all.clone(), first, ShardId(1)), apart]),
        (ranges, vec![PlannedMove::new(all, first, ShardId(2)).offline()]),
    ]
}

// Guarantee: sharding 8.
#[test]
fn a_stale_router_refreshes_once_and_nothing_is_written_to_the_wrong_shard() {
    let map = ShardMap::hashed(64, &ids(1)).unwrap();
    let scene = Scene::new(&map);
    scene.run(async {
        scene.mover.rebalance(&map.plan(&[ShardId(1)]).unwrap(), &scene.world).await.unwrap();
        let asked = Mutex::new(Vec::new());
        let answer = scene.router.route(&7_u64, |to| {
            asked.lock().unwrap().push((to.shard.0, to.version));
            scene.world.add(to, 7)
        });
        answer.await.unwrap();
        // Five changes: begun, frozen, closed, switched, ended.
        assert_eq!(*asked.lock().unwrap(), [(0, 1), (1, 6)]);
        let stale = scene.world.add(Routed::new(ShardId(0), 1), 7).await;
        assert_eq!(stale, Err(Refused::from(StaleMap::new(1, 5)).into()));
        assert!(scene.world.shards[0].1.lock().unwrap().is_empty());
        scene.world.assert_whole(&scene.router.map(), &"routed");
    });
}

// Guarantee: sharding 8.
#[test]
fn a_refusal_through_a_shards_own_pipeline_is_routed_again_and_opens_no_breaker() {
    let map = ShardMap::hashed(64, &ids(1)).unwrap();
    let scene = Scene::new(&map);
    scene.run(async {
        scene.mover.rebalance(&map.plan(&[ShardId(1)]).unwrap(), &scene.world).await.unwrap();
        // One failure opens the breaker.
        let trip = TripConfig::default().consecutive_failures(1);
        let breaker = |_| CircuitBreaker::new(CircuitBreakerConfig::default().trip(trip)).unwrap();
        let breakers = [0, 1].map(breaker);
        let (mut asked, mut away) = (Vec::new(), false);
        for key in [7_u64, 7] {
            let answer = scene.router.route(&key, |to| {
                asked.push(to.shard.0);
                let pipeline = Pipeline::new().classify(ByFailure).then(breakers[to.shard.0 as usize].clone());
                let world = &scene.world;
                async move {
                    let write = || async move {
                        world.add(to, key).await.map_err(|error| match error {
                            ShardError::Refused(refused) => ShardError::Refused::<PortError>(refused),
                            _ => unreachable!(),
                        })?;
                        let down = || ShardError::Failed(PortError::new(PortErrorKind::Unavailable, "down"));
                        if away { Err(down()) } else { Ok(()) }
                    };
                    pipeline.call(write).await.map_err(ShardError::from)
                }
            });
            // An error that is no refusal is returned to the caller, and counts for the breaker.
            assert_eq!(answer.await.is_err(), away);
            away = true;
        }
        assert_eq!(asked, [0, 1, 1]);
        assert_eq!(breakers.map(|breaker| breaker.state()), [State::Closed, State::Open]);
    });
}

// Guarantee: sharding 8.
#[test]
fn only_one_of_a_thousand_stale_calls_reads_the_map() {
    let map = ShardMap::hashed(64, &ids(1)).unwrap();
    let scene = Scene::new(&map);
    scene.run(async {
        scene.mover.rebalance(&map.plan(&[ShardId(1)]).unwrap(), &scene.world).await.unwrap();
        let slow = FaultConfig::default().latency(MS(10), MS(10));
        let network = FaultNetwork::new(slow, 1, &scene.clock).unwrap();
        let store = network.client("router").store(scene.store.clone());
        // The router opens the first map, which is restored for a moment.
        let newest = scene.store.get(Key::new("shard-maps", "orders")).await.unwrap().unwrap();
        scene.store.put(Key::new("shard-maps", "orders"), map.to_text().into(), Default::default()).await.unwrap();
        let router = ShardDirectory::builder(Arc::new(store), "orders", Default::default())
            .clock(&scene.clock)
            .open()
            .await
            .unwrap();
        scene.store.put(Key::new("shard-maps", "orders"), newest.value, Default::default()).await.unwrap();
        let before = network.counts().requests;
        let calls = (0..1_000).map(|i| {
            let (router, world) = (&router, &scene.world);
            async move { router.route(&(i % KEYS), |to| world.add(to, i % KEYS)).await }
        });
        assert!(futures::future::join_all(calls).await.iter().all(Result::is_ok));
        assert_eq!(network.counts().requests - before, 1);
    });
}

// Guarantee: sharding 15.
#[test]
fn a_query_of_all_shards_reads_each_row_once_while_rows_are_moved() {
    for (map, plan) in plans() {
        let scene = Scene::new(&map);
        scene.run(async {
            let fan_out = FanOut::builder(FanOutConfig::default()).clock(&scene.clock).build().unwrap();
            let config = ShardDirectoryConfig::default();
            let reader = ShardDirectory::builder(scene.store.clone(), "orders", config).clock(&scene.clock);
            let reader = reader.open().await.unwrap();
            // The shards respond slowly, at different times.
            let rows = |shard: ShardId, map: Arc<ShardMap>| {
                let (world, clock) = (&scene.world, &scene.clock);
                async move {
                    clock.sleep(MS(7 + 2 * u64::from(shard.0))).await;
                    let rows = world.shards[shard.0 as usize].1.lock().unwrap();
                    let owned = rows.keys().filter(|key| map.shard_of(*key) == Some(shard));
                    Ok::<_, ()>(owned.copied().collect::<Vec<_>>())
                }
            };
            let all = |answers: FanOutResult<Vec<u64>, ()>| {
                let mut keys: Vec<_> = answers.complete().unwrap().into_iter().flat_map(|(_, keys)| keys).collect();
                keys.sort_unstable();
                keys
            };
            let (mut whole, mut torn) = (0, 0);
            let moved = std::cell::Cell::new(false);
            let read = async {
                while !moved.get() {
                    let keys = all(reader.query_all(&fan_out, rows).await.unwrap());
                    assert_eq!(keys, (0..KEYS).collect::<Vec<_>>());
                    whole += 1;
                }
            };
            // A bare fan-out reads some rows twice or not at all.
            let tear = async {
                while !moved.get() {
                    let map = reader.map();
                    let keys = all(fan_out.run(&map.shards(), |shard| rows(shard, map.clone())).await);
                    torn += usize::from(keys != (0..KEYS).collect::<Vec<_>>());
                }
            };
            let rebalance = async {
                scene.mover.rebalance(&plan, &scene.world).await.unwrap();
                moved.set(true);
            };
            futures::join!(read, tear, rebalance);
            assert!(whole > 1 && torn > 0, "{whole} {torn}");
        });
    }
}

// Guarantee: sharding 15.
#[test]
fn a_query_of_all_shards_detects_a_chunk_that_moved_away_and_back() {
    let map = ShardMap::hashed(64, &ids(2)).unwrap();
    let scene = Scene::new(&map);
    scene.run(async {
        let fan_out = FanOut::builder(FanOutConfig::default().max_concurrency(1)).clock(&scene.clock).build().unwrap();
        let chunk = Chunk::slots(0, 32);
        let there = PlannedMove::new(chunk.clone(), ShardId(0), ShardId(1)).offline();
        let back = PlannedMove::new(chunk, ShardId(1), ShardId(0)).offline();
        let reader = ShardDirectory::builder(scene.store.clone(), "orders", Default::default())
            .clock(&scene.clock)
            .open()
            .await
            .unwrap();
        let (mover, world) = (&scene.mover, &scene.world);
        // Killed when it is about to switch: from here the fewest changes lead there and back.
        let closed = async {
            while reader.refresh().await.unwrap().moving().is_none_or(|work| work.step != Step::Closed) {
                scene.clock.sleep(MS(1)).await;
            }
        };
        let there = [there];
        tokio::select! { biased; _ = mover.rebalance(&there, world) => unreachable!(), () = closed => {} }
        let asked = AtomicU64::new(0);
        let rows = |shard: ShardId, map: Arc<ShardMap>| {
            let (back, asked) = (&back, &asked);
            async move {
                let first = asked.fetch_add(1, Ordering::Relaxed) == 0;
                if first {
                    mover.resume(world).await.unwrap();
                }
                let read = world.shards[shard.0 as usize].1.lock().unwrap().clone();
                if first {
                    mover.rebalance(std::slice::from_ref(back), world).await.unwrap();
                }
                Ok::<_, ()>(read.into_keys().filter(|key| map.shard_of(key) == Some(shard)).count())
            }
        };
        let answers = reader.query_all(&fan_out, rows).await.unwrap().complete().unwrap();
        assert_eq!(answers.iter().map(|(_, n)| *n as u64).sum::<u64>(), KEYS, "{answers:?}");
        assert_eq!(asked.load(Ordering::Relaxed), 4);
    });
}

// Guarantee: sharding 15.
#[test]
fn a_query_of_all_shards_fails_if_the_map_changes_during_each_attempt() {
    let map = ShardMap::hashed(64, &ids(2)).unwrap();
    let scene = Scene::new(&map);
    scene.run(async {
        let fan_out = FanOut::builder(FanOutConfig::default()).clock(&scene.clock).build().unwrap();
        let pin = AtomicU64::new(0);
        let asked = AtomicU64::new(0);
        let restless = |_, _| async {
            asked.fetch_add(1, Ordering::Relaxed);
            let key = pin.fetch_add(1, Ordering::Relaxed);
            // A pin to the key's own shard, because a change cannot give it another owner.
            scene.mover.change(|map| map.pin(&key, map.shard_of(&key).unwrap())).await.map(drop)
        };
        let began = scene.clock.now();
        let answer = scene.router.query_all(&fan_out, restless).await;
        // The retry time-out of this router is zero, so it makes one attempt.
        assert!(matches!(answer, Err(ShardingError::Moving)), "{answer:?}");
        assert!(asked.load(Ordering::Relaxed) == 2 && scene.clock.now() - began < MS(100));
    });
}

// Guarantee: sharding 8.
#[test]
fn a_call_is_retried_while_its_key_is_moved_until_the_retry_timeout() {
    let map = ShardMap::hashed(64, &ids(1)).unwrap();
    for (thaws, retry_timeout) in [(true, 5_000), (false, 700)] {
        let scene = Scene::new(&map);
        let config = ShardDirectoryConfig::default().retry_timeout(MS(retry_timeout));
        let frozen = scene.run(async {
            // An offline move begins frozen.
            let planned = map.plan(&[ShardId(1)]).unwrap().remove(0).offline();
            scene.mover.change(|map| map.begin(&planned).map(|next| *map = next)).await.unwrap()
        });
        assert_eq!(frozen.moving().unwrap().step, Step::Frozen);
        let router = ShardDirectory::builder(scene.store.clone(), "orders", config).clock(&scene.clock);
        scene.run(async {
            scene.world.shards[0].0.install(frozen).await;
            let router = router.open().await.unwrap();
            let began = scene.clock.now();
            let call = router.route(&7_u64, |to| scene.world.add(to, 7));
            let thaw = async {
                if thaws {
                    scene.clock.sleep(MS(300)).await;
                    scene.mover.rebalance(&[], &scene.world).await.unwrap();
                    scene.mover.resume(&scene.world).await.unwrap();
                }
            };
            let (answer, ()) = futures::join!(call, thaw);
            let waited = scene.clock.now() - began;
            if thaws {
                answer.unwrap();
                scene.world.assert_whole(&scene.router.refresh().await.unwrap(), &"thawed");
            } else {
                assert!(matches!(answer, Err(RouteError::Refused(Refused::Moving))), "{answer:?}");
                assert!(waited <= MS(retry_timeout) && waited >= MS(retry_timeout - 250), "{waited:?}");
            }
        });
    }
}

// Guarantee: sharding 9.
#[test]
fn a_mover_dropped_at_every_await_loses_and_duplicates_no_row() {
    for (map, plan) in plans() {
        for undo in [false, true] {
            let (clock, time) = Clock::manual();
            let scene = std::cell::RefCell::new(None);
            let mut undone = 0;
            let polls = drop_at_every_await(
                &time,
                || {
                    let this = Arc::new(Scene::on(&map, &clock, &time));
                    scene.replace(Some(this.clone()));
                    let plan = &plan;
                    async move { this.mover.rebalance(plan, &this.world).await.unwrap() }
                },
                |polls| {
                    let this = scene.take().unwrap();
                    if undo && this.run(this.mover.roll_back(&this.world)).unwrap() {
                        undone += 1;
                        assert_eq!(this.run(this.world.add_to_all(&this.router)), 0);
                        this.world.assert_whole(&this.run(this.router.refresh()).unwrap(), &("undone", polls));
                    }
                    this.finish(&plan, &("dropped", polls));
                },
            );
            assert!(polls > 10 && (undone > 3) == undo, "{polls} polls, {undone} undone");
        }
    }
}

// Guarantee: sharding 9.
#[test]
fn two_concurrent_movers_lose_and_duplicate_no_row() {
    for (map, plan) in plans() {
        for lead in 0..12 {
            let scene = Scene::new(&map);
            scene.run(async {
                let other = ShardDirectory::builder(scene.store.clone(), "orders", Default::default())
                    .clock(&scene.clock)
                    .open()
                    .await
                    .unwrap();
                let late = async {
                    scene.clock.sleep(MS(lead)).await;
                    other.rebalance(&plan, &scene.world).await
                };
                let (one, two) = futures::join!(scene.mover.rebalance(&plan, &scene.world), late);
                // The slower mover may be superseded, but never both.
                assert!(one.is_ok() || two.is_ok(), "{one:?} {two:?}");
            });
            scene.finish(&plan, &lead);
        }
    }
}

// Guarantee: sharding 9.
#[test]
fn a_mover_that_was_paused_writes_no_outdated_rows() {
    let map = ShardMap::hashed(64, &ids(1)).unwrap();
    let plan = map.plan(&[ShardId(1)]).unwrap();
    let scene = Scene::new(&map);
    scene.run(async {
        // The mover has read the source's rows, and pauses before it writes them at the target.
        let paused = scene.world.paused_copy(&scene.mover, &plan).await;
        scene.mover.rebalance(&plan, &scene.world).await.unwrap();
        assert_eq!(scene.world.add_to_all(&scene.router).await, 0);
        assert!(matches!(scene.world.shards[1].0.enter_move(&paused), Err(Refused::Superseded)));
        // It is also refused after another move has returned the chunk.
        scene
            .mover
            .rebalance(&[PlannedMove::new(plan[0].chunk.clone(), ShardId(1), ShardId(0))], &scene.world)
            .await
            .unwrap();
        for shard in 0..2 {
            assert!(matches!(scene.world.shards[shard].0.enter_move(&paused), Err(Refused::Superseded)));
        }
    });
    scene.finish(&plan, &"paused");
}

impl World {
    async fn paused_copy(&self, mover: &ShardDirectory, plan: &[PlannedMove]) -> Move {
        let begun = mover.change(|map| map.begin(&plan[0]).map(|next| *map = next)).await.unwrap();
        for (guard, _) in &self.shards {
            guard.install(begun.clone()).await;
        }
        let work = begun.moving().unwrap().clone();
        assert!(self.shards[1].0.enter_move(&work).is_ok() && self.shards[2].0.enter_move(&work).is_err());
        work
    }
}

#[test]
fn installing_a_newer_map_waits_for_the_permits_of_older_ones() {
    let (clock, time) = Clock::manual();
    let first = ShardMap::hashed(64, &ids(1)).unwrap();
    let begun = Arc::new(first.begin(&first.plan(&[ShardId(1)]).unwrap()[0]).unwrap());
    let frozen = Arc::new(begun.advanced().unwrap());
    let guard = ShardGuard::new(ShardId(0), Arc::new(first));
    let write = || guard.enter(&1_u64, Access::Write, 1);
    time.block_on(async {
        let permit = write().unwrap();
        let mut installed = Box::pin(guard.install(frozen.clone()));
        let mut polled = || futures::FutureExt::now_or_never(&mut installed).is_some();
        assert!(!polled(), "a permit of the previous map exists");
        // From the first poll on, writes are refused and reads are permitted.
        assert_eq!(write().unwrap_err(), Refused::Moving);
        let reader = guard.enter(&1_u64, Access::Read, 1).unwrap();
        drop(permit);
        assert!(polled(), "permits of the new map are not waited for");
        // An older map is ignored, and installing it does not wait.
        guard.install(begun.clone()).await;
        assert_eq!(guard.map().version(), frozen.version());
        // A closed chunk also refuses reads, and its installation waits for earlier readers.
        let closed = Arc::new(frozen.advanced().unwrap());
        let mut installed = Box::pin(guard.install(closed.clone()));
        assert!(futures::FutureExt::now_or_never(&mut installed).is_none());
        assert_eq!(guard.enter(&1_u64, Access::Read, 1).unwrap_err(), Refused::Moving);
        drop(reader);
        installed.await;
        let switched = Arc::new(closed.advanced().unwrap());
        guard.install(switched.clone()).await;
        let router = switched.version();
        assert_eq!(write().unwrap_err(), Refused::from(StaleMap::new(1, router)));
        // The target has an older map, and reports that its own map is stale.
        let target = ShardGuard::new(ShardId(1), closed.clone());
        let behind = target.enter(&1_u64, Access::Write, router).unwrap_err();
        assert_eq!(behind, Refused::Behind { router, shard: closed.version() });
    });
    // Dropped at every await, an installation has replaced the map, and blocks no other.
    let held = std::cell::RefCell::new(None);
    let polls = drop_at_every_await(
        &time,
        || {
            let guard = ShardGuard::new(ShardId(0), begun.clone());
            held.replace(Some(guard.clone()));
            let (clock, frozen) = (clock.clone(), frozen.clone());
            async move {
                let permit = guard.enter(&1_u64, Access::Write, 1).unwrap();
                let release = async {
                    clock.sleep(MS(5)).await;
                    drop(permit);
                };
                futures::join!(guard.install(frozen), release);
            }
        },
        |polls| {
            let guard = held.take().unwrap();
            let taken = if polls == 0 { &begun } else { &frozen };
            assert_eq!(guard.map().version(), taken.version(), "{polls}");
            assert_eq!(guard.enter(&1_u64, Access::Write, 1).is_ok(), polls == 0);
            assert!(format!("{guard:?}").contains("permits: 0"), "{guard:?}");
            let mut again = Box::pin(guard.install(Arc::new(frozen.advanced().unwrap())));
            assert!(futures::FutureExt::now_or_never(&mut again).is_some(), "no permit exists after {polls}");
        },
    );
    assert!(polls >= 2, "{polls}");
}

#[test]
fn a_shard_with_a_stale_map_refreshes_it() {
    let map = ShardMap::hashed(64, &ids(1)).unwrap();
    let scene = Scene::new(&map);
    scene.run(async {
        let shard = ShardGuard::open(ShardId(1), &scene.mover).await.unwrap();
        scene.mover.rebalance(&map.plan(&[ShardId(1)]).unwrap(), &scene.world).await.unwrap();
        let router = scene.router.refresh().await.unwrap().version();
        assert!(matches!(shard.enter(&1_u64, Access::Read, router), Err(Refused::Behind { .. })));
        let permit = shard.enter_fresh(&scene.router, &1_u64, Access::Read, router).await.unwrap();
        assert_eq!(permit.version(), router);
        // A stale router is refused without a refresh.
        assert!(shard.enter_fresh(&scene.router, &1_u64, Access::Read, 1).await.is_ok());
        let other = ShardGuard::new(ShardId(2), scene.router.map());
        assert!(matches!(other.enter_fresh(&scene.router, &1_u64, Access::Read, 1).await, Err(Refused::Stale(_))));
    });
}

#[test]
fn a_directory_refreshes_at_a_notice_and_at_the_refresh_interval() {
    for hears in [true, false] {
        let (clock, time) = Clock::manual();
        let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
        let notifier = Arc::new(InMemoryNotifier::new());
        let config = ShardDirectoryConfig::default().refresh_interval(Duration::from_secs(60));
        let builder = || {
            let builder = ShardDirectory::builder(store.clone(), "orders", config).clock(&clock);
            if hears { builder.notifier(notifier.clone()) } else { builder }
        };
        time.block_on(async {
            let here = builder().create(&ShardMap::lookup()).await.unwrap();
            let there = builder().open().await.unwrap();
            let mut events = here.events();
            let look = async {
                clock.sleep(MS(10)).await;
                there.change(|map| map.pin("a", ShardId(3))).await.unwrap();
                let changed = clock.now();
                assert!(matches!(events.recv().await.unwrap().what, ShardingEvent::MapChanged { from: 1, to: 2 }));
                assert_eq!(here.map().shard_of("a"), Some(ShardId(3)));
                clock.now() - changed
            };
            let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
            let ((), waited) = futures::join!(here.run(async { drop(stopped.await) }), async {
                let waited = look.await;
                drop(stop);
                waited
            });
            let expected = if hears { MS(0)..=MS(0) } else { MS(47_000)..=MS(72_000) };
            assert!(expected.contains(&waited), "{waited:?}");
        });
    }
}

#[test]
fn the_errors_of_a_directory_name_their_cause() {
    let (clock, time) = Clock::manual();
    let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
    time.block_on(async {
        let with = |name, config| ShardDirectory::builder(store.clone(), name, config).clock(&clock);
        let open = |name: &'static str| with(name, ShardDirectoryConfig::default());
        let refused = |error: ShardingError| error.to_string();
        assert_eq!(
            refused(open("orders").open().await.unwrap_err()),
            "the shard map `orders` is missing or unreadable"
        );
        assert_eq!(refused(open("").open().await.unwrap_err()), "invalid `name`: must not be empty");
        let config = ShardDirectoryConfig::default().refresh_interval(Duration::ZERO);
        let error = with("orders", config).create(&ShardMap::lookup()).await.unwrap_err();
        assert_eq!(refused(error), "invalid `refresh_interval`: must be longer than zero");
        let directory = open("orders").create(&ShardMap::lookup()).await.unwrap();
        // Creating the map again leaves it unchanged.
        directory.change(|map| map.pin("a", ShardId(1))).await.unwrap();
        assert_eq!(open("orders").create(&ShardMap::lookup()).await.unwrap().map().version(), 2);
        let again = directory.change(|map| map.pin("a", ShardId(2))).await.unwrap_err();
        assert_eq!(
            (refused(again), directory.map().version()),
            ("invalid `key`: must not be pinned already".into(), 2)
        );
        let nowhere = directory.route("b", |_| async { Ok::<_, ShardError<String>>(()) }).await.unwrap_err();
        assert_eq!(nowhere.to_string(), "no shard owns the key");
        // A damaged map causes an error and an event, and the copy stays in use.
        let mut events = directory.events();
        store.put(Key::new("shard-maps", "orders"), "no map".into(), Default::default()).await.unwrap();
        assert!(matches!(directory.refresh().await, Err(ShardingError::NoMap(_))));
        assert_eq!(events.recv().await.unwrap().what, ShardingEvent::RefreshFailed { kind: None });
        assert_eq!(directory.map().shard_of("a"), Some(ShardId(1)));
    });
}

#[test]
fn concurrent_changes_are_all_made() {
    let (clock, time) = Clock::manual();
    let backend = Arc::new(InMemoryStore::builder().clock(&clock).build());
    let network = FaultNetwork::new(FaultConfig::default().latency(MS(0), MS(9)), 3, &clock).unwrap();
    time.block_on(async {
        let store = Arc::new(network.client("a").store(backend.clone()));
        let directory = ShardDirectory::builder(store, "orders", Default::default())
            .clock(&clock)
            .create(&ShardMap::lookup())
            .await
            .unwrap();
        let changes = (0..20_u64).map(|key| directory.change(move |map| map.pin(&key, ShardId(0))));
        assert!(futures::future::join_all(changes).await.iter().all(Result::is_ok));
        assert_eq!((directory.map().version(), directory.map().chunks().len()), (21, 21));
    });
}

// Guarantee: sharding 12.
#[test]
fn a_directory_counts_routed_calls() {
    let (clock, time) = Clock::manual();
    let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
    let meter = ShardMeter::new(10);
    time.block_on(async {
        let builder = ShardDirectory::builder(store, "orders", Default::default()).clock(&clock).meter(&meter);
        let directory = builder.create(&ShardMap::hashed(64, &ids(2)).unwrap()).await.unwrap();
        for key in 0..100_u64 {
            directory.route(&(key / 50), |_| async { Ok::<_, ShardError<()>>(()) }).await.unwrap();
        }
        let load = meter.load(2);
        assert_eq!(load.shards.iter().map(|(_, n)| n).sum::<u64>(), 100);
        assert_eq!(load.hottest.iter().map(|key| key.count).collect::<Vec<_>>(), [50, 50]);
    });
}
