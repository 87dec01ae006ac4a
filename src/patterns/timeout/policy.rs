//! The policy.
use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::TimeoutEvent;
use crate::{
    build::{Builder, Common, Component, HasEvents, HasName},
    call::{self, Attempt, CallContext, Cold, Deadline, Explanation, Layer, Operation, Policy, Timed},
    config::{ConfigError, Effect, Name, Reconfigure},
    observe::{Events, Subscription},
    outcome::{CallError, FailureKind, Outcome, PolicyKind, TimedOut, Verdict},
    time::{Clock, nanos},
};

/// Bounds the time of the work inside it.
///
/// The time counts from the first wait of the work: work that is ready at once reads no clock and
/// arms no timer. The deadline travels inwards, so an inner time-out is clipped to the rest of an
/// outer one. Clones share the limit and the events.
#[derive(Clone, Debug)]
pub struct Timeout {
    /// Nanoseconds; `u64::MAX` for no limit. One word that stands for itself, so `Relaxed`
    /// suffices: a call reads either the old or the new limit.
    limit: Arc<AtomicU64>,
    name: Option<Name>,
    clock: Clock,
    events: Events<TimeoutEvent>,
}

impl Reconfigure<Duration> for Timeout {
    fn config(&self) -> Duration {
        self.limit()
    }

    fn validate(&self, next: &Duration) -> Result<Effect, ConfigError> {
        Ok(Effect::of_change(&self.limit(), next))
    }

    fn apply(&self, next: Duration) -> Result<(), ConfigError> {
        self.reconfigure(next)
    }
}

impl Timeout {
    /// Creates a time-out of `limit`. Zero polls the work once; [`Duration::MAX`] never fires.
    pub fn new(limit: Duration) -> Self {
        Self::builder(limit).build()
    }

    /// Creates a builder of a time-out.
    pub fn builder(limit: Duration) -> Builder<Self> {
        Builder::new(limit)
    }

    /// Returns the current limit.
    pub fn limit(&self) -> Duration {
        match self.limit.load(Ordering::Relaxed) {
            u64::MAX => Duration::MAX,
            limit => Duration::from_nanos(limit),
        }
    }

    /// Changes the limit while in use. A call that already waits keeps its limit; later ones get
    /// the new one.
    ///
    /// # Errors
    /// Never: every limit is valid. The result is that of every `reconfigure` of the crate.
    pub fn reconfigure(&self, limit: Duration) -> Result<(), ConfigError> {
        self.limit.store(nanos(limit), Ordering::Relaxed);
        Ok(())
    }

    /// Subscribes to events, from now on.
    pub fn events(&self) -> Subscription<TimeoutEvent> {
        self.events.subscribe()
    }

    /// Runs `operation` under this time-out alone.
    ///
    /// # Errors
    /// Returns the operation's own error, or the time-out.
    ///
    /// # Cancel safety
    /// If the future is dropped, the operation is dropped.
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
            let deadline = Deadline::new(&self.clock, &self.limit, cx);
            let frame = cx.until(&deadline);
            let done = Timed::new(operation.run(frame.context()), deadline.over()).await;
            // The work is dropped by now, before the time-out is reported.
            match done {
                Some(Ok(value)) => Ok(value),
                Some(Err(error)) => Err(call::alone::failed(error)),
                None => Err(call::alone::timed_out(self.timed_out(&deadline), cx)),
            }
        }
    }
}

impl Timeout {
    /// Returns `true` if the deadline of a call has passed before it begins.
    #[inline]
    fn is_late(&self, cx: CallContext<'_>) -> bool {
        cx.entered_with_deadline().is_some_and(|deadline| deadline <= self.clock.now())
    }

    /// Reports the time-out.
    #[cold]
    fn timed_out(&self, deadline: &Deadline<'_>) -> TimedOut {
        let at = deadline.at(); // first: what was given is known from then on
        let after = deadline.given();
        self.events.send(self.name.as_ref(), at, || TimeoutEvent::TimedOut { after });
        TimedOut { name: self.name.clone(), after }
    }
}

impl Component for Timeout {
    type Built = Self;
    type Spec = Duration;

    fn assemble(limit: Duration, Common { name, clock, hooks, .. }: Common) -> Self {
        Self { limit: Arc::new(AtomicU64::new(nanos(limit))), name, clock, events: hooks.events() }
    }
}

impl HasName for Timeout {}
impl HasEvents<TimeoutEvent> for Timeout {}

call::blocking_door!(Timeout);

impl Policy for Timeout {
    #[inline]
    fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        async move {
            let deadline = Deadline::new(&self.clock, &self.limit, cx);
            let frame = cx.until(&deadline);
            if !self.is_late(cx) {
                let done = Timed::new(inner.attempt(frame.context()), deadline.over()).await;
                // The work is dropped by now, before the time-out is reported.
                if let Some(outcome) = done {
                    return outcome;
                }
            }
            inner.call_state().time_out(self.timed_out(&deadline));
            Outcome::Judged(Verdict::failure(FailureKind::Timeout).class())
        }
    }

    fn describe(&self, explanation: &mut Explanation) {
        let settings = format!("at most {:?}", self.limit());
        let layer = Layer::new(PolicyKind::Timeout, self.name.clone(), settings).with_timeout(self.limit());
        explanation.push(layer.with_component(self));
    }
}
