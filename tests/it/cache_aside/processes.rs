//! Cache-aside with a remote tier and a backplane: processes that share.
use std::{
    sync::{Arc, Mutex, atomic::Ordering::SeqCst},
    time::Duration,
};

use bytes::Bytes;
use futures::future::join_all;
use steadfast::{
    cache_aside::{CacheAsideConfig, CacheAsideEvent, Loaded, Reached, RemoteCall, RemoteConfig},
    entropy::Entropy,
    notify::{InMemoryNotifier, Notifier},
    store::{InMemoryStore, Key, PutOptions, Scan, Store, StoreExt, StoreFuture, Version},
    testing::{
        drop_at_every_await,
        faults::{FaultClient, FaultConfig, FaultNetwork},
    },
};

use crate::cache_aside::world::{Cache, Error, MIN, MS, S, World, codec, plain};

fn shared() -> CacheAsideConfig {
    plain().ttl(MIN(10)).jitter(Duration::ZERO).remote(RemoteConfig::default().local_ttl(MIN(1)))
}

fn client(world: &World) -> FaultClient {
    FaultNetwork::new(FaultConfig::default(), 1, &world.clock).unwrap().client("a")
}

// Guarantee: cache_aside 1.
#[test]
fn a_key_is_loaded_once_across_processes() {
    let world = World::new();
    let caches: Vec<Cache> = (0..3).map(|i| world.process(shared(), i)).collect();
    world.source.takes(MS(300));
    let gets = (0..300).map(|i| caches[i % 3].get_or_load(&1, || world.source.load()));
    let values = world.run(join_all(gets));
    assert!(values.iter().all(|value| matches!(value, Ok(1))));
    assert_eq!(world.source.loads(), 1);
    assert_eq!(caches.iter().map(|cache| cache.stats().remote_hits).sum::<u64>(), 2);
}

#[test]
fn a_get_waits_for_the_load_of_another_process_up_to_the_configured_time() {
    let world = World::new();
    let caches: Vec<Cache> = (0..2).map(|i| world.process(shared(), i)).collect();
    world.source.takes(S(20));
    let mut first = Box::pin(caches[0].get_or_load(&1, || world.source.load()));
    assert!(world.begin(&mut first).is_pending());
    world.source.takes(Duration::ZERO);
    world.source.set(2);
    let start = world.time.now();
    assert_eq!(world.get(&caches[1], 1).unwrap(), 2);
    let waited = world.time.now() - start;
    assert!(waited >= S(1) && waited < MS(1100), "{waited:?}");
    assert_eq!(world.run(first).unwrap(), 1, "the first load is not disturbed");
    // A process that dies leaves a claim, which expires by itself.
    world.source.takes(S(20));
    let mut dies = Box::pin(caches[0].get_or_load(&7, || world.source.load()));
    assert!(world.begin(&mut dies).is_pending());
    std::mem::forget(dies);
    world.source.takes(Duration::ZERO);
    world.pass(S(31));
    let start = world.time.now();
    assert_eq!(world.get(&caches[1], 7).unwrap(), 2);
    assert_eq!(world.time.now(), start, "no claim is waited for");
}

#[test]
fn a_dropped_load_releases_its_claim() {
    let world = World::new();
    let caches: Vec<Cache> = (0..2).map(|i| world.process(shared(), i)).collect();
    world.source.takes(S(20));
    let mut first = Box::pin(caches[0].get_or_load(&1, || world.source.load()));
    assert!(world.begin(&mut first).is_pending());
    drop(first);
    world.turn();
    world.source.takes(Duration::ZERO);
    let start = world.time.now();
    assert_eq!(world.get(&caches[1], 1).unwrap(), 1);
    assert_eq!(world.time.now(), start);
    // The claim's own process does not wait for it.
    let mut again = Box::pin(caches[0].get_or_load(&2, std::future::pending::<Result<u64, Error>>));
    assert!(world.begin(&mut again).is_pending());
    drop(again);
    assert_eq!(world.get(&caches[0], 2).unwrap(), 1);
    assert_eq!(world.time.now(), start);
}

#[test]
fn an_update_is_seen_by_another_process_once_it_has_received_the_notice() {
    let world = World::new();
    let (a, b) = (world.process(shared(), 1), world.process(shared(), 2));
    assert_eq!((world.get(&a, 1).unwrap(), world.get(&b, 1).unwrap(), world.source.loads()), (1, 1, 1));
    let source = &world.source;
    let written = world.run(a.update(&1, async {
        source.set(2);
        Ok::<_, Error>(())
    }));
    assert_eq!(written, Ok(()));
    world.turn();
    assert_eq!((world.get(&b, 1).unwrap(), world.get(&a, 1).unwrap(), world.source.loads()), (2, 2, 2));
    // A value that was put needs no load.
    assert_eq!(world.run(a.put(&1, 3)), Reached::Everywhere);
    world.turn();
    assert_eq!((world.get(&b, 1).unwrap(), world.get(&a, 1).unwrap(), world.source.loads()), (3, 3, 2));
}

#[test]
fn without_a_backplane_the_local_time_to_live_is_the_bound() {
    let world = World::new();
    let alone = |seed| {
        let builder = world.builder(shared()).name("numbers").entropy(&Entropy::from_seed(seed));
        builder.remote(world.store.clone(), codec()).build().unwrap()
    };
    let (a, b): (Cache, Cache) = (alone(1), alone(2));
    assert_eq!((world.get(&a, 1).unwrap(), world.get(&b, 1).unwrap()), (1, 1));
    world.source.set(2);
    assert_eq!(world.run(a.invalidate(&1)), Reached::Everywhere);
    world.pass(MIN(1) - MS(1));
    assert_eq!(world.get(&b, 1).unwrap(), 1);
    world.pass(MS(1));
    assert_eq!(world.get(&b, 1).unwrap(), 2);
}

// Guarantee: cache_aside 10.
#[test]
fn while_the_remote_tier_is_down_gets_do_not_wait_for_it_again_and_again() {
    let world = World::new();
    let client = client(&world);
    let config = shared().remote(RemoteConfig::default().local_ttl(MIN(1)).timeout(MS(50)).rest(S(5)));
    let cache = world.process_on(client.store(world.store.clone()), config, 1);
    let mut events = cache.events();
    client.cut();
    let start = world.time.now();
    for key in 0..100 {
        assert_eq!(world.get(&cache, key).unwrap(), 1);
    }
    assert!(world.time.now() - start <= MS(50), "{:?}", world.time.now() - start);
    assert_eq!(cache.stats().faults, 1);
    let event = events.try_recv().unwrap().unwrap().what;
    assert!(matches!(event, CacheAsideEvent::RemoteFailed { call: RemoteCall::Look, .. }), "{event:?}");
    // The local tier serves as before.
    for key in 0..100 {
        assert_eq!(world.get(&cache, key).unwrap(), 1);
    }
    assert_eq!(world.source.loads(), 100);
}

// Guarantee: cache_aside 10.
#[test]
fn when_the_remote_tier_comes_back_nothing_older_overwrites_something_newer() {
    let world = World::new();
    let client = client(&world);
    let (a, b) = (world.process_on(client.store(world.store.clone()), shared(), 1), world.process(shared(), 2));
    // An invalidation during the outage is pending, and delivered later. Until then this process does
    // not use the remote tier for the key.
    assert_eq!((world.get(&a, 1).unwrap(), world.get(&b, 1).unwrap()), (1, 1));
    client.cut();
    world.source.set(2);
    let mut events = a.events();
    assert_eq!(world.run(a.invalidate(&1)), Reached::ThisProcess);
    assert_eq!(world.get(&a, 1).unwrap(), 2);
    assert_eq!(world.get(&b, 1).unwrap(), 1, "it could not be notified");
    // The same holds for a put, and for a value that is loaded without the remote tier.
    assert_eq!(world.run(a.put(&2, 20)), Reached::ThisProcess);
    assert_eq!(world.get(&a, 2).unwrap(), 20);
    world.pass(S(3));
    client.heal();
    world.pass(S(2));
    assert_eq!((world.get(&b, 1).unwrap(), world.get(&a, 1).unwrap()), (2, 2));
    let told: Vec<_> = std::iter::from_fn(|| events.try_recv().unwrap()).map(|event| event.what).collect();
    assert!(
        told.contains(&CacheAsideEvent::InvalidationPending { pending_invalidations: 1 })
            && told.contains(&CacheAsideEvent::InvalidationsDelivered),
        "{told:?}"
    );

    // The value in the remote tier is older than the one that this process loaded meanwhile.
    world.source.set(3);
    assert_eq!(world.get(&a, 5).unwrap(), 3);
    world.pass(MIN(1));
    client.cut();
    world.source.set(4);
    assert_eq!(world.get(&a, 5).unwrap(), 4, "its local time to live is over, and the remote tier is down");
    client.heal();
    world.pass(MIN(1));
    assert_eq!(world.get(&a, 5).unwrap(), 4, "and not 3 again");
}

// Guarantee: cache_aside 10.
#[test]
fn a_late_request_of_a_put_overwrites_nothing_newer() {
    // Many replies to a are lost, and many of its requests arrive late or twice.
    for seed in 0..200 {
        let world = World::new();
        let config = FaultConfig::default().lost_replies(0.4).late(0.4).doubled(0.3).latency(MS(1), MS(30));
        let network = FaultNetwork::new(config, seed, &world.clock).unwrap();
        let a = world.process_on(network.client("a").store(world.store.clone()), shared(), 1);
        let b = world.process(shared(), 2);
        let _ = world.run(a.put(&1, 1));
        world.pass(MS(seed % 50));
        assert_eq!(world.run(b.put(&1, 2)), Reached::Everywhere);
        world.pass(S(40));
        // The store holds nothing or the last put.
        world.source.set(2);
        assert_eq!(world.get(&b, 1).unwrap(), 2, "seed {seed}");
        world.pass(MIN(2));
        assert_eq!(world.get(&b, 1).unwrap(), 2, "seed {seed}");
        assert_eq!(world.get(&a, 1).unwrap(), 2, "seed {seed}");
    }
}

// Guarantee: cache_aside 11.
#[test]
fn a_notice_follows_the_remote_write_and_a_gap_expires_older_entries() {
    let world = World::new();
    let (a, b) = (world.process(shared(), 1), world.process(shared(), 2));
    let mut heard = world.run(world.notifier.subscribe("steadfast/cache/numbers")).unwrap();
    // A notice has a key and a version, never a value, and the store already has that version.
    let _ = world.run(a.put(&1, 777_777));
    let steadfast::notify::Notice::Message(notice) = world.run(heard.recv()) else { panic!() };
    let text = std::str::from_utf8(&notice).unwrap();
    assert!(!text.contains("777777") && text.ends_with("\n1"), "{text:?}");
    let record = world.run(world.store.get(Key::new("cache numbers", "1"))).unwrap().unwrap();
    assert!(text.contains(&format!("row {}", record.version)), "{text:?}");
    assert_eq!(world.get(&b, 1).unwrap(), 777_777);

    // A new subscription may have missed notices.
    let mut events = b.events();
    let lost = world.builder(shared()).name("numbers").entropy(&Entropy::from_seed(3));
    let lost: Cache = lost.remote(world.store.clone(), codec()).backplane(world.notifier.clone()).build().unwrap();
    assert_eq!(world.get(&lost, 1).unwrap(), 777_777);
    let hits = lost.stats().hits;
    assert_eq!(world.get(&lost, 1).unwrap(), 777_777);
    assert_eq!(lost.stats().hits, hits + 1);
    world.run(world.store.delete(Key::new("cache numbers", "1"), Default::default())).unwrap();
    let loops = lost.clone();
    world.background.spawn(async move {
        loops.run(std::future::pending()).await;
    });
    world.turn();
    world.source.set(5);
    assert_eq!(world.get(&lost, 1).unwrap(), 5, "entries older than the gap count as expired");
    assert!(events.try_recv().unwrap().is_none(), "the other process missed nothing");
}

// Guarantee: cache_aside 11.
#[test]
fn no_notice_is_published_if_the_remote_write_failed() {
    let world = World::new();
    let client = client(&world);
    let a = world.process_on(client.store(world.store.clone()), shared(), 1);
    let mut heard = world.run(world.notifier.subscribe("steadfast/cache/numbers")).unwrap();
    client.cut();
    assert_eq!(world.run(a.invalidate(&1)), Reached::ThisProcess);
    let mut told = Box::pin(heard.recv());
    assert!(world.begin(&mut told).is_pending());
    client.heal();
    world.pass(S(2));
    assert!(world.begin(&mut told).is_ready(), "the notice follows later");
}

// Guarantee: cache_aside 12.
/// No wall clock is used; the processes' monotonic clocks are hours apart.
#[test]
fn tags_are_invalidated_by_counters() {
    let world = World::new();
    let a = world.process(shared(), 1);
    let apart = steadfast::time::Clock::manual();
    apart.1.advance(S(7200));
    let b = world.builder(shared()).name("numbers").entropy(&Entropy::from_seed(2)).clock(&apart.0);
    let b: Cache = b.remote(world.store.clone(), codec()).backplane(world.notifier.clone()).build().unwrap();
    let tagged = |cache: &Cache| world.run(cache.get_or_load(&1, || world.source.tagged("t"))).unwrap();
    for round in 0..5 {
        world.source.set(10 + round);
        assert_eq!(tagged(&a), 10 + round);
        // b runs no loop and receives no notices, but its own local tier is empty each time.
        assert_eq!(world.run(b.clear()), Reached::Everywhere);
        world.turn();
        assert_eq!(tagged(&b), 10 + round);
        let by = if round % 2 == 0 { &a } else { &b };
        assert_eq!(world.run(by.invalidate_tag("t")), Reached::Everywhere);
        world.turn();
        assert_eq!(world.run(a.get(&1)), None);
        if round % 2 == 1 {
            assert_eq!(world.run(b.get(&1)), None);
        }
    }
    // A load that began before another process invalidated the tag is stored in neither tier.
    world.source.takes(S(2));
    world.source.set(50);
    let mut load = Box::pin(a.get_or_load(&9, || world.source.tagged("t")));
    assert!(world.begin(&mut load).is_pending());
    world.source.set(51);
    assert_eq!(world.run(b.invalidate_tag("t")), Reached::Everywhere);
    assert_eq!(world.run(load).unwrap(), 50);
    assert_eq!(world.run(b.get(&9)), None);
    assert_eq!(world.run(a.get(&9)), None);
}

// Guarantee: cache_aside 13.
#[test]
fn a_value_that_does_not_decode_is_a_miss() {
    let world = World::new();
    let a = world.process(shared(), 1);
    let mut events = a.events();
    let key = Key::new("cache numbers", "1");
    for older in ["not of this form", "cache 1\nvalue\nttl 600000000000\nborn 0\n\nolder schema"] {
        world.run(a.invalidate(&1));
        world.run(world.store.put(key, older.into(), Default::default())).unwrap();
        let loads = world.source.loads();
        assert_eq!(world.get(&a, 1).unwrap(), 1);
        assert_eq!(world.source.loads(), loads + 1);
        assert_eq!(events.try_recv().unwrap().unwrap().what, CacheAsideEvent::Undecodable);
        // The loaded value replaced it.
        let record = world.run(world.store.get(key)).unwrap().unwrap();
        assert!(record.value.ends_with(b"\nnumber 1"), "{:?}", record.value);
    }
}

#[test]
fn a_value_that_the_store_refuses_stays_in_this_process() {
    let world = World::new();
    let cache: steadfast::cache_aside::CacheAside<String, u64> = steadfast::cache_aside::CacheAside::builder(shared())
        .clock(&world.clock)
        .name("numbers")
        .remote(world.store.clone(), codec())
        .build()
        .unwrap();
    for key in [String::new(), "k".repeat(100_000)] {
        for _ in 0..2 {
            assert_eq!(world.run(cache.get_or_load(&key, || world.source.load())).unwrap(), 1);
        }
        assert_eq!(world.run(cache.put(&key, 2)), Reached::Everywhere);
        assert_eq!(world.run(cache.get(&key)), Some(2));
        assert_eq!(world.run(cache.invalidate(&key)), Reached::Everywhere);
        assert_eq!(world.run(cache.get(&key)), None);
    }
    let long = || async { Ok::<_, Error>(Loaded::new(3).tag("t".repeat(100_000))) };
    assert_eq!(world.run(cache.get_or_load(&"tagged".to_owned(), long)).unwrap(), 3);
    assert_eq!(world.run(cache.get("tagged")), Some(3));
    assert_eq!(world.run(cache.invalidate_tag(&"t".repeat(100_000))), Reached::Everywhere);
    assert_eq!(world.run(cache.get("tagged")), None);
    assert_eq!(world.run(world.store.scan_all(Scan::partition("cache numbers"))).unwrap(), []);
}

// Guarantee: cache_aside 6.
#[test]
fn a_refresh_ahead_replaces_the_value_for_all_processes() {
    let world = World::new();
    let config = shared().refresh_ahead(0.9);
    let (a, b) = (world.process(config, 1), world.process(config, 2));
    assert_eq!((world.get(&a, 1).unwrap(), world.get(&b, 1).unwrap()), (1, 1));
    world.source.set(2);
    for _ in 0..18 {
        world.pass(S(30));
        assert_eq!((world.get(&a, 1).unwrap(), world.get(&b, 1).unwrap()), (1, 1));
    }
    assert_eq!(world.source.loads(), 1, "until 9:00");
    world.pass(S(5));
    // A local copy expires after a minute, and the age of its value is taken from the remote tier.
    for _ in 0..4 {
        let _ = (world.get(&a, 1).unwrap(), world.get(&b, 1).unwrap());
        world.pass(S(20));
    }
    assert_eq!(world.source.loads(), 2, "one of them refreshed it");
    assert_eq!((world.get(&a, 1).unwrap(), world.get(&b, 1).unwrap()), (2, 2));
    assert_eq!(world.source.loads(), 2);
}

#[test]
fn a_refresh_that_finds_nothing_removes_the_value_for_all_processes() {
    let world = World::new();
    let config = shared().remote(RemoteConfig::default().local_ttl(S(599))).refresh_ahead(0.5);
    let (a, b) = (world.process(config, 1), world.process(config, 2));
    assert_eq!((world.get(&a, 1).unwrap(), world.get(&b, 1).unwrap()), (1, 1));
    world.pass(S(301));
    let gone = || async { Ok::<Option<u64>, Error>(None) };
    assert_eq!(world.run(a.get_or_load_optional(&1, gone)).unwrap(), Some(1));
    world.turn();
    assert_eq!(world.run(a.get(&1)), None);
    assert_eq!(world.run(world.store.get(Key::new("cache numbers", "1"))).unwrap(), None);
}

// Guarantee: cache_aside 14.
#[test]
fn a_future_dropped_at_any_await_loses_nothing() {
    let world = World::new();
    let network = FaultNetwork::new(FaultConfig::default().latency(MS(1), MS(1)), 1, &world.clock).unwrap();
    let build = |seed| {
        let builder = world.builder(shared().negative_ttl(S(10))).name("numbers").entropy(&Entropy::from_seed(seed));
        let client = network.client("a");
        let cache: Cache = builder
            .remote(client.store(world.store.clone()), codec())
            .backplane(client.notifier(world.notifier.clone()))
            .build()
            .unwrap();
        cache
    };
    let a = build(1);
    world.source.takes(MS(5));
    // Both processes still get the source's value, and no key hangs.
    let check = |polls: usize| {
        world.source.set(world.source.value.load(SeqCst) + 1);
        world.run(async {
            a.clear().await;
            a.run(std::future::ready(())).await
        });
        let now = world.source.value.load(SeqCst);
        let b = build(2); // with an empty local tier
        assert_eq!(world.get(&a, 1).unwrap(), now, "after {polls} polls");
        assert_eq!(world.get(&b, 1).unwrap(), now, "after {polls} polls");
    };
    let load = || world.source.tagged("t");
    let write = || async {
        world.clock.sleep(MS(3)).await;
        Ok::<(), Error>(())
    };
    let missing = || assert_eq!(world.run(a.clear()), Reached::Everywhere);
    let polls = [
        drop_at_every_await(&world.time, || (missing(), a.get_or_load(&1, load)).1, check),
        drop_at_every_await(&world.time, || (missing(), a.get(&1)).1, check),
        drop_at_every_await(&world.time, || a.put(&1, Loaded::new(0).tag("t")), check),
        drop_at_every_await(&world.time, || a.invalidate(&1), check),
        drop_at_every_await(&world.time, || a.invalidate_tag("t"), check),
        drop_at_every_await(&world.time, || a.clear(), check),
        drop_at_every_await(&world.time, || a.update(&1, write()), check),
    ];
    assert!(polls.iter().all(|polls| *polls >= 2), "{polls:?}");
}

#[test]
fn a_name_that_is_too_long_for_the_store_is_refused() {
    let world = World::new();
    let notifier: Arc<dyn Notifier> = Arc::new(InMemoryNotifier::new());
    let long = "n".repeat(100_000);
    let error = world.builder(shared()).name(long).remote(world.store.clone(), codec()).backplane(notifier).build();
    assert_eq!(error.unwrap_err().field(), "name");
}

/// A store that delays writes of values, but not of claims, until the test lets them arrive, long
/// after the caller has given up.
#[derive(Debug)]
struct Slow {
    store: Arc<InMemoryStore>,
    on_the_way: Mutex<Vec<(String, Bytes, PutOptions)>>,
}

impl Slow {
    fn arrive(&self, world: &World) {
        for (row, value, options) in std::mem::take(&mut *self.on_the_way.lock().unwrap()) {
            let _ = world.run(self.store.put(Key::new("cache numbers", &row), value, options));
        }
    }
}

impl Store for Slow {
    forward_store! { store: capabilities, get, delete, scan, batch }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        if value.windows(7).any(|part| part == b"\nvalue\n") {
            self.on_the_way.lock().unwrap().push((key.row.to_owned(), value, options));
            return Box::pin(std::future::pending());
        }
        self.store.put(key, value, options)
    }
}

// Guarantee: cache_aside 10.
#[test]
fn a_write_that_arrives_late_overwrites_nothing_newer() {
    let world = World::new();
    let slow = Arc::new(Slow { store: world.store.clone(), on_the_way: Mutex::default() });
    let (a, b) = (world.process_on(slow.clone(), shared(), 1), world.process(shared(), 2));
    // A put whose second request is delayed.
    assert_eq!(world.run(a.put(&1, 1)), Reached::ThisProcess);
    world.pass(S(2));
    assert_eq!(world.run(b.put(&1, 2)), Reached::Everywhere);
    slow.arrive(&world);
    world.source.set(2);
    world.pass(MIN(2));
    assert_eq!((world.get(&b, 1).unwrap(), world.get(&a, 1).unwrap()), (2, 2));
    // The same for a load.
    world.source.set(3);
    assert_eq!(world.get(&a, 9).unwrap(), 3);
    world.source.set(4);
    assert_eq!(world.run(b.invalidate(&9)), Reached::Everywhere);
    slow.arrive(&world);
    world.turn();
    assert_eq!((world.get(&b, 9).unwrap(), world.get(&a, 9).unwrap()), (4, 4));
}

#[test]
fn a_put_that_another_process_invalidates_meanwhile_stays_nowhere() {
    let world = World::new();
    let network = FaultNetwork::new(FaultConfig::default().latency(MS(10), MS(10)), 1, &world.clock).unwrap();
    let a = world.process_on(network.client("a").store(world.store.clone()), shared(), 1);
    let b = world.process(shared(), 2);
    let mut put = Box::pin(a.put(&1, 5));
    assert!(world.begin(&mut put).is_pending());
    // The invalidation precedes the put's claim, and its notice arrives before the put's value.
    world.source.set(7);
    assert_eq!(world.run(b.invalidate(&1)), Reached::Everywhere);
    world.run(put);
    world.turn();
    assert_eq!((world.get(&b, 1).unwrap(), world.get(&a, 1).unwrap()), (7, 7));
}
