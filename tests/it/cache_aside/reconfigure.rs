//! A cache whose configuration is replaced while it is in use.
use std::sync::atomic::Ordering::SeqCst;

use steadfast::{
    cache_aside::{CacheAsideEvent, RemoteConfig, StaleConfig},
    testing::{PortAnswer, ScriptedPort},
};

use crate::cache_aside::{
    tiers::asked,
    world::{MIN, MS, S, World, codec, plain},
};

#[test]
fn entries_keep_their_times_and_the_next_loads_use_the_new_ones() {
    let world = World::new();
    let cache = world.cache(plain().ttl(S(100)));
    let clone = cache.clone();
    let mut events = cache.events();
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    clone.reconfigure(cache.config().ttl(S(1000)).stale(StaleConfig::new(MIN(60)))).unwrap();
    assert_eq!(events.try_recv().unwrap().unwrap().what, CacheAsideEvent::ConfigChanged);
    assert_eq!(world.get(&cache, 2).unwrap(), 1);
    world.source.set(2);
    world.pass(S(99));
    assert_eq!((world.get(&cache, 1).unwrap(), world.get(&cache, 2).unwrap()), (1, 1));
    world.pass(S(1));
    assert_eq!((world.get(&cache, 1).unwrap(), world.get(&cache, 2).unwrap()), (2, 1));
    // The new values may be served stale.
    world.source.fails.store(true, SeqCst);
    world.pass(S(1500));
    assert_eq!((world.get(&cache, 1).unwrap(), world.get(&cache, 2).unwrap()), (2, 1));
}

#[test]
fn a_smaller_capacity_evicts_at_once_and_a_larger_one_holds_more() {
    let world = World::new();
    let cache = world.builder(plain().capacity(100)).weigher(|_, _| 1).build().unwrap();
    let fill = || (0..200).for_each(|key| assert_eq!(world.get(&cache, key).unwrap(), 1));
    fill();
    assert!((90..=100).contains(&cache.stats().entries), "{:?}", cache.stats());
    cache.reconfigure(cache.config().capacity(10)).unwrap();
    assert!(cache.stats().entries <= 10, "{:?}", cache.stats());
    cache.reconfigure(cache.config().capacity(150)).unwrap();
    fill();
    assert!((130..=150).contains(&cache.stats().entries), "{:?}", cache.stats());
}

#[test]
fn a_load_and_the_requests_to_the_remote_tier_get_the_new_time_limits() {
    let world = World::new();
    let tier = ScriptedPort::new(&world.clock);
    let cache =
        world.builder(plain()).name("numbers").remote(tier.store(world.store.clone()), codec()).build().unwrap();
    let timed = |key| {
        let start = world.time.now();
        let value = world.get(&cache, key);
        (world.time.now() - start, value.ok())
    };
    tier.always("", PortAnswer::hang());
    assert_eq!(timed(1), (MS(100), Some(1)));
    let remote = RemoteConfig::default().timeout(MS(20)).rest(S(600));
    cache.reconfigure(cache.config().remote(remote).hard_timeout(S(2))).unwrap();
    assert_eq!(timed(2), (MS(20), Some(1)));
    assert_eq!(timed(3), (MS(20), Some(1)));
    // Suspended from now on, for the new cool-down.
    tier.always("", PortAnswer::pass());
    world.pass(S(599));
    asked(&tier, "get");
    assert_eq!((timed(4), asked(&tier, "get")), ((MS(0), Some(1)), 0));
    world.pass(S(2));
    assert_eq!(timed(5), (MS(0), Some(1)));
    assert!(asked(&tier, "get") > 0);
    world.source.takes(S(5));
    let (took, value) = timed(6);
    assert!(value.is_none() && took <= S(4), "{took:?} {value:?}");
}
