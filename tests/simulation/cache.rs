//! Cache-aside in two processes against a linearizable model. A get that starts after an
//! invalidation has returned (and its notice has arrived) never gives a value that was read before
//! it. When everything is delivered, both processes give the source's value.
//!
//! Controls remove a guard, from the store or from the notifier, and must find a violation.
use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    cache_aside::{CacheAside, CacheAsideConfig, Loaded, Reached, RemoteConfig, Stale, StaleConfig, Validator},
    codec::Codec,
    entropy::Entropy,
    notify::{InMemoryNotifier, Notice, NoticeSource, Notices, Notifier},
    port::{BoxFuture, Capabilities, PortFuture},
    store::{InMemoryStore, Precondition, Store},
    testing::faults::{FaultClient, FaultConfig, FaultNetwork, for_each_seed},
    time::{Clock, ManualClock},
};

use super::poor::Poor;

const MS: fn(u64) -> Duration = Duration::from_millis;
const KEYS: usize = 3;

type Cache = CacheAside<usize, u64>;
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The source's values, and the oldest value that each process may still give.
#[derive(Default)]
struct Truth {
    source: [u64; KEYS],
    /// For each process and key: the source's value when the last invalidation began that has
    /// returned and whose notice has arrived there.
    floors: [[u64; KEYS]; 2],
    /// Invalidations that have returned, and whose notice has not arrived at the other process.
    returned: Vec<(usize, [u64; KEYS])>,
    /// Invalidations in progress, and whether one is a put. A put during another write has no
    /// guarantee.
    writers: u32,
    putting: bool,
    gets: u64,
    stale: u64,
    /// Comparisons with the source after everything was delivered, and failed ones.
    compared: u64,
    differ: u64,
}

/// The guard that is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// The store's preconditions: a late fill replaces any record.
    Preconditions,
    /// The report of a gap: lost notices go unreported.
    Gaps,
}

impl Truth {
    /// Writes the source of these keys, and returns the values that a get must give from then on.
    fn write(&mut self, keys: &[usize]) -> [u64; KEYS] {
        let mut written = [0; KEYS];
        for key in keys {
            self.source[*key] += 1;
            written[*key] = self.source[*key];
        }
        written
    }

    fn raise(&mut self, process: usize, to: [u64; KEYS]) {
        for (floor, to) in self.floors[process].iter_mut().zip(to) {
            *floor = to.max(*floor);
        }
    }
}

struct World {
    time: ManualClock,
    clock: Clock,
    entropy: Entropy,
    truth: Arc<Mutex<Truth>>,
    store: Arc<dyn Store>,
    notifier: Arc<Lossy>,
    clients: Vec<FaultClient>,
    processes: Vec<Process>,
    config: CacheAsideConfig,
    restarts: u64,
    /// Records that a process was killed, which loses its pending invalidations.
    killed: bool,
    /// `true` if calls get several keys, refresh conditionally and write in the background.
    is_varied: bool,
}

/// A notifier that loses one notice in eight and reports the gap, unless that guard is removed.
#[derive(Debug)]
struct Lossy {
    notifier: InMemoryNotifier,
    entropy: Entropy,
    loses: bool,
    tells: bool,
    lost: Arc<AtomicU32>,
}

impl Notifier for Lossy {
    fn capabilities(&self) -> Capabilities {
        self.notifier.capabilities()
    }
    fn publish<'a>(&'a self, topic: &'a str, notice: Bytes) -> PortFuture<'a, ()> {
        self.notifier.publish(topic, notice)
    }
    fn subscribe<'a>(&'a self, topic: &'a str) -> PortFuture<'a, Notices> {
        Box::pin(async move {
            let notices = self.notifier.subscribe(topic).await?;
            let (entropy, lost) = (self.entropy.clone(), self.lost.clone());
            Ok(Notices::new(Losing { notices, entropy, loses: self.loses, tells: self.tells, lost }))
        })
    }
}

struct Losing {
    notices: Notices,
    entropy: Entropy,
    loses: bool,
    tells: bool,
    lost: Arc<AtomicU32>,
}

impl NoticeSource for Losing {
    fn recv(&mut self) -> BoxFuture<'_, Notice> {
        Box::pin(async move {
            loop {
                let notice = self.notices.recv().await;
                if !self.loses || self.entropy.up_to(7) > 0 {
                    return notice;
                }
                self.lost.fetch_add(1, SeqCst);
                if self.tells {
                    return Notice::Gap;
                }
            }
        })
    }
}

struct Process {
    cache: Cache,
    /// Its loop, and the tasks that it spawned.
    background: Arc<Mutex<Vec<Task>>>,
    calls: Vec<Task>,
}

fn codec() -> Codec<u64> {
    Codec::new(
        |n: &u64| Ok::<_, &str>(n.to_string().into_bytes()),
        |bytes| std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()).ok_or("no number"),
    )
}

/// Returns `true` if the key has the tag: every second one has.
fn tagged(key: usize, value: u64) -> Loaded<u64> {
    if key % 2 == 1 { Loaded::new(value).tag("odd") } else { Loaded::new(value) }
}

impl World {
    fn new(seed: u64, without: Without) -> Self {
        let (clock, time) = Clock::manual();
        let entropy = Entropy::from_seed(seed);
        let share = entropy.unit() * 0.25 * f64::from(u8::from(!seed.is_multiple_of(3)));
        let faults = FaultConfig::default()
            .errors(share)
            .lost_replies(share)
            .doubled(share)
            .late(share)
            .latency(Duration::ZERO, MS(entropy.up_to(40)));
        let network = FaultNetwork::new(faults, entropy.next_u64(), &clock).unwrap();
        let mut config = CacheAsideConfig::default()
            .ttl(MS(3000))
            .jitter(MS(entropy.up_to(500)))
            .hard_timeout(Some(MS(1000)))
            .remote(RemoteConfig::default().local_ttl(MS(900)).timeout(MS(60)).rest(MS(200)).wait(MS(300)));
        if entropy.up_to(1) == 0 {
            config = config.stale(StaleConfig::new(MS(9000)).throttle(MS(300))).soft_timeout(MS(20));
        }
        if entropy.up_to(1) == 0 {
            config = config.refresh_ahead(0.3);
        }
        if entropy.up_to(2) == 0 {
            config = config.sliding(MS(150));
        }
        if entropy.up_to(3) == 0 {
            config = config.xfetch(3.0);
        }
        // Without a guard there are plain loads only, because a confirmed value repairs a wrong one.
        let is_varied = without == Without::Nothing;
        if is_varied {
            config.remote.background_writes = entropy.up_to(2) as u32;
            config.max_batch = 2;
        }
        let store = InMemoryStore::builder().clock(&clock).build();
        let store: Arc<dyn Store> = if without == Without::Preconditions {
            Arc::new(Poor::new(store, |options| options.when = Precondition::Any))
        } else {
            Arc::new(store)
        };
        let notifier = Arc::new(Lossy {
            notifier: InMemoryNotifier::new(),
            entropy: Entropy::from_seed(entropy.next_u64()),
            // After a gap older values count as expired, and with `stale` expired values may be served.
            loses: config.stale.is_none(),
            tells: without != Without::Gaps,
            lost: Arc::default(),
        });
        let mut world = Self {
            clients: (0..2).map(|i| network.client(&format!("process-{i}"))).collect(),
            store,
            notifier,
            killed: false,
            is_varied,
            truth: Arc::default(),
            processes: Vec::new(),
            restarts: 0,
            time,
            clock,
            entropy,
            config,
        };
        for i in 0..2 {
            let process = world.start(i);
            world.processes.push(process);
        }
        world
    }

    fn start(&mut self, i: usize) -> Process {
        self.restarts += 1;
        let background: Arc<Mutex<Vec<Task>>> = Arc::default();
        let spawned = background.clone();
        let cache = CacheAside::builder(self.config)
            .name("numbers")
            .clock(&self.clock)
            .entropy(&Entropy::from_seed(self.entropy.next_u64()))
            .spawner(move |task| spawned.lock().unwrap().push(task))
            .remote(self.clients[i].store(self.store.clone()), codec())
            .backplane(self.notifier.clone())
            .build()
            .unwrap();
        let loops = cache.clone();
        background.lock().unwrap().push(Box::pin(async move {
            loops.run(std::future::pending()).await;
        }));
        Process { cache, background, calls: Vec::new() }
    }

    /// Polls everything until nothing makes progress at this instant. Then all notices have
    /// arrived.
    fn settle(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..6 {
            for process in &mut self.processes {
                process.calls.retain_mut(|call| call.as_mut().poll(&mut cx) == Poll::Pending);
                let mut tasks = std::mem::take(&mut *process.background.lock().unwrap());
                tasks.retain_mut(|task| task.as_mut().poll(&mut cx) == Poll::Pending);
                process.background.lock().unwrap().extend(tasks);
            }
        }
        let mut truth = self.truth.lock().unwrap();
        for (by, written) in std::mem::take(&mut truth.returned) {
            truth.raise(1 - by, written);
        }
    }

    /// Starts a call in this process.
    fn call(&mut self, i: usize) {
        let key = self.entropy.up_to(KEYS as u64 - 1) as usize;
        let (cache, truth, clock) = (self.processes[i].cache.clone(), self.truth.clone(), self.clock.clone());
        let takes = MS(self.entropy.up_to(1) * self.entropy.up_to(300));
        let fails = self.entropy.up_to(4) == 0;
        let (kind, is_varied) = (self.entropy.up_to(9), self.is_varied);
        let call: Task = Box::pin(async move {
            let (keys, what): (Vec<usize>, u8) = match kind {
                0 => (vec![key], 0),
                1 => ((0..KEYS).filter(|key| key % 2 == 1).collect(), 1),
                2 => ((0..KEYS).collect(), 2),
                3 => (vec![key], 3),
                4 if is_varied => {
                    let keys: Vec<usize> = (0..KEYS).filter(|other| !(other + key).is_multiple_of(3)).collect();
                    let floors = truth.lock().unwrap().floors[i];
                    let source = truth.clone();
                    let load = move |keys: Vec<usize>| {
                        let (source, clock) = (source.clone(), clock.clone());
                        async move {
                            let source = source.lock().unwrap().source;
                            clock.sleep(takes).await;
                            let found = keys.into_iter().map(move |key| (key, tagged(key, source[key])));
                            if fails { Err(()) } else { Ok(found) }
                        }
                    };
                    let values = cache.get_or_load_many(&keys, load).await.unwrap_or_default();
                    let mut truth = truth.lock().unwrap();
                    for (key, value) in keys.into_iter().zip(values) {
                        truth.gets += 1;
                        truth.stale += u64::from(value.is_some_and(|value| value < floors[key]));
                    }
                    return;
                }
                _ => {
                    let floor = truth.lock().unwrap().floors[i][key];
                    let source = truth.clone();
                    let load = |stale: Option<Stale<u64>>| async move {
                        // The value is the one that the source held when it was asked.
                        let value = source.lock().unwrap().source[key];
                        clock.sleep(takes).await;
                        let etag = value.to_string();
                        match stale {
                            _ if fails => Err(()),
                            Some(stale) if stale.validator().etag.as_ref() == Some(&etag) => Ok(stale.not_modified()),
                            _ => Ok(tagged(key, value).validator(Validator::default().etag(etag))),
                        }
                    };
                    let value = match kind {
                        _ if takes < MS(20) => cache.get(&key).await,
                        6.. if is_varied => cache.get_or_refresh(&key, load).await.ok(),
                        _ => cache.get_or_load(&key, || load(None)).await.ok(),
                    };
                    let mut truth = truth.lock().unwrap();
                    truth.gets += 1;
                    if value.is_some_and(|value| value < floor) {
                        truth.stale += 1;
                    }
                    return;
                }
            };
            // Writes the source first, then the cache.
            let written = {
                let mut truth = truth.lock().unwrap();
                if truth.putting || what == 3 && truth.writers > 0 {
                    return;
                }
                truth.writers += 1;
                truth.putting = what == 3;
                truth.write(&keys)
            };
            let _writes = Writes(truth.clone());
            let reached = match what {
                0 => cache.invalidate(&key).await,
                1 => cache.invalidate_tag("odd").await,
                2 => cache.clear().await,
                _ => cache.put(&key, tagged(key, written[key])).await,
            };
            let mut truth = truth.lock().unwrap();
            truth.raise(i, written);
            if reached == Reached::Everywhere {
                truth.returned.push((i, written));
            }
        });
        self.processes[i].calls.push(call);
    }

    fn disturb(&mut self) {
        let i = self.entropy.up_to(1) as usize;
        match self.entropy.up_to(29) {
            0..=13 => self.call(i),
            14 => self.clients[i].cut(),
            15..=17 => self.clients[i].heal(),
            18 | 19 => {
                // A caller drops its future.
                let calls = &mut self.processes[i].calls;
                if !calls.is_empty() {
                    let at = self.entropy.up_to(calls.len() as u64 - 1) as usize;
                    drop(calls.swap_remove(at));
                }
            }
            20 if self.entropy.up_to(5) == 0 => {
                // The process is killed and restarted, which loses its pending invalidations and its floor.
                self.killed = true;
                self.processes[i].calls.clear();
                self.processes[i] = self.start(i);
                let mut truth = self.truth.lock().unwrap();
                truth.floors[i] = [0; KEYS];
            }
            _ => {}
        }
    }

    fn run(mut self) -> Truth {
        for _ in 0..150 {
            self.settle();
            self.disturb();
            self.settle();
            let next = self.time.now() + MS(self.entropy.up_to(60));
            while let Some(at) = self.time.next_timer().filter(|at| *at <= next) {
                self.time.advance_to(at);
                self.settle();
            }
            self.time.advance_to(next);
        }
        self.comes_to_rest();
        drop(self.processes);
        std::mem::take(&mut *self.truth.lock().unwrap())
    }

    /// Checks that, without faults, pending invalidations are delivered, all calls end, and both
    /// processes give the source's values.
    fn comes_to_rest(&mut self) {
        for i in 0..2 {
            self.clients[i].heal();
        }
        // Too short for records of the remote tier to expire.
        self.passes(MS(1_500));
        for (i, process) in self.processes.iter().enumerate() {
            assert!(process.calls.is_empty(), "a call of process {i} hangs");
        }
        // Requests still fail from time to time.
        for _ in 0..100 {
            if self.pending() == 0 {
                break;
            }
            self.passes(MS(300));
        }
        assert_eq!(self.pending(), 0, "pending invalidations are delivered");
        self.settle();
        self.agrees(false);
        // Lost invalidations of a killed process are bounded by the times to live.
        self.passes(MS(20_000));
        self.agrees(true);
    }

    /// Returns the number of pending invalidations after one more attempt to deliver each.
    fn pending(&mut self) -> usize {
        let pending = Arc::new(AtomicU32::new(0));
        for process in &mut self.processes {
            let (cache, pending) = (process.cache.clone(), pending.clone());
            process.calls.push(Box::pin(async move {
                let left = cache.run(std::future::ready(())).await;
                pending.fetch_add(left as u32, SeqCst);
            }));
        }
        self.passes(MS(400));
        assert!(self.processes.iter().all(|process| process.calls.is_empty()), "a delivery hangs");
        pending.load(SeqCst) as usize
    }

    fn passes(&mut self, time: Duration) {
        let end = self.time.now() + time;
        self.settle();
        while let Some(at) = self.time.next_timer().filter(|at| *at <= end) {
            self.time.advance_to(at);
            self.settle();
        }
        self.time.advance_to(end);
    }

    /// Compares each key of each process with the source.
    fn agrees(&mut self, after_kills: bool) {
        if self.killed && !after_kills {
            return;
        }
        for i in 0..2 {
            for key in 0..KEYS {
                let (cache, truth) = (self.processes[i].cache.clone(), self.truth.clone());
                self.processes[i].calls.push(Box::pin(async move {
                    let now = truth.lock().unwrap().source[key];
                    let load = || async move { Ok::<_, ()>(tagged(key, now)) };
                    let value = cache.get_or_load(&key, load).await;
                    let mut truth = truth.lock().unwrap();
                    truth.compared += 1;
                    truth.differ += u64::from(value.ok() != Some(now));
                }));
            }
        }
        self.passes(MS(1_500));
        for process in &self.processes {
            assert!(process.calls.is_empty(), "a get hangs");
        }
    }
}

/// A write in progress.
struct Writes(Arc<Mutex<Truth>>);

impl Drop for Writes {
    fn drop(&mut self) {
        let mut truth = self.0.lock().unwrap();
        truth.writers -= 1;
        truth.putting = false;
    }
}

// Guarantee: cache_aside 3.
#[test]
fn no_get_gives_a_value_read_before_an_invalidation_that_had_returned() {
    let seeds = super::schedules(300);
    let all = Mutex::new((0, 0));
    let part = |from: u64, to: u64| {
        for_each_seed(from..to, |seed| {
            let truth = World::new(seed, Without::Nothing).run();
            assert_eq!(truth.stale, 0, "a get gave what was invalidated");
            assert_eq!(truth.differ, 0, "a value differs from the source when all is delivered");
            let mut all = all.lock().unwrap();
            *all = (all.0 + truth.gets, all.1 + truth.compared);
        });
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| part(seeds / 2, seeds));
        part(0, seeds / 2);
        other.join().unwrap();
    });
    let (gets, compared) = *all.lock().unwrap();
    println!("{seeds} schedules of two processes: {gets} gets, none of them stale; {compared} compared at rest");
    super::assert_met(gets > seeds * 10 && compared >= seeds * 6, (gets, compared));
}

/// The simulation must find violations when a guard is removed; otherwise it proves nothing.
#[test]
fn a_cache_without_a_guard_shows_a_violation() {
    let mut differ_in_all = 0;
    for without in [Without::Preconditions, Without::Gaps] {
        let (mut stale, mut differ) = (0, 0);
        for seed in 0..super::controls(300, 2_000) {
            let truth = World::new(seed, without).run();
            stale += truth.stale;
            differ += truth.differ;
        }
        println!("{without:?}: {stale} gets gave what was invalidated, {differ} differ at rest");
        assert!(stale > 0, "{without:?} is not found");
        differ_in_all += differ;
    }
    assert!(differ_in_all > 0, "the comparison at rest finds nothing");
}
