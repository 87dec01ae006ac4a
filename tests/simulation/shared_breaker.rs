//! Processes that share openings of their breakers, and crash, stall, or are cut off, with clocks
//! that run at different rates.
//!
//! No breaker opens with fewer others than agreed, or stays open with them for longer than they
//! reported. After all faults have ended, the processes follow each other again.
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::poor::Poor;
use steadfast::{
    circuit_breaker::{
        CircuitBreaker, CircuitBreakerConfig, SharedCircuitBreaker, SharedCircuitBreakerConfig,
        SharedCircuitBreakerEvent as Event, State,
    },
    entropy::Entropy,
    notify::{InMemoryNotifier, Notifier},
    observe::Subscription,
    store::{InMemoryStore, PutOptions, Store},
    testing::faults::{FaultClient, FaultConfig, FaultNetwork, for_each_seed},
    time::{Clock, Instant, ManualClock},
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const PROCESSES: usize = 4;
const CALL: Duration = Duration::from_millis(200);
const STALE: Duration = Duration::from_millis(2_000);
/// Maximum drift of a clock, and of any time here.
const DRIFT: f64 = 0.02;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Mechanism that is removed, to check that violations are found.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Without {
    Nothing,
    /// Reports of processes that are gone do not expire.
    Ending,
    /// One report opens a breaker, though two were agreed on.
    Agreement,
}

/// Opening by a process's own rules: its start, its planned end, and its actual end.
#[derive(Debug, Clone, Copy)]
struct Own {
    from: Instant,
    until: Instant,
    ended: Instant,
}

struct Process {
    name: String,
    client: FaultClient,
    shared: SharedCircuitBreaker,
    events: Subscription<Event>,
    task: Task,
    rate: f64,
    /// Number of steps for which the process stands still.
    stalled: u64,
    stall: Duration,
    longest_stall: Duration,
    cut_at: Option<Instant>,
    own: Vec<Own>,
}

struct World {
    time: ManualClock,
    entropy: Entropy,
    store: Arc<dyn Store>,
    notifier: Arc<InMemoryNotifier>,
    config: SharedCircuitBreakerConfig,
    agreed: usize,
    processes: Vec<Process>,
    openings: u64,
    followed: u64,
    violations: Vec<String>,
}

impl World {
    fn new(seed: u64, without: Without) -> Self {
        let (clock, time) = Clock::manual();
        let entropy = Entropy::from_seed(seed);
        let trouble = entropy.unit() * 0.15;
        let faults = FaultConfig::default()
            .errors(trouble)
            .lost_replies(trouble)
            .doubled(trouble)
            .latency(Duration::ZERO, MS(entropy.up_to(60)));
        let network = FaultNetwork::new(faults, entropy.next_u64(), &clock).unwrap();
        let agreed = 1 + (seed % 3) as usize;
        let quorum = if without == Without::Agreement { 1 } else { agreed as u32 };
        let config =
            SharedCircuitBreakerConfig::default().quorum(quorum).poll(MS(500)).stale_after(STALE).call_timeout(CALL);
        let mut world = Self {
            time,
            entropy,
            store: Arc::new(Poor::new(
                InMemoryStore::builder().clock(&clock).build(),
                move |options: &mut PutOptions| {
                    options.ttl = options.ttl.filter(|_| without != Without::Ending);
                },
            )),
            notifier: Arc::new(InMemoryNotifier::new()),
            config,
            agreed,
            processes: Vec::new(),
            openings: 0,
            followed: 0,
            violations: Vec::new(),
        };
        for i in 0..PROCESSES {
            let name = format!("process-{i}");
            let process = world.start(name.clone(), network.client(&name), Vec::new(), None);
            world.processes.push(process);
        }
        world
    }

    fn start(&self, name: String, client: FaultClient, own: Vec<Own>, cut_at: Option<Instant>) -> Process {
        let rate = 1.0 + DRIFT * (2.0 * self.entropy.unit() - 1.0);
        let clock = self.time.clock_at_rate(rate);
        let breaker = CircuitBreaker::builder(CircuitBreakerConfig::default())
            .clock(&clock)
            .entropy(&Entropy::from_seed(self.entropy.next_u64()))
            .build()
            .unwrap();
        let store = client.store(self.store.clone());
        let mut shared = SharedCircuitBreaker::builder(breaker, store, "payments", self.config).process(&name);
        if self.entropy.up_to(1) == 0 {
            let notifier: Arc<dyn Notifier> = client.notifier(self.notifier.clone());
            shared = shared.notifier(notifier);
        }
        let shared = shared.build().unwrap();
        let (events, runs) = (shared.events(), shared.clone());
        let task: Task = Box::pin(async move { runs.run(std::future::pending()).await });
        Process {
            name,
            client,
            shared,
            events,
            task,
            rate,
            stalled: 0,
            stall: Duration::ZERO,
            longest_stall: Duration::ZERO,
            cut_at,
            own,
        }
    }

    /// Opens the breaker of a process by its own rules.
    fn open(&mut self, i: usize, how_long: Duration) {
        let now = self.time.now();
        let process = &mut self.processes[i];
        let until = now + how_long.div_f64(process.rate);
        end(&mut process.own, now);
        process.own.push(Own { from: now, until, ended: until });
        process.shared.breaker().force_open(how_long);
        self.openings += 1;
    }

    fn close(&mut self, i: usize) {
        let now = self.time.now();
        end(&mut self.processes[i].own, now);
        self.processes[i].shared.breaker().close();
    }

    fn crash(&mut self, i: usize) {
        let now = self.time.now();
        let process = &mut self.processes[i];
        end(&mut process.own, now);
        let (name, client) = (process.name.clone(), process.client.clone());
        let (own, cut_at) = (std::mem::take(&mut process.own), process.cut_at);
        let longest_stall = self.processes[i].longest_stall;
        self.processes[i] = self.start(name, client, own, cut_at);
        self.processes[i].longest_stall = longest_stall;
    }

    fn disturb(&mut self) {
        let i = self.entropy.up_to(PROCESSES as u64 - 1) as usize;
        let how_long = MS(500 + self.entropy.up_to(7_500));
        let now = self.time.now();
        match self.entropy.up_to(99) {
            0..=7 => self.open(i, how_long),
            8..=11 => self.close(i),
            12..=14 => self.crash(i),
            15..=18 => self.processes[i].stalled = self.entropy.up_to(60),
            19 | 20 => {
                self.processes[i].client.cut();
                self.processes[i].cut_at.get_or_insert(now);
            }
            21..=25 => self.heal(i),
            26 | 27 => self.processes[i].client.pause(),
            28..=35 => self.processes[i].client.resume(),
            // A call comes, which probes if the open time is over.
            36..=60 => {
                let breaker = self.processes[i].shared.breaker().clone();
                if let Ok(permit) = breaker.try_acquire() {
                    permit.record(steadfast::Verdict::success());
                }
            }
            _ => {}
        }
        for process in &mut self.processes {
            process.stalled = process.stalled.saturating_sub(1);
        }
    }

    fn heal(&mut self, i: usize) {
        self.processes[i].client.heal();
        self.processes[i].cut_at = None;
    }

    fn settle(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..3 {
            for i in 0..PROCESSES {
                if self.processes[i].stalled == 0 {
                    let _: Poll<()> = self.processes[i].task.as_mut().poll(&mut cx);
                }
            }
        }
        for i in 0..PROCESSES {
            while let Ok(Some(event)) = self.processes[i].events.try_recv() {
                if let Event::OpenedWithOthers { open_for, .. } = event.what {
                    self.judge(i, open_for);
                }
            }
        }
    }

    /// Checks whether this process may have opened with others now, for this time.
    fn judge(&mut self, i: usize, open_for: Duration) {
        self.followed += 1;
        let (now, rate) = (self.time.now(), self.processes[i].rate);
        // Maximum age of a report: its lifetime, and the time of one write and one read.
        let beyond = (STALE + CALL * 2).mul_f64(1.0 + 2.0 * DRIFT) + MS(1);
        let mut open: Vec<Instant> = Vec::new();
        for (j, other) in self.processes.iter().enumerate() {
            // The process may have stalled while it wrote.
            let beyond = beyond + other.longest_stall;
            let counts = |own: &&Own| own.from <= now && now <= own.ended + beyond;
            let latest = other.own.iter().filter(counts).map(|own| own.until + beyond).max();
            open.extend(latest.filter(|_| j != i));
        }
        open.sort_unstable_by(|a, b| b.cmp(a));
        if open.len() < self.agreed {
            let what = format!("{i} opened with {} others, {} were agreed on", open.len(), self.agreed);
            return self.violations.push(what);
        }
        let (until, longest) = (now + open_for.div_f64(rate), open[self.agreed - 1]);
        if until > longest {
            self.violations
                .push(format!("{i} at {now:?} is open until {until:?}, so many others until {longest:?} at most"));
        }
        if self.processes[i].cut_at.is_some_and(|at| now > at + CALL * 2) {
            self.violations.push(format!("{i} opened with others though it was cut off from the store"));
        }
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

    fn run(mut self, without: Without) -> (u64, u64, Vec<String>) {
        for _ in 0..600 {
            self.disturb();
            let by = MS(self.entropy.up_to(120));
            for process in &mut self.processes {
                process.stall = if process.stalled > 0 { process.stall + by } else { Duration::ZERO };
                process.longest_stall = process.longest_stall.max(process.stall);
            }
            self.advance(by);
        }
        if without == Without::Nothing {
            self.come_to_rest();
        }
        (self.openings, self.followed, self.violations)
    }

    /// Ends all faults, opens as many breakers as agreed, and checks that all others follow.
    fn come_to_rest(&mut self) {
        for i in 0..PROCESSES {
            self.heal(i);
            self.processes[i].client.resume();
            self.processes[i].stalled = 0;
        }
        self.advance(MS(12_000));
        (0..PROCESSES).for_each(|i| self.close(i));
        self.advance(MS(6_000));
        (0..self.agreed).for_each(|i| self.open(i, MS(30_000)));
        self.advance(MS(10_000));
        for (i, process) in self.processes.iter().enumerate() {
            if process.shared.breaker().state() != State::Open {
                self.violations.push(format!("{i} does not follow though {} are open", self.agreed));
            }
        }
    }
}

/// Ends the last opening now, if it has not ended before.
fn end(own: &mut [Own], now: Instant) {
    if let Some(last) = own.last_mut() {
        last.ended = last.ended.min(now);
    }
}

fn run(seeds: u64, without: Without) -> (u64, u64, u64) {
    let (mut found, mut openings, mut followed) = (0, 0, 0);
    for_each_seed(0..seeds, |seed| {
        let (own, with_others, violations) = World::new(seed, without).run(without);
        assert!(without != Without::Nothing || violations.is_empty(), "{violations:#?}");
        found += u64::from(!violations.is_empty());
        openings += own;
        followed += with_others;
    });
    (found, openings, followed)
}

// Guarantee: circuit_breaker 11.
#[test]
fn no_process_opens_with_others_that_are_not_open() {
    let seeds = super::schedules(100);
    let (_, openings, followed) = run(seeds, Without::Nothing);
    println!("{seeds} schedules: {openings} openings, {followed} with others; no violation");
    super::assert_met(followed > seeds * 5 && openings > seeds * 20, (openings, followed));
}

// Guarantee: circuit_breaker 11.
#[test]
fn violations_are_found_without_expiry_or_agreement() {
    for without in [Without::Ending, Without::Agreement] {
        let seeds = super::controls(100, 1_000);
        let (found, ..) = run(seeds, without);
        println!("without {without:?}: {found} of {seeds} schedules");
        assert!(found > 0, "{without:?}");
    }
}
