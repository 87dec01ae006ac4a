//! The processes, their calls, and the faults that are injected.
use std::{
    collections::HashMap,
    future::{Future, pending, poll_fn},
    pin::pin,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use steadfast::{
    cache_aside::{CacheAside, CacheAsideConfig, Loaded, Reached, StaleConfig},
    codec::Codec,
    entropy::Entropy,
    notify::InMemoryNotifier,
    store::InMemoryStore,
    time::{Clock, Instant, ManualClock},
};

use super::{
    exec::{Exec, Spawner},
    line::{Line, Notes, Phase, Tier, ToNotifier, ToStore},
    truth::{KEYS, PROCESSES, Truth, Value},
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const S: fn(u64) -> Duration = Duration::from_secs;
const TAGS: [&str; 4] = ["a", "b", "c", "d"];
/// Time after which a tier counts as healthy: the window over which failures are counted, and one
/// cool-down, must have passed.
const RECOVERED: Duration = Duration::from_secs(15);

type Cache = CacheAside<u32, Value>;

/// The guard that is removed, to show that it is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Without {
    Nothing,
    /// Damages records in a way that the cache's checksum cannot detect.
    Checksum,
    /// The connection drops notices, and the world counts them as received.
    Notices,
    /// The remote tier ignores preconditions.
    Comparing,
    /// The remote tier ignores deletions.
    Deleting,
    /// The tier is slow so often that it is suspended, and the world counts it as healthy.
    LeavingByRate,
    /// The remote tier's time-out is longer than the checked limit.
    TimeLimit,
}

impl Without {
    pub(super) const ALL: [Self; 6] =
        [Self::Checksum, Self::Notices, Self::Comparing, Self::Deleting, Self::LeavingByRate, Self::TimeLimit];

    /// Returns the text of the violation that must be found.
    pub(super) const fn shows(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Checksum => "the source never had",
            Self::Notices | Self::Comparing | Self::Deleting => "is older than",
            Self::LeavingByRate => "pass a healthy tier",
            Self::TimeLimit => "took",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Well,
    Slow,
    Fails,
    Hangs,
}

struct Process {
    cache: Cache,
    line: Arc<Line>,
    /// Number of its life; tasks of earlier lives are dropped.
    life: u64,
    up: bool,
}

/// The next events and their times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Event {
    Get(usize),
    Update(usize),
    Phase,
    Kill,
    Restart(usize),
}

pub(super) struct World {
    time: ManualClock,
    clock: Clock,
    entropy: Entropy,
    exec: Exec,
    truth: Arc<Mutex<Truth>>,
    source: Arc<Mutex<Source>>,
    processes: Vec<Process>,
    config: CacheAsideConfig,
    without: Without,
    events: HashMap<Event, Instant>,
    lives: u64,
    limits: Limits,
}

/// The time limits that each get is checked against.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Limit of the whole get.
    get: Duration,
    /// Limit of the time beside its own load.
    beside: Duration,
}

fn codec(phase: Arc<Mutex<Phase>>, entropy: Entropy, truth: Arc<Mutex<Truth>>, without: Without) -> Codec<Value> {
    Codec::new(
        |value: &Value| {
            let mut bytes = value.key.to_be_bytes().to_vec();
            bytes.extend(value.number.to_be_bytes());
            bytes.extend(value.check.to_be_bytes());
            Ok::<_, &str>(bytes)
        },
        move |bytes| {
            let mut bytes: [u8; 20] = bytes.try_into().map_err(|_| "the length is wrong")?;
            let damaged = without == Without::Checksum && phase.lock().unwrap().tier == Tier::Damaged;
            if damaged && entropy.up_to(4) == 0 {
                bytes[entropy.up_to(19) as usize] ^= 1 << entropy.up_to(7);
                truth.lock().unwrap().flips += 1;
            }
            let number = |from: usize| u64::from_be_bytes(bytes[from..from + 8].try_into().unwrap());
            let key = u32::from_be_bytes(bytes[..4].try_into().unwrap());
            Ok::<_, &str>(Value { key, number: number(4), check: number(12) })
        },
    )
}

fn loaded(value: Value) -> Loaded<Value> {
    Loaded::new(value).tag(TAGS[value.key as usize % TAGS.len()])
}

impl World {
    pub(super) fn new(seed: u64, without: Without) -> Self {
        let (clock, time) = Clock::manual();
        let entropy = Entropy::from_seed(seed);
        let mut config = CacheAsideConfig::default();
        let mut max_age = Duration::ZERO;
        if seed % 4 == 1 {
            max_age = S(300);
            config = config.stale(StaleConfig::new(max_age).throttle(S(10))).soft_timeout(MS(200)).refresh_ahead(0.8);
        }
        let (hard, remote) = (config.hard_timeout.unwrap(), config.remote);
        let beside = remote.timeout + remote.wait;
        let local = config.ttl / 10 + config.jitter / 10;
        let all = config.ttl + config.jitter + local;
        let longest = hard + beside;
        let truth = Truth::new(longest + local.max(max_age), longest + all.max(max_age));
        if without == Without::TimeLimit {
            config = config.remote(remote.timeout(S(5)));
        }
        let mut world = Self {
            truth: Arc::new(Mutex::new(truth)),
            source: Arc::new(Mutex::new(Source::Well)),
            exec: Exec::default(),
            processes: Vec::new(),
            events: HashMap::new(),
            lives: 0,
            limits: Limits { get: longest, beside },
            time,
            clock,
            entropy,
            config,
            without,
        };
        let store = Arc::new(InMemoryStore::builder().clock(&world.clock).build());
        let notifier = Arc::new(InMemoryNotifier::new());
        let sent = Arc::default();
        for process in 0..PROCESSES {
            let phase = Phase { tier: Tier::Well, notes: Notes::Well, well_since: world.time.now() };
            let line = Arc::new(Line {
                process,
                store: store.clone(),
                notifier: notifier.clone(),
                clock: world.clock.clone(),
                entropy: Entropy::from_seed(world.entropy.next_u64()),
                phase: Arc::new(Mutex::new(phase)),
                truth: world.truth.clone(),
                asked: Mutex::default(),
                sent: Arc::clone(&sent),
                without,
            });
            let started = world.start(line);
            world.processes.push(started);
        }
        world
    }

    fn start(&mut self, line: Arc<Line>) -> Process {
        self.lives += 1;
        let (life, spawner): (u64, Spawner) = (self.lives, self.exec.spawner.clone());
        let own = Entropy::from_seed(self.entropy.next_u64());
        let codec = codec(line.phase.clone(), own.clone(), self.truth.clone(), self.without);
        let cache: Cache = CacheAside::builder(self.config)
            .name("soak")
            .clock(&self.clock)
            .entropy(&own)
            .spawner(move |task| spawner.spawn(life, task))
            .remote(Arc::new(ToStore(line.clone())), codec)
            .backplane(Arc::new(ToNotifier(line.clone())))
            .build()
            .unwrap();
        let loops = cache.clone();
        self.exec.spawner.spawn(life, async move {
            loops.run(pending()).await;
        });
        self.truth.lock().unwrap().started(line.process);
        Process { cache, line, life, up: true }
    }

    /// Gets a key and checks the result.
    fn get(&mut self, i: usize) {
        let Process { cache, line, life, up } = &self.processes[i];
        if !up {
            return;
        }
        let entropy = &self.entropy;
        // Some keys are requested more often than others.
        let key = (entropy.up_to(KEYS as u64 - 1) * entropy.up_to(KEYS as u64) / KEYS as u64) as usize;
        let mode = *self.source.lock().unwrap();
        let takes = match mode {
            Source::Well | Source::Fails => Some(MS(2 + entropy.up_to(40))),
            Source::Slow => Some(MS(100 + entropy.up_to(4_000))),
            Source::Hangs => (entropy.up_to(9) > 0).then(|| MS(20)),
        };
        let fails = mode == Source::Fails && entropy.up_to(1) == 0;
        // Some callers give up, and some are not polled for a long time.
        let dropped = (entropy.up_to(49) == 0).then(|| MS(entropy.up_to(100)));
        let stalls = (entropy.up_to(399) == 0).then(|| S(1 + entropy.up_to(200)));
        let (cache, line, clock, truth) = (cache.clone(), line.clone(), self.clock.clone(), self.truth.clone());
        let limits = self.limits;
        self.exec.spawner.spawn(*life, async move {
            let began = clock.now();
            let floor = truth.lock().unwrap().floor(i, key, began);
            let well = |phase: &Phase| phase.tier == Tier::Well && began - phase.well_since >= RECOVERED;
            let healthy = well(&line.phase.lock().unwrap());
            // Times at which it began to drive, began to load, and had loaded.
            let steps: Arc<Mutex<[Option<Instant>; 3]>> = Arc::default();
            let load = || {
                let (clock, truth, line, steps) = (clock.clone(), truth.clone(), line.clone(), steps.clone());
                steps.lock().unwrap()[0] = Some(clock.now());
                async move {
                    let now = clock.now();
                    steps.lock().unwrap()[1] = Some(now);
                    let (asked, answered) = line.asked_since(key as u32, began);
                    let number = {
                        let mut truth = truth.lock().unwrap();
                        truth.loads += 1;
                        if healthy {
                            truth.past += u64::from(!answered);
                            truth.never_asked += u64::from(!asked);
                        }
                        truth.source[key]
                    };
                    match takes {
                        Some(takes) => clock.sleep(takes).await,
                        None => pending().await,
                    }
                    steps.lock().unwrap()[2] = Some(clock.now());
                    if fails { Err("down") } else { Ok(loaded(Value::new(key as u32, number))) }
                }
            };
            let key_32 = key as u32;
            let mut get = pin!(cache.get_or_load(&key_32, load));
            if let Some(stall) = stalls {
                let first = poll_fn(|cx| Poll::Ready(get.as_mut().poll(cx).is_ready())).await;
                if first {
                    return;
                }
                clock.sleep(stall).await;
            }
            let given = match dropped {
                Some(after) => tokio::select! { biased; given = get => given, () = clock.sleep(after) => return },
                None => get.await,
            };
            let (now, [led, asked, had]) = (clock.now(), *steps.lock().unwrap());
            let took = now - began;
            let mut truth = truth.lock().unwrap();
            truth.gets += 1;
            truth.hits += u64::from(led.is_none() && took.is_zero());
            truth.led += u64::from(led.is_some());
            truth.led_healthy += u64::from(led.is_some() && healthy);
            if stalls.is_none() {
                truth.slowest = truth.slowest.max(took);
                if took > limits.get {
                    truth.violation(format!("a get of {key} in {i} at {began:?} took {took:?}"));
                }
                if let (Some(led), Some(asked), Some(had)) = (led, asked, had)
                    && led == began
                    && took.saturating_sub(had - asked) > limits.beside
                {
                    truth.violation(format!(
                        "a get of {key} in {i} at {began:?} took {took:?}, its load {:?}",
                        had - asked
                    ));
                }
            }
            match given {
                Err(_) => truth.errors += 1,
                Ok(value) if value != Value::new(key_32, value.number) || value.number > truth.source[key] => {
                    truth.violation(format!(
                        "a get of {key} in {i} at {began:?} gave {value:?}, which the source never had"
                    ));
                }
                Ok(value) if value.number < floor => {
                    let number = value.number;
                    truth.violation(format!(
                        "a get of {key} in {i} at {began:?} gave {number}, which is older than {floor}"
                    ));
                }
                Ok(_) => {}
            }
        });
    }

    /// Writes the source, then invalidates.
    fn update(&mut self, i: usize) {
        let Process { cache, line, life, up } = &self.processes[i];
        if !up {
            return;
        }
        let (cache, line, clock, truth) = (cache.clone(), line.clone(), self.clock.clone(), self.truth.clone());
        let key = self.entropy.up_to(KEYS as u64 - 1) as usize;
        let kind = self.entropy.up_to(29);
        let dropped = (self.entropy.up_to(29) == 0).then(|| MS(self.entropy.up_to(30)));
        let writes = MS(self.entropy.up_to(10));
        self.exec.spawner.spawn(*life, async move {
            let of_tag = |tag: usize| (0..KEYS).filter(move |key| key % TAGS.len() == tag);
            let puts = kind < 3;
            let (written, from) = {
                let mut truth = truth.lock().unwrap();
                // If two writers put what they wrote at the same time, the later put need not be the
                // later write.
                if truth.putting || puts && truth.writers > 0 {
                    return;
                }
                truth.writers += 1;
                truth.putting = puts;
                (Vec::new(), line.sent())
            };
            let _writes = Writes(truth.clone());
            let writes_source = async |keys: Vec<usize>, mut written: Vec<(usize, u64)>| {
                clock.sleep(writes).await;
                let mut truth = truth.lock().unwrap();
                written.extend(keys.into_iter().map(|key| truth.write(key)));
                written
            };
            let key_32 = key as u32;
            let changed = async {
                match kind {
                    0..3 => {
                        let written = writes_source(vec![key], written).await;
                        (cache.put(&key_32, loaded(Value::new(key_32, written[0].1))).await, written)
                    }
                    3..5 => {
                        let tag = key % TAGS.len();
                        let written = writes_source(of_tag(tag).collect(), written).await;
                        (cache.invalidate_tag(TAGS[tag]).await, written)
                    }
                    5 => {
                        let written = writes_source((0..KEYS).collect(), written).await;
                        (cache.clear().await, written)
                    }
                    6..12 => {
                        let write = async { Ok::<_, ()>(writes_source(vec![key], written).await) };
                        // A failed update does not say which processes it has reached.
                        (Reached::ThisProcess, cache.update(&key_32, write).await.unwrap())
                    }
                    _ => {
                        let written = writes_source(vec![key], written).await;
                        (cache.invalidate(&key_32).await, written)
                    }
                }
            };
            let (reached, written) = match dropped {
                Some(after) => {
                    tokio::select! { biased; changed = changed => changed, () = clock.sleep(after) => return }
                }
                None => changed.await,
            };
            truth.lock().unwrap().returned(i, written, reached, (from, line.sent()), clock.now());
        });
    }

    fn next_phase(&mut self) {
        let (entropy, now) = (&self.entropy, self.time.now());
        let (tier, notes) = (entropy.up_to(11), entropy.up_to(9));
        let tier = match tier {
            7 => Tier::Slow,
            8 => Tier::Away,
            9 => Tier::Hangs,
            10 => Tier::Damaged,
            11 => Tier::LosesReplies,
            _ => Tier::Well,
        };
        let notes = match notes {
            6 => Notes::Lost,
            7 => Notes::Gaps,
            8 => Notes::Away,
            9 => Notes::Hangs,
            _ => Notes::Well,
        };
        // Of all processes, or of one.
        let alone = (entropy.up_to(1) == 0).then(|| entropy.up_to(PROCESSES as u64 - 1) as usize);
        for (i, process) in self.processes.iter().enumerate() {
            let concerned = alone.is_none_or(|alone| alone == i);
            let mut phase = process.line.phase.lock().unwrap();
            let next = if concerned { tier } else { Tier::Well };
            if phase.tier != next {
                phase.well_since = now;
            }
            (phase.tier, phase.notes) = (next, if concerned { notes } else { Notes::Well });
        }
        *self.source.lock().unwrap() = match entropy.up_to(9) {
            7 => Source::Slow,
            8 => Source::Fails,
            9 => Source::Hangs,
            _ => Source::Well,
        };
    }

    fn kill(&mut self, i: usize) {
        let process = &mut self.processes[i];
        if process.up {
            process.up = false;
            self.exec.kill(process.life);
            self.truth.lock().unwrap().kills += 1;
            self.events.insert(Event::Restart(i), self.time.now() + MS(self.entropy.up_to(60_000)));
        }
    }

    /// Performs a due event and returns the time of the next one of its kind.
    fn happens(&mut self, event: Event) -> Option<Duration> {
        let pause = if cfg!(debug_assertions) { 6 } else { 1 };
        match event {
            Event::Get(i) => {
                self.get(i);
                Some(MS(self.entropy.up_to(800 * pause)))
            }
            Event::Update(i) => {
                self.update(i);
                Some(MS(self.entropy.up_to(20_000 * pause)))
            }
            Event::Phase => {
                self.next_phase();
                Some(S(20 + self.entropy.up_to(300)))
            }
            Event::Kill => {
                self.kill(self.entropy.up_to(PROCESSES as u64 - 1) as usize);
                Some(S(60 + self.entropy.up_to(3_600)))
            }
            Event::Restart(i) => {
                let started = self.start(self.processes[i].line.clone());
                self.processes[i] = started;
                None
            }
        }
    }

    pub(super) fn run(mut self, time: Duration) -> Truth {
        let (start, end) = (self.time.now(), self.time.now() + time);
        for i in 0..PROCESSES {
            self.events.insert(Event::Get(i), start);
            self.events.insert(Event::Update(i), start);
        }
        self.events.insert(Event::Phase, start + S(60));
        self.events.insert(Event::Kill, start + S(600));
        loop {
            self.exec.settle();
            self.truth.lock().unwrap().settled();
            let now = self.time.now();
            // Ordered by time, then by kind.
            let due = self.events.iter().min_by_key(|(event, at)| (**at, **event)).map(|(event, at)| (*event, *at));
            let Some((event, at)) = due else { break };
            let next = self.time.next_timer().map_or(at, |timer| timer.min(at)).max(now);
            if next >= end {
                break;
            }
            self.time.advance_to(next);
            if at <= next {
                self.events.remove(&event);
                if let Some(after) = self.happens(event) {
                    self.events.insert(event, next + after);
                }
            }
        }
        self.comes_to_rest();
        for process in &self.processes {
            self.exec.kill(process.life);
        }
        std::mem::take(&mut *self.truth.lock().unwrap())
    }

    /// Checks that, without faults, each process gives the source's values after all times to live
    /// are over.
    fn comes_to_rest(&mut self) {
        *self.source.lock().unwrap() = Source::Well;
        for i in 0..PROCESSES {
            let mut phase = self.processes[i].line.phase.lock().unwrap();
            (phase.tier, phase.notes) = (Tier::Well, Notes::Well);
            drop(phase);
            if !self.processes[i].up {
                self.happens(Event::Restart(i));
            }
        }
        let end = self.time.now() + S(600);
        self.exec.settle();
        while let Some(at) = self.time.next_timer().filter(|at| *at <= end) {
            self.time.advance_to(at);
            self.exec.settle();
        }
        self.truth.lock().unwrap().settled();
        for i in 0..PROCESSES {
            for _ in 0..20 {
                self.get(i);
                self.exec.settle();
                let end = self.time.now() + S(5);
                while let Some(at) = self.time.next_timer().filter(|at| *at <= end) {
                    self.time.advance_to(at);
                    self.exec.settle();
                }
            }
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
