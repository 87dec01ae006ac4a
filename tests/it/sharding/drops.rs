//! Futures of sharding, dropped at every await point: no map is partly changed, no task blocks
//! another, and no operation continues.
use std::{cell::Cell, sync::Arc, time::Duration};

use steadfast::{
    notify::{InMemoryNotifier, Notifier},
    sharding::{
        Access, FanOut, FanOutConfig, Routed, ShardDirectory, ShardDirectoryBuilder, ShardError, ShardGuard, ShardId,
        ShardMap,
    },
    store::{InMemoryStore, Key, Store},
    testing::{
        drop_at_every_await,
        faults::{FaultConfig, FaultNetwork},
    },
    time::{Clock, ManualClock},
};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn ids(n: u32) -> Vec<ShardId> {
    (0..n).map(ShardId).collect()
}

/// The record of a map behind a slow network.
struct Scene {
    time: ManualClock,
    clock: Clock,
    store: Arc<InMemoryStore>,
    network: FaultNetwork,
    notifier: Arc<InMemoryNotifier>,
}

impl Scene {
    fn new() -> Self {
        let (clock, time) = Clock::manual();
        let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
        let network = FaultNetwork::new(FaultConfig::default().latency(MS(1), MS(1)), 1, &clock).unwrap();
        Self { time, clock, store, network, notifier: Arc::new(InMemoryNotifier::new()) }
    }

    fn builder(&self, name: &'static str) -> ShardDirectoryBuilder {
        let client = self.network.client("a");
        let notifier: Arc<dyn Notifier> = client.notifier(self.notifier.clone());
        let store = Arc::new(client.store(self.store.clone()));
        ShardDirectory::builder(store, name, Default::default()).clock(&self.clock).notifier(notifier)
    }

    fn directory(&self, first: &ShardMap) -> ShardDirectory {
        self.time.block_on(self.builder("orders").create(first)).unwrap()
    }

    /// Returns the recorded map.
    fn recorded(&self, name: &'static str) -> Option<ShardMap> {
        let record = self.time.block_on(self.store.get(Key::new("shard-maps", name))).unwrap()?;
        Some(ShardMap::from_text(std::str::from_utf8(&record.value).unwrap()).expect("whole"))
    }
}

#[test]
fn dropped_at_every_await_a_directory_is_created_whole_or_not_at_all() {
    let (scene, first) = (Scene::new(), ShardMap::hashed(64, &ids(3)).unwrap());
    let (name, seen) = (Cell::new(0), Cell::new(0));
    const NAMES: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
    let polls = drop_at_every_await(
        &scene.time,
        || {
            let (builder, first) = (scene.builder(NAMES[name.get()]), &first);
            async move { builder.create(first).await.unwrap() }
        },
        |_| {
            let recorded = scene.recorded(NAMES[name.get()]);
            assert!(recorded.as_ref().is_none_or(|map| *map == first));
            seen.set(seen.get() | 1 << u8::from(recorded.is_some()));
            // A second call succeeds.
            let again = scene.time.block_on(scene.builder(NAMES[name.get()]).create(&first)).unwrap();
            assert_eq!(*again.map(), first);
            name.set(name.get() + 1);
        },
    );
    assert!(polls >= 3 && seen.get() == 3, "{polls} {}", seen.get());
    let polls = drop_at_every_await(&scene.time, || scene.builder("a").open(), |_| ());
    assert!(polls >= 2 && scene.recorded("a") == Some(first), "{polls}");
}

#[test]
fn dropped_at_every_await_a_change_is_made_whole_or_not_at_all_and_blocks_no_other() {
    let scene = Scene::new();
    let directory = scene.directory(&ShardMap::lookup());
    let (made, missed) = (Cell::new(0), Cell::new(0));
    let key = Cell::new(0_u64);
    let polls = drop_at_every_await(
        &scene.time,
        || {
            let key = key.get();
            directory.change(move |map| map.pin(&key, ShardId(7)))
        },
        |_| {
            let before = scene.recorded("orders").unwrap();
            let counted = if before.shard_of(&key.get()).is_some() { &made } else { &missed };
            counted.set(counted.get() + 1);
            assert!(directory.map().version() <= before.version(), "no copy is newer than the record");
            // The next change applies to the current record.
            let next = key.get() + 1_000;
            let map = scene.time.block_on(directory.change(|map| map.pin(&next, ShardId(8)))).unwrap();
            assert_eq!((map.version(), map.chunks().len()), (before.version() + 1, before.chunks().len() + 1));
            key.set(key.get() + 1);
        },
    );
    assert!(polls >= 3 && made.get() > 0 && missed.get() > 0, "{polls} {} {}", made.get(), missed.get());
}

#[test]
fn dropped_at_every_await_a_refresh_lets_the_next_one_read() {
    let scene = Scene::new();
    let (directory, other) = (scene.directory(&ShardMap::lookup()), scene.directory(&ShardMap::lookup()));
    let key = Cell::new(0_u64);
    let polls = drop_at_every_await(
        &scene.time,
        || directory.refresh(),
        |_| {
            let known = directory.map().version();
            let next = key.get();
            let newest = scene.time.block_on(other.change(move |map| map.pin(&next, ShardId(1)))).unwrap().version();
            assert!(known < newest);
            let mut again = Box::pin(directory.refresh());
            let read = scene.time.block_on(async {
                tokio::select! {
                    map = &mut again => Some(map.unwrap().version()),
                    () = scene.clock.sleep(MS(10)) => None,
                }
            });
            assert_eq!(read, Some(newest), "no task blocks it");
            key.set(key.get() + 1);
        },
    );
    assert!(polls >= 2, "{polls}");
}

#[test]
fn dropped_at_every_await_a_routed_call_releases_its_permit_and_the_next_succeeds() {
    let scene = Scene::new();
    let map = ShardMap::hashed(64, &ids(2)).unwrap();
    let directory = scene.directory(&map);
    let guards = [0, 1].map(|shard| ShardGuard::new(ShardId(shard), directory.map()));
    let running = Cell::new(0);
    let (clock, done) = (&scene.clock, Cell::new(0));
    let call = |to: Routed| {
        let (guards, running, done) = (&guards, &running, &done);
        async move {
            let _permit = guards[to.shard.0 as usize].enter("key", Access::Write, to.version)?;
            let _running = Running::new(running);
            clock.sleep(MS(5)).await;
            done.set(done.get() + 1);
            Ok::<_, ShardError<()>>(())
        }
    };
    // The first response is that the key is being moved, so that the call also waits and refreshes.
    let refused = Cell::new(true);
    let polls = drop_at_every_await(
        &scene.time,
        || {
            refused.set(true);
            directory.route("key", |to| {
                let first = refused.replace(false);
                async move { if first { Err(steadfast::sharding::Refused::Moving.into()) } else { call(to).await } }
            })
        },
        |_| {
            assert_eq!(running.get(), 0, "no operation continues");
            assert!(guards.iter().all(|guard| format!("{guard:?}").contains("permits: 0")), "{guards:?}");
            let before = done.get();
            scene.time.block_on(directory.route("key", call)).unwrap();
            assert_eq!(done.get(), before + 1);
        },
    );
    assert!(polls >= 4, "{polls}");
}

/// Counted while it exists.
struct Running<'a>(&'a Cell<usize>);

impl<'a> Running<'a> {
    fn new(count: &'a Cell<usize>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

#[test]
fn dropped_at_every_await_a_fan_out_drops_its_operations_and_starts_no_other() {
    let (clock, time) = Clock::manual();
    let fan_out = FanOut::builder(FanOutConfig::default().max_concurrency(2)).clock(&clock).build().unwrap();
    let (running, asked) = (Cell::new(0), Cell::new(0));
    let operation = |shard: ShardId| {
        asked.set(asked.get() + 1);
        let (clock, running) = (&clock, &running);
        async move {
            let _running = Running::new(running);
            clock.sleep(MS(1 + u64::from(shard.0))).await;
            Ok::<_, ()>(())
        }
    };
    let shards = ids(5);
    let mut most = 0;
    let polls = drop_at_every_await(
        &time,
        || {
            asked.set(0);
            fan_out.run(&shards, operation)
        },
        |_| {
            assert_eq!(running.get(), 0);
            let before = asked.get();
            most = most.max(before);
            time.advance(Duration::from_secs(60));
            assert_eq!(asked.get(), before);
        },
    );
    assert!(polls >= 4 && most == 5, "{polls} {most}");

    let scene = Scene::new();
    let directory = scene.directory(&ShardMap::hashed(64, &shards).unwrap());
    let fan_out = FanOut::builder(FanOutConfig::default().max_concurrency(2)).clock(&scene.clock).build().unwrap();
    let clock = &scene.clock;
    let operation = |shard: ShardId, _| {
        let running = &running;
        async move {
            let _running = Running::new(running);
            clock.sleep(MS(1 + u64::from(shard.0))).await;
            Ok::<_, ()>(())
        }
    };
    let polls = drop_at_every_await(
        &scene.time,
        || directory.query_all(&fan_out, operation),
        |_| {
            assert_eq!(running.get(), 0);
            assert!(scene.time.block_on(directory.refresh()).is_ok(), "the check after the query blocks no task");
        },
    );
    assert!(polls >= 6, "{polls}");
}

#[test]
fn dropped_at_every_await_the_refresh_loop_keeps_its_copy_and_can_run_again() {
    let scene = Scene::new();
    let (directory, other) = (scene.directory(&ShardMap::lookup()), scene.directory(&ShardMap::lookup()));
    let key = Cell::new(0_u64);
    let change = || {
        key.set(key.get() + 1);
        let next = key.get();
        scene.time.block_on(other.change(move |map| map.pin(&next, ShardId(1)))).unwrap().version()
    };
    let heard = |newest: u64| {
        let run = directory.run(scene.clock.sleep(Duration::from_secs(40)));
        scene.time.block_on(run);
        assert_eq!(directory.map().version(), newest, "it looks");
    };
    let polls = drop_at_every_await(
        &scene.time,
        || directory.run(scene.clock.sleep(Duration::from_secs(70))),
        |_| {
            let (known, newest) = (directory.map().version(), change());
            assert!(known < newest && directory.map().version() == known);
            heard(newest);
        },
    );
    assert!(polls >= 4, "{polls}");
}
