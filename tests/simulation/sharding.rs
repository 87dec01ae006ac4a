//! Shards, routers, movers and changes of the map, any of which may crash, stall or lag. No shard
//! accepts a request for another's key, no row is lost or duplicated, and a read returns no less
//! than was written before it began.
use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use steadfast::{
    config::ConfigError,
    entropy::Entropy,
    notify::InMemoryNotifier,
    port::{BoxFuture, PortError, PortErrorKind, PortFuture},
    sharding::{
        Access, Chunk, KeyBytes, Move, Mover, PlannedMove, Refused, Routed, ShardDirectory, ShardDirectoryConfig,
        ShardError, ShardGuard, ShardId, ShardMap, ShardingError,
    },
    store::{InMemoryStore, Key, PutOptions, Store},
    testing::faults::{FaultClient, FaultConfig, FaultNetwork, for_each_seed},
    time::{Clock, ManualClock},
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const SHARDS: u32 = 3;
const KEYS: u64 = 12;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The check that is removed, to show that it is needed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Without {
    Nothing,
    /// A shard accepts each request.
    ShardCheck,
    /// A shard accepts the work of each mover as the newest.
    MoverCheck,
    /// A request releases its permit before its work is done.
    Staying,
    /// A change of the map may take a key from its owner.
    OwnerCheck,
}

struct Shard {
    guard: Option<ShardGuard>,
    /// Number of starts. Work of earlier lives is lost in a crash.
    life: u64,
    /// The rows, which survive a crash.
    rows: BTreeMap<u64, u64>,
}

#[derive(Default)]
struct Truth {
    /// For each key the highest number whose write was acknowledged, and the highest that was
    /// begun.
    done: [u64; KEYS as usize],
    begun: [u64; KEYS as usize],
    writes: u64,
    reads: u64,
    refused: u64,
    /// Number of changes of the map.
    steps: u64,
    /// Number of changes other than moves: made, and refused because they would have taken a key
    /// from its owner.
    changes: u64,
    refused_changes: u64,
    violations: Vec<String>,
}

const MAP: Key<'static> = Key::new("shard-maps", "rows");

/// Returns the immediate response of the store in memory.
fn at_once<T>(mut asked: BoxFuture<'_, T>) -> T {
    match asked.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("in memory"),
    }
}

/// The state that all processes share.
struct Net {
    clock: Clock,
    entropy: Entropy,
    store: Arc<InMemoryStore>,
    shards: Mutex<Vec<Shard>>,
    truth: Mutex<Truth>,
    /// Messages in transit. They arrive although their sender has crashed.
    messages: Mutex<Vec<Task>>,
    without: Without,
}

impl Net {
    async fn delay(&self) {
        let long = self.entropy.up_to(40) == 0;
        self.clock.sleep(MS(self.entropy.up_to(if long { 900 } else { 6 }))).await;
    }

    /// Delays the work of a shard by a random time, sometimes a long one.
    async fn works(&self) {
        let long = self.entropy.up_to(12) == 0;
        self.clock.sleep(MS(self.entropy.up_to(if long { 300 } else { 4 }))).await;
    }

    /// Sends a request to a shard, and waits for the response. `None` if the shard is down, or the
    /// response is lost.
    async fn ask<T: Send + 'static>(self: &Arc<Self>, shard: ShardId, serve: impl AsyncServe<T>) -> Option<T> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        let net = self.clone();
        self.messages.lock().unwrap().push(Box::pin(async move {
            net.delay().await;
            let up = {
                let shards = net.shards.lock().unwrap();
                let shard = &shards[shard.0 as usize];
                shard.guard.clone().map(|guard| (guard, shard.life))
            };
            let Some((guard, life)) = up else { return };
            let served = serve.serve(net.clone(), shard, guard, life).await;
            net.delay().await;
            if net.entropy.up_to(30) > 0
                && let Some(served) = served
            {
                let _ = reply.send(served);
            }
        }));
        answer.await.ok()
    }

    /// Works on a shard's rows, unless the shard has crashed since.
    fn at<T>(&self, shard: ShardId, life: u64, work: impl FnOnce(&mut BTreeMap<u64, u64>) -> T) -> Option<T> {
        let mut shards = self.shards.lock().unwrap();
        let shard = &mut shards[shard.0 as usize];
        (shard.life == life).then(|| work(&mut shard.rows))
    }

    /// Returns the recorded map.
    fn recorded(&self) -> ShardMap {
        let record = at_once(self.store.get(MAP)).unwrap().unwrap();
        ShardMap::from_text(std::str::from_utf8(&record.value).unwrap()).unwrap()
    }

    /// Makes a change like a directory without the check of owners.
    fn force(&self, mut change: impl FnMut(&mut ShardMap) -> Result<(), ConfigError>) {
        let mut map = self.recorded();
        let next = format!("version {}\n", map.version() + 1);
        if change(&mut map).is_ok() {
            let text = map.to_text().replacen(&format!("version {}\n", map.version()), &next, 1);
            at_once(self.store.put(MAP, text.into(), PutOptions::new())).unwrap();
        }
    }

    fn violation(&self, what: String) {
        self.truth.lock().unwrap().violations.push(what);
    }
}

/// The work of a shard for a request. It returns `None` if the shard crashed meanwhile.
trait AsyncServe<T>: Send + 'static {
    fn serve(
        self,
        net: Arc<Net>,
        shard: ShardId,
        guard: ShardGuard,
        life: u64,
    ) -> impl Future<Output = Option<T>> + Send;
}

impl<T, F, Fut> AsyncServe<T> for F
where
    F: FnOnce(Arc<Net>, ShardId, ShardGuard, u64) -> Fut + Send + 'static,
    Fut: Future<Output = Option<T>> + Send,
{
    fn serve(
        self,
        net: Arc<Net>,
        shard: ShardId,
        guard: ShardGuard,
        life: u64,
    ) -> impl Future<Output = Option<T>> + Send {
        self(net, shard, guard, life)
    }
}

/// A read, or a write of this number.
fn request(key: u64, write: Option<u64>, version: u64) -> impl AsyncServe<Result<u64, Refused>> {
    move |net: Arc<Net>, shard: ShardId, guard: ShardGuard, life: u64| async move {
        let access = if write.is_some() { Access::Write } else { Access::Read };
        let entered = match guard.enter(&key, access, version) {
            Ok(entered) => Some(entered),
            Err(_) if net.without == Without::ShardCheck => None,
            Err(refused) => return Some(Err(refused)),
        };
        let entered = entered.filter(|_| net.without != Without::Staying);
        net.works().await;
        let answer = net.at(shard, life, |rows| {
            let row = rows.get(&key).copied().unwrap_or(0);
            if let Some(number) = write {
                rows.insert(key, number.max(row));
            }
            row
        })?;
        let owner = net.recorded().shard_of(&key);
        if owner != Some(shard) {
            net.violation(format!("{shard} answered for {key}, which is of {owner:?}"));
        }
        drop(entered);
        Some(Ok(answer))
    }
}

#[derive(Clone)]
struct Moves(Arc<Net>);

impl std::fmt::Debug for Moves {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Moves")
    }
}

fn down<T>(answer: Option<Result<T, Refused>>) -> Result<T, PortError> {
    let failed = |why: String| PortError::new(PortErrorKind::Unavailable, why);
    answer.ok_or_else(|| failed("no answer".into()))?.map_err(|refused| failed(refused.to_string()))
}

fn has(map: &ShardMap, chunk: &Chunk, key: u64) -> bool {
    map.chunk_contains(chunk, KeyBytes::of(&key).as_slice())
}

impl Moves {
    /// The work of a mover at one shard.
    async fn at<T: Send + 'static>(
        &self,
        shard: ShardId,
        work: &Move,
        rows: impl FnOnce(&mut BTreeMap<u64, u64>) -> T + Send + 'static,
    ) -> Result<T, PortError> {
        let work = work.clone();
        down(
            self.0
                .ask(shard, move |net: Arc<Net>, shard: ShardId, guard: ShardGuard, life: u64| async move {
                    let entered = match guard.enter_move(&work) {
                        Ok(entered) => Some(entered),
                        Err(_) if net.without == Without::MoverCheck => None,
                        Err(refused) => return Some(Err(refused)),
                    };
                    net.works().await;
                    let done = net.at(shard, life, rows)?;
                    drop(entered);
                    Some(Ok(done))
                })
                .await,
        )
    }

    async fn copy_all(&self, work: &Move, map: &Arc<ShardMap>) -> Result<(), PortError> {
        let (of, chunk) = (map.clone(), work.chunk.clone());
        let read = self
            .at(work.from, work, move |rows| {
                let chunk = |row: &(&u64, &u64)| has(&of, &chunk, *row.0);
                rows.iter().filter(chunk).map(|(key, row)| (*key, *row)).collect::<Vec<_>>()
            })
            .await?;
        let (of, chunk) = (map.clone(), work.chunk.clone());
        self.at(work.to, work, move |rows| {
            rows.retain(|key, _| !has(&of, &chunk, *key));
            rows.extend(read);
        })
        .await
    }
}

impl Mover for Moves {
    fn install<'a>(&'a self, shard: ShardId, map: &'a Arc<ShardMap>) -> PortFuture<'a, ()> {
        let map = map.clone();
        Box::pin(async move {
            let install = |net: Arc<Net>, shard: ShardId, guard: ShardGuard, life: u64| async move {
                guard.install(map).await;
                net.at(shard, life, |_| ()).map(Ok)
            };
            down(self.0.ask(shard, install).await)
        })
    }
    fn copy<'a>(&'a self, work: &'a Move, map: &'a Arc<ShardMap>) -> PortFuture<'a, ()> {
        Box::pin(self.copy_all(work, map))
    }
    fn catch_up<'a>(&'a self, work: &'a Move, map: &'a Arc<ShardMap>) -> PortFuture<'a, ()> {
        Box::pin(self.copy_all(work, map))
    }
    fn drop_rows<'a>(&'a self, shard: ShardId, work: &'a Move, map: &'a Arc<ShardMap>) -> PortFuture<'a, ()> {
        let (of, chunk) = (map.clone(), work.chunk.clone());
        Box::pin(self.at(shard, work, move |rows| rows.retain(|key, _| !has(&of, &chunk, *key))))
    }
}

struct World {
    time: ManualClock,
    net: Arc<Net>,
    notifier: Arc<InMemoryNotifier>,
    clients: Vec<FaultClient>,
    /// The directories of two routing and two moving processes.
    directories: Vec<ShardDirectory>,
    calls: Vec<Task>,
    movers: [Option<Task>; 2],
    stalled: [u64; 2],
}

impl World {
    fn new(seed: u64, without: Without) -> Self {
        let (clock, time) = Clock::manual();
        let entropy = Entropy::from_seed(seed);
        let share = entropy.unit() * 0.2;
        let faults = FaultConfig::default()
            .errors(share)
            .lost_replies(share)
            .doubled(share)
            .late(share)
            .latency(Duration::ZERO, MS(entropy.up_to(20)));
        let network = FaultNetwork::new(faults, entropy.next_u64(), &clock).unwrap();
        let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
        let shards: Vec<ShardId> = (0..SHARDS).map(ShardId).collect();
        let ranges = |gap| ShardMap::ranges(&[(0_u64, Some(shards[0])), (gap, None), (KEYS / 2, Some(shards[1]))]);
        let first = match seed % 4 {
            0 | 2 => ShardMap::hashed(16, &shards[..2]).unwrap(),
            1 => ShardMap::ranges(&[(0_u64, Some(shards[0])), (KEYS / 2, Some(shards[1]))]).unwrap(),
            // Some keys have no owner at first.
            _ => ranges(KEYS / 3).unwrap(),
        };
        let notifier = Arc::new(InMemoryNotifier::new());
        let clients: Vec<FaultClient> = (0..4).map(|i| network.client(&format!("process-{i}"))).collect();
        let config = ShardDirectoryConfig::default().retry_timeout(MS(400)).refresh_interval(MS(2_000));
        let open = |store: Arc<dyn Store>| {
            let builder = ShardDirectory::builder(store, "rows", config).clock(&clock);
            builder.entropy(&Entropy::from_seed(entropy.next_u64())).notifier(notifier.clone())
        };
        let directories = time.block_on(async {
            open(store.clone()).create(&first).await.unwrap();
            let mut all = Vec::new();
            for client in &clients {
                let store = Arc::new(client.store(store.clone()));
                let opened = loop {
                    if let Ok(directory) = open(store.clone()).open().await {
                        break directory;
                    }
                };
                all.push(opened);
            }
            all
        });
        let shard =
            |id| Shard { guard: Some(ShardGuard::new(id, directories[0].map())), life: 0, rows: BTreeMap::new() };
        let net = Arc::new(Net {
            shards: Mutex::new(shards.into_iter().map(shard).collect()),
            truth: Mutex::default(),
            messages: Mutex::default(),
            clock,
            entropy,
            store,
            without,
        });
        Self { time, net, notifier, clients, directories, calls: Vec::new(), movers: [None, None], stalled: [0, 0] }
    }

    fn settle(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        let mut poll = |task: &mut Task| task.as_mut().poll(&mut cx) == Poll::Pending;
        for _ in 0..4 {
            self.calls.retain_mut(&mut poll);
            let mut messages = std::mem::take(&mut *self.net.messages.lock().unwrap());
            messages.retain_mut(&mut poll);
            self.net.messages.lock().unwrap().extend(messages);
            for (mover, stalled) in self.movers.iter_mut().zip(&self.stalled) {
                if *stalled == 0 && mover.as_mut().is_some_and(|mover| !poll(mover)) {
                    *mover = None;
                }
            }
        }
    }

    fn call(&mut self) {
        let net = self.net.clone();
        let router = self.directories[net.entropy.up_to(1) as usize].clone();
        let key = net.entropy.up_to(KEYS - 1);
        let writes = net.entropy.up_to(1) == 0;
        self.calls.push(Box::pin(async move {
            let at = key as usize;
            let (floor, write) = {
                let mut truth = net.truth.lock().unwrap();
                if writes {
                    truth.begun[at] += 1;
                }
                (truth.done[at], writes.then_some(truth.begun[at]))
            };
            let ask = |to: Routed| {
                let net = net.clone();
                async move {
                    match net.ask(to.shard, request(key, write, to.version)).await {
                        Some(Ok(row)) => Ok(row),
                        Some(Err(refused)) => Err(ShardError::Refused(refused)),
                        None => Err(ShardError::Failed("no answer")),
                    }
                }
            };
            let answer = router.route(&key, ask).await;
            let mut truth = net.truth.lock().unwrap();
            match (answer, write) {
                (Ok(_), Some(number)) => {
                    truth.done[at] = truth.done[at].max(number);
                    truth.writes += 1;
                }
                (Ok(row), None) => {
                    truth.reads += 1;
                    if row < floor {
                        let what = format!("a read of {key} gave {row}, and {floor} was written before it began");
                        truth.violations.push(what);
                    }
                }
                (Err(_), _) => truth.refused += 1,
            }
        }));
    }

    /// Starts a mover of this process with a random plan.
    fn start_mover(&mut self, i: usize) {
        let (net, directory) = (self.net.clone(), self.directories[2 + i].clone());
        self.movers[i] = Some(Box::pin(async move {
            let mover = Moves(net.clone());
            let Ok(map) = directory.refresh().await else { return };
            let plan = some_plan(&map, &net.entropy);
            let gives_up = net.entropy.up_to(5) == 0;
            // A mover that survives retries where it failed.
            for _ in 0..6 {
                let made = if gives_up {
                    directory.roll_back(&mover).await.map(usize::from)
                } else {
                    directory.rebalance(&plan, &mover).await
                };
                if made.is_ok() {
                    break;
                }
                net.delay().await;
            }
        }));
    }

    /// Changes the map without a move.
    fn change(&mut self) {
        let (net, directory) = (self.net.clone(), self.directories[self.net.entropy.up_to(3) as usize].clone());
        let (kind, key) = (net.entropy.up_to(9), net.entropy.up_to(KEYS - 1));
        let shard = ShardId(net.entropy.up_to(u64::from(SHARDS) - 1) as u32);
        let older = self.directories[0].map();
        let change = move |map: &mut ShardMap| {
            let other = match kind {
                0..=4 => return map.pin(&key, shard),
                5 => return map.split(&key),
                6 => return map.merge(&key),
                // A copy that is stale by now; all chunks to one shard; a step that was not carried
                // out.
                7 => (*older).clone(),
                8 => ShardMap::ranges(&[(0_u64, Some(shard))])?,
                _ if key.is_multiple_of(2) => map.advanced().unwrap_or_else(|| map.clone()),
                _ => map.rolled_back().unwrap_or_else(|| map.clone()),
            };
            *map = other;
            Ok(())
        };
        self.calls.push(Box::pin(async move {
            let changed = directory.change(change.clone()).await;
            let mut truth = net.truth.lock().unwrap();
            match changed {
                Ok(_) => truth.changes += 1,
                Err(ShardingError::NeedsMove { .. }) => {
                    truth.refused_changes += 1;
                    if net.without == Without::OwnerCheck && kind <= 4 {
                        net.force(change);
                    }
                }
                Err(_) => {}
            }
        }));
    }

    fn crash(&mut self, shard: usize) {
        let (net, directory) = (self.net.clone(), self.directories[2].clone());
        let life = {
            let mut shards = net.shards.lock().unwrap();
            shards[shard].guard = None;
            shards[shard].life += 1;
            shards[shard].life
        };
        self.calls.push(Box::pin(async move {
            net.delay().await;
            let guard = loop {
                match ShardGuard::open(ShardId(shard as u32), &directory).await {
                    Ok(guard) => break guard,
                    Err(_) => net.clock.sleep(MS(20)).await,
                }
            };
            let mut shards = net.shards.lock().unwrap();
            if shards[shard].life == life {
                shards[shard].guard = Some(guard);
            }
        }));
    }

    fn disturb(&mut self) {
        let entropy = self.net.entropy.clone();
        let i = entropy.up_to(1) as usize;
        match entropy.up_to(33) {
            0..=14 => self.call(),
            30..=33 => self.change(),
            15..=18 if self.movers[i].is_none() => self.start_mover(i),
            19 => self.movers[i] = None,
            20 | 21 => self.stalled[i] = entropy.up_to(12),
            22 => self.crash(entropy.up_to(u64::from(SHARDS) - 1) as usize),
            23 if entropy.up_to(3) == 0 => self.clients[entropy.up_to(3) as usize].cut(),
            24 | 25 => self.clients[entropy.up_to(3) as usize].heal(),
            _ => {}
        }
        self.stalled = self.stalled.map(|left| left.saturating_sub(1));
    }

    fn advance(&mut self, by: Duration) {
        let end = self.time.now() + by;
        self.settle();
        while let Some(at) = self.time.next_timer().filter(|at| *at <= end) {
            self.time.advance_to(at);
            self.settle();
        }
        self.time.advance_to(end);
    }

    fn run(mut self) -> Truth {
        for _ in 0..200 {
            self.disturb();
            let by = MS(self.net.entropy.up_to(25));
            self.advance(by);
        }
        self.come_to_rest();
        let mut truth = std::mem::take(&mut *self.net.truth.lock().unwrap());
        truth.steps = self.net.recorded().version() - 1;
        drop(self.notifier);
        truth
    }

    /// Without disturbance the current move ends, and each row is complete at the shard that the
    /// map names.
    fn come_to_rest(&mut self) {
        self.clients.iter().for_each(FaultClient::heal);
        (self.movers, self.stalled) = ([None, None], [0, 0]);
        self.advance(MS(8_000));
        assert!(self.calls.is_empty(), "a call hangs");
        let net = self.net.clone();
        let directory = self.directories[3].clone();
        for _ in 0..100 {
            let (mover, directory) = (Moves(net.clone()), directory.clone());
            self.movers[0] = Some(Box::pin(async move {
                let _ = directory.resume(&mover).await;
            }));
            self.advance(MS(8_000));
            if net.recorded().moving().is_none() {
                break;
            }
        }
        let map = net.recorded();
        assert!(map.moving().is_none(), "the move does not end");
        let shards = net.shards.lock().unwrap();
        let mut truth = net.truth.lock().unwrap();
        for key in 0..KEYS {
            let at = key as usize;
            let held: Vec<_> =
                (0..).map(ShardId).zip(shards.iter()).filter_map(|(id, s)| Some((id, *s.rows.get(&key)?))).collect();
            let whole = match held[..] {
                [] => truth.done[at] == 0,
                [(shard, row)] => {
                    map.shard_of(&key) == Some(shard) && (truth.done[at]..=truth.begun[at]).contains(&row)
                }
                _ => false,
            };
            if !whole {
                let what = format!(
                    "at rest {key} is held by {held:?}; {} was written, the owner is {:?}",
                    truth.done[at],
                    map.shard_of(&key)
                );
                truth.violations.push(what);
            }
        }
    }
}

/// Returns a random plan for this map.
fn some_plan(map: &ShardMap, entropy: &Entropy) -> Vec<PlannedMove> {
    let to = |from: ShardId| ShardId((from.0 + 1 + entropy.up_to(u64::from(SHARDS) - 2) as u32) % SHARDS);
    let offline = |planned: PlannedMove| if entropy.up_to(3) == 0 { planned.offline() } else { planned };
    let key = entropy.up_to(KEYS - 1);
    if entropy.up_to(2) == 0 {
        let Some(from) = map.shard_of(&key) else { return Vec::new() };
        return vec![offline(PlannedMove::new(Chunk::key(&key), from, to(from)))];
    }
    if map.slots().is_empty() {
        let high = key + 1 + entropy.up_to(3);
        let chunk = Chunk::keys(&key, Some(&high));
        return map.owner_of(&chunk).map(|from| offline(PlannedMove::new(chunk, from, to(from)))).into_iter().collect();
    }
    let shards: Vec<ShardId> = (0..SHARDS).map(ShardId).filter(|shard| shard.0 != (key % 4) as u32).collect();
    map.plan(&shards).unwrap().into_iter().map(offline).collect()
}

fn run(seeds: u64, without: Without) -> (u64, Truth) {
    let (mut found, mut all) = (0, Truth::default());
    for_each_seed(0..seeds, |seed| {
        let truth = World::new(seed, without).run();
        assert!(without != Without::Nothing || truth.violations.is_empty(), "{:#?}", truth.violations);
        found += u64::from(!truth.violations.is_empty());
        all.writes += truth.writes;
        all.reads += truth.reads;
        all.refused += truth.refused;
        all.steps += truth.steps;
        all.changes += truth.changes;
        all.refused_changes += truth.refused_changes;
    });
    (found, all)
}

// Guarantee: sharding 9.
#[test]
fn no_row_is_lost_or_duplicated_whatever_crashes() {
    let seeds = super::schedules(150);
    let (_, all) = run(seeds, Without::Nothing);
    let Truth { writes, reads, refused, steps, changes, refused_changes, .. } = all;
    println!(
        "{seeds} schedules: {writes} writes, {reads} reads, {refused} without an answer, {steps} changes of the map, {changes} of \
         them no moves, {refused_changes} refused for want of a move; no violation"
    );
    super::assert_met(writes > seeds * 10 && reads > seeds * 10 && steps > seeds * 5, (writes, reads, steps));
    super::assert_met(changes > seeds && refused_changes > seeds / 2, (changes, refused_changes));
}

// Guarantee: sharding 9.
#[test]
fn without_each_check_a_violation_is_found() {
    for without in [Without::ShardCheck, Without::MoverCheck, Without::Staying, Without::OwnerCheck] {
        let seeds = super::controls(150, 1_000);
        let (found, _) = run(seeds, without);
        println!("without {without:?}: {found} of {seeds} schedules");
        assert!(found > 0, "{without:?}");
    }
}
