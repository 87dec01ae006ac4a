//! Processes that share a rate limit through a store crash, stall, begin with wrong clocks and lose
//! the store. Together they never admit more than the limit and its stated slack.
use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::poor::Poor;
use steadfast::{
    entropy::Entropy,
    store::{InMemoryStore, Precondition, PutOptions, Store},
    testing::faults::{FaultClient, FaultConfig, FaultNetwork, for_each_seed},
    throttling::{Quota, SharedRateLimitConfig, SharedRateLimiter, WhenDown},
    time::{Clock, Instant, ManualClock, Timestamp},
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const PROCESSES: usize = 3;
/// The limit, per second.
const RATE: f64 = 100.0;
const WALL: u64 = 1_800_000_000_000;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The guard that is disabled, to see that its absence is noticed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Without {
    Nothing,
    /// The store ignores conflicting writes.
    Comparing,
    /// The store forgets rows before they expire.
    Lasting,
}

struct Process {
    client: FaultClient,
    limiter: SharedRateLimiter,
    tasks: Vec<Task>,
    /// Number of steps for which the process does not run.
    stalled: u64,
}

struct World {
    time: ManualClock,
    clock: Clock,
    entropy: Entropy,
    store: Arc<dyn Store>,
    config: SharedRateLimitConfig,
    /// Maximum lead of a wall clock when a process begins, and relative speed error of a clock.
    skew: Duration,
    drift: f64,
    processes: Vec<Process>,
    starts: u64,
    asked: u64,
    admitted: Arc<Mutex<Vec<Instant>>>,
}

#[derive(Default)]
struct Truth {
    asked: u64,
    admitted: u64,
    /// Use of the allowed maximum in the fullest window.
    fullest: f64,
    violation: Option<String>,
}

impl World {
    fn new(seed: u64, without: Without) -> Self {
        let (clock, time) = Clock::manual();
        let entropy = Entropy::from_seed(seed);
        let trouble = entropy.unit() * 0.1;
        let faults = FaultConfig::default()
            .errors(trouble)
            .lost_replies(trouble)
            .doubled(trouble)
            .late(trouble)
            .latency(Duration::ZERO, MS(entropy.up_to(15)));
        let network = FaultNetwork::new(faults, entropy.next_u64(), &clock).unwrap();
        let store: Arc<dyn Store> =
            Arc::new(Poor::new(InMemoryStore::builder().clock(&clock).build(), move |options: &mut PutOptions| {
                match without {
                    Without::Nothing => {}
                    Without::Comparing => options.when = Precondition::Any,
                    Without::Lasting => options.ttl = options.ttl.map(|ttl| ttl / 8 + MS(1)),
                }
            }));
        let quota = Quota::per_second(RATE as u32).burst(5 + entropy.up_to(45) as u32);
        let config = SharedRateLimitConfig::from(quota).call_timeout(MS(80)).rest(MS(entropy.up_to(200)));
        let config = config.when_down(WhenDown::FailClosed);
        let config = if seed.is_multiple_of(2) { config } else { config.leased(MS(100)) };
        let config = if seed % 8 < 4 { config } else { config.when_down(WhenDown::LocalShare(1.0 / 3.0)) };
        let (skew, drift) =
            if seed % 4 < 2 { (Duration::ZERO, 0.0) } else { (MS(entropy.up_to(200)), entropy.unit() * 0.005) };
        let mut world = Self {
            time,
            clock,
            entropy,
            store,
            config,
            skew,
            drift,
            processes: Vec::new(),
            starts: 0,
            asked: 0,
            admitted: Arc::default(),
        };
        for i in 0..PROCESSES {
            let process = world.start(network.client(&format!("process-{i}")));
            world.processes.push(process);
        }
        world
    }

    /// Starts a process, whatever the wall clock reads at that moment: it may have jumped.
    fn start(&mut self, client: FaultClient) -> Process {
        self.starts += 1;
        let entropy = &self.entropy;
        let now = self.clock.now().as_nanos() / 1_000_000;
        let ahead = entropy.up_to(self.skew.as_millis() as u64);
        let clock = if self.drift > 0.0 {
            self.time.clock_at_rate(1.0 + self.drift * (2.0 * entropy.unit() - 1.0))
        } else {
            self.clock.clone()
        };
        let limiter = SharedRateLimiter::builder(client.store(self.store.clone()), "payments", self.config)
            .clock(&clock)
            .wall_time(Timestamp::from_millis(WALL + now + ahead))
            .build()
            .unwrap();
        let ahead = limiter.clone();
        let ahead: Task = Box::pin(async move { ahead.run(std::future::pending()).await });
        Process { client, limiter, tasks: vec![ahead], stalled: 0 }
    }

    fn call(&mut self, i: usize) {
        let (limiter, clock, admitted) = (self.processes[i].limiter.clone(), self.clock.clone(), self.admitted.clone());
        self.asked += 1;
        self.processes[i].tasks.push(Box::pin(async move {
            if limiter.acquire().await.is_ok() {
                admitted.lock().unwrap().push(clock.now());
            }
        }));
    }

    fn disturb(&mut self) {
        let entropy = self.entropy.clone();
        let i = entropy.up_to(PROCESSES as u64 - 1) as usize;
        match entropy.up_to(199) {
            0 => self.processes[i] = self.start(self.processes[i].client.clone()),
            1..=5 => self.processes[i].stalled = entropy.up_to(40),
            6..=8 => self.processes[i].client.cut(),
            9..=19 => self.processes[i].client.heal(),
            20 | 21 => self.processes[i].client.pause(),
            22..=35 => self.processes[i].client.resume(),
            _ => {
                // Occasionally many calls at once.
                let calls = if entropy.up_to(20) == 0 { 40 } else { entropy.up_to(4) };
                (0..calls).for_each(|_| self.call(i));
            }
        }
        for process in &mut self.processes {
            process.stalled = process.stalled.saturating_sub(1);
        }
    }

    fn settle(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..3 {
            for process in self.processes.iter_mut().filter(|process| process.stalled == 0) {
                process.tasks.retain_mut(|task| task.as_mut().poll(&mut cx) == Poll::Pending);
            }
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

    fn run(mut self) -> Truth {
        for _ in 0..1000 {
            self.disturb();
            let by = MS(self.entropy.up_to(8));
            self.advance(by);
        }
        let admitted = std::mem::take(&mut *self.admitted.lock().unwrap());
        // The fullest window of any length: its admitted calls minus what the limit gives in its
        // time.
        let drift = 1.0 + self.drift;
        let (mut least, mut beyond) = (f64::MAX, 0.0_f64);
        for (i, at) in admitted.iter().enumerate() {
            let before = i as f64 - RATE * drift * (*at - admitted[0]).as_secs_f64();
            least = least.min(before);
            beyond = beyond.max(before + 1.0 - least);
        }
        let burst = f64::from(self.config.quota().largest());
        let mut allowed = burst + f64::from(self.config.slack(Duration::ZERO));
        // Each process that begins with a wrong clock may cost the difference once.
        let wrong =
            self.skew.as_secs_f64() + 2.0 * self.drift * (self.time.now() - Instant::from_nanos(0)).as_secs_f64();
        allowed += (self.starts - 1) as f64 * (RATE * wrong).min(burst).ceil();
        if let WhenDown::LocalShare(share) = self.config.when_down {
            let seconds = (self.time.now() - admitted.first().copied().unwrap_or_default()).as_secs_f64();
            allowed += self.starts as f64 * (share * burst + 1.0) + share * RATE * seconds * PROCESSES as f64 + 1.0;
        }
        let violation = (beyond > allowed + 1e-6).then(|| format!("{beyond} beyond the limit, {allowed} are allowed"));
        Truth { asked: self.asked, admitted: admitted.len() as u64, fullest: beyond / allowed, violation }
    }
}

fn run(seeds: u64, without: Without) -> (u64, Truth) {
    let (mut found, mut all) = (0, Truth::default());
    for_each_seed(0..seeds, |seed| {
        let truth = World::new(seed, without).run();
        if let (Without::Nothing, Some(violation)) = (without, &truth.violation) {
            panic!("{violation}");
        }
        found += u64::from(truth.violation.is_some());
        all.asked += truth.asked;
        all.admitted += truth.admitted;
        all.fullest = all.fullest.max(truth.fullest);
    });
    (found, all)
}

// Guarantee: throttling 9.
#[test]
fn no_more_pass_than_the_limit_and_its_slack_whatever_fails() {
    let seeds = super::schedules(40);
    let (_, Truth { asked, admitted, fullest, .. }) = run(seeds, Without::Nothing);
    println!(
        "{seeds} schedules: {asked} calls, {admitted} admitted; the fullest window had {:.0} % of burst and slack; no violation",
        fullest * 100.0
    );
    super::assert_met(admitted > seeds * 100 && asked > admitted * 2, (asked, admitted));
}

// Guarantee: throttling 9.
#[test]
fn without_a_guard_more_pass() {
    for without in [Without::Comparing, Without::Lasting] {
        let seeds = super::controls(40, 1_000);
        let (found, _) = run(seeds, without);
        println!("without {without:?}: {found} of {seeds} schedules");
        assert!(found > 0, "{without:?}");
    }
}
