//! Processes that compete for one partition: each is served, though its requests take longer, and though others die.
use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::future::{join_all, select};
use steadfast::{
    entropy::Entropy,
    port::{PortError, PortErrorKind},
    store::{InMemoryStore, Key, Page, Record, Scan, Store, StoreError, StoreFuture, Version, Write},
    stream::{Event, Read, StoreTopic, Topic},
    time::{Clock, ManualClock},
};

const S: fn(u64) -> Duration = Duration::from_secs;
const MS: fn(u64) -> Duration = Duration::from_millis;
const US: fn(u64) -> Duration = Duration::from_micros;

/// A server whose writes take effect one after another, each after some time.
struct Server {
    store: InMemoryStore,
    clock: Clock,
    write_takes: Duration,
    is_free_at: Mutex<steadfast::time::Instant>,
}

/// The connection of one process to the server.
struct Line {
    server: Arc<Server>,
    entropy: Entropy,
    /// Time of a request and its answer together.
    travels: Duration,
    requests: AtomicU64,
    /// Of so many batches the answer to one is lost.
    loses_one_in: Option<u64>,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Line")
    }
}

impl Line {
    /// Waits for half a way, a tenth more or less.
    async fn travel(&self) {
        let half = self.travels.as_micros() as u64 / 2;
        self.server.clock.sleep(US(half * 9 / 10 + self.entropy.up_to(half / 5))).await;
    }

    async fn ask<T>(&self, write: bool, request: impl Future<Output = T>) -> T {
        self.requests.fetch_add(1, SeqCst);
        self.travel().await;
        if write {
            let at = {
                let mut free = self.server.is_free_at.lock().unwrap();
                *free = (*free).max(self.server.clock.now()) + self.server.write_takes;
                *free
            };
            self.server.clock.sleep_until(at).await;
        }
        let answer = request.await;
        self.travel().await;
        answer
    }
}

impl Store for Line {
    fn capabilities(&self) -> steadfast::port::Capabilities {
        self.server.store.capabilities()
    }
    fn get<'a>(&'a self, key: Key<'a>) -> StoreFuture<'a, Option<Record>> {
        Box::pin(self.ask(false, self.server.store.get(key)))
    }
    fn put<'a>(
        &'a self,
        key: Key<'a>,
        value: bytes::Bytes,
        options: steadfast::store::PutOptions,
    ) -> StoreFuture<'a, Version> {
        Box::pin(self.ask(true, self.server.store.put(key, value, options)))
    }
    fn delete<'a>(&'a self, key: Key<'a>, options: steadfast::store::DeleteOptions) -> StoreFuture<'a, bool> {
        Box::pin(self.ask(true, self.server.store.delete(key, options)))
    }
    fn scan<'a>(&'a self, scan: &'a Scan) -> StoreFuture<'a, Page> {
        Box::pin(self.ask(false, self.server.store.scan(scan)))
    }
    fn batch<'a>(&'a self, partition: &'a str, writes: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>> {
        Box::pin(async move {
            let answer = self.ask(true, self.server.store.batch(partition, writes)).await;
            match self.loses_one_in {
                Some(batches) if self.entropy.up_to(batches - 1) == 0 => Err(StoreError::Failed(
                    PortError::new(PortErrorKind::Unavailable, "the answer is lost").outcome_unknown(),
                )),
                _ => answer,
            }
        })
    }
}

struct World {
    clock: Clock,
    time: ManualClock,
    server: Arc<Server>,
}

/// The appends of a process.
#[derive(Debug, Default, Clone, Copy)]
struct Served {
    appends: u64,
    all: u64,
    longest: Duration,
    requests: u64,
}

impl World {
    fn new(write_takes: Duration) -> Self {
        let (clock, time) = Clock::manual();
        let store = InMemoryStore::builder().clock(&clock).build();
        let is_free_at = Mutex::new(clock.now());
        Self { server: Arc::new(Server { store, clock: clock.clone(), write_takes, is_free_at }), clock, time }
    }

    async fn open(&self, seed: u64, travels: Duration) -> (Arc<Line>, StoreTopic) {
        self.open_lossy(seed, travels, None).await
    }

    async fn open_lossy(&self, seed: u64, travels: Duration, loses_one_in: Option<u64>) -> (Arc<Line>, StoreTopic) {
        let (entropy, requests) = (Entropy::from_seed(seed), AtomicU64::new(0));
        let (server, of_line) = (self.server.clone(), entropy.clone());
        let line = Arc::new(Line { server, entropy: of_line, travels, requests, loses_one_in });
        let topic = StoreTopic::builder(line.clone(), "t", 1).clock(&self.clock).entropy(&entropy);
        let topic = topic.build().await.unwrap();
        line.requests.store(0, SeqCst);
        (line, topic)
    }

    /// Appends for this time, from `begins` on, with a pause between two appends. Those of the first half second are
    /// not counted: who begins first is not to matter.
    async fn saturate(
        &self,
        seed: u64,
        travels: Duration,
        (begins, lasts): (Duration, Duration),
        think: Duration,
    ) -> Served {
        let (line, topic) = self.open(seed, travels).await;
        let mut served = Served::default();
        self.clock.sleep(begins).await;
        let (counts_from, until) = (self.clock.now() + MS(500), self.clock.now() + lasts);
        while self.clock.now() < until {
            let asked = self.clock.now();
            topic.append(0, vec![Event::new(seed.to_string())]).await.unwrap();
            served.longest = served.longest.max(self.clock.now() - asked);
            served.appends += u64::from(asked >= counts_from);
            served.all += 1;
            self.clock.sleep(think).await;
        }
        served.requests = line.requests.load(SeqCst);
        served
    }

    /// Returns the bodies of all events.
    async fn read_all(&self) -> Vec<bytes::Bytes> {
        let (_, topic) = self.open(9, US(0)).await;
        let (mut bodies, mut next) = (Vec::new(), 1);
        loop {
            let page = topic.read(0, Read::from(next).max(1000)).await.unwrap();
            let Some(last) = page.last() else { return bodies };
            next = last.position.offset + 1;
            bodies.extend(page.into_iter().map(|recorded| recorded.event.body));
        }
    }

    /// Runs processes with these travel times for 3 s.
    fn compete(&self, travels: &[Duration], think: Duration) -> Vec<Served> {
        let runs = (1..).zip(travels).map(|(seed, travels)| self.saturate(seed, *travels, (S(0), S(3)), think));
        self.time.block_on(join_all(runs))
    }
}

fn assert_fair(what: &str, served: &[Served]) {
    let (least, most) =
        (served.iter().map(|s| s.appends).min().unwrap(), served.iter().map(|s| s.appends).max().unwrap());
    let longest = served.iter().map(|s| s.longest).max().unwrap();
    assert!(
        least * 2 >= most && longest <= S(1),
        "{what}: {least} appends beside {most}, longest wait {longest:?}, {served:?}"
    );
}

// Guarantee: stream 21.
#[test]
fn processes_that_append_to_one_partition_all_the_time_are_served_alike() {
    for (write_takes, travels) in [
        (US(0), vec![MS(1); 4]),
        (US(500), vec![US(200); 4]),
        (MS(4), vec![US(50); 4]),
        (US(500), vec![US(200); 2]),
        (US(500), vec![US(200); 16]),
        (US(500), vec![US(200), US(200), MS(1), MS(3)]),
        (US(200), vec![US(200), US(200), US(200), MS(10)]),
        (US(200), vec![US(200), MS(20)]),
    ] {
        for think in [US(0), US(100)] {
            let served = World::new(write_takes).compete(&travels, think);
            assert_fair(&format!("{write_takes:?} {travels:?} {think:?}"), &served);
        }
    }
}

// Guarantee: stream 21.
#[test]
fn a_process_that_begins_beside_a_saturated_one_is_served_within_a_second() {
    for travels in [US(200), MS(2), MS(30), MS(150)] {
        let world = World::new(US(300));
        let first = world.saturate(1, US(200), (S(0), S(6)), US(0));
        // It appends now and then.
        let second = world.saturate(2, travels, (S(2), S(4)), MS(100));
        let (first, second) = world.time.block_on(async { futures::join!(first, second) });
        assert!(second.longest <= S(1), "{travels:?}: {second:?}");
        assert!(first.longest <= S(1) && first.appends > 1000, "{travels:?}: {first:?}");
    }
}

// Guarantee: stream 16, 21.
#[test]
fn an_append_whose_answer_is_lost_during_a_turn_is_written_once() {
    for seed in 0..20 {
        let world = World::new(US(300));
        let mut bodies = world.time.block_on(async {
            let writers = (1..=3).map(|writer| {
                let world = &world;
                async move {
                    let (_, topic) = world.open_lossy(seed * 10 + writer, US(300), Some(5)).await;
                    for n in 0..150 {
                        topic.append(0, vec![Event::new(format!("{writer}-{n}"))]).await.unwrap();
                    }
                }
            });
            join_all(writers).await;
            world.read_all().await
        });
        let written = bodies.len();
        bodies.sort();
        bodies.dedup();
        assert_eq!((bodies.len(), written), (450, 450), "seed {seed}: events and their copies");
    }
}

// Guarantee: stream 17.
#[test]
fn a_process_that_is_alone_makes_one_request_for_each_append_also_after_others_have_left() {
    let world = World::new(US(300));
    let alone = world.time.block_on(world.saturate(1, US(200), (S(0), S(1)), US(0)));
    // One more reads the head.
    assert_eq!(alone.requests, alone.all + 1, "{alone:?}");
    world.compete(&[US(200); 3], US(0));
    let topic = world.time.block_on(async {
        let (line, topic) = world.open(9, US(200)).await;
        // Tickets that are left are skipped, and the flag goes.
        for _ in 0..3 {
            topic.append(0, vec![Event::new("a")]).await.unwrap();
        }
        line.requests.store(0, SeqCst);
        for _ in 0..100 {
            topic.append(0, vec![Event::new("a")]).await.unwrap();
        }
        line.requests.load(SeqCst)
    });
    assert_eq!(topic, 100);
}

// Guarantee: stream 21.
#[test]
fn a_process_that_dies_while_it_is_its_turn_holds_up_the_others_for_a_second_at_most() {
    for seed in 0..12 {
        let world = World::new(US(300));
        let dying = |seed: u64, dies: Duration| {
            let world = &world;
            async move {
                let life = Box::pin(world.saturate(seed, US(200), (S(0), S(9)), US(0)));
                let death: Pin<Box<dyn Future<Output = ()>>> = Box::pin(world.clock.sleep(dies));
                select(life, death).await;
            }
        };
        let deaths = Entropy::from_seed(seed);
        let at = |n: u64| S(1) + US(deaths.up_to(20_000) + n * 900);
        let (one, other, _, _) = world.time.block_on(async {
            futures::join!(
                world.saturate(1, US(200), (S(0), S(3)), US(0)),
                world.saturate(2, MS(1), (S(0), S(3)), US(0)),
                dying(3, at(1)),
                dying(4, at(2)),
            )
        });
        assert_fair(&format!("seed {seed}"), &[one, other]);
    }
}

// Guarantee: stream 16.
#[test]
fn writers_that_take_turns_lose_nothing_and_double_nothing() {
    let world = World::new(US(300));
    let served = world.compete(&[US(200), MS(1), MS(2), US(100)], US(50));
    let all = world.time.block_on(world.read_all()).len() as u64;
    assert_eq!(all, served.iter().map(|served| served.all).sum::<u64>());
}

// Guarantee: stream 21.
#[test]
fn a_trim_beside_a_saturated_process_is_done_within_a_second() {
    let world = World::new(US(300));
    let appends = world.saturate(1, US(200), (S(0), S(4)), US(0));
    let trims = async {
        let (_, topic) = world.open(2, MS(5)).await;
        world.clock.sleep(S(1)).await;
        let begun = world.clock.now();
        let deleted = topic.trim(0, 100).await.unwrap();
        (deleted, world.clock.now() - begun)
    };
    let (served, (deleted, took)) = world.time.block_on(async { futures::join!(appends, trims) });
    println!("{served:?}, {deleted} events were deleted in {took:?}");
    assert!(deleted == 99 && took <= S(1), "{deleted} events were deleted in {took:?}");
}
