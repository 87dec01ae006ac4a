//! Cache-aside: the considerations of the pattern's source that a default, an event, an option or a refusal
//! meets.
use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use steadfast::{
    cache_aside::{CacheAsideConfig, CacheAsideEvent, RemoteCall},
    testing::faults::{FaultConfig, FaultNetwork},
};

use crate::cache_aside::world::{Error, MIN, MS, S, World};

fn default() -> CacheAsideConfig {
    CacheAsideConfig::default()
}

#[test]
fn by_default_a_cached_value_lives_for_about_a_minute() {
    let world = World::new();
    let cache = world.cache(default());
    world.get(&cache, 1).unwrap();
    world.pass(MIN(1) - MS(1));
    world.get(&cache, 1).unwrap();
    assert_eq!(world.source.loads(), 1, "not loaded for ever");
    world.pass(S(10));
    world.get(&cache, 1).unwrap();
    assert_eq!(world.source.loads(), 2, "nor stale for ever");
}

#[test]
fn a_cache_stays_within_its_bound_and_what_is_heavy_counts_for_more() {
    let world = World::new();
    let cache = world.builder(default().capacity(1_000)).weigher(|_, value| *value).build().unwrap();
    (0..1_000).for_each(|key| {
        world.run(cache.put(&key, if key % 2 == 0 { 5 } else { 50 }));
    });
    let kept: u64 = (0..1_000).filter_map(|key| world.run(cache.get(&key))).sum();
    assert!((1..=1_000).contains(&kept), "{kept}");
}

#[test]
fn priming_a_cache_replaces_no_load_on_demand() {
    let world = World::new();
    let cache = world.cache(default());
    cache.prime([(1, 10)]);
    assert_eq!((world.get(&cache, 1).unwrap(), world.get(&cache, 2).unwrap()), (10, 1));
    assert_eq!(world.source.loads(), 1);
}

#[test]
fn a_source_that_changes_behind_the_cache_is_served_stale_for_no_longer_than_the_time_to_live() {
    let world = World::new();
    let cache = world.cache(default());
    world.get(&cache, 1).unwrap();
    world.source.set(2);
    world.pass(default().ttl + default().jitter + MS(1));
    assert_eq!(world.get(&cache, 1).unwrap(), 2);
}

#[test]
fn a_backplane_that_fails_is_an_event() {
    let world = World::new();
    let network = FaultNetwork::new(FaultConfig::default(), 1, &world.clock).unwrap();
    let client = network.client("other");
    let cache = world
        .builder(default())
        .name("numbers")
        .remote(world.store.clone(), crate::cache_aside::world::codec())
        .backplane(client.notifier(world.notifier.clone()))
        .build()
        .unwrap();
    let mut events = cache.events();
    client.cut();
    world.run(cache.invalidate(&1));
    let told: Vec<_> = std::iter::from_fn(|| events.try_recv().unwrap()).map(|event| event.what).collect();
    assert!(
        told.iter().any(|told| matches!(told, CacheAsideEvent::RemoteFailed { call: RemoteCall::Notify, .. })),
        "{told:?}"
    );
}

#[test]
fn an_update_writes_the_source_first_and_invalidates_then() {
    let world = World::new();
    let cache = world.cache(default());
    world.get(&cache, 1).unwrap();
    let seen = cache.clone();
    let write = async {
        let before = seen.get(&1).await;
        world.source.set(2);
        Ok::<_, Error>(before)
    };
    assert_eq!(world.run(cache.update(&1, write)), Ok(Some(1)), "the copy is there until the source is written");
    assert_eq!((world.run(cache.get(&1)), world.get(&cache, 1).unwrap()), (None, 2));
}

#[test]
fn a_cache_that_fails_fails_no_call() {
    let world = World::new();
    let network = FaultNetwork::new(FaultConfig::default(), 1, &world.clock).unwrap();
    let client = network.client("cache");
    let cache = world.process_on(client.store(world.store.clone()), default(), 1);
    client.cut();
    for key in 0..20 {
        assert_eq!(world.get(&cache, key).unwrap(), 1);
    }
    assert!(!world.source.fails.load(SeqCst) && world.source.loads() == 20);
}

#[test]
fn an_absent_value_is_asked_for_again_by_default() {
    let world = World::new();
    let cache = world.cache(default());
    let nothing = || {
        let load = world.source.load();
        async move { load.await.map(|_| None::<u64>) }
    };
    for n in 1..=3 {
        assert_eq!(world.run(cache.get_or_load_optional(&1, nothing)).unwrap(), None);
        assert_eq!(world.source.loads(), n);
    }
    assert_eq!(default().negative_ttl, None::<Duration>);
}
