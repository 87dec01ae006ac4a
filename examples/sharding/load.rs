//! A load that writes and reads orders continuously, and records the acknowledged writes.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::{TryStreamExt, future::try_join_all, stream};
use steadfast::{entropy::Entropy, time::Clock};

use crate::{Result, Rows, router::Router, wire::Order};

const WRITERS: usize = 4;
const READERS: usize = 4;

#[derive(Clone)]
pub struct Load(Arc<Inner>);

struct Inner {
    each: u32,
    /// Last acknowledged value of each order. It only increases.
    cents: Vec<AtomicU64>,
    stop: AtomicBool,
}

/// Results of the load.
#[derive(Default)]
pub struct Seen {
    pub writes: u64,
    pub reads: u64,
    pub failed: u64,
    /// Reads that returned a value overwritten before they began.
    pub old: u64,
    pub slowest: Duration,
}

impl Seen {
    fn and(mut self, other: &Self) -> Self {
        self.writes += other.writes;
        self.reads += other.reads;
        self.failed += other.failed;
        self.old += other.old;
        self.slowest = self.slowest.max(other.slowest);
        self
    }
}

impl Load {
    pub fn new(tenants: u32, each: u32) -> Self {
        let cents = |at: u32| AtomicU64::new(1_000 + u64::from(at) * 7_919 % 90_001);
        Self(Arc::new(Inner { each, cents: (0..tenants * each).map(cents).collect(), stop: AtomicBool::new(false) }))
    }

    fn key(&self, at: usize) -> (u32, u32) {
        (at as u32 / self.0.each, at as u32 % self.0.each)
    }

    fn order(&self, at: usize) -> Order {
        let (tenant, number) = self.key(at);
        Order { tenant, number, cents: self.0.cents[at].load(SeqCst) }
    }

    pub fn keys(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        (0..self.0.cents.len()).map(|at| self.key(at))
    }

    /// Writes each order once.
    pub async fn fill(&self, router: &Router) -> Result<()> {
        let all = stream::iter((0..self.0.cents.len()).map(Ok));
        all.try_for_each_concurrent(64, |at| async move { Ok(router.put(self.order(at)).await?) }).await
    }

    pub fn stop(&self) {
        self.0.stop.store(true, SeqCst);
    }

    /// Writes and reads until the stop signal.
    pub fn run(&self, router: &Router) -> impl Future<Output = Result<Seen>> + Send + use<> {
        let writers = (0..WRITERS).map(|n| tokio::spawn(self.clone().write(router.clone(), n)));
        let readers = (0..READERS).map(|n| tokio::spawn(self.clone().read(router.clone(), n)));
        let tasks: Vec<_> = writers.chain(readers).collect();
        async move { Ok(try_join_all(tasks).await?.iter().fold(Seen::default(), Seen::and)) }
    }

    /// Each order has one writer, so that the expected value is known.
    async fn write(self, router: Router, n: usize) -> Seen {
        let (mut seen, clock, draws) = (Seen::default(), Clock::tokio(), Entropy::from_seed(n as u64));
        while !self.0.stop.load(SeqCst) {
            let at = draws.up_to((self.0.cents.len() / WRITERS) as u64 - 1) as usize * WRITERS + n;
            let mut order = self.order(at);
            order.cents += 1;
            let begun = clock.now();
            match router.put(order).await {
                Ok(()) => self.0.cents[at].store(order.cents, SeqCst),
                Err(_) => seen.failed += 1,
            }
            seen.writes += 1;
            seen.slowest = seen.slowest.max(clock.now() - begun);
        }
        seen
    }

    async fn read(self, router: Router, n: usize) -> Seen {
        let (mut seen, clock, draws) = (Seen::default(), Clock::tokio(), Entropy::from_seed(1_000 + n as u64));
        while !self.0.stop.load(SeqCst) {
            let at = draws.up_to(self.0.cents.len() as u64 - 1) as usize;
            let (begun, least) = (clock.now(), self.order(at));
            match router.get(least.tenant, least.number).await {
                Ok(Some(order)) => seen.old += u64::from(order.cents < least.cents),
                Ok(None) => seen.old += 1,
                Err(_) => seen.failed += 1,
            }
            seen.reads += 1;
            seen.slowest = seen.slowest.max(clock.now() - begun);
        }
        seen
    }

    /// Returns orders that are missing, or older than their acknowledged value.
    pub fn lost(&self, rows: &Rows) -> usize {
        let is_there = |at: &usize| {
            let found = rows.get(&self.key(*at)).into_iter().flatten();
            found.map(|(_, cents)| *cents).max() >= Some(self.order(*at).cents)
        };
        (0..self.0.cents.len()).filter(|at| !is_there(at)).count()
    }
}
