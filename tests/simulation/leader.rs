//! Leader election: no two leaders at once while pauses stay below the margin, and never a late
//! fenced write. Removing a guard is detected.
use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use steadfast::{
    entropy::Entropy,
    leader_election::{LeaderElection, LeaderElectionConfig, Term},
    lease::StoreLease,
    port::FencingToken,
    store::{InMemoryStore, Key, PutOptions, Store},
    testing::faults::{FaultClient, FaultConfig, FaultNetwork, for_each_seed},
    time::{Clock, Instant, ManualClock},
};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// The largest relative error of clock rates, between two nodes.
const DRIFT: f64 = 0.02;

/// The guards that are removed from the nodes, to show that each is needed.
#[derive(Clone, Copy, Default)]
struct Without {
    /// Removes the margin and the allowance for clock drift; pauses stay as long as with them.
    margin: bool,
    /// Removes the resource's check of the token.
    token: bool,
}

/// The result of a schedule.
#[derive(Default, Clone, Copy)]
struct Tally {
    terms: u64,
    writes: u64,
    refused: u64,
    overlaps: u64,
    late_writes: u64,
}

/// In a third of the schedules the store is slower than the margin, and calls are given the time.
fn is_slow(seed: u64) -> bool {
    seed % 3 == 2
}

fn config(without: Without, slow: bool) -> LeaderElectionConfig {
    let config = LeaderElectionConfig::default()
        .term(MS(1000))
        .renew_every(MS(250))
        .call_timeout(MS(if slow { 500 } else { 200 }))
        .grace(MS(50))
        .margin(MS(100))
        .clock_drift(DRIFT)
        .poll(MS(150));
    if without.margin { config.margin(Duration::ZERO).clock_drift(0.0).grace(Duration::ZERO) } else { config }
}

/// One process: its clock, its connection and its task.
struct Node {
    election: Option<LeaderElection>,
    running: Option<Pin<Box<dyn Future<Output = ()>>>>,
    terms: Arc<Mutex<Vec<Term>>>,
    client: FaultClient,
    clock: Clock,
    paused_until: Option<Instant>,
    restarts_at: Option<Instant>,
}

struct World {
    time: ManualClock,
    entropy: Entropy,
    store: Arc<InMemoryStore>,
    network: FaultNetwork,
    nodes: Vec<Node>,
    config: LeaderElectionConfig,
    without: Without,
    long_pauses: bool,
    /// Highest token among the writes that the resource accepted.
    highest: Option<FencingToken>,
    /// Nodes that have checked that they lead, and the time at which each acts.
    acts: Vec<(usize, Instant)>,
    /// Tokens of all terms in the order in which they began, also of nodes that were killed since.
    entered: Arc<Mutex<Vec<FencingToken>>>,
    tally: Tally,
}

const RESOURCE: Key<'static> = Key::new("resource", "log");

impl World {
    fn new(seed: u64, without: Without, long_pauses: bool) -> Self {
        let (clock, time) = Clock::manual();
        let entropy = Entropy::from_seed(seed);
        let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
        // A quarter of the schedules has no network faults, the others a random rate.
        let share = entropy.unit() * 0.3 * f64::from(u8::from(!seed.is_multiple_of(4)));
        let slowest = if seed.is_multiple_of(2) { 10 } else { 150 };
        let slowest = MS(entropy.up_to(if is_slow(seed) { 400 } else { slowest }));
        let faults = FaultConfig::default().errors(share).lost_replies(share).doubled(share).late(share);
        let faults = faults.latency(Duration::ZERO, slowest);
        let network = FaultNetwork::new(faults, entropy.next_u64(), &clock).unwrap();
        let nodes = (0..2 + entropy.up_to(2)).map(|i| {
            // The rates of two clocks differ by at most DRIFT.
            let rate = 1.0 + DRIFT * 0.49 * (2.0 * entropy.unit() - 1.0);
            Node {
                election: None,
                running: None,
                terms: Arc::default(),
                client: network.client(&format!("node-{i}")),
                clock: time.clock_at_rate(rate),
                paused_until: None,
                restarts_at: Some(time.now() + MS(entropy.up_to(300))),
            }
        });
        let nodes = nodes.collect();
        let (highest, acts, entered, tally) = (None, Vec::new(), Arc::default(), Tally::default());
        Self {
            time,
            entropy,
            store,
            network,
            nodes,
            config: config(without, is_slow(seed)),
            without,
            long_pauses,
            highest,
            acts,
            entered,
            tally,
        }
    }

    /// Starts a node's process: a new candidate whose task writes to the resource from time to
    /// time.
    fn start(&mut self, i: usize) {
        let store = self.nodes[i].client.store(self.store.clone());
        let leases = StoreLease::builder(store).clock(&self.nodes[i].clock).build().unwrap();
        let election = LeaderElection::builder(Arc::new(leases), "leader", self.config)
            .candidate("same") // all have the same id and differ by the random number
            .clock(&self.nodes[i].clock)
            .entropy(&Entropy::from_seed(self.entropy.next_u64()))
            .build()
            .unwrap();
        let node = &mut self.nodes[i];
        node.election = Some(election.clone());
        let (terms, entered) = (node.terms.clone(), self.entered.clone());
        let rests = self.entropy.up_to(3) == 0;
        let clock = node.clock.clone();
        node.running = Some(Box::pin(async move {
            let ran = election.run(std::future::pending(), async |term: Term| {
                terms.lock().unwrap().push(term.clone());
                entered.lock().unwrap().push(term.token());
                if rests {
                    // Some tasks end by themselves, which releases the lease.
                    clock.sleep(MS(700)).await;
                } else {
                    term.lost().await;
                }
            });
            ran.await.unwrap();
        }));
    }

    /// Polls the running nodes until all are pending.
    fn settle(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..4 {
            for node in self.nodes.iter_mut().filter(|node| node.paused_until.is_none()) {
                if let Some(running) = &mut node.running {
                    assert!(running.as_mut().poll(&mut cx) == Poll::Pending, "a node never stops running");
                }
            }
        }
    }

    /// Counts the nodes that consider themselves the leader at this instant.
    fn look(&mut self) {
        let leaders = self.nodes.iter().filter_map(|node| node.election.as_ref()).filter(|e| e.is_leader()).count();
        if leaders > 1 {
            self.tally.overlaps += 1;
        }
    }

    /// Writes under a leader's token at once. Without `asks` it skips the check, like a process
    /// that was paused after it.
    fn write(&mut self, i: usize, asks: bool) {
        let Some(term) = self.nodes[i].terms.lock().unwrap().last().cloned() else { return };
        if asks && !term.is_leader() {
            return;
        }
        let token = term.token();
        let options = if self.without.token { PutOptions::new() } else { PutOptions::new().fence(token) };
        let written = self.time.block_on(self.store.put(RESOURCE, token.to_string().into(), options));
        self.tally.writes += 1;
        match written {
            Ok(_) if self.highest.is_some_and(|highest| token < highest) => self.tally.late_writes += 1,
            Ok(_) => self.highest = Some(token),
            Err(error) => {
                assert!(error.is_fenced(), "{error}");
                self.tally.refused += 1;
            }
        }
    }

    /// Lets a leader check that it leads, pause for less than the margin, and act.
    fn look_then_act(&mut self, i: usize) {
        let node = &mut self.nodes[i];
        if node.paused_until.is_none() && node.election.as_ref().is_some_and(LeaderElection::is_leader) {
            let at = self.time.now() + MS(self.entropy.up_to(95));
            node.paused_until = Some(at);
            self.acts.push((i, at));
        }
    }

    /// Performs the acts that are due; no other node may lead then.
    fn act(&mut self) {
        let now = self.time.now();
        let (due, later) = std::mem::take(&mut self.acts).into_iter().partition(|(_, at)| *at <= now);
        self.acts = later;
        let due: Vec<(usize, Instant)> = due;
        for (i, _) in due {
            let leads =
                |(j, node): (usize, &Node)| j != i && node.election.as_ref().is_some_and(LeaderElection::is_leader);
            if self.nodes.iter().enumerate().any(leads) {
                self.tally.overlaps += 1;
            }
            self.write(i, false);
        }
    }

    /// Injects a random event at a node.
    fn disturb(&mut self, calm: bool) {
        let i = self.entropy.up_to(self.nodes.len() as u64 - 1) as usize;
        let now = self.time.now();
        match self.entropy.up_to(if calm { 3 } else { 19 }) {
            0 => self.write(i, true),
            1 => (0..self.nodes.len()).for_each(|i| self.look_then_act(i)),
            2 => self.write(i, !self.long_pauses),
            4 => {
                // Killed, to be restarted later.
                let node = &mut self.nodes[i];
                (node.running, node.election, node.paused_until) = (None, None, None);
                node.terms.lock().unwrap().clear();
                self.acts.retain(|(j, _)| *j != i);
                node.restarts_at = Some(now + MS(self.entropy.up_to(1500)));
            }
            // A paused node continues at the end of its pause: it does nothing between check and act.
            5 | 6 if self.nodes[i].running.is_some() && self.nodes[i].paused_until.is_none() => {
                let longest = if self.long_pauses { 3000 } else { 95 };
                self.nodes[i].paused_until = Some(now + MS(self.entropy.up_to(longest)));
            }
            7 => self.nodes[i].client.cut(),
            // The leader is disconnected and must notice it by itself.
            13 | 14 => {
                let leads = |node: &&Node| node.election.as_ref().is_some_and(LeaderElection::is_leader);
                self.nodes.iter().filter(leads).for_each(|node| node.client.cut());
            }
            8..=10 => self.nodes[i].client.heal(),
            11 if self.long_pauses => {
                // The record is deleted behind the lease.
                let deleted = self.store.delete(Key::new("leases", "lease leader"), Default::default());
                self.time.block_on(deleted).unwrap();
            }
            12 => {
                let leases = StoreLease::builder(self.store.clone()).clock(&self.time.clock()).build().unwrap();
                use steadfast::lease::Lease;
                if let Some(held) = self.time.block_on(leases.read("leader")).unwrap() {
                    self.time.block_on(leases.request_release("leader", held.token)).unwrap();
                }
            }
            _ => {}
        }
    }

    /// Checks that, without faults, a leader is elected within a few terms.
    fn comes_to_a_leader(&mut self) {
        self.network.configure(FaultConfig::default()).unwrap();
        for node in &mut self.nodes {
            node.client.heal();
            node.paused_until = None;
        }
        for i in 0..self.nodes.len() {
            if self.nodes[i].restarts_at.take().is_some() {
                self.start(i);
            }
        }
        let end = self.time.now() + MS(6000);
        let mut led = false;
        self.settle();
        while let Some(at) = self.time.next_timer().filter(|at| *at <= end) {
            self.time.advance_to(at);
            self.settle();
            self.look();
            led |= self.nodes.iter().any(|node| node.election.as_ref().is_some_and(LeaderElection::is_leader));
        }
        assert!(led, "no node leads although there are no faults");
    }

    fn run(mut self) -> Tally {
        // Faults for a while, then none, so that a leader must be elected.
        for step in 0..120 {
            let now = self.time.now();
            for i in 0..self.nodes.len() {
                let node = &mut self.nodes[i];
                node.paused_until = node.paused_until.filter(|until| now < *until);
                if node.restarts_at.is_some_and(|at| now >= at) {
                    node.restarts_at = None;
                    self.start(i);
                }
            }
            // A node that was paused is checked before it has run again.
            self.look();
            self.settle();
            self.look();
            self.disturb(step > 90);
            if step == 90 {
                self.nodes.iter().for_each(|node| node.client.heal());
            }
            let next = self.time.now() + MS(5 + self.entropy.up_to(60));
            // Advances from timer to timer, so that each node runs about when it is due.
            loop {
                let timer = self.time.next_timer().filter(|at| *at <= next);
                let act = self.acts.iter().map(|(_, at)| *at).min().filter(|at| *at <= next);
                let Some(at) = timer.into_iter().chain(act).min() else { break };
                self.time.advance_to(at);
                self.settle();
                self.look();
                self.act();
            }
            self.time.advance_to(next);
        }
        self.comes_to_a_leader();
        let entered = self.entered.lock().unwrap();
        self.tally.terms = entered.len() as u64;
        let different: std::collections::BTreeSet<_> = entered.iter().collect();
        assert_eq!(different.len(), entered.len(), "no token comes twice");
        // After a deletion, a grant whose reply was in flight may begin after a later one.
        assert!(self.long_pauses || self.without.margin || entered.is_sorted(), "tokens grow from term to term");
        drop(entered);
        self.tally
    }
}

/// Returns the number of schedules of each kind.
fn schedules() -> u64 {
    super::schedules(500)
}

fn add(all: &mut Tally, one: Tally) {
    all.terms += one.terms;
    all.writes += one.writes;
    all.refused += one.refused;
    all.overlaps += one.overlaps;
    all.late_writes += one.late_writes;
}

/// Runs this many seeds of one kind, half of them on another thread.
fn run(seeds: u64, long_pauses: bool) -> Tally {
    let part = |from: u64, to: u64| {
        let mut all = Tally::default();
        for_each_seed(from..to, |seed| {
            let tally = World::new(seed, Without::default(), long_pauses).run();
            assert!(long_pauses || tally.overlaps == 0, "two leaders at once");
            assert_eq!(tally.late_writes, 0, "a late write was accepted");
            add(&mut all, tally);
        });
        all
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| part(seeds / 2, seeds));
        let mut all = part(0, seeds / 2);
        add(&mut all, other.join().unwrap());
        all
    })
}

// Guarantee: leader_election 1.
#[test]
fn no_two_leaders_at_once_while_pauses_stay_below_the_margin() {
    let all = run(schedules(), false);
    println!(
        "{} schedules: {} terms, {} writes, {} refused, no overlap",
        schedules(),
        all.terms,
        all.writes,
        all.refused
    );
    super::assert_met(all.terms > schedules() && all.writes > schedules(), (all.terms, all.writes));
}

// Guarantee: leader_election 1.
#[test]
fn no_late_write_is_accepted_however_long_a_leader_is_paused() {
    let all = run(schedules(), true);
    println!("{} schedules: {} terms, {} writes, {} refused", schedules(), all.terms, all.writes, all.refused);
    super::assert_met(all.refused > schedules() / 100, all.refused);
}

/// Returns the number of seeds, of 1,000, whose result is `broken`.
fn violations(without: Without, long_pauses: bool, broken: impl Fn(&Tally) -> bool) -> u64 {
    (0..1000).filter(|seed| broken(&World::new(*seed, without, long_pauses).run())).count() as u64
}

#[test]
fn without_the_margin_the_simulation_finds_two_leaders() {
    let found = violations(Without { margin: true, ..Without::default() }, false, |tally| tally.overlaps > 0);
    println!("without the margin: {found} of 1,000 schedules have two leaders");
    assert!(found > 0);
}

#[test]
fn without_the_token_the_simulation_finds_a_late_write() {
    let found = violations(Without { token: true, ..Without::default() }, true, |tally| tally.late_writes > 0);
    println!("without the token: {found} of 1,000 schedules accept a late write");
    assert!(found > 0);
}

#[test]
fn a_seed_replays_its_schedule() {
    let run = |seed| {
        let Tally { terms, writes, refused, .. } = World::new(seed, Without::default(), true).run();
        (terms, writes, refused)
    };
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed));
    }
    assert!(
        catch_unwind(AssertUnwindSafe(|| for_each_seed(3..4, |_| std::panic::resume_unwind(Box::new("found")))))
            .is_err()
    );
}
