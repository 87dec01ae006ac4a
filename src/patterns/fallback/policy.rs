//! The policy.
use std::{
    fmt,
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{FallbackConfig, FallbackEvent, Setback};
use crate::{
    call::{
        self, Answered, Attempt, CallContext, Cold, Deadline, Explanation, Failed, FellBack, Layer, Operation, Policy,
        Repeats,
    },
    config::{ConfigError, Name},
    observe::{Events, Subscription},
    outcome::{Outcome, PolicyKind, TimedOut},
    sync::Mutex,
    time::{Clock, nanos},
};

/// Has a call's substitute take the place of its failure, within a bounded time.
///
/// A clone is cheap and shares settings and events.
#[derive(Clone)]
pub struct Fallback {
    settings: Arc<FallbackSettings>,
    name: Option<Name>,
    clock: Clock,
    events: Events<FallbackEvent>,
}

/// The settings, which may change. No call takes the lock.
struct FallbackSettings {
    config: Mutex<FallbackConfig>,
    /// The failures after which it falls back, as [`Repeats::to_bits`].
    after: AtomicU16,
    /// `timeout` in nanoseconds: a deadline reads it when it is first asked.
    timeout: AtomicU64,
}

impl Fallback {
    /// A fallback by these settings.
    ///
    /// # Errors
    /// Where a setting breaks its rule.
    pub fn new(config: FallbackConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::make(config, Clock::tokio(), None))
    }

    /// For settings that were checked before.
    pub(crate) fn make(config: FallbackConfig, clock: Clock, name: Option<Name>) -> Self {
        let timeout = AtomicU64::new(nanos(config.timeout));
        let after = AtomicU16::new(after(&config).to_bits());
        let settings = Arc::new(FallbackSettings { config: Mutex::new(config), after, timeout });
        Self { settings, name, clock, events: Events::new() }
    }

    /// The same with a name, for errors and events.
    #[must_use]
    pub fn named(mut self, name: impl Into<Name>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The same on another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    /// Its settings, as they are now.
    pub fn config(&self) -> FallbackConfig {
        *self.settings.config.lock()
    }

    /// Its name.
    pub fn name(&self) -> Option<&str> {
        self.name.as_ref().map(Name::as_str)
    }

    /// Changes the settings while it is in use, for all clones. A substitute that is at work keeps its time; calls under way that fail later go
    /// by the new settings.
    ///
    /// # Errors
    /// Where a setting breaks its rule; then nothing has changed.
    pub fn reconfigure(&self, config: FallbackConfig) -> Result<(), ConfigError> {
        config.check()?;
        let mut current = self.settings.config.lock();
        *current = config;
        self.settings.after.store(after(&config).to_bits(), Relaxed);
        self.settings.timeout.store(nanos(config.timeout), Relaxed);
        Ok(())
    }

    /// Its events from now on.
    pub fn events(&self) -> Subscription<FallbackEvent> {
        self.events.subscribe()
    }

    /// Runs `operation` with nothing but this fallback around it; every `Err` is a failure. What `instead` is:
    /// [`Pipeline::call_or`](crate::Pipeline::call_or).
    ///
    /// # Errors
    /// The operation's own; where the substitute failed, too, with [that](crate::CallError::fallback) beside it.
    ///
    /// # Cancel safety
    /// Dropped, it drops the operation, or the substitute that is at work.
    #[inline]
    pub fn call<O: Operation, F, Fut>(&self, operation: O, instead: F) -> impl Future<Output = Answered<O>> + Send
    where
        F: FnOnce(Failed<'_, O::Output, O::Error>) -> Fut + Send,
        Fut: Future<Output = Result<O::Output, O::Error>> + Send,
    {
        call::call_alone_or(self, operation, instead)
    }

    /// What the call comes to, after what is inside came to this.
    #[inline]
    pub(crate) async fn settle<A: Attempt>(&self, inner: A, outcome: Outcome, cx: CallContext<'_>) -> Outcome {
        if !outcome.is_failure() && outcome != Outcome::Rejected {
            return outcome;
        }
        if !Repeats::from_bits(self.settings.after.load(Relaxed)).has(outcome.kind()) {
            return outcome;
        }
        Cold::new(self.fall_back(inner, outcome, cx)).await
    }

    /// After a failure that asks for it.
    async fn fall_back<A: Attempt>(&self, mut inner: A, outcome: Outcome, cx: CallContext<'_>) -> Outcome {
        let after = match outcome.kind() {
            Some(kind) => Setback::Failure(kind),
            None => Setback::Rejection(inner.call_state().rejection().map_or(PolicyKind::Custom("policy"), |r| r.by())),
        };
        let deadline = Deadline::new(&self.clock, &self.settings.timeout, cx);
        let frame = cx.until(&deadline);
        let fell = call::timed(pin!(inner.fall_back(frame.context())), pin!(deadline.over())).await;
        // The substitute is dropped by now, before anybody hears of its time-out.
        match fell {
            Some(FellBack::Nowhere) => outcome,
            Some(FellBack::Done) => {
                self.tell(|| FallbackEvent::FellBack { after });
                Outcome::Judged(crate::outcome::Class::Success)
            }
            Some(FellBack::Failed { kind }) => {
                self.tell(|| FallbackEvent::Failed { after, kind });
                outcome
            }
            None => {
                let given = deadline.given();
                inner.call_state().fallback_timed_out(TimedOut { name: self.name.clone(), after: given });
                self.tell(|| FallbackEvent::TimedOut { after, given });
                outcome
            }
        }
    }

    fn tell(&self, event: impl FnOnce() -> FallbackEvent) {
        if self.events.wanted() {
            self.events.send(self.name.as_ref(), self.clock.now(), event);
        }
    }
}

/// The failures after which a fallback of these settings falls back.
fn after(config: &FallbackConfig) -> Repeats {
    Repeats::new(config.fall_back_on, config.on_rejections)
}

impl Policy for Fallback {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        let outcome = inner.attempt(cx).await;
        self.settle(inner, outcome, cx).await
    }

    fn describe(&self, explanation: &mut Explanation) {
        let FallbackConfig { fall_back_on, on_rejections, timeout } = self.config();
        let kinds: Vec<_> = fall_back_on.iter().map(|kind| kind.as_str()).collect();
        let rejections = if on_rejections { "refusals" } else { "no refusals" };
        let within = match timeout {
            Duration::MAX => "in its own time".to_owned(),
            timeout => format!("within {timeout:?}"),
        };
        let settings = format!("a substitute after {} and {rejections}, {within}", kinds.join(", "));
        explanation.push(Layer::new(PolicyKind::Fallback, self.name.clone(), settings));
    }

    fn has_fallback(&self) -> bool {
        true
    }
}

impl fmt::Debug for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fallback").field("name", &self.name).field("config", &self.config()).finish_non_exhaustive()
    }
}
