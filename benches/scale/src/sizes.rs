//! The third law: what an operation and a process cost, by the size of what they work on.
use std::{
    hash::{Hash, Hasher},
    hint::black_box,
    path::Path,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::FutureExt;
use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    cache_aside::{CacheAside, CacheAsideConfig, Loaded},
    queue::{InMemoryQueue, Message, Queue, QueueExt, Receive, Settle},
    store::{InMemoryStore, Key, PutOptions, Scan, Store, Write},
    stream::{Event, Read, Topic},
    throttling::{KeyedRateLimitConfig, KeyedRateLimiter, Quota},
    time::Clock,
};

use crate::{
    alloc, rooms,
    world::{S, World},
};

/// By how much a cost may grow with each decade of a size.
const DECADE: f64 = 1.5;

static BODY: [u8; 100] = [b'x'; 100];

/// Something that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    QueueDepth,
    Delayed,
    DeadLetters,
    StoreRows,
    SqliteQueue,
    SqliteStore,
    LimiterKeys,
    CacheKeys,
    CacheTags,
    SagasEnded,
    SagasOpen,
    TopicLength,
}

/// A cost of one operation.
pub struct Cost {
    pub what: &'static str,
    pub value: f64,
    pub law: Law,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Law {
    /// Grows at most [`DECADE`] times with each decade.
    Logarithmic,
    /// The page of the room states that it is proportional.
    Linear,
    /// Grows by at most this with each decade: a level of each tree that an operation reads.
    Levels(f64),
    /// Is at most this at any size. Tables double, so that memory for each has steps.
    AtMost(f64),
    /// A time, which is printed only.
    Printed,
}

impl Law {
    pub fn name(self) -> String {
        match self {
            Self::Logarithmic => "at most 1.5 times a decade".to_owned(),
            Self::Linear => "linear".to_owned(),
            Self::Levels(levels) => format!("at most {levels} more a decade"),
            Self::AtMost(most) => format!("at most {most}"),
            Self::Printed => String::new(),
        }
    }
}

impl Subject {
    pub const ALL: [Self; 12] = [
        Self::QueueDepth,
        Self::Delayed,
        Self::DeadLetters,
        Self::StoreRows,
        Self::SqliteQueue,
        Self::SqliteStore,
        Self::LimiterKeys,
        Self::CacheKeys,
        Self::CacheTags,
        Self::SagasEnded,
        Self::SagasOpen,
        Self::TopicLength,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::QueueDepth => "messages of a queue in memory",
            Self::Delayed => "delayed messages of a queue in memory",
            Self::DeadLetters => "dead letters of a queue in memory",
            Self::StoreRows => "rows of a partition in memory",
            Self::SqliteQueue => "messages of a queue in SQLite",
            Self::SqliteStore => "rows of a partition in SQLite",
            Self::LimiterKeys => "keys of a limiter",
            Self::CacheKeys => "keys of a cache",
            Self::CacheTags => "tags of a cache",
            Self::SagasEnded => "sagas that have ended",
            Self::SagasOpen => "open sagas",
            Self::TopicLength => "events of a topic",
        }
    }

    /// The largest size of a full run: one that takes seconds, and at most 2 GiB.
    pub fn largest(self) -> usize {
        match self {
            Self::LimiterKeys => 10_000_000,
            Self::SagasEnded | Self::SagasOpen => 100_000,
            _ => 1_000_000,
        }
    }

    pub fn measure(self, size: usize) -> Vec<Cost> {
        match self {
            Self::QueueDepth => queue_in_memory(size, Duration::ZERO, false),
            Self::Delayed => queue_in_memory(size, S(86_400), false),
            Self::DeadLetters => queue_in_memory(size, Duration::ZERO, true),
            Self::StoreRows => store_in_memory(size),
            Self::SqliteQueue => sqlite(size, true),
            Self::SqliteStore => sqlite(size, false),
            Self::LimiterKeys => limiter(size),
            Self::CacheKeys => cache(size, false),
            Self::CacheTags => cache(size, true),
            Self::SagasEnded => sagas_ended(size),
            Self::SagasOpen => sagas_open(size),
            Self::TopicLength => topic(size),
        }
    }
}

/// Returns the rules that the costs of growing sizes break.
pub fn broken(subject: Subject, sizes: &[usize], costs: &[Vec<Cost>]) -> Vec<String> {
    let mut broken = Vec::new();
    for (pair, sizes) in costs.windows(2).zip(sizes.windows(2)) {
        let decades = (sizes[1] as f64 / sizes[0] as f64).log10();
        for (few, many) in pair[0].iter().zip(&pair[1]) {
            let most = match few.law {
                // One allocation or request more is no growth of one that makes few.
                Law::Logarithmic => (few.value * DECADE.powf(decades)).max(few.value + 1.0),
                Law::Linear => few.value.max(1.0) * sizes[1] as f64 / sizes[0] as f64 * 1.1,
                Law::Levels(levels) => few.value + levels * decades,
                Law::AtMost(most) => most,
                Law::Printed => continue,
            };
            if many.value > most {
                broken.push(format!(
                    "{}: {} of {} is {:.1}, of {} is {:.1}",
                    subject.name(),
                    few.what,
                    sizes[0],
                    few.value,
                    sizes[1],
                    many.value
                ));
            }
        }
    }
    broken
}

const fn memory(value: f64, most: f64) -> Cost {
    Cost { what: "bytes of memory each", value, law: Law::AtMost(most) }
}

const fn held(what: &'static str, value: f64) -> Cost {
    Cost { what, value, law: Law::Logarithmic }
}

/// Runs an operation several times, and returns the allocations of one, and the nanoseconds of the median round.
fn operate(mut operation: impl FnMut()) -> (f64, f64) {
    const ROUNDS: usize = 15;
    const TIMES: usize = 32;
    operation();
    let (mut nanoseconds, mut allocations) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let ((), allocated) = alloc::count(|| (0..TIMES).for_each(|_| operation()));
        nanoseconds.push(began.elapsed().as_nanos() as f64 / TIMES as f64);
        allocations.push(allocated.times as f64 / TIMES as f64);
    }
    let median = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    (median(allocations), median(nanoseconds))
}

fn costs(allocations: &'static str, time: &'static str, operation: impl FnMut()) -> [Cost; 2] {
    let (times, nanoseconds) = operate(operation);
    [held(allocations, times), Cost { what: time, value: nanoseconds, law: Law::Printed }]
}

/// Returns the output of a future that waits for nothing.
fn at_once<F: Future>(future: F) -> F::Output {
    future.now_or_never().expect("it waits for nothing")
}

fn messages(number: usize, delay: Duration) -> Vec<Message> {
    (0..number).map(|_| Message::new(Bytes::from_static(&BODY)).delay(delay)).collect()
}

fn fill_queue(queue: &InMemoryQueue, number: usize, delay: Duration) {
    for from in (0..number).step_by(1000) {
        at_once(queue.send(messages((number - from).min(1000), delay))).expect("accepted");
    }
}

fn queue_in_memory(size: usize, delay: Duration, dead: bool) -> Vec<Cost> {
    let (clock, _time) = Clock::manual();
    let queue = InMemoryQueue::builder("work").clock(&clock).build();
    let ((), allocated) = alloc::count(|| {
        fill_queue(&queue, size, delay);
        while dead {
            let taken = at_once(queue.receive(Receive::new(1000, S(30)))).expect("messages");
            if taken.is_empty() {
                break;
            }
            let ends = taken.into_iter().map(|message| (message.receipt, Settle::dead_letter("empty"))).collect();
            at_once(queue.settle(ends)).expect("settled");
        }
    });
    let mut all = vec![memory(allocated.live as f64 / size as f64, if dead { 1024.0 } else { 512.0 })];
    all.extend(costs("allocations of send, receive and complete", "ns of send, receive and complete", || {
        at_once(queue.send_one(Message::new(Bytes::from_static(&BODY)))).expect("accepted");
        let message = at_once(queue.receive_one(S(30))).expect("no failure").expect("one");
        at_once(queue.complete(&message.receipt)).expect("settled");
    }));
    let letters = queue.dead_letters().expect("dead letters");
    let looked_at: &dyn Queue = if dead { &letters } else { &queue };
    all.extend(costs("allocations of depth", "ns of depth", || {
        black_box(at_once(looked_at.depth()).expect("a depth"));
    }));
    all.extend(costs("allocations of a peek at 10", "ns of a peek at 10", || {
        black_box(at_once(looked_at.peek(10)).expect("messages"));
    }));
    all
}

fn row(number: usize) -> String {
    format!("row-{number:08}")
}

fn store_in_memory(size: usize) -> Vec<Cost> {
    let store = InMemoryStore::new();
    let value = || Bytes::from_static(&BODY);
    let ((), allocated) = alloc::count(|| {
        for from in 0..size {
            at_once(store.put(Key::new("orders", &row(from)), value(), PutOptions::new())).expect("put");
        }
    });
    let mut all = vec![memory(allocated.live as f64 / size as f64, 256.0)];
    let mut at = 0;
    let mut next = || {
        at = (at + size / 7 + 1) % size;
        row(at)
    };
    all.extend(costs("allocations of get and put", "ns of get and put", || {
        let row = next();
        black_box(at_once(store.get(Key::new("orders", &row))).expect("a record"));
        at_once(store.put(Key::new("orders", &row), value(), PutOptions::new())).expect("put");
    }));
    all.extend(costs("allocations of a page of 100 rows", "ns of a page of 100 rows", || {
        let scan =
            Scan::partition("orders").range(std::ops::Bound::Included(row(size / 2)), std::ops::Bound::Unbounded);
        black_box(at_once(store.scan(&scan)).expect("a page"));
    }));
    all
}

/// Reads of files of this process so far, as Linux counts them; zero elsewhere.
fn reads() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("syscr: "));
    line.and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn sqlite(size: usize, is_queue: bool) -> Vec<Cost> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path: &Path = &folder.path().join("scale.db");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let open = || {
        let sqlite = Sqlite::open(SqliteConfig::at(path).durability(Durability::Relaxed)).expect("a file");
        (sqlite.store(), sqlite.queue("work").expect("a queue"))
    };
    let (store, queue) = open();
    let value = || Bytes::from_static(&BODY);
    for from in (0..size).step_by(1000) {
        let until = size.min(from + 1000);
        if is_queue {
            runtime.block_on(queue.send(messages(until - from, Duration::ZERO))).expect("accepted");
        } else {
            for from in (from..until).step_by(100) {
                let writes = (from..until.min(from + 100)).map(|at| Write::put(row(at), value(), PutOptions::new()));
                runtime.block_on(store.batch("orders", writes.collect())).expect("written");
            }
        }
    }
    // A close moves the log to the file. Else the reads of that would fall into the count of one size and not of another.
    drop((store, queue));
    let (store, queue) = open();
    let mut at = 0;
    let mut operation = || {
        if is_queue {
            runtime.block_on(async {
                queue.send_one(Message::new(value())).await.expect("accepted");
                let message = queue.receive_one(S(30)).await.expect("no failure").expect("one");
                queue.complete(&message.receipt).await.expect("settled");
            });
        } else {
            at = (at + size / 7 + 1) % size;
            let row = row(at);
            runtime.block_on(async {
                black_box(store.get(Key::new("orders", &row)).await.expect("a record"));
                store.put(Key::new("orders", &row), value(), PutOptions::new()).await.expect("put");
                let scan =
                    Scan::partition("orders").range(std::ops::Bound::Included(row.clone()), std::ops::Bound::Unbounded);
                black_box(store.scan(&scan.limit(10)).await.expect("a page"));
            });
        }
    };
    (0..100).for_each(|_| operation());
    let before = reads();
    const TIMES: u64 = 200;
    (0..TIMES).for_each(|_| operation());
    let reads = (reads() - before) as f64 / TIMES as f64;
    let (_, nanoseconds) = operate(operation);
    let (read, time) = if is_queue {
        ("file reads of send, receive and complete", "ns of send, receive and complete")
    } else {
        ("file reads of get, put and a page of 10 rows", "ns of get, put and a page of 10 rows")
    };
    vec![
        Cost { what: read, value: reads, law: Law::Levels(4.0) },
        Cost { what: time, value: nanoseconds, law: Law::Printed },
    ]
}

/// A key whose hashes and comparisons are counted: the steps of a table.
#[derive(Debug, Clone, Copy)]
struct Stepped(u64);

static STEPS: AtomicU64 = AtomicU64::new(0);

impl PartialEq for Stepped {
    fn eq(&self, other: &Self) -> bool {
        STEPS.fetch_add(1, Relaxed);
        self.0 == other.0
    }
}

impl Eq for Stepped {}

impl Hash for Stepped {
    fn hash<H: Hasher>(&self, state: &mut H) {
        STEPS.fetch_add(1, Relaxed);
        self.0.hash(state);
    }
}

/// Returns the steps of one of many operations.
fn steps(mut operation: impl FnMut(u64)) -> f64 {
    const TIMES: u64 = 1000;
    let before = STEPS.load(Relaxed);
    (0..TIMES).for_each(&mut operation);
    (STEPS.load(Relaxed) - before) as f64 / TIMES as f64
}

fn limiter(size: usize) -> Vec<Cost> {
    let (clock, _time) = Clock::manual();
    // All keys have room: a call of a key that was forgotten enters it anew.
    let config = KeyedRateLimitConfig::from(Quota::per_second(1000)).max_keys(2 * size as u32);
    let limiter = KeyedRateLimiter::<Stepped>::builder(config).clock(&clock).build().expect("valid");
    let ((), allocated) = alloc::count(|| {
        (0..size as u64).for_each(|key| limiter.try_acquire(&Stepped(key)).expect("allowed"));
    });
    let mut all = vec![memory(allocated.live as f64 / limiter.len().max(1) as f64, 80.0)];
    let known = |key: u64| Stepped(key * 7919 % size as u64);
    all.push(held(
        "hashes and comparisons of a call",
        steps(|key| {
            let _ = black_box(limiter.try_acquire(&known(key)));
        }),
    ));
    let mut key = 0;
    all.extend(costs("allocations of a call", "ns of a call", || {
        key += 1;
        let _ = black_box(limiter.try_acquire(&known(key)));
    }));
    all
}

fn cache(size: usize, tags: bool) -> Vec<Cost> {
    let (clock, time) = Clock::manual();
    let config = CacheAsideConfig::default().capacity(2 * size as u64).ttl(S(86_400));
    let cache = CacheAside::<Stepped, u64>::builder(config).clock(&clock).build().expect("valid settings");
    let tag = |key: u64| format!("tag-{key}");
    let ((), allocated) = alloc::count(|| {
        time.block_on(async {
            for key in 0..size as u64 {
                let value = Loaded::new(key);
                cache.put(&Stepped(key), if tags { value.tag(tag(key)) } else { value }).await;
                if tags && key % 2 == 0 {
                    cache.invalidate_tag(&tag(key)).await;
                }
            }
        });
    });
    let mut all = vec![memory(allocated.live as f64 / size as f64, if tags { 512.0 } else { 384.0 })];
    let known = |key: u64| Stepped(key * 7919 % size as u64);
    all.push(held(
        "hashes and comparisons of a get",
        steps(|key| {
            black_box(time.block_on(cache.get(&known(key))));
        }),
    ));
    let mut key = 0;
    all.extend(costs("allocations of a get and a put", "ns of a get and a put", || {
        key += 1;
        time.block_on(async {
            black_box(cache.get(&known(key)).await);
            cache.put(&known(key), key).await;
        });
    }));
    if tags {
        let mut key = 1;
        all.extend(costs("allocations of the end of a tag", "ns of the end of a tag", || {
            key += 2;
            time.block_on(cache.invalidate_tag(&tag(key % size as u64)));
        }));
    }
    all
}

/// Returns the requests and bytes of some work.
fn passed(world: &World, work: impl Future<Output = ()>) -> (f64, f64) {
    let before = world.counts.now();
    world.run(work);
    let passed = world.counts.now().since(before);
    (passed.requests as f64, passed.bytes as f64)
}

fn sagas_ended(size: usize) -> Vec<Cost> {
    let world = World::new();
    let process = world.process(0, 1);
    let trips = rooms::trips(&process).build().expect("valid settings");
    let run = async |id: usize| drop(trips.run(&format!("trip-{id:08}"), "to London".into()).await.expect("its end"));
    let many: Vec<usize> = (0..size).collect();
    world.run(async {
        for some in many.chunks(10_000) {
            futures::future::join_all(some.iter().map(|id| run(*id))).await;
        }
    });
    let (requests, bytes) = passed(&world, run(size));
    let (looks, seen) = passed(&world, async { drop(trips.list_open().await.expect("none")) });
    vec![
        held("requests of a saga of two steps", requests),
        held("bytes of a saga of two steps", bytes),
        held("requests of a look at open sagas", looks),
        held("bytes of a look at open sagas", seen),
    ]
}

fn sagas_open(size: usize) -> Vec<Cost> {
    let world = World::new();
    let process = world.process(0, 1);
    let trips = rooms::trips(&process).build().expect("valid settings");
    let run = async |id: usize| drop(trips.run(&format!("trip-{id:08}"), "to London".into()).await.expect("its end"));
    let many: Vec<usize> = (0..size).collect();
    for some in many.chunks(10_000) {
        // They stay open: their process stops within the first step.
        let all = futures::future::join_all(some.iter().map(|id| run(*id)));
        world.run(async {
            futures::future::select(std::pin::pin!(all), std::pin::pin!(world.clock.sleep(S(1)))).await;
        });
    }
    let (requests, bytes) = passed(&world, run(size));
    let (looks, seen) = passed(&world, async { drop(trips.list_open().await.expect("open ones")) });
    vec![
        held("requests of a saga of two steps", requests),
        held("bytes of a saga of two steps", bytes),
        Cost { what: "requests of a look at open sagas", value: looks, law: Law::Linear },
        Cost { what: "bytes of a look at open sagas", value: seen, law: Law::Linear },
    ]
}

fn topic(size: usize) -> Vec<Cost> {
    let world = World::new();
    let process = world.process(0, 1);
    let topic = world.run(rooms::topic(&process, 1));
    let event = || Event::new(Bytes::from_static(&BODY));
    world.run(async {
        for from in (0..size).step_by(500) {
            let events = (0..(size - from).min(500)).map(|_| event()).collect();
            topic.append(0, events).await.expect("appended");
        }
    });
    let (appends, sent) = passed(&world, async { drop(topic.append(0, vec![event()]).await.expect("appended")) });
    // A handle that has read nothing before.
    let reader = world.run(rooms::topic(&world.process(1, 2), 1));
    let read = async |from: u64| drop(reader.read(0, Read::from(from).max(1)).await.expect("an event"));
    let (reads, bytes) = passed(&world, read(size as u64 / 2));
    let (bounds, _) = passed(&world, async {
        reader.bounds(0).await.expect("bounds");
    });
    vec![
        held("requests of an append", appends),
        held("bytes of an append", sent),
        held("requests of a read in the middle", reads),
        held("bytes of a read in the middle", bytes),
        held("requests of its bounds", bounds),
    ]
}
