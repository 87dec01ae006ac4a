//! A port that follows a script.
use std::{collections::BTreeMap, future::pending, sync::Arc, time::Duration};

use tokio::sync::watch;

use super::link::{Behind, Link, Request};
use crate::{
    lease::Lease,
    notify::Notifier,
    port::{BoxFuture, Capabilities, PortError, PortErrorKind},
    queue::{Address, Queue},
    store::Store,
    sync::{Mutex, MutexGuard},
    time::{Clock, Instant},
};

/// Ports whose answers a test decides, call by call, and that record their calls.
///
/// A rule receives each call and returns its [`PortAnswer`]. Without a rule all calls pass. Clones
/// share rule and record, and so do the ports that one script wraps, and the dead letters of its
/// queues.
///
/// ```
/// use std::sync::Arc;
/// use steadfast::{
///     port::{Failure, PortErrorKind},
///     store::{InMemoryStore, Key, Store, StoreExt},
///     testing::{PortAnswer, ScriptedPort},
///     time::{Clock, block_on},
/// };
///
/// let script = ScriptedPort::new(&Clock::tokio());
/// let store = script.store(Arc::new(InMemoryStore::new()));
/// script.by(|call| match (call.method, call.number) {
///     ("put", 2) => PortAnswer::lose(PortErrorKind::TimedOut),
///     _ => PortAnswer::pass(),
/// });
///
/// let key = Key::new("orders", "42");
/// block_on(async {
///     let first = store.insert(key, "placed").await.unwrap();
///     let error = store.replace(key, "paid", first).await.unwrap_err();
///     assert!(error.may_have_been_applied());
///     assert_eq!(store.get(key).await.unwrap().unwrap().value, "paid");
/// });
/// assert_eq!(script.calls("put").len(), 2);
/// ```
#[derive(Clone)]
pub struct ScriptedPort(Arc<Script>);

type Rule = Box<dyn FnMut(&PortCall) -> PortAnswer + Send>;

struct Script {
    clock: Clock,
    rule: Mutex<Rule>,
    log: Mutex<Log>,
    /// Number of releases of held calls.
    releases: watch::Sender<u64>,
    capabilities: Box<dyn Fn(Capabilities) -> Capabilities + Send + Sync>,
    has_address: bool,
}

#[derive(Default)]
struct Log {
    calls: Vec<PortCall>,
    /// Numbers of calls by method.
    numbers: BTreeMap<&'static str, usize>,
    /// Index of the first call that is not forgotten.
    from: usize,
}

/// A call of a scripted port.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortCall {
    /// Name of the method, such as `put`.
    pub method: &'static str,
    /// Row of the key, or a description with the partition, topic, lease or queue. For settlements
    /// it has their kinds, such as `forward`.
    pub target: String,
    /// Number of calls of this method so far, with this one.
    pub number: usize,
    /// Time at which the call began.
    pub began: Instant,
    /// Time at which it was answered or dropped.
    pub ended: Option<Instant>,
}

/// The course of one call of a scripted port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct PortAnswer {
    outcome: Outcome,
    request_takes: Duration,
    answer_takes: Duration,
    is_held: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Pass,
    Fail(PortErrorKind),
    Lose(PortErrorKind),
    Hang,
    Silent,
}

impl PortAnswer {
    const fn of(outcome: Outcome) -> Self {
        Self { outcome, request_takes: Duration::ZERO, answer_takes: Duration::ZERO, is_held: false }
    }

    /// Returns the answer of the port.
    pub const fn pass() -> Self {
        Self::of(Outcome::Pass)
    }

    /// Fails without an effect.
    pub const fn fail(kind: PortErrorKind) -> Self {
        Self::of(Outcome::Fail(kind))
    }

    /// Takes effect and fails: the answer is lost.
    pub const fn lose(kind: PortErrorKind) -> Self {
        Self::of(Outcome::Lose(kind))
    }

    /// Never ends, and has no effect.
    pub const fn hang() -> Self {
        Self::of(Outcome::Hang)
    }

    /// Takes effect, and never ends.
    pub const fn silent() -> Self {
        Self::of(Outcome::Silent)
    }

    /// Sets the time before the effect or the failure.
    pub const fn request_takes(self, time: Duration) -> Self {
        Self { request_takes: time, ..self }
    }

    /// Sets the time from the effect to the answer.
    pub const fn answer_takes(self, time: Duration) -> Self {
        Self { answer_takes: time, ..self }
    }

    /// Holds the call before its effect, until [`ScriptedPort::release`].
    pub const fn held(self) -> Self {
        Self { is_held: true, ..self }
    }
}

impl ScriptedPort {
    /// Creates a script whose calls pass. Its times pass on this clock.
    pub fn new(clock: &Clock) -> Self {
        Self::with(clock, |can| can, true)
    }

    /// Creates a script whose ports have changed capabilities.
    pub fn changing(
        clock: &Clock,
        capabilities: impl Fn(Capabilities) -> Capabilities + Send + Sync + 'static,
    ) -> Self {
        Self::with(clock, capabilities, true)
    }

    /// Creates a script whose queues have no address: deliveries cannot be forwarded to them, as to
    /// queues of another engine.
    pub fn elsewhere(clock: &Clock) -> Self {
        Self::with(clock, |can| can, false)
    }

    fn with(
        clock: &Clock,
        capabilities: impl Fn(Capabilities) -> Capabilities + Send + Sync + 'static,
        has_address: bool,
    ) -> Self {
        let capabilities = Box::new(capabilities);
        let rule: Rule = Box::new(|_| PortAnswer::pass());
        let (rule, log, releases) = (Mutex::new(rule), Mutex::default(), watch::Sender::new(0));
        Self(Arc::new(Script { clock: clock.clone(), rule, log, releases, capabilities, has_address }))
    }

    /// Replaces the rule.
    pub fn by(&self, rule: impl FnMut(&PortCall) -> PortAnswer + Send + 'static) {
        *self.0.rule.lock() = Box::new(rule);
    }

    /// Gives all calls of this method this answer, and lets all others pass; `""` is all methods.
    pub fn always(&self, method: &'static str, answer: PortAnswer) {
        self.by(move |call| if method.is_empty() || call.method == method { answer } else { PortAnswer::pass() });
    }

    /// Lets the calls go on that are held now.
    pub fn release(&self) {
        self.0.releases.send_modify(|releases| *releases += 1);
    }

    /// Returns the calls of this method so far, oldest first; `""` is all methods.
    pub fn calls(&self, method: &str) -> Vec<PortCall> {
        let log = self.log();
        log.calls[log.from..].iter().filter(|call| method.is_empty() || call.method == method).cloned().collect()
    }

    /// Forgets the calls so far. Their numbers go on.
    pub fn forget(&self) {
        let mut log = self.log();
        log.from = log.calls.len();
    }

    /// Returns the store with this script.
    pub fn store(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Behind { link: self.clone(), port: store })
    }

    /// Returns the queue with this script.
    pub fn queue(&self, queue: Arc<dyn Queue>) -> Arc<dyn Queue> {
        Arc::new(Behind { link: self.clone(), port: queue })
    }

    /// Returns the leases with this script.
    pub fn lease(&self, lease: Arc<dyn Lease>) -> Arc<dyn Lease> {
        Arc::new(Behind { link: self.clone(), port: lease })
    }

    /// Returns the notifier with this script.
    pub fn notifier(&self, notifier: Arc<dyn Notifier>) -> Arc<dyn Notifier> {
        Arc::new(Behind { link: self.clone(), port: notifier })
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.log.lock()
    }

    /// Records a call, and returns its answer by the rule.
    fn begin(&self, request: Request) -> (Ends<'_>, PortAnswer) {
        let (method, target) = (request.method, request.into_target());
        let (index, call) = {
            let mut log = self.log();
            let number = log.numbers.entry(method).or_default();
            *number += 1;
            let call = PortCall { method, target, number: *number, began: self.0.clock.now(), ended: None };
            log.calls.push(call.clone());
            (log.calls.len() - 1, call)
        };
        (Ends { port: self, index }, (self.0.rule.lock())(&call))
    }
}

/// Records the end of a call on drop.
struct Ends<'a> {
    port: &'a ScriptedPort,
    index: usize,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let now = self.port.0.clock.now();
        if let Some(call) = self.port.log().calls.get_mut(self.index) {
            call.ended = Some(now);
        }
    }
}

impl Link for ScriptedPort {
    type Name = Request;

    fn name(&self, request: impl FnOnce() -> Request) -> Request {
        request()
    }

    fn capabilities(&self, can: Capabilities) -> Capabilities {
        (self.0.capabilities)(can)
    }

    fn address(&self, address: Option<Address>) -> Option<Address> {
        address.filter(|_| self.0.has_address)
    }

    async fn pass<T: Send + 'static, E: From<PortError> + Send + 'static>(
        &self,
        request: Request,
        mut apply: impl FnMut() -> BoxFuture<'static, Result<T, E>> + Send + 'static,
    ) -> Result<T, E> {
        let what = request.to_string();
        let (_ends, PortAnswer { outcome, request_takes, answer_takes, is_held }) = self.begin(request);
        let clock = &self.0.clock;
        if !request_takes.is_zero() {
            clock.sleep(request_takes).await;
        }
        if is_held {
            // The sender is in the script, so the channel stays open.
            let _ = self.0.releases.subscribe().changed().await;
        }
        let error = |kind, what| PortError::new(kind, what);
        match outcome {
            Outcome::Fail(kind) => return Err(error(kind, format!("scripted: {what} failed")).into()),
            Outcome::Hang => pending().await,
            Outcome::Pass | Outcome::Lose(_) | Outcome::Silent => {}
        }
        let answer = apply().await;
        if !answer_takes.is_zero() {
            clock.sleep(answer_takes).await;
        }
        match outcome {
            Outcome::Lose(kind) => {
                answer?;
                Err(error(kind, format!("scripted: the answer to {what} is lost")).outcome_unknown().into())
            }
            Outcome::Silent => pending().await,
            _ => answer,
        }
    }
}

crate::build::debug_fields!(ScriptedPort, |this| calls: this.log().calls.len());
