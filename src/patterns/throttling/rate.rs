//! The rate limiter: the algorithm with a clock, a queue of waiting calls and events around it.
use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use super::{
    Limit, Quota, RateLimitConfig, RateMode, ThrottlingEvent,
    limit::sealed::Sealed,
    turns::{Look, Refusal, Taken, Turns},
};
use crate::{
    call::{self, Attempt, CallContext, Explanation, Layer, Operation, Policy},
    config::{ConfigError, Name},
    observe::{Events, Subscription},
    outcome::{CallError, Hint, Outcome, PolicyKind, Reason, Rejected},
    sync::{AtomicU64, Ordering},
    time::{Clock, Instant, Sleep, nanos},
};

/// Lets so many calls pass in so much time.
///
/// A clone is the same limiter. [`check`](Self::check) takes a permit or says when to come back; [`acquire`](Self::acquire)
/// waits for one, in order of arrival; as a policy it waits for at most the configured `max_wait`, and rejects at once what
/// cannot fit into that or before the call's deadline.
#[derive(Clone)]
pub struct RateLimiter(Arc<Inner>);

struct Inner {
    /// Nanoseconds.
    max_wait: AtomicU64,
    max_hint: AtomicU64,
    name: Option<Name>,
    clock: Clock,
    turns: Turns,
    events: Events<ThrottlingEvent>,
}

impl RateLimiter {
    /// A limiter by these settings (or a [`Quota`] alone), with all its permits.
    ///
    /// # Errors
    /// Where a setting breaks its rule.
    pub fn new(config: impl Into<RateLimitConfig>) -> Result<Self, ConfigError> {
        let config = config.into();
        config.check()?;
        Ok(Self::make(&config, Clock::tokio(), None))
    }

    /// For settings that were checked before.
    pub(crate) fn make(config: &RateLimitConfig, clock: Clock, name: Option<Name>) -> Self {
        Self(Arc::new(Inner {
            max_wait: AtomicU64::new(nanos(config.max_wait)),
            max_hint: AtomicU64::new(nanos(config.max_hint)),
            name,
            clock,
            turns: Turns::new(config.mode, config.quota()),
            events: Events::new(),
        }))
    }

    /// A new limiter of the same settings with a name, for errors and events.
    #[must_use]
    pub fn named(self, name: impl Into<Name>) -> Self {
        Self::make(&self.config(), self.0.clock.clone(), Some(name.into()))
    }

    /// A new limiter of the same settings on another clock.
    #[must_use]
    pub fn with_clock(self, clock: &Clock) -> Self {
        Self::make(&self.config(), clock.clone(), self.0.name.clone())
    }

    /// Its settings, as they are now.
    pub fn config(&self) -> RateLimitConfig {
        let (mode, quota) = self.0.turns.settings();
        let mut config = RateLimitConfig::from(quota);
        (config.mode, config.max_wait, config.max_hint) = (mode, self.0.max_wait(), self.0.max_hint());
        config
    }

    /// Its events from now on.
    pub fn events(&self) -> Subscription<ThrottlingEvent> {
        self.0.events.subscribe()
    }

    /// Takes a permit now.
    ///
    /// # Errors
    /// The rejection, with the exact time after which a permit is there (if nobody else takes it).
    #[inline]
    pub fn check(&self) -> Result<(), Rejected> {
        self.check_n(1)
    }

    /// Takes `n` permits now, all or none.
    ///
    /// # Errors
    /// As [`check`](Self::check); [`Reason::TooLarge`] if it can never give so many at once.
    #[inline]
    pub fn check_n(&self, n: u32) -> Result<(), Rejected> {
        match self.0.turns.take(n, self.0.now()) {
            Ok(_) => Ok(()),
            Err(refusal) => Err(self.0.rejected(refusal)),
        }
    }

    /// Waits for a permit, in order of arrival.
    ///
    /// # Cancel safety
    /// Dropped while it waits, it gives its place back: whoever came later moves up.
    pub async fn acquire(&self) {
        // One permit is never too many, and the end of time is never too late.
        let _ = self.acquire_n(1, Duration::MAX).await;
    }

    /// Waits for `n` permits for at most `max_wait`, in order of arrival.
    ///
    /// # Errors
    /// The rejection, at once, if its turn would come later than that: it never waits in vain.
    ///
    /// # Cancel safety
    /// Dropped while it waits, it gives its place back: whoever came later moves up.
    pub async fn acquire_n(&self, n: u32, max_wait: Duration) -> Result<(), Rejected> {
        let now = self.0.clock.now();
        self.wait_until(n, now, now + max_wait).await
    }

    /// Changes the limit while it is in use. The limiter stays as full as it was (half of the old burst becomes half of the new
    /// one; in strict mode, what was used stays used). Calls that wait are set anew at the new pace, in order; one that
    /// would now wait beyond its limit, or for more than there will ever be, is rejected at once.
    ///
    /// # Errors
    /// Where the quota breaks a rule; then nothing has changed.
    pub fn set_quota(&self, quota: Quota) -> Result<(), ConfigError> {
        let mut config = self.config();
        (config.permits, config.per, config.burst) = (quota.permits, quota.per, quota.burst);
        self.reconfigure(config)
    }

    /// Changes all settings while it is in use: the limit as [`set_quota`](Self::set_quota) does, and how it counts. What is used in the old way is used in
    /// the new one, as many permits as will do; a call that races with the change passes in the one or the other.
    ///
    /// # Errors
    /// Where a setting breaks its rule; then nothing has changed.
    pub fn reconfigure(&self, config: impl Into<RateLimitConfig>) -> Result<(), ConfigError> {
        let config = config.into();
        config.check()?;
        let now = self.0.clock.now();
        self.0.max_wait.store(nanos(config.max_wait), Ordering::Relaxed);
        self.0.max_hint.store(nanos(config.max_hint), Ordering::Relaxed);
        self.0.turns.change(config.mode, config.quota(), now.as_nanos());
        self.0.events.send(self.0.name.as_ref(), now, || ThrottlingEvent::LimitChanged);
        Ok(())
    }

    /// Lets no call pass for so long, by any door; as a policy it does so itself when the other side asks for it. When the time is over there is
    /// one permit, and then the even flow (in strict mode: all that a window allows). Calls that wait are set anew, in order; one that
    /// would wait beyond its limit is rejected. A pause that lasts longer stays.
    pub fn pause(&self, time: Duration) {
        let now = self.0.clock.now();
        self.0.turns.pause((now + time).as_nanos(), now.as_nanos());
        self.0.events.send(self.0.name.as_ref(), now, || ThrottlingEvent::Paused { time });
    }

    /// Pauses for as long as the other side asked for with a failure.
    #[cold]
    #[inline(never)]
    pub(super) fn heed(&self, hint: Hint) {
        let time = hint.retry_after().unwrap_or_default().min(self.0.max_hint());
        if !time.is_zero() {
            self.pause(time);
        }
    }

    /// Takes a permit, or waits for it within the call's deadline and the limit's patience.
    #[inline]
    pub(crate) async fn admit(&self, cx: CallContext<'_>) -> Result<(), Rejected> {
        let max_wait = self.0.max_wait();
        if max_wait.is_zero() {
            return self.check();
        }
        let now = self.0.clock.now();
        let patience = now + max_wait;
        let latest = cx.deadline().map_or(patience, |deadline| deadline.min(patience));
        self.wait_until(1, now, latest).await
    }

    /// The machine inside, for a limiter of many keys.
    pub(super) fn turns(&self) -> &Turns {
        &self.0.turns
    }

    /// Whether it says no more than a new one, and nobody else holds it.
    pub(super) fn is_unused(&self, now: u64) -> bool {
        Arc::strong_count(&self.0) == 1 && self.0.turns.is_idle(now)
    }

    /// Whether somebody else holds it.
    pub(super) fn is_held(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    pub(super) async fn wait_until(&self, n: u32, now: Instant, latest: Instant) -> Result<(), Rejected> {
        let Inner { turns, clock, events, name, .. } = &*self.0;
        let queued = turns.enqueue(n, now.as_nanos(), latest.as_nanos()).map_err(|refusal| self.0.rejected(refusal))?;
        let Some((id, ready)) = queued else { return Ok(()) };
        let place = Place { limiter: &self.0, id };
        events.send(name.as_ref(), now, || ThrottlingEvent::Queued { wait: Some(Instant::from_nanos(ready) - now) });
        let mut timer = pin!(None::<Sleep>);
        poll_fn(|cx| {
            loop {
                let ready = match turns.look(place.id, clock.now().as_nanos(), cx.waker()) {
                    Look::Come => return Poll::Ready(Ok(())),
                    Look::At(ready) => Instant::from_nanos(ready),
                    Look::Refused(refusal) => return Poll::Ready(Err(self.0.rejected(refusal))),
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

impl Inner {
    #[inline]
    fn max_wait(&self) -> Duration {
        Duration::from_nanos(self.max_wait.load(Ordering::Relaxed))
    }

    fn max_hint(&self) -> Duration {
        Duration::from_nanos(self.max_hint.load(Ordering::Relaxed))
    }

    fn now(&self) -> u64 {
        self.clock.now().as_nanos()
    }

    /// Builds a rejection; writes nothing that another thread reads. In line, so that it is built where the caller wants it:
    /// a limiter at its limit does little else.
    #[inline]
    fn rejected(&self, refusal: Refusal) -> Rejected {
        let (reason, wait) = match refusal {
            Refusal::TooLarge => (Reason::TooLarge, None),
            Refusal::Wait(wait) => (Reason::RateLimited, Some(wait)),
        };
        if self.events.wanted() {
            self.tell_rejection(reason, wait);
        }
        Rejected::by_policy(PolicyKind::RateLimit, self.name.as_ref(), reason, wait)
    }

    #[cold]
    #[inline(never)]
    fn tell_rejection(&self, reason: Reason, wait: Option<u64>) {
        let event = || ThrottlingEvent::Rejected { reason, retry_after: wait.map(Duration::from_nanos) };
        self.events.send(self.name.as_ref(), self.clock.now(), event);
    }
}

/// A place in the queue, given back when dropped.
struct Place<'a> {
    limiter: &'a Inner,
    id: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.limiter.turns.leave(self.id, self.limiter.now());
    }
}

impl RateLimiter {
    /// Runs `operation` with nothing but this limiter around it.
    ///
    /// # Errors
    /// The operation's own, or the rejection.
    ///
    /// # Cancel safety
    /// Dropped while it waits for its turn, it gives its place back; later, the permit is used.
    #[inline]
    pub fn call<O: Operation>(
        &self,
        operation: O,
    ) -> impl Future<Output = Result<O::Output, CallError<O::Error>>> + Send {
        call::call_alone(self, operation)
    }
}

impl Policy for RateLimiter {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        match self.admit(cx).await {
            Ok(()) => {
                let outcome = inner.attempt(cx).await;
                if outcome.is_failure() {
                    self.heed(inner.call_state().hint());
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
            RateMode::Strict => settings += ", counted in every window",
        }
        if !config.max_wait.is_zero() {
            settings += &format!("; waits up to {:?}", config.max_wait);
        }
        let mut layer = Layer::new(PolicyKind::RateLimit, self.0.name.clone(), settings);
        if config.permits > 1 && config.quota().largest() == 1 && config.max_wait.is_zero() {
            layer = layer
                .with_warning("with a burst of 1 there is no head-room: of two calls at one moment, one is refused");
        }
        explanation.push(layer);
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter").field("name", &self.0.name).field("config", &self.config()).finish()
    }
}
