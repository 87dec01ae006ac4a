//! Cache-aside: loads, times, errors, tags. The guard against stale stores has a file of its own.
mod background;
mod crashes;
mod guard;
mod many;
mod options;
mod processes;
mod reconfigure;
mod refresh;
mod slowness;
mod subscription;
mod tiers;
pub(crate) mod world;

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::Ordering::SeqCst,
    time::Duration,
};

use futures::future::join_all;
use steadfast::{
    cache_aside::{
        CacheAside, CacheAsideConfig, CacheAsideEvent, LoadError, Loaded, RemoteConfig, StaleConfig, Unattended,
    },
    entropy::Entropy,
};

use crate::cache_aside::world::{Cache, Error, MIN, MS, S, World, plain};

// Guarantee: cache_aside 1.
#[test]
fn a_thousand_gets_of_a_missing_key_load_once() {
    let world = World::new();
    let cache = world.cache(plain());
    world.source.takes(S(1));
    let gets = (0..1000).map(|_| cache.get_or_load(&1, || world.source.load()));
    let values = world.run(join_all(gets));
    assert!(values.iter().all(|value| matches!(value, Ok(1))));
    assert_eq!(world.source.loads(), 1);
    let stats = cache.stats();
    assert_eq!((stats.misses, stats.loads, stats.hits, stats.entries), (1000, 1, 0, 1));
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    assert_eq!((cache.stats().hits, world.source.loads()), (1, 1));
}

// Guarantee: cache_aside 2.
#[test]
fn a_load_continues_for_waiting_callers_when_its_driver_is_dropped() {
    let world = World::new();
    let cache = world.cache(plain());
    world.source.takes(S(1));
    let mut first = Box::pin(cache.get_or_load(&1, || world.source.load()));
    assert!(world.begin(&mut first).is_pending());
    let mut second = Box::pin(cache.get_or_load(&1, || world.source.load()));
    assert!(world.begin(&mut second).is_pending());
    drop(first);
    assert_eq!(world.run(second).unwrap(), 1);
    assert_eq!(world.source.loads(), 1);
}

// Guarantee: cache_aside 2.
#[test]
fn a_load_without_callers_is_dropped_or_finished_as_configured() {
    for (then, loads_in_all) in [(Unattended::Drop, 2), (Unattended::Finish, 1)] {
        let world = World::new();
        let cache = world.cache(plain().unattended(then));
        world.source.takes(S(1));
        let mut only = Box::pin(cache.get_or_load(&1, || world.source.load()));
        assert!(world.begin(&mut only).is_pending());
        drop(only);
        world.pass(S(2));
        assert_eq!(world.get(&cache, 1).unwrap(), 1);
        assert_eq!(world.source.loads(), loads_in_all, "{then:?}");
        assert_eq!(world.background.len(), 0);
    }
}

// Guarantee: cache_aside 2.
#[test]
fn a_loader_that_panics_neither_poisons_nor_deadlocks_the_key() {
    let world = World::new();
    let cache = world.cache(plain());
    // A panic in the closure, in the future, and while another caller drives the load.
    let panics = || cache.get_or_load(&1, || -> std::future::Ready<Result<u64, Error>> { panic!("on purpose") });
    assert!(catch_unwind(AssertUnwindSafe(|| world.run(panics()))).is_err());
    let later = |cache: &Cache| {
        let (cache, clock) = (cache.clone(), world.clock.clone());
        async move {
            let load = || async move {
                clock.sleep(S(1)).await;
                if true {
                    panic!("on purpose");
                }
                Ok::<u64, Error>(0)
            };
            cache.get_or_load(&1, load).await
        }
    };
    assert!(catch_unwind(AssertUnwindSafe(|| world.run(later(&cache)))).is_err());
    let mut first = Box::pin(later(&cache));
    assert!(world.begin(&mut first).is_pending());
    let mut second = Box::pin(cache.get_or_load(&1, || world.source.load()));
    assert!(world.begin(&mut second).is_pending());
    world.time.advance(S(1));
    assert!(catch_unwind(AssertUnwindSafe(|| world.begin(&mut first))).is_err());
    assert_eq!(world.run(second).unwrap(), 1, "the waiting caller loads by itself");
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    assert_eq!(world.source.loads(), 1);
}

// Guarantee: cache_aside 4.
#[test]
fn stale_values_are_served_on_errors_up_to_their_maximum_age_and_loads_are_throttled() {
    let world = World::new();
    let cache =
        world.cache(plain().ttl(MIN(5)).jitter(Duration::ZERO).stale(StaleConfig::new(MIN(120)).throttle(MIN(1))));
    let mut events = cache.events();
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    world.source.fails.store(true, SeqCst);
    world.pass(MIN(6));
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    assert_eq!(world.source.loads(), 2);
    let event = events.try_recv().unwrap().unwrap();
    assert!(matches!(event.what, CacheAsideEvent::LoadFailed { serves_stale: true, timed_out: false, .. }));
    world.pass(S(59));
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    assert_eq!(world.source.loads(), 2, "not again before 7 min");
    world.pass(S(1));
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    assert_eq!(world.source.loads(), 3);
    world.pass(MIN(112));
    assert_eq!(world.get(&cache, 1).unwrap(), 1, "at 1 h 59 min");
    world.pass(MIN(1));
    let error = world.get(&cache, 1).unwrap_err();
    assert_eq!(error.failed(), Some(&"down"), "at 2 h");
    assert_eq!(error.to_string(), "down");
    // When the source answers again, its value is served.
    world.source.fails.store(false, SeqCst);
    world.source.set(2);
    assert_eq!(world.get(&cache, 1).unwrap(), 2);
    assert_eq!(cache.stats().stale_hits, 4);
}

// Guarantee: cache_aside 5.
#[test]
fn a_soft_time_out_serves_a_stale_value_and_the_load_continues_once() {
    let world = World::new();
    let config = plain()
        .ttl(MIN(5))
        .jitter(Duration::ZERO)
        .stale(StaleConfig::new(MIN(120)).throttle(S(30)))
        .soft_timeout(MS(100));
    let cache = world.cache(config.hard_timeout(Some(S(10))));
    // Without a stale value the soft time-out does not apply.
    world.source.takes(S(2));
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    assert_eq!(world.source.loads(), 1);
    world.pass(MIN(6));
    world.source.set(2);
    let start = world.time.now();
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    assert_eq!(world.time.now() - start, MS(100));
    // No other get waits for the load or starts another.
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    assert_eq!(world.time.now() - start, MS(100));
    world.pass(S(2));
    assert_eq!(world.get(&cache, 1).unwrap(), 2, "the load's value serves the next get");
    assert_eq!((world.source.loads(), world.background.len()), (2, 0));
}

// Guarantee: cache_aside 5.
#[test]
fn a_hard_time_out_applies_always() {
    let world = World::new();
    let config = plain().ttl(MIN(5)).jitter(Duration::ZERO).stale(StaleConfig::new(MIN(120)).throttle(S(30)));
    let cache = world.cache(config.hard_timeout(Some(S(10))));
    world.source.takes(S(60));
    let start = world.time.now();
    let error = world.get(&cache, 1).unwrap_err();
    assert!(matches!(error, LoadError::TimedOut { after } if after == S(10)), "{error}");
    assert_eq!(world.time.now() - start, S(10));
    assert_eq!(error.to_string(), "the load took longer than 10s");
    // A stale value is served instead, if there is one.
    world.source.takes(S(1));
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    world.pass(MIN(6));
    world.source.takes(S(60));
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    assert_eq!(cache.stats().load_failures, 2);
}

// Guarantee: cache_aside 6.
#[test]
fn refresh_ahead_starts_once_per_stored_value_and_no_get_waits() {
    let world = World::new();
    let cache = world.cache(plain().ttl(MIN(10)).jitter(Duration::ZERO).refresh_ahead(0.9));
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    world.source.set(2);
    world.source.takes(S(5));
    world.pass(S(8 * 60 + 59));
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    assert_eq!((world.source.loads(), world.background.len()), (1, 0), "at 8:59");
    world.pass(S(2));
    let start = world.time.now();
    let gets = (0..100).map(|_| cache.get_or_load(&1, || world.source.load()));
    assert!(world.run(join_all(gets)).iter().all(|value| matches!(value, Ok(1))));
    assert_eq!(world.time.now(), start, "all were served at once");
    world.pass(S(5));
    assert_eq!((world.source.loads(), world.background.len()), (2, 0));
    assert_eq!(world.get(&cache, 1).unwrap(), 2);
    // A failed refresh leaves the valid value and is not repeated for it.
    world.pass(S(9 * 60 + 1));
    world.source.fails.store(true, SeqCst);
    for _ in 0..3 {
        assert_eq!(world.get(&cache, 1).unwrap(), 2);
        world.pass(S(6));
    }
    assert_eq!(world.source.loads(), 3);
    assert_eq!(cache.stats().load_failures, 1);
}

// Guarantee: cache_aside 7.
#[test]
fn a_refresh_that_races_a_put_loses() {
    let world = World::new();
    let cache = world.cache(plain().ttl(MIN(10)).jitter(Duration::ZERO).refresh_ahead(0.9));
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    world.source.takes(S(5));
    world.pass(S(9 * 60 + 1));
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    world.pass(S(1));
    assert_eq!(world.background.len(), 1, "the refresh is in progress");
    world.run(cache.put(&1, 42));
    world.pass(S(10));
    assert_eq!((world.source.loads(), world.background.len()), (2, 0));
    assert_eq!(world.get(&cache, 1).unwrap(), 42);
    assert_eq!(cache.stats().superseded, 1);
}

// Guarantee: cache_aside 8.
/// The rate of early refreshes at a get is `exp(-t / (beta * delta))`: Vattani, Chierichetti,
/// Lowenstein, 2015.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn xfetch_refreshes_at_the_rate_of_the_paper() {
    let world = World::new();
    for (left, rate) in [(0.1, 0.9048), (0.5, 0.6065), (1.0, 0.3679), (2.0, 0.1353)] {
        // A load takes 1 s and beta is 2, so beta * delta is 2 s.
        let cache = world
            .builder(plain().capacity(100_000).ttl(S(60)).jitter(Duration::ZERO).xfetch(2.0))
            .entropy(&Entropy::from_seed(9));
        let cache = cache.build().unwrap();
        world.source.takes(S(1));
        let keys = 20_000;
        let load = async |key: u32| cache.get_or_load(&key, || world.source.load()).await.unwrap();
        world.run(join_all((0..keys).map(load)));
        world.pass(S(60) - Duration::from_secs_f64(left * 2.0));
        let before = world.source.loads();
        for key in 0..keys {
            assert_eq!(world.get(&cache, key).unwrap(), 1);
        }
        world.turn();
        let fired = world.source.loads() - before;
        let measured = fired as f64 / f64::from(keys);
        assert!((measured - rate).abs() < 0.012, "{measured} at {left}, not {rate}");
        world.pass(S(100));
    }
}

// Guarantee: cache_aside 9.
#[test]
fn jitter_spreads_expiries_evenly_and_never_below_the_time_to_live() {
    let world = World::new();
    let cache = world.cache(plain().capacity(20_000).ttl(S(100)).jitter(S(50)));
    for key in 0..10_000 {
        world.run(cache.put(&key, 1));
    }
    let fresh = || (0..10_000).filter(|key| world.run(cache.get(key)).is_some()).count();
    world.pass(S(100) - Duration::from_nanos(1));
    assert_eq!(fresh(), 10_000, "none below");
    let mut left = vec![];
    for _ in 0..10 {
        world.pass(S(5));
        left.push(fresh());
    }
    for (i, left) in left.iter().enumerate() {
        let expected = 10_000 - 1000 * (i + 1);
        // Five standard deviations of a binomial with p = 1/2.
        assert!(left.abs_diff(expected) < 250, "{left} of {expected} after {} s", 100 + 5 * (i + 1));
    }
    world.pass(Duration::from_nanos(1));
    assert_eq!(fresh(), 0, "none above");
}

// Guarantee: cache_aside 16.
#[test]
fn a_bad_configuration_is_refused_by_name() {
    let default = CacheAsideConfig::default;
    let remote = RemoteConfig::default;
    let bad: Vec<(CacheAsideConfig, &str)> = vec![
        (default().capacity(0), "capacity"),
        (default().ttl(Duration::ZERO).jitter(Duration::ZERO), "ttl"),
        (default().ttl(S(10)).jitter(S(11)), "jitter"),
        (default().refresh_ahead(0.0), "refresh_ahead"),
        (default().refresh_ahead(1.0), "refresh_ahead"),
        (default().refresh_ahead(-0.5), "refresh_ahead"),
        (default().refresh_ahead(f64::NAN), "refresh_ahead"),
        (default().xfetch(0.0), "xfetch"),
        (default().xfetch(f64::INFINITY), "xfetch"),
        (default().sliding(Duration::ZERO), "sliding"),
        (default().negative_ttl(Duration::ZERO), "negative_ttl"),
        (default().stale(StaleConfig::new(S(60)).throttle(S(1))), "stale.max_age"),
        (default().stale(StaleConfig::new(S(600)).throttle(Duration::ZERO)), "stale.throttle"),
        (default().soft_timeout(MS(1)), "soft_timeout"),
        (default().stale(StaleConfig::new(S(600)).throttle(S(1))).soft_timeout(S(30)), "soft_timeout"),
        (default().hard_timeout(Some(Duration::ZERO)), "hard_timeout"),
        (default().remote(remote().timeout(Duration::ZERO)), "remote.timeout"),
        (default().remote(remote().rest(Duration::ZERO)), "remote.rest"),
        (default().remote(remote().wait(Duration::ZERO)), "remote.wait"),
        (default().remote(remote().local_ttl(S(60))), "remote.local_ttl"),
    ];
    for (config, field) in bad {
        let error = CacheAside::<u32, u64>::new(config).unwrap_err();
        assert_eq!(error.field(), field, "{error}");
    }
    let world = World::new();
    let nameless = world.builder(plain()).backplane(world.notifier.clone()).build().unwrap_err();
    assert_eq!(nameless.to_string(), "invalid `name`: must be given where processes share a cache");
}

#[test]
fn an_absent_value_is_cached_only_if_asked_for() {
    for (config, loads) in [(plain(), 2), (plain().negative_ttl(S(10)), 1)] {
        let world = World::new();
        let cache = world.cache(config);
        let nothing = || {
            let load = world.source.load();
            async move { load.await.map(|_| None::<u64>) }
        };
        for _ in 0..2 {
            assert_eq!(world.run(cache.get_or_load_optional(&1, nothing)).unwrap(), None);
        }
        assert_eq!(world.source.loads(), loads);
        // A get that needs a value asks the source.
        assert_eq!(world.get(&cache, 1).unwrap(), 1);
        assert_eq!(world.run(cache.get_or_load_optional(&1, nothing)).unwrap(), Some(1));
        world.run(cache.invalidate(&1));
        assert_eq!(world.run(cache.get_or_load_optional(&1, nothing)).unwrap(), None);
        assert_eq!(world.run(cache.get(&1)), None);
        world.pass(S(11));
        let before = world.source.loads();
        assert_eq!(world.run(cache.get_or_load_optional(&1, nothing)).unwrap(), None);
        assert_eq!(world.source.loads(), before + 1, "after its own time to live");
    }
}

#[test]
fn an_error_is_returned_to_all_waiting_callers_and_never_cached() {
    let world = World::new();
    let cache = world.cache(plain());
    world.source.takes(S(1));
    world.source.fails.store(true, SeqCst);
    let gets = (0..10).map(|_| cache.get_or_load(&1, || world.source.load()));
    let errors = world.run(join_all(gets));
    assert!(errors.iter().all(|error| error.as_ref().unwrap_err().failed() == Some(&"down")));
    assert_eq!(world.source.loads(), 1);
    world.source.fails.store(false, SeqCst);
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    assert_eq!(world.source.loads(), 2);
}

#[test]
fn callers_with_other_error_types_load_by_themselves() {
    let world = World::new();
    let cache = world.cache(plain());
    world.source.takes(S(1));
    world.source.fails.store(true, SeqCst);
    let mut first = Box::pin(cache.get_or_load(&1, || world.source.load()));
    assert!(world.begin(&mut first).is_pending());
    let other = || async { Err::<u64, u8>(7) };
    let mut second = Box::pin(cache.get_or_load(&1, other));
    assert!(world.begin(&mut second).is_pending());
    world.time.advance(S(1));
    assert_eq!(world.run(first).unwrap_err().failed(), Some(&"down"));
    assert_eq!(world.run(second).unwrap_err().failed(), Some(&7));
}

#[test]
fn a_loader_decides_its_own_time_to_live_and_tags() {
    let world = World::new();
    let cache = world.cache(plain());
    let short = || async { Ok::<_, Error>(Loaded::new(5).ttl(S(1)).tag("blue")) };
    assert_eq!(world.run(cache.get_or_load(&1, short)).unwrap(), 5);
    assert_eq!(world.run(cache.get(&1)), Some(5));
    world.pass(S(1));
    assert_eq!(world.run(cache.get(&1)), None);
    assert_eq!(world.run(cache.get_or_load(&1, short)).unwrap(), 5);
    world.run(cache.invalidate_tag("red"));
    assert_eq!(world.run(cache.get(&1)), Some(5));
    world.run(cache.invalidate_tag("blue"));
    assert_eq!(world.run(cache.get(&1)), None);
    // A value with a time to live of zero goes to waiting callers and is not stored.
    let none = || async { Ok::<_, Error>(Loaded::new(6).ttl(Duration::ZERO)) };
    assert_eq!(world.run(cache.get_or_load(&1, none)).unwrap(), 6);
    assert_eq!((world.run(cache.get(&1)), cache.stats().entries), (None, 0));
    world.run(cache.put(&1, Loaded::new(6).ttl(Duration::ZERO)));
    assert_eq!(world.run(cache.get(&1)), None);
    world.run(cache.put(&1, Loaded::new(8).tag("blue")));
    assert_eq!(world.run(cache.get(&1)), Some(8));
    world.run(cache.invalidate_tag("blue"));
    assert_eq!(world.run(cache.get(&1)), None);
}

#[test]
fn an_entry_without_access_expires_by_sliding() {
    let world = World::new();
    let cache = world.cache(plain().ttl(S(100)).jitter(Duration::ZERO).sliding(S(10)));
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    for _ in 0..9 {
        world.pass(S(9));
        assert_eq!(world.run(cache.get(&1)), Some(1));
    }
    world.pass(S(10));
    assert_eq!(world.run(cache.get(&1)), None);
    // Sliding never extends the time to live.
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    for _ in 0..20 {
        world.pass(S(5));
        let _ = world.run(cache.get(&1));
    }
    assert_eq!(world.run(cache.get(&1)), None);
}

#[test]
fn update_invalidates_after_the_write_and_when_the_write_fails_or_is_dropped() {
    let world = World::new();
    let cache = world.cache(plain());
    assert_eq!(world.get(&cache, 1).unwrap(), 1);
    let (source, seen) = (&world.source, cache.clone());
    let write = async {
        assert_eq!(seen.get(&1).await, Some(1), "not before the write");
        source.set(2);
        Ok::<_, Error>("written")
    };
    assert_eq!(world.run(cache.update(&1, write)), Ok("written"));
    assert_eq!(world.get(&cache, 1).unwrap(), 2);
    let fails = async {
        source.set(3);
        Err::<(), _>("no answer")
    };
    assert_eq!(world.run(cache.update(&1, fails)), Err("no answer"));
    assert_eq!(world.get(&cache, 1).unwrap(), 3);
    let mut stuck = Box::pin(cache.update(&1, async {
        source.set(4);
        std::future::pending::<Result<(), Error>>().await
    }));
    assert!(world.begin(&mut stuck).is_pending());
    assert_eq!(world.get(&cache, 1).unwrap(), 3, "the update has not returned");
    drop(stuck);
    assert_eq!(world.get(&cache, 1).unwrap(), 4);
}

#[test]
fn priming_replaces_no_value() {
    let world = World::new();
    let cache = world.cache(plain());
    world.run(cache.put(&1, 10));
    world.source.takes(S(1));
    let mut load = Box::pin(cache.get_or_load(&2, || world.source.load()));
    assert!(world.begin(&mut load).is_pending());
    cache.prime([(1, 0), (2, 0), (3, 30)]);
    assert_eq!(world.run(load).unwrap(), 1);
    let got = [1, 2, 3].map(|key| world.run(cache.get(&key)));
    assert_eq!(got, [Some(10), Some(1), Some(30)]);
    assert_eq!(world.source.loads(), 1);
}

#[test]
fn capacity_counts_weight_if_a_weigher_is_set() {
    let world = World::new();
    let cache = world.builder(plain().capacity(1000)).weigher(|_, value| *value).build().unwrap();
    for key in 0..1000 {
        world.run(cache.put(&key, 100));
    }
    let stats = cache.stats();
    assert!(stats.entries <= 10 && stats.entries > 0, "{stats:?}");
    assert_eq!(stats.entries + stats.evictions, 1000);
    let cache = world.cache(plain().capacity(100));
    for key in 0..1000 {
        world.run(cache.put(&key, 100));
        world.run(cache.put(&key, 101));
    }
    let stats = cache.stats();
    assert_eq!(stats.entries + stats.evictions, 1000, "a replaced entry does not count as evicted");
}

#[test]
fn a_get_can_be_spawned_and_the_default_spawner_is_the_runtime() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let cache: CacheAside<String, u64> = CacheAside::new(plain()).unwrap();
        let gets = (0..100).map(|_| {
            let cache = cache.clone();
            tokio::spawn(async move {
                let load = || async {
                    tokio::task::yield_now().await;
                    Ok::<u64, Error>(7)
                };
                cache.get_or_load("k", load).await
            })
        });
        assert!(join_all(gets).await.into_iter().all(|got| got.unwrap().unwrap() == 7));
        assert_eq!(cache.stats().loads, 1);
    });
}

// Guarantee: cache_aside 1.
#[test]
fn threads_that_race_load_each_key_once() {
    let cache: CacheAside<u32, u32> = CacheAside::new(plain().capacity(100_000)).unwrap();
    let loads = std::sync::atomic::AtomicU32::new(0);
    let start = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                start.wait();
                runtime.block_on(async {
                    for key in 0..20_000 {
                        let load = || {
                            loads.fetch_add(1, SeqCst);
                            async move { Ok::<u32, Error>(key) }
                        };
                        assert_eq!(cache.get_or_load(&key, load).await.unwrap(), key);
                    }
                });
            });
        }
    });
    assert_eq!(loads.load(SeqCst), 20_000);
}

/// Starts a get that is then neither polled nor dropped.
fn stalled(world: &World, cache: &Cache, takes: Duration) -> impl Future<Output = Result<u64, LoadError<Error>>> {
    world.source.takes(takes);
    let (cache, source) = (cache.clone(), world.source.clone());
    let mut first = Box::pin(async move { cache.get_or_load(&1, || source.load()).await });
    assert!(world.begin(&mut first).is_pending());
    first
}

#[test]
fn a_waiting_get_takes_over_a_load_whose_driver_is_not_polled() {
    for hard in [Some(MS(50)), Some(S(30)), None] {
        let world = World::new();
        let cache = world.cache(plain().hard_timeout(hard));
        let _driver = stalled(&world, &cache, MS(10));
        let start = world.time.now();
        let gets = (0..100).map(|_| cache.get_or_load(&1, || world.source.load()));
        assert!(world.run(join_all(gets)).iter().all(|value| matches!(value, Ok(1))), "{hard:?}");
        assert!(world.time.now() - start <= MS(250).min(hard.unwrap_or(S(1))), "{:?}", world.time.now() - start);
        assert_eq!(world.source.loads(), 1);
    }
}

#[test]
fn no_get_takes_longer_than_the_hard_time_out_even_if_its_driver_stalls() {
    let world = World::new();
    let cache = world.cache(plain().hard_timeout(Some(MS(50))));
    let driver = stalled(&world, &cache, S(300));
    world.pass(MS(20));
    let start = world.time.now();
    let gets = (0..10).map(|_| cache.get_or_load(&1, || world.source.load()));
    let errors = world.run(join_all(gets));
    assert!(errors.iter().all(|error| matches!(error, Err(LoadError::TimedOut { after }) if *after == MS(50))));
    assert!(world.time.now() - start <= MS(50), "{:?}", world.time.now() - start);
    assert_eq!((world.source.loads(), cache.stats().load_failures), (1, 1));
    assert!(matches!(world.run(driver), Err(LoadError::TimedOut { .. })));
}

#[test]
fn a_panicking_loader_runs_once_for_all_waiting_callers() {
    for pends_first in [true, false] {
        let world = World::new();
        let cache = world.cache(plain());
        let get = || {
            let (cache, clock, loads) = (cache.clone(), world.clock.clone(), world.source.loads.clone());
            Box::pin(async move {
                let load = || async move {
                    // The first load waits until all callers have joined; later ones may panic at once.
                    if loads.fetch_add(1, SeqCst) == 0 || pends_first {
                        clock.sleep(S(1)).await;
                    }
                    if true {
                        panic!("on purpose");
                    }
                    Ok::<u64, Error>(0)
                };
                cache.get_or_load(&1, load).await
            })
        };
        let mut gets: Vec<_> = (0..1000).map(|_| get()).collect();
        for get in &mut gets {
            assert!(world.begin(get).is_pending());
        }
        world.time.advance(S(1));
        let mut panics = 0;
        for get in &mut gets {
            match catch_unwind(AssertUnwindSafe(|| world.begin(get))) {
                Ok(std::task::Poll::Ready(Err(LoadError::Panicked))) => {}
                Ok(other) => panic!("{other:?}"),
                Err(_) => panics += 1,
            }
        }
        assert_eq!((panics, world.source.loads()), (1, 1));
    }
}

#[test]
fn an_entry_is_kept_up_to_97_percent_of_the_capacity_and_a_heavier_one_is_an_event() {
    let world = World::new();
    const MIB: u64 = 1 << 20;
    let cache = world.builder(plain().capacity(64 * MIB)).weigher(|_, value| *value).build().unwrap();
    let mut events = cache.events();
    for weight in [9 * MIB, 30 * MIB, 62 * MIB] {
        for key in 0..8 {
            world.run(cache.clear());
            world.run(cache.put(&key, weight));
            assert_eq!(world.run(cache.get(&key)), Some(weight), "{weight}");
        }
    }
    for key in 0..7 {
        world.run(cache.put(&key, 9 * MIB));
    }
    assert_eq!((0..7).filter(|key| world.run(cache.get(key)).is_some()).count(), 7, "seven of 9 MiB in 64");
    assert!(events.try_recv().unwrap().is_none());
    world.run(cache.put(&8, 64 * MIB));
    assert_eq!(world.run(cache.get(&8)), None);
    let event = events.try_recv().unwrap().unwrap().what;
    assert!(matches!(event, CacheAsideEvent::TooHeavy { weight, most } if weight == 64 * MIB && most > 62 * MIB));
}

#[test]
fn the_longest_durations_are_accepted_everywhere() {
    const MAX: Duration = Duration::MAX;
    let remote = RemoteConfig::default().timeout(MAX).rest(MAX).wait(MAX).local_ttl(MAX / 2);
    let long = CacheAsideConfig::default().ttl(MAX).jitter(MAX).sliding(MAX).negative_ttl(MAX).hard_timeout(Some(MAX));
    let stale = CacheAsideConfig::default()
        .ttl(MAX / 2)
        .jitter(MAX / 2)
        .stale(StaleConfig::new(MAX).throttle(MAX))
        .soft_timeout(MAX / 2);
    for config in [long.refresh_ahead(0.5).xfetch(1e9).remote(remote), stale.hard_timeout(None)] {
        let world = World::new();
        for cache in [world.cache(config), world.process(config, 1)] {
            assert_eq!(world.get(&cache, 1).unwrap(), 1);
            world.run(cache.put(&2, Loaded::new(2).ttl(MAX).tag("t")));
            world.pass(S(1 << 30));
            assert_eq!(world.run(cache.get(&2)), Some(2));
            world.run(cache.invalidate_tag("t"));
            assert_eq!(world.run(cache.get(&2)), None);
        }
    }
}
