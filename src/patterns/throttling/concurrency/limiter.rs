//! The concurrency limiter: the semaphore with a clock, a wait limit and events.
use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use super::{
    ConcurrencyLimitConfig, QueueOrder,
    semaphore::{Admission, Semaphore},
};
use crate::{
    build::{Builder, Common, Component, HasEvents, HasName},
    call::{self, Attempt, CallContext, Cold, Explanation, Layer, Operation, Policy},
    config::{ConfigError, Name, Reconfigure, reconfigurable},
    observe::{Events, Subscription},
    outcome::{CallError, Outcome, PolicyKind, Reason, Rejected},
    sync::{AtomicU64, Ordering},
    throttling::ThrottlingEvent,
    time::{Clock, Instant, nanos},
};

/// Bounds the number of calls that run at once (a bulkhead).
///
/// A clone is the same limiter; [`weighing`](Self::weighing) returns one whose calls take several
/// permits.
#[derive(Clone)]
pub struct ConcurrencyLimiter {
    inner: Arc<ConcurrencyCore>,
    weight: u32,
}

struct ConcurrencyCore {
    /// In nanoseconds. The semaphore has the other settings.
    max_wait: AtomicU64,
    name: Option<Name>,
    clock: Clock,
    semaphore: Semaphore,
    events: Events<ThrottlingEvent>,
}

reconfigurable!(ConcurrencyLimiter, ConcurrencyLimitConfig, |_this, next| next.check());

impl ConcurrencyLimiter {
    /// Creates a limiter by these settings, with all its permits free.
    ///
    /// # Errors
    /// If a setting is invalid.
    pub fn new(config: ConcurrencyLimitConfig) -> Result<Self, ConfigError> {
        Self::builder(config).build()
    }

    /// Creates a builder of a limiter.
    pub fn builder(config: ConcurrencyLimitConfig) -> Builder<Self> {
        Builder::new(config)
    }

    /// Creates a limiter by settings that were validated before.
    pub(crate) fn make(config: ConcurrencyLimitConfig, Common { name, clock, hooks, .. }: Common) -> Self {
        let semaphore = Semaphore::new(config.capacity, config.queue, config.order);
        let max_wait = AtomicU64::new(nanos(config.max_wait));
        Self {
            inner: Arc::new(ConcurrencyCore { max_wait, name, clock, semaphore, events: hooks.events() }),
            weight: 1,
        }
    }

    /// Returns the same limiter, for calls that take `weight` permits each.
    #[must_use]
    pub fn weighing(&self, weight: u32) -> Self {
        Self { inner: self.inner.clone(), weight: weight.max(1) }
    }

    /// Returns the current settings.
    pub fn config(&self) -> ConcurrencyLimitConfig {
        let (capacity, queue, order, max_wait) = self.inner.semaphore.settings(|| self.inner.max_wait());
        ConcurrencyLimitConfig { capacity, queue, max_wait, order }
    }

    /// Returns the current number of permits.
    pub fn capacity(&self) -> u32 {
        self.inner.semaphore.capacity()
    }

    /// Returns the number of free permits, which is negative while a reduced capacity is exceeded.
    pub fn available(&self) -> i64 {
        self.inner.semaphore.free()
    }

    /// Returns the number of waiting calls.
    pub fn waiting(&self) -> usize {
        self.inner.semaphore.size().1
    }

    /// Subscribes to the events from now on.
    pub fn events(&self) -> Subscription<ThrottlingEvent> {
        self.inner.events.subscribe()
    }

    /// Changes the number of permits alone, to at least one.
    pub(crate) fn resize(&self, capacity: u32) {
        self.inner.semaphore.resize(capacity.max(1));
        self.inner.emit_change();
    }

    /// Changes the settings while the limiter is in use. Running calls go on, and waiting calls
    /// keep their maximum wait. A waiting call with a weight above the new capacity is rejected. If
    /// the queue becomes shorter, excess calls are rejected: the newest
    /// ones, or with [`QueueOrder::NewestFirst`] the oldest ones.
    ///
    /// # Errors
    /// If a setting is invalid; then nothing has changed.
    pub fn reconfigure(&self, config: ConcurrencyLimitConfig) -> Result<(), ConfigError> {
        self.validate(&config)?;
        let ConcurrencyLimitConfig { capacity, queue, max_wait, order } = config;
        // Under the lock of the queue, so that two concurrent changes do not mix their settings.
        let beside = || self.inner.max_wait.store(nanos(max_wait), Ordering::Relaxed);
        self.inner.semaphore.change(capacity, queue, order, beside);
        self.inner.emit_change();
        Ok(())
    }

    /// Takes a permit if at least `left` more stay free and no call waits.
    #[inline]
    pub(crate) fn try_acquire_leaving(&self, left: u32) -> Option<ConcurrencyPermit<'_>> {
        // Not `then_some`: it would build and drop a permit, which gives back a permit that was not
        // taken.
        let taken = self.inner.semaphore.try_take_leaving(self.weight, left);
        taken.then(|| ConcurrencyPermit { limiter: self, weight: self.weight })
    }

    /// Takes a permit, or as many as the [weight](Self::weighing), if they are free and no call
    /// waits.
    ///
    /// # Errors
    /// The rejection: [`Reason::QueueFull`], since this method never waits, or
    /// [`Reason::TooLarge`].
    #[inline]
    pub fn try_acquire(&self) -> Result<ConcurrencyPermit<'_>, Rejected> {
        if self.inner.semaphore.try_take(self.weight) {
            Ok(ConcurrencyPermit { limiter: self, weight: self.weight })
        } else {
            Err(self.refuse_now())
        }
    }

    /// Takes a permit, or waits for one in the queue for at most the configured `max_wait`.
    ///
    /// # Errors
    /// The rejection: [`Reason::QueueFull`], [`Reason::WaitedTooLong`] or [`Reason::TooLarge`].
    ///
    /// # Cancel safety
    /// A future that is dropped while it waits leaves the queue. A permit that it was granted at
    /// that moment goes to the next call.
    #[inline]
    pub async fn acquire(&self) -> Result<ConcurrencyPermit<'_>, Rejected> {
        self.acquire_within(|| None).await
    }

    /// Takes a permit, or waits for one until the deadline at most. Asks for the deadline only if
    /// it waits.
    #[inline]
    pub(crate) async fn acquire_within(
        &self,
        deadline: impl FnOnce() -> Option<Instant>,
    ) -> Result<ConcurrencyPermit<'_>, Rejected> {
        if self.inner.semaphore.try_take(self.weight) {
            return Ok(ConcurrencyPermit { limiter: self, weight: self.weight });
        }
        self.wait(deadline()).await
    }

    async fn wait(&self, deadline: Option<Instant>) -> Result<ConcurrencyPermit<'_>, Rejected> {
        let ConcurrencyCore { clock, semaphore, events, name, .. } = &*self.inner;
        let id = match semaphore.take_or_wait(self.weight) {
            Ok(Admission::Granted) => return Ok(ConcurrencyPermit { limiter: self, weight: self.weight }),
            Ok(Admission::Waits(id)) => id,
            Err(reason) => return Err(self.rejected(reason)),
        };
        let mut guard = WaiterGuard { semaphore, id, weight: self.weight, settled: false };
        let now = clock.now();
        events.send(name.as_ref(), now, || ThrottlingEvent::Queued { wait: None });
        let latest = now + self.inner.max_wait();
        let mut timer = pin!(clock.sleep_until(deadline.map_or(latest, |d| d.min(latest))));
        let result = poll_fn(|cx| match semaphore.poll(id, cx.waker()) {
            Some(result) => Poll::Ready(Some(result)),
            None => timer.as_mut().poll(cx).map(|()| None),
        })
        .await;
        match result {
            Some(result) => {
                guard.settled = true;
                match result {
                    Ok(()) => Ok(ConcurrencyPermit { limiter: self, weight: self.weight }),
                    Err(reason) => Err(self.rejected(reason)),
                }
            }
            None => Err(self.rejected(Reason::WaitedTooLong { limit: timer.deadline() - now })),
        }
    }

    #[cold]
    fn refuse_now(&self) -> Rejected {
        self.rejected(if self.weight > self.capacity() { Reason::TooLarge } else { Reason::QueueFull })
    }

    #[cold]
    pub(crate) fn rejected(&self, reason: Reason) -> Rejected {
        self.rejected_for(reason, None)
    }

    #[cold]
    pub(crate) fn rejected_for(&self, reason: Reason, retry_after: Option<Duration>) -> Rejected {
        let ConcurrencyCore { clock, events, name, .. } = &*self.inner;
        if events.wanted() {
            events.send(name.as_ref(), clock.now(), || ThrottlingEvent::Rejected { reason, retry_after });
        }
        let rejected = Rejected::new(PolicyKind::ConcurrencyLimit, reason).named(name.clone());
        match retry_after {
            Some(wait) => rejected.with_retry_after(wait),
            None => rejected,
        }
    }

    pub(crate) fn emit_pause(&self, now: Instant, time: Duration) {
        self.inner.events.send(self.inner.name.as_ref(), now, || ThrottlingEvent::Paused { time });
    }

    pub(crate) fn emit_resume(&self, now: Instant) {
        self.inner.events.send(self.inner.name.as_ref(), now, || ThrottlingEvent::Resumed);
    }

    /// Runs `operation` under this limiter alone.
    ///
    /// # Errors
    /// The operation's own error, or the rejection.
    ///
    /// # Cancel safety
    /// A future that is dropped drops the operation and gives its permit to the next call.
    #[inline]
    pub fn call<T: Send, E: Send, O>(&self, operation: O) -> impl Future<Output = Result<T, CallError<E>>> + Send
    where
        O: Operation<Output = T, Error = E>, // `|| async { .. }`; blocks: `call_blocking`; not `Send`: `Pipeline::call_local`; `&mut`: `with_state`
    {
        call::call_alone(self, operation)
    }
}

impl ConcurrencyCore {
    fn max_wait(&self) -> Duration {
        Duration::from_nanos(self.max_wait.load(Ordering::Relaxed))
    }

    fn emit_change(&self) {
        self.events.send(self.name.as_ref(), self.clock.now(), || ThrottlingEvent::LimitChanged);
    }
}

/// Permission to run, given back on drop.
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct ConcurrencyPermit<'a> {
    limiter: &'a ConcurrencyLimiter,
    weight: u32,
}

impl Drop for ConcurrencyPermit<'_> {
    #[inline]
    fn drop(&mut self) {
        self.limiter.inner.semaphore.give_back(self.weight);
    }
}

impl fmt::Debug for ConcurrencyPermit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConcurrencyPermit").field("weight", &self.weight).finish_non_exhaustive()
    }
}

/// A call's entry in the queue, removed on drop.
struct WaiterGuard<'a> {
    semaphore: &'a Semaphore,
    id: u64,
    weight: u32,
    settled: bool,
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        if !self.settled {
            self.semaphore.leave(self.id, self.weight);
        }
    }
}

impl Component for ConcurrencyLimiter {
    type Built = Result<Self, ConfigError>;
    type Spec = ConcurrencyLimitConfig;

    fn assemble(spec: ConcurrencyLimitConfig, common: Common) -> Self::Built {
        spec.check()?;
        Ok(Self::make(spec, common))
    }
}

impl HasName for ConcurrencyLimiter {}
impl HasEvents<ThrottlingEvent> for ConcurrencyLimiter {}

call::blocking_door!(ConcurrencyLimiter);

impl Policy for ConcurrencyLimiter {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        let permit = match self.try_acquire_leaving(0) {
            Some(permit) => permit,
            None => match Cold::new(self.wait(cx.deadline())).await {
                Ok(permit) => permit,
                Err(rejected) => return inner.refuse(rejected),
            },
        };
        let outcome = inner.attempt(cx).await;
        drop(permit);
        outcome
    }

    fn describe(&self, explanation: &mut Explanation) {
        let ConcurrencyLimitConfig { capacity, queue, max_wait, order } = self.config();
        let mut settings = format!("{capacity} at once");
        if queue > 0 {
            settings += &format!(", {queue} more wait up to {max_wait:?}");
            if order == QueueOrder::NewestFirst {
                settings += ", newest first";
            }
        }
        let layer = Layer::new(PolicyKind::ConcurrencyLimit, self.inner.name.clone(), settings);
        explanation.push(layer.with_component(self));
    }
}

crate::build::debug_fields!(ConcurrencyLimiter, |this|
    name: this.inner.name, capacity: this.capacity(), available: this.available()
);
