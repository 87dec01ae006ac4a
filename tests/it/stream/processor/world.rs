//! Members of a group over one topic, that start, stop and die at any time of a manual clock.
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    future::{Future, pending},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{
    FutureExt,
    future::{AbortHandle, Abortable},
    stream::{FuturesUnordered, StreamExt},
};
use steadfast::{
    Builder,
    entropy::Entropy,
    leader_election::LeaderElectionConfig,
    lease::{Lease, StoreLease},
    port::{BoxFuture, Capabilities, FencingToken, PortError, PortErrorKind, PortFuture},
    queue::{InMemoryQueue, QueueExt},
    store::{InMemoryStore, Store},
    stream::{
        Appended, Bounds, Delivered, Event, PartitionState, Position, Read, Recorded, StreamProcessor,
        StreamProcessorConfig, StreamProcessorEvent, Topic,
    },
    time::{Clock, Instant, ManualClock},
    work::{EventDisposition, IdleConfig},
};

pub(crate) const S: fn(u64) -> Duration = Duration::from_secs;
pub(crate) const MS: fn(u64) -> Duration = Duration::from_millis;

/// A topic in memory, which fails on command and counts its requests.
#[derive(Debug)]
pub(crate) struct Log {
    partitions: Vec<Mutex<Partition>>,
    pub(crate) identity: Mutex<String>,
    pub(crate) requests: AtomicU64,
    pub(crate) fails: Mutex<Option<PortErrorKind>>,
}

#[derive(Debug, Default)]
struct Partition {
    first: u64,
    events: Vec<Event>,
}

impl Log {
    pub(crate) fn new(partitions: u16) -> Arc<Self> {
        let new = || Mutex::new(Partition { first: 1, events: Vec::new() });
        Arc::new(Self {
            partitions: (0..partitions).map(|_| new()).collect(),
            identity: Mutex::new("orders of the test".to_owned()),
            requests: AtomicU64::new(0),
            fails: Mutex::default(),
        })
    }

    fn partition(&self, partition: u16) -> Result<MutexGuard<'_, Partition>, PortError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        match *self.fails.lock().unwrap() {
            Some(kind) => Err(PortError::new(kind, "the topic fails")),
            None => Ok(self.partitions[usize::from(partition)].lock().unwrap()),
        }
    }

    /// Appends an event whose key is the text before the `:`.
    pub(crate) fn add(&self, partition: u16, events: impl IntoIterator<Item = impl AsRef<str>>) {
        let event = |text: &str| {
            let event = Event::new(text.to_owned());
            match text.split_once(':') {
                Some((key, _)) => event.key(key),
                None => event,
            }
        };
        let mut partition = self.partition(partition).unwrap();
        partition.events.extend(events.into_iter().map(|text| event(text.as_ref())));
    }

    /// Forgets the last events, as a server does that was restored from a backup.
    pub(crate) fn lose(&self, partition: u16, count: usize) {
        let mut partition = self.partition(partition).unwrap();
        let left = partition.events.len() - count;
        partition.events.truncate(left);
    }
}

impl Topic for Log {
    fn capabilities(&self) -> Capabilities {
        Capabilities::of("memory", &[])
    }
    fn identity(&self) -> String {
        self.identity.lock().unwrap().clone()
    }
    fn name(&self) -> &str {
        "orders"
    }
    fn partitions(&self) -> u16 {
        self.partitions.len() as u16
    }
    fn append(&self, partition: u16, events: Vec<Event>) -> PortFuture<'_, Vec<Appended>> {
        Box::pin(async move {
            let mut log = self.partition(partition)?;
            let first = log.first + log.events.len() as u64;
            let positions = (first..).take(events.len()).map(|offset| Appended::new(Position::new(partition, offset)));
            let positions = positions.collect();
            log.events.extend(events);
            Ok(positions)
        })
    }
    fn read(&self, partition: u16, read: Read) -> PortFuture<'_, Vec<Recorded>> {
        Box::pin(async move {
            let log = self.partition(partition)?;
            let from = read.from.max(log.first);
            let events = log.events.iter().skip((from - log.first) as usize).take(read.max);
            Ok((from..)
                .zip(events)
                .map(|(at, event)| Recorded::new(Position::new(partition, at), event.clone()))
                .collect())
        })
    }
    fn bounds(&self, partition: u16) -> PortFuture<'_, Bounds> {
        Box::pin(async move {
            let log = self.partition(partition)?;
            Ok(Bounds::new(log.first, log.first + log.events.len() as u64))
        })
    }
    fn trim(&self, partition: u16, before: u64) -> PortFuture<'_, u64> {
        Box::pin(async move {
            let mut log = self.partition(partition)?;
            let count = before.saturating_sub(log.first).min(log.events.len() as u64);
            log.events.drain(..count as usize);
            log.first += count;
            Ok(count)
        })
    }
}

/// One run of a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) member: String,
    pub(crate) position: Position,
    pub(crate) text: String,
    pub(crate) key: Option<String>,
    pub(crate) attempt: u32,
    pub(crate) token: FencingToken,
    pub(crate) began: Instant,
    /// `None` if it was dropped.
    pub(crate) ended: Option<Instant>,
}

type Handler = Arc<dyn Fn(Delivered) -> BoxFuture<'static, EventDisposition> + Send + Sync>;

pub(crate) struct World {
    pub(crate) clock: Clock,
    pub(crate) time: ManualClock,
    pub(crate) topic: Arc<Log>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dead: Arc<InMemoryQueue>,
    pub(crate) runs: Arc<Mutex<Vec<Ran>>>,
    /// Events of all members, with their names.
    pub(crate) told: Arc<Mutex<Vec<(String, StreamProcessorEvent)>>>,
    nodes: RefCell<BTreeMap<String, Node>>,
    running: RefCell<FuturesUnordered<Pin<Box<dyn Future<Output = ()>>>>>,
}

struct Node {
    processor: StreamProcessor,
    kill: AbortHandle,
    stop: tokio::sync::watch::Sender<bool>,
}

impl World {
    pub(crate) fn new(partitions: u16) -> Self {
        let (clock, time) = Clock::manual();
        let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
        Self::over(&clock, &time, store, partitions)
    }

    pub(crate) fn over(clock: &Clock, time: &ManualClock, store: Arc<dyn Store>, partitions: u16) -> Self {
        Self {
            clock: clock.clone(),
            time: time.clone(),
            topic: Log::new(partitions),
            store,
            dead: Arc::new(InMemoryQueue::builder("dead").clock(clock).build()),
            runs: Arc::default(),
            told: Arc::default(),
            nodes: RefCell::default(),
            running: RefCell::default(),
        }
    }

    pub(crate) fn config() -> StreamProcessorConfig {
        StreamProcessorConfig::default()
    }

    /// Settings in which a member is alone after a second.
    pub(crate) fn quick() -> StreamProcessorConfig {
        let idle = IdleConfig::between(MS(100), MS(100));
        Self::config().rebalance_interval(S(1)).idle(idle).election(LeaderElectionConfig::of_term(S(3)))
    }

    pub(crate) fn builder(&self, name: &str, config: StreamProcessorConfig) -> Builder<StreamProcessor> {
        self.builder_on(name, config, self.store.clone(), &self.clock)
    }

    pub(crate) fn builder_on(
        &self,
        name: &str,
        config: StreamProcessorConfig,
        store: Arc<dyn Store>,
        clock: &Clock,
    ) -> Builder<StreamProcessor> {
        let leases: Arc<dyn Lease> = Arc::new(StoreLease::builder(store.clone()).clock(clock).build().unwrap());
        let seed = name.bytes().fold(7, |seed: u64, byte| seed * 31 + u64::from(byte));
        let (told, member) = (self.told.clone(), name.to_owned());
        StreamProcessor::builder(self.topic.clone(), "dispatch", leases, store, config)
            .member(name)
            .clock(clock)
            .entropy(&Entropy::from_seed(seed))
            .dead_letters(self.dead.clone())
            .on_event(move |event: &steadfast::observe::Event<StreamProcessorEvent>| {
                told.lock().unwrap().push((member.clone(), event.what.clone()));
            })
    }

    /// Starts a member whose handlers take no time.
    pub(crate) fn start(&self, name: &str) {
        self.start_as(name, Self::config(), |_| async { EventDisposition::Complete });
    }

    pub(crate) fn start_as<F: Future<Output = EventDisposition> + Send + 'static>(
        &self,
        name: &str,
        config: StreamProcessorConfig,
        handler: impl Fn(Arc<Delivered>) -> F + Send + Sync + 'static,
    ) {
        self.start_built(name, self.builder(name, config).build().unwrap(), handler);
    }

    pub(crate) fn start_built<F: Future<Output = EventDisposition> + Send + 'static>(
        &self,
        name: &str,
        processor: StreamProcessor,
        handler: impl Fn(Arc<Delivered>) -> F + Send + Sync + 'static,
    ) {
        let (kill, killed) = AbortHandle::new_pair();
        let (stop, mut stopped) = tokio::sync::watch::channel(false);
        let handler = self.noting(name, handler);
        let run = processor.clone();
        let live = async move {
            let stop = async move { drop(stopped.wait_for(|stop| *stop).await) };
            run.run(stop, move |event| handler(event)).await.unwrap();
        };
        self.running.borrow_mut().push(Box::pin(Abortable::new(live, killed).map(drop)));
        self.nodes.borrow_mut().insert(name.to_owned(), Node { processor, kill, stop });
    }

    /// Returns a handler that is noted in `runs`.
    fn noting<F: Future<Output = EventDisposition> + Send + 'static>(
        &self,
        name: &str,
        handler: impl Fn(Arc<Delivered>) -> F + Send + Sync + 'static,
    ) -> Handler {
        let (runs, clock, member) = (self.runs.clone(), self.clock.clone(), name.to_owned());
        Arc::new(move |event: Delivered| {
            let event = Arc::new(event);
            let (runs, clock) = (runs.clone(), clock.clone());
            let text = String::from_utf8_lossy(&event.event.body).into_owned();
            let (began, key) = (clock.now(), event.event.key.clone());
            let (position, attempt, token) = (event.position, event.attempt(), event.token());
            let ran = Ran { member: member.clone(), position, text, key, attempt, token, began, ended: None };
            let at = {
                let mut runs = runs.lock().unwrap();
                runs.push(ran);
                runs.len() - 1
            };
            let handled = handler(event);
            Box::pin(async move {
                let handled = handled.await;
                runs.lock().unwrap()[at].ended = Some(clock.now());
                handled
            })
        })
    }

    /// Lets all members run for this time.
    pub(crate) fn pass(&self, time: Duration) {
        let mut running = self.running.borrow_mut();
        let lives = async {
            while running.next().await.is_some() {}
            pending::<()>().await;
        };
        let clock = &self.clock;
        self.time.block_on(async {
            futures::select_biased! {
                () = lives.fuse() => {}
                () = clock.sleep(time).fuse() => {}
            }
        });
    }

    /// Lets all members run until this holds, at most for `limit`. Returns the time.
    pub(crate) fn pass_until(&self, limit: Duration, holds: impl Fn() -> bool) -> Duration {
        let start = self.clock.now();
        while !holds() {
            assert!(self.clock.now() - start < limit, "it does not hold after {limit:?}");
            self.pass(MS(50));
        }
        self.clock.now() - start
    }

    /// Ends a member without any last act.
    pub(crate) fn kill(&self, name: &str) {
        self.nodes.borrow_mut().remove(name).unwrap().kill.abort();
        self.pass(Duration::ZERO);
    }

    /// Asks a member to stop, and does not wait.
    pub(crate) fn stop(&self, name: &str) {
        let node = self.nodes.borrow_mut().remove(name).unwrap();
        node.stop.send_replace(true);
    }

    pub(crate) fn processor(&self, name: &str) -> StreamProcessor {
        self.nodes.borrow()[name].processor.clone()
    }

    pub(crate) fn state(&self, name: &str) -> Vec<PartitionState> {
        self.processor(name).state()
    }

    /// Returns the numbers of partitions of all members, in the order of their names.
    pub(crate) fn shares(&self) -> Vec<usize> {
        self.nodes.borrow().values().map(|node| node.processor.state().len()).collect()
    }

    /// Returns the partitions of a member.
    pub(crate) fn owned(&self, name: &str) -> BTreeSet<u16> {
        self.state(name).iter().map(|state| state.partition).collect()
    }

    pub(crate) fn runs(&self) -> Vec<Ran> {
        self.runs.lock().unwrap().clone()
    }

    /// Returns the texts of the handled events, in the order of their starts.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.runs.lock().unwrap().iter().map(|ran| ran.text.clone()).collect()
    }

    /// Returns the events of members that pass the filter.
    pub(crate) fn told<T>(&self, filter: impl Fn(&StreamProcessorEvent) -> Option<T>) -> Vec<T> {
        self.told.lock().unwrap().iter().filter_map(|(_, event)| filter(event)).collect()
    }

    /// Returns the number of claims so far.
    pub(crate) fn claims(&self) -> usize {
        self.told(|event| matches!(event, StreamProcessorEvent::Claimed { .. }).then_some(())).len()
    }

    /// Returns the reasons of halted partitions.
    pub(crate) fn halted(&self) -> Vec<String> {
        self.told(|event| match event {
            StreamProcessorEvent::Halted { reason, .. } => Some(reason.clone()),
            _ => None,
        })
    }

    /// Removes the dead letters, and returns their positions and reasons.
    pub(crate) fn dead_letters(&self) -> Vec<(String, String)> {
        let mut letters = Vec::new();
        while let Some(letter) = self.time.block_on(self.dead.receive_one(S(3600))).unwrap() {
            letters.push((letter.headers["event-position"].clone(), letter.headers["event-reason"].clone()));
            self.time.block_on(self.dead.complete(&letter.receipt)).unwrap();
        }
        letters
    }

    /// Returns the watermark in a partition's checkpoint.
    pub(crate) fn watermark(&self, partition: u16) -> u64 {
        let any = self.builder("reader", Self::config()).build().unwrap();
        self.time.block_on(any.read_state()).unwrap()[usize::from(partition)].watermark
    }
}

/// Returns the text of each number.
pub(crate) fn numbered(prefix: &str, numbers: impl IntoIterator<Item = u32>) -> Vec<String> {
    numbers.into_iter().map(|number| format!("{prefix}{number}")).collect()
}

pub(crate) async fn complete() -> EventDisposition {
    EventDisposition::Complete
}
