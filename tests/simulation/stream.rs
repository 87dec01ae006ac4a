//! Members of a group under seeded schedules: requests to the store that come late, twice, or not at all, processes that
//! die or stand still beyond their terms, and events that kill their process. No owner is effective after a later one, the
//! events of a key take effect in order, no checkpoint is ahead of its events or moves back, and no event that it has runs
//! again. With a guard taken out this is violated.
use std::{
    collections::{BTreeMap, BTreeSet},
    future::{Future, pending},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    backoff::BackoffConfig,
    entropy::Entropy,
    leader_election::LeaderElectionConfig,
    lease::StoreLease,
    port::{Capabilities, PortError, PortFuture},
    queue::{InMemoryQueue, Message, MessageId, Queue, QueueFuture},
    store::{InMemoryStore, Key, Precondition, PutOptions, Record, Store, StoreError, StoreFuture, Version, Write},
    stream::{
        Appended, Bounds, Delivered, Event, Position, Read, Recorded, StreamProcessor, StreamProcessorConfig, Topic,
    },
    testing::faults::{FaultClient, FaultConfig, FaultNetwork, for_each_seed},
    time::{Clock, Instant, ManualClock},
    work::{EventDisposition, IdleConfig},
};

use super::services;

const MS: fn(u64) -> Duration = Duration::from_millis;
const NODES: usize = 3;
const PARTITIONS: u16 = 2;
const EVENTS: u64 = 24;
const MAX_CRASHES: u32 = 2;

/// The guard that is taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// Checkpoints are written without a token.
    Fence,
    /// Checkpoints are written whatever version they have.
    Version,
    /// A checkpoint has all events up to the highest finished one.
    Watermark,
    /// An event is not recorded before it runs.
    Record,
}

/// A checkpoint as it is stored.
#[derive(Debug, Clone, Default)]
struct Stored {
    epoch: u64,
    finished: BTreeSet<u64>,
    /// The recorded event that runs.
    running: Option<u64>,
}

impl Stored {
    fn read(record: &[u8]) -> Self {
        let text = std::str::from_utf8(record).unwrap();
        let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let number = |line: &str| line.split(' ').next().unwrap().parse::<u64>().unwrap();
        let watermark = number(line("at ").unwrap());
        let mut finished: BTreeSet<u64> = (1..=watermark).collect();
        for (at, word) in (0..).zip(line("above ").unwrap_or_default().split_terminator(' ')) {
            let word = u64::from_str_radix(word, 16).unwrap();
            finished.extend((0..64).filter(|bit| word >> bit & 1 == 1).map(|bit| watermark + 1 + at * 64 + bit));
        }
        let running = line("suspect ").filter(|suspect| suspect.ends_with("running")).map(number);
        Self { epoch: number(line("owner ").unwrap()), finished, running }
    }
}

/// All that happened, and what was wrong.
#[derive(Debug, Default)]
struct Books {
    /// Effects in their order, by partition: offset and token.
    effects: BTreeMap<u16, Vec<(u64, u64)>>,
    checkpoints: BTreeMap<u16, Stored>,
    /// The finished events at each claim, by partition and token.
    claimed: BTreeMap<(u16, u64), BTreeSet<u64>>,
    /// Runs that began, by position and token: whether one of them has returned.
    runs: BTreeMap<(Position, u64), bool>,
    buried: BTreeSet<Position>,
    /// Owners that recorded an event before they ran it.
    recorded: BTreeMap<Position, BTreeSet<u64>>,
    claims: u64,
    violations: Vec<String>,
}

type SharedBooks = Arc<Mutex<Books>>;

/// The store of checkpoints, which looks at each record that it accepts. It takes effect in one poll. Some requests come
/// once more, much later.
#[derive(Debug)]
struct Watched {
    store: Arc<dyn Store>,
    books: SharedBooks,
    entropy: Entropy,
    clock: Clock,
    again: Mutex<Vec<(Instant, String, Bytes, PutOptions)>>,
}

impl Store for Watched {
    forward_store! { store: capabilities, get, delete, scan, batch }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, how: PutOptions) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            if key.row.starts_with("p/") && self.entropy.up_to(15) == 0 {
                let at = self.clock.now() + MS(self.entropy.up_to(400));
                self.again.lock().unwrap().push((at, key.row.to_owned(), value.clone(), how));
            }
            self.accept(key, value, how).await
        })
    }
}

impl Watched {
    async fn accept(&self, key: Key<'_>, value: Bytes, how: PutOptions) -> Result<Version, StoreError> {
        let accepted = self.store.put(key, value.clone(), how).await?;
        if let Some(partition) = key.row.strip_prefix("p/") {
            self.books.lock().unwrap().accept(partition.parse().unwrap(), Stored::read(&value));
        }
        Ok(accepted)
    }

    /// Applies the requests that come once more.
    fn apply_again(&self, now: Instant) {
        let due: Vec<_> = self.again.lock().unwrap().extract_if(.., |(at, ..)| *at <= now).collect();
        for (_, row, value, how) in due {
            let _ = steadfast::time::block_on(self.accept(Key::new("stream-group/dispatch/orders", &row), value, how));
        }
    }
}

impl Books {
    fn accept(&mut self, partition: u16, now: Stored) {
        let before = self.checkpoints.entry(partition).or_default();
        let mut wrong = Vec::new();
        if now.epoch < before.epoch {
            wrong.push(format!("a checkpoint of owner {} after one of {}", now.epoch, before.epoch));
        }
        if let Some(lost) = before.finished.difference(&now.finished).next() {
            wrong.push(format!("the checkpoint moved back: {lost} was finished"));
        }
        let effects = self.effects.entry(partition).or_default();
        for offset in &now.finished {
            let has_effect = effects.iter().any(|(of, _)| of == offset);
            if !has_effect && !self.buried.contains(&Position::new(partition, *offset)) {
                wrong.push(format!("the checkpoint has {offset}, which had no effect"));
            }
        }
        if let std::collections::btree_map::Entry::Vacant(claim) = self.claimed.entry((partition, now.epoch)) {
            claim.insert(now.finished.clone());
            self.claims += 1;
        }
        if let Some(running) = now.running {
            self.recorded.entry(Position::new(partition, running)).or_default().insert(now.epoch);
        }
        *before = now;
        self.violations.extend(wrong.into_iter().map(|wrong| format!("partition {partition}: {wrong}")));
    }
}

/// A pause of a whole process in the middle of a step: the time, until the process stands still.
type Standstill = Arc<Mutex<Option<Duration>>>;

/// The store of checkpoints as a member uses it: without a guard, and on a process that may stand still before it reads.
#[derive(Debug)]
struct Careless(Arc<dyn Store>, Without, Standstill, Entropy);

impl Store for Careless {
    forward_store! { 0: capabilities, delete, scan, batch }

    fn get<'a>(&'a self, key: Key<'a>) -> StoreFuture<'a, Option<Record>> {
        Box::pin(async move {
            if key.row.starts_with("p/") && self.3.up_to(9) == 0 {
                *self.2.lock().unwrap() = Some(MS(self.3.up_to(1_200)));
                // Until the process is polled again.
                let mut is_first = true;
                std::future::poll_fn(|_| match std::mem::take(&mut is_first) {
                    true => Poll::Pending,
                    false => Poll::Ready(()),
                })
                .await;
            }
            self.0.get(key).await
        })
    }

    fn put<'a>(&'a self, key: Key<'a>, mut value: Bytes, mut how: PutOptions) -> StoreFuture<'a, Version> {
        if key.row.starts_with("p/") {
            match self.1 {
                Without::Nothing => {}
                Without::Fence => how.fence = None,
                Without::Version => how.when = Precondition::Any,
                Without::Watermark => value = without_watermark(&value),
                Without::Record => value = without_line(&value, "suspect "),
            }
        }
        self.0.put(key, value, how)
    }
}

fn without_line(record: &[u8], name: &str) -> Bytes {
    let lines = std::str::from_utf8(record).unwrap().lines().filter(|line| !line.starts_with(name));
    lines.map(|line| format!("{line}\n")).collect::<String>().into()
}

fn without_watermark(record: &[u8]) -> Bytes {
    let highest = Stored::read(record).finished.last().copied().unwrap_or_default();
    let lines = without_line(record, "above ");
    let lines = std::str::from_utf8(&lines).unwrap().lines().map(|line| match line.strip_prefix("at ") {
        Some(at) => format!("at {highest} {}\n", at.split_once(' ').unwrap().1),
        None => format!("{line}\n"),
    });
    lines.collect::<String>().into()
}

/// A topic behind the network.
#[derive(Debug)]
struct Remote(Arc<Mutex<Vec<Vec<Event>>>>, Arc<dyn Store>);

impl Remote {
    async fn pass(&self) -> Result<MutexGuard<'_, Vec<Vec<Event>>>, PortError> {
        match self.1.get(Key::new("topic", "x")).await {
            Ok(_) => Ok(self.0.lock().unwrap()),
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
        "orders".to_owned()
    }
    fn name(&self) -> &str {
        "orders"
    }
    fn partitions(&self) -> u16 {
        PARTITIONS
    }
    fn append(&self, _: u16, _: Vec<Event>) -> PortFuture<'_, Vec<Appended>> {
        // The members only read.
        Box::pin(pending())
    }
    fn read(&self, partition: u16, read: Read) -> PortFuture<'_, Vec<Recorded>> {
        Box::pin(async move {
            let log = self.pass().await?;
            let events = log[usize::from(partition)].iter().skip(read.from as usize - 1).take(read.max);
            let at = |offset| Position::new(partition, offset);
            Ok((read.from..).zip(events).map(|(offset, event)| Recorded::new(at(offset), event.clone())).collect())
        })
    }
    fn bounds(&self, partition: u16) -> PortFuture<'_, Bounds> {
        Box::pin(async move { Ok(Bounds::new(1, self.pass().await?[usize::from(partition)].len() as u64 + 1)) })
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
    leases: Arc<dyn Store>,
    checkpoints: Arc<Watched>,
    effects: Arc<dyn Store>,
    dead: Arc<dyn Queue>,
    log: Arc<Mutex<Vec<Vec<Event>>>>,
    books: SharedBooks,
    without: Without,
}

fn config() -> StreamProcessorConfig {
    StreamProcessorConfig::default()
        .max_in_flight(4)
        .max_ahead(12)
        .checkpoint_every(4)
        .checkpoint_interval(MS(40))
        .max_deliveries(1_000)
        .max_crashes(MAX_CRASHES)
        .retry(BackoffConfig::default().between(MS(5), MS(40)))
        .rebalance_interval(MS(300))
        .drain_timeout(MS(60))
        .idle(IdleConfig::between(MS(20), MS(100)))
        .election(LeaderElectionConfig::of_term(MS(450)))
}

impl World {
    fn new(seed: u64, without: Without) -> Self {
        let (clock, time) = Clock::manual();
        let entropy = Entropy::from_seed(seed);
        let network = services::network(&entropy, [0, 5, 60], &clock);
        let new = || Arc::new(InMemoryStore::builder().clock(&clock).build());
        let books = SharedBooks::default();
        let checkpoints = Arc::new(Watched {
            store: new(),
            books: books.clone(),
            entropy: Entropy::from_seed(entropy.next_u64()),
            clock: clock.clone(),
            again: Mutex::default(),
        });
        let log = Arc::new(Mutex::new(vec![Vec::new(); usize::from(PARTITIONS)]));
        let dead = InMemoryQueue::builder("dead").clock(&clock).build();
        let dead = Arc::new(Noting(Arc::new(dead), books.clone()));
        let (leases, effects) = (new(), Arc::new(Effects(new(), books.clone())));
        Self { clock: clock.clone(), time, entropy, network, leases, checkpoints, effects, dead, log, books, without }
    }

    /// A process that begins anew, until it dies.
    fn node(&self, client: &FaultClient, standstill: &Standstill) -> Node {
        let checkpoints = client.store(self.checkpoints.clone());
        let checkpoints = Arc::new(Careless(
            checkpoints,
            self.without,
            standstill.clone(),
            Entropy::from_seed(self.entropy.next_u64()),
        ));
        let effects = client.store(self.effects.clone());
        let leases = StoreLease::builder(client.store(self.leases.clone())).clock(&self.clock).build().unwrap();
        let topic = Arc::new(Remote(self.log.clone(), client.store(self.effects.clone())));
        let processor = StreamProcessor::builder(topic, "dispatch", Arc::new(leases), checkpoints, config())
            .clock(&self.clock)
            .entropy(&Entropy::from_seed(self.entropy.next_u64()))
            .dead_letters(client.queue(self.dead.clone()))
            .build()
            .unwrap();
        let (books, clock) = (self.books.clone(), self.clock.clone());
        let entropy = Entropy::from_seed(self.entropy.next_u64());
        Box::pin(async move {
            let (dies, mut died) = tokio::sync::watch::channel(false);
            let handler = |event: Delivered| {
                let (books, effects, clock, entropy) = (&books, &effects, &clock, &entropy);
                let dies = &dies;
                async move {
                    let (position, token) = (event.position, event.token());
                    begin(books, position, token.as_u64());
                    clock.sleep(MS(entropy.up_to(12))).await;
                    if event.event.headers.contains_key("kills") {
                        dies.send_replace(true);
                        pending::<()>().await;
                    }
                    let name = position.partition.to_string();
                    let effect = vec![
                        Write::put("owner", position.offset.to_string(), PutOptions::new().fence(token)),
                        Write::append("log/", format!("{} {token}", position.offset)),
                    ];
                    match effects.batch(&name, effect).await {
                        Ok(_) => {
                            if books.lock().unwrap().runs.insert((position, token.as_u64()), true) == Some(true) {
                                let twice = format!("{position} ended twice under {token}");
                                books.lock().unwrap().violations.push(twice);
                            }
                            EventDisposition::Complete
                        }
                        Err(error) => EventDisposition::retry(error),
                    }
                }
            };
            tokio::select! {
                biased;
                _ = died.wait_for(|died| *died) => {}
                _ = processor.run(pending(), handler) => {}
            }
        })
    }

    fn live(self) -> (Vec<String>, u64, u64) {
        let clients: Vec<_> = (0..NODES).map(|i| self.network.client(&format!("node-{i}"))).collect();
        let standstills: [Standstill; NODES] = Default::default();
        let mut nodes: Vec<Node> =
            clients.iter().zip(&standstills).map(|(client, still)| self.node(client, still)).collect();
        let mut paused = [None::<Instant>; NODES];
        let mut frozen = [None::<Instant>; NODES];
        let mut cx = Context::from_waker(Waker::noop());
        let killer = (self.entropy.up_to(2) == 0).then(|| self.entropy.up_to(EVENTS / 2));
        let mut appended = 0;
        let end = self.clock.now() + MS(5_000);
        let mut next_fault = self.clock.now() + MS(100);
        let mut next_append = self.clock.now();
        loop {
            let now = self.clock.now();
            if now >= next_append && appended < EVENTS {
                next_append = now + MS(self.entropy.up_to(60));
                for partition in 0..PARTITIONS {
                    let key = ["a", "b", "c"][self.entropy.up_to(2) as usize];
                    let mut event = Event::new("x").key(key);
                    if partition == 0 && killer == Some(appended) {
                        event = event.header("kills", "");
                    }
                    self.log.lock().unwrap()[usize::from(partition)].push(event);
                }
                appended += 1;
            }
            for i in 0..NODES {
                if paused[i].is_some_and(|at| at <= now) {
                    clients[i].resume();
                    paused[i] = None;
                }
                frozen[i] = frozen[i].filter(|at| *at > now);
            }
            if now >= next_fault {
                next_fault = now + MS(50 + self.entropy.up_to(400));
                let i = self.entropy.up_to(NODES as u64 - 1) as usize;
                match self.entropy.up_to(6) {
                    // It dies, and begins anew.
                    0 | 1 => nodes[i] = self.node(&clients[i], &standstills[i]),
                    // Its network stands still, often beyond its terms.
                    2 => {
                        clients[i].pause();
                        paused[i] = Some(now + MS(self.entropy.up_to(900)));
                    }
                    // It stands still as a whole.
                    3 => frozen[i] = Some(now + MS(self.entropy.up_to(900))),
                    4 => clients[i].cut(),
                    _ => clients[i].heal(),
                }
            }
            self.checkpoints.apply_again(now);
            for _ in 0..4 {
                for (i, node) in nodes.iter_mut().enumerate() {
                    if frozen[i].is_some() {
                        continue;
                    }
                    if node.as_mut().poll(&mut cx).is_ready() {
                        *node = self.node(&clients[i], &standstills[i]);
                    }
                    frozen[i] = standstills[i].lock().unwrap().take().map(|time| now + time);
                }
            }
            let Some(at) = self.time.next_timer().filter(|at| *at <= end) else { break };
            self.time.advance_to(at);
        }
        drop(nodes);
        self.finish(killer, appended)
    }

    /// What is on its way arrives, and members without faults finish the rest.
    fn finish(self, killer: Option<u64>, appended: u64) -> (Vec<String>, u64, u64) {
        self.network.configure(FaultConfig::default()).unwrap();
        let healthy = self.network.client("last");
        let done = || {
            let books = self.books.lock().unwrap();
            (0..PARTITIONS)
                .all(|p| books.checkpoints.get(&p).is_some_and(|stored| stored.finished.len() as u64 >= appended))
        };
        let mut cx = Context::from_waker(Waker::noop());
        let mut last = self.node(&healthy, &Standstill::default());
        let end = self.clock.now() + MS(30_000);
        while !done() && self.clock.now() < end {
            for _ in 0..3 {
                if last.as_mut().poll(&mut cx).is_ready() {
                    last = self.node(&healthy, &Standstill::default());
                }
            }
            let Some(at) = self.time.next_timer() else { break };
            self.time.advance_to(at);
        }
        drop(last);
        self.time.block_on(self.network.deliver_late());
        let mut found = std::mem::take(&mut self.books.lock().unwrap().violations);
        if !done() {
            found.push("not all events are finished".to_owned());
        }
        let books = self.books.lock().unwrap();
        let log = self.log.lock().unwrap();
        for (partition, events) in (0..).zip(log.iter()) {
            let effects = books.effects.get(&partition).cloned().unwrap_or_default();
            if !effects.is_sorted_by_key(|(_, token)| *token) {
                found.push(format!("partition {partition}: an effect of an owner after one of a later owner"));
            }
            let first = |offset: u64| effects.iter().position(|(of, _)| *of == offset);
            let mut last_of_key: BTreeMap<&str, usize> = BTreeMap::new();
            for (offset, event) in (1..).zip(events) {
                let position = Position::new(partition, offset);
                let is_killer = partition == 0 && killer == Some(offset - 1);
                let Some(at) = first(offset) else {
                    let deaths = books.recorded.get(&position).map_or(0, BTreeSet::len);
                    if !books.buried.contains(&position) {
                        found.push(format!("{position} had no effect"));
                    } else if deaths < MAX_CRASHES as usize {
                        found.push(format!("{position} is a dead letter after {deaths} deaths at most"));
                    }
                    continue;
                };
                if is_killer {
                    found.push(format!("{position} had an effect"));
                }
                let key = event.key.as_deref().unwrap();
                if last_of_key.insert(key, at).is_some_and(|before| before > at) {
                    found.push(format!("{position} took effect before the event of its key before it"));
                }
            }
        }
        (found, books.claims, books.buried.len() as u64)
    }
}

fn begin(books: &SharedBooks, position: Position, token: u64) {
    let mut books = books.lock().unwrap();
    let claimed = books.claimed.get(&(position.partition, token));
    let wrong = match claimed {
        None => Some(format!("{position} runs under {token}, which has no checkpoint")),
        Some(finished) if finished.contains(&position.offset) => {
            Some(format!("{position} runs again, and was finished"))
        }
        Some(_) => None,
    };
    books.violations.extend(wrong);
    books.runs.entry((position, token)).or_default();
}

/// The queue of dead letters, which notes those that it accepts.
#[derive(Debug)]
struct Noting(Arc<dyn Queue>, SharedBooks);

impl Queue for Noting {
    forward_queue! { 0: capabilities, identity, address, receive, extend, depth, peek, purge, dead_letters, settle }

    fn send<'a>(&'a self, messages: Vec<Message>) -> QueueFuture<'a, Vec<MessageId>> {
        Box::pin(async move {
            let positions: Vec<_> = messages.iter().map(|message| message.headers["event-position"].clone()).collect();
            let sent = self.0.send(messages).await?;
            for (partition, offset) in positions.iter().map(|position| position.split_once('/').unwrap()) {
                let position = Position::new(partition.parse().unwrap(), offset.parse().unwrap());
                self.1.lock().unwrap().buried.insert(position);
            }
            Ok(sent)
        })
    }
}

/// The store of effects, which notes those that it accepts.
#[derive(Debug)]
struct Effects(Arc<dyn Store>, SharedBooks);

impl Store for Effects {
    forward_store! { 0: capabilities, get, delete, scan }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, how: PutOptions) -> StoreFuture<'a, Version> {
        self.0.put(key, value, how)
    }

    fn batch<'a>(&'a self, partition: &'a str, writes: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>> {
        Box::pin(async move {
            let Write::Put { value, options, .. } = &writes[0] else { panic!("{writes:?}") };
            let offset = std::str::from_utf8(value).unwrap().parse().unwrap();
            let effect = (offset, options.fence.unwrap().as_u64());
            let done = self.0.batch(partition, writes).await?;
            let partition = partition.parse().unwrap();
            self.1.lock().unwrap().effects.entry(partition).or_default().push(effect);
            Ok(done)
        })
    }
}

#[test]
fn each_event_takes_effect_in_the_order_of_its_key_and_no_checkpoint_is_ahead_or_moves_back() {
    let seeds = super::schedules(60);
    let (mut claims, mut buried) = (0, 0);
    for_each_seed(0..seeds, |seed| {
        let (violations, claimed, dead) = World::new(seed, Without::Nothing).live();
        assert!(violations.is_empty(), "{violations:#?}");
        claims += claimed;
        buried += dead;
    });
    println!("{seeds} schedules of {NODES} members: {claims} claims, {buried} dead letters; no violation");
    super::assert_met(claims > seeds * 4 && buried > 0, (claims, buried));
}

#[test]
fn a_guard_that_is_taken_out_is_missed() {
    for without in [Without::Fence, Without::Version, Without::Watermark, Without::Record] {
        super::assert_missed(without, super::controls(200, 600), |seed| {
            World::new(seed, without).live().0.into_iter().next()
        });
    }
}
