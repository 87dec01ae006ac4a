//! Projectors of a view under seeded schedules: three that fold, two that rebuild, requests that come late, twice, or not at
//! all, processes that die or stand still. Each read is the fold of the events up to its place, and no place goes back. With
//! a guard taken out this is violated.
use std::{
    collections::BTreeMap,
    future::{Future, pending},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Waker},
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    codec::Codec,
    entropy::Entropy,
    materialized_view::{Projection, Sourced, View, ViewConfig, ViewError},
    port::{Capabilities, PortError, PortFuture},
    store::{InMemoryStore, Key, Page, Precondition, Scan, Store, StoreError, StoreFuture, Version, Write},
    stream::{Appended, Bounds, Event, Position, Read, Recorded, Topic},
    testing::faults::{FaultClient, FaultConfig, FaultNetwork, for_each_seed},
    time::{Clock, ManualClock},
    work::IdleConfig,
};

use super::services::{self, Strikes};

const MS: fn(u64) -> Duration = Duration::from_millis;
const PROJECTORS: usize = 3;
const REBUILDERS: usize = 2;
const EVENTS: u64 = 40;
const KEYS: u64 = 3;

/// The guard that is taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// A page does not require the version of the checkpoint.
    Version,
    /// A switch does not require the checkpoints that were compared.
    Checks,
    /// A reader trusts the generation that it saw first.
    Generation,
}

/// A row has the numbers of its events, so that each one that is missing, doubled or out of order shows.
struct Numbers;

impl Projection for Numbers {
    type Event = u64;
    type Row = Vec<u64>;

    fn keys(&self, event: &Sourced<u64>) -> Vec<String> {
        vec![(event.event % KEYS).to_string()]
    }

    fn fold(&self, _: &str, row: Option<Vec<u64>>, event: &Sourced<u64>) -> Option<Vec<u64>> {
        let mut row = row.unwrap_or_default();
        row.push(event.event);
        Some(row)
    }
}

/// The row of these first events.
fn naive(key: u64, events: u64) -> Vec<u64> {
    (1..=events).filter(|event| event % KEYS == key).collect()
}

fn json<T: serde::Serialize + for<'a> serde::Deserialize<'a> + 'static>() -> Codec<T> {
    Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes))
}

/// The store of the view as a process uses it, without a guard.
#[derive(Debug)]
struct Careless(Arc<dyn Store>, Without, Mutex<BTreeMap<String, Bytes>>);

impl Store for Careless {
    forward_store! { 0: capabilities, get, put, delete }

    fn scan<'a>(&'a self, scan: &'a Scan) -> StoreFuture<'a, Page> {
        Box::pin(async move {
            let mut page = self.0.scan(scan).await?;
            if self.1 == Without::Generation {
                let mut first = self.2.lock().unwrap();
                // Once one is served.
                for row in page.rows.iter_mut().filter(|row| row.row.starts_with("v/") && row.value[1] == 1) {
                    row.value = first.entry(row.row.clone()).or_insert_with(|| row.value.clone()).clone();
                }
            }
            Ok(page)
        })
    }

    fn batch<'a>(&'a self, partition: &'a str, mut writes: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>> {
        match self.1 {
            Without::Version => {
                for write in &mut writes {
                    if let Write::Put { row, options, .. } = write
                        && row.starts_with("c/")
                        && matches!(options.when, Precondition::Version(_))
                    {
                        options.when = Precondition::Any;
                    }
                }
            }
            Without::Checks => writes.retain(|write| !matches!(write, Write::Check { .. })),
            Without::Nothing | Without::Generation => {}
        }
        self.0.batch(partition, writes)
    }
}

/// A topic behind the network.
#[derive(Debug)]
struct Remote(Arc<Mutex<u64>>, Arc<dyn Store>);

impl Remote {
    async fn pass(&self) -> Result<u64, PortError> {
        match self.1.get(Key::new("topic", "x")).await {
            Ok(_) => Ok(*self.0.lock().unwrap()),
            Err(StoreError::Failed(error)) => Err(error),
            Err(error) => panic!("{error}"),
        }
    }
}

impl Topic for Remote {
    fn capabilities(&self) -> Capabilities {
        Capabilities::of("memory", &[])
    }
    fn identity(&self) -> String {
        "numbers".to_owned()
    }
    fn name(&self) -> &str {
        "numbers"
    }
    fn partitions(&self) -> u16 {
        1
    }
    fn append(&self, _: u16, _: Vec<Event>) -> PortFuture<'_, Vec<Appended>> {
        Box::pin(pending())
    }
    fn read(&self, _: u16, read: Read) -> PortFuture<'_, Vec<Recorded>> {
        Box::pin(async move {
            let last = self.pass().await?;
            let events = (read.from..=last).take(read.max);
            Ok(events.map(|event| Recorded::new(Position::new(0, event), Event::new(event.to_string()))).collect())
        })
    }
    fn bounds(&self, _: u16) -> PortFuture<'_, Bounds> {
        Box::pin(async move { Ok(Bounds::new(1, self.pass().await? + 1)) })
    }
    fn trim(&self, _: u16, _: u64) -> PortFuture<'_, u64> {
        Box::pin(pending())
    }
}

type Node = Pin<Box<dyn Future<Output = ()>>>;

struct World {
    clock: Clock,
    time: ManualClock,
    entropy: Entropy,
    network: FaultNetwork,
    store: Arc<dyn Store>,
    log: Arc<Mutex<u64>>,
    without: Without,
    violations: Vec<String>,
    /// Errors with which projectors ended.
    errors: Arc<Mutex<Vec<String>>>,
    /// The last place that a reader saw.
    place: u64,
    reads: u64,
}

/// The result of a schedule.
struct Lived {
    violations: Vec<String>,
    reads: u64,
    generation: u64,
}

impl World {
    fn new(seed: u64, without: Without) -> Self {
        let (clock, time) = Clock::manual();
        let entropy = Entropy::from_seed(seed);
        let network = services::network(&entropy, [0, 5, 40], &clock);
        let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
        let (log, violations) = (Arc::new(Mutex::new(0)), Vec::new());
        let errors = Arc::default();
        Self { clock, time, entropy, network, store, log, without, violations, errors, place: 0, reads: 0 }
    }

    /// The view as a process has it, behind the network or beside the store.
    fn view(&self, client: Option<&FaultClient>) -> View<Numbers> {
        let through = |store: &Arc<dyn Store>| client.map_or(store.clone(), |client| client.store(store.clone()));
        // A reader lacks its own guard alone.
        let without = match (self.without, client) {
            (Without::Generation, Some(_)) => Without::Nothing,
            (without, _) => without,
        };
        let store = Arc::new(Careless(through(&self.store), without, Mutex::default()));
        let config = ViewConfig::default().page(3).idle(IdleConfig::between(MS(5), MS(40))).standby(MS(60));
        View::builder(store, "numbers", Numbers, json(), config)
            .source(Remote(self.log.clone(), through(&self.store)), json())
            .clock(&self.clock)
            .entropy(&Entropy::from_seed(self.entropy.next_u64()))
            .build()
            .unwrap()
    }

    /// A process that begins anew, until it dies.
    fn node(&self, nth: usize, client: &FaultClient) -> Node {
        let view = self.view(Some(client));
        let (clock, entropy) = (self.clock.clone(), Entropy::from_seed(self.entropy.next_u64()));
        let errors = self.errors.clone();
        Box::pin(async move {
            if nth < PROJECTORS {
                if let Err(error) = view.run(pending()).await {
                    errors.lock().unwrap().push(format!("a projector ended: {error}"));
                }
                return;
            }
            loop {
                clock.sleep(MS(entropy.up_to(400))).await;
                let _ = view.rebuild().await;
            }
        })
    }

    /// Reads a row, and compares it with the events up to its place.
    fn look(&mut self, reader: &View<Numbers>) {
        let key = self.entropy.up_to(KEYS - 1);
        let read = match steadfast::time::block_on(reader.get(&key.to_string())) {
            Ok(read) => read,
            Err(ViewError::Building { .. }) if self.place == 0 => return,
            Err(error) => return self.violations.push(format!("behind {}: {error}", self.place)),
        };
        self.reads += 1;
        let place = read.as_of.offset("numbers", 0).unwrap();
        if place < self.place {
            self.violations.push(format!("the place went back from {} to {place}", self.place));
        }
        self.place = place;
        let (row, wanted) = (read.row.unwrap_or_default(), naive(key, place));
        if row != wanted {
            self.violations.push(format!("as of {place} the row {key} is {row:?}, and not {wanted:?}"));
        }
    }

    fn live(mut self) -> Lived {
        let count = PROJECTORS + REBUILDERS;
        let clients: Vec<_> = (0..count).map(|i| self.network.client(&format!("node-{i}"))).collect();
        let mut nodes: Vec<Node> = clients.iter().enumerate().map(|(i, client)| self.node(i, client)).collect();
        let reader = self.view(None);
        let mut cx = Context::from_waker(Waker::noop());
        let end = self.clock.now() + MS(3_000);
        let mut strikes = Strikes::new(self.clock.now() + MS(100), count, (30, 250), 400);
        let mut next_event = self.clock.now();
        loop {
            let now = self.clock.now();
            if now >= next_event && *self.log.lock().unwrap() < EVENTS {
                next_event = now + MS(self.entropy.up_to(80));
                *self.log.lock().unwrap() += 1;
            }
            if let Some(dead) = strikes.strike(now, &clients, &self.entropy) {
                nodes[dead] = self.node(dead, &clients[dead]);
            }
            for _ in 0..3 {
                for i in 0..count {
                    if nodes[i].as_mut().poll(&mut cx).is_ready() {
                        nodes[i] = self.node(i, &clients[i]);
                    }
                    if self.entropy.up_to(3) == 0 {
                        self.look(&reader);
                    }
                }
            }
            let Some(at) = self.time.next_timer().filter(|at| *at <= end) else { break };
            self.time.advance_to(at);
        }
        drop(nodes);
        self.finish(&reader)
    }

    /// What is on its way arrives, and a projector without faults folds the rest.
    fn finish(mut self, reader: &View<Numbers>) -> Lived {
        self.network.configure(FaultConfig::default()).unwrap();
        let healthy = self.network.client("last");
        let last = self.view(Some(&healthy));
        let events = *self.log.lock().unwrap();
        let ends = async {
            let token = format!("numbers@{events}").parse().unwrap();
            let has_all = async { last.get_after("0", &token, MS(60_000)).await.map(drop) };
            let projects = async { last.run(pending()).await };
            tokio::select! { biased; ended = projects => ended, ended = has_all => ended }
        };
        if let Err(error) = self.time.block_on(ends) {
            self.violations.push(format!("the last projector ends: {error}"));
        }
        for _ in 0..20 {
            self.look(reader);
        }
        let state = self.time.block_on(last.state());
        let generation = state.as_ref().ok().and_then(|state| state.generation).unwrap_or_default();
        self.violations.append(&mut self.errors.lock().unwrap());
        Lived { violations: self.violations, reads: self.reads, generation }
    }
}

// Guarantee: materialized_view 1, 2, 4.
#[test]
fn a_row_is_the_fold_up_to_its_place_and_no_place_goes_back() {
    let seeds = super::schedules(60);
    let (mut reads, mut generations) = (0, 0);
    for_each_seed(0..seeds, |seed| {
        let lived = World::new(seed, Without::Nothing).live();
        assert!(lived.violations.is_empty(), "{:#?}", lived.violations);
        reads += lived.reads;
        generations += lived.generation;
    });
    println!("{seeds} schedules of {PROJECTORS} projectors: {reads} reads, {generations} generations; no violation");
    super::assert_met(reads > seeds * 50 && generations > seeds * 2, (reads, generations));
}

#[test]
fn a_guard_of_a_view_that_is_taken_out_is_missed() {
    for without in [Without::Version, Without::Checks, Without::Generation] {
        super::assert_missed(without, super::controls(200, 600), |seed| {
            World::new(seed, without).live().violations.into_iter().next()
        });
    }
}
