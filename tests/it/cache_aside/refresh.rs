//! Conditional refresh: values whose source says that they have not changed.
use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::Poll,
    time::Duration,
};

use steadfast::{
    cache_aside::{CacheAsideConfig, LoadError, Loaded, RemoteConfig, Stale, StaleConfig, Validator},
    entropy::Entropy,
    notify::InMemoryNotifier,
};

use crate::cache_aside::world::{Cache, Error, MIN, MS, S, Source, World, codec, plain};

/// A source that answers a request with the current validator by "not modified".
#[derive(Clone)]
struct Conditional {
    source: Source,
    /// Values that were returned, and values that were confirmed.
    full: Arc<AtomicU64>,
    confirmed: Arc<AtomicU64>,
}

impl Conditional {
    fn of(world: &World) -> Self {
        Self { source: world.source.clone(), full: Arc::default(), confirmed: Arc::default() }
    }

    fn load(
        &self,
        stale: Option<Stale<u64>>,
    ) -> impl Future<Output = Result<Loaded<u64>, Error>> + Send + 'static + use<> {
        let (me, load) = (self.clone(), self.source.load());
        async move {
            let value = load.await?;
            let etag = value.to_string();
            match stale {
                Some(stale) if stale.validator().etag.as_ref() == Some(&etag) => {
                    me.confirmed.fetch_add(1, SeqCst);
                    Ok(stale.not_modified())
                }
                _ => {
                    me.full.fetch_add(1, SeqCst);
                    Ok(Loaded::new(value).tag("t").validator(Validator::default().etag(etag).last_modified("now")))
                }
            }
        }
    }

    fn get(&self, world: &World, cache: &Cache) -> Result<u64, LoadError<Error>> {
        world.run(cache.get_or_refresh(&1, |stale| self.load(stale)))
    }

    /// Returns the numbers of returned and of confirmed values.
    fn asked(&self) -> (u64, u64) {
        (self.full.load(SeqCst), self.confirmed.load(SeqCst))
    }
}

// Guarantee: cache_aside 17.
#[test]
fn an_expired_value_that_is_not_modified_is_kept_and_lives_anew() {
    for config in [plain(), plain().stale(StaleConfig::new(MIN(120)))] {
        let world = World::new();
        let (cache, source) = (world.cache(config), Conditional::of(&world));
        assert_eq!(source.get(&world, &cache).unwrap(), 1);
        for round in 1..4 {
            world.pass(MIN(61));
            assert_eq!(source.get(&world, &cache).unwrap(), 1);
            assert_eq!(source.asked(), (1, round));
            world.pass(MIN(59));
            assert_eq!(source.get(&world, &cache).unwrap(), 1);
            assert_eq!(source.asked(), (1, round), "fresh for an hour more");
        }
        world.source.set(2);
        world.pass(MIN(61));
        assert_eq!(source.get(&world, &cache).unwrap(), 2, "a new value with a new validator");
        world.pass(MIN(61));
        assert_eq!(source.get(&world, &cache).unwrap(), 2);
        assert_eq!(source.asked(), (2, 4));
    }
}

// Guarantee: cache_aside 17.
#[test]
fn early_refreshes_are_conditional_too() {
    for config in [plain().refresh_ahead(0.5), plain().xfetch(1e6)] {
        let world = World::new();
        let (cache, source) = (world.cache(config), Conditional::of(&world));
        world.source.takes(MS(10));
        assert_eq!(source.get(&world, &cache).unwrap(), 1);
        world.pass(MIN(31));
        assert_eq!(source.get(&world, &cache).unwrap(), 1);
        world.pass(S(1));
        assert_eq!(source.asked(), (1, 1));
    }
}

#[test]
fn a_value_that_outlives_a_failing_source_is_confirmed_when_the_source_is_back() {
    let world = World::new();
    let (cache, source) =
        (world.cache(plain().stale(StaleConfig::new(MIN(600)).throttle(S(1)))), Conditional::of(&world));
    assert_eq!(source.get(&world, &cache).unwrap(), 1);
    world.source.fails.store(true, SeqCst);
    world.pass(MIN(61));
    assert_eq!(source.get(&world, &cache).unwrap(), 1, "stale");
    world.pass(S(2));
    world.source.fails.store(false, SeqCst);
    assert_eq!(source.get(&world, &cache).unwrap(), 1);
    assert_eq!(source.asked(), (1, 1));
}

#[test]
fn a_value_without_a_validator_and_one_that_was_invalidated_are_loaded_in_full() {
    let world = World::new();
    let (cache, source) = (world.cache(plain()), Conditional::of(&world));
    world.run(cache.put(&1, 1));
    world.pass(MIN(61));
    assert_eq!(source.get(&world, &cache).unwrap(), 1);
    assert_eq!(source.asked(), (1, 0), "it had no validator");
    world.run(cache.invalidate(&1));
    assert_eq!(source.get(&world, &cache).unwrap(), 1);
    assert_eq!(source.asked(), (2, 0), "invalidated by its key");
    world.pass(MIN(61));
    assert_eq!(source.get(&world, &cache).unwrap(), 1);
    assert_eq!(source.asked(), (2, 1));
    world.run(cache.invalidate_tag("t"));
    assert_eq!(source.get(&world, &cache).unwrap(), 1);
    assert_eq!(source.asked(), (3, 1), "a confirmed value keeps its tags");
    // A put gives a validator as well.
    world.run(cache.put(&1, Loaded::new(1).validator(Validator::default().etag("1"))));
    world.pass(MIN(61));
    assert_eq!(source.get(&world, &cache).unwrap(), 1);
    assert_eq!(source.asked(), (3, 2));
}

fn shared() -> CacheAsideConfig {
    plain().remote(RemoteConfig::default().local_ttl(MIN(59)))
}

// Guarantee: cache_aside 17.
#[test]
fn another_process_confirms_a_value_by_the_validator_in_the_remote_tier() {
    let world = World::new();
    let (a, b) = (world.process(shared(), 1), world.process(shared(), 2));
    let source = Conditional::of(&world);
    assert_eq!(source.get(&world, &a).unwrap(), 1);
    assert_eq!(source.get(&world, &b).unwrap(), 1);
    assert_eq!((source.asked(), b.stats().remote_hits), ((1, 0), 1));
    world.pass(MIN(61));
    assert_eq!(source.get(&world, &b).unwrap(), 1);
    assert_eq!(source.asked(), (1, 1));
    // The confirmed value is in the remote tier again, with its tags and its validator.
    let c = world.process(shared(), 3);
    assert_eq!(source.get(&world, &c).unwrap(), 1);
    assert_eq!((source.asked(), c.stats().remote_hits), ((1, 1), 1));
    world.pass(MIN(61));
    assert_eq!(source.get(&world, &c).unwrap(), 1);
    assert_eq!(source.asked(), (1, 2));
    world.run(a.invalidate_tag("t"));
    world.turn();
    assert_eq!(source.get(&world, &c).unwrap(), 1);
    assert_eq!(source.asked(), (2, 2));
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Invalidate,
    Put,
    Clear,
    Tag,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    Expired,
    Background,
    RefreshAhead,
}

/// `others`: `None` for one tier, `Some(true)` if the notice of another process arrives.
fn case(by: By, load: Load, others: Option<bool>) {
    let what = format!("{by:?}, {load:?}, {others:?}");
    let world = World::new();
    let mut config = plain()
        .refresh_ahead(0.9)
        .stale(StaleConfig::new(MIN(300)).throttle(S(1)))
        .remote(RemoteConfig::default().local_ttl(MIN(59)));
    if load == Load::Background {
        config = config.soft_timeout(MS(100));
    }
    let cache = if others.is_none() { world.cache(config) } else { world.process(config, 1) };
    let other = match others {
        None => cache.clone(),
        Some(true) => world.process(config, 2),
        Some(false) => {
            let builder = world.builder(config).name("numbers").entropy(&Entropy::from_seed(2));
            builder.remote(world.store.clone(), codec()).backplane(Arc::new(InMemoryNotifier::new())).build().unwrap()
        }
    };
    let source = Conditional::of(&world);
    assert_eq!(source.get(&world, &cache).unwrap(), 1);
    world.pass(if load == Load::RefreshAhead { MIN(55) } else { MIN(61) });
    world.source.takes(S(5));
    let mut waiting = Box::pin(cache.get_or_refresh(&1, |stale| source.load(stale)));
    let begun = world.begin(&mut waiting);
    if load == Load::Background {
        world.pass(MS(100));
        assert!(matches!(world.begin(&mut waiting), Poll::Ready(Ok(1))), "{what}");
    } else {
        assert_eq!(begun.is_ready(), load == Load::RefreshAhead, "{what}");
    }
    world.turn();
    assert_eq!(world.source.loads(), 2, "{what}: the load has read the old validator");
    world.source.set(2);
    match by {
        By::Invalidate => world.run(other.invalidate(&1)),
        By::Put => world.run(other.put(&1, 42)),
        By::Clear => world.run(other.clear()),
        By::Tag => world.run(other.invalidate_tag("t")),
    };
    world.pass(S(6));
    if load == Load::Expired {
        assert_eq!(world.run(waiting).unwrap(), 1, "{what}: its own caller gets the value that was confirmed");
    }
    assert_eq!(source.asked(), (1, 1), "{what}");
    assert_eq!(cache.stats().superseded, 1, "{what}");
    world.source.takes(Duration::ZERO);
    // Without a notice a valid entry stays for its local time to live.
    if load == Load::RefreshAhead && others == Some(false) {
        world.pass(MIN(5));
    }
    let expected = if by == By::Put { 42 } else { 2 };
    assert_eq!(source.get(&world, &cache).unwrap(), expected, "{what}");
    assert_eq!(source.get(&world, &other).unwrap(), expected, "{what}: the other process");
}

// Guarantee: cache_aside 3.
#[test]
fn a_not_modified_answer_revives_no_value_that_was_invalidated_during_the_load() {
    for by in [By::Invalidate, By::Put, By::Clear, By::Tag] {
        for load in [Load::Expired, Load::Background, Load::RefreshAhead] {
            for others in [None, Some(true), Some(false)] {
                case(by, load, others);
            }
        }
    }
}
