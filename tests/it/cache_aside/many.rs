//! Gets of several keys at once.
use std::{
    collections::HashMap,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::Poll,
};

use proptest::prelude::*;
use steadfast::{
    cache_aside::{CacheAsideConfig, LoadError, LoadOptions, RemoteConfig, StaleConfig, Unattended},
    entropy::Entropy,
    testing::{
        PortAnswer, ScriptedPort, drop_at_every_await,
        faults::{FaultConfig, FaultNetwork},
    },
    time::{Clock, Instant, TimeSource},
};

use crate::cache_aside::{
    tiers::{FAILS, after},
    world::{Cache, Error, MIN, MS, S, Source, World, codec, plain},
};

type Got = Result<Vec<Option<u64>>, LoadError<Error>>;

/// A loader of several keys, which records the keys of each call. Even keys are absent.
#[derive(Clone)]
struct Batch {
    source: Source,
    calls: Arc<Mutex<Vec<Vec<u32>>>>,
}

type Loading = Pin<Box<dyn Future<Output = Result<HashMap<u32, u64>, Error>> + Send>>;

impl Batch {
    fn of(world: &World) -> Self {
        Self { source: world.source.clone(), calls: Arc::default() }
    }

    fn load(&self) -> impl Fn(Vec<u32>) -> Loading + Send + Sync + use<> {
        let me = self.clone();
        move |keys: Vec<u32>| {
            me.calls.lock().unwrap().push(keys.clone());
            let load = me.source.load();
            Box::pin(async move {
                let value = load.await?;
                // A key that was not asked for is ignored.
                let found = keys.into_iter().filter(|key| key % 2 == 1).chain([99]);
                Ok(found.map(|key| (key, value * 100 + u64::from(key))).collect())
            })
        }
    }

    fn get(&self, world: &World, cache: &Cache, keys: &[u32]) -> Got {
        world.run(cache.get_or_load_many(keys, self.load()))
    }

    /// Returns the keys of each call so far, sorted, and forgets them.
    fn calls(&self) -> Vec<Vec<u32>> {
        let mut calls = std::mem::take(&mut *self.calls.lock().unwrap());
        calls.iter_mut().for_each(|keys| keys.sort_unstable());
        calls
    }
}

// Guarantee: cache_aside 20.
#[test]
fn values_come_in_the_order_of_the_keys_from_one_call_of_the_loader() {
    let world = World::new();
    let (cache, batch) = (world.cache(plain().negative_ttl(S(10))), Batch::of(&world));
    world.run(cache.put(&5, 55));
    let got = batch.get(&world, &cache, &[3, 2, 5, 1, 3, 2]).unwrap();
    assert_eq!(got, [Some(103), None, Some(55), Some(101), Some(103), None]);
    assert_eq!(batch.calls(), [[1, 2, 3]]);
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.loads), (1, 3, 3));
    // All are hits now, and what is absent is remembered for its own time.
    assert_eq!(batch.get(&world, &cache, &[1, 2, 3, 5]).unwrap(), [Some(101), None, Some(103), Some(55)]);
    assert_eq!(batch.calls(), [[0; 0]; 0]);
    world.pass(S(10));
    assert_eq!(batch.get(&world, &cache, &[1, 2, 99]).unwrap(), [Some(101), None, Some(199)]);
    assert_eq!(batch.calls(), [[2, 99]], "and 99 was not stored by the first call");
    assert_eq!(batch.get(&world, &cache, &[]).unwrap(), []);
}

#[test]
fn a_call_of_the_loader_has_at_most_max_batch_keys_and_all_run_at_once() {
    let world = World::new();
    let (cache, batch) = (world.cache(plain().max_batch(40)), Batch::of(&world));
    world.source.takes(S(1));
    let keys: Vec<u32> = (0..100).map(|n| 2 * n + 1).collect();
    let start = world.time.now();
    assert_eq!(batch.get(&world, &cache, &keys).unwrap().len(), 100);
    assert_eq!(batch.calls().iter().map(Vec::len).collect::<Vec<_>>(), [40, 40, 20]);
    assert_eq!(world.time.now() - start, S(1));
}

// Guarantee: cache_aside 20.
#[test]
fn keys_that_another_call_loads_are_awaited_and_not_loaded_again() {
    let world = World::new();
    let (cache, batch) = (world.cache(plain()), Batch::of(&world));
    world.source.takes(S(1));
    let mut one = Box::pin(cache.get_or_load(&1, || world.source.load()));
    assert!(world.begin(&mut one).is_pending());
    let mut many = Box::pin(cache.get_or_load_many(&[1, 3, 5], batch.load()));
    assert!(world.begin(&mut many).is_pending());
    let mut others = Box::pin(cache.get_or_load_many(&[7, 5, 3], batch.load()));
    assert!(world.begin(&mut others).is_pending());
    let five = cache.get_or_load(&5, || world.source.load());
    assert_eq!(world.run(five).unwrap(), 105);
    assert_eq!(world.run(many).unwrap(), [Some(1), Some(103), Some(105)]);
    assert_eq!(world.run(others).unwrap(), [Some(107), Some(105), Some(103)]);
    assert_eq!(world.run(one).unwrap(), 1);
    assert_eq!(batch.calls(), [vec![3, 5], vec![7]]);
    assert_eq!(world.source.loads(), 3);
}

// Guarantee: cache_aside 20.
#[test]
fn a_caller_that_joined_continues_the_load_when_the_call_for_several_keys_is_dropped() {
    for (then, calls) in [(Unattended::Drop, 2), (Unattended::Finish, 1)] {
        let world = World::new();
        let (cache, batch) = (world.cache(plain().unattended(then)), Batch::of(&world));
        world.source.takes(S(1));
        let mut many = Box::pin(cache.get_or_load_many(&[1, 3], batch.load()));
        assert!(world.begin(&mut many).is_pending());
        let mut joined = Box::pin(cache.get_or_load(&3, || world.source.load()));
        assert!(world.begin(&mut joined).is_pending());
        drop(many);
        assert_eq!(world.run(joined).unwrap(), 103);
        world.turn();
        assert_eq!(batch.get(&world, &cache, &[1, 3]).unwrap(), [Some(101), Some(103)]);
        assert_eq!(batch.calls().len(), calls, "{then:?}: nobody waited for 1");
    }
}

#[test]
fn a_failure_is_the_error_of_the_call_unless_expired_values_can_be_served() {
    let world = World::new();
    let config = plain().max_batch(1).stale(StaleConfig::new(MIN(120)).throttle(S(1)));
    let (cache, batch) = (world.cache(config), Batch::of(&world));
    assert_eq!(batch.get(&world, &cache, &[1]).unwrap(), [Some(101)]);
    world.pass(MIN(61));
    world.source.fails.store(true, SeqCst);
    assert_eq!(batch.get(&world, &cache, &[1, 1]).unwrap(), [Some(101), Some(101)], "expired, and servable");
    world.pass(S(2));
    assert_eq!(batch.get(&world, &cache, &[1, 3]).unwrap_err().failed(), Some(&"down"));
    // One call of the loader fails, and the values of the other are cached all the same.
    let part = |keys: Vec<u32>| async move {
        if keys == [7] { Err("no seven") } else { Ok(keys.into_iter().map(|key| (key, 5_u64)).collect::<Vec<_>>()) }
    };
    assert_eq!(world.run(cache.get_or_load_many(&[9, 7, 11], part)).unwrap_err().failed(), Some(&"no seven"));
    assert_eq!([9, 7, 11].map(|key| world.run(cache.get(&key))), [Some(5), None, Some(5)]);
    // A load that takes too long is a time-out for each key.
    world.source.takes(S(40));
    assert!(matches!(batch.get(&world, &cache, &[13, 15]), Err(LoadError::TimedOut { after }) if after == S(30)));
    assert_eq!(cache.stats().load_failures, 6);
}

#[test]
fn a_panicking_loader_of_several_keys_unwinds_one_caller_and_the_others_load_by_themselves() {
    let world = World::new();
    let cache = world.cache(plain());
    let clock = world.clock.clone();
    let panics = move |keys: Vec<u32>| {
        let clock = clock.clone();
        async move {
            clock.sleep(S(1)).await;
            if !keys.is_empty() {
                panic!("on purpose");
            }
            Ok::<Vec<(u32, u64)>, Error>(Vec::new())
        }
    };
    let mut many = Box::pin(cache.get_or_load_many(&[1, 3, 5], panics));
    assert!(world.begin(&mut many).is_pending());
    let mut joined: Vec<_> =
        [1, 3].iter().map(|key| Box::pin(cache.get_or_load(key, || world.source.load()))).collect();
    for joined in &mut joined {
        assert!(world.begin(joined).is_pending());
    }
    world.time.advance(S(1));
    assert!(catch_unwind(AssertUnwindSafe(|| world.begin(&mut many))).is_err());
    drop(many);
    for joined in joined {
        assert_eq!(world.run(joined).unwrap(), 1);
    }
    assert_eq!(world.get(&cache, 5).unwrap(), 1);
}

#[test]
fn values_that_are_due_are_refreshed_together_in_the_background() {
    let world = World::new();
    let (cache, batch) = (world.cache(plain().refresh_ahead(0.5)), Batch::of(&world));
    batch.get(&world, &cache, &[1, 3, 5]).unwrap();
    batch.calls();
    world.pass(MIN(31));
    world.source.set(2);
    world.source.takes(S(1));
    let got = batch.get(&world, &cache, &[1, 3, 1]).unwrap();
    assert_eq!(got, [Some(101), Some(103), Some(101)]);
    assert_eq!(batch.get(&world, &cache, &[1, 3]).unwrap(), [Some(101), Some(103)]);
    world.pass(S(2));
    assert_eq!(batch.calls(), [[1, 3]]);
    assert_eq!(batch.get(&world, &cache, &[1, 3]).unwrap(), [Some(201), Some(203)]);
    assert_eq!(world.background.len(), 0);
}

fn shared() -> CacheAsideConfig {
    plain().remote(RemoteConfig::default().local_ttl(MIN(30))).negative_ttl(MIN(20))
}

// Guarantee: cache_aside 20.
#[test]
fn missing_keys_are_looked_up_in_the_remote_tier_at_once_and_only_the_others_loaded() {
    let world = World::new();
    let tier = ScriptedPort::new(&world.clock);
    tier.always("", after(MS(5)));
    let (a, b) = (world.process(shared(), 1), world.process_on(tier.store(world.store.clone()), shared(), 2));
    let batch = Batch::of(&world);
    batch.get(&world, &a, &[1, 2, 3]).unwrap();
    batch.calls();
    let start = world.time.now();
    let keys: Vec<u32> = (1..40).collect();
    let expected: Vec<_> = keys.iter().map(|key| (key % 2 == 1).then_some(100 + u64::from(*key))).collect();
    assert_eq!(batch.get(&world, &b, &keys).unwrap(), expected);
    // To look up, to claim, and to store: each at once for all keys.
    assert!(world.time.now() - start <= MS(20), "{:?}", world.time.now() - start);
    assert_eq!(batch.calls(), [(4..40).collect::<Vec<_>>()]);
    assert_eq!(b.stats().remote_hits, 3);
    // What it loaded is in the remote tier, and no claim is left.
    assert_eq!(batch.get(&world, &a, &keys).unwrap(), expected);
    assert_eq!(batch.calls().len(), 0);
}

#[test]
fn a_key_that_another_process_loads_delays_the_others_by_a_tenth_of_a_second_at_most() {
    let world = World::new();
    let (a, b, batch) = (world.process(shared(), 1), world.process(shared(), 2), Batch::of(&world));
    world.source.takes(MS(500));
    let mut slow = Box::pin(a.get_or_load(&1, || world.source.load()));
    assert!(world.begin(&mut slow).is_pending());
    let mut many = Box::pin(b.get_or_load_many(&[3, 1, 5], batch.load()));
    assert!(world.begin(&mut many).is_pending());
    world.pass(MS(100));
    assert!(world.begin(&mut many).is_pending());
    assert_eq!(batch.calls(), [[3, 5]]);
    world.run(slow).unwrap();
    assert_eq!(world.run(many).unwrap(), [Some(103), Some(1), Some(105)]);
    assert_eq!(batch.calls().len(), 0);
}

#[test]
fn a_remote_tier_that_fails_costs_no_call_for_several_keys() {
    for answer in [FAILS, PortAnswer::hang(), after(MS(60))] {
        let world = World::new();
        let tier = ScriptedPort::new(&world.clock);
        let (cache, batch) = (world.process_on(tier.store(world.store.clone()), shared(), 1), Batch::of(&world));
        tier.by(move |call| if call.target.starts_with('1') { answer } else { PortAnswer::pass() });
        let keys: Vec<u32> = (0..100).map(|n| 2 * n + 1).collect();
        let start = world.time.now();
        assert!(batch.get(&world, &cache, &keys).unwrap().iter().all(Option::is_some), "{answer:?}");
        assert!(world.time.now() - start <= MS(300), "{answer:?}: {:?}", world.time.now() - start);
    }
}

#[test]
fn a_call_for_several_keys_has_options_too_and_its_future_can_be_spawned() {
    fn is_send<T: Send>(it: T) -> T {
        it
    }
    let world = World::new();
    let (cache, batch) = (world.cache(plain()), Batch::of(&world));
    let short = cache.with(LoadOptions::default().ttl(S(5)).tags(["t"])).unwrap();
    world.run(is_send(short.get_or_load_many(&[1, 3], batch.load()))).unwrap();
    world.run(is_send(cache.get_or_load_many(&[1, 3], batch.load()))).unwrap();
    world.pass(S(5));
    assert_eq!(world.run(cache.get(&1)), None);
    let anew = cache.with(LoadOptions::default().skip_local_read(true)).unwrap();
    world.run(cache.put(&1, 7));
    assert_eq!(world.run(anew.get_or_load_many(&[1], batch.load())).unwrap(), [Some(101)]);
}

// Guarantee: cache_aside 14.
#[test]
fn a_call_for_several_keys_that_is_dropped_at_any_await_loses_nothing() {
    let world = World::new();
    let network = FaultNetwork::new(FaultConfig::default().latency(MS(1), MS(1)), 1, &world.clock).unwrap();
    let build = |seed, writes| {
        let config = shared().remote(RemoteConfig::default().local_ttl(MIN(30)).background_writes(writes));
        let builder = world.builder(config).name("numbers").entropy(&Entropy::from_seed(seed));
        let client = network.client("a");
        let cache: Cache = builder
            .remote(client.store(world.store.clone()), codec())
            .backplane(client.notifier(world.notifier.clone()))
            .build()
            .unwrap();
        cache
    };
    for writes in [0, 2] {
        let (a, batch) = (build(1, writes), Batch::of(&world));
        world.source.takes(MS(5));
        let check = |polls: usize| {
            world.source.set(world.source.value.load(SeqCst) + 1);
            world.run(async {
                a.clear().await;
                a.run(std::future::ready(())).await
            });
            let now = world.source.value.load(SeqCst);
            let b = build(2, 0); // with an empty local tier
            for cache in [&a, &b] {
                let got = batch.get(&world, cache, &[1, 2, 3]).unwrap();
                assert_eq!(got, [Some(now * 100 + 1), None, Some(now * 100 + 3)], "after {polls} polls");
            }
        };
        let missing = || world.run(a.clear());
        let make = || (missing(), a.get_or_load_many(&[1, 2, 3], batch.load())).1;
        assert!(drop_at_every_await(&world.time, make, check) >= 2);
    }
}

#[derive(Debug, Clone)]
enum Op {
    /// Starts a get of the keys in this set of bits, and polls it once.
    Start(u8),
    /// Starts a get of one key.
    StartOne(u32),
    /// Advances the clock by milliseconds, and polls the gets.
    Pass(u64),
    /// Drops one of the gets.
    Drop(usize),
    /// Changes the source and then invalidates: a key, all keys by their tag, or all.
    Change(u32),
    ChangeTagged,
    ChangeAll,
    Put(u32),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (1_u8..64).prop_map(Op::Start),
        2 => (0_u32..6).prop_map(Op::StartOne),
        6 => (0_u64..8).prop_map(Op::Pass),
        1 => any::<usize>().prop_map(Op::Drop),
        3 => (0_u32..6).prop_map(Op::Change),
        1 => Just(Op::ChangeTagged),
        1 => Just(Op::ChangeAll),
        1 => (0_u32..6).prop_map(Op::Put),
    ];
    prop::collection::vec(op, 1..60)
}

/// A get in progress: its keys, the oldest value that it may return for each, and its future.
type InProgress<'a> = (Vec<u32>, Vec<u64>, Pin<Box<dyn Future<Output = Vec<u64>> + 'a>>);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// The naive model: a get returns nothing that was read before an invalidation that had returned when the get
    /// started; and unless gets are dropped, each value is loaded once.
    // Guarantee: cache_aside 20.
    #[test]
    fn gets_of_several_keys_among_invalidations_follow_the_naive_model(ops in ops(), tiers in 1_u64..3, writes in 0_u32..2) {
        let world = World::new();
        let config = plain().max_batch(4).remote(RemoteConfig::default().background_writes(2 * writes));
        let cache = if tiers == 1 { world.cache(config) } else { world.process(config, 1) };
        // The source's values only grow; `floor` is the value at the last invalidation of each key.
        let source = Arc::new(Mutex::new([1_u64; 6]));
        let mut floor = [1_u64; 6];
        let loads: Arc<Mutex<Vec<(u32, u64)>>> = Arc::default();
        let (mut gets, mut dropped): (Vec<InProgress<'_>>, bool) = (Vec::new(), false);
        let read = || {
            let (source, loads, clock) = (source.clone(), loads.clone(), world.clock.clone());
            move |keys: Vec<u32>| {
                let (source, loads, clock) = (source.clone(), loads.clone(), clock.clone());
                async move {
                    let found: Vec<_> = keys.iter().map(|key| (*key, source.lock().unwrap()[*key as usize])).collect();
                    loads.lock().unwrap().extend(found.iter().copied());
                    clock.sleep(MS(3)).await;
                    let tagged = |(key, value)| (key, steadfast::cache_aside::Loaded::new(value).tag("t"));
                    Ok::<_, Error>(found.into_iter().map(tagged).collect::<Vec<_>>())
                }
            }
        };
        let wait = |gets: &mut Vec<InProgress<'_>>| -> Result<(), TestCaseError> {
            let mut wrong = None;
            gets.retain_mut(|(keys, floors, get)| match world.begin(get) {
                Poll::Pending => true,
                Poll::Ready(values) => {
                    if values.iter().zip(floors.iter()).any(|(value, floor)| value < floor) {
                        wrong = Some(format!("{keys:?} gave {values:?}, below {floors:?}"));
                    }
                    false
                }
            });
            prop_assert!(wrong.is_none(), "{:?}", wrong);
            Ok(())
        };
        for op in ops {
            let keys: Vec<u32> = match &op {
                Op::Start(bits) => (0..6).rev().filter(|key| bits & (1 << key) != 0).collect(),
                Op::StartOne(key) => vec![*key],
                _ => Vec::new(),
            };
            let floors = keys.iter().map(|key| floor[*key as usize]).collect();
            match op {
                Op::Start(_) => {
                    let (cache, asked, read) = (&cache, keys.clone(), read());
                    let get = Box::pin(async move {
                        let got = cache.get_or_load_many(&asked, read).await.unwrap();
                        got.into_iter().map(Option::unwrap).collect()
                    });
                    gets.push((keys, floors, get));
                }
                Op::StartOne(key) => {
                    let (cache, read) = (&cache, read());
                    let load = move || {
                        let load = read(vec![key]);
                        async move { Ok::<_, Error>(load.await?.remove(0).1) }
                    };
                    gets.push((keys, floors, Box::pin(async move { vec![cache.get_or_load(&key, load).await.unwrap()] })));
                }
                Op::Pass(time) => world.pass(MS(time)),
                Op::Drop(which) if !gets.is_empty() => {
                    dropped = true;
                    drop(gets.swap_remove(which % gets.len()));
                }
                Op::Drop(_) => {}
                Op::Change(key) => {
                    source.lock().unwrap()[key as usize] += 1;
                    world.run(cache.invalidate(&key));
                    floor[key as usize] = source.lock().unwrap()[key as usize];
                }
                Op::ChangeTagged | Op::ChangeAll => {
                    source.lock().unwrap().iter_mut().for_each(|value| *value += 1);
                    match op {
                        Op::ChangeAll => world.run(cache.clear()),
                        _ => world.run(cache.invalidate_tag("t")),
                    };
                    floor = *source.lock().unwrap();
                }
                Op::Put(key) => {
                    let value = { let mut source = source.lock().unwrap(); source[key as usize] += 1; source[key as usize] };
                    world.run(cache.put(&key, steadfast::cache_aside::Loaded::new(value).tag("t")));
                    floor[key as usize] = value;
                }
            }
            wait(&mut gets)?;
        }
        for _ in 0..20 {
            world.pass(MS(100));
            wait(&mut gets)?;
        }
        prop_assert!(gets.is_empty(), "a get hangs");
        let keys: Vec<u32> = (0..6).collect();
        let all: Vec<_> = world.run(cache.get_or_load_many(&keys, read())).unwrap().into_iter().flatten().collect();
        prop_assert_eq!(&all[..], &source.lock().unwrap()[..], "the values at the end");
        let mut loaded = loads.lock().unwrap().clone();
        let all = loaded.len();
        loaded.sort_unstable();
        loaded.dedup();
        prop_assert!(dropped || all == loaded.len(), "a value was loaded twice");
    }
}

/// A clock that counts the timers that are set.
struct Counted(Clock, Arc<AtomicU64>);

impl TimeSource for Counted {
    fn now(&self) -> Instant {
        self.0.now()
    }
    fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.1.fetch_add(1, SeqCst);
        Box::pin(self.0.sleep_until(at))
    }
}

/// Each key had a wait of its own, and each step of the load woke all of them: 4,000 keys of a
/// remote tier took 20 times as long as 1,000.
#[test]
fn the_keys_of_one_call_wait_for_their_load_together() {
    let world = World::new();
    let timers = Arc::new(AtomicU64::new(0));
    let clock = Clock::from_source(Counted(world.clock.clone(), timers.clone()));
    let cache = world.builder(plain()).clock(&clock).build().unwrap();
    world.source.takes(MS(10));
    let keys: Vec<_> = (0..1000).collect();
    let batch = Batch::of(&world);
    let found = batch.get(&world, &cache, &keys).unwrap();
    assert!(found.iter().zip(keys).all(|(value, key)| *value == (key % 2 == 1).then(|| 100 + u64::from(key))));
    assert!(timers.load(SeqCst) < 10, "{timers:?}");
}
