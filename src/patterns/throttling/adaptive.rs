//! The adaptive concurrency limiter: a concurrency limiter whose capacity follows what it sees.
use std::{fmt, future::Future, sync::Arc, time::Duration};

use super::{
    AdaptiveLimitConfig, ConcurrencyLimiter, ConcurrencyPermit, PriorityShares, ThrottlingEvent,
    gradient::{Gradient, Sample},
};
use crate::{
    call::{self, Attempt, CallContext, Explanation, Layer, Operation, Policy},
    config::{ConfigError, Name},
    entropy::Entropy,
    observe::Subscription,
    outcome::{CallError, Class, FailureKind, Hint, Outcome, PolicyKind, Priority, Reason, Rejected},
    sync::{AtomicU64, Mutex, Ordering},
    time::{Clock, Instant, scaled},
};

/// Lets as many calls run at once as the other side bears: the limit shrinks when calls take longer, and grows when they do not.
///
/// It does not grow while its callers ask for less than half of it. Calls that were dropped, and those that began under a higher
/// limit, tell it nothing. What a call takes alone is measured again and again, for some calls under a low limit, so that
/// after a lasting shift of latency the limit recovers.
///
/// A clone is the same limiter.
///
/// ```
/// use steadfast::{Pipeline, throttling::{AdaptiveLimitConfig, AdaptiveLimiter}};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let limiter = AdaptiveLimiter::new(AdaptiveLimitConfig::default()).unwrap();
/// let pipeline = Pipeline::new().then(limiter.clone());
/// assert!(pipeline.call(|| async { Ok::<_, ()>(()) }).await.is_ok());
/// assert_eq!(limiter.limit(), 20);
/// # });
/// ```
#[derive(Clone)]
pub struct AdaptiveLimiter(Arc<Inner>);

struct Inner {
    /// The share of the limit that calls of each priority may take together with those below them, as floats.
    shares: [AtomicU64; 4],
    /// No call is admitted before, in nanoseconds; the end of no pause is long past.
    paused_until: AtomicU64,
    places: ConcurrencyLimiter,
    name: Option<Name>,
    clock: Clock,
    entropy: Entropy,
    machine: Mutex<Gradient>,
}

impl AdaptiveLimiter {
    /// A limiter by these settings.
    ///
    /// # Errors
    /// Where a setting breaks its rule.
    pub fn new(config: AdaptiveLimitConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::make(config, Clock::tokio(), Entropy::default(), None))
    }

    pub(crate) fn make(config: AdaptiveLimitConfig, clock: Clock, entropy: Entropy, name: Option<Name>) -> Self {
        let places = ConcurrencyLimiter::make(config.places(), clock.clone(), name.clone());
        let machine = Mutex::new(Gradient::new(config, clock.now(), entropy.unit()));
        let shares = PriorityShares::by_priority(config.shares).map(|share| AtomicU64::new(share.to_bits()));
        let paused_until = AtomicU64::new(0);
        Self(Arc::new(Inner { shares, paused_until, places, name, clock, entropy, machine }))
    }

    /// Its settings, as they are now.
    pub fn config(&self) -> AdaptiveLimitConfig {
        self.machine(|machine| machine.config())
    }

    /// Changes the settings while it is in use. What it has learnt stays learnt: its limit is brought between the new bounds. `initial` is for one that has learnt nothing yet.
    ///
    /// # Errors
    /// Where a setting breaks its rule; then nothing has changed.
    pub fn reconfigure(&self, config: AdaptiveLimitConfig) -> Result<(), ConfigError> {
        config.check()?;
        let capacity = self.machine(|machine| {
            for (dial, share) in self.0.shares.iter().zip(PriorityShares::by_priority(config.shares)) {
                dial.store(share.to_bits(), Ordering::Relaxed);
            }
            machine.reconfigure(config, self.0.clock.now())
        });
        self.0.places.reconfigure(super::ConcurrencyLimitConfig { capacity, ..config.places() })?;
        self.follow(capacity);
        Ok(())
    }

    /// The places were set to this limit. Whoever was overtaken between the machine and the places finds another one now, and sets that.
    fn follow(&self, mut set: u32) {
        loop {
            let limit = self.machine(|machine| machine.limit());
            if limit == set {
                return;
            }
            // It is never zero, which alone is refused.
            let _ = self.0.places.resize(limit);
            set = limit;
        }
    }

    /// A new limiter of the same settings with a name, for errors and events.
    #[must_use]
    pub fn named(self, name: impl Into<Name>) -> Self {
        Self::make(self.config(), self.0.clock.clone(), self.0.entropy.clone(), Some(name.into()))
    }

    /// A new limiter of the same settings on another clock.
    #[must_use]
    pub fn with_clock(self, clock: &Clock) -> Self {
        Self::make(self.config(), clock.clone(), self.0.entropy.clone(), self.0.name.clone())
    }

    /// A new limiter of the same settings, drawing from this stream when it measures. Seeded by the system by default.
    #[must_use]
    pub fn with_entropy(self, entropy: &Entropy) -> Self {
        Self::make(self.config(), self.0.clock.clone(), entropy.clone(), self.0.name.clone())
    }

    /// How many calls may run at once now.
    pub fn limit(&self) -> u32 {
        self.0.places.capacity()
    }

    /// How many run.
    pub fn in_flight(&self) -> u32 {
        let taken = i64::from(self.0.places.capacity()) - self.0.places.available();
        u32::try_from(taken).unwrap_or(0)
    }

    /// How much of the limit is taken: 1 where all of it is. A gauge for a [`Shedder`](super::Shedder) or a
    /// [`Degradation`](super::Degradation).
    pub fn load(&self) -> f64 {
        f64::from(self.in_flight()) / f64::from(self.limit())
    }

    /// How many calls wait for a place.
    pub fn waiting(&self) -> usize {
        self.0.places.waiting()
    }

    /// How long a call takes where hardly any runs beside it, as far as it is known: what latencies are measured against.
    pub fn base_latency(&self) -> Option<Duration> {
        self.machine(|machine| machine.base())
    }

    /// Its events from now on.
    pub fn events(&self) -> Subscription<ThrottlingEvent> {
        self.0.places.events()
    }

    /// Runs `operation` with nothing but this limiter around it.
    ///
    /// # Errors
    /// The operation's own, or the rejection.
    ///
    /// # Cancel safety
    /// Dropped, it drops the operation, gives its place to the next, and learns nothing from it.
    pub fn call<O: Operation>(
        &self,
        operation: O,
    ) -> impl Future<Output = Result<O::Output, CallError<O::Error>>> + Send {
        call::call_alone(self, operation)
    }

    fn machine<T>(&self, ask: impl FnOnce(&mut Gradient) -> T) -> T {
        ask(&mut self.0.machine.lock())
    }

    /// Takes a place: where the priority has the whole limit, it waits for one in the queue; else it is shed where its share is taken.
    #[inline]
    pub(crate) async fn admit(&self, cx: CallContext<'_>) -> Result<AdaptivePermit<'_>, Rejected> {
        if self.0.paused_until.load(Ordering::Relaxed) != 0 {
            self.paused(self.0.clock.now())?;
        }
        let permit = self.place(cx).await?;
        let began = self.0.clock.now();
        // It may have waited, and the pause begun meanwhile.
        if self.0.paused_until.load(Ordering::Relaxed) != 0 {
            self.paused(began)?;
        }
        Ok(AdaptivePermit { limiter: self, permit, began, under_way: self.in_flight() })
    }

    /// Refuses while it is paused.
    #[cold]
    fn paused(&self, now: Instant) -> Result<(), Rejected> {
        let left = Instant::from_nanos(self.0.paused_until.load(Ordering::Relaxed)) - now;
        if left.is_zero() { Ok(()) } else { Err(self.0.places.rejected_for(Reason::AskedToPause, Some(left))) }
    }

    /// Admits no call for so long; as a policy it does so itself when the other side asks for it. Calls that run go on. A pause that lasts
    /// longer stays.
    pub fn pause(&self, time: Duration) {
        let now = self.0.clock.now();
        self.0.paused_until.fetch_max((now + time).as_nanos(), Ordering::Relaxed);
        self.0.places.tell_pause(now, time);
    }

    /// Pauses for as long as the other side asked for with a failure.
    #[cold]
    #[inline(never)]
    fn heed(&self, hint: Hint) {
        let longest = self.machine(|machine| machine.config().max_hint);
        let time = hint.retry_after().unwrap_or_default().min(longest);
        if !time.is_zero() {
            self.pause(time);
        }
    }

    async fn place(&self, cx: CallContext<'_>) -> Result<ConcurrencyPermit<'_>, Rejected> {
        let places = &self.0.places;
        let priority = cx.priority();
        let share = f64::from_bits(self.0.shares[priority.index()].load(Ordering::Relaxed));
        if share >= 1.0 {
            return places.admit(|| cx.deadline()).await.map_err(|rejected| self.with_estimate(rejected));
        }
        // Of a small limit at least one place is everybody's.
        let limit = places.capacity();
        let own = ((f64::from(limit) * share).round() as u32).max(1);
        places.try_admit_leaving(limit.saturating_sub(own)).ok_or_else(|| self.shed(priority))
    }

    #[cold]
    fn shed(&self, priority: Priority) -> Rejected {
        self.with_estimate(self.0.places.rejected(Reason::Shed { priority }))
    }

    /// Says when a place may be free: after what a call takes, for as many calls as wait, over as many as run at once.
    #[cold]
    fn with_estimate(&self, rejected: Rejected) -> Rejected {
        let Some(typical) = self.machine(|machine| machine.typical()) else { return rejected };
        let turns = (self.waiting() + 1) as f64 / f64::from(self.limit().max(1));
        rejected.with_retry_after(scaled(typical, turns))
    }

    /// What a call tells of the load of the other side.
    fn learn(&self, began: Instant, under_way: u32, outcome: Outcome) {
        let sample = match outcome.class() {
            Class::Success => Sample::Served,
            Class::Failure {
                kind: FailureKind::Timeout | FailureKind::Throttled | FailureKind::Overloaded, ..
            } => Sample::Overloaded,
            // It did not reach the other side, or failed sooner than its work takes: no measure of load.
            Class::Failure { .. } | Class::Ignore => return,
        };
        let now = self.0.clock.now();
        let unit = || self.0.entropy.unit();
        if let Some(limit) = self.machine(|machine| machine.record((began, now), under_way, sample, unit)) {
            let _ = self.0.places.resize(limit);
            self.follow(limit);
        }
    }
}

/// A place, and what is needed to learn from the call that has it. Dropped, it teaches nothing.
pub(crate) struct AdaptivePermit<'a> {
    limiter: &'a AdaptiveLimiter,
    permit: ConcurrencyPermit<'a>,
    began: Instant,
    under_way: u32,
}

impl AdaptivePermit<'_> {
    /// Gives the place back, and learns.
    pub(crate) fn settle(self, outcome: Outcome) {
        drop(self.permit);
        self.limiter.learn(self.began, self.under_way, outcome);
    }
}

impl Policy for AdaptiveLimiter {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        let permit = match self.admit(cx).await {
            Ok(permit) => permit,
            Err(rejected) => return inner.refuse(rejected),
        };
        let outcome = inner.attempt(cx).await;
        if outcome.is_failure() {
            self.heed(inner.call_state().hint());
        }
        permit.settle(outcome);
        outcome
    }

    fn describe(&self, explanation: &mut Explanation) {
        let config = self.config();
        let AdaptiveLimitConfig { by, min, max, .. } = config;
        let settings = format!("{min} to {max} at once by {by:?}, now {}", self.limit()).to_lowercase();
        let layer = Layer::new(PolicyKind::ConcurrencyLimit, self.0.name.clone(), settings);
        explanation.push(config.warnings().into_iter().fold(layer, Layer::with_warning));
    }
}

impl fmt::Debug for AdaptiveLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptiveLimiter")
            .field("name", &self.0.name)
            .field("limit", &self.limit())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}
