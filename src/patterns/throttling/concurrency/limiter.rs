//! The concurrency limiter: the semaphore with a clock, a wait limit and events around it.
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
    config::check_capacity,
    semaphore::{Semaphore, Wish},
};
use crate::{
    call::{self, Attempt, CallContext, Explanation, Layer, Operation, Policy},
    config::{ConfigError, Name},
    observe::{Events, Subscription},
    outcome::{CallError, Outcome, PolicyKind, Reason, Rejected},
    sync::{AtomicU64, Ordering},
    throttling::ThrottlingEvent,
    time::{Clock, Instant, nanos},
};

/// Lets so many calls run at once: a bulkhead.
///
/// A clone is the same limiter; [`weighing`](Self::weighing) makes one whose calls take several places.
#[derive(Clone)]
pub struct ConcurrencyLimiter {
    inner: Arc<Inner>,
    weight: u32,
}

struct Inner {
    /// Nanoseconds. The other settings are the semaphore's.
    max_wait: AtomicU64,
    name: Option<Name>,
    clock: Clock,
    semaphore: Semaphore,
    events: Events<ThrottlingEvent>,
}

impl ConcurrencyLimiter {
    /// A limiter by these settings, with all its places free.
    ///
    /// # Errors
    /// Where a setting breaks its rule.
    pub fn new(config: ConcurrencyLimitConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::make(config, Clock::tokio(), None))
    }

    /// For settings that were checked before.
    pub(crate) fn make(config: ConcurrencyLimitConfig, clock: Clock, name: Option<Name>) -> Self {
        let semaphore = Semaphore::new(config.capacity, config.queue, config.order);
        let max_wait = AtomicU64::new(nanos(config.max_wait));
        Self { inner: Arc::new(Inner { max_wait, name, clock, semaphore, events: Events::new() }), weight: 1 }
    }

    /// A new limiter of the same settings with a name, for errors and events.
    #[must_use]
    pub fn named(self, name: impl Into<Name>) -> Self {
        Self { weight: self.weight, ..Self::make(self.config(), self.inner.clock.clone(), Some(name.into())) }
    }

    /// A new limiter of the same settings on another clock.
    #[must_use]
    pub fn with_clock(self, clock: &Clock) -> Self {
        Self { weight: self.weight, ..Self::make(self.config(), clock.clone(), self.inner.name.clone()) }
    }

    /// The same limiter, for calls that take `weight` places each.
    #[must_use]
    pub fn weighing(&self, weight: u32) -> Self {
        Self { inner: self.inner.clone(), weight: weight.max(1) }
    }

    /// Its settings, as they are now.
    pub fn config(&self) -> ConcurrencyLimitConfig {
        let (capacity, queue, order) = self.inner.semaphore.settings();
        ConcurrencyLimitConfig { capacity, queue, max_wait: self.inner.max_wait(), order }
    }

    /// How many places it has now.
    pub fn capacity(&self) -> u32 {
        self.inner.semaphore.capacity()
    }

    /// How many places are free; below zero after it was made smaller than what was taken.
    pub fn available(&self) -> i64 {
        self.inner.semaphore.free()
    }

    /// How many calls wait.
    pub fn waiting(&self) -> usize {
        self.inner.semaphore.size().1
    }

    /// Its events from now on.
    pub fn events(&self) -> Subscription<ThrottlingEvent> {
        self.inner.events.subscribe()
    }

    /// Changes the number of places while it is in use. Calls that run go on; a call that waits for more than there are now is
    /// turned away.
    ///
    /// # Errors
    /// If the capacity is zero; then nothing has changed.
    pub fn resize(&self, capacity: u32) -> Result<(), ConfigError> {
        check_capacity(capacity)?;
        self.inner.semaphore.resize(capacity);
        self.inner.tell_change();
        Ok(())
    }

    /// Changes all settings while it is in use. Calls that run go on; a call that waits keeps its patience, and is turned away where the queue becomes too
    /// short for it (who came last, or, where the newest go first, who came first).
    ///
    /// # Errors
    /// Where a setting breaks its rule; then nothing has changed.
    pub fn reconfigure(&self, config: ConcurrencyLimitConfig) -> Result<(), ConfigError> {
        config.check()?;
        self.inner.max_wait.store(nanos(config.max_wait), Ordering::Relaxed);
        self.inner.semaphore.change(config.capacity, config.queue, config.order);
        self.inner.tell_change();
        Ok(())
    }

    /// Takes its place if so many more are free then, and nobody waits.
    #[inline]
    pub(crate) fn try_admit_leaving(&self, left: u32) -> Option<ConcurrencyPermit<'_>> {
        // Not `then_some`: a permit that is made and dropped gives back what nobody took.
        let taken = self.inner.semaphore.try_take_leaving(self.weight, left);
        taken.then(|| ConcurrencyPermit { limiter: self, weight: self.weight })
    }

    /// Takes its place (or, [`weighing`](Self::weighing) more, its places) if they are free and nobody waits.
    ///
    /// # Errors
    /// The rejection: [`Reason::QueueFull`], for this door has no queue, or [`Reason::TooLarge`].
    #[inline]
    pub fn try_acquire(&self) -> Result<ConcurrencyPermit<'_>, Rejected> {
        if self.inner.semaphore.try_take(self.weight) {
            Ok(ConcurrencyPermit { limiter: self, weight: self.weight })
        } else {
            Err(self.refuse_now())
        }
    }

    /// Takes its place, or waits for it in the queue, for at most the configured `max_wait`.
    ///
    /// # Errors
    /// The rejection: [`Reason::QueueFull`], [`Reason::WaitedTooLong`] or [`Reason::TooLarge`].
    ///
    /// # Cancel safety
    /// Dropped while it waits, it leaves the queue; a place that it had been given in that moment goes to the next.
    #[inline]
    pub async fn acquire(&self) -> Result<ConcurrencyPermit<'_>, Rejected> {
        self.admit(|| None).await
    }

    /// Takes its place, or waits for it until then at most. It does not ask for the deadline unless it waits.
    #[inline]
    pub(crate) async fn admit(
        &self,
        deadline: impl FnOnce() -> Option<Instant>,
    ) -> Result<ConcurrencyPermit<'_>, Rejected> {
        if self.inner.semaphore.try_take(self.weight) {
            return Ok(ConcurrencyPermit { limiter: self, weight: self.weight });
        }
        self.wait(deadline()).await
    }

    async fn wait(&self, deadline: Option<Instant>) -> Result<ConcurrencyPermit<'_>, Rejected> {
        let Inner { clock, semaphore, events, name, .. } = &*self.inner;
        let id = match semaphore.take_or_wait(self.weight) {
            Ok(Wish::Granted) => return Ok(ConcurrencyPermit { limiter: self, weight: self.weight }),
            Ok(Wish::Waits(id)) => id,
            Err(reason) => return Err(self.rejected(reason)),
        };
        let mut place = Place { semaphore, id, weight: self.weight, settled: false };
        let now = clock.now();
        events.send(name.as_ref(), now, || ThrottlingEvent::Queued { wait: None });
        let patience = now + self.inner.max_wait();
        let mut timer = pin!(clock.sleep_until(deadline.map_or(patience, |d| d.min(patience))));
        let result = poll_fn(|cx| match semaphore.look(id, cx.waker()) {
            Some(result) => Poll::Ready(Some(result)),
            None => timer.as_mut().poll(cx).map(|()| None),
        })
        .await;
        match result {
            Some(result) => {
                place.settled = true;
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
        let Inner { clock, events, name, .. } = &*self.inner;
        if events.wanted() {
            events.send(name.as_ref(), clock.now(), || ThrottlingEvent::Rejected { reason, retry_after });
        }
        let rejected = Rejected::new(PolicyKind::ConcurrencyLimit, reason).named(name.clone());
        match retry_after {
            Some(wait) => rejected.with_retry_after(wait),
            None => rejected,
        }
    }

    pub(crate) fn tell_pause(&self, now: Instant, time: Duration) {
        self.inner.events.send(self.inner.name.as_ref(), now, || ThrottlingEvent::Paused { time });
    }

    /// Runs `operation` with nothing but this limiter around it.
    ///
    /// # Errors
    /// The operation's own, or the rejection.
    ///
    /// # Cancel safety
    /// Dropped, it drops the operation and gives its place to the next.
    #[inline]
    pub fn call<O: Operation>(
        &self,
        operation: O,
    ) -> impl Future<Output = Result<O::Output, CallError<O::Error>>> + Send {
        call::call_alone(self, operation)
    }
}

impl Inner {
    fn max_wait(&self) -> Duration {
        Duration::from_nanos(self.max_wait.load(Ordering::Relaxed))
    }

    fn tell_change(&self) {
        self.events.send(self.name.as_ref(), self.clock.now(), || ThrottlingEvent::LimitChanged);
    }
}

/// A place among the calls that run; free again when dropped.
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

/// A place in the queue, left when dropped.
struct Place<'a> {
    semaphore: &'a Semaphore,
    id: u64,
    weight: u32,
    settled: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.settled {
            self.semaphore.leave(self.id, self.weight);
        }
    }
}

impl Policy for ConcurrencyLimiter {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        let permit = match self.admit(|| cx.deadline()).await {
            Ok(permit) => permit,
            Err(rejected) => return inner.refuse(rejected),
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
        explanation.push(Layer::new(PolicyKind::ConcurrencyLimit, self.inner.name.clone(), settings));
    }
}

impl fmt::Debug for ConcurrencyLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConcurrencyLimiter")
            .field("name", &self.inner.name)
            .field("capacity", &self.capacity())
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}
