//! The rate limiter: the algorithm with a clock, a queue of waiting calls and events.
use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use super::{
    Limit, RateLimitConfig, RateMode,
    limit::sealed::Sealed,
    turns::{Refusal, Taken, TurnStatus, Turns},
};
use crate::{
    build::{Builder, Common, Component, HasEvents, HasName},
    call::{self, Attempt, CallContext, Cold, Explanation, Layer, Operation, Policy},
    config::{ConfigError, Name, Reconfigure, reconfigurable},
    observe::{Events, Subscription},
    outcome::{CallError, Hint, Outcome, PolicyKind, Reason, Rejected},
    sync::{AtomicU64, Ordering},
    throttling::ThrottlingEvent,
    time::{Clock, Instant, Sleep, nanos},
};

/// Admits a number of calls per period.
///
/// A clone is the same limiter. [`try_acquire`](Self::try_acquire) takes a permit, or returns a
/// rejection with the exact wait. [`acquire`](Self::acquire) waits for a permit, in order of
/// arrival. As a policy, the limiter waits for at most the configured `max_wait`, and rejects at
/// once a call that cannot pass within it or before the call's deadline.
#[derive(Clone)]
pub struct RateLimiter(Arc<RateCore>);

struct RateCore {
    /// In nanoseconds, as is `max_hint`. Each is a setting of its own, so `Relaxed` suffices.
    max_wait: AtomicU64,
    max_hint: AtomicU64,
    name: Option<Name>,
    clock: Clock,
    turns: Turns,
    events: Events<ThrottlingEvent>,
}

reconfigurable!(RateLimiter, RateLimitConfig, |_this, next| next.check());

impl RateLimiter {
    /// Creates a limiter with all its permits, by these settings (or a
    /// [`Quota`](super::super::Quota) alone).
    ///
    /// # Errors
    /// If a setting is invalid.
    pub fn new(config: impl Into<RateLimitConfig>) -> Result<Self, ConfigError> {
        Self::builder(config).build()
    }

    /// Creates a builder of a limiter.
    pub fn builder(config: impl Into<RateLimitConfig>) -> Builder<Self> {
        Builder::new(config.into())
    }

    /// Creates a limiter by settings that were validated before.
    pub(crate) fn make(config: &RateLimitConfig, Common { name, clock, hooks, .. }: Common) -> Self {
        Self(Arc::new(RateCore {
            max_wait: AtomicU64::new(nanos(config.max_wait)),
            max_hint: AtomicU64::new(nanos(config.max_hint)),
            name,
            clock,
            turns: Turns::new(config.mode, config.quota()),
            events: hooks.events(),
        }))
    }

    /// Returns the current settings.
    pub fn config(&self) -> RateLimitConfig {
        let waits = || (self.0.max_wait(), self.0.max_hint());
        let (mode, quota, (max_wait, max_hint)) = self.0.turns.settings(waits);
        let mut config = RateLimitConfig::from(quota);
        (config.mode, config.max_wait, config.max_hint) = (mode, max_wait, max_hint);
        config
    }

    /// Subscribes to the events from now on.
    pub fn events(&self) -> Subscription<ThrottlingEvent> {
        self.0.events.subscribe()
    }

    /// Takes one permit now.
    ///
    /// # Errors
    /// The rejection, with the exact time after which a permit is available (if no other caller
    /// takes it).
    #[inline]
    pub fn try_acquire(&self) -> Result<(), Rejected> {
        self.try_acquire_n(1)
    }

    /// Takes `n` permits now, all or none.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire), and [`Reason::TooLarge`] if the limit can never give
    /// `n` at once.
    #[inline]
    pub fn try_acquire_n(&self, n: u32) -> Result<(), Rejected> {
        match self.0.turns.take(n, self.0.now()) {
            Ok(_) => Ok(()),
            Err(refusal) => Err(self.0.rejected(refusal)),
        }
    }

    /// Waits for a permit, in order of arrival.
    ///
    /// # Cancel safety
    /// A future that is dropped while it waits gives back its turn, and later callers move up.
    pub async fn acquire(&self) {
        // One permit is never too large, and `Duration::MAX` never too late: the result is always
        // `Ok`.
        let _ = self.acquire_n(1, Duration::MAX).await;
    }

    /// Waits for `n` permits for at most `max_wait`, in order of arrival.
    ///
    /// # Errors
    /// The rejection, at once, if the turn would come later than `max_wait`: a caller never waits
    /// in vain.
    ///
    /// # Cancel safety
    /// A future that is dropped while it waits gives back its turn, and later callers move up.
    pub async fn acquire_n(&self, n: u32, max_wait: Duration) -> Result<(), Rejected> {
        let now = self.0.clock.now();
        self.wait_until(n, now, now + max_wait).await
    }

    /// Changes the settings while they are in use. In smooth mode the used share of the burst is
    /// kept; in strict mode, the used permits. Waiting calls reserve again at the new pace, in
    /// order. A call whose turn would now come too late, or that asks for more permits than there
    /// can be, is rejected at once.
    ///
    /// If the mode changes, permits that are used in the old mode stay used in the new one, up to
    /// its maximum. A call that races with the change passes in one of the two modes. To change the
    /// quota alone, pass `limiter.config().with_quota(quota)`.
    ///
    /// # Errors
    /// If a setting is invalid; then nothing has changed.
    pub fn reconfigure(&self, config: impl Into<RateLimitConfig>) -> Result<(), ConfigError> {
        let config = config.into();
        self.validate(&config)?;
        let now = self.0.clock.now();
        // Under the lock of the quota, so that two concurrent changes do not mix their settings.
        self.0.turns.change(config.mode, config.quota(), now.as_nanos(), || {
            self.0.max_wait.store(nanos(config.max_wait), Ordering::Relaxed);
            self.0.max_hint.store(nanos(config.max_hint), Ordering::Relaxed);
        });
        self.0.events.send(self.0.name.as_ref(), now, || ThrottlingEvent::LimitChanged);
        Ok(())
    }

    /// Admits no call for `time`, by any method. As a policy the limiter pauses itself if a failure
    /// carries a server's hint. Afterwards a smooth limit has one permit and then the even flow, a
    /// strict limit all that its window allows. Waiting calls reserve again, in order; a call that
    /// would wait too long is rejected. A running pause that ends later stays.
    pub fn pause(&self, time: Duration) {
        let now = self.0.clock.now();
        self.0.turns.pause((now + time).as_nanos(), now.as_nanos());
        self.0.events.send(self.0.name.as_ref(), now, || ThrottlingEvent::Paused { time });
    }

    /// Ends a running pause now, also one by a server's hint: for an operator who knows that the
    /// server is back. Goes on as after the end of a pause. Without a pause nothing changes.
    pub fn resume(&self) {
        let now = self.0.clock.now();
        if self.0.turns.resume(now.as_nanos()) {
            self.0.events.send(self.0.name.as_ref(), now, || ThrottlingEvent::Resumed);
        }
    }

    /// Pauses for the time that the server asked for, at most `max_hint`.
    #[cold]
    #[inline(never)]
    pub(crate) fn apply_hint(&self, hint: Hint) {
        let time = hint.retry_after().unwrap_or_default().min(self.0.max_hint());
        if !time.is_zero() {
            self.pause(time);
        }
    }

    /// Takes a permit, or waits for it until the call's deadline and for at most `max_wait`.
    #[inline]
    pub(crate) async fn acquire_for(&self, cx: CallContext<'_>) -> Result<(), Rejected> {
        let max_wait = self.0.max_wait();
        if max_wait.is_zero() {
            return self.try_acquire();
        }
        let now = self.0.clock.now();
        let patience = now + max_wait;
        let latest = cx.deadline().map_or(patience, |deadline| deadline.min(patience));
        self.wait_until(1, now, latest).await
    }

    /// Returns the state machine, for the keyed limiter.
    pub(crate) fn turns(&self) -> &Turns {
        &self.0.turns
    }

    /// Returns the number of permits that are out now, with those of waiting calls.
    #[cfg_attr(not(any(feature = "console", feature = "metrics")), allow(dead_code, reason = "read by both alone"))]
    pub(crate) fn used(&self) -> u64 {
        self.0.turns.used(self.0.now())
    }

    /// Returns `true` if the limiter equals a new one and has no other holder.
    pub(crate) fn is_unused(&self, now: u64) -> bool {
        Arc::strong_count(&self.0) == 1 && self.0.turns.is_idle(now)
    }

    /// Returns `true` if another holder, such as a waiting call, has this limiter.
    pub(crate) fn is_held(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    pub(crate) async fn wait_until(&self, n: u32, now: Instant, latest: Instant) -> Result<(), Rejected> {
        let RateCore { turns, clock, events, name, .. } = &*self.0;
        let queued = turns.enqueue(n, now.as_nanos(), latest.as_nanos()).map_err(|refusal| self.0.rejected(refusal))?;
        let Some((id, ready)) = queued else { return Ok(()) };
        let guard = TurnGuard { limiter: &self.0, id };
        events.send(name.as_ref(), now, || ThrottlingEvent::Queued { wait: Some(Instant::from_nanos(ready) - now) });
        let mut timer = pin!(None::<Sleep>);
        poll_fn(|cx| {
            loop {
                let ready = match turns.poll(guard.id, clock.now().as_nanos(), cx.waker()) {
                    TurnStatus::Ready => return Poll::Ready(Ok(())),
                    TurnStatus::At(ready) => Instant::from_nanos(ready),
                    TurnStatus::Refused(refusal) => return Poll::Ready(Err(self.0.rejected(refusal))),
                };
                if timer.as_ref().as_pin_ref().is_none_or(|timer| timer.deadline() != ready) {
                    timer.set(Some(clock.sleep_until(ready)));
                }
                match timer.as_mut().as_pin_mut().map(|timer| timer.poll(cx)) {
                    Some(Poll::Ready(())) => timer.set(None),
                    _ => return Poll::Pending,
                }
            }
        })
        .await
    }
}

impl Limit for RateLimiter {}

#[expect(private_interfaces, reason = "sealed")]
impl Sealed for RateLimiter {
    fn take_one(&self) -> Result<Taken, Refusal> {
        self.0.turns.take(1, self.0.now())
    }

    fn give_back(&self, taken: Taken) {
        self.0.turns.give_back(taken, self.0.now());
    }

    fn refusal(&self) -> Refusal {
        self.0.turns.refusal(1, self.0.now())
    }

    fn reject(&self, refusal: Refusal) -> Rejected {
        self.0.rejected(refusal)
    }
}

impl RateCore {
    #[inline]
    fn max_wait(&self) -> Duration {
        Duration::from_nanos(self.max_wait.load(Ordering::Relaxed))
    }

    fn max_hint(&self) -> Duration {
        Duration::from_nanos(self.max_hint.load(Ordering::Relaxed))
    }

    #[inline]
    fn now(&self) -> u64 {
        self.clock.now().as_nanos()
    }

    /// Builds a rejection; writes nothing that another thread reads. Inlined, so that it is built
    /// in the caller's memory: under overload, rejections are most of the work.
    #[inline]
    fn rejected(&self, refusal: Refusal) -> Rejected {
        let (reason, wait) = match refusal {
            Refusal::TooLarge => (Reason::TooLarge, None),
            Refusal::Wait(wait) => (Reason::RateLimited, Some(wait)),
        };
        if self.events.wanted() {
            self.emit_rejection(reason, wait);
        }
        Rejected::by_policy(PolicyKind::RateLimit, self.name.as_ref(), reason, wait)
    }

    #[cold]
    #[inline(never)]
    fn emit_rejection(&self, reason: Reason, wait: Option<u64>) {
        let event = || ThrottlingEvent::Rejected { reason, retry_after: wait.map(Duration::from_nanos) };
        self.events.send(self.name.as_ref(), self.clock.now(), event);
    }
}

/// A queued call's turn, given back on drop.
struct TurnGuard<'a> {
    limiter: &'a RateCore,
    id: u64,
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        self.limiter.turns.leave(self.id, self.limiter.now());
    }
}

impl RateLimiter {
    /// Runs `operation` under this limiter alone.
    ///
    /// # Errors
    /// The operation's own error, or the rejection.
    ///
    /// # Cancel safety
    /// A future that is dropped while it waits gives back its turn. Afterwards the permit is used.
    #[inline]
    pub fn call<T: Send, E: Send, O>(&self, operation: O) -> impl Future<Output = Result<T, CallError<E>>> + Send
    where
        O: Operation<Output = T, Error = E>, // `|| async { .. }`; blocks: `call_blocking`; not `Send`: `Pipeline::call_local`; `&mut`: `with_state`
    {
        call::call_alone(self, operation)
    }
}

impl Component for RateLimiter {
    type Built = Result<Self, ConfigError>;
    type Spec = RateLimitConfig;

    fn assemble(spec: RateLimitConfig, common: Common) -> Self::Built {
        spec.check()?;
        Ok(Self::make(&spec, common))
    }
}

impl HasName for RateLimiter {}
impl HasEvents<ThrottlingEvent> for RateLimiter {}

call::blocking_door!(RateLimiter);

impl Policy for RateLimiter {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        let taken = match self.0.max_wait().is_zero() {
            true => self.try_acquire(),
            false => Cold::new(self.acquire_for(cx)).await,
        };
        match taken {
            Ok(()) => {
                let outcome = inner.attempt(cx).await;
                if outcome.is_failure() {
                    self.apply_hint(inner.call_state().hint());
                }
                outcome
            }
            Err(rejected) => inner.refuse(rejected),
        }
    }

    fn describe(&self, explanation: &mut Explanation) {
        let config = self.config();
        let mut settings = format!("{} calls every {:?}", config.permits, config.per);
        match config.mode {
            RateMode::Smooth => settings += &format!(", at most {} at once", config.quota().largest()),
            RateMode::Strict => settings += ", in any window",
        }
        if !config.max_wait.is_zero() {
            settings += &format!("; waits up to {:?}", config.max_wait);
        }
        let mut layer = Layer::new(PolicyKind::RateLimit, self.0.name.clone(), settings).with_component(self);
        if config.permits > 1 && config.quota().largest() == 1 && config.max_wait.is_zero() {
            layer = layer
                .with_warning("with a burst of 1 there is no head-room: of two simultaneous calls, one is rejected");
        }
        explanation.push(layer);
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter").field("name", &self.0.name).field("config", &self.config()).finish()
    }
}
