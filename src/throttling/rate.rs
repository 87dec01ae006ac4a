//! The rate limiter: the algorithm with a clock, a queue of waiting calls and events around it.
use std::{
    collections::VecDeque,
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::{Poll, Waker},
    time::Duration,
};

use super::{
    Quota, RateLimitConfig, RateMode, ThrottlingEvent,
    gcra::{Gcra, Pace},
    strict::Strict,
};
use crate::{
    call::{self, Attempt, CallContext, Explanation, Layer, Operation, Policy},
    config::{ConfigError, Name},
    observe::{Events, Subscription},
    outcome::{CallError, Outcome, PolicyKind, Reason, Rejected},
    sync::Mutex,
    time::{Clock, Instant, Sleep},
};

/// Lets so many calls pass in so much time.
///
/// A clone is the same limiter. [`check`](Self::check) takes a permit or says when to come back; [`acquire`](Self::acquire)
/// waits for one, in order of arrival; as a policy it waits for at most the configured `max_wait`, and rejects at once what
/// cannot fit into that or before the call's deadline.
#[derive(Clone)]
pub struct RateLimiter(Arc<Inner>);

struct Inner {
    mode: RateMode,
    max_wait: Duration,
    name: Option<Name>,
    clock: Clock,
    gcra: Gcra,
    queue: Mutex<Queue>,
    events: Events<ThrottlingEvent>,
}

/// The calls that wait, oldest first, and what only they and strict mode need.
struct Queue {
    quota: Quota,
    strict: Strict,
    next_id: u64,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    id: u64,
    permits: u32,
    ready: u64,
    waker: Option<Waker>,
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
        let quota = config.quota();
        let queue = Queue { quota, strict: Strict::new(&quota), next_id: 0, waiting: VecDeque::new() };
        Self(Arc::new(Inner {
            mode: config.mode,
            max_wait: config.max_wait,
            name,
            clock,
            gcra: Gcra::new(Pace::new(&quota)),
            queue: Mutex::new(queue),
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
        let mut config = RateLimitConfig::from(self.0.queue.lock().quota);
        (config.mode, config.max_wait) = (self.0.mode, self.0.max_wait);
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
        let now = self.0.clock.now().as_nanos();
        let taken = match self.0.mode {
            RateMode::Smooth => self.0.gcra.take(n, now),
            RateMode::Strict => self.0.take_strict(n, now),
        };
        taken.map_err(|wait| self.0.rejected(n, wait))
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

    /// Changes the limit while it is in use. What was taken stays taken; calls that wait are set anew at the new pace, in order.
    ///
    /// # Errors
    /// Where the quota breaks a rule; then nothing has changed.
    pub fn set_quota(&self, quota: Quota) -> Result<(), ConfigError> {
        let mut config = RateLimitConfig::from(quota);
        config.mode = self.0.mode;
        config.check()?;
        let now = self.0.clock.now();
        self.0.change(quota, now.as_nanos());
        self.0.events.send(self.0.name.as_ref(), now, || ThrottlingEvent::LimitChanged);
        Ok(())
    }

    async fn wait_until(&self, n: u32, now: Instant, latest: Instant) -> Result<(), Rejected> {
        let Some(place) = self.0.enqueue(n, now.as_nanos(), latest.as_nanos())? else { return Ok(()) };
        let mut timer = pin!(None::<Sleep>);
        poll_fn(|cx| {
            loop {
                let Some(ready) = self.0.look(place.id, cx.waker()) else { return Poll::Ready(()) };
                let ready = Instant::from_nanos(ready);
                if timer.as_ref().as_pin_ref().is_none_or(|timer| timer.deadline() != ready) {
                    timer.set(Some(self.0.clock.sleep_until(ready)));
                }
                match timer.as_mut().as_pin_mut().map(|timer| timer.poll(cx)) {
                    Some(Poll::Ready(())) => timer.set(None),
                    _ => return Poll::Pending,
                }
            }
        })
        .await;
        Ok(())
    }
}

/// Takes a permit of each limiter, or of none.
///
/// # Errors
/// The first rejection. What the limiters before it had given is given back.
pub fn check_all(limiters: &[&RateLimiter]) -> Result<(), Rejected> {
    for (at, limiter) in limiters.iter().enumerate() {
        if let Err(rejected) = limiter.check() {
            for taken in &limiters[..at] {
                taken.0.give_back_now(1);
            }
            return Err(rejected);
        }
    }
    Ok(())
}

impl Inner {
    fn take_strict(&self, n: u32, now: u64) -> Result<(), u64> {
        let mut queue = self.queue.lock();
        if n > queue.quota.permits {
            return Err(0);
        }
        queue.strict.take(n, now)
    }

    /// Builds a rejection; writes nothing that another thread reads. Not marked cold: a limiter at its limit does little else.
    #[inline(never)]
    fn rejected(&self, n: u32, wait: u64) -> Rejected {
        let possible = match self.mode {
            RateMode::Smooth => self.gcra.pace().allows(n),
            RateMode::Strict => n <= self.queue.lock().quota.permits,
        };
        let (reason, wait) = if possible { (Reason::RateLimited, Some(wait)) } else { (Reason::TooLarge, None) };
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

    /// Reserves the next turn for `n` permits. `None`: it is now.
    fn enqueue(&self, n: u32, now: u64, latest: u64) -> Result<Option<Place<'_>>, Rejected> {
        let mut queue = self.queue.lock();
        let reserved = if n > queue.quota.largest() { Err(0) } else { self.reserve(&mut queue, n, now, latest) };
        let ready = match reserved {
            Ok(ready) => ready,
            Err(wait) => {
                drop(queue);
                return Err(self.rejected(n, wait));
            }
        };
        if ready <= now {
            return Ok(None);
        }
        queue.next_id += 1;
        let id = queue.next_id;
        queue.waiting.push_back(Waiting { id, permits: n, ready, waker: None });
        drop(queue);
        let wait = Some(Duration::from_nanos(ready - now));
        self.events.send(self.name.as_ref(), Instant::from_nanos(now), || ThrottlingEvent::Queued { wait });
        Ok(Some(Place { limiter: self, id }))
    }

    fn reserve(&self, queue: &mut Queue, n: u32, now: u64, latest: u64) -> Result<u64, u64> {
        match self.mode {
            RateMode::Smooth => self.gcra.reserve(n, now, latest),
            RateMode::Strict => queue.strict.reserve(n, now, latest),
        }
    }

    /// When the turn of `id` comes; nothing if it has come.
    fn look(&self, id: u64, waker: &Waker) -> Option<u64> {
        let now = self.clock.now().as_nanos();
        let mut queue = self.queue.lock();
        queue.release(now);
        let waiting = queue.waiting.iter_mut().find(|w| w.id == id)?;
        waiting.waker = Some(waker.clone());
        Some(waiting.ready)
    }

    /// Gives back the place of a call that no longer waits, unless its turn has come: then it is used.
    fn leave(&self, id: u64) {
        let now = self.clock.now().as_nanos();
        let mut queue = self.queue.lock();
        queue.release(now);
        let Some(at) = queue.waiting.iter().position(|w| w.id == id) else { return };
        let reserved = queue.reserved();
        let Some(left) = queue.waiting.remove(at) else { return };
        match self.mode {
            RateMode::Smooth => {
                let earlier = self.gcra.give_back(left.permits);
                for later in queue.waiting.range_mut(at..) {
                    later.ready = later.ready.saturating_sub(earlier);
                }
            }
            RateMode::Strict => {
                queue.strict.give_back_last(reserved);
                self.set_anew(&mut queue, now);
            }
        }
        queue.wake_and_unlock();
    }

    /// Reserves again for all that wait, in order. Their old reservations must have been given back.
    fn set_anew(&self, queue: &mut Queue, now: u64) {
        let mut waiting = std::mem::take(&mut queue.waiting);
        for w in &mut waiting {
            // Without a latest time nothing is refused.
            w.ready = self.reserve(queue, w.permits.min(queue.quota.largest()), now, u64::MAX).unwrap_or(now);
        }
        queue.waiting = waiting;
    }

    fn change(&self, quota: Quota, now: u64) {
        let mut queue = self.queue.lock();
        queue.release(now);
        let reserved = queue.reserved();
        self.gcra.change(Pace::new(&quota), now, reserved);
        queue.strict.give_back_last(reserved);
        queue.strict.change(&quota);
        queue.quota = quota;
        self.set_anew(&mut queue, now);
        queue.wake_and_unlock();
    }

    /// Gives back permits that were taken a moment ago.
    fn give_back_now(&self, n: u32) {
        match self.mode {
            RateMode::Smooth => {
                self.gcra.give_back(n);
            }
            RateMode::Strict => self.queue.lock().strict.give_back_last(n.into()),
        }
    }
}

impl Queue {
    /// Lets those go whose turn has come. A turn that has come is used, whether or not its call has noticed: its own timer
    /// tells it.
    fn release(&mut self, now: u64) {
        while self.waiting.front().is_some_and(|first| first.ready <= now) {
            self.waiting.pop_front();
        }
    }

    fn reserved(&self) -> u64 {
        self.waiting.iter().map(|w| u64::from(w.permits)).sum()
    }
}

/// Wakes those whose turn may have moved.
trait WakeAndUnlock {
    fn wake_and_unlock(self);
}

impl WakeAndUnlock for crate::sync::MutexGuard<'_, Queue> {
    fn wake_and_unlock(mut self) {
        let wakers: Vec<Waker> = self.waiting.iter_mut().filter_map(|w| w.waker.take()).collect();
        drop(self); // a waker may run code that asks this limiter
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A place in the queue, given back when dropped.
struct Place<'a> {
    limiter: &'a Inner,
    id: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.limiter.leave(self.id);
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
        let admitted = if self.0.max_wait.is_zero() {
            self.check()
        } else {
            let now = self.0.clock.now();
            let patience = now + self.0.max_wait;
            let latest = cx.deadline().map_or(patience, |deadline| deadline.min(patience));
            self.wait_until(1, now, latest).await
        };
        match admitted {
            Ok(()) => inner.attempt(cx).await,
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
        explanation.push(Layer::new(PolicyKind::RateLimit, self.0.name.clone(), settings));
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter").field("name", &self.0.name).field("config", &self.config()).finish()
    }
}
