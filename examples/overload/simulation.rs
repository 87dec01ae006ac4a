//! A service under three times its capacity, on a manual clock: minutes pass in a moment, and every run is the same.
use std::{cell::RefCell, collections::BTreeMap, sync::Arc, sync::Mutex, time::Duration};

use steadfast::{
    Cause, Pipeline, Priority,
    call::{Policy, with_priority},
    entropy::Entropy,
    throttling::{AdaptiveLimitConfig, AdaptiveLimiter, PriorityShares, Shedder, ShedderConfig},
    time::{Clock, Instant},
    timeout::Timeout,
};

/// Concurrent requests of the service; each takes 100 ms on average, so it serves 100 a second.
const WORKERS: usize = 10;
const CAPACITY: f64 = 100.0;
/// Time after which a response is useless.
const PATIENCE: Duration = Duration::from_secs(1);
/// Duration of a step of the figures, in seconds.
pub(crate) const STEP: u64 = 5;

/// Start of the overload.
pub(crate) const BEGINS: u64 = 20;
/// End of the overload.
pub(crate) const ENDS: u64 = 80;
/// End of the simulation.
pub(crate) const LASTS: u64 = 120;

pub(crate) const CLASSES: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];

/// Requests per second: three times the capacity during the overload.
fn rate(class: Priority, second: u64) -> f64 {
    let overload = (BEGINS..ENDS).contains(&second);
    let share = match (class, overload) {
        (Priority::High, _) => 0.4,
        (Priority::Normal, true) => 1.0,
        (Priority::Low, true) => 1.6,
        (_, _) => 0.1,
    };
    share * CAPACITY
}

/// The protection that clients use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Client {
    /// A time-out only.
    Naive,
    /// An adaptive limit with shares by priority.
    Limiter,
    /// Load shedding while the service reports a long queue.
    Shedder,
}

/// Results of the requests of one class in one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) offered: u32,
    pub(crate) served: u32,
    /// Refused at once.
    pub(crate) shed: u32,
    /// Not served in time.
    pub(crate) late: u32,
}

/// Results of all requests.
#[derive(Debug, PartialEq)]
pub(crate) struct Report {
    /// By step and class.
    pub(crate) steps: Vec<[Count; 3]>,
    /// Latencies of served high requests during the overload, sorted.
    pub(crate) high_latencies: Vec<Duration>,
}

impl Report {
    /// Returns the results of a class between two times.
    pub(crate) fn of(&self, class: Priority, from: u64, to: u64) -> Count {
        let at = CLASSES.iter().position(|c| *c == class).unwrap_or_default();
        let steps = &self.steps[(from / STEP) as usize..(to / STEP) as usize];
        steps.iter().fold(Count::default(), |sum, step| Count {
            offered: sum.offered + step[at].offered,
            served: sum.served + step[at].served,
            shed: sum.shed + step[at].shed,
            late: sum.late + step[at].late,
        })
    }

    /// Returns the served requests of each step.
    pub(crate) fn served(&self) -> Vec<u32> {
        self.steps.iter().map(|step| step.iter().map(|count| count.served).sum()).collect()
    }

    pub(crate) fn high_p99(&self) -> Duration {
        self.high_latencies.get(self.high_latencies.len() * 99 / 100).copied().unwrap_or_default()
    }
}

/// A service with a fixed number of workers, which serves requests in order of arrival, abandoned ones included.
struct Service {
    clock: Clock,
    random: Entropy,
    /// Time at which each worker is free.
    free: Mutex<Vec<Instant>>,
}

impl Service {
    async fn serve(&self) -> Result<(), ()> {
        let done = {
            let mut free = self.free.lock().map_err(|_| ())?;
            let worker = free.iter_mut().min().ok_or(())?;
            let takes = Duration::from_secs_f64(0.05 + 0.1 * self.random.unit());
            *worker = (*worker).max(self.clock.now()) + takes;
            *worker
        };
        self.clock.sleep_until(done).await;
        Ok(())
    }

    /// Returns the wait of a request that arrives now, in seconds.
    fn backlog(&self) -> f64 {
        let free = self.free.lock().map(|free| free.iter().min().copied().unwrap_or_default()).unwrap_or_default();
        (free - self.clock.now()).as_secs_f64()
    }
}

/// Simulates the requests of these classes with this protection.
pub(crate) fn run(client: Client, classes: &[Priority], seed: u64) -> Report {
    let (clock, time) = Clock::manual();
    let service = Arc::new(Service {
        clock: clock.clone(),
        random: Entropy::from_seed(seed),
        free: Mutex::new(vec![clock.now(); WORKERS]),
    });
    // Each class has its own random stream: alone, it sends the same requests.
    let arrivals: BTreeMap<(Instant, usize), Priority> =
        classes.iter().flat_map(|class| arrivals(*class, clock.now(), seed)).collect();
    let timeout = Timeout::builder(PATIENCE).clock(&clock).build();
    let entropy = Entropy::from_seed(seed);
    match client {
        Client::Naive => time.block_on(all(Pipeline::new().then(timeout), &clock, &service, &arrivals)),
        Client::Limiter => {
            let config = AdaptiveLimitConfig::default().shares(PriorityShares::default());
            let limiter = limiter(config, &clock, &entropy);
            time.block_on(all(Pipeline::new().then(timeout).then(limiter), &clock, &service, &arrivals))
        }
        Client::Shedder => {
            let watched = service.clone();
            let config = ShedderConfig::default().limit("backlog", 0.1, 0.5);
            let shedder = shedder(config, &clock, &entropy, move || watched.backlog());
            time.block_on(all(Pipeline::new().then(timeout).then(shedder), &clock, &service, &arrivals))
        }
    }
}

fn limiter(config: AdaptiveLimitConfig, clock: &Clock, entropy: &Entropy) -> Option<AdaptiveLimiter> {
    AdaptiveLimiter::builder(config).clock(clock).entropy(entropy).build().ok()
}

fn shedder(
    config: ShedderConfig,
    clock: &Clock,
    entropy: &Entropy,
    backlog: impl Fn() -> f64 + Send + Sync + 'static,
) -> Option<Shedder> {
    Shedder::builder(config).gauge("backlog", backlog).clock(clock).entropy(entropy).build().ok()
}

/// Arrival times of a class's requests: random, at its rate.
fn arrivals(class: Priority, start: Instant, seed: u64) -> Vec<((Instant, usize), Priority)> {
    let stream = class as usize;
    let random = Entropy::from_seed(seed.wrapping_mul(31).wrapping_add(stream as u64));
    let (mut at, mut all) = (0.0, Vec::new());
    loop {
        at += -(1.0 - random.unit()).ln() / rate(class, at as u64);
        if at >= LASTS as f64 {
            return all;
        }
        let number = all.len() * Priority::ALL.len() + stream;
        all.push(((start + Duration::from_secs_f64(at), number), class));
    }
}

/// Sends each request at its time, and counts its result.
async fn all(
    pipeline: Pipeline<impl Policy>,
    clock: &Clock,
    service: &Service,
    arrivals: &BTreeMap<(Instant, usize), Priority>,
) -> Report {
    let start = clock.now();
    let report = RefCell::new(Report {
        steps: vec![<[Count; 3]>::default(); (LASTS / STEP) as usize],
        high_latencies: Vec::new(),
    });
    let request = async |at: Instant, class: Priority| {
        clock.sleep_until(at).await;
        let result = pipeline.call(with_priority(class, || service.serve())).await;
        let second = (at - start).as_secs();
        let mut report = report.borrow_mut();
        let count = &mut report.steps[(second / STEP) as usize][CLASSES.iter().position(|c| *c == class).unwrap_or(0)];
        count.offered += 1;
        match result.map_err(|error| error.into_cause()) {
            Err(Cause::Rejected(_)) => count.shed += 1,
            Err(_) => count.late += 1,
            Ok(()) => {
                count.served += 1;
                if class == Priority::High && (BEGINS..ENDS).contains(&second) {
                    report.high_latencies.push(clock.now() - at);
                }
            }
        }
    };
    futures::future::join_all(arrivals.iter().map(|((at, _), class)| request(*at, *class))).await;
    let mut report = report.into_inner();
    report.high_latencies.sort();
    report
}
