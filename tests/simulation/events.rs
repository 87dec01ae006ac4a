//! Four processes with four writers each on one log, under seeded schedules: requests that are lost, doubled, late, or without
//! a reply, pauses, and processes that die. The log is one order in which each command is at most once, nothing is decided on
//! another version than the one that it is appended to, and nothing that was refused is there. With a guard taken out this is
//! violated.
use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    entropy::Entropy,
    event_sourcing::{Commit, CommitError, EventStore, EventStoreConfig, Expected, NewEvent, StoredCommit},
    store::{InMemoryStore, Key, Precondition, PutOptions, Store, StoreFuture, Version, Write},
    testing::faults::{FaultClient, FaultConfig, FaultNetwork, for_each_seed},
    time::{Clock, Instant, ManualClock},
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const NODES: usize = 4;
const WRITERS: usize = 4;
/// Commands of a writer.
const COMMANDS: usize = 4;
const SEATS: u64 = 12;
const SECONDS: u64 = 40;

/// The guard that is taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// Events are appended whatever the version is.
    After,
    /// The rows of commands are written whatever they say.
    IdRow,
    /// A mark is said to be put, and is not: a request that is late finds nothing of it.
    VoidMark,
    /// The versions of streams that are not written are not looked at.
    Expect,
    /// A claim is taken whoever holds it.
    Claim,
}

/// The store without a guard.
#[derive(Debug)]
struct Guardless {
    store: Arc<dyn Store>,
    without: Without,
}

impl Guardless {
    fn change(&self, nth: usize, write: &mut Write) {
        match (self.without, &mut *write) {
            (Without::After, Write::Append { sequence, after, .. }) if sequence.starts_with("e/") => *after = None,
            (Without::IdRow, Write::Put { row, options, .. }) if row.starts_with("k/") => {
                options.when = Precondition::Any;
            }
            (Without::VoidMark, Write::Put { row, options, .. }) if row.starts_with("k/") => {
                options.when = Precondition::Absent;
            }
            (Without::Claim, Write::Put { row, options, .. }) if row.starts_with("q/") => {
                options.when = Precondition::Any;
            }
            (Without::Expect, Write::Check { .. }) => {
                *write = Write::check_row(format!("u/none/{nth}"), Precondition::Absent);
            }
            _ => {}
        }
    }
}

impl Store for Guardless {
    forward_store! { store: capabilities, get, delete, scan }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        if self.without == Without::VoidMark && key.row.starts_with("k/") {
            return Box::pin(async { Ok(Version::new(u64::MAX)) });
        }
        self.store.put(key, value, options)
    }

    fn batch<'a>(&'a self, partition: &'a str, mut writes: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>> {
        writes.iter_mut().enumerate().for_each(|(nth, write)| self.change(nth, write));
        self.store.batch(partition, writes)
    }
}

/// What a writer wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    /// A seat, decided on the version of its stream; again after a conflict.
    Seat,
    /// To leave one's duty while the other one of a pair is on duty, or to come back. Not again after a conflict.
    Duty(usize),
    /// A badge, which is given back later. Not again if it is taken.
    Badge(u64),
    /// To give back a badge that it has.
    Return(u64),
}

/// A command, as its caller knows it: it outlives the process that the caller asks.
#[derive(Debug, Clone)]
struct Command {
    id: String,
    wish: Wish,
    /// An earlier request may be applied later.
    is_unknown: bool,
    /// A request is under way: if its process dies, it may be applied later.
    is_asked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Done,
    /// Refused, and nothing of it may be there.
    Refused,
    /// Refused, and an earlier request may be applied later.
    Open,
}

/// The callers' knowledge.
#[derive(Default)]
struct Callers {
    /// By writer: the command that it works on, and how many it has begun.
    current: BTreeMap<(usize, usize), (Option<Command>, usize)>,
    ends: BTreeMap<String, End>,
}

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A process: its main future, and the tasks that its log spawned. `None` once it is dead.
struct Node {
    main: Task,
    tasks: Arc<Mutex<Option<Vec<Task>>>>,
}

impl Node {
    fn poll(&mut self, cx: &mut Context<'_>) {
        let _ = self.main.as_mut().poll(cx);
        poll_tasks(&self.tasks, cx);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // What its end begins is dropped, too.
        let tasks = self.tasks.lock().unwrap().take();
        drop(tasks);
    }
}

/// Polls tasks, and those that they spawn.
fn poll_tasks(tasks: &Mutex<Option<Vec<Task>>>, cx: &mut Context<'_>) {
    let Some(mut running) = tasks.lock().unwrap().as_mut().map(std::mem::take) else { return };
    running.retain_mut(|task| task.as_mut().poll(cx).is_pending());
    match &mut *tasks.lock().unwrap() {
        Some(spawned) => {
            running.append(spawned);
            *spawned = running;
        }
        None => drop(running),
    }
}

struct World {
    clock: Clock,
    time: ManualClock,
    entropy: Entropy,
    network: FaultNetwork,
    records: Arc<dyn Store>,
    callers: Arc<Mutex<Callers>>,
    /// Commands that were answered as repeated.
    repeated: Arc<AtomicU64>,
}

impl World {
    fn new(seed: u64, without: Without) -> Self {
        let (clock, time) = Clock::manual();
        let entropy = Entropy::from_seed(seed);
        let trouble = entropy.unit() * 0.3;
        let slow = [20, 300, 7_000][entropy.up_to(2) as usize];
        let faults = FaultConfig::default()
            .errors(trouble / 2.0)
            .lost_replies(trouble)
            .doubled(trouble / 2.0)
            .late(0.8)
            .latency(Duration::ZERO, MS(slow));
        let network = FaultNetwork::new(faults, entropy.next_u64(), &clock).unwrap();
        let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
        let records = Arc::new(Guardless { store, without });
        Self { clock, time, entropy, network, records, callers: Arc::default(), repeated: Arc::default() }
    }

    async fn open(
        store: Arc<dyn Store>,
        clock: &Clock,
        entropy: &Entropy,
        tasks: &Arc<Mutex<Option<Vec<Task>>>>,
    ) -> EventStore {
        loop {
            let spawned = tasks.clone();
            let log = EventStore::builder(store.clone(), "log", EventStoreConfig::default())
                .clock(clock)
                .entropy(entropy)
                .spawner(move |task| {
                    let late = match &mut *spawned.lock().unwrap() {
                        Some(tasks) => {
                            tasks.push(task);
                            None
                        }
                        None => Some(task),
                    };
                    drop(late);
                });
            if let Ok(log) = log.build().await {
                return log;
            }
            clock.sleep(MS(100)).await;
        }
    }

    /// A process that begins: its callers go on with what they wanted of the one before.
    fn node(&self, client: &FaultClient, number: usize) -> Node {
        let tasks = Arc::new(Mutex::new(Some(Vec::new())));
        let entropy = Entropy::from_seed(self.entropy.next_u64());
        let (store, clock, spawned) = (client.store(self.records.clone()), self.clock.clone(), tasks.clone());
        let (callers, repeated) = (self.callers.clone(), self.repeated.clone());
        for (_, (command, _)) in callers.lock().unwrap().current.iter_mut().filter(|((node, _), _)| *node == number) {
            // The request of the process that died may be on its way.
            if let Some(command) = command.as_mut().filter(|command| command.is_asked) {
                command.is_unknown = true;
            }
        }
        let main = Box::pin(async move {
            let log = Self::open(store, &clock, &entropy, &spawned).await;
            let writers = (0..WRITERS).map(|writer| {
                let (log, callers, repeated, clock) = (&log, &callers, &repeated, &clock);
                let entropy = Entropy::from_seed(entropy.next_u64());
                async move {
                    while write(log, (number, writer), callers, repeated, &entropy).await {
                        clock.sleep(MS(entropy.up_to(800))).await;
                    }
                }
            });
            futures::future::join_all(writers).await;
            std::future::pending().await
        });
        Node { main, tasks }
    }

    fn live(self) -> Vec<String> {
        let clients: Vec<_> = (0..NODES).map(|i| self.network.client(&format!("node-{i}"))).collect();
        let mut nodes: Vec<Node> = (0..NODES).map(|i| self.node(&clients[i], i)).collect();
        let mut until = [None::<Instant>; NODES];
        let mut cx = Context::from_waker(Waker::noop());
        let mut settle = |nodes: &mut Vec<Node>| {
            for _ in 0..3 {
                nodes.iter_mut().for_each(|node| node.poll(&mut cx));
            }
        };
        settle(&mut nodes);
        let end = self.clock.now() + Duration::from_secs(SECONDS);
        let mut next_fault = self.clock.now();
        while let Some(at) = self.time.next_timer().filter(|at| *at <= end) {
            self.time.advance_to(at);
            let now = self.clock.now();
            for (i, paused) in until.iter_mut().enumerate() {
                if paused.is_some_and(|at| at <= now) {
                    clients[i].resume();
                    *paused = None;
                }
            }
            if now >= next_fault {
                next_fault = now + MS(500 + self.entropy.up_to(3_000));
                let i = self.entropy.up_to(NODES as u64 - 1) as usize;
                match self.entropy.up_to(4) {
                    0 => nodes[i] = self.node(&clients[i], i),
                    1 => {
                        clients[i].pause();
                        until[i] = Some(now + MS(self.entropy.up_to(12_000)));
                    }
                    2 => clients[i].cut(),
                    _ => clients[i].heal(),
                }
            }
            settle(&mut nodes);
        }
        drop(nodes);
        self.finish()
    }

    /// What is on its way arrives, and one process without faults finishes what the callers still want.
    fn finish(&self) -> Vec<String> {
        self.network.configure(FaultConfig::default()).unwrap();
        let healthy = self.network.client("last");
        let tasks = Arc::new(Mutex::new(Some(Vec::new())));
        let all = async {
            let store = healthy.store(self.records.clone());
            let log = Self::open(store.clone(), &self.clock, &self.entropy, &tasks).await;
            for node in 0..NODES {
                for writer in 0..WRITERS {
                    if let Some((Some(command), _)) = self.callers.lock().unwrap().current.get_mut(&(node, writer)) {
                        command.is_unknown |= command.is_asked;
                    }
                    while write(&log, (node, writer), &self.callers, &self.repeated, &self.entropy).await {}
                }
            }
            self.network.deliver_late().await;
            let commits = log.commits(0, usize::MAX).await.unwrap();
            let names: BTreeSet<&str> =
                commits.iter().flat_map(|commit| &commit.events).map(|event| event.stream.as_str()).collect();
            let mut streams = Vec::new();
            for name in names {
                streams.push((name.to_owned(), log.read(name, 0, usize::MAX).await.unwrap()));
            }
            (commits, streams)
        };
        let mut all = pin!(all);
        let (commits, streams) = self.time.block_on(std::future::poll_fn(|cx| {
            for _ in 0..3 {
                if let Poll::Ready(done) = all.as_mut().poll(cx) {
                    return Poll::Ready(done);
                }
                poll_tasks(&tasks, cx);
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
        let mut found = self.violations(&commits);
        for (stream, events) in streams {
            let of_log = commits.iter().flat_map(|commit| {
                commit.events.iter().filter(|event| event.stream == stream).map(|event| (&commit.command, &event.event))
            });
            if !of_log.eq(events.iter().map(|event| (&event.command, &event.event))) {
                found.push(format!("{stream} and the log have another order"));
            }
        }
        found
    }

    fn violations(&self, commits: &[StoredCommit]) -> Vec<String> {
        let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
        let (mut seats, mut on_duty, mut badges) = (0, [true; 2], BTreeMap::new());
        for (commit, number) in commits.iter().zip(1..) {
            if commit.number != number {
                found.push(format!("commit {} is the {number}th", commit.number));
            }
            if !seen.insert(&commit.command) {
                found.push(format!("{} is there twice", commit.command));
            }
            let event = &commit.events[0];
            let body = std::str::from_utf8(&event.event.body).unwrap();
            match event.event.kind.as_str() {
                "Booked" => {
                    if body.parse() != Ok(seats) {
                        found.push(format!("{} was decided on version {body} and is behind {seats}", commit.command));
                    }
                    seats += 1;
                }
                "Left" | "Came" => {
                    let i: usize = body.parse().unwrap();
                    on_duty[i] = event.event.kind == "Came";
                    if on_duty == [false, false] {
                        found.push(format!("{} left, and nobody is on duty", commit.command));
                    }
                }
                "Badged" => drop(badges.insert(body, &commit.command).map(|by| {
                    found.push(format!("the badge {body} of {by} is taken by {}", commit.command));
                })),
                _ => drop(badges.remove(body)),
            }
        }
        if seats > SEATS {
            found.push(format!("{seats} of {SEATS} seats were sold"));
        }
        for (id, end) in &self.callers.lock().unwrap().ends {
            match (end, seen.contains(id)) {
                (End::Done, false) => found.push(format!("{id} was done, and is lost")),
                (End::Refused, true) => found.push(format!("{id} was refused, and is there")),
                _ => {}
            }
        }
        found
    }
}

/// Works on the next command of a writer; returns `false` if it wants nothing more.
async fn write(
    log: &EventStore,
    place: (usize, usize),
    callers: &Mutex<Callers>,
    repeated: &AtomicU64,
    entropy: &Entropy,
) -> bool {
    let command = {
        let mut callers = callers.lock().unwrap();
        let (current, begun) = callers.current.entry(place).or_insert((None, 0));
        if current.is_none() {
            if *begun == COMMANDS {
                return false;
            }
            *begun += 1;
            let wish = match entropy.up_to(4) {
                0 | 1 => Wish::Seat,
                2 => Wish::Duty(entropy.up_to(1) as usize),
                _ => Wish::Badge(entropy.up_to(1)),
            };
            let id = format!("{}.{}.{begun}", place.0, place.1);
            *current = Some(Command { id, wish, is_unknown: false, is_asked: false });
        }
        current.clone().unwrap()
    };
    let Some(commit) = decide(log, &command).await else {
        // It is not wanted any more, or could not be read.
        return true;
    };
    let Ok(commit) = commit else {
        end(callers, place, if command.is_unknown { End::Open } else { End::Refused });
        return true;
    };
    let asks = |is_asked| {
        let mut callers = callers.lock().unwrap();
        if let Some(command) = callers.current.get_mut(&place).and_then(|(command, _)| command.as_mut()) {
            command.is_asked = is_asked;
        }
    };
    asks(true);
    let answer = log.commit(commit).await;
    asks(false);
    match answer {
        Ok(done) => {
            repeated.fetch_add(u64::from(done.is_repeated), Relaxed);
            end(callers, place, End::Done);
            if let Wish::Badge(badge) = command.wish {
                let (id, wish) = (format!("{}.return", command.id), Wish::Return(badge));
                let next = Command { id, wish, is_unknown: false, is_asked: false };
                callers.lock().unwrap().current.get_mut(&place).unwrap().0 = Some(next);
            }
        }
        // Decided anew.
        Err(CommitError::Conflict { .. }) if command.wish == Wish::Seat => {}
        Err(CommitError::Conflict { .. } | CommitError::Taken { .. }) => {
            end(callers, place, if command.is_unknown { End::Open } else { End::Refused });
        }
        Err(CommitError::Store(error)) => {
            if error.may_have_been_applied() {
                let mut callers = callers.lock().unwrap();
                callers.current.get_mut(&place).unwrap().0.as_mut().unwrap().is_unknown = true;
            }
        }
        Err(error) => panic!("{error}"),
    }
    true
}

fn end(callers: &Mutex<Callers>, place: (usize, usize), end: End) {
    let mut callers = callers.lock().unwrap();
    let command = callers.current.get_mut(&place).unwrap().0.take().unwrap();
    callers.ends.insert(command.id, end);
}

/// Returns the commit of a command, or an error if what it wants is impossible now; `None` if the log could not be read.
async fn decide(log: &EventStore, command: &Command) -> Option<Result<Commit, ()>> {
    let commit = Commit::new(&command.id);
    let on_duty = async |i: usize| {
        let events = log.read(&duty(i), 0, usize::MAX).await.ok()?;
        Some((events.last().is_none_or(|last| last.event.kind == "Came"), events.len() as u64))
    };
    Some(Ok(match command.wish {
        Wish::Seat => {
            let version = log.version("seats").await.ok()?;
            if version >= SEATS {
                return Some(Err(()));
            }
            let booked = NewEvent::new("Booked", version.to_string());
            commit.append("seats", Expected::Version(version), [booked])
        }
        Wish::Duty(i) => {
            let ((own, version), (other, seen)) = (on_duty(i).await?, on_duty(1 - i).await?);
            let kind = if own { "Left" } else { "Came" };
            if own && !other && !command.is_unknown {
                return Some(Err(()));
            }
            let commit = commit.append(duty(i), Expected::Version(version), [NewEvent::new(kind, i.to_string())]);
            // A pair of which nobody would be left is refused by a version that cannot be.
            commit.expect(duty(1 - i), if own && !other { seen + 1 } else { seen })
        }
        Wish::Badge(badge) => {
            let badged = NewEvent::new("Badged", badge.to_string());
            commit.append(format!("badge/{badge}"), Expected::Any, [badged]).claim(badge.to_string())
        }
        Wish::Return(badge) => {
            let returned = NewEvent::new("Returned", badge.to_string());
            commit.append(format!("badge/{badge}"), Expected::Any, [returned]).release(badge.to_string())
        }
    }))
}

fn duty(i: usize) -> String {
    format!("duty/{i}")
}

#[test]
fn a_log_is_one_order_in_which_each_command_is_once_and_decided_on_its_version() {
    let seeds = super::schedules(60);
    let (mut repeated, mut counts) = (0, [0; 2]);
    for_each_seed(0..seeds, |seed| {
        let world = World::new(seed, Without::Nothing);
        let (network, again, callers) = (world.network.clone(), world.repeated.clone(), world.callers.clone());
        let violations = world.live();
        assert!(violations.is_empty(), "{violations:#?}");
        repeated += again.load(Relaxed);
        counts[0] += network.counts().late;
        counts[1] += callers.lock().unwrap().ends.values().filter(|end| **end == End::Refused).count() as u64;
    });
    let [late, refused] = counts;
    println!(
        "{seeds} schedules of a log: {repeated} commands repeated, {refused} refused, {late} late requests; no violation"
    );
    super::assert_met(repeated > seeds && refused > seeds && late > seeds, (repeated, refused, late));
}

#[test]
fn a_guard_of_a_log_that_is_taken_out_is_missed() {
    for without in [Without::After, Without::IdRow, Without::VoidMark, Without::Expect, Without::Claim] {
        super::assert_missed(without, super::controls(200, 1_000), |seed| {
            World::new(seed, without).live().into_iter().next()
        });
    }
}
