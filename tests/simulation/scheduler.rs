//! Scheduled sagas under seeded schedules, whose steps reach their services directly and through agents behind a queue:
//! requests that are lost, doubled and late, messages that disappear, processes and agents that die, that are paused beyond
//! their leases and whose clocks run at other rates. Each submission is started once and ends with all of its effects once
//! or with none, also after its deadline; sagas of one key run in order; each caller hears of the receipt and then of the
//! end. With a guard taken out this is violated.
use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    backoff::BackoffConfig,
    codec::Codec,
    entropy::Entropy,
    port::Failure,
    queue::{InMemoryQueue, Message, Queue, QueueExt, Receive, RequestError, Requester, Settle},
    queue_listener::{IdleConfig, QueueListenerConfig},
    saga::{Action, Compensation, Plan, Saga, SagaConfig, SagaPhase, SagaStatus, Step, StepOutcome},
    scheduler::{Agent, AgentCall, SAGA_ID, STATUS, Scheduler, SchedulerConfig, SchedulerEvent, Submission},
    store::{InMemoryStore, Store, StoreError, Write},
    testing::faults::{FaultClient, FaultConfig, FaultNetwork, for_each_seed},
    time::{Clock, Instant, ManualClock, Timestamp},
};

use super::{
    poor::{self, PoorQueue},
    services::{self, Failing, Lacks, Late, Service},
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const STEPS: [&str; 4] = ["seat", "courier", "charge", "mail"];
/// The steps that reach their service through an agent.
const BEHIND_AGENTS: [&str; 2] = ["courier", "charge"];
const SAGAS: usize = 5;
/// Sagas with an ordering key, in the order of their submissions.
const ORDERED: [usize; 2] = [0, 1];
/// A saga whose first step waits until all is calm, which is after its deadline.
const LATE: usize = 2;
const DEADLINE: Duration = Duration::from_secs(3);
const NODES: usize = 2;
const OPEN: [SagaPhase; 2] = [SagaPhase::Forward, SagaPhase::Compensating];
/// Time for which a step waits for its agent.
const ANSWER: Duration = Duration::from_millis(400);

/// The guard that is taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// Records are written whatever version they have.
    Versions,
    /// An agent that does not answer counts as one that was not asked.
    Unknown,
    /// Compensations leave no mark for requests that come later.
    Fence,
    /// The services do not look at keys.
    Keys,
    /// Messages have no de-duplication ids.
    Ids,
    /// A status message counts as sent before its queue has accepted it.
    Acceptance,
    /// Messages have no groups.
    Groups,
    /// Messages have no deadline.
    Deadlines,
    /// No process supervises.
    Supervisor,
}

impl Without {
    fn lacks(self) -> Lacks {
        match self {
            Self::Unknown => Lacks::Unknown,
            Self::Fence => Lacks::Fence,
            Self::Keys => Lacks::Keys,
            _ => Lacks::Nothing,
        }
    }
}

/// A step that calls its service itself, or asks its agent.
#[derive(Clone)]
struct Calls {
    service: Service,
    requester: Requester,
    clock: Clock,
    /// Time until which the late saga waits.
    calm: Instant,
}

impl Calls {
    async fn ask(&self, step: &Step<u32>, what: &str, done: StepOutcome<u32>) -> StepOutcome<u32> {
        let request = AgentCall::request(step.key(), format!("{what} {}", step.action_key()), ANSWER);
        match self.requester.request(request, ANSWER).await {
            Ok(reply) if reply.body == "ok" => done,
            Ok(_) => StepOutcome::failed("the agent refuses"),
            Err(error @ RequestError::TimedOut(_)) => self.service.failed(true, &error),
            Err(RequestError::Failed(error)) => self.service.failed(error.may_have_been_applied(), &error),
            Err(error) => self.service.failed(true, &error),
        }
    }
}

impl Action<u32> for Calls {
    async fn execute(&self, step: &Step<u32>) -> StepOutcome<u32> {
        if step.id() == id(LATE) && step.name() == "seat" && self.clock.now() < self.calm {
            return StepOutcome::pending(MS(300));
        }
        step.write(Write::append("u/log/", format!("{} {}", step.id(), step.name())));
        let done = StepOutcome::changed(|n: &mut u32| *n += 1);
        if BEHIND_AGENTS.contains(&step.name()) {
            return self.ask(step, "do", done).await;
        }
        if self.service.fails(step.id(), step.name()) {
            return StepOutcome::failed("sold out");
        }
        match self.service.act(step.key(), step.action_key()).await {
            Ok(true) => done,
            Ok(false) => StepOutcome::failed("barred"),
            Err(error) => self.service.failed(error.may_have_been_applied(), &error),
        }
    }
}

impl Compensation<u32> for Calls {
    async fn compensate(&self, step: &Step<u32>) -> StepOutcome<u32> {
        if BEHIND_AGENTS.contains(&step.name()) {
            return self.ask(step, "undo", StepOutcome::completed()).await;
        }
        match self.service.undo(step.action_key()).await {
            Ok(()) => StepOutcome::completed(),
            Err(error) => self.service.failed(error.may_have_been_applied(), &error),
        }
    }
}

fn id(i: usize) -> String {
    format!("s{i}")
}

fn submission(i: usize) -> Submission<u32> {
    let submission = Submission::new(id(i), 0).reply_to("web", id(i));
    match i {
        LATE => submission.deadline(DEADLINE),
        _ if ORDERED.contains(&i) => submission.ordering_key("customer"),
        _ => submission,
    }
}

fn saga_config() -> SagaConfig {
    let retry = BackoffConfig::default().between(MS(10), MS(100));
    SagaConfig::default()
        .max_attempts(4)
        .max_compensation_attempts(10_000)
        .retry(retry)
        .compensation_retry(retry)
        .step_timeout(MS(600))
        .call_timeout(MS(100))
        .store_timeout(MS(1_000))
        .scan_interval(MS(500))
        .takeover_after(MS(2_500))
}

struct World {
    clock: Clock,
    time: ManualClock,
    entropy: Entropy,
    network: FaultNetwork,
    /// Records of the sagas, and the services' data.
    records: Arc<dyn Store>,
    services: Arc<dyn Store>,
    orders: Arc<dyn Queue>,
    couriers: Arc<dyn Queue>,
    statuses: Arc<dyn Queue>,
    /// The queues for the agents' replies, one for each process.
    replies: Vec<Arc<dyn Queue>>,
    failing: Failing,
    without: Without,
    /// The end of the faults.
    calm: Instant,
    late: Late,
    /// Sagas that were owned when their message disappeared.
    untold: Mutex<BTreeSet<String>>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    lives: AtomicU64,
    lost: AtomicU64,
    resent: Arc<AtomicU64>,
    answered: AtomicU64,
    /// Handlers of agents that ran for longer than their callers wait.
    overdue: AtomicU64,
}

impl World {
    fn new(seed: u64, without: Without) -> Self {
        let (clock, time) = Clock::manual();
        let entropy = Entropy::from_seed(seed);
        let network = services::network(&entropy, [0, 5, 20], &clock);
        let store = || Arc::new(InMemoryStore::builder().clock(&clock).build());
        let queue = |name: &str| Arc::new(InMemoryQueue::builder(name).clock(&clock).build()) as Arc<dyn Queue>;
        let replies = (0..=NODES).map(|i| queue(&format!("p{i}"))).collect();
        let failing = services::failing(&entropy, (0..SAGAS).filter(|i| *i != LATE).map(id), &STEPS);
        let calm = clock.now() + MS(7_000);
        Self {
            records: store(),
            services: store(),
            orders: queue("orders"),
            couriers: queue("couriers"),
            statuses: queue("web"),
            replies,
            failing,
            without,
            calm,
            late: Late::default(),
            untold: Mutex::default(),
            counts: Counts::default(),
            clock: clock.clone(),
            time,
            entropy,
            network,
        }
    }

    fn poor(&self, queue: Arc<dyn Queue>) -> Arc<dyn Queue> {
        let change: fn(&mut Message) = match self.without {
            Without::Ids => |message| message.deduplication_id = None,
            Without::Groups => |message| message.group = None,
            Without::Deadlines => |message| drop(message.headers.remove("expires-after")),
            _ => return queue,
        };
        Arc::new(PoorQueue::new(queue, false, change))
    }

    fn service(&self, client: &FaultClient) -> Service {
        Service::new(client.store(self.services.clone()), &self.entropy, self.without.lacks(), &self.failing)
    }

    /// A process that begins anew, whose clock runs at a rate of its own.
    fn scheduler(&self, client: &FaultClient, i: usize) -> Scheduler<u32> {
        let clock = self.time.clock_at_rate(0.9 + 0.2 * self.entropy.unit());
        let entropy = || Entropy::from_seed(self.entropy.next_u64());
        let store = client.store(self.records.clone());
        let store = if self.without == Without::Versions { poor::without_versions(store) } else { store };
        let (couriers, replies) = (client.queue(self.couriers.clone()), client.queue(self.replies[i].clone()));
        let requester =
            Requester::builder(couriers, replies, format!("p{i}")).clock(&clock).entropy(&entropy()).build();
        let call = || Calls {
            service: self.service(client),
            requester: requester.clone(),
            clock: self.clock.clone(),
            calm: self.calm + MS(20_000),
        };
        let plan =
            Plan::new().step("seat", call()).step("courier", call()).pivot("charge", call()).step("mail", call());
        let codec = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
        let saga = Saga::builder("trip", store, codec, plan, saga_config()).clock(&clock).entropy(&entropy());
        let config = SchedulerConfig::default()
            .concurrency(3)
            .visibility(MS(1_500))
            .idle(IdleConfig::between(MS(20), MS(200)))
            // Killed processes, and messages that disappear, use them up.
            .max_deliveries(1_000)
            .max_failures(1_000);
        let mut statuses = self.poor(client.queue(self.statuses.clone()));
        if self.without == Without::Acceptance {
            statuses = Arc::new(PoorQueue::new(statuses, true, |_: &mut Message| {}));
        }
        let resent = self.counts.resent.clone();
        Scheduler::builder(saga.build().unwrap(), self.poor(client.queue(self.orders.clone())), config)
            .clock(&clock)
            .entropy(&entropy())
            .replies(move |name| (name == "web").then(|| statuses.clone()))
            .rows(|id, _| vec![Write::append("u/start/", id.to_owned())])
            .on_event(move |event| {
                if matches!(event.what, SchedulerEvent::Resent { .. }) {
                    resent.fetch_add(1, Relaxed);
                }
            })
            .build()
            .unwrap()
    }

    fn agent(&self, client: &FaultClient) -> Agent {
        let config = QueueListenerConfig::default()
            .visibility(MS(1_500))
            .idle(IdleConfig::between(MS(10), MS(100)))
            .retry(BackoffConfig::default().between(MS(10), MS(100)))
            .tasks(3, 3)
            .max_attempts(1_000)
            .max_expiries(1_000);
        let replies: BTreeMap<_, _> =
            (0..=NODES).map(|i| (format!("p{i}"), client.queue(self.replies[i].clone()))).collect();
        Agent::builder(client.queue(self.couriers.clone()), config)
            .clock(&self.clock)
            .entropy(&Entropy::from_seed(self.entropy.next_u64()))
            .replies(move |name| replies.get(name).cloned())
            .build()
            .unwrap()
    }

    /// Carries out a request to an agent: `do` or `undo`, and the key of the action.
    async fn answer(&self, service: &Service, call: AgentCall) -> Result<Bytes, StoreError> {
        let until = self.clock.now() + call.left;
        if self.entropy.up_to(3) == 0 {
            self.clock.sleep(MS(self.entropy.up_to(600))).await;
        }
        if self.clock.now() > until {
            self.counts.overdue.fetch_add(1, Relaxed);
        }
        self.counts.answered.fetch_add(1, Relaxed);
        let body = String::from_utf8_lossy(&call.body).into_owned();
        let (what, action) = body.split_once(' ').unwrap();
        let step: Vec<_> = action.split('/').collect();
        if what == "undo" {
            service.undo(action).await?;
            return Ok("ok".into());
        }
        if service.fails(step[1], step[2]) {
            return Ok("sold out".into());
        }
        if self.entropy.up_to(7) == 0 {
            let at = self.clock.now() + MS(self.entropy.up_to(2_000));
            self.late.lock().unwrap().push((at, call.key, action.to_owned()));
            return pending().await;
        }
        Ok(if service.act(&call.key, action).await? { "ok".into() } else { "barred".into() })
    }

    async fn killed(&self, client: &FaultClient) {
        services::killed(&self.clock, &self.entropy, client, [1_500, 2_500]).await;
    }

    fn next_life(&self) -> FaultClient {
        self.network.client(&self.counts.lives.fetch_add(1, Relaxed).to_string())
    }

    /// One process after another, each of which dies.
    async fn process(&self, i: usize) {
        loop {
            let client = self.next_life();
            let orders = self.scheduler(&client, i);
            let supervises = async {
                match self.without {
                    Without::Supervisor => pending().await,
                    _ => orders.supervise(pending()).await.unwrap(),
                }
            };
            let callers = async {
                loop {
                    self.clock.sleep(MS(self.entropy.up_to(1_000))).await;
                    let i = self.entropy.up_to(SAGAS as u64 - 1) as usize;
                    // A caller that lost the reply submits again, and another one wakes a saga that may wait.
                    match self.entropy.up_to(1) {
                        0 => drop(orders.submit(submission(i)).await),
                        _ => drop(orders.wake(&id(i)).await),
                    }
                }
            };
            tokio::select! {
                biased;
                () = self.killed(&client) => {}
                ran = orders.run(pending()) => ran.unwrap(),
                () = supervises => {}
                () = callers => {}
            }
        }
    }

    async fn agents(&self) {
        loop {
            let client = self.next_life();
            let (agent, service) = (self.agent(&client), self.service(&client));
            tokio::select! {
                biased;
                () = self.killed(&client) => {}
                ran = agent.run(pending(), |call| self.answer(&service, call)) => ran.unwrap(),
            }
        }
    }

    /// Carries out what is late.
    async fn late(&self) {
        let service = self.service(&self.network.client("late"));
        loop {
            self.clock.sleep(MS(20)).await;
            service.carry_out(&self.late, self.clock.now()).await;
        }
    }

    /// Removes messages of sagas that run, as a purge or a damaged queue does. Those of an ordering key stay: without its
    /// message a saga keeps no place in the order.
    async fn thief(&self, orders: &Scheduler<u32>) {
        loop {
            self.clock.sleep(MS(self.entropy.up_to(2_000))).await;
            // No decision depends on the wall clock.
            self.time.set_wall(Timestamp::from_millis(self.entropy.up_to(4_000_000_000_000)));
            let Some(taken) = self.orders.receive_one(MS(1_000)).await.unwrap() else { continue };
            let id = taken.headers[SAGA_ID].clone();
            let status = orders.read(&id).await.unwrap();
            let is_open = status.as_ref().is_some_and(|status| OPEN.contains(&status.phase));
            let how = match taken.group.is_none() && is_open {
                true => Settle::Complete,
                false => Settle::release(Duration::ZERO),
            };
            if matches!(how, Settle::Complete) {
                self.counts.lost.fetch_add(1, Relaxed);
                // It may end before a supervisor finds it, and then its caller is not told.
                if status.is_some_and(|status| status.is_owned) {
                    self.untold.lock().unwrap().insert(id);
                }
            }
            self.orders.settle(vec![(taken.receipt, how)]).await.unwrap();
        }
    }

    /// Returns the violations of the scheduler's guarantees.
    fn live(&self) -> Vec<String> {
        self.time.block_on(async {
            let caller = self.scheduler(&self.network.client("caller"), NODES);
            for i in 0..SAGAS {
                // A caller submits until it is told that it did.
                while caller.submit(submission(i)).await.is_err() {}
            }
            let observer = self.observer();
            let processes = futures::future::join_all((0..NODES).map(|i| self.process(i)));
            tokio::select! {
                biased;
                () = self.clock.sleep_until(self.calm) => {}
                _ = processes => {}
                () = self.agents() => {}
                () = self.thief(&observer) => {}
                () = self.late() => {}
            }
            // One process and one agent without faults finish the rest.
            self.network.configure(FaultConfig::default()).unwrap();
            let client = self.network.client("last");
            let (orders, agent, service) = (self.scheduler(&client, NODES), self.agent(&client), self.service(&client));
            let done = async {
                for _ in 0..120 {
                    self.clock.sleep(MS(500)).await;
                    let depth =
                        self.orders.depth().await.unwrap().total() + self.couriers.depth().await.unwrap().total();
                    if depth == 0 && orders.saga().list_open().await.unwrap().iter().all(|(_, is_stuck)| *is_stuck) {
                        break;
                    }
                }
            };
            tokio::select! {
                biased;
                () = done => {}
                ran = orders.run(pending()) => ran.unwrap(),
                ran = agent.run(pending(), |call| self.answer(&service, call)) => ran.unwrap(),
                supervised = orders.supervise(pending()), if self.without != Without::Supervisor => supervised.unwrap(),
            }
            service.carry_out(&self.late, Instant::FAR_FUTURE).await;
            self.violations(&observer).await
        })
    }

    /// A process that only reads, without faults.
    fn observer(&self) -> Scheduler<u32> {
        let network = FaultNetwork::new(FaultConfig::default(), 0, &self.clock).unwrap();
        self.scheduler(&network.client("observer"), NODES)
    }

    async fn violations(&self, orders: &Scheduler<u32>) -> Vec<String> {
        let mut found = Vec::new();
        for queue in [&self.orders, &self.couriers] {
            found.extend(services::left_in(&**queue).await);
        }
        let effects = services::effects(&*self.services).await;
        let mut told: BTreeMap<String, Vec<String>> = BTreeMap::new();
        loop {
            let taken = self.statuses.receive(Receive::new(100, MS(60_000))).await.unwrap();
            if taken.is_empty() {
                break;
            }
            for taken in taken {
                told.entry(taken.headers["correlation-id"].clone()).or_default().push(taken.headers[STATUS].clone());
            }
        }
        let starts = services::texts(&*self.records, "saga/trip", "u/start/").await;
        for i in 0..SAGAS {
            let id = id(i);
            let started = starts.iter().filter(|started| **started == id).count();
            if started != 1 {
                found.push(format!("{id} was started {started} times"));
            }
            match orders.read(&id).await {
                Ok(Some(status)) => {
                    found.extend(self.of_saga(i, &status, &effects, told.get(&id).map_or(&[][..], Vec::as_slice)));
                }
                other => found.push(format!("{id} is {other:?}")),
            }
        }
        // Each row is written with the completion of its step.
        let rows = services::texts(&*self.records, "saga/trip", "u/log/").await;
        let ordered = rows.iter().filter_map(|row| ORDERED.iter().position(|i| row.starts_with(&id(*i))));
        if !ordered.is_sorted() {
            found.push(format!("sagas of one key ran beside each other: {rows:?}"));
        }
        if rows.iter().collect::<BTreeSet<_>>().len() != rows.len() {
            found.push(format!("a step was completed twice: {rows:?}"));
        }
        if self.counts.overdue.load(Relaxed) > 0 {
            found.push("an agent ran a handler for which no step waited".to_owned());
        }
        found
    }

    fn of_saga(
        &self,
        i: usize,
        status: &SagaStatus<u32>,
        effects: &BTreeMap<String, Vec<String>>,
        told: &[String],
    ) -> Vec<String> {
        let (id, mut found) = (id(i), Vec::new());
        let end = match status.phase {
            SagaPhase::Completed if status.state as usize == STEPS.len() => "completed",
            SagaPhase::Compensated => "compensated",
            SagaPhase::Stuck if status.steps[..2].iter().all(|step| step.note.is_empty()) => "stuck",
            _ => {
                found.push(format!("{id} ended with {status:?}"));
                return found;
            }
        };
        if i == LATE && status.phase != SagaPhase::Compensated {
            found.push(format!("{id} is {end} after its deadline"));
        }
        found.extend(services::wrong_effects(&id, status.phase, &STEPS, effects));
        let mut once = told.to_vec();
        once.dedup();
        let may_be_untold = self.untold.lock().unwrap().contains(&id) && once == ["received"];
        if once != ["received", end] && !may_be_untold {
            found.push(format!("{id} is {end}, and its caller was told {told:?}"));
        }
        found
    }
}

#[test]
fn each_scheduled_saga_is_started_once_ends_with_its_effects_and_tells_its_caller() {
    let seeds = super::schedules(60);
    let (mut runs, mut sums) = (0, [0; 4]);
    for_each_seed(0..seeds, |seed| {
        runs += 1;
        let world = World::new(seed, Without::Nothing);
        let violations = world.live();
        assert!(violations.is_empty(), "{violations:#?}");
        let Counts { lives, lost, resent, answered, .. } = &world.counts;
        for (sum, count) in sums.iter_mut().zip([lives, lost, resent, answered]) {
            *sum += count.load(Relaxed);
        }
    });
    let [lives, lost, resent, answered] = sums;
    println!(
        "{runs} schedules of {SAGAS} submissions: {lives} lives of processes and agents, {lost} lost messages, {resent} \
         sent again by supervisors, {answered} requests to agents; no violation"
    );
    assert!(lives > runs && answered > runs, "{sums:?}");
    assert!(runs < 20 || lost.min(resent) > runs / 10, "{sums:?}");
}

#[test]
fn a_guard_of_a_scheduler_that_is_taken_out_is_missed() {
    for without in [
        Without::Versions,
        Without::Unknown,
        Without::Fence,
        Without::Keys,
        Without::Ids,
        Without::Acceptance,
        Without::Groups,
        Without::Deadlines,
        Without::Supervisor,
    ] {
        super::assert_missed(without, super::controls(60, 300), |seed| {
            World::new(seed, without).live().into_iter().next()
        });
    }
}
