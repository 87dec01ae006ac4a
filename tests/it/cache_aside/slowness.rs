//! Cache-aside with tiers that are slow, down or damaged: every call keeps its time limit, and each
//! pending invalidation is delivered once.
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::Poll,
    time::Duration,
};

use futures::future::join_all;
use steadfast::{
    cache_aside::{CacheAsideConfig, CacheAsideEvent, Loaded, Reached, RemoteConfig, StaleConfig},
    entropy::Entropy,
    store::{Key, Scan, Store, StoreExt},
    testing::{PortAnswer, ScriptedPort, drop_at_every_await},
};

use crate::{
    cache_aside::tiers::{FAILS, Plane, after, asked},
    cache_aside::world::{Cache, Error, MIN, MS, S, World, codec, plain},
};

struct Slow {
    world: World,
    tier: ScriptedPort,
    plane: Arc<Plane>,
}

/// Returns a configuration with a local time to live so short that nearly every get looks into the
/// remote tier.
fn short() -> CacheAsideConfig {
    plain().remote(RemoteConfig::default().local_ttl(MS(1)))
}

impl Slow {
    fn new() -> Self {
        let world = World::new();
        let tier = ScriptedPort::new(&world.clock);
        let plane = Plane::new(&world.notifier, &world.clock);
        Self { world, tier, plane }
    }

    fn cache(&self, config: CacheAsideConfig, seed: u64) -> Cache {
        let builder = self.world.builder(config).name("numbers").entropy(&Entropy::from_seed(seed));
        builder
            .remote(self.tier.store(self.world.store.clone()), codec())
            .backplane(self.plane.clone())
            .build()
            .unwrap()
    }

    /// Creates a cache with a running loop.
    fn process(&self, config: CacheAsideConfig, seed: u64) -> Cache {
        let cache = self.cache(config, seed);
        let loops = cache.clone();
        self.world.background.spawn(async move {
            loops.run(std::future::pending()).await;
        });
        self.world.turn();
        cache
    }

    /// Gets the key, and returns the time that it took.
    fn timed(&self, cache: &Cache, key: u32) -> Duration {
        let start = self.world.time.now();
        assert_eq!(self.world.get(cache, key).unwrap(), self.world.source.value.load(SeqCst));
        self.world.time.now() - start
    }

    fn tagged(&self, cache: &Cache, key: u32, tag: &'static str) -> u64 {
        self.world.run(cache.get_or_load(&key, || self.world.source.tagged(tag))).unwrap()
    }
}

// Guarantee: cache_aside 15.
#[test]
fn an_invalidation_whose_notice_fails_is_written_to_the_remote_tier_once() {
    for by_tag in [false, true] {
        let slow = Slow::new();
        let (world, cache) = (&slow.world, slow.process(short(), 1));
        slow.plane.script.always("", FAILS);
        for key in 0..100 {
            assert_eq!(slow.tagged(&cache, key, "t"), 1);
        }
        let reached = if by_tag { world.run(cache.invalidate_tag("t")) } else { world.run(cache.clear()) };
        assert_eq!(reached, Reached::ThisProcess);
        let mut told = 0;
        for _ in 0..60 {
            world.pass(S(1));
            for key in 0..100 {
                assert_eq!(slow.tagged(&cache, key, "t"), 1);
            }
            told += asked(&slow.plane.script, "publish");
        }
        assert_eq!(world.source.loads(), 200, "each key was loaded once before and once after it");
        assert!(told >= 30, "the notice was tried again, {told} times");
        // The notice is delivered when it can be, and then no more.
        slow.plane.script.always("", PortAnswer::pass());
        world.pass(S(3));
        assert_eq!(asked(&slow.plane.script, "publish"), 1);
        world.pass(S(30));
        assert_eq!(asked(&slow.plane.script, "publish"), 0);
        assert_eq!(world.run(cache.run(std::future::ready(()))), 0);
    }
}

#[test]
fn an_interrupted_clear_continues_where_it_was() {
    let slow = Slow::new();
    let (world, cache) = (&slow.world, slow.process(short(), 1));
    for key in 0..1000 {
        let _ = world.get(&cache, key);
    }
    // The tier fails after three pages.
    let mut scans = 0;
    slow.tier.by(move |request| {
        scans += u32::from(request.method == "scan");
        if scans > 3 { FAILS } else { PortAnswer::pass() }
    });
    assert_eq!(world.run(cache.clear()), Reached::ThisProcess);
    let rows = || world.run(world.store.scan_all(Scan::partition("cache numbers"))).unwrap().len();
    assert_eq!(rows(), 700);
    // Another process fills rows that are cleared already.
    let other = world.process(short(), 2);
    for key in 100..110 {
        let _ = world.get(&other, key);
    }
    slow.tier.always("", PortAnswer::pass());
    world.pass(S(3));
    assert_eq!(rows(), 10, "values stored after the clear stay");
}

// Guarantee: cache_aside 15.
#[test]
fn no_get_waits_for_pending_invalidations_beyond_the_time_out() {
    for has_loop in [true, false] {
        let slow = Slow::new();
        let world = &slow.world;
        let cache = if has_loop { slow.process(short(), 1) } else { slow.cache(short(), 1) };
        assert_eq!(slow.timed(&cache, 1), Duration::ZERO);
        slow.tier.always("", FAILS);
        for tag in 0..3000 {
            assert_eq!(world.run(cache.invalidate_tag(&format!("tag {tag}"))), Reached::ThisProcess);
        }
        slow.tier.always("", after(MS(20)));
        world.pass(S(1));
        let hits = cache.stats().remote_hits;
        for _ in 0..100 {
            let took = slow.timed(&cache, 1);
            assert!(took <= MS(100), "{took:?}");
            world.pass(MS(100));
        }
        // The key has none of these tags, so it is served from the remote tier meanwhile.
        assert!(cache.stats().remote_hits >= hits + 90, "{:?}", cache.stats());
        if has_loop {
            world.pass(S(10));
            assert_eq!(world.run(cache.run(std::future::ready(()))), 0, "all are delivered");
        }
    }
}

#[test]
fn a_tag_is_invalidated_in_a_remote_tier_whose_round_trip_is_near_the_time_out() {
    let slow = Slow::new();
    let (world, cache) = (&slow.world, slow.process(short(), 1));
    slow.tier.always("", after(MS(90)));
    assert_eq!(world.run(cache.invalidate_tag("t")), Reached::ThisProcess);
    world.pass(S(3));
    assert_eq!(asked(&slow.plane.script, "publish"), 1);
    assert_eq!(world.run(cache.run(std::future::ready(()))), 0);
}

#[test]
fn without_a_loop_a_load_delivers_the_invalidation_that_blocks_its_own_key() {
    let slow = Slow::new();
    let (world, cache) = (&slow.world, slow.cache(short(), 1));
    let fail_to_deliver = |what: &str| {
        slow.tier.always("", FAILS);
        let reached = match what {
            "row" => world.run(cache.invalidate(&1)),
            "tag" => world.run(cache.invalidate_tag("t")),
            _ => world.run(cache.clear()),
        };
        assert_eq!(reached, Reached::ThisProcess);
        slow.tier.always("", PortAnswer::pass());
        world.pass(S(2));
    };
    for what in ["row", "tag", "all"] {
        assert_eq!(slow.tagged(&cache, 1, "t"), world.source.value.load(SeqCst));
        world.source.set(world.source.value.load(SeqCst) + 1);
        fail_to_deliver(what);
        for _ in 0..3 {
            assert_eq!(slow.tagged(&cache, 1, "t"), world.source.value.load(SeqCst), "{what}");
            world.pass(S(2));
        }
        let hits = cache.stats().remote_hits;
        assert_eq!(slow.tagged(&cache, 1, "t"), world.source.value.load(SeqCst), "{what}");
        assert_eq!(cache.stats().remote_hits, hits + 1, "{what}: the remote tier serves the key again");
    }
}

// Guarantee: cache_aside 15.
#[test]
fn with_one_slow_answer_in_a_thousand_at_most_1_percent_of_gets_bypass_the_remote_tier() {
    for first in [0, 1, 500] {
        let slow = Slow::new();
        let (world, cache) = (&slow.world, slow.process(short(), 1));
        for key in 0..100 {
            assert_eq!(slow.tagged(&cache, key, "t"), 1);
        }
        let mut request = first;
        slow.tier.by(move |_| {
            request += 1;
            if request % 1000 == 0 { PortAnswer::hang() } else { PortAnswer::pass() }
        });
        let loads = world.source.loads();
        for get in 0..20_000 {
            world.pass(MS(2));
            let start = world.time.now();
            assert_eq!(slow.tagged(&cache, get % 100, "t"), 1);
            assert!(world.time.now() - start <= MS(100));
        }
        let past = world.source.loads() - loads;
        assert!(past <= 200, "{past} of 20,000 gets");
    }
}

// Guarantee: cache_aside 15.
/// Each pause of the server makes 50 requests in a row time out. They were in flight at once, and
/// counted as 50 failures in a row, so 59.6 % of gets bypassed a tier that answered again.
#[test]
fn with_one_slow_answer_in_a_hundred_in_bursts_of_fifty_at_most_2_percent_of_gets_bypass_the_remote_tier() {
    // Gets that begin at the same time, and the time until the next ones begin; none: when the others have ended.
    for (together, next) in [(50, Some(MS(15))), (50, None), (1, Some(MS(1))), (7, Some(MS(3)))] {
        let slow = Slow::new();
        let (world, cache) = (&slow.world, slow.process(short(), 1));
        for key in 0..100 {
            assert_eq!(slow.timed(&cache, key), Duration::ZERO);
        }
        let (mut request, hit) = (0, Arc::new(AtomicU64::new(0)));
        let hits = hit.clone();
        slow.tier.by(move |_| {
            request += 1;
            if request % 5000 < 50 && request > 5000 {
                hits.fetch_add(1, SeqCst);
                return PortAnswer::hang();
            }
            PortAnswer::pass()
        });
        let loads = world.source.loads();
        for first in (0..20_000).step_by(together) {
            let gets = (first..first + together).map(|get| {
                let (cache, source) = (cache.clone(), world.source.clone());
                async move { cache.get_or_load(&(get as u32 % 100), || source.load()).await.unwrap() }
            });
            match next {
                Some(next) => {
                    gets.for_each(|get| world.background.spawn(async move { assert_eq!(get.await, 1) }));
                    world.pass(next);
                }
                None => {
                    world.run(join_all(gets));
                    world.pass(MS(15));
                }
            }
        }
        world.pass(S(1));
        // A get with a slow answer loads without the tier, and a later one brings its value there.
        let (past, hit) = (world.source.loads() - loads, hit.load(SeqCst));
        assert!(past <= 2 * hit && past <= 400, "{past} of 20,000 gets, {hit} slow, {together} together, {next:?}");
        assert!(hit >= 100, "{hit}");
    }
}

#[test]
fn a_remote_tier_that_is_down_is_suspended_after_few_gets_and_resumed() {
    let slow = Slow::new();
    let (world, cache) = (&slow.world, slow.process(short(), 1));
    for key in 0..1000 {
        assert_eq!(slow.timed(&cache, key), Duration::ZERO);
        world.pass(MS(2));
    }
    slow.tier.always("", PortAnswer::hang());
    let start = world.time.now();
    for key in 0..500 {
        let _ = slow.timed(&cache, key);
    }
    assert!(world.time.now() - start <= MS(300), "{:?}", world.time.now() - start);
    // One get per second probes the tier.
    let mut waited = 0;
    for key in 0..500 {
        world.pass(MS(18));
        waited += u32::from(slow.timed(&cache, key) > Duration::ZERO);
    }
    assert!((5..=11).contains(&waited), "{waited}");
    slow.tier.always("", PortAnswer::pass());
    world.pass(S(2));
    let hits = cache.stats().remote_hits;
    for key in 900..1000 {
        assert_eq!(slow.timed(&cache, key), Duration::ZERO);
    }
    assert_eq!(cache.stats().remote_hits, hits + 100);
}

#[test]
fn a_hanging_backplane_keeps_no_key_from_the_remote_tier() {
    let slow = Slow::new();
    let (world, cache) = (&slow.world, slow.process(short(), 1));
    for key in 0..50 {
        assert_eq!(slow.timed(&cache, key), Duration::ZERO);
    }
    assert_eq!(slow.tagged(&cache, 99, "t"), 1);
    slow.plane.script.always("", PortAnswer::hang());
    world.source.set(2);
    let start = world.time.now();
    assert_eq!(world.run(cache.invalidate_tag("t")), Reached::ThisProcess);
    assert_eq!(world.run(cache.invalidate(&98)), Reached::ThisProcess);
    assert!(world.time.now() - start <= MS(200));
    world.source.set(1);
    let (hits, loads) = (cache.stats().remote_hits, world.source.loads());
    for round in 0..10 {
        for key in 0..50 {
            assert_eq!(slow.timed(&cache, key), Duration::ZERO);
        }
        world.source.set(2);
        assert_eq!(slow.tagged(&cache, 99, "t"), 2, "round {round}");
        world.source.set(1);
        world.pass(S(1));
    }
    assert_eq!((cache.stats().remote_hits, world.source.loads()), (hits + 509, loads + 1));
}

// Guarantee: cache_aside 15.
#[test]
fn a_tag_that_cannot_be_invalidated_keeps_only_its_own_values_from_the_remote_tier() {
    let slow = Slow::new();
    let (world, cache) = (&slow.world, slow.process(short(), 1));
    for key in 0..20 {
        assert_eq!(slow.tagged(&cache, key, if key % 2 == 0 { "good" } else { "bad" }), 1);
    }
    slow.tier.by(|request| {
        if request.method == "put" && request.target == "tag bad" { PortAnswer::hang() } else { PortAnswer::pass() }
    });
    assert_eq!(world.run(cache.invalidate_tag("bad")), Reached::ThisProcess);
    let (hits, mut waited) = (cache.stats().remote_hits, Duration::ZERO);
    for _ in 0..20 {
        for key in 0..20 {
            let start = world.time.now();
            assert_eq!(slow.tagged(&cache, key, if key % 2 == 0 { "good" } else { "bad" }), 1);
            let took = world.time.now() - start;
            assert!(took <= MS(100) && (key % 2 == 1 || took.is_zero()), "key {key} took {took:?}");
            waited += took;
        }
        world.pass(S(1));
    }
    assert_eq!(cache.stats().remote_hits - hits, 200, "all others were served by the remote tier");
    assert!(waited <= S(2), "a load helps at most once per cool-down: {waited:?}");
}

// Guarantee: cache_aside 3.
#[test]
fn a_value_whose_tag_is_invalidated_while_its_marks_are_read_is_not_served() {
    let slow = Slow::new();
    let (world, cache) = (&slow.world, slow.cache(short(), 1));
    let load = |value: u64| async move { Ok::<_, Error>(Loaded::new(value).tags(["fast", "slow"])) };
    assert_eq!(world.run(cache.get_or_load(&1, || load(1))).unwrap(), 1);
    slow.tier
        .by(|request| if request.method == "put" && request.target == "tag fast" { FAILS } else { PortAnswer::pass() });
    assert_eq!(world.run(cache.invalidate_tag("fast")), Reached::ThisProcess);
    world.pass(S(1));

    // The mark of the first tag is read at once; before that of the second, the invalidation is delivered.
    slow.tier.by(|request| if request.target == "tag slow" { after(MS(20)) } else { PortAnswer::pass() });
    let mut get = Box::pin(cache.get_or_load(&1, || load(2)));
    let begun = world.begin(&mut get);
    assert_eq!(world.run(cache.run(std::future::ready(()))), 0, "the invalidation is delivered");
    let value = match begun {
        Poll::Ready(value) => value,
        Poll::Pending => world.run(get),
    };
    assert_eq!(value.unwrap(), 2);
}

#[test]
fn the_tag_marks_of_a_value_are_read_concurrently() {
    let slow = Slow::new();
    let (world, a, b) = (&slow.world, slow.process(short(), 1), slow.process(short(), 2));
    slow.tier.always("", after(MS(3)));
    let many = || async { Ok::<_, Error>(Loaded::new(1).tags((0..40).map(|tag| format!("tag {tag}")))) };
    for cache in [&a, &b] {
        let start = world.time.now();
        assert_eq!(world.run(cache.get_or_load(&1, many)).unwrap(), 1);
        assert!(world.time.now() - start <= MS(15), "{:?}", world.time.now() - start);
    }
    assert_eq!((b.stats().remote_hits, a.stats().faults, b.stats().faults), (1, 0, 0));
    // Each of the tags counts.
    assert_eq!(world.run(a.invalidate_tag("tag 39")), Reached::Everywhere);
    world.turn();
    assert_eq!(world.run(b.get(&1)), None);
}

#[test]
fn no_value_is_served_beyond_its_maximum_age_whichever_process_loaded_it() {
    let world = World::new();
    let config = plain().stale(StaleConfig::new(S(3700)).throttle(S(1)));
    let (a, b) = (world.process(config, 1), world.process(config, 2));
    assert_eq!(world.get(&a, 1).unwrap(), 1);
    world.pass(S(3590));
    assert_eq!(world.get(&b, 1).unwrap(), 1);
    assert_eq!(b.stats().remote_hits, 1);
    world.source.fails.store(true, SeqCst);
    world.pass(S(109));
    assert_eq!(world.get(&b, 1).unwrap(), 1, "at 3,699 s");
    world.pass(S(1));
    assert!(world.get(&b, 1).is_err(), "at 3,700 s");
    assert!(world.get(&a, 1).is_err(), "at 3,700 s");
}

// Guarantee: cache_aside 15.
#[test]
fn a_damaged_record_is_a_miss_and_an_event() {
    let world = World::new();
    let (a, b) = (world.process(short(), 1), world.process(short(), 2));
    let key = Key::new("cache numbers", "1");
    assert_eq!(slow_tagged(&world, &a), 1);
    let sound = world.run(world.store.get(key)).unwrap().unwrap().value;
    let mut events = b.events();
    for bit in 0..sound.len() * 8 {
        world.pass(MS(2));
        let mut damaged = sound.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        world.run(world.store.put(key, damaged.into(), Default::default())).unwrap();
        let loads = world.source.loads();
        assert_eq!(slow_tagged(&world, &b), 1, "bit {bit}");
        assert_eq!(world.source.loads(), loads + 1, "bit {bit} of {:?}", String::from_utf8_lossy(&sound));
        let told = events.try_recv().unwrap().unwrap().what;
        assert!(matches!(told, CacheAsideEvent::Damaged | CacheAsideEvent::Undecodable), "{told:?}");
    }
}

fn slow_tagged(world: &World, cache: &Cache) -> u64 {
    world.run(cache.get_or_load(&1, || world.source.tagged("t"))).unwrap()
}

#[test]
fn a_damaged_tag_mark_brings_no_old_value_back_and_is_repaired() {
    let world = World::new();
    let (a, b) = (world.process(short(), 1), world.process(short(), 2));
    for flip in 0..64 {
        assert_eq!(slow_tagged(&world, &a), world.source.value.load(SeqCst));
        let old = world.run(world.store.get(Key::new("cache numbers", "1"))).unwrap().unwrap().value;
        world.source.set(world.source.value.load(SeqCst) + 1);
        assert_eq!(world.run(b.invalidate_tag("t")), Reached::Everywhere);
        world.turn();
        // The old value is still there, and the mark is damaged.
        let marks: Vec<_> = world.store.records().into_iter().filter(|((_, row), _)| row == "tag t").collect();
        let [((partition, row), mark)] = &marks[..] else { panic!("{marks:?}") };
        let mut damaged = mark.value.to_vec();
        let at = damaged.len() - 1 - flip % 2;
        damaged[at] ^= 1 << (flip % 8);
        world.run(world.store.put(Key::new(partition, row), damaged.into(), Default::default())).unwrap();
        world.run(world.store.put(Key::new("cache numbers", "1"), old, Default::default())).unwrap();
        world.pass(MS(2));
        assert_eq!(slow_tagged(&world, &a), world.source.value.load(SeqCst), "flip {flip}");
        world.pass(MS(2));
        let hits = b.stats().remote_hits;
        let _ = slow_tagged(&world, &a);
        world.pass(MS(2));
        assert_eq!(slow_tagged(&world, &b), world.source.value.load(SeqCst), "flip {flip}");
        assert_eq!(b.stats().remote_hits, hits + 1, "flip {flip}: the tag's values are kept again");
    }
}

// Guarantee: cache_aside 15.
#[test]
fn the_time_out_of_the_remote_tier_covers_the_whole_call() {
    // Each request of a call is slow in turn, or all of them are.
    for slow_one in 0..8 {
        for time in [20, 30, 45, 60, 90, 99, 1000] {
            let slow = Slow::new();
            let (world, cache) = (&slow.world, slow.cache(short(), 1));
            let mut request = 0;
            let rule = move |_: &_| {
                request += 1;
                if slow_one == 0 || request >= slow_one { after(MS(time)) } else { PortAnswer::pass() }
            };
            slow.tier.by(rule);
            slow.plane.script.always("", after(MS(time)));
            let took = |future| {
                let start = world.time.now();
                world.run(future);
                let took = world.time.now() - start;
                assert!(took <= MS(100), "{took:?} with request {slow_one} of {time} ms");
            };
            took(Box::pin(async { assert_eq!(slow.tagged_later(&cache).await, 1) }) as Later<'_>);
            took(Box::pin(async { _ = cache.put(&1, Loaded::new(1).tag("t")).await }));
            took(Box::pin(async { _ = cache.invalidate(&1).await }));
            took(Box::pin(async { _ = cache.invalidate_tag("t").await }));
            took(Box::pin(async { assert_eq!(slow.tagged_later(&cache).await, 1) }));
        }
    }
}

type Later<'a> = std::pin::Pin<Box<dyn Future<Output = ()> + 'a>>;

impl Slow {
    async fn tagged_later(&self, cache: &Cache) -> u64 {
        cache.get_or_load(&1, || self.world.source.tagged("t")).await.unwrap()
    }
}

#[test]
fn an_undeliverable_invalidation_is_tried_at_most_ten_times_a_second() {
    let slow = Slow::new();
    let config = plain().remote(RemoteConfig::default().rest(Duration::from_nanos(1)));
    let (world, cache) = (&slow.world, slow.process(config, 1));
    slow.plane.script.always("", FAILS);
    slow.tier.always("", FAILS);
    let _ = world.run(cache.invalidate_tag("t"));
    world.pass(S(1));
    let _ = (asked(&slow.plane.script, "publish"), asked(&slow.tier, "put"));
    world.pass(S(10));
    let tried = asked(&slow.tier, "put");
    assert!((50..=110).contains(&tried), "{tried}");
}

#[test]
fn caches_with_similar_names_share_nothing() {
    let world = World::new();
    let named = |name: &'static str| {
        let builder = world.builder(short()).name(name).entropy(&Entropy::from_seed(1));
        let cache: Cache = builder.remote(world.store.clone(), codec()).build().unwrap();
        cache
    };
    for name in ["x tags", "x", "tags x", "-tags x"] {
        let (cache, other) = (named("x"), named(name));
        assert_eq!(slow_tagged(&world, &cache), world.source.value.load(SeqCst));
        let old = world.run(world.store.get(Key::new("cache x", "1"))).unwrap().unwrap().value;
        world.source.set(world.source.value.load(SeqCst) + 1);
        world.run(cache.invalidate_tag("t"));
        if name != "x" {
            world.run(other.clear());
        }
        // The tag's mark still counts.
        world.run(world.store.put(Key::new("cache x", "1"), old, Default::default())).unwrap();
        assert_eq!(slow_tagged(&world, &cache), world.source.value.load(SeqCst), "{name}");
        world.run(cache.clear());
    }
}

#[test]
fn processes_with_the_same_seed_receive_each_other_s_notices() {
    let world = World::new();
    let config = plain();
    let (a, b) = (world.process(config, 1), world.process(config, 1));
    assert_eq!((world.get(&a, 1).unwrap(), world.get(&b, 1).unwrap()), (1, 1));
    world.source.set(2);
    assert_eq!(world.run(a.invalidate(&1)), Reached::Everywhere);
    world.turn();
    assert_eq!(world.get(&b, 1).unwrap(), 2);
    // Neither takes the other's claim for its own.
    world.source.takes(MS(300));
    let mut first = Box::pin(a.get_or_load(&7, || world.source.load()));
    assert!(world.begin(&mut first).is_pending());
    let loads = world.source.loads();
    let mut second = Box::pin(b.get_or_load(&7, || world.source.load()));
    assert!(world.begin(&mut second).is_pending());
    assert_eq!(world.run(first).unwrap(), 2);
    assert_eq!(world.run(second).unwrap(), 2);
    assert_eq!(world.source.loads(), loads);
}

#[test]
fn a_gap_in_the_notices_expires_older_entries() {
    let slow = Slow::new();
    let config = plain().remote(RemoteConfig::default().local_ttl(MIN(30)));
    let (world, a, b) = (&slow.world, slow.cache(config, 1), slow.process(config, 2));
    assert_eq!((slow.timed(&a, 1), slow.timed(&b, 1)), (Duration::ZERO, Duration::ZERO));
    slow.plane.loses.store(true, SeqCst);
    world.source.set(2);
    assert_eq!(world.run(a.invalidate(&1)), Reached::Everywhere);
    world.turn();
    assert_eq!(world.get(&b, 1).unwrap(), 1, "the notice was lost without a gap being reported");
    let mut events = b.events();
    slow.plane.gap.store(true, SeqCst);
    world.turn();
    assert_eq!(events.try_recv().unwrap().unwrap().what, CacheAsideEvent::Gap);
    world.source.fails.store(true, SeqCst);
    assert!(world.get(&b, 1).is_err(), "the old value is not served when the source fails, as `stale` is not set");
    world.source.fails.store(false, SeqCst);
    assert_eq!(world.get(&b, 1).unwrap(), 2);
}

#[test]
fn a_put_with_an_unknown_outcome_restores_no_value_that_was_invalidated_meanwhile() {
    let slow = Slow::new();
    let (world, cache) = (&slow.world, slow.cache(plain(), 1));
    for by_clear in [false, true] {
        slow.tier.always("", PortAnswer::hang());
        let mut put = Box::pin(cache.put(&1, 1));
        assert!(world.begin(&mut put).is_pending());
        // The source changes, and the key is invalidated while the put waits.
        world.source.set(2);
        slow.tier.always("", PortAnswer::pass());
        let reached = if by_clear { world.run(cache.clear()) } else { world.run(cache.invalidate(&1)) };
        assert_eq!(reached, Reached::Everywhere);
        assert_eq!(world.run(put), Reached::ThisProcess);
        assert_eq!(world.get(&cache, 1).unwrap(), 2);
        // Without an invalidation, the value stays in this process.
        slow.tier.always("", PortAnswer::hang());
        assert_eq!(world.run(cache.put(&1, 3)), Reached::ThisProcess);
        assert_eq!(world.run(cache.get(&1)), Some(3));
        slow.tier.always("", PortAnswer::pass());
        world.pass(S(2));
    }
}

#[test]
fn a_put_superseded_by_an_invalidation_of_its_own_process_is_stored_nowhere() {
    let slow = Slow::new();
    let (world, cache) = (&slow.world, slow.cache(plain(), 1));
    slow.tier.always("", after(MS(10)));
    let mut put = Box::pin(cache.put(&1, 1));
    assert!(world.begin(&mut put).is_pending());
    world.source.set(2);
    // The invalidation's delete arrives before the put's claim or after it.
    for time in [MS(1), MS(5)] {
        slow.tier.always("", after(time));
        assert_eq!(world.run(cache.invalidate(&1)), Reached::Everywhere);
    }
    let _ = world.run(put);
    assert_eq!(world.get(&cache, 1).unwrap(), 2);
    assert_eq!(world.get(&slow.cache(plain(), 2), 1).unwrap(), 2);
}

#[test]
fn a_put_whose_notice_fails_stays_and_is_not_deleted_when_the_notice_is_delivered() {
    let slow = Slow::new();
    let (world, cache) = (&slow.world, slow.process(plain(), 1));
    slow.plane.script.always("", FAILS);
    assert_eq!(world.run(cache.put(&1, 5)), Reached::ThisProcess);
    assert_eq!(world.run(cache.get(&1)), Some(5));
    slow.plane.script.always("", PortAnswer::pass());
    world.pass(S(5));
    assert_eq!(asked(&slow.plane.script, "publish"), 2);
    assert_eq!((world.run(cache.get(&1)), world.source.loads()), (Some(5), 0));
    assert_eq!(world.run(slow.cache(plain(), 2).get(&1)), Some(5));
}

#[test]
fn a_loop_dropped_at_any_await_loses_no_pending_invalidation() {
    let slow = Slow::new();
    let (world, a) = (&slow.world, slow.cache(short(), 1));
    let leave_pending = || {
        slow.tier.always("", FAILS);
        for key in 0..3 {
            assert_eq!(world.run(a.invalidate(&key)), Reached::ThisProcess);
        }
        assert_eq!(world.run(a.invalidate_tag("t")), Reached::ThisProcess);
        assert_eq!(world.run(a.clear()), Reached::ThisProcess);
        slow.tier.always("", after(MS(1)));
        slow.plane.script.always("", after(MS(1)));
        world.pass(S(2));
    };
    let check = |polls: usize| {
        // The next loop delivers the rest, and the values are the source's.
        assert_eq!(world.run(a.run(world.clock.sleep(S(5)))), 0, "after {polls} polls");
        world.source.set(world.source.value.load(SeqCst) + 1);
        let b = slow.cache(short(), 2);
        assert_eq!(world.run(a.clear()), Reached::Everywhere);
        for key in 0..3 {
            assert_eq!(slow.tagged(&a, key, "t"), world.source.value.load(SeqCst), "after {polls} polls");
            assert_eq!(slow.tagged(&b, key, "t"), world.source.value.load(SeqCst), "after {polls} polls");
        }
    };
    let polls = drop_at_every_await(&world.time, || (leave_pending(), a.run(world.clock.sleep(MS(200)))).1, check);
    assert!(polls >= 5, "{polls}");
}
