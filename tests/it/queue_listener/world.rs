//! Fixtures of the listener's tests: a queue on a manual clock, behind a connection that fails on
//! command and records its requests.
use std::{
    collections::BTreeMap,
    future::{Future, pending},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use steadfast::{
    Builder,
    entropy::Entropy,
    observe::Subscription,
    port::{Capabilities, Capability, PortError, PortErrorKind},
    queue::{
        Delivery, Depth, InMemoryQueue, Message, MessageId, Queue, QueueError, QueueExt, QueueFuture, Receipt, Receive,
        Settle,
    },
    queue_listener::{QueueListener, QueueListenerConfig, QueueListenerEvent},
    testing::ScriptedPort,
    time::{Clock, Instant, ManualClock},
};

pub(crate) const MS: fn(u64) -> Duration = Duration::from_millis;
pub(crate) const S: fn(u64) -> Duration = Duration::from_secs;

/// State of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Mode {
    #[default]
    Well,
    /// Requests fail at once, not applied.
    Refuses,
    /// Requests fail permanently.
    Denied,
    /// Requests never return, not applied.
    Hangs,
    /// Requests are applied, and fail.
    LosesReplies,
}

#[derive(Debug, Default)]
struct State {
    modes: BTreeMap<&'static str, Mode>,
    /// Share of renewals that fail.
    failing_renewals: f64,
    /// Duration of requests, by kind.
    takes: BTreeMap<&'static str, Duration>,
    /// Time from the effect of requests to their answers, by kind.
    answers_after: BTreeMap<&'static str, Duration>,
    /// A body whose messages cannot be settled, the failure, and the receipts of their deliveries.
    unsettleable: Option<(&'static str, Mode, Vec<Receipt>)>,
    /// The queue returns at once, whatever wait is requested.
    answers_early: bool,
    /// The queue does not wake its receivers, so that listeners poll.
    never_wakes: bool,
    calls: Vec<(&'static str, Instant)>,
}

/// A connection to a queue.
#[derive(Debug)]
pub(crate) struct Line {
    queue: Arc<InMemoryQueue>,
    clock: Clock,
    entropy: Entropy,
    state: Mutex<State>,
}

impl Line {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Sets the state for requests of this kind; `""` is all kinds but the depth.
    pub(crate) fn is(&self, what: &'static str, mode: Mode) {
        let whats = if what.is_empty() { &["receive", "settle", "extend"][..] } else { &[what][..] };
        whats.iter().for_each(|what| {
            self.state().modes.insert(what, mode);
        });
    }

    pub(crate) fn fails_renewals(&self, share: f64) {
        self.state().failing_renewals = share;
    }

    /// Sets the duration of requests of this kind.
    pub(crate) fn takes(&self, what: &'static str, time: Duration) {
        self.state().takes.insert(what, time);
    }

    /// Sets the time from the effect of requests of this kind to their answers.
    pub(crate) fn answers_after(&self, what: &'static str, time: Duration) {
        self.state().answers_after.insert(what, time);
    }

    /// Makes a request fail as a whole if it settles a message with this body.
    pub(crate) fn cannot_settle(&self, body: &'static str, mode: Mode) {
        self.state().unsettleable = Some((body, mode, Vec::new()));
    }

    pub(crate) fn answers_early(&self, early: bool) {
        self.state().answers_early = early;
    }

    /// Takes the capability `Push` from the queue: listeners that are built afterwards poll.
    pub(crate) fn never_wakes(&self) {
        self.state().never_wakes = true;
    }

    /// Times at which requests of this kind were made.
    pub(crate) fn calls(&self, what: &str) -> Vec<Instant> {
        self.state().calls.iter().filter(|(called, _)| *called == what).map(|(_, at)| *at).collect()
    }

    async fn pass<T>(
        &self,
        what: &'static str,
        request: impl Future<Output = Result<T, QueueError>>,
    ) -> Result<T, QueueError> {
        let mode = {
            let mut state = self.state();
            state.calls.push((what, self.clock.now()));
            state.modes.get(what).copied().unwrap_or_default()
        };
        let takes = self.state().takes.get(what).copied();
        if let Some(takes) = takes {
            self.clock.sleep(takes).await;
        }
        let failing = self.state().failing_renewals;
        if what == "extend" && self.entropy.unit() < failing {
            return Err(PortError::new(PortErrorKind::Unavailable, "the line is down").into());
        }
        match mode {
            Mode::Well => {
                let answer = request.await;
                let after = self.state().answers_after.get(what).copied();
                if let Some(after) = after {
                    self.clock.sleep(after).await;
                }
                answer
            }
            Mode::Refuses => Err(PortError::new(PortErrorKind::Unavailable, "the line is down").into()),
            Mode::Denied => Err(PortError::new(PortErrorKind::Denied, "no permission").into()),
            Mode::Hangs => pending().await,
            Mode::LosesReplies => {
                request.await?;
                Err(PortError::new(PortErrorKind::Unavailable, "the reply is lost").outcome_unknown().into())
            }
        }
    }
}

impl Queue for Line {
    forward_queue! { queue: identity, address, peek, purge, dead_letters }

    fn capabilities(&self) -> Capabilities {
        let can = self.queue.capabilities();
        if self.state().never_wakes { can.without(Capability::Push) } else { can }
    }

    fn send<'a>(&'a self, messages: Vec<Message>) -> QueueFuture<'a, Vec<MessageId>> {
        Box::pin(self.pass("send", self.queue.send(messages)))
    }
    fn receive<'a>(&'a self, receive: Receive) -> QueueFuture<'a, Vec<Delivery>> {
        Box::pin(async move {
            let wait = if self.state().answers_early { Duration::ZERO } else { receive.wait };
            let taken = self.pass("receive", self.queue.receive(receive.wait(wait))).await?;
            if let Some((body, _, receipts)) = &mut self.state().unsettleable {
                let bad = taken.iter().filter(|taken| taken.body[..] == *body.as_bytes());
                receipts.extend(bad.map(|taken| taken.receipt.clone()));
            }
            Ok(taken)
        })
    }
    fn settle<'a>(&'a self, settlements: Vec<(Receipt, Settle)>) -> QueueFuture<'a, Vec<Result<(), QueueError>>> {
        let bad = self.state().unsettleable.as_ref().and_then(|(_, mode, receipts)| {
            settlements.iter().any(|(receipt, _)| receipts.contains(receipt)).then_some(*mode)
        });
        Box::pin(async move {
            match bad {
                Some(Mode::Hangs) => pending().await,
                Some(Mode::LosesReplies) => {
                    // Only this one reports that it failed.
                    let receipts: Vec<_> = settlements.iter().map(|(receipt, _)| receipt.clone()).collect();
                    let is_bad = |receipt: &Receipt| {
                        let state = self.state();
                        state.unsettleable.as_ref().is_some_and(|(_, _, bad)| bad.contains(receipt))
                    };
                    let good = settlements.into_iter().filter(|(receipt, _)| !is_bad(receipt)).collect();
                    let mut answers = self.pass("settle", self.queue.settle(good)).await?.into_iter();
                    let failed = || Err(PortError::new(PortErrorKind::Unavailable, "this one alone").into());
                    let answer = |receipt: Receipt| if is_bad(&receipt) { failed() } else { answers.next().unwrap() };
                    Ok(receipts.into_iter().map(answer).collect())
                }
                Some(_) => Err(PortError::new(PortErrorKind::Unavailable, "all of them").into()),
                None => self.pass("settle", self.queue.settle(settlements)).await,
            }
        })
    }
    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> QueueFuture<'a, ()> {
        Box::pin(self.pass("extend", self.queue.extend(receipt, visibility)))
    }
    fn mark_begun<'a>(&'a self, receipt: &'a Receipt, visibility: Duration, begun: bool) -> QueueFuture<'a, ()> {
        Box::pin(self.pass("extend", self.queue.mark_begun(receipt, visibility, begun)))
    }
    fn depth(&self) -> QueueFuture<'_, Depth> {
        Box::pin(self.pass("depth", self.queue.depth()))
    }
}

/// Returns a queue that does not wake its receivers.
pub(crate) fn never_wakes(queue: &Arc<InMemoryQueue>) -> Arc<dyn Queue> {
    ScriptedPort::changing(&Clock::tokio(), |can| can.without(Capability::Push)).queue(queue.clone())
}

pub(crate) struct World {
    pub(crate) clock: Clock,
    pub(crate) time: ManualClock,
    pub(crate) queue: Arc<InMemoryQueue>,
    pub(crate) line: Arc<Line>,
}

impl World {
    pub(crate) fn new() -> Self {
        let (clock, time) = Clock::manual();
        let queue = Arc::new(InMemoryQueue::builder("jobs").clock(&clock).build());
        let line = Line {
            queue: queue.clone(),
            clock: clock.clone(),
            entropy: Entropy::from_seed(3),
            state: Mutex::default(),
        };
        Self { clock, time, queue, line: Arc::new(line) }
    }

    /// Creates a world whose queue does not wake its receivers.
    pub(crate) fn polled() -> Self {
        let world = Self::new();
        world.line.never_wakes();
        world
    }

    pub(crate) fn builder(&self, config: QueueListenerConfig, seed: u64) -> Builder<QueueListener> {
        let builder = QueueListener::builder(self.line.clone(), config);
        builder.clock(&self.clock).entropy(&Entropy::from_seed(seed))
    }

    pub(crate) fn listener(&self, config: QueueListenerConfig, seed: u64) -> QueueListener {
        self.builder(config, seed).build().unwrap()
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) fn send(&self, body: &str) -> MessageId {
        self.time.block_on(self.queue.send_one(Message::new(body.to_owned()))).unwrap()
    }

    /// Runs the future for at most this time.
    pub(crate) fn run<F: Future>(&self, time: Duration, future: F) -> Option<F::Output> {
        self.time.block_on(async {
            tokio::select! {
                biased;
                output = future => Some(output),
                () = self.clock.sleep(time) => None,
            }
        })
    }

    pub(crate) fn depth(&self) -> Depth {
        self.time.block_on(self.queue.depth()).unwrap()
    }

    pub(crate) async fn depth_now(&self) -> u64 {
        self.queue.depth().await.unwrap().total()
    }

    /// Bodies in the queue, or among its dead letters, with their reasons.
    pub(crate) fn dead(&self) -> Vec<(String, String)> {
        let dead = self.time.block_on(self.queue.dead_letters().unwrap().peek(1000)).unwrap();
        dead.iter().map(|dead| (text(&dead.body), dead.reason.clone().unwrap())).collect()
    }
}

pub(crate) fn text(body: &[u8]) -> String {
    String::from_utf8_lossy(body).into_owned()
}

/// Events so far.
pub(crate) fn told(events: &mut Subscription<QueueListenerEvent>) -> Vec<QueueListenerEvent> {
    let mut told = Vec::new();
    while let Some(event) = events.try_recv().unwrap() {
        told.push(event.what);
    }
    told
}

/// Waits for a request that a backend may answer from a thread of its own, while time stands still.
pub(crate) fn answer<F: Future>(request: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(request)
}
