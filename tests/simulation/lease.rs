//! Leases over a store with slow requests and slow answers, each on its own: no two holders at
//! once, by their own counts, and no term is revived that was over when its holder asked. An
//! instance that counts from the wrong moment is detected.
//!
//! The election's margin would hide many faults. So here holders have none, and clocks run at one
//! rate: the lease's contract holds to the nanosecond.
use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    entropy::Entropy,
    lease::{Acquired, Lease, StoreLease},
    port::{FencingToken, PortError, PortErrorKind},
    store::{DeleteOptions, InMemoryStore, Key, PutOptions, Record, Store, StoreError, StoreFuture, Version},
    testing::faults::for_each_seed,
    time::{Clock, Instant, ManualClock, TimeSource},
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const NAME: &str = "job";

/// The moment from which an instance counts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Counts {
    /// A challenger counts from the answer to its read, a holder from its call. This is correct.
    AsItShould,
    /// A challenger counts from before its read.
    FromBeforeItsRead,
    /// A holder counts from the answer to its call.
    FromTheAnswer,
}

/// A connection to the store with delays on both ways, which loses some requests and some answers.
#[derive(Debug)]
struct Line {
    store: InMemoryStore,
    clock: Clock,
    entropy: Entropy,
    slowest: u64,
    /// The time that the instance's clock shows next, once, instead of the time of the read's
    /// answer.
    read_began: Arc<Mutex<Option<Instant>>>,
    counts: Counts,
    cut: AtomicBool,
}

impl Line {
    /// Returns the delay of one way of a request, which is mostly short.
    async fn way(&self) {
        let slowest = if self.entropy.up_to(3) == 0 { self.slowest } else { self.slowest.min(5) };
        self.clock.sleep(MS(self.entropy.up_to(slowest))).await;
    }

    async fn carry<T>(&self, asked: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let began = self.clock.now();
        // An instance that counts from the answer has waited already when it begins to count:
        // see `Caller`.
        let slow = self.counts != Counts::FromTheAnswer;
        let lost = |may: bool| {
            let error = PortError::new(PortErrorKind::Unavailable, "lost");
            Err(StoreError::Failed(if may { error.outcome_unknown() } else { error }))
        };
        if slow {
            self.way().await;
        }
        if self.cut.load(Ordering::Relaxed) || self.entropy.up_to(15) == 0 {
            return lost(false);
        }
        let answer = asked.await;
        if slow {
            self.way().await;
        }
        if self.entropy.up_to(15) == 0 {
            return lost(true);
        }
        if self.counts == Counts::FromBeforeItsRead {
            *self.read_began.lock().unwrap() = Some(began);
        }
        answer
    }
}

impl Store for Line {
    forward_store! { store: capabilities, scan, batch }

    fn get<'a>(&'a self, key: Key<'a>) -> StoreFuture<'a, Option<Record>> {
        Box::pin(self.carry(self.store.get(key)))
    }
    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, how: PutOptions) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            let written = self.carry(self.store.put(key, value, how)).await;
            *self.read_began.lock().unwrap() = None; // only the answer to a read is counted from
            written
        })
    }
    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> StoreFuture<'a, bool> {
        Box::pin(self.carry(self.store.delete(key, options)))
    }
}

/// The instance's clock. To count from before the read, it shows that moment once when the read
/// has returned.
struct Shown {
    clock: Clock,
    read_began: Arc<Mutex<Option<Instant>>>,
}

impl TimeSource for Shown {
    fn now(&self) -> Instant {
        self.read_began.lock().unwrap().take().unwrap_or_else(|| self.clock.now())
    }
    fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.clock.sleep_until(at))
    }
}

/// A term as its holder counts it, from its call.
#[derive(Debug, Clone, Copy)]
struct Term {
    token: FencingToken,
    called: Instant,
}

struct Truth {
    term: Duration,
    /// Holders by their own counts, each from the answer until a term after the call.
    holds: Vec<Option<Term>>,
    grants: u64,
    renewals: u64,
    late: u64,
    violations: Vec<String>,
}

impl Truth {
    fn ends(&self, term: Term) -> Instant {
        term.called + self.term
    }

    /// Records that a holder learned of its term.
    fn entered(&mut self, i: usize, term: Term, now: Instant) {
        let others = self.holds.iter().enumerate().filter(|(j, _)| *j != i).filter_map(|(j, held)| Some((j, (*held)?)));
        let overlaps: Vec<_> = others.filter(|(_, held)| now < self.ends(*held)).collect();
        if now < self.ends(term) && !overlaps.is_empty() {
            self.violations.push(format!("{i} holds at {now:?} by {term:?}, and so do {overlaps:?}"));
        }
        self.holds[i] = Some(term);
    }
}

/// Runs a process, which acquires, renews for some time, and then releases or stops without notice.
async fn live(i: usize, clock: Clock, entropy: Entropy, caller: Caller, truth: Arc<Mutex<Truth>>) {
    let term = truth.lock().unwrap().term;
    let holder = format!("node-{i}");
    loop {
        clock.sleep(MS(entropy.up_to(40))).await;
        let called = clock.now();
        let mut held = match caller.acquire(&holder, term).await {
            Ok(Acquired::Granted(token)) => Term { token, called },
            Ok(Acquired::Held(held)) => {
                // Asks when the name may be free, or earlier, which is allowed.
                clock.sleep(held.free_in.min(MS(entropy.up_to(300)))).await;
                continue;
            }
            Err(_) => continue,
        };
        let mut grants = true;
        loop {
            {
                let mut truth = truth.lock().unwrap();
                truth.entered(i, held, clock.now());
                *(if grants { &mut truth.grants } else { &mut truth.renewals }) += 1;
                grants = false;
            }
            // Mostly in time, sometimes about when the term ends or after.
            let late = entropy.up_to(5) == 0;
            let wait = if late { term.mul_f64(0.8 + 0.5 * entropy.unit()) } else { term.mul_f64(0.3 * entropy.unit()) };
            clock.sleep(wait).await;
            match entropy.up_to(19) {
                0 => break, // stops without notice
                1 => {
                    truth.lock().unwrap().holds[i] = None;
                    let _ = caller.leases.release(NAME, &holder, held.token).await;
                    break;
                }
                _ => {}
            }
            let called = clock.now();
            let over = called >= truth.lock().unwrap().ends(held);
            truth.lock().unwrap().late += u64::from(over);
            match caller.renew(&holder, held.token, term).await {
                Ok(()) => {
                    if over {
                        let what = format!("{i} revived {held:?} at {called:?}, when it was over");
                        truth.lock().unwrap().violations.push(what);
                    }
                    held.called = called;
                }
                // The term stays as counted; the next call shows the outcome.
                Err(held) if held => {}
                Err(_) => break,
            }
        }
    }
}

/// The lease as a process calls it. Counting from the answer is modelled by a wait before the
/// lease begins to count.
struct Caller {
    leases: StoreLease,
    line: Arc<Line>,
}

impl Caller {
    async fn wait(&self) {
        if self.line.counts == Counts::FromTheAnswer {
            for _ in 0..2 {
                self.line.way().await;
            }
        }
        *self.line.read_began.lock().unwrap() = None;
    }

    async fn acquire(&self, holder: &str, term: Duration) -> Result<Acquired, ()> {
        self.wait().await;
        self.leases.acquire(NAME, holder, term).await.map_err(drop)
    }

    /// On failure, returns whether the term may continue.
    async fn renew(&self, holder: &str, token: FencingToken, term: Duration) -> Result<(), bool> {
        // The count of the previous call decides now whether the term is over.
        let renewed = self.leases.renew(NAME, holder, token, term);
        self.wait().await;
        renewed.await.map(drop).map_err(|error| !error.is_not_held())
    }
}

struct World {
    time: ManualClock,
    truth: Arc<Mutex<Truth>>,
    lines: Vec<Arc<Line>>,
    nodes: Vec<Pin<Box<dyn Future<Output = ()>>>>,
    entropy: Entropy,
}

impl World {
    fn new(seed: u64, counts: Counts) -> Self {
        let (clock, time) = Clock::manual();
        let entropy = Entropy::from_seed(seed);
        let store = InMemoryStore::builder().clock(&clock).build();
        let nodes = 2 + entropy.up_to(1) as usize;
        let term = MS(1_000);
        let truth = Truth { term, holds: vec![None; nodes], grants: 0, renewals: 0, late: 0, violations: Vec::new() };
        let truth = Arc::new(Mutex::new(truth));
        // From a quick store to one whose answer takes most of a term.
        let slowest = [0, 20, 200, 450][entropy.up_to(3) as usize];
        let mut lines = Vec::new();
        let nodes = (0..nodes).map(|i| {
            let read_began = Arc::new(Mutex::new(None));
            let line = Arc::new(Line {
                store: store.clone(),
                clock: clock.clone(),
                entropy: Entropy::from_seed(entropy.next_u64()),
                slowest,
                read_began: read_began.clone(),
                counts,
                cut: AtomicBool::new(false),
            });
            lines.push(line.clone());
            let shown = Clock::from_source(Shown { clock: clock.clone(), read_began });
            let leases = StoreLease::builder(line.clone()).clock(&shown).build().unwrap();
            let own = Entropy::from_seed(entropy.next_u64());
            Box::pin(live(i, clock.clone(), own, Caller { leases, line }, truth.clone())) as Pin<Box<_>>
        });
        let nodes: Vec<Pin<Box<dyn Future<Output = ()>>>> = nodes.map(|node| node as _).collect();
        Self { time, truth, lines, nodes, entropy }
    }

    fn settle(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..4 {
            for node in &mut self.nodes {
                assert!(node.as_mut().poll(&mut cx) == Poll::Pending, "a node never stops running");
            }
        }
    }

    fn run(mut self) -> Truth {
        self.settle();
        for _ in 0..40 {
            let end = self.time.now() + MS(1_000);
            for line in &self.lines {
                line.cut.store(self.entropy.up_to(5) == 0, Ordering::Relaxed);
            }
            while let Some(at) = self.time.next_timer().filter(|at| *at <= end) {
                self.time.advance_to(at);
                self.settle();
            }
            self.time.advance_to(end);
        }
        self.nodes.clear();
        Arc::into_inner(self.truth).unwrap().into_inner().unwrap()
    }
}

#[test]
fn over_a_store_with_slow_reads_a_name_has_one_holder_and_no_term_is_revived() {
    let seeds = super::schedules(150);
    let (mut grants, mut renewals, mut late) = (0, 0, 0);
    for_each_seed(0..seeds, |seed| {
        let truth = World::new(seed, Counts::AsItShould).run();
        assert!(truth.violations.is_empty(), "{:#?}", truth.violations);
        grants += truth.grants;
        renewals += truth.renewals;
        late += truth.late;
    });
    println!("{seeds} schedules: {grants} grants, {renewals} renewals, {late} renewals asked too late; no violation");
    super::assert_met(grants > seeds * 10 && renewals > seeds * 20 && late > seeds * 2, (grants, renewals, late));
}

#[test]
fn an_instance_that_counts_from_the_wrong_moment_is_detected() {
    for (counts, what) in [(Counts::FromBeforeItsRead, "so do"), (Counts::FromTheAnswer, "revived")] {
        let seeds = 100;
        let found = |seed: &u64| World::new(*seed, counts).run().violations.iter().any(|found| found.contains(what));
        let found = (0..seeds).filter(found).count();
        println!("{counts:?}: {found} of {seeds} schedules have a violation ({what})");
        assert!(found > 0, "{counts:?}: {what}");
    }
}
