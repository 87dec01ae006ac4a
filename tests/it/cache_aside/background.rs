//! Writes of loaded values to the remote tier in the background.
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::Poll,
    time::Duration,
};

use steadfast::{
    cache_aside::{CacheAside, CacheAsideConfig, CacheAsideEvent, RemoteConfig},
    codec::Codec,
    entropy::Entropy,
    notify::InMemoryNotifier,
    store::{Key, Store},
    testing::{PortAnswer, PortCall, ScriptedPort},
};

use crate::cache_aside::{
    tiers::after,
    world::{Cache, Error, MIN, MS, S, Task, World, codec, plain},
};

fn config(most: u32) -> CacheAsideConfig {
    plain().remote(RemoteConfig::default().local_ttl(S(60)).background_writes(most))
}

/// A tier that answers at once, except that each second write of a row, its value, takes this long.
fn slow_writes(world: &World, takes: Duration) -> Arc<dyn Store> {
    let tier = ScriptedPort::new(&world.clock);
    let mut claimed = std::collections::HashSet::new();
    tier.by(move |PortCall { method, target: row, .. }| {
        if *method != "put" || row.starts_with("tag") || row == "sequence" {
            return PortAnswer::pass();
        }
        if claimed.insert(row.clone()) {
            return PortAnswer::pass();
        }
        claimed.remove(row);
        after(takes)
    });
    tier.store(world.store.clone())
}

/// Returns the number in the row of the key, or `None` for a claim or no row.
fn row(world: &World, key: &str) -> Option<String> {
    let record = world.run(world.store.get(Key::new("cache numbers", key))).unwrap()?;
    let text = String::from_utf8_lossy(&record.value).into_owned();
    Some(text.rsplit('\n').next().unwrap().to_owned()).filter(|text| !text.is_empty())
}

fn now(world: &World, cache: &Cache, key: u32) -> u64 {
    let mut get = Box::pin(cache.get_or_load(&key, || world.source.load()));
    let Poll::Ready(got) = world.begin(&mut get) else { panic!("the get waits") };
    got.unwrap()
}

// Guarantee: cache_aside 19.
#[test]
fn a_load_returns_before_its_value_is_in_the_remote_tier_which_gets_it_in_the_background() {
    let world = World::new();
    let a = world.process_on(slow_writes(&world, MS(50)), config(8), 1);
    let b = world.process(config(8), 2);
    assert_eq!(now(&world, &a, 1), 1);
    assert_eq!((now(&world, &a, 1), a.stats().hits, row(&world, "1")), (1, 1, None));
    // Another process waits for the write as for a load.
    assert_eq!(world.get(&b, 1).unwrap(), 1);
    assert_eq!((world.source.loads(), row(&world, "1").as_deref()), (1, Some("number 1")));
    // This process knows that its value is the one there, and takes it again when its own copy expires.
    world.pass(S(61));
    assert_eq!(now(&world, &a, 1), 1);
    assert_eq!((world.source.loads(), a.stats().remote_hits), (1, 1));
}

// Guarantee: cache_aside 19.
#[test]
fn a_background_write_overtakes_no_invalidation_and_no_put() {
    for (by, other, notified) in
        [0, 1, 2, 3].into_iter().flat_map(|by| [(by, false, true), (by, true, true), (by, true, false)])
    {
        let what = format!("{by}, by another process: {other}, notified: {notified}");
        let world = World::new();
        let a = world.process_on(slow_writes(&world, MS(50)), config(8), 1);
        let b = if notified {
            world.process(config(8), 2)
        } else {
            let builder = world.builder(config(8)).name("numbers").entropy(&Entropy::from_seed(2));
            builder.remote(world.store.clone(), codec()).backplane(Arc::new(InMemoryNotifier::new())).build().unwrap()
        };
        let mut get = Box::pin(a.get_or_load(&1, || world.source.tagged("t")));
        assert!(matches!(world.begin(&mut get), Poll::Ready(Ok(1))), "{what}");
        world.source.set(2);
        let by_whom = if other { &b } else { &a };
        let put = async {
            match by {
                0 => by_whom.invalidate(&1).await,
                1 => by_whom.put(&1, 42).await,
                2 => by_whom.clear().await,
                _ => by_whom.invalidate_tag("t").await,
            }
        };
        world.run(put);
        world.pass(MS(200));
        // Without a notice, the tag is known only when the local copy expires.
        if by == 3 && !notified {
            world.pass(S(61));
        }
        let expected = if by == 1 { 42 } else { 2 };
        assert_eq!(world.get(&a, 1).unwrap(), expected, "{what}");
        world.pass(MS(200));
        assert_eq!(world.get(&b, 1).unwrap(), expected, "{what}: the other process");
        assert_ne!(row(&world, "1").as_deref(), Some("number 1"), "{what}");
    }
}

// Guarantee: cache_aside 19.
#[test]
fn a_write_above_the_bound_is_made_within_the_call() {
    let world = World::new();
    let cache = world.process_on(slow_writes(&world, MS(50)), config(2), 1);
    assert_eq!((now(&world, &cache, 1), now(&world, &cache, 2)), (1, 1));
    let start = world.time.now();
    assert_eq!(world.get(&cache, 3).unwrap(), 1);
    assert_eq!((world.time.now() - start, row(&world, "3").as_deref()), (MS(50), Some("number 1")));
    // The others have ended, so the next one is in the background again.
    world.turn();
    assert_eq!(now(&world, &cache, 4), 1);
    // By default each is within its call.
    let world = World::new();
    let cache = world.process_on(slow_writes(&world, MS(50)), config(0), 1);
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    assert_eq!(row(&world, "1").as_deref(), Some("number 1"));
}

// Guarantee: cache_aside 19.
#[test]
fn a_flush_and_a_shutdown_wait_for_the_writes_in_progress() {
    let world = World::new();
    let cache = world.process_on(slow_writes(&world, MS(50)), config(8), 1);
    world.run(cache.flush());
    assert_eq!(now(&world, &cache, 1), 1);
    let start = world.time.now();
    let mut flush = Box::pin(cache.flush());
    assert!(world.begin(&mut flush).is_pending());
    world.pass(MS(20));
    assert_eq!(now(&world, &cache, 2), 1);
    world.run(flush);
    assert_eq!(world.time.now() - start, MS(50), "it does not wait for writes that started later");
    assert_eq!((row(&world, "1").as_deref(), row(&world, "2")), (Some("number 1"), None));
    assert_eq!(world.run(cache.run(std::future::ready(()))), 0);
    assert_eq!(row(&world, "2").as_deref(), Some("number 1"));
    assert_eq!(cache.stats().faults, 0);
}

#[test]
fn a_write_whose_task_is_dropped_leaves_no_claim_behind() {
    let world = World::new();
    let tasks: Arc<Mutex<Vec<Task>>> = Arc::default();
    let spawned = tasks.clone();
    let builder = world.builder(config(8)).name("numbers").spawner(move |task| spawned.lock().unwrap().push(task));
    let a: Cache = builder.remote(world.store.clone(), codec()).build().unwrap();
    assert_eq!(now(&world, &a, 1), 1);
    let mut flush = Box::pin(a.flush());
    assert!(world.begin(&mut flush).is_pending());
    tasks.lock().unwrap().clear();
    assert!(world.begin(&mut flush).is_ready());
    assert_eq!(world.run(a.run(std::future::ready(()))), 0);
    assert!(world.run(world.store.get(Key::new("cache numbers", "1"))).unwrap().is_none(), "the claim is released");
    assert_eq!(now(&world, &a, 1), 1);
    assert_eq!(world.source.loads(), 1);
}

// Guarantee: cache_aside 19.
#[test]
fn a_write_that_fails_releases_its_claim_and_leaves_the_value_in_this_process() {
    let world = World::new();
    let tier = slow_writes(&world, S(10));
    let a = world.process_on(tier, config(8), 1);
    let mut events = a.events();
    assert_eq!(now(&world, &a, 1), 1);
    world.pass(MS(300));
    assert!(matches!(events.try_recv().unwrap().unwrap().what, CacheAsideEvent::RemoteFailed { .. }));
    assert_eq!((now(&world, &a, 1), world.source.loads()), (1, 1));
    let record = world.run(world.store.get(Key::new("cache numbers", "1"))).unwrap();
    assert!(record.is_none(), "the claim is released");
    let b = world.process(config(0), 2);
    assert_eq!(now(&world, &b, 1), 1, "without a wait");
    world.pass(MIN(2));
    world.run(a.flush());
}

/// A value whose next clone panics on demand.
struct Touchy(Arc<AtomicBool>);

impl Clone for Touchy {
    fn clone(&self) -> Self {
        assert!(!self.0.swap(false, SeqCst), "a clone panics");
        Self(self.0.clone())
    }
}

/// The write stayed counted, so that `flush` never returned, and its claim stayed in the tier.
#[test]
fn a_value_whose_clone_panics_leaves_no_background_write_behind() {
    let world = World::new();
    let (background, panics) = (world.background.clone(), Arc::new(AtomicBool::new(true)));
    let decoded = panics.clone();
    let codec = Codec::new(|_: &Touchy| Ok::<_, Error>(Vec::new()), move |_| Ok::<_, Error>(Touchy(decoded.clone())));
    let builder = CacheAside::<u32, Touchy>::builder(config(1)).clock(&world.clock).name("numbers");
    let builder = builder.spawner(move |task| background.spawn(task)).remote(world.store.clone(), codec);
    let cache = builder.build().unwrap();
    let load = || std::future::ready(Ok::<_, Error>(Touchy(panics.clone())));
    assert!(catch_unwind(AssertUnwindSafe(|| world.run(cache.get_or_load(&1, load)).is_ok())).is_err());
    assert!(world.begin(&mut Box::pin(cache.flush())).is_ready());
    assert_eq!(world.run(cache.run(std::future::ready(()))), 0);
    assert!(world.run(world.store.get(Key::new("cache numbers", "1"))).unwrap().is_none(), "the claim is released");
    assert!(world.run(cache.get_or_load(&1, load)).is_ok());
}
