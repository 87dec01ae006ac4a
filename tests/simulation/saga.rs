//! Sagas under seeded schedules: requests to the store and to the services that come late, twice, or not at all,
//! processes that die, and pauses beyond the time after which a saga is taken over. Each saga ends with all of its effects
//! once or with none, no action takes effect after its compensation, and no former owner writes after a newer one. With a
//! guard taken out this is violated.
use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Waker},
    time::Duration,
};

use steadfast::{
    backoff::BackoffConfig,
    codec::Codec,
    entropy::Entropy,
    port::Failure,
    saga::{Action, Compensation, Plan, Saga, SagaConfig, SagaOutcome, SagaPhase, Step, StepOutcome},
    store::{InMemoryStore, Store, StoreError, Write},
    testing::faults::{FaultClient, FaultConfig, FaultNetwork, for_each_seed},
    time::{Clock, Instant, ManualClock},
};

use super::{
    poor,
    services::{self, Failing, Lacks, Late, Service, Strikes},
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const STEPS: [&str; 5] = ["seat", "room", "car", "charge", "mail"];
const SAGAS: usize = 3;
const NODES: usize = 3;

/// The guard that is taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// Records are written whatever version they have.
    Versions,
    /// A request without a reply counts as one without an effect.
    Unknown,
    /// The services forget that an action was compensated.
    Fence,
    /// The services do not look at keys.
    Keys,
}

impl Without {
    fn lacks(self) -> Lacks {
        match self {
            Self::Unknown => Lacks::Unknown,
            Self::Fence => Lacks::Fence,
            Self::Keys => Lacks::Keys,
            Self::Nothing | Self::Versions => Lacks::Nothing,
        }
    }
}

/// A step at a service.
#[derive(Clone)]
struct Calls {
    service: Service,
    entropy: Entropy,
    clock: Clock,
    late: Late,
}

impl Calls {
    fn outcome<T>(&self, applied: Result<T, StoreError>, done: impl FnOnce(T) -> StepOutcome<u32>) -> StepOutcome<u32> {
        match applied {
            Ok(answer) => done(answer),
            Err(error) => self.service.failed(error.may_have_been_applied(), &error),
        }
    }

    async fn wait(&self) {
        self.clock.sleep(MS(self.entropy.up_to(60))).await;
    }
}

impl Action<u32> for Calls {
    async fn execute(&self, step: &Step<u32>) -> StepOutcome<u32> {
        if self.service.fails(step.id(), step.name()) {
            self.wait().await;
            return StepOutcome::failed("sold out");
        }
        if self.entropy.up_to(7) == 0 {
            let at = self.clock.now() + MS(self.entropy.up_to(1_500));
            self.late.lock().unwrap().push((at, step.key().to_owned(), step.action_key().to_owned()));
            return self.service.failed(true, &"no reply");
        }
        let applied = self.service.act(step.key(), step.action_key()).await;
        step.write(Write::append("u/log/", format!("{} {} {}", step.id(), step.name(), step.token())));
        self.outcome(applied, |took_effect| match took_effect {
            true => StepOutcome::changed(|n: &mut u32| *n += 1),
            false => StepOutcome::failed("barred"),
        })
    }
}

impl Compensation<u32> for Calls {
    async fn compensate(&self, step: &Step<u32>) -> StepOutcome<u32> {
        self.wait().await;
        self.outcome(self.service.undo(step.action_key()).await, |()| StepOutcome::completed())
    }
}

type Node = Pin<Box<dyn Future<Output = ()>>>;

struct World {
    clock: Clock,
    time: ManualClock,
    entropy: Entropy,
    network: FaultNetwork,
    /// Records of the sagas, and the services' data.
    records: Arc<dyn Store>,
    services: Arc<dyn Store>,
    failing: Failing,
    without: Without,
    taken_over: Arc<Mutex<u64>>,
    late: Late,
}

fn config() -> SagaConfig {
    let retry = BackoffConfig::default().between(MS(10), MS(100));
    SagaConfig::default()
        .max_attempts(6)
        .max_compensation_attempts(10_000)
        .retry(retry)
        .compensation_retry(retry)
        .step_timeout(MS(300))
        .call_timeout(MS(100))
        .store_timeout(MS(1_000))
        .scan_interval(MS(200))
        .takeover_after(MS(600))
}

fn id(i: usize) -> String {
    format!("s{i}")
}

impl World {
    fn new(seed: u64, without: Without) -> Self {
        let (clock, time) = Clock::manual();
        let entropy = Entropy::from_seed(seed);
        let network = services::network(&entropy, [1, 20, 90], &clock);
        let new = || Arc::new(InMemoryStore::builder().clock(&clock).build());
        let failing = services::failing(&entropy, (0..SAGAS).map(id), &STEPS);
        let (records, services) = (new(), new());
        let (taken_over, late) = (Arc::default(), Arc::default());
        Self { clock: clock.clone(), time, entropy, network, records, services, failing, without, taken_over, late }
    }

    /// Applies the late requests that are due.
    fn apply_late(&self, until: Instant) {
        let service = Service::new(self.services.clone(), &Entropy::from_seed(0), self.without.lacks(), &self.failing);
        self.time.block_on(service.carry_out(&self.late, until));
    }

    /// A process that begins anew: another executor.
    fn saga(&self, client: &FaultClient) -> Saga<u32> {
        let store = client.store(self.records.clone());
        let store = if self.without == Without::Versions { poor::without_versions(store) } else { store };
        let services = client.store(self.services.clone());
        let call = || Calls {
            service: Service::new(services.clone(), &self.entropy, self.without.lacks(), &self.failing),
            entropy: Entropy::from_seed(self.entropy.next_u64()),
            clock: self.clock.clone(),
            late: self.late.clone(),
        };
        let plan = Plan::new()
            .step("seat", call())
            .parallel(|plan| plan.step("room", call()).step("car", call()))
            .pivot("charge", call())
            .step("mail", call());
        let codec = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
        let taken_over = self.taken_over.clone();
        Saga::builder("trip", store, codec, plan, config())
            .clock(&self.clock)
            .entropy(&Entropy::from_seed(self.entropy.next_u64()))
            .on_event(move |event| {
                if matches!(event.what, steadfast::saga::SagaEvent::TakenOver { .. }) {
                    *taken_over.lock().unwrap() += 1;
                }
            })
            .build()
            .unwrap()
    }

    /// Runs sagas until it dies.
    fn node(&self, client: &FaultClient, i: usize) -> Node {
        let (saga, clock) = (self.saga(client), self.clock.clone());
        let entropy = Entropy::from_seed(self.entropy.next_u64());
        Box::pin(async move {
            let recovers = saga.recover(std::future::pending());
            let runs = async {
                for turn in 0.. {
                    let id = id((i + turn) % SAGAS);
                    if entropy.up_to(9) == 0 {
                        let _ = saga.cancel(&id, "cancelled").await;
                    } else {
                        let _ = saga.run(&id, 0).await;
                    }
                    clock.sleep(MS(entropy.up_to(300))).await;
                }
            };
            tokio::select! {
                biased;
                () = runs => {}
                _ = recovers => {}
            }
        })
    }

    fn live(self) -> Vec<String> {
        let clients: Vec<_> = (0..NODES).map(|i| self.network.client(&format!("node-{i}"))).collect();
        let mut nodes: Vec<Node> = (0..NODES).map(|i| self.node(&clients[i], i)).collect();
        let mut cx = Context::from_waker(Waker::noop());
        let mut settle = |nodes: &mut Vec<Node>| {
            for _ in 0..4 {
                for node in nodes.iter_mut() {
                    let _ = node.as_mut().poll(&mut cx);
                }
            }
        };
        settle(&mut nodes);
        let end = self.clock.now() + MS(6_000);
        let mut strikes = Strikes::new(self.clock.now(), NODES, (50, 300), 1_500);
        while let Some(at) = self.time.next_timer().filter(|at| *at <= end) {
            self.time.advance_to(at);
            let now = self.clock.now();
            self.apply_late(now);
            if let Some(dead) = strikes.strike(now, &clients, &self.entropy) {
                nodes[dead] = self.node(&clients[dead], dead);
            }
            settle(&mut nodes);
        }
        drop(nodes);
        // What is on its way arrives, and one process without faults finishes the rest.
        let calm = FaultConfig::default();
        self.network.configure(calm).unwrap();
        let healthy = self.network.client("last");
        let saga = self.saga(&healthy);
        let mut ends = Vec::new();
        for i in 0..SAGAS {
            let ended = self.time.block_on(saga.run(&id(i), 0));
            ends.push(ended);
        }
        self.apply_late(Instant::FAR_FUTURE);
        self.time.block_on(self.network.deliver_late());
        self.violations(&ends)
    }

    fn violations(&self, ends: &[Result<SagaOutcome<u32>, steadfast::saga::SagaError>]) -> Vec<String> {
        let effects = self.time.block_on(services::effects(&*self.services));
        let rows = self.time.block_on(services::texts(&*self.records, "saga/trip", "u/log/"));
        let mut found = Vec::new();
        let mut tokens: BTreeMap<String, u64> = BTreeMap::new();
        let mut writes: BTreeMap<(String, String), u32> = BTreeMap::new();
        for line in rows {
            let [id, step, token] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let token: u64 = token.parse().unwrap();
            let last = tokens.entry(id.to_owned()).or_default();
            if token < *last {
                found.push(format!("{id}: a write of epoch {token} after one of {last}"));
            }
            *last = token.max(*last);
            *writes.entry((id.to_owned(), step.to_owned())).or_default() += 1;
        }
        for (i, end) in ends.iter().enumerate() {
            let id = id(i);
            let phase = match end {
                Ok(SagaOutcome::Completed(n)) if *n as usize == STEPS.len() => SagaPhase::Completed,
                Ok(SagaOutcome::Compensated { .. }) => SagaPhase::Compensated,
                Ok(SagaOutcome::Stuck { step, .. }) if step == "charge" || step == "mail" => SagaPhase::Stuck,
                other => {
                    found.push(format!("{id} ended with {other:?}"));
                    continue;
                }
            };
            found.extend(services::wrong_effects(&id, phase, &STEPS, &effects));
            for step in STEPS {
                let writes = writes.get(&(id.clone(), step.to_owned())).copied().unwrap_or_default();
                if writes > 1 || phase == SagaPhase::Completed && writes != 1 {
                    found.push(format!("{id}: {writes} rows of {step}"));
                }
            }
        }
        found
    }
}

#[test]
fn each_saga_ends_with_all_its_effects_once_or_with_none() {
    let seeds = super::schedules(100);
    let mut taken_over = 0;
    for_each_seed(0..seeds, |seed| {
        let world = World::new(seed, Without::Nothing);
        let count = world.taken_over.clone();
        let violations = world.live();
        assert!(violations.is_empty(), "{violations:#?}");
        taken_over += *count.lock().unwrap();
    });
    println!("{seeds} schedules of {SAGAS} sagas: {taken_over} times taken over; no violation");
    super::assert_met(taken_over > seeds, taken_over);
}

#[test]
fn a_guard_that_is_taken_out_is_missed() {
    for without in [Without::Versions, Without::Unknown, Without::Fence, Without::Keys] {
        super::assert_missed(without, super::controls(100, 300), |seed| {
            World::new(seed, without).live().into_iter().next()
        });
    }
}
