//! The breaker: the machine with a clock, a name and events around it.
use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{
    CircuitBreakerConfig, CircuitBreakerEvent, Permit, State, WindowConfig,
    shared::Changed,
    state::{Core, Refusal, Setting, Ticket},
};
use crate::{
    call::{self, Attempt, CallContext, Cold, Explanation, Layer, Operation, Policy},
    config::{ConfigError, Name},
    entropy::Entropy,
    observe::{Events, Subscription},
    outcome::{CallError, Class, Outcome, PolicyKind, Reason, Rejected, Verdict},
    time::{Clock, Instant},
};

/// Lets calls pass while they succeed, and rejects them for a while when too many fail.
///
/// A clone is the same breaker. One breaker stands for one other side: one service, one shard, one host.
#[derive(Clone)]
pub struct CircuitBreaker(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) core: Core,
    pub(super) set: Setting,
    pub(super) clock: Clock,
    name: Option<Name>,
    shadow: AtomicBool,
    /// Whether a rule needs to know how long a call took.
    pub(super) times_calls: bool,
    pub(super) changed: Changed,
}

/// What a breaker looks like at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Its state. An open breaker whose time is over is open until a call comes.
    pub state: State,
    /// Calls, failures and slow calls in its window.
    pub calls: u64,
    /// Failures in its window.
    pub failures: u64,
    /// Slow calls in its window.
    pub slow: u64,
    /// Openings in a row.
    pub openings: u32,
    /// Calls rejected since it was made.
    pub rejected: u64,
    /// Since when it is open or isolated.
    pub since: Option<Instant>,
    /// How long it stays open yet.
    pub retry_after: Option<Duration>,
}

impl CircuitBreaker {
    /// A closed breaker by these settings.
    ///
    /// # Errors
    /// Where a setting breaks its rule.
    pub fn new(config: CircuitBreakerConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::make(config, Clock::tokio(), Entropy::from_os(), None))
    }

    /// For settings that were checked before.
    pub(crate) fn make(config: CircuitBreakerConfig, clock: Clock, entropy: Entropy, name: Option<Name>) -> Self {
        Self(Arc::new(Inner {
            core: Core::new(&config),
            times_calls: config.trip.slow_call.is_some() || config.count_drop_after.is_some(),
            set: Setting { config, entropy, events: Events::new() },
            clock,
            name,
            shadow: AtomicBool::new(false),
            changed: Changed::new(),
        }))
    }

    /// A new breaker of the same settings with a name, for errors and events.
    #[must_use]
    pub fn named(self, name: impl Into<Name>) -> Self {
        Self::make(self.0.set.config, self.0.clock.clone(), self.0.set.entropy.clone(), Some(name.into()))
    }

    /// A new breaker of the same settings on another clock.
    #[must_use]
    pub fn with_clock(self, clock: &Clock) -> Self {
        Self::make(self.0.set.config, clock.clone(), self.0.set.entropy.clone(), self.0.name.clone())
    }

    /// A new breaker of the same settings with other randomness for its jitter.
    #[must_use]
    pub fn with_entropy(self, entropy: &Entropy) -> Self {
        Self::make(self.0.set.config, self.0.clock.clone(), entropy.clone(), self.0.name.clone())
    }

    /// Its settings.
    pub fn config(&self) -> &CircuitBreakerConfig {
        &self.0.set.config
    }

    /// Its name.
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_ref().map(Name::as_str)
    }

    /// Its events from now on.
    pub fn events(&self) -> Subscription<CircuitBreakerEvent> {
        self.0.set.events.subscribe()
    }

    /// What it does with calls now.
    pub fn state(&self) -> State {
        self.0.core.word().state()
    }

    /// What it looks like now. Takes its lock for a moment: for dashboards, not for every call.
    pub fn snapshot(&self) -> Snapshot {
        let Inner { core, set, clock, .. } = &*self.0;
        let now = clock.now();
        let (openings, counts) = core.figures(&set.config, now);
        let state = self.state();
        Snapshot {
            state,
            calls: counts.calls,
            failures: counts.failures,
            slow: counts.slow,
            openings,
            rejected: core.rejected(),
            since: matches!(state, State::Open | State::Isolated).then(|| core.since()),
            retry_after: (state == State::Open).then(|| core.until() - now),
        }
    }

    /// Asks to make a call.
    ///
    /// # Errors
    /// The rejection, with the state's reason and the time to come back.
    #[inline]
    pub fn try_acquire(&self) -> Result<Permit<'_>, Rejected> {
        match self.0.admit() {
            Ok(ticket) => Ok(Permit::new(&self.0, ticket)),
            Err(refusal) => Err(self.0.rejected(refusal)),
        }
    }

    /// Runs `operation` with nothing but this breaker around it; every `Err` is a failure.
    ///
    /// # Errors
    /// The operation's own, or the rejection.
    ///
    /// # Cancel safety
    /// Dropped, it drops the operation; the call counts as cancelled.
    #[inline]
    pub fn call<O: Operation>(
        &self,
        operation: O,
    ) -> impl Future<Output = Result<O::Output, CallError<O::Error>>> + Send {
        self.alone(operation)
    }

    /// A call with nothing else around it.
    #[inline]
    async fn alone<O: Operation>(&self, mut operation: O) -> Result<O::Output, CallError<O::Error>> {
        if call::alone::is_traced() {
            return Cold::new(Box::pin(call::call_alone(self, operation))).await;
        }
        let cx = CallContext::of(&operation);
        let ticket = match self.0.admit() {
            Ok(ticket) => ticket,
            Err(refusal) => return Err(call::alone::refused(self.0.rejected(refusal))),
        };
        let mut permit = Permit::new(&self.0, ticket);
        let result = {
            let mut work = pin!(permit.run(|| operation.run(cx)));
            poll_fn(|task| permit.run(|| work.as_mut().poll(task))).await
        };
        match result {
            Ok(value) => {
                permit.settle(Verdict::success());
                Ok(value)
            }
            Err(error) => {
                permit.settle_failure();
                Err(call::alone::failed(error))
            }
        }
    }

    /// Opens it until somebody [closes](Self::close) it: it does not probe by itself.
    pub fn isolate(&self) {
        self.0.core.isolate(&self.0.set, self.0.clock.now());
        self.0.flush();
    }

    /// Closes it, with an empty window. Earlier openings are remembered: should it open soon again, it stays open for longer.
    pub fn close(&self) {
        self.0.core.close_by_hand(&self.0.set, self.0.clock.now(), false);
        self.0.flush();
    }

    /// Closes it and forgets all that was.
    pub fn reset(&self) {
        self.0.core.close_by_hand(&self.0.set, self.0.clock.now(), true);
        self.0.flush();
    }

    /// Opens it for `d`, after which it probes.
    pub fn force_open(&self, d: Duration) {
        self.0.core.open_by_hand(&self.0.set, self.0.clock.now(), d);
        self.0.flush();
    }

    /// Turns shadow mode on or off: on, it measures and changes its state as ever, but rejects nothing. For trying settings on
    /// real traffic; its events tell what it would have done.
    pub fn set_shadow(&self, on: bool) {
        self.0.shadow.store(on, Relaxed);
    }

    /// Whether it is in shadow mode.
    pub fn is_shadow(&self) -> bool {
        self.0.shadow.load(Relaxed)
    }
}

#[cfg(all(test, not(steadfast_loom)))]
impl CircuitBreaker {
    /// Sets the number of recorded outcomes, in a window that is full.
    pub(super) fn set_count_for_test(&self, count: u32) {
        let word = self.0.core.word();
        self.0.core.word.store(word.with_count(count).0, crate::sync::Ordering::SeqCst);
    }
}

impl Inner {
    /// Asks to make a call. No ticket: it is not closed, but shadow mode lets the call pass.
    ///
    /// Gives what is small: a whole permit or rejection, handed over by a function, goes through memory.
    #[inline]
    fn admit(&self) -> Result<Option<Ticket>, Refusal> {
        match self.core.admit_closed() {
            Some(ticket) => Ok(Some(ticket)),
            None => self.admit_unhealthy(),
        }
    }

    #[inline(never)]
    fn admit_unhealthy(&self) -> Result<Option<Ticket>, Refusal> {
        let admitted = self.core.admit(&self.set, || self.clock.now());
        if self.set.events.wanted() {
            self.tell_admission(admitted.is_err());
        }
        match admitted {
            Err(_) if self.shadow.load(Relaxed) => Ok(None),
            admitted => admitted.map(Some),
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_admission(&self, refused: bool) {
        if refused {
            self.set.events.stage(self.clock.now(), || CircuitBreakerEvent::Rejected);
        }
        self.flush();
    }

    #[inline]
    fn rejected(&self, refusal: Refusal) -> Rejected {
        let reason = match refusal {
            Refusal::Open { since, rule, last, .. } => Reason::CircuitOpen { since, rule, last },
            Refusal::Isolated { since } => Reason::Isolated { since },
            Refusal::ProbesTaken => Reason::ProbesTaken,
        };
        let wait = if let Refusal::Open { wait, .. } = refusal { Some(wait) } else { None };
        Rejected::by_policy(PolicyKind::CircuitBreaker, self.name.as_ref(), reason, wait)
    }

    pub(super) fn flush(&self) {
        self.set.events.flush(self.name.as_ref());
        self.changed.tell(self.core.word().generation());
    }
}

impl Policy for CircuitBreaker {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        let ticket = match self.0.admit() {
            Ok(ticket) => ticket,
            Err(refusal) => return inner.refuse(self.0.rejected(refusal)),
        };
        let mut permit = Permit::new(&self.0, ticket);
        let outcome = {
            let mut work = pin!(inner.attempt(cx));
            poll_fn(|task| permit.run(|| work.as_mut().poll(task))).await
        };
        if outcome == Outcome::Judged(Class::Success) {
            permit.settle(Verdict::success());
        } else {
            permit.settle_other(outcome, inner.ledger());
        }
        outcome
    }

    fn describe(&self, explanation: &mut Explanation) {
        let CircuitBreakerConfig { window, min_calls, trip, open, .. } = &self.0.set.config;
        let over = match window {
            WindowConfig::Calls { calls } => format!("the last {calls} calls"),
            WindowConfig::Time { time, .. } => format!("the last {time:?}"),
        };
        let percent =
            |share: f64| format!("{:.3}", share * 100.0).trim_end_matches(['0']).trim_end_matches('.').to_owned();
        let rules: Vec<String> = [
            trip.failure_rate.map(|r| format!("{} % failures over {over} (at least {min_calls})", percent(r))),
            trip.slow_call_rate.map(|r| {
                let slow = trip.slow_call.unwrap_or_default();
                format!("{} % slower than {slow:?} over {over} (at least {min_calls})", percent(r))
            }),
            trip.consecutive_failures.map(|n| format!("{n} failures in a row")),
            trip.weight.map(|w| format!("failures of weight {w} within {:?}", trip.weight_period.unwrap_or_default())),
        ]
        .into_iter()
        .flatten()
        .collect();
        let settings = format!("opens on {}; for {:?} to {:?}", rules.join(", or "), open.base, open.cap);
        explanation.push(Layer::new(PolicyKind::CircuitBreaker, self.0.name.clone(), settings));
    }
}

impl fmt::Debug for CircuitBreaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CircuitBreaker")
            .field("name", &self.0.name)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
