//! Fixtures of the listener's simulation: a queue that records every delivery, a failing service,
//! and the record of events.
use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
    time::Duration,
};

use steadfast::{
    entropy::Entropy,
    port::{Capability, PortError, PortErrorKind},
    queue::{Delivery, Depth, Message, MessageId, Peeked, Queue, QueueError, QueueFuture, Receipt, Receive, Settle},
    queue_listener::QueueListenerEvent as Event,
    time::{Clock, Instant, ManualClock},
};

/// Deviations of the queue from its contract, each of which a control must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Planted {
    Nothing,
    /// A release counts as an attempt.
    ReleaseCounts,
    /// Each delivery counts as an attempt.
    DeliveriesCount,
    /// Messages are hidden for a third of the requested time.
    HidesTooShort,
}

/// Pending requests of a real backend. While there are any, virtual time stands still.
pub(crate) type UnderWay = Arc<AtomicUsize>;

/// Connection of one process to the queue: it takes time, fails at times, and counts its pending
/// requests.
pub(crate) struct Line {
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) clock: Clock,
    pub(crate) entropy: Entropy,
    pub(crate) under_way: UnderWay,
    pub(crate) planted: Planted,
    /// Shares of requests lost before they are applied, and of lost replies.
    pub(crate) lost: (f64, f64),
    pub(crate) slowness: Arc<Slowness>,
}

/// Milliseconds from the effect of a request to its answer.
#[derive(Debug, Default)]
pub(crate) struct Slowness {
    pub(crate) receive: AtomicU64,
    pub(crate) others: AtomicU64,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").finish_non_exhaustive()
    }
}

struct Passing<'a>(&'a AtomicUsize);

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Line {
    async fn pass<T>(&self, request: QueueFuture<'_, T>) -> Result<T, QueueError> {
        self.pass_with(&self.slowness.others, request).await
    }

    async fn pass_with<T>(&self, slowness: &AtomicU64, request: QueueFuture<'_, T>) -> Result<T, QueueError> {
        self.clock.sleep(Duration::from_micros(500 + self.entropy.up_to(10_000))).await;
        if self.entropy.unit() < self.lost.0 {
            return Err(PortError::new(PortErrorKind::Unavailable, "the request was lost").into());
        }
        let answer = {
            // A queue in memory wakes its receivers: they wait on this clock.
            let is_real = !self.queue.capabilities().has(Capability::Push);
            let _passing = is_real.then(|| {
                self.under_way.fetch_add(1, Ordering::SeqCst);
                Passing(&self.under_way)
            });
            request.await?
        };
        let slow = Duration::from_millis(slowness.load(Ordering::SeqCst));
        self.clock.sleep(slow + Duration::from_micros(500 + self.entropy.up_to(10_000))).await;
        if self.entropy.unit() < self.lost.1 {
            return Err(PortError::new(PortErrorKind::Unavailable, "the reply was lost").outcome_unknown().into());
        }
        Ok(answer)
    }
}

impl Queue for Line {
    forward_queue! { queue: capabilities, identity, address, dead_letters }

    fn send<'a>(&'a self, messages: Vec<Message>) -> QueueFuture<'a, Vec<MessageId>> {
        Box::pin(self.pass(self.queue.send(messages)))
    }
    fn receive<'a>(&'a self, mut receive: Receive) -> QueueFuture<'a, Vec<Delivery>> {
        if self.planted == Planted::HidesTooShort {
            // A lease is renewed within a third of it.
            receive.visibility /= 10;
        }
        Box::pin(async move {
            let mut taken = self.pass_with(&self.slowness.receive, self.queue.receive(receive)).await?;
            if self.planted == Planted::DeliveriesCount {
                taken.iter_mut().for_each(|delivery| delivery.attempts = delivery.deliveries - 1);
            }
            Ok(taken)
        })
    }
    fn settle<'a>(&'a self, mut settlements: Vec<(Receipt, Settle)>) -> QueueFuture<'a, Vec<Result<(), QueueError>>> {
        if self.planted == Planted::ReleaseCounts {
            for (_, settle) in &mut settlements {
                if let Settle::Release { after } = settle {
                    *settle = Settle::abandon(*after);
                }
            }
        }
        Box::pin(self.pass(self.queue.settle(settlements)))
    }
    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> QueueFuture<'a, ()> {
        let visibility = if self.planted == Planted::HidesTooShort { visibility / 3 } else { visibility };
        Box::pin(self.pass(self.queue.extend(receipt, visibility)))
    }
    fn mark_begun<'a>(&'a self, receipt: &'a Receipt, visibility: Duration, begun: bool) -> QueueFuture<'a, ()> {
        let visibility = if self.planted == Planted::HidesTooShort { visibility / 3 } else { visibility };
        Box::pin(self.pass(self.queue.mark_begun(receipt, visibility, begun)))
    }
    fn depth(&self) -> QueueFuture<'_, Depth> {
        Box::pin(self.pass(self.queue.depth()))
    }
    fn peek(&self, max: usize) -> QueueFuture<'_, Vec<Peeked>> {
        Box::pin(self.pass(self.queue.peek(max)))
    }
    fn purge(&self) -> QueueFuture<'_, u64> {
        Box::pin(self.pass(self.queue.purge()))
    }
}

/// State of the service behind the handlers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    Well,
    Away,
    Slow,
    Refusing,
}

/// End of one run of a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Completed,
    /// A policy refused the call, which was not sent.
    Refused,
    Failed,
    /// The handler was dropped.
    Dropped,
}

/// A reason for which a message is handled again, recorded where it arose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    Refused,
    Failed,
    Killed,
    LeaseLost,
    HandlerDropped,
}

/// One process, from its start to its end.
pub(crate) type Incarnation = (usize, u32);

#[derive(Debug)]
struct Run {
    by: Incarnation,
    end: Option<(End, Instant)>,
}

/// Record of all events.
#[derive(Default)]
pub(crate) struct Ledger {
    runs: Mutex<BTreeMap<MessageId, Vec<Run>>>,
    numbers: Mutex<BTreeMap<MessageId, u32>>,
    kills: Mutex<BTreeMap<Incarnation, Instant>>,
    lost: Mutex<BTreeSet<(MessageId, Incarnation)>>,
    dropped: Mutex<BTreeSet<(MessageId, Incarnation)>>,
    pub(crate) overlaps: AtomicU64,
    pub(crate) missed_events: AtomicU64,
    pub(crate) call_failures: Mutex<BTreeMap<String, u64>>,
    pub(crate) effects: Mutex<BTreeMap<u32, u32>>,
}

/// One pending run; if it is dropped without an end, its handler was dropped.
pub(crate) struct Running<'a> {
    ledger: &'a Ledger,
    clock: &'a Clock,
    id: MessageId,
    at: usize,
}

impl Running<'_> {
    pub(crate) fn end(&self, end: End) {
        let mut runs = self.ledger.runs.lock().unwrap();
        let run = &mut runs.get_mut(&self.id).expect("it began")[self.at];
        run.end.get_or_insert((end, self.clock.now()));
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.end(End::Dropped);
    }
}

impl Ledger {
    pub(crate) fn begin<'a>(&'a self, clock: &'a Clock, id: &MessageId, number: u32, by: Incarnation) -> Running<'a> {
        self.numbers.lock().unwrap().insert(id.clone(), number);
        let mut all = self.runs.lock().unwrap();
        let runs = all.entry(id.clone()).or_default();
        if runs.iter().any(|run| run.end.is_none()) {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        runs.push(Run { by, end: None });
        Running { ledger: self, clock, id: id.clone(), at: runs.len() - 1 }
    }

    pub(crate) fn killed(&self, by: Incarnation, at: Instant) {
        self.kills.lock().unwrap().insert(by, at);
    }

    pub(crate) fn told(&self, by: Incarnation, event: Event) {
        match event {
            Event::LeaseLost { id, .. } => drop(self.lost.lock().unwrap().insert((id, by))),
            Event::HandlerDropped { id } => drop(self.dropped.lock().unwrap().insert((id, by))),
            Event::CallFailed { call, kind } => {
                *self.call_failures.lock().unwrap().entry(format!("{call:?} {kind:?}")).or_default() += 1;
            }
            _ => {}
        }
    }

    pub(crate) fn number(&self, id: &MessageId) -> Option<u32> {
        self.numbers.lock().unwrap().get(id).copied()
    }

    pub(crate) fn runs(&self) -> u64 {
        self.runs.lock().unwrap().values().map(|runs| runs.len() as u64).sum()
    }

    /// Counts the cause of each run but the last of its message. Returns the runs that have none.
    pub(crate) fn explain(&self) -> (BTreeMap<Cause, u64>, Vec<String>) {
        let (mut causes, mut unexplained) = (BTreeMap::<Cause, u64>::new(), Vec::new());
        for (id, runs) in &*self.runs.lock().unwrap() {
            for run in &runs[..runs.len() - 1] {
                let key = (id.clone(), run.by);
                let (end, at) = run.end.expect("all ended");
                let kill = self.kills.lock().unwrap().get(&run.by).copied();
                let cause = match end {
                    End::Refused => Some(Cause::Refused),
                    End::Failed => Some(Cause::Failed),
                    End::Completed | End::Dropped if self.lost.lock().unwrap().contains(&key) => Some(Cause::LeaseLost),
                    End::Dropped if self.dropped.lock().unwrap().contains(&key) => Some(Cause::HandlerDropped),
                    // Not settled yet when its process was killed: settlements are sent within the
                    // time of a request.
                    End::Completed if kill.is_some_and(|kill| kill - at < Duration::from_secs(60)) => {
                        Some(Cause::Killed)
                    }
                    End::Dropped if kill == Some(at) => Some(Cause::Killed),
                    _ => None,
                };
                match cause {
                    Some(cause) => *causes.entry(cause).or_default() += 1,
                    None => unexplained.push(format!("{id} {runs:?}, killed: {kill:?}")),
                }
            }
        }
        (causes, unexplained)
    }
}

/// Runs the future to its end: jumps to the next timer when it waits, unless a real backend is
/// working for it.
pub(crate) fn drive<F: Future>(time: &ManualClock, under_way: &UnderWay, future: F) -> F::Output {
    struct Flag(AtomicBool, Thread);
    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
            self.1.unpark();
        }
    }
    let flag = Arc::new(Flag(AtomicBool::new(true), std::thread::current()));
    let waker = Waker::from(flag.clone());
    let mut future = pin!(future);
    let mut waited = 0;
    loop {
        while flag.0.swap(false, Ordering::SeqCst) {
            waited = 0;
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return output;
            }
        }
        // Otherwise a backend that waits on this clock would never finish.
        if under_way.load(Ordering::SeqCst) > 0 && waited < 2_000 {
            waited += 1;
            std::thread::park_timeout(Duration::from_millis(5));
            continue;
        }
        let next = time.next_timer().expect("the world waits, and no timer is left to wake it");
        time.advance_to(next);
    }
}

/// A service with a prescribed state that records its calls.
pub(crate) struct Service {
    pub(crate) health: Mutex<Health>,
    pub(crate) asked: AtomicU64,
    pub(crate) clock: Clock,
    pub(crate) entropy: Entropy,
}

impl Service {
    pub(crate) async fn call(&self, ledger: &Ledger, number: u32) -> Result<(), &'static str> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let health = *self.health.lock().unwrap();
        let time = match health {
            Health::Well => 5 + self.entropy.up_to(45),
            Health::Away => 10,
            Health::Slow => 20_000 + self.entropy.up_to(20_000),
            Health::Refusing => 1,
        };
        self.clock.sleep(Duration::from_millis(time)).await;
        match health {
            Health::Away => return Err("connection refused"),
            Health::Refusing => return Err("too busy"),
            Health::Well | Health::Slow => {}
        }
        *ledger.effects.lock().unwrap().entry(number).or_default() += 1;
        Ok(())
    }
}
