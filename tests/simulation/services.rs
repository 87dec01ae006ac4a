//! The world outside of the simulations of sagas, schedulers, filters and streams: a faulty network, processes that are
//! killed, and services that carry out requests once, some of them late.
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use steadfast::{
    entropy::Entropy,
    queue::Queue,
    saga::{Executed, Participant, SagaPhase, StepOutcome},
    store::{Scan, Store, StoreError, StoreExt, Write},
    testing::faults::{FaultClient, FaultConfig, FaultNetwork},
    time::{Clock, Instant},
};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// What happens to processes beside the faults of their messages: one of them dies, or its network stands still, is cut or heals.
pub(crate) struct Strikes {
    next: Instant,
    /// Milliseconds from one to the next: at least so many, and up to so many more.
    gap: (u64, u64),
    /// Milliseconds of the longest standstill, which lets others take over.
    longest: u64,
    paused: Vec<Option<Instant>>,
}

impl Strikes {
    pub(crate) fn new(first: Instant, count: usize, gap: (u64, u64), longest: u64) -> Self {
        Self { next: first, gap, longest, paused: vec![None; count] }
    }

    /// Ends the standstills that are over, and strikes if it is time. Returns the process that died, for the caller to begin anew.
    pub(crate) fn strike(&mut self, now: Instant, clients: &[FaultClient], entropy: &Entropy) -> Option<usize> {
        for (client, paused) in clients.iter().zip(&mut self.paused) {
            if paused.is_some_and(|at| at <= now) {
                client.resume();
                *paused = None;
            }
        }
        if now < self.next {
            return None;
        }
        self.next = now + MS(self.gap.0 + entropy.up_to(self.gap.1));
        let i = entropy.up_to(clients.len() as u64 - 1) as usize;
        match entropy.up_to(5) {
            0 | 1 => return Some(i),
            2 => {
                clients[i].pause();
                self.paused[i] = Some(now + MS(entropy.up_to(self.longest)));
            }
            3 => clients[i].cut(),
            _ => clients[i].heal(),
        }
        None
    }
}

/// Returns a network with shares of faults and one of these latencies, which the seed determines.
pub(crate) fn network(entropy: &Entropy, latencies: [u64; 3], clock: &Clock) -> FaultNetwork {
    let share = |most: f64| most * entropy.unit();
    let faults =
        FaultConfig::default().errors(share(0.1)).lost_replies(share(0.2)).doubled(share(0.1)).late(share(0.9));
    let faults = faults.latency(MS(0), MS(latencies[entropy.up_to(2) as usize]));
    FaultNetwork::new(faults, entropy.next_u64(), clock).unwrap()
}

/// Waits for the end of a life, which is paused and cut off now and then, at most this long before and at each time.
pub(crate) async fn killed(clock: &Clock, entropy: &Entropy, client: &FaultClient, [before, long]: [u64; 2]) {
    for _ in 0..entropy.up_to(4) {
        clock.sleep(MS(entropy.up_to(before))).await;
        match entropy.up_to(3) {
            0 => client.cut(),
            // Often beyond its leases.
            1 => client.pause(),
            _ => continue,
        }
        clock.sleep(MS(entropy.up_to(long))).await;
        client.resume();
        client.heal();
    }
}

/// Returns what is left in a queue and among its dead letters, as a violation.
pub(crate) async fn left_in(queue: &dyn Queue) -> Option<String> {
    let (left, dead) = (queue.depth().await.unwrap(), queue.dead_letters().unwrap().peek(10).await.unwrap());
    (left.total() > 0 || !dead.is_empty())
        .then(|| format!("queue {}: {left:?}, dead letters {dead:?}", queue.identity()))
}

/// Returns the rows below this prefix, as text.
pub(crate) async fn texts(store: &dyn Store, partition: &str, prefix: &str) -> Vec<String> {
    let rows = store.scan_all(Scan::partition(partition).prefix(prefix)).await.unwrap();
    rows.iter().map(|row| String::from_utf8_lossy(&row.value).into_owned()).collect()
}

/// Steps that always fail, by saga and step.
pub(crate) type Failing = Arc<BTreeSet<(String, &'static str)>>;

/// Draws one step of six that fails.
pub(crate) fn failing(entropy: &Entropy, sagas: impl Iterator<Item = String>, steps: &[&'static str]) -> Failing {
    let of = |id: String| steps.iter().filter(|_| entropy.up_to(5) == 0).map(move |step| (id.clone(), *step));
    Arc::new(sagas.flat_map(of).collect())
}

/// Actions that a slow service carries out when its caller has given up: their times, and the keys of the request and of
/// its action.
pub(crate) type Late = Arc<Mutex<Vec<(Instant, String, String)>>>;

/// The guard that is taken out of the services or of their callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lacks {
    Nothing,
    /// A request without a reply counts as one without an effect.
    Unknown,
    /// Compensations leave no mark for requests that come later.
    Fence,
    /// The services do not look at keys.
    Keys,
}

/// The service of a step, as the process that calls it sees it. It applies requests once.
#[derive(Clone)]
pub(crate) struct Service {
    participant: Participant,
    entropy: Entropy,
    lacks: Lacks,
    failing: Failing,
}

fn noted(what: &str, key: &str) -> Vec<Write> {
    vec![Write::append("log/", format!("{what} {key}"))]
}

impl Service {
    /// Creates a service over its own store.
    pub(crate) fn new(store: Arc<dyn Store>, entropy: &Entropy, lacks: Lacks, failing: &Failing) -> Self {
        let participant = Participant::new(store, "services").unwrap();
        Self { participant, entropy: Entropy::from_seed(entropy.next_u64()), lacks, failing: failing.clone() }
    }

    pub(crate) fn fails(&self, id: &str, step: &str) -> bool {
        self.failing.iter().any(|(saga, name)| saga == id && *name == step)
    }

    /// Carries a request out: `true` if it took effect, now or before.
    pub(crate) async fn act(&self, key: &str, action: &str) -> Result<bool, StoreError> {
        let key = match self.lacks {
            Lacks::Keys => format!("{key}#{}", self.entropy.next_u64()),
            _ => key.to_owned(),
        };
        let executed = self.participant.execute(&key, noted("do", action), "ok").await?;
        Ok(matches!(executed, Executed::Applied | Executed::AlreadyApplied(_)))
    }

    pub(crate) async fn undo(&self, action: &str) -> Result<(), StoreError> {
        // Without the fence it undoes what is there, and leaves no mark if nothing is.
        if self.lacks == Lacks::Fence && self.participant.reply(action).await?.is_none() {
            return Ok(());
        }
        self.participant.compensate(action, noted("undo", action)).await.map(drop)
    }

    /// Returns the outcome of a request that failed.
    pub(crate) fn failed(&self, may_have_been_applied: bool, error: &impl ToString) -> StepOutcome<u32> {
        match may_have_been_applied && self.lacks != Lacks::Unknown {
            true => StepOutcome::unknown(error.to_string()),
            false => StepOutcome::not_sent(error.to_string()),
        }
    }

    /// Carries out the late requests that are due, those that fail later.
    pub(crate) async fn carry_out(&self, late: &Late, until: Instant) {
        let due: Vec<_> = late.lock().unwrap().extract_if(.., |(at, ..)| *at <= until).collect();
        for (at, key, action) in due {
            if self.act(&key, &action).await.is_err() {
                late.lock().unwrap().push((at, key, action));
            }
        }
    }
}

/// Returns what the services did, in order, by the key of the action.
pub(crate) async fn effects(services: &dyn Store) -> BTreeMap<String, Vec<String>> {
    let mut effects: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in texts(services, "services", "log/").await {
        let (what, key) = line.split_once(' ').unwrap();
        effects.entry(key.to_owned()).or_default().push(what.to_owned());
    }
    effects
}

/// Returns a violation for each step of a saga that ended in this phase without all of its effects, or with some of them.
/// The steps `charge` and `mail` have no compensation.
pub(crate) fn wrong_effects(
    id: &str,
    phase: SagaPhase,
    steps: &[&str],
    effects: &BTreeMap<String, Vec<String>>,
) -> Vec<String> {
    let wrong = |step: &&&str| {
        let effects: Vec<_> =
            effects.get(&format!("trip/{id}/{step}")).into_iter().flatten().map(String::as_str).collect();
        let has_compensation = !matches!(**step, "charge" | "mail");
        let holds = match phase {
            SagaPhase::Completed => effects == ["do"],
            SagaPhase::Compensated if has_compensation => effects.is_empty() || effects == ["do", "undo"],
            SagaPhase::Compensated => effects.is_empty(),
            _ if has_compensation => effects == ["do"],
            _ => effects.is_empty() || effects == ["do"],
        };
        (!holds).then(|| format!("{id} is {phase:?}, and {step}: {effects:?}"))
    };
    steps.iter().filter_map(|step| wrong(&step)).collect()
}
