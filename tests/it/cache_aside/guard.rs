//! The guard against stale stores: five kinds of invalidation, three kinds of load, one tier and
//! two, by this process and by another. A load that began before an invalidation gives its value to
//! its own caller and stores it nowhere.
use std::{sync::Arc, task::Poll, time::Duration};

use steadfast::{
    cache_aside::{CacheAsideConfig, LoadError, Reached, RemoteConfig, StaleConfig},
    entropy::Entropy,
    notify::InMemoryNotifier,
};

use crate::cache_aside::world::{Cache, Error, MIN, MS, S, World, codec, plain};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Invalidate,
    Put,
    Clear,
    Tag,
    Sliding,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    Foreground,
    Background,
    RefreshAhead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tiers {
    One,
    /// Two tiers; this process invalidates.
    Two,
    /// Two tiers; another process invalidates, and its notice arrives.
    TwoOther,
    /// Two tiers; another process invalidates, and its notice does not arrive.
    TwoOtherUnnotified,
}

fn config(by: By) -> CacheAsideConfig {
    let config = plain()
        .ttl(MIN(10))
        .jitter(Duration::ZERO)
        .stale(StaleConfig::new(MIN(120)).throttle(S(1)))
        .soft_timeout(MS(100))
        .refresh_ahead(0.9);
    let config = config.remote(RemoteConfig::default().local_ttl(S(599)));
    if by == By::Sliding { config.sliding(S(3)) } else { config }
}

fn get(world: &World, cache: &Cache) -> Result<u64, LoadError<Error>> {
    world.run(cache.get_or_load(&1, || world.source.tagged("t")))
}

fn invalidate(world: &World, cache: &Cache, by: By) {
    let reached = match by {
        By::Invalidate => world.run(cache.invalidate(&1)),
        By::Put => world.run(cache.put(&1, 42)),
        By::Clear => world.run(cache.clear()),
        By::Tag => world.run(cache.invalidate_tag("t")),
        By::Sliding => return,
    };
    assert_eq!(reached, Reached::Everywhere);
}

fn case(by: By, load: Load, tiers: Tiers) {
    let what = format!("{by:?}, {load:?}, {tiers:?}");
    let world = World::new();
    let cache = match tiers {
        Tiers::One => world.cache(config(by)),
        _ => world.process(config(by), 1),
    };
    let other = match tiers {
        Tiers::One | Tiers::Two => cache.clone(),
        Tiers::TwoOther => world.process(config(by), 2),
        Tiers::TwoOtherUnnotified => {
            let builder = world.builder(config(by)).name("numbers").entropy(&Entropy::from_seed(2));
            builder.remote(world.store.clone(), codec()).backplane(Arc::new(InMemoryNotifier::new())).build().unwrap()
        }
    };
    // The loop that this process runs is the only thing in the background.
    let idle = world.background.len();
    if load != Load::Foreground {
        world.source.set(0);
        assert_eq!(get(&world, &cache).unwrap(), 0, "{what}");
        let until = if load == Load::Background { S(605) } else { S(541) };
        let start = world.time.now();
        while world.time.now() - start < until {
            // Accessed each second, so that it does not expire by sliding, until it is due for a refresh.
            if world.time.now() - start < S(540) && by == By::Sliding {
                assert_eq!(get(&world, &cache).unwrap(), 0, "{what}");
            }
            world.pass(S(1));
        }
    }
    let before = world.source.loads();
    world.source.set(1);
    world.source.takes(S(5));
    let mut waiting = Box::pin(cache.get_or_load(&1, || world.source.tagged("t")));
    match load {
        Load::Foreground => assert!(world.begin(&mut waiting).is_pending(), "{what}"),
        Load::Background => {
            assert!(world.begin(&mut waiting).is_pending(), "{what}");
            world.pass(MS(100));
            assert!(matches!(world.begin(&mut waiting), Poll::Ready(Ok(0))), "{what}");
        }
        Load::RefreshAhead => assert!(matches!(world.begin(&mut waiting), Poll::Ready(Ok(0))), "{what}"),
    }
    world.turn();
    assert_eq!(world.source.loads(), before + 1, "{what}: the load is in progress");
    assert_eq!(world.background.len(), idle + usize::from(load != Load::Foreground), "{what}");
    // The source changes, and then the cache is invalidated.
    world.source.set(2);
    invalidate(&world, &other, by);
    world.turn();
    world.pass(S(6));
    if load == Load::Foreground {
        assert_eq!(world.run(waiting).unwrap(), 1, "{what}: its own caller gets the value that it read");
    }
    world.turn();
    assert_eq!(world.background.len(), idle, "{what}: the load has ended");
    assert_eq!(cache.stats().superseded, 1, "{what}: and knows that it was superseded");
    world.source.takes(Duration::ZERO);
    let loads = world.source.loads();
    // Without a notice, the valid entry from before stays for its local time to live, the stated bound.
    // An entry that expires by sliding stays in the remote tier for its time to live.
    let slid = by == By::Sliding && tiers != Tiers::One;
    if load == Load::RefreshAhead && (slid || tiers == Tiers::TwoOtherUnnotified) {
        assert!(get(&world, &cache).unwrap() != 1, "{what}: the loaded value is not stored");
        world.pass(S(60));
    }
    let (expected, loads) = if by == By::Put { (42, loads) } else { (2, loads + 1) };
    assert_eq!(get(&world, &cache).unwrap(), expected, "{what}");
    assert_eq!(world.source.loads(), loads, "{what}: the next get loads, unless a value was put");
    assert_eq!(get(&world, &other).unwrap(), expected, "{what}: the other process");
}

// Guarantee: cache_aside 3.
#[test]
fn a_value_read_before_an_invalidation_is_never_stored() {
    for by in [By::Invalidate, By::Put, By::Clear, By::Tag, By::Sliding] {
        for load in [Load::Foreground, Load::Background, Load::RefreshAhead] {
            for tiers in [Tiers::One, Tiers::Two, Tiers::TwoOther, Tiers::TwoOtherUnnotified] {
                case(by, load, tiers);
            }
        }
    }
}
