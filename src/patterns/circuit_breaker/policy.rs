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
    CircuitBreakerConfig, CircuitBreakerEvent, Permit, State, Transition,
    plan::Setting,
    state::{Core, Refusal, Ticket},
};
use crate::{
    call::{self, Attempt, CallContext, Cold, Explanation, Operation, Policy},
    config::{ConfigError, Name},
    entropy::Entropy,
    observe::Subscription,
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
    pub(super) shared: Arc<Shared>,
}

/// What the members of a family have in common; a breaker alone has it to itself.
pub(super) struct Shared {
    pub(super) set: Setting,
    pub(super) clock: Clock,
    /// Of a whole family; each member has one of its own as well.
    pub(super) shadow: AtomicBool,
}

impl Shared {
    pub(super) fn new(set: Setting, clock: Clock) -> Self {
        Self { set, clock, shadow: AtomicBool::new(false) }
    }
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
        let shared = Shared::new(Setting::new(config, entropy, None), clock);
        Self::member(Arc::new(shared), &config, name)
    }

    /// A breaker that shares settings with others, which are these now.
    pub(super) fn member(shared: Arc<Shared>, config: &CircuitBreakerConfig, name: Option<Name>) -> Self {
        let core = Core::new(config, shared.clock.now(), name);
        if let Some(fleet) = &shared.set.fleet {
            fleet.join();
        }
        Self(Arc::new(Inner { core, shared }))
    }

    /// A new breaker of the same settings with a name, for errors and events.
    #[must_use]
    pub fn named(self, name: impl Into<Name>) -> Self {
        let Shared { set, clock, .. } = &*self.0.shared;
        Self::make(set.config(), clock.clone(), set.entropy.clone(), Some(name.into()))
    }

    /// A new breaker of the same settings on another clock.
    #[must_use]
    pub fn with_clock(self, clock: &Clock) -> Self {
        let set = &self.0.shared.set;
        Self::make(set.config(), clock.clone(), set.entropy.clone(), self.0.core.name.clone())
    }

    /// A new breaker of the same settings with other randomness for its jitter.
    #[must_use]
    pub fn with_entropy(self, entropy: &Entropy) -> Self {
        let Shared { set, clock, .. } = &*self.0.shared;
        Self::make(set.config(), clock.clone(), entropy.clone(), self.0.core.name.clone())
    }

    /// Its settings, as they are now.
    pub fn config(&self) -> CircuitBreakerConfig {
        self.0.shared.set.config()
    }

    /// Replaces its settings while it is in use, for all its clones.
    ///
    /// It stays in the state that it is in, for as long as it was to stay there; openings in a row, totals, and calls under way go on
    /// counting. A count window keeps its last outcomes, as many as the new one holds; a time window keeps them if the new one is just
    /// as long and has as many buckets; a row of failures, and weights over the same period, are kept. What is kept is judged by the new
    /// rules at once, so a rule that is broken already opens it now.
    ///
    /// A member of [`KeyedBreakers`](super::KeyedBreakers) shares its settings with all of them: replace the family's.
    ///
    /// # Errors
    /// Where a setting breaks its rule; then nothing has changed.
    pub fn reconfigure(&self, config: CircuitBreakerConfig) -> Result<(), ConfigError> {
        config.check()?;
        let Shared { set, clock, .. } = &*self.0.shared;
        crate::config::require(set.fleet.is_none(), "circuit_breaker", "belongs to a family: reconfigure that")?;
        set.replace(config);
        let now = clock.now();
        set.events.stage_as(self.0.core.name.as_ref(), now, || CircuitBreakerEvent::Reconfigured);
        self.0.core.reconfigured(set, now);
        self.0.flush();
        Ok(())
    }

    /// Its name.
    pub fn name(&self) -> Option<&str> {
        self.0.core.name.as_ref().map(Name::as_str)
    }

    /// Its events from now on. (Of a member of [`KeyedBreakers`](super::KeyedBreakers): those of its whole family.)
    pub fn events(&self) -> Subscription<CircuitBreakerEvent> {
        self.0.shared.set.events.subscribe()
    }

    /// Its changes of state from now on, and nothing else: however many calls it rejects meanwhile, a follower misses none before
    /// there are a thousand that it has not taken. (Of a member of a family: those of all.)
    pub fn transitions(&self) -> Subscription<Transition> {
        self.0.shared.set.transitions.subscribe()
    }

    /// What it does with calls now.
    pub fn state(&self) -> State {
        self.0.core.word().state()
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
        self.by_hand(|core, set, now| core.isolate(set, now));
    }

    /// Closes it, with an empty window, for all calls at once, without a ramp. Earlier openings are remembered: should it open soon
    /// again, it stays open for longer.
    pub fn close(&self) {
        self.by_hand(|core, set, now| core.close_by_hand(set, now, false));
    }

    /// Closes it and forgets all that was, but the totals.
    pub fn reset(&self) {
        self.by_hand(|core, set, now| core.close_by_hand(set, now, true));
    }

    /// Opens it for `d`, after which it probes.
    pub fn force_open(&self, d: Duration) {
        self.by_hand(|core, set, now| core.open_by_hand(set, now, d));
    }

    fn by_hand(&self, act: impl FnOnce(&Core, &Setting, Instant)) {
        let Inner { core, shared } = &*self.0;
        act(core, &shared.set, shared.clock.now());
        self.0.flush();
    }

    /// Turns shadow mode on or off: on, it measures and changes its state as ever, but rejects nothing. For trying settings on
    /// real traffic; its events tell what it would have done.
    pub fn set_shadow(&self, on: bool) {
        self.0.core.shadow.store(on, Relaxed);
    }

    /// Whether it is in shadow mode.
    pub fn is_shadow(&self) -> bool {
        self.0.is_shadow()
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
        let Shared { set, clock, .. } = &*self.shared;
        let admitted = self.core.admit(set, || clock.now());
        if set.events.wanted() || set.transitions.wanted() {
            self.tell_admission(admitted.is_err());
        }
        match admitted {
            Err(_) if self.is_shadow() => Ok(None),
            admitted => admitted.map(Some),
        }
    }

    fn is_shadow(&self) -> bool {
        self.core.shadow.load(Relaxed) || self.shared.shadow.load(Relaxed)
    }

    #[cold]
    #[inline(never)]
    fn tell_admission(&self, refused: bool) {
        let Shared { set, clock, .. } = &*self.shared;
        if refused && set.events.wanted() {
            set.events.stage_as(self.core.name.as_ref(), clock.now(), || CircuitBreakerEvent::Rejected);
        }
        self.flush();
    }

    #[inline]
    fn rejected(&self, refusal: Refusal) -> Rejected {
        let reason = match refusal {
            Refusal::Open { since, rule, last, .. } => Reason::CircuitOpen { since, rule, last },
            Refusal::Isolated { since } => Reason::Isolated { since },
            Refusal::ProbesTaken => Reason::ProbesTaken,
            Refusal::RampingUp => Reason::RampingUp,
        };
        let wait = if let Refusal::Open { wait, .. } = refusal { Some(wait) } else { None };
        Rejected::by_policy(PolicyKind::CircuitBreaker, self.core.name.as_ref(), reason, wait)
    }

    pub(super) fn flush(&self) {
        self.shared.set.transitions.flush(None);
        self.shared.set.events.flush(None);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(fleet) = &self.shared.set.fleet {
            if !self.core.word().is_closed() {
                fleet.closed();
            }
            fleet.leave();
        }
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
            permit.settle_other(outcome, inner.call_state());
        }
        outcome
    }

    fn describe(&self, explanation: &mut Explanation) {
        explanation.push(super::explain::layer(&self.config(), self.0.core.name.clone()));
    }
}

impl fmt::Debug for CircuitBreaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CircuitBreaker")
            .field("name", &self.0.core.name)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
