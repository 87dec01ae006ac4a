//! The public breaker: the state machine with a clock, a name and events.
use std::{
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
    state::{Core, Refusal, Ticket},
    window::Setting,
};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents, HasName},
    call::{self, Attempt, CallContext, Cold, Explanation, Operation, Policy},
    config::{ConfigError, Name, Reconfigure, reconfigurable, require},
    observe::Subscription,
    outcome::{CallError, Class, Outcome, PolicyKind, Reason, Rejected},
    time::{Clock, Instant},
};

/// Lets calls pass while they succeed, and rejects them for a time when too many fail.
///
/// A clone is the same breaker. Use one breaker per dependency: one service, one shard, one host.
#[derive(Clone)]
pub struct CircuitBreaker(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) core: Core,
    pub(super) shared: Arc<Shared>,
}

/// State that the breakers of a registry share; a breaker alone has its own.
pub(super) struct Shared {
    pub(super) set: Setting,
    pub(super) clock: Clock,
    /// Shadow mode of the whole registry; each breaker has its own as well.
    pub(super) shadow: AtomicBool,
}

impl Shared {
    pub(super) fn new(set: Setting, clock: Clock) -> Self {
        Self { set, clock, shadow: AtomicBool::new(false) }
    }
}

reconfigurable!(CircuitBreaker, CircuitBreakerConfig, |this, next| {
    next.check()?;
    let belongs_to_none = this.0.shared.set.open_limit.is_none();
    require(belongs_to_none, "circuit_breaker", "belongs to a registry: call `KeyedBreakers::reconfigure` instead")
});

impl CircuitBreaker {
    /// Creates a closed breaker with this configuration.
    ///
    /// # Errors
    /// If a setting is invalid.
    pub fn new(config: CircuitBreakerConfig) -> Result<Self, ConfigError> {
        Self::builder(config).build()
    }

    /// Creates a builder of a closed breaker.
    pub fn builder(config: CircuitBreakerConfig) -> Builder<Self> {
        Builder::new(config)
    }

    /// Creates a closed breaker with a configuration that has been checked.
    pub(crate) fn make(config: CircuitBreakerConfig, common: Common) -> Self {
        let shared = Shared::new(Setting::new(config, &common, None), common.clock);
        Self::member(Arc::new(shared), &config, common.name)
    }

    /// Returns a closed breaker that shares settings with others; `config` is their current
    /// configuration.
    pub(super) fn member(shared: Arc<Shared>, config: &CircuitBreakerConfig, name: Option<Name>) -> Self {
        let core = Core::new(config, shared.clock.now(), name);
        if let Some(limit) = &shared.set.open_limit {
            limit.add_member();
        }
        Self(Arc::new(Inner { core, shared }))
    }

    /// Returns the current configuration.
    pub fn config(&self) -> CircuitBreakerConfig {
        self.0.shared.set.config()
    }

    /// Replaces the configuration while it is in use, for all clones.
    ///
    /// The breaker keeps its state and the remaining time in it. Consecutive openings, totals and
    /// calls in flight keep counting. A count window keeps its last outcomes, as many as the new
    /// one holds. A time window keeps its outcomes if the new one has the same length and number of
    /// buckets. Consecutive failures, and weights over the same period, are kept. Kept outcomes are
    /// judged by the new rules at once: a rule that they already break opens the breaker now.
    ///
    /// A breaker of [`KeyedBreakers`](super::KeyedBreakers) shares its configuration with the whole
    /// registry: reconfigure the registry instead.
    ///
    /// # Errors
    /// If a setting is invalid, or the breaker belongs to a registry; then nothing has changed.
    pub fn reconfigure(&self, config: CircuitBreakerConfig) -> Result<(), ConfigError> {
        self.validate(&config)?;
        let Shared { set, clock, .. } = &*self.0.shared;
        set.replace(config);
        let now = clock.now();
        set.events.stage_as(self.0.core.name.as_ref(), now, || CircuitBreakerEvent::Reconfigured);
        self.0.core.reconfigured(set, now);
        self.0.flush();
        Ok(())
    }

    /// Returns the name, if there is one.
    pub fn name(&self) -> Option<&str> {
        self.0.core.name.as_ref().map(Name::as_str)
    }

    /// Subscribes to the events of this breaker, or, for a breaker of
    /// [`KeyedBreakers`](super::KeyedBreakers), of its whole registry.
    pub fn events(&self) -> Subscription<CircuitBreakerEvent> {
        self.0.shared.set.events.subscribe()
    }

    /// Subscribes to the state transitions alone, or, for a breaker of a registry, to those of the
    /// whole registry.
    ///
    /// Rejections, however many, push no transition out: a subscriber misses none until a thousand
    /// are unread.
    pub fn transitions(&self) -> Subscription<Transition> {
        self.0.shared.set.transitions.subscribe()
    }

    /// Returns the current state.
    pub fn state(&self) -> State {
        self.0.core.word().state()
    }

    /// Acquires a permit for one call.
    ///
    /// # Errors
    /// The rejection, with its reason and `retry_after`.
    #[inline]
    pub fn try_acquire(&self) -> Result<Permit<'_>, Rejected> {
        match self.0.admit() {
            Ok(ticket) => Ok(Permit::new(&self.0, ticket)),
            Err(refusal) => Err(self.0.rejected(refusal)),
        }
    }

    /// Runs `operation` with this breaker alone around it; every `Err` is a failure.
    ///
    /// # Errors
    /// The operation's own error, or the rejection.
    ///
    /// # Cancel safety
    /// Dropping the call drops the operation; the call counts as cancelled.
    #[inline]
    pub fn call<T: Send, E: Send, O>(&self, mut operation: O) -> impl Future<Output = Result<T, CallError<E>>> + Send
    where
        O: Operation<Output = T, Error = E>, // `|| async { .. }`; blocks: `call_blocking`; not `Send`: `Pipeline::call_local`; `&mut`: `with_state`
    {
        // Not an `async fn`, which would store the operation twice.
        async move {
            if call::alone::is_traced() {
                return Cold::new(Box::pin(call::call_alone(self, operation))).await;
            }
            let cx = CallContext::of(&operation);
            let ticket = match self.0.admit() {
                Ok(ticket) => ticket,
                Err(refusal) => return Err(self.0.refused(refusal)),
            };
            let mut permit = Permit::new(&self.0, ticket);
            let work = permit.run(|| operation.run(cx));
            match permit.watch(work).await {
                Ok(value) => {
                    permit.settle_success();
                    Ok(value)
                }
                Err(error) => {
                    permit.settle_failure();
                    Err(call::alone::failed(error))
                }
            }
        }
    }

    /// Opens the breaker until it is [closed](Self::close) manually: it does not probe by itself.
    pub fn isolate(&self) {
        self.manually(|core, set, now| core.isolate(set, now));
    }

    /// Closes the breaker, with an empty window and without a slow start. Earlier openings are
    /// remembered: if it opens again soon, it stays open for longer.
    pub fn close(&self) {
        self.manually(|core, set, now| core.close_manually(set, now, false));
    }

    /// Closes the breaker and clears everything but the totals.
    pub fn reset(&self) {
        self.manually(|core, set, now| core.close_manually(set, now, true));
    }

    /// Opens the breaker for `d`, after which it probes.
    pub fn force_open(&self, d: Duration) {
        self.manually(|core, set, now| core.open_manually(set, now, d));
    }

    fn manually(&self, act: impl FnOnce(&Core, &Setting, Instant)) {
        let Inner { core, shared } = &*self.0;
        act(core, &shared.set, shared.clock.now());
        self.0.flush();
    }

    /// Turns shadow mode on or off. In shadow mode, the breaker measures and changes its state, but
    /// rejects nothing. Use it to try settings on real traffic: its events say what the breaker
    /// would have done.
    pub fn set_shadow(&self, on: bool) {
        self.0.core.shadow.store(on, Relaxed);
    }

    /// Returns whether shadow mode is on, for this breaker or its registry.
    pub fn is_shadow(&self) -> bool {
        self.0.is_shadow()
    }

    /// Returns `true` if both are clones of one breaker.
    #[cfg_attr(not(feature = "console"), allow(dead_code, reason = "read by the console alone"))]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
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
    /// Acquires a ticket for one call. `None`: the breaker is not closed, but shadow mode lets the
    /// call pass.
    ///
    /// Returns small values: a whole permit or rejection that a function returns goes through
    /// memory.
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

    /// Returns the error of a call by this breaker alone that was not admitted.
    #[inline(never)]
    fn refused<E>(&self, refusal: Refusal) -> CallError<E> {
        call::alone::refused(self.rejected(refusal))
    }

    #[inline]
    fn rejected(&self, refusal: Refusal) -> Rejected {
        let reason = match refusal {
            Refusal::Open { since, rule, last, .. } => Reason::CircuitOpen { since, rule, last },
            Refusal::Isolated { since } => Reason::Isolated { since },
            Refusal::ProbesTaken => Reason::ProbesTaken,
            Refusal::SlowStart => Reason::SlowStart,
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
        if let Some(limit) = &self.shared.set.open_limit {
            if !self.core.word().is_closed() {
                limit.count_closed();
            }
            limit.remove_member();
        }
    }
}

impl Component for CircuitBreaker {
    type Built = Result<Self, ConfigError>;
    type Spec = CircuitBreakerConfig;

    fn assemble(spec: CircuitBreakerConfig, common: Common) -> Self::Built {
        spec.check()?;
        Ok(Self::make(spec, common))
    }
}

impl HasName for CircuitBreaker {}
impl HasEntropy for CircuitBreaker {}
impl HasEvents<CircuitBreakerEvent> for CircuitBreaker {}
impl HasEvents<Transition> for CircuitBreaker {}

call::blocking_door!(CircuitBreaker);

impl Policy for CircuitBreaker {
    #[inline]
    fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        async move {
            let ticket = match self.0.admit() {
                Ok(ticket) => ticket,
                Err(refusal) => return inner.refuse(self.0.rejected(refusal)),
            };
            let mut permit = Permit::new(&self.0, ticket);
            // Without the type that watches a call alone: in a stack each type counts for the compiler's limit of depth.
            let outcome = {
                let mut work = pin!(inner.attempt(cx));
                poll_fn(|task| permit.run(|| work.as_mut().poll(task))).await
            };
            if outcome == Outcome::Judged(Class::Success) {
                permit.settle_success();
            } else {
                permit.settle_other(outcome, inner.call_state());
            }
            outcome
        }
    }

    fn describe(&self, explanation: &mut Explanation) {
        let layer = super::explain::layer(&self.config(), self.0.core.name.clone());
        explanation.push(layer.with_component(self));
    }
}

crate::build::debug_fields!(CircuitBreaker, |this| name: this.0.core.name, state: this.state());
