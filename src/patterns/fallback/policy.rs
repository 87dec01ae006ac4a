//! The policy.
//
// Settings in use: calls read two independent words, `after` and `timeout`, both stored while the
// lock of `config` is held. `Relaxed` suffices, as neither publishes other data. A call that fails
// during a change may combine the old `after` with the new `timeout`; both were valid, so the call
// falls back or not, and its fallback gets one of the two limits.
use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{FallbackConfig, FallbackEvent};
use crate::{
    build::{Builder, Common, Component, HasEvents, HasName},
    call::{
        self, Answered, Attempt, BlockingOperation, CallContext, Cold, Deadline, Explanation, Failed, FellBack, Layer,
        Operation, Policy, Repeats, Timed,
    },
    config::{ConfigError, Name, Reconfigure, reconfigurable},
    observe::{Events, Subscription},
    outcome::{CallError, Cause, FailureKind, Outcome, PolicyKind, TimedOut},
    sync::Mutex,
    time::{Clock, nanos},
};

/// Replaces the failure of a call with the value of a fallback, within a bounded time.
///
/// A clone is cheap and shares settings and events.
#[derive(Clone)]
pub struct Fallback {
    settings: Arc<FallbackSettings>,
    name: Option<Name>,
    clock: Clock,
    events: Events<FallbackEvent>,
}

/// The settings, which may change while in use. No call takes the lock.
struct FallbackSettings {
    config: Mutex<FallbackConfig>,
    /// Failures after which it falls back, as [`Repeats::to_bits`].
    after: AtomicU16,
    /// `timeout` in nanoseconds: a deadline reads it on its first use.
    timeout: AtomicU64,
}

reconfigurable!(Fallback, FallbackConfig, |_this, next| next.check());

impl Fallback {
    /// Creates a fallback policy.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] if a setting is out of range.
    pub fn new(config: FallbackConfig) -> Result<Self, ConfigError> {
        Self::builder(config).build()
    }

    /// Creates a builder of a fallback policy.
    pub fn builder(config: FallbackConfig) -> Builder<Self> {
        Builder::new(config)
    }

    /// Creates a policy from settings that were checked before.
    pub(crate) fn make(config: FallbackConfig, Common { name, clock, hooks, .. }: Common) -> Self {
        let timeout = AtomicU64::new(nanos(config.timeout));
        let after = AtomicU16::new(after(&config).to_bits());
        let settings = Arc::new(FallbackSettings { config: Mutex::new(config), after, timeout });
        Self { settings, name, clock, events: hooks.events() }
    }

    /// Returns the current settings.
    pub fn config(&self) -> FallbackConfig {
        *self.settings.config.lock()
    }

    /// Returns the name, if one is set.
    pub fn name(&self) -> Option<&str> {
        self.name.as_ref().map(Name::as_str)
    }

    /// Replaces the settings while in use, for all clones. A running fallback keeps its time; calls
    /// in flight that fail later use the new settings.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] if a setting is out of range. Nothing has changed then.
    pub fn reconfigure(&self, config: FallbackConfig) -> Result<(), ConfigError> {
        self.validate(&config)?;
        let mut current = self.settings.config.lock();
        *current = config;
        self.settings.after.store(after(&config).to_bits(), Relaxed);
        self.settings.timeout.store(nanos(config.timeout), Relaxed);
        Ok(())
    }

    /// Subscribes to events, from now on.
    pub fn events(&self) -> Subscription<FallbackEvent> {
        self.events.subscribe()
    }

    /// Runs `operation` under this fallback policy alone, with the fallback `instead` as in
    /// [`Pipeline::call_or`](crate::Pipeline::call_or); every `Err` is a failure.
    ///
    /// # Errors
    /// Returns the operation's own error. If the fallback also failed,
    /// [`CallError::fallback`](crate::CallError::fallback) returns its error.
    ///
    /// # Cancel safety
    /// If the future is dropped, the operation is dropped, or the fallback if that is running.
    #[inline]
    pub fn call<T: Send, E: Send, O: Operation<Output = T, Error = E>, F, Fut>(
        &self,
        operation: O,
        instead: F,
    ) -> impl Future<Output = Result<T, CallError<E>>> + Send
    where
        F: FnOnce(Failed<'_, T, E>) -> Fut + Send,
        Fut: Future<Output = Result<T, E>> + Send,
    {
        call::call_alone_or(self, operation, instead)
    }

    /// As [`call`](Self::call), with a marked value, as
    /// [`Pipeline::call_or_marked`](crate::Pipeline::call_or_marked).
    ///
    /// # Errors
    /// As [`call`](Self::call).
    ///
    /// # Cancel safety
    /// As [`call`](Self::call).
    #[inline]
    pub fn call_marked<T: Send, E: Send, O: Operation<Output = T, Error = E>, F, Fut>(
        &self,
        operation: O,
        instead: F,
    ) -> impl Future<Output = Answered<T, E>> + Send
    where
        F: FnOnce(Failed<'_, T, E>) -> Fut + Send,
        Fut: Future<Output = Result<T, E>> + Send,
    {
        call::call_alone_or_marked(self, operation, instead)
    }

    /// As [`call`](Self::call), for an operation and a fallback that are not async: blocks this
    /// thread. See [`Pipeline::call_blocking_or`](crate::Pipeline::call_blocking_or).
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_blocking<T: Send, E: Send>(
        &self,
        operation: impl BlockingOperation<Output = T, Error = E>,
        instead: impl FnOnce(Failed<'_, T, E>) -> Result<T, E>,
    ) -> Result<T, CallError<E>> {
        call::call_alone_blocking_or(self, operation, instead)
    }

    /// Decides the result of a call whose inner policies returned `outcome`.
    #[inline]
    pub(crate) async fn settle<A: Attempt>(&self, mut inner: A, outcome: Outcome, cx: CallContext<'_>) -> Outcome {
        if !outcome.is_failure() && outcome != Outcome::Rejected {
            return outcome;
        }
        inner.claim_fallback();
        if !Repeats::from_bits(self.settings.after.load(Relaxed)).has(outcome.kind()) {
            return outcome;
        }
        Cold::new(self.fall_back(inner, outcome, cx)).await
    }

    /// Runs the fallback.
    async fn fall_back<A: Attempt>(&self, mut inner: A, outcome: Outcome, cx: CallContext<'_>) -> Outcome {
        // Before the fallback, whose value replaces the cause.
        let after = self.events.wanted().then(|| Box::new(inner.call_state().cause_of(outcome)));
        let deadline = Deadline::new(&self.clock, &self.settings.timeout, cx);
        let frame = cx.until(&deadline);
        let fell = Timed::new(inner.fall_back(frame.context()), deadline.over()).await;
        // The fallback is dropped by now, before its time-out is reported.
        match fell {
            Some(FellBack::Nowhere) => outcome,
            Some(FellBack::Done) => {
                self.tell(after, |after| FallbackEvent::FellBack { after });
                Outcome::Judged(crate::outcome::Class::Success)
            }
            Some(FellBack::Failed { kind }) => {
                self.tell(after, |after| FallbackEvent::Failed { after, kind });
                outcome
            }
            None => {
                let given = deadline.given();
                inner.call_state().fallback_timed_out(TimedOut { name: self.name.clone(), after: given });
                self.tell(after, |after| FallbackEvent::TimedOut { after, given });
                outcome
            }
        }
    }

    /// Sends an event, if one was wanted when the fallback began.
    fn tell(&self, after: Option<Box<Cause<FailureKind>>>, event: impl FnOnce(Cause<FailureKind>) -> FallbackEvent) {
        if let Some(after) = after {
            self.events.send(self.name.as_ref(), self.clock.now(), || event(*after));
        }
    }
}

/// Returns the failures after which a policy with these settings falls back.
fn after(config: &FallbackConfig) -> Repeats {
    Repeats::new(config.fall_back_on, config.on_rejections)
}

impl Component for Fallback {
    type Built = Result<Self, ConfigError>;
    type Spec = FallbackConfig;

    fn assemble(spec: FallbackConfig, common: Common) -> Self::Built {
        spec.check()?;
        Ok(Self::make(spec, common))
    }
}

impl HasName for Fallback {}
impl HasEvents<FallbackEvent> for Fallback {}

impl Policy for Fallback {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        inner.claim_fallback();
        let outcome = inner.attempt(cx).await;
        self.settle(inner, outcome, cx).await
    }

    fn describe(&self, explanation: &mut Explanation) {
        let FallbackConfig { fall_back_on, on_rejections, timeout } = self.config();
        let kinds: Vec<_> = fall_back_on.iter().map(|kind| kind.as_str()).collect();
        let rejections = if on_rejections { "rejections" } else { "no rejections" };
        let within = match timeout {
            Duration::MAX => "without a time limit".to_owned(),
            timeout => format!("within {timeout:?}"),
        };
        let settings = format!("a fallback after {} and {rejections}, {within}", kinds.join(", "));
        explanation.push(Layer::new(PolicyKind::Fallback, self.name.clone(), settings).with_component(self));
    }

    fn has_fallback(&self) -> bool {
        true
    }
}

crate::build::debug_fields!(Fallback, |this| name: this.name, config: this.config());
