//! Services that follow a script and log their calls, and nodes that run sagas over them.
use std::{
    collections::{HashMap, VecDeque},
    future::{Future, pending},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    ConfigError,
    codec::Codec,
    entropy::Entropy,
    port::{Capabilities, FencingToken, PortError},
    saga::{Action, Compensation, Plan, Saga, SagaConfig, SagaError, SagaEvent, SagaOutcome, Step, StepOutcome},
    store::{InMemoryStore, Key, PutOptions, Scan, Store, StoreError, StoreExt, StoreFuture, Version, Write},
    testing::faults::{FaultClient, FaultConfig, FaultNetwork},
    time::{Clock, ManualClock},
};

pub(crate) const S: fn(u64) -> Duration = Duration::from_secs;

/// The state of a saga: the effects that it knows of.
pub(crate) type State = Vec<String>;
pub(crate) type Ran = Result<SagaOutcome<State>, SagaError>;

pub(crate) fn codec() -> Codec<State> {
    Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes))
}

pub(crate) fn state(effects: &[&str]) -> State {
    effects.iter().map(|effect| (*effect).to_owned()).collect()
}

pub(crate) fn completed(effects: &[&str]) -> SagaOutcome<State> {
    SagaOutcome::Completed(state(effects))
}

/// The answer of a service to one call.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Completed,
    /// After this time.
    Takes(Duration),
    Failed,
    Abandoned,
    Unknown,
    NotSent,
    Refused(Duration),
    Pending(Duration),
    Hangs,
    Panics,
    /// Completes, with these writes.
    Writes(Vec<Write>),
    /// Completes with a state that cannot be stored.
    Unstorable,
    /// Completes with a change of the state that panics.
    BadChange,
}

/// One call of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) compensates: bool,
    pub(crate) key: String,
    pub(crate) attempt: u32,
    pub(crate) token: FencingToken,
    /// It had an effect, or may have had one.
    pub(crate) has_effect: bool,
}

#[derive(Default)]
struct Books {
    script: HashMap<(String, bool), VecDeque<Answer>>,
    calls: Vec<Call>,
    under_way: usize,
    /// Maximum number of concurrent calls.
    most: usize,
}

/// All services that the sagas of a test call.
#[derive(Clone, Default)]
pub(crate) struct Services(Arc<Mutex<Books>>);

impl Services {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap()
    }

    /// Sets the next answers of an action. After them it completes.
    pub(crate) fn answer(&self, step: &str, answers: impl IntoIterator<Item = Answer>) {
        self.books().script.entry((step.to_owned(), false)).or_default().extend(answers);
    }

    /// Sets the next answers of a compensation.
    pub(crate) fn undo(&self, step: &str, answers: impl IntoIterator<Item = Answer>) {
        self.books().script.entry((step.to_owned(), true)).or_default().extend(answers);
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.books().calls.clone()
    }

    /// Returns the calls as words: `seat`, and `-seat` for its compensation.
    pub(crate) fn log(&self) -> String {
        let word = |call: &Call| format!("{}{}", if call.compensates { "-" } else { "" }, call.name);
        self.books().calls.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn most(&self) -> usize {
        self.books().most
    }

    async fn call(&self, clock: &Clock, step: &Step<State>, compensates: bool) -> StepOutcome<State> {
        struct UnderWay<'a>(&'a Services);
        impl Drop for UnderWay<'_> {
            fn drop(&mut self) {
                self.0.books().under_way -= 1;
            }
        }
        let name = step.name().to_owned();
        let answer = {
            let mut books = self.books();
            books.under_way += 1;
            books.most = books.most.max(books.under_way);
            let (key, attempt, token) = (step.key().to_owned(), step.attempt(), step.token());
            let answers = books.script.get_mut(&(name.clone(), compensates));
            let answer = answers.and_then(VecDeque::pop_front).unwrap_or(Answer::Completed);
            let has_effect =
                !matches!(answer, Answer::Failed | Answer::NotSent | Answer::Refused(_) | Answer::Pending(_));
            books.calls.push(Call { name: name.clone(), compensates, key, attempt, token, has_effect });
            answer
        };
        let _under_way = UnderWay(self);
        let change =
            StepOutcome::changed(
                move |state: &mut State| {
                    if compensates { state.retain(|effect| *effect != name) } else { state.push(name) }
                },
            );
        match answer {
            Answer::Completed => change,
            Answer::Takes(time) => {
                clock.sleep(time).await;
                change
            }
            Answer::Failed => StepOutcome::failed("sold out"),
            Answer::Abandoned => StepOutcome::abandoned("who knows"),
            Answer::Unknown => StepOutcome::unknown("no reply"),
            Answer::NotSent => StepOutcome::not_sent("no connection"),
            Answer::Refused(after) => StepOutcome::refused("breaker open").after(after),
            Answer::Pending(after) => StepOutcome::pending(after),
            Answer::Hangs => pending().await,
            Answer::Panics => panic!("a bug"),
            Answer::Writes(writes) => {
                writes.into_iter().for_each(|write| step.write(write));
                change
            }
            Answer::Unstorable => StepOutcome::changed(|state: &mut State| state.push("x".repeat(LARGE))),
            Answer::BadChange => StepOutcome::changed(|_: &mut State| panic!("a bug")),
        }
    }
}

/// A step that calls the service of its name.
#[derive(Clone)]
pub(crate) struct Calls {
    services: Services,
    clock: Clock,
}

impl Action<State> for Calls {
    async fn execute(&self, step: &Step<State>) -> StepOutcome<State> {
        self.services.call(&self.clock, step, false).await
    }
}

impl Compensation<State> for Calls {
    async fn compensate(&self, step: &Step<State>) -> StepOutcome<State> {
        self.services.call(&self.clock, step, true).await
    }
}

/// Size of a state that a [`Limited`] store refuses.
pub(crate) const LARGE: usize = 20_000;

/// A store that refuses large values.
#[derive(Debug)]
struct Limited(InMemoryStore);

fn check(value: &[u8]) -> Result<(), StoreError> {
    match value.len() < LARGE {
        true => Ok(()),
        false => Err(PortError::invalid("value", "must be smaller").into()),
    }
}

impl Store for Limited {
    forward_store! { 0: get, delete, scan }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities().largest_value(LARGE - 1)
    }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, how: PutOptions) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            check(&value)?;
            self.0.put(key, value, how).await
        })
    }

    fn batch<'a>(&'a self, partition: &'a str, writes: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>> {
        Box::pin(async move {
            for write in &writes {
                if let Write::Put { value, .. } = write {
                    check(value)?;
                }
            }
            self.0.batch(partition, writes).await
        })
    }
}

pub(crate) struct World {
    pub(crate) clock: Clock,
    pub(crate) time: ManualClock,
    pub(crate) services: Services,
    pub(crate) network: FaultNetwork,
    pub(crate) store: Arc<dyn Store>,
}

/// One process.
pub(crate) struct Node {
    pub(crate) saga: Saga<State>,
    pub(crate) client: FaultClient,
}

impl World {
    pub(crate) fn new() -> Self {
        let (clock, time) = Clock::manual();
        let store = InMemoryStore::builder().clock(&clock).build();
        Self::over(&clock, &time, Arc::new(Limited(store)))
    }

    pub(crate) fn over(clock: &Clock, time: &ManualClock, store: Arc<dyn Store>) -> Self {
        let network = FaultNetwork::new(FaultConfig::default(), 1, clock).unwrap();
        Self { clock: clock.clone(), time: time.clone(), services: Services::default(), network, store }
    }

    pub(crate) fn calls(&self) -> Calls {
        Calls { services: self.services.clone(), clock: self.clock.clone() }
    }

    /// Seat and room, the charge as the pivot, and a mail.
    pub(crate) fn trip(&self) -> Plan<State, steadfast::saga::AfterPivot> {
        let call = || self.calls();
        Plan::new().step("seat", call()).step("room", call()).pivot("charge", call()).step("mail", call())
    }

    /// Steps without a pivot.
    pub(crate) fn steps(&self, names: &[&str]) -> Plan<State> {
        names.iter().fold(Plan::new(), |plan, name| plan.step(*name, self.calls()))
    }

    /// A node with a deterministic backoff: 1 s, 2 s, 4 s.
    pub(crate) fn config() -> SagaConfig {
        use steadfast::backoff::Jitter;
        let config = SagaConfig::default();
        config
            .retry(config.retry.jitter(Jitter::None))
            .compensation_retry(config.compensation_retry.jitter(Jitter::None))
    }

    pub(crate) fn node<P>(&self, name: &str, plan: Plan<State, P>) -> Node {
        self.node_with(name, plan, Self::config()).unwrap()
    }

    pub(crate) fn node_with<P>(
        &self,
        name: &str,
        plan: Plan<State, P>,
        config: SagaConfig,
    ) -> Result<Node, ConfigError> {
        let client = self.network.client(name);
        let saga = self.saga_over(name, client.store(self.store.clone()), plan, config)?;
        Ok(Node { saga, client })
    }

    /// A node that reaches this store in place of the network's.
    pub(crate) fn node_over<P>(&self, name: &str, store: Arc<dyn Store>, plan: Plan<State, P>) -> Node {
        let saga = self.saga_over(name, store, plan, Self::config()).unwrap();
        Node { saga, client: self.network.client(name) }
    }

    fn saga_over<P>(
        &self,
        name: &str,
        store: Arc<dyn Store>,
        plan: Plan<State, P>,
        config: SagaConfig,
    ) -> Result<Saga<State>, ConfigError> {
        let seed = name.bytes().fold(7, |seed: u64, byte| seed * 31 + u64::from(byte));
        Saga::builder("trip", store, codec(), plan, config)
            .clock(&self.clock)
            .entropy(&Entropy::from_seed(seed))
            .build()
    }

    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.time.block_on(future)
    }

    /// Runs the future for at most this time.
    pub(crate) fn within<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        self.block_on(async {
            tokio::select! {
                biased;
                output = future => Some(output),
                () = self.clock.sleep(limit) => None,
            }
        })
    }

    pub(crate) fn requests(&self) -> u64 {
        self.network.counts().requests
    }

    /// Returns the rows of the saga's partition.
    pub(crate) fn rows(&self) -> Vec<String> {
        let rows = self.block_on(self.store.scan_all(Scan::partition("saga/trip"))).unwrap();
        rows.into_iter().map(|row| row.row).collect()
    }

    pub(crate) fn row(&self, row: &str) -> Option<String> {
        let record = self.block_on(self.store.get(Key::new("saga/trip", row))).unwrap();
        record.map(|record| String::from_utf8_lossy(&record.value).into_owned())
    }

    /// Replaces a text in a stored record.
    pub(crate) fn edit(&self, row: &str, from: &str, to: &str) {
        let text = self.row(row).unwrap();
        assert!(text.contains(from), "{text}");
        let put = self.store.put(Key::new("saga/trip", row), text.replace(from, to).into(), Default::default());
        self.block_on(put).unwrap();
    }
}

impl Node {
    pub(crate) async fn run(&self, id: &str) -> Ran {
        self.saga.run(id, State::new()).await
    }
}

/// Returns the events so far, as words.
pub(crate) fn told(world: &World, events: &mut steadfast::observe::Subscription<SagaEvent>) -> Vec<SagaEvent> {
    let mut told = Vec::new();
    while let Some(Ok(event)) = world.within(Duration::ZERO, events.recv()) {
        told.push(event.what);
    }
    told
}
