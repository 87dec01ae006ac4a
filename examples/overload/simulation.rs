//! A service of fixed capacity under three times that, on a clock that is moved by hand: minutes in a moment, the same in every run.
use std::{cell::RefCell, collections::BTreeMap, sync::Arc, sync::Mutex, time::Duration};

use steadfast::{
    Cause, Pipeline, Priority,
    call::{Policy, with_priority},
    entropy::Entropy,
    throttling::{AdaptiveLimitConfig, AdaptiveLimiter, PriorityShares, Shedder, ShedderConfig},
    time::{Clock, Instant},
    timeout::Timeout,
};

/// How many requests the service works on at once; each takes 100 ms on average, so it serves 100 a second.
const WORKERS: usize = 10;
const CAPACITY: f64 = 100.0;
/// What comes later is of no use to anybody.
const PATIENCE: Duration = Duration::from_secs(1);
/// Figures are of so many seconds each.
pub(crate) const STEP: u64 = 5;

/// The overload lasts from here,
pub(crate) const BEGINS: u64 = 20;
/// to here,
pub(crate) const ENDS: u64 = 80;
/// and everything to here.
pub(crate) const LASTS: u64 = 120;

pub(crate) const CLASSES: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];

/// Requests a second: three times the capacity in the overload.
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

/// How the clients protect the service, and themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Client {
    /// By a time-out alone.
    Naive,
    /// By a limit that finds itself and keeps places for what matters more.
    Limiter,
    /// By shedding while the service says that its work has piled up.
    Shedder,
}

/// What became of the requests of one class in one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) offered: u32,
    pub(crate) served: u32,
    /// Refused at once.
    pub(crate) shed: u32,
    /// Not served in time.
    pub(crate) late: u32,
}

/// What became of all requests.
#[derive(Debug, PartialEq)]
pub(crate) struct Report {
    /// By step and class.
    pub(crate) steps: Vec<[Count; 3]>,
    /// How long the served high requests of the overload took, the shortest first.
    pub(crate) high_latencies: Vec<Duration>,
}

impl Report {
    /// All of a class from one second to another.
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

    /// All that was served in each step.
    pub(crate) fn served(&self) -> Vec<u32> {
        self.steps.iter().map(|step| step.iter().map(|count| count.served).sum()).collect()
    }

    pub(crate) fn high_p99(&self) -> Duration {
        self.high_latencies.get(self.high_latencies.len() * 99 / 100).copied().unwrap_or_default()
    }
}

/// A service that works on so many requests at once, in order of arrival; what its callers no longer wait for, too.
struct Service {
    clock: Clock,
    random: Entropy,
    /// When each of its workers is free.
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

    /// For how long a request that came now would wait, in seconds.
    fn backlog(&self) -> f64 {
        let free = self.free.lock().map(|free| free.iter().min().copied().unwrap_or_default()).unwrap_or_default();
        (free - self.clock.now()).as_secs_f64()
    }
}

/// The requests of these classes under this client.
pub(crate) fn run(client: Client, classes: &[Priority], seed: u64) -> Report {
    let (clock, hand) = Clock::manual();
    let service = Arc::new(Service {
        clock: clock.clone(),
        random: Entropy::from_seed(seed),
        free: Mutex::new(vec![clock.now(); WORKERS]),
    });
    // Each class has a stream of its own: alone, it sends the same requests.
    let arrivals: BTreeMap<(Instant, usize), Priority> =
        classes.iter().flat_map(|class| arrivals(*class, clock.now(), seed)).collect();
    let timeout = Timeout::new(PATIENCE).with_clock(&clock);
    let entropy = Entropy::from_seed(seed);
    match client {
        Client::Naive => hand.block_on(all(Pipeline::new().then(timeout), &clock, &service, &arrivals)),
        Client::Limiter => {
            let config = AdaptiveLimitConfig::default().shares(PriorityShares::default());
            let limiter = limiter(config, &clock, &entropy);
            hand.block_on(all(Pipeline::new().then(timeout).then(limiter), &clock, &service, &arrivals))
        }
        Client::Shedder => {
            let watched = service.clone();
            let config = ShedderConfig::default().limit("backlog", 0.1, 0.5);
            let shedder = shedder(config, &clock, &entropy, move || watched.backlog());
            hand.block_on(all(Pipeline::new().then(timeout).then(shedder), &clock, &service, &arrivals))
        }
    }
}

fn limiter(config: AdaptiveLimitConfig, clock: &Clock, entropy: &Entropy) -> Option<AdaptiveLimiter> {
    AdaptiveLimiter::new(config).ok().map(|limiter| limiter.with_clock(clock).with_entropy(entropy))
}

fn shedder(
    config: ShedderConfig,
    clock: &Clock,
    entropy: &Entropy,
    backlog: impl Fn() -> f64 + Send + Sync + 'static,
) -> Option<Shedder> {
    let shedder = Shedder::new(config).and_then(|shedder| shedder.with_gauge("backlog", backlog)).ok()?;
    Some(shedder.with_clock(clock).with_entropy(entropy))
}

/// When the requests of a class come: at random, at its rate.
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

/// Makes every request when it comes, and counts what became of it.
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
