//! Options per call, and settings that a loader returns with its value.
use std::{sync::atomic::Ordering::SeqCst, task::Poll, time::Duration};

use steadfast::{
    cache_aside::{CacheAsideConfig, CacheView, LoadError, LoadOptions, Loaded, RemoteConfig, StaleConfig},
    store::{Key, Store},
};

use crate::cache_aside::world::{Cache, Error, MIN, MS, S, World, plain};

type View = CacheView<u32, u64>;

fn options() -> LoadOptions {
    LoadOptions::default()
}

fn get(world: &World, view: &View) -> Result<u64, LoadError<Error>> {
    world.run(view.get_or_load(&1, || world.source.load()))
}

// Guarantee: cache_aside 18.
#[test]
fn the_options_of_a_call_hold_for_the_load_that_it_starts() {
    let world = World::new();
    let cache = world.cache(plain());
    let short = cache.with(options().ttl(S(5)).tags(["t"])).unwrap();
    assert_eq!(get(&world, &short).unwrap(), 1);
    world.pass(S(4));
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    assert_eq!(world.source.loads(), 1);
    world.run(cache.invalidate_tag("t"));
    assert_eq!(get(&world, &short).unwrap(), 1);
    assert_eq!(world.source.loads(), 2, "invalidated by the tag of the options");
    world.pass(S(5));
    assert_eq!(get(&world, &short).unwrap(), 1);
    assert_eq!(world.source.loads(), 3, "expired after 5 s");
    // What the loader sets wins, and tags add up.
    world.pass(S(5));
    let load = || async { Ok::<_, Error>(Loaded::new(7).ttl(MIN(10)).tag("u")) };
    assert_eq!(world.run(short.get_or_load(&1, load)).unwrap(), 7);
    world.pass(MIN(9));
    assert_eq!(world.get(&cache, 1).unwrap(), 7);
    world.run(cache.invalidate_tag("t"));
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
}

// Guarantee: cache_aside 18.
#[test]
fn concurrent_calls_share_the_load_of_the_one_that_started_it_and_keep_their_own_limits() {
    let world = World::new();
    let cache = world.cache(plain().hard_timeout(S(30)));
    let short = cache.with(options().ttl(S(5)).hard_timeout(S(2))).unwrap();
    world.source.takes(S(3));
    // The plain call starts the load: its limit and its time to live hold.
    let mut first = Box::pin(cache.get_or_load(&1, || world.source.load()));
    assert!(world.begin(&mut first).is_pending());
    let mut second = Box::pin(short.get_or_load(&1, || world.source.load()));
    assert!(world.begin(&mut second).is_pending());
    world.pass(S(2));
    let Poll::Ready(Err(LoadError::TimedOut { after })) = world.begin(&mut second) else { panic!() };
    assert_eq!(after, S(2), "its own limit");
    assert_eq!(world.run(first).unwrap(), 1);
    world.pass(MIN(59));
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    assert_eq!(world.source.loads(), 1);
    // The call with options starts the load: its limit ends the load for both.
    world.pass(MIN(2));
    let mut first = Box::pin(short.get_or_load(&1, || world.source.load()));
    assert!(world.begin(&mut first).is_pending());
    let error = world.run(cache.get_or_load(&1, || world.source.load())).unwrap_err();
    assert!(matches!(error, LoadError::TimedOut { after } if after == S(2)), "{error:?}");
}

#[test]
fn a_value_or_a_call_decides_jitter_stale_age_and_negative_time() {
    let world = World::new();
    let cache = world.cache(plain().ttl(S(10)).jitter(Duration::ZERO).stale(StaleConfig::new(S(100))));
    // Jitter: some of the entries live longer than the time to live, none longer than with jitter.
    let spread = cache.with(options().jitter(S(10))).unwrap();
    for key in 0..100 {
        world.run(spread.get_or_load(&key, || world.source.load())).unwrap();
    }
    world.pass(S(15));
    let fresh = (0..100).filter(|key| world.run(cache.get(key)).is_some()).count();
    assert!((25..75).contains(&fresh), "{fresh} of 100");
    world.pass(S(5));
    assert!((0..100).all(|key| world.run(cache.get(&key)).is_none()));
    // The age up to which a value is served while the source fails, by the call and by the value.
    let long = cache.with(options().stale_max_age(S(1000))).unwrap();
    let own = |age: u64| move || async move { Ok::<_, Error>(Loaded::new(1).stale_max_age(S(age))) };
    world.run(long.get_or_load(&200, || world.source.load())).unwrap();
    world.run(long.get_or_load(&201, own(500))).unwrap();
    world.run(cache.get_or_load(&202, || world.source.load())).unwrap();
    world.source.fails.store(true, SeqCst);
    for (after, served) in [(99, [true, true, true]), (300, [true, true, false]), (300, [true, false, false])] {
        world.pass(S(after));
        assert_eq!([200, 201, 202].map(|key| world.get(&cache, key).is_ok()), served);
    }
    // What is absent.
    let absent = cache.with(options().negative_ttl(S(5))).unwrap();
    let nothing = || {
        world.source.loads.fetch_add(1, SeqCst);
        async { Ok::<Option<u64>, Error>(None) }
    };
    let loads = world.source.loads();
    for (view, passes, expected) in [(&absent, 4, 1), (&absent, 2, 1), (&absent, 0, 2)] {
        assert_eq!(world.run(view.get_or_load_optional(&300, nothing)).unwrap(), None);
        assert_eq!(world.source.loads() - loads, expected);
        world.pass(S(passes));
    }
}

#[test]
fn a_call_with_a_soft_time_out_serves_an_expired_value_while_the_load_continues() {
    let world = World::new();
    let cache = world.cache(plain().stale(StaleConfig::new(MIN(120))));
    let soft = cache.with(options().soft_timeout(MS(50))).unwrap();
    assert_eq!(get(&world, &soft).unwrap(), 1);
    world.pass(MIN(61));
    world.source.takes(S(1));
    world.source.set(2);
    let start = world.time.now();
    assert_eq!(get(&world, &soft).unwrap(), 1);
    assert_eq!(world.time.now() - start, MS(50));
    world.pass(S(1));
    assert_eq!(world.get(&cache, 1).unwrap(), 2);
    assert_eq!(world.source.loads(), 2);
}

fn row(world: &World) -> Option<String> {
    let record = world.run(world.store.get(Key::new("cache numbers", "1"))).unwrap()?;
    Some(String::from_utf8_lossy(&record.value).rsplit('\n').next().unwrap().to_owned())
}

fn two(world: &World) -> (Cache, Cache) {
    let config = plain().remote(RemoteConfig::default().local_ttl(MIN(30)));
    (world.process(config, 1), world.process(config, 2))
}

// Guarantee: cache_aside 18.
#[test]
fn a_call_skips_the_tiers_that_its_options_name() {
    // The local lookup: the value of the remote tier is taken.
    let world = World::new();
    let (a, b) = two(&world);
    assert_eq!(world.get(&a, 1).unwrap(), 1);
    world.source.set(2);
    assert_eq!(get(&world, &a.with(options().skip_local_read(true)).unwrap()).unwrap(), 1);
    assert_eq!((world.source.loads(), a.stats().remote_hits), (1, 1));
    // Both lookups: the source is asked, and its value replaces the others.
    let anew = a.with(options().skip_local_read(true).skip_remote_read(true)).unwrap();
    assert_eq!(get(&world, &anew).unwrap(), 2);
    assert_eq!((world.get(&a, 1).unwrap(), world.get(&b, 1).unwrap(), world.source.loads()), (2, 2, 2));
    // The write to the remote tier: nothing is claimed or stored there, and the older value stays.
    world.source.set(3);
    let here = a.with(options().skip_local_read(true).skip_remote_read(true).skip_remote_write(true)).unwrap();
    assert_eq!(get(&world, &here).unwrap(), 3);
    assert_eq!((world.get(&a, 1).unwrap(), row(&world).as_deref()), (3, Some("number 2")));
    // With a lookup it still takes a value from there.
    world.run(a.clear());
    let here = a.with(options().skip_remote_write(true)).unwrap();
    assert_eq!(get(&world, &here).unwrap(), 3);
    assert_eq!((world.get(&a, 1).unwrap(), row(&world)), (3, None));
    world.run(a.clear());
    world.turn();
    world.run(b.put(&1, 4));
    world.turn();
    assert_eq!(get(&world, &here).unwrap(), 4);
    // The write to the local tier: each get looks into the remote one.
    world.run(a.clear());
    let there = a.with(options().skip_local_write(true)).unwrap();
    let hits = a.stats().remote_hits;
    assert_eq!([(); 3].map(|()| get(&world, &there).unwrap()), [3, 3, 3]);
    assert_eq!((a.stats().entries, a.stats().remote_hits - hits, row(&world).as_deref()), (0, 2, Some("number 3")));
}

#[test]
fn a_loader_keeps_its_value_out_of_a_tier() {
    let world = World::new();
    let (a, _) = two(&world);
    let there = || async { Ok::<_, Error>(Loaded::new(5).skip_local_write()) };
    assert_eq!(world.run(a.get_or_load(&1, there)).unwrap(), 5);
    assert_eq!((a.stats().entries, row(&world).as_deref()), (0, Some("number 5")));
    world.run(a.clear());
    let here = || async { Ok::<_, Error>(Loaded::new(6).skip_remote_write()) };
    assert_eq!(world.run(a.get_or_load(&1, here)).unwrap(), 6);
    assert_eq!((world.get(&a, 1).unwrap(), row(&world)), (6, None), "the claim is released, too");
    world.run(a.put(&1, Loaded::new(7).skip_remote_write()));
    assert_eq!((world.get(&a, 1).unwrap(), row(&world)), (7, None));
    world.run(a.put(&1, Loaded::new(8).skip_local_write()));
    assert_eq!((a.stats().entries, row(&world).as_deref()), (0, Some("number 8")));
}

// Guarantee: cache_aside 16.
#[test]
fn options_that_cannot_hold_are_refused_by_name() {
    let world = World::new();
    let (one, stale) = (world.cache(plain()), world.cache(plain().stale(StaleConfig::new(MIN(120)))));
    let (two, _) = two(&world);
    let zero = Duration::ZERO;
    let refused: [(&Cache, LoadOptions, &str, &str); 13] = [
        (&one, options().ttl(zero), "ttl", "must be longer than zero"),
        (&one, options().ttl(S(5)).jitter(S(6)), "jitter", "must be at most `ttl`"),
        (&one, options().negative_ttl(zero), "negative_ttl", "must be longer than zero"),
        (&one, options().stale_max_age(MIN(90)), "stale_max_age", "requires the cache's `stale`"),
        (&stale, options().stale_max_age(MIN(60)), "stale_max_age", "must be longer than `ttl`"),
        (&one, options().hard_timeout(S(31)), "hard_timeout", "must be at most the cache's `hard_timeout`"),
        (&one, options().hard_timeout(zero), "hard_timeout", "must be longer than zero"),
        (&one, options().soft_timeout(MS(1)), "soft_timeout", "requires the cache's `stale`"),
        (&stale, options().soft_timeout(S(2)).hard_timeout(S(1)), "soft_timeout", "must be below `hard_timeout`"),
        (
            &stale,
            options().soft_timeout(S(2)).skip_local_read(true),
            "soft_timeout",
            "cannot be combined with `skip_local_read`",
        ),
        (&one, options().skip_remote_read(true), "skip_remote_read", "requires a remote tier"),
        (&one, options().skip_local_write(true), "skip_local_write", "requires a remote tier"),
        (
            &two,
            options().skip_local_write(true).skip_remote_write(true),
            "skip_local_write",
            "cannot be combined with `skip_remote_write`",
        ),
    ];
    for (cache, options, field, rule) in refused {
        let error = cache.with(options).unwrap_err();
        assert_eq!((error.field(), error.to_string()), (field, format!("invalid `{field}`: {rule}")));
    }
    let config = CacheAsideConfig::default().max_batch(0);
    assert_eq!(Cache::new(config).unwrap_err().to_string(), "invalid `max_batch`: must be at least 1");
}

/// A jitter of 10 min, sensible for the time to live of the call, was added to 5 s.
#[test]
fn the_jitter_of_a_call_is_at_most_the_time_to_live_that_the_loader_sets() {
    let world = World::new();
    let spread = world.cache(plain()).with(options().ttl(MIN(10)).jitter(MIN(10))).unwrap();
    let load = || async { Ok::<_, Error>(Loaded::new(1).ttl(S(5))) };
    (0..100).for_each(|key| assert_eq!(world.run(spread.get_or_load(&key, load)).unwrap(), 1));
    world.pass(S(10));
    assert!((0..100).all(|key| world.run(spread.cache().get(&key)).is_none()));
}
