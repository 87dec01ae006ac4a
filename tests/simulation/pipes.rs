//! Chains of three filters under seeded schedules: requests that are lost, doubled and late, processes that die and that
//! are paused beyond their leases, and queues that are full. The last queue receives each message once, and those of a
//! group in order. With a guard taken out this is violated.
use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use steadfast::{
    backoff::BackoffConfig,
    entropy::Entropy,
    pipes_and_filters::{Emit, Filter, LINEAGE},
    queue::{InMemoryQueue, Message, Queue, QueueError, QueueFuture, Receipt, Receive, Settle},
    queue_listener::{IdleConfig, QueueListenerConfig, Work},
    testing::faults::{FaultClient, FaultConfig, FaultNetwork, for_each_seed},
    time::{Clock, ManualClock},
};

use super::{poor::PoorQueue, services};

const MS: fn(u64) -> Duration = Duration::from_millis;
const MESSAGES: usize = 12;
const NODES: usize = 2;
const FILTERS: usize = 3;

/// The guard that is taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// A forward ends its message and then sends the results, in two requests.
    OneStep,
    /// A message ends before its results are accepted.
    Acceptance,
    /// Results have no de-duplication ids.
    Ids,
    /// The window of the queues is shorter than the time of redeliveries.
    Window,
    /// Results lose their groups.
    Groups,
}

/// An input whose forwards are two steps.
#[derive(Debug)]
struct TwoSteps {
    queue: Arc<dyn Queue>,
    target: Arc<dyn Queue>,
}

impl Queue for TwoSteps {
    forward_queue! { queue: capabilities, identity, address, send, receive, extend, depth, peek, purge, dead_letters }

    fn settle<'a>(&'a self, settlements: Vec<(Receipt, Settle)>) -> QueueFuture<'a, Vec<Result<(), QueueError>>> {
        Box::pin(async move {
            let mut results = Vec::new();
            let split = |(receipt, how)| match how {
                Settle::Forward { messages } => {
                    results.extend(messages.into_iter().map(|(_, message)| message));
                    (receipt, Settle::Complete)
                }
                other => (receipt, other),
            };
            let settled = self.queue.settle(settlements.into_iter().map(split).collect()).await?;
            if !results.is_empty() {
                self.target.send(results).await?;
            }
            Ok(settled)
        })
    }
}

struct World {
    clock: Clock,
    time: ManualClock,
    entropy: Entropy,
    network: FaultNetwork,
    queues: Vec<Arc<dyn Queue>>,
    seed: u64,
    without: Without,
    lives: AtomicU64,
}

impl World {
    fn new(seed: u64, without: Without) -> Self {
        let (clock, time) = Clock::manual();
        let entropy = Entropy::from_seed(seed);
        let faults =
            FaultConfig::default().errors(0.05).lost_replies(0.1).doubled(0.1).late(0.1).latency(MS(1), MS(200));
        let network = FaultNetwork::new(faults, seed, &clock).unwrap();
        let window = if without == Without::Window { MS(1_500) } else { MS(900_000) };
        let queue = |at: usize| {
            // Those between two filters are full now and then.
            let bound = if (1..FILTERS).contains(&at) { 3 } else { 1_000 };
            let queue = InMemoryQueue::builder(at.to_string()).bounded(bound).deduplicating_for(window);
            Arc::new(queue.clock(&clock).build()) as Arc<dyn Queue>
        };
        let queues = (0..=FILTERS).map(queue).collect();
        Self { clock, time, entropy, network, queues, seed, without, lives: AtomicU64::new(0) }
    }

    /// Returns `true` if the results of this filter are sent before their message ends: all, none, or those of one filter.
    fn is_sent(&self, at: usize) -> bool {
        match self.without {
            Without::OneStep => false,
            Without::Nothing | Without::Groups => match self.seed % 3 {
                0 => false,
                1 => true,
                _ => at == 1,
            },
            _ => true,
        }
    }

    /// Returns an output of another engine, with a guard taken out.
    fn elsewhere(&self, queue: Arc<dyn Queue>) -> Arc<dyn Queue> {
        let change: fn(&mut Message) = match self.without {
            Without::Ids => |message| message.deduplication_id = None,
            Without::Groups => |message| message.group = None,
            _ => |_| {},
        };
        Arc::new(PoorQueue::new(queue, self.without == Without::Acceptance, change))
    }

    fn filter(&self, client: &FaultClient, at: usize) -> Filter {
        let config = QueueListenerConfig::default()
            .visibility(MS(3_000))
            .idle(IdleConfig::between(MS(50), MS(500)))
            .retry(BackoffConfig::default().between(MS(50), MS(500)))
            .busy(BackoffConfig::default().between(MS(20), MS(200)))
            .handler_timeout(MS(2_000))
            .tasks(2, 2)
            .batch(4)
            // Killed processes use them up.
            .max_attempts(100)
            .max_expiries(1_000);
        let (input, target) = (client.queue(self.queues[at].clone()), client.queue(self.queues[at + 1].clone()));
        let input = match self.without {
            Without::OneStep => Arc::new(TwoSteps { queue: input, target: target.clone() }),
            _ => input,
        };
        let output = match self.is_sent(at) || self.without == Without::Groups {
            true => self.elsewhere(target),
            false => target,
        };
        let filter = Filter::builder(format!("f{at}"), input, config).output(output);
        let filter = if self.without == Without::Window { filter.allow_duplicates() } else { filter };
        filter.clock(&self.clock).entropy(&self.entropy).build().unwrap()
    }

    async fn handle(&self, work: Work) -> Result<Emit, &'static str> {
        if self.entropy.up_to(3) == 0 {
            self.clock.sleep(MS(self.entropy.up_to(900))).await;
        }
        if self.entropy.up_to(19) == 0 {
            return Err("bad luck");
        }
        Ok(Emit::one(Message::new(work.body.clone())))
    }

    /// One process after another, each of which runs all filters and dies.
    async fn process(&self) {
        loop {
            let life = self.lives.fetch_add(1, Relaxed);
            let client = self.network.client(&life.to_string());
            let filters = [0, 1, 2].map(|at| self.filter(&client, at));
            let run = |filter: &Filter| {
                let filter = filter.clone();
                async move { filter.run(pending(), |work| self.handle(work)).await }
            };
            let killed = services::killed(&self.clock, &self.entropy, &client, [2_000, 4_000]);
            tokio::select! {
                biased;
                () = killed => {}
                ran = async { tokio::try_join!(run(&filters[0]), run(&filters[1]), run(&filters[2])) } => drop(ran.unwrap()),
            }
        }
    }

    async fn left(&self) -> u64 {
        let mut left = 0;
        for queue in &self.queues[..FILTERS] {
            left += queue.depth().await.unwrap().total();
        }
        left
    }

    /// Returns the violations of the chain's guarantees.
    fn live(&self) -> Vec<String> {
        let message = |i: usize| {
            let message = Message::new(i.to_string());
            if i.is_multiple_of(3) { message } else { message.group(format!("g{}", i % 3)) }
        };
        self.time.block_on(async {
            self.queues[0].send((0..MESSAGES).map(message).collect()).await.unwrap();
            let troubled = async {
                let processes = (0..NODES).map(|_| self.process());
                let ends = self.clock.sleep(MS(8_000 + self.entropy.up_to(15_000)));
                tokio::select! { biased; () = ends => {}, _ = futures::future::join_all(processes) => {} }
            };
            troubled.await;
            // One process without faults finishes the rest.
            self.network.configure(FaultConfig::default()).unwrap();
            let client = self.network.client("last");
            let filters = [0, 1, 2].map(|at| self.filter(&client, at));
            let done = async || {
                for _ in 0..200 {
                    self.clock.sleep(MS(500)).await;
                    if self.left().await == 0 {
                        break;
                    }
                }
            };
            let run = |filter: &Filter| {
                let filter = filter.clone();
                async move { filter.run(done(), |work| self.handle(work)).await }
            };
            tokio::try_join!(run(&filters[0]), run(&filters[1]), run(&filters[2])).unwrap();
            self.violations().await
        })
    }

    async fn violations(&self) -> Vec<String> {
        let mut found = Vec::new();
        for queue in &self.queues[..FILTERS] {
            found.extend(services::left_in(&**queue).await);
        }
        let (mut groups, mut ids, mut all): (BTreeMap<String, Vec<usize>>, _, _) =
            (BTreeMap::new(), BTreeSet::new(), Vec::new());
        loop {
            let taken = self.queues[FILTERS].receive(Receive::new(100, MS(10_000))).await.unwrap();
            if taken.is_empty() {
                break;
            }
            for taken in taken {
                self.queues[FILTERS].settle(vec![(taken.receipt, Settle::Complete)]).await.unwrap();
                let i: usize = String::from_utf8_lossy(&taken.body).parse().unwrap();
                all.push(i);
                ids.insert(taken.headers[LINEAGE].clone());
                if !i.is_multiple_of(3) {
                    groups.entry(format!("g{}", i % 3)).or_default().push(i);
                }
            }
        }
        for (group, came) in groups {
            if !came.is_sorted() {
                found.push(format!("{group} came as {came:?}"));
            }
        }
        all.sort_unstable();
        if all != (0..MESSAGES).collect::<Vec<_>>() || ids.len() != MESSAGES {
            found.push(format!("{} lineage ids of {all:?}", ids.len()));
        }
        found
    }
}

#[test]
fn the_last_queue_of_a_chain_receives_each_message_once_and_in_order() {
    let seeds = super::schedules(100);
    let mut lives = 0;
    for_each_seed(0..seeds, |seed| {
        let world = World::new(seed, Without::Nothing);
        let violations = world.live();
        assert!(violations.is_empty(), "{violations:#?}");
        lives += world.lives.load(Relaxed);
    });
    println!(
        "{seeds} schedules of {MESSAGES} messages over {FILTERS} filters: {lives} lives of processes; no violation"
    );
    super::assert_met(lives > 2 * seeds, lives);
}

#[test]
fn a_guard_of_a_filter_that_is_taken_out_is_missed() {
    for without in [Without::OneStep, Without::Acceptance, Without::Ids, Without::Window, Without::Groups] {
        super::assert_missed(without, super::controls(50, 300), |seed| {
            World::new(seed, without).live().into_iter().next()
        });
    }
}
