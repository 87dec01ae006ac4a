//! The adaptive concurrency limiter: a concurrency limiter whose capacity follows the observed
//! latency.
use std::{future::Future, sync::Arc, time::Duration};

use super::{
    AdaptiveLimitConfig, PriorityShares,
    gradient::{Gradient, Sample},
};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents, HasName},
    call::{self, Attempt, CallContext, Cold, Explanation, Layer, Operation, Policy},
    config::{ConfigError, Name, Reconfigure, reconfigurable},
    entropy::Entropy,
    observe::Subscription,
    outcome::{CallError, Class, FailureKind, Hint, Outcome, PolicyKind, Priority, Reason, Rejected},
    sync::{AtomicU64, Line, Mutex, Ordering},
    throttling::{ConcurrencyLimitConfig, ConcurrencyLimiter, ConcurrencyPermit, ThrottlingEvent},
    time::{Clock, Instant, scaled},
};

/// Bounds the number of calls that run at once, and finds the bound itself: the limit shrinks when
/// calls take longer, and grows when they do not.
///
/// The limit does not grow while its callers use less than half of it. Dropped calls, and calls
/// that began under a higher limit, are ignored. The base latency is measured again at intervals,
/// for a few calls under a low limit, so that the limit recovers after a lasting shift of latency.
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
pub struct AdaptiveLimiter(Arc<AdaptiveCore>);

struct AdaptiveCore {
    /// For each priority, the share of the limit up to which its calls are admitted, as bits of a
    /// float. Independent words, so `Relaxed` suffices.
    shares: [AtomicU64; 4],
    /// Time in nanoseconds before which no call is admitted; zero if the limiter was never paused.
    /// The word publishes no other memory, so `Relaxed` suffices.
    paused_until: AtomicU64,
    semaphore: ConcurrencyLimiter,
    name: Option<Name>,
    clock: Clock,
    entropy: Entropy,
    /// On a line of its own: each call reads the fields above, and locks this one.
    gradient: Line<Mutex<Gradient>>,
}

reconfigurable!(AdaptiveLimiter, AdaptiveLimitConfig, |_this, next| next.check());

impl AdaptiveLimiter {
    /// Creates a limiter by these settings.
    ///
    /// # Errors
    /// If a setting is invalid.
    pub fn new(config: AdaptiveLimitConfig) -> Result<Self, ConfigError> {
        Self::builder(config).build()
    }

    /// Creates a builder of a limiter.
    pub fn builder(config: AdaptiveLimitConfig) -> Builder<Self> {
        Builder::new(config)
    }

    pub(crate) fn make(config: AdaptiveLimitConfig, common: Common) -> Self {
        let semaphore = ConcurrencyLimiter::make(config.semaphore_config(), common.clone());
        let (entropy, Common { name, clock, .. }) = (common.entropy(), common);
        let gradient = Line(Mutex::new(Gradient::new(config, clock.now(), entropy.unit())));
        let shares = PriorityShares::by_priority(config.shares).map(|share| AtomicU64::new(share.to_bits()));
        let paused_until = AtomicU64::new(0);
        Self(Arc::new(AdaptiveCore { shares, paused_until, semaphore, name, clock, entropy, gradient }))
    }

    /// Returns the current settings.
    pub fn config(&self) -> AdaptiveLimitConfig {
        self.gradient(|gradient| gradient.config())
    }

    /// Changes the settings while the limiter is in use. What was learned is kept, and the limit is
    /// clamped to the new bounds. `initial` applies only if nothing was learned yet.
    ///
    /// # Errors
    /// If a setting is invalid; then nothing has changed.
    pub fn reconfigure(&self, config: AdaptiveLimitConfig) -> Result<(), ConfigError> {
        self.validate(&config)?;
        let mut capacity = self.gradient(|gradient| {
            for (dial, share) in self.0.shares.iter().zip(PriorityShares::by_priority(config.shares)) {
                dial.store(share.to_bits(), Ordering::Relaxed);
            }
            gradient.reconfigure(config, self.0.clock.now())
        });
        let mut config = config;
        // The semaphore runs hooks, so it changes outside the lock. Two concurrent changes do not
        // mix their settings: each call ends with the newest ones.
        loop {
            self.0.semaphore.reconfigure(ConcurrencyLimitConfig { capacity, ..config.semaphore_config() })?;
            self.apply_limit(capacity);
            let (newest, limit) = self.gradient(|gradient| (gradient.config(), gradient.limit()));
            if newest == config {
                return Ok(());
            }
            (config, capacity) = (newest, limit);
        }
    }

    /// Sets the semaphore's capacity until it equals the state machine's limit. A task that was
    /// overtaken between the two finds another limit here, and applies it.
    fn apply_limit(&self, mut set: u32) {
        loop {
            let limit = self.gradient(|gradient| gradient.limit());
            if limit == set {
                return;
            }
            // The limit is at least one; only zero is refused.
            self.0.semaphore.resize(limit);
            set = limit;
        }
    }

    /// Returns the current maximum number of calls at once.
    pub fn limit(&self) -> u32 {
        self.0.semaphore.capacity()
    }

    /// Returns the number of running calls.
    pub fn in_flight(&self) -> u32 {
        let taken = i64::from(self.0.semaphore.capacity()) - self.0.semaphore.available();
        u32::try_from(taken).unwrap_or(0)
    }

    /// Returns the used share of the limit; 1 is all of it. Usable as a gauge of a
    /// [`Shedder`](crate::throttling::Shedder) or a
    /// [`Degradation`](crate::throttling::Degradation).
    pub fn load(&self) -> f64 {
        f64::from(self.in_flight()) / f64::from(self.limit())
    }

    /// Returns the number of calls that wait for a permit.
    pub fn waiting(&self) -> usize {
        self.0.semaphore.waiting()
    }

    /// Returns the base latency, if known: what a call takes under a very low limit. Other
    /// latencies are compared with it.
    pub fn base_latency(&self) -> Option<Duration> {
        self.gradient(|gradient| gradient.base())
    }

    /// Subscribes to the events from now on.
    pub fn events(&self) -> Subscription<ThrottlingEvent> {
        self.0.semaphore.events()
    }

    /// Runs `operation` under this limiter alone.
    ///
    /// # Errors
    /// The operation's own error, or the rejection.
    ///
    /// # Cancel safety
    /// A future that is dropped drops the operation and gives its permit to the next call. The
    /// limiter ignores the call.
    pub fn call<T: Send, E: Send, O>(&self, operation: O) -> impl Future<Output = Result<T, CallError<E>>> + Send
    where
        O: Operation<Output = T, Error = E>, // `|| async { .. }`; blocks: `call_blocking`; not `Send`: `Pipeline::call_local`; `&mut`: `with_state`
    {
        call::call_alone(self, operation)
    }

    fn gradient<T>(&self, ask: impl FnOnce(&mut Gradient) -> T) -> T {
        ask(&mut self.0.gradient.0.lock())
    }

    /// Takes a permit if one is free, for a priority with the whole limit.
    #[inline]
    fn acquire_now(&self, cx: CallContext<'_>) -> Option<AdaptivePermit<'_>> {
        let is_paused = || self.0.paused_until.load(Ordering::Relaxed) != 0;
        if is_paused() || self.share(cx.priority()) < 1.0 {
            return None;
        }
        let permit = self.0.semaphore.try_acquire_leaving(0)?;
        // Before the clock is read, while no other thread has changed the word that tells.
        let under_way = self.in_flight();
        let began = self.0.clock.now();
        // A pause may have begun meanwhile. Then the permit is given back.
        (!is_paused()).then_some(AdaptivePermit { limiter: self, permit, began, under_way })
    }

    /// Takes a permit. A priority with the whole limit waits for one in the queue; another one is
    /// shed if its share is in use.
    pub(crate) async fn acquire_for(&self, cx: CallContext<'_>) -> Result<AdaptivePermit<'_>, Rejected> {
        if self.0.paused_until.load(Ordering::Relaxed) != 0 {
            self.paused(self.0.clock.now())?;
        }
        let permit = self.take_permit(cx).await?;
        let began = self.0.clock.now();
        // The call may have waited while a pause began.
        if self.0.paused_until.load(Ordering::Relaxed) != 0 {
            self.paused(began)?;
        }
        Ok(AdaptivePermit { limiter: self, permit, began, under_way: self.in_flight() })
    }

    /// Rejects the call while the limiter is paused.
    #[cold]
    fn paused(&self, now: Instant) -> Result<(), Rejected> {
        let left = Instant::from_nanos(self.0.paused_until.load(Ordering::Relaxed)) - now;
        if left.is_zero() { Ok(()) } else { Err(self.0.semaphore.rejected_for(Reason::AskedToPause, Some(left))) }
    }

    /// Admits no call for `time`. As a policy the limiter pauses itself if a failure carries a
    /// server's hint. Running calls go on. A running pause that ends later stays.
    pub fn pause(&self, time: Duration) {
        let now = self.0.clock.now();
        self.0.paused_until.fetch_max((now + time).as_nanos(), Ordering::Relaxed);
        self.0.semaphore.emit_pause(now, time);
    }

    /// Ends a running pause now, also one by a server's hint. Without a pause nothing changes.
    pub fn resume(&self) {
        let now = self.0.clock.now();
        if self.0.paused_until.swap(0, Ordering::Relaxed) > now.as_nanos() {
            self.0.semaphore.emit_resume(now);
        }
    }

    /// Pauses for the time that the server asked for, at most `max_hint`.
    #[cold]
    #[inline(never)]
    fn apply_hint(&self, hint: Hint) {
        let longest = self.gradient(|gradient| gradient.config().max_hint);
        let time = hint.retry_after().unwrap_or_default().min(longest);
        if !time.is_zero() {
            self.pause(time);
        }
    }

    /// Returns the share of the limit that a priority may use.
    #[inline]
    fn share(&self, priority: Priority) -> f64 {
        f64::from_bits(self.0.shares[priority.index()].load(Ordering::Relaxed))
    }

    async fn take_permit(&self, cx: CallContext<'_>) -> Result<ConcurrencyPermit<'_>, Rejected> {
        let semaphore = &self.0.semaphore;
        let priority = cx.priority();
        let share = self.share(priority);
        if share >= 1.0 {
            return semaphore.acquire_within(|| cx.deadline()).await.map_err(|rejected| self.with_estimate(rejected));
        }
        // Each priority may use at least one permit, even of a small limit.
        let limit = semaphore.capacity();
        let own = ((f64::from(limit) * share).round() as u32).max(1);
        semaphore.try_acquire_leaving(limit.saturating_sub(own)).ok_or_else(|| self.shed(priority))
    }

    #[cold]
    fn shed(&self, priority: Priority) -> Rejected {
        self.with_estimate(self.0.semaphore.rejected(Reason::Shed { priority }))
    }

    /// Adds an estimate of the time until a permit is free: the latency of a call, times the number
    /// of waiting calls, divided by the number of calls that run at once.
    #[cold]
    fn with_estimate(&self, rejected: Rejected) -> Rejected {
        let Some(typical) = self.gradient(|gradient| gradient.typical()) else { return rejected };
        let turns = (self.waiting() + 1) as f64 / f64::from(self.limit().max(1));
        rejected.with_retry_after(scaled(typical, turns))
    }

    /// Records the outcome of a call as a signal of load.
    fn learn(&self, began: Instant, under_way: u32, outcome: Outcome) {
        let sample = match outcome.class() {
            Class::Success => Sample::Served,
            Class::Failure {
                kind: FailureKind::Timeout | FailureKind::Throttled | FailureKind::Overloaded, ..
            } => Sample::Overloaded,
            // The call did not reach the service, or failed sooner than its work takes: no signal
            // of load.
            Class::Failure { .. } | Class::Ignore => return,
        };
        let now = self.0.clock.now();
        let unit = || self.0.entropy.unit();
        if let Some(limit) = self.gradient(|gradient| gradient.record((began, now), under_way, sample, unit)) {
            self.0.semaphore.resize(limit);
            self.apply_limit(limit);
        }
    }
}

/// A permit with the data to learn from its call. A permit that is dropped teaches nothing.
pub(crate) struct AdaptivePermit<'a> {
    limiter: &'a AdaptiveLimiter,
    permit: ConcurrencyPermit<'a>,
    began: Instant,
    under_way: u32,
}

impl AdaptivePermit<'_> {
    /// Gives back the permit and records the outcome.
    pub(crate) fn settle(self, outcome: Outcome) {
        drop(self.permit);
        self.limiter.learn(self.began, self.under_way, outcome);
    }
}

impl Component for AdaptiveLimiter {
    type Built = Result<Self, ConfigError>;
    type Spec = AdaptiveLimitConfig;

    fn assemble(spec: AdaptiveLimitConfig, common: Common) -> Self::Built {
        spec.check()?;
        Ok(Self::make(spec, common))
    }
}

impl HasName for AdaptiveLimiter {}
impl HasEntropy for AdaptiveLimiter {}
impl HasEvents<ThrottlingEvent> for AdaptiveLimiter {}

call::blocking_door!(AdaptiveLimiter);

impl Policy for AdaptiveLimiter {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        let permit = match self.acquire_now(cx) {
            Some(permit) => permit,
            None => match Cold::new(self.acquire_for(cx)).await {
                Ok(permit) => permit,
                Err(rejected) => return inner.refuse(rejected),
            },
        };
        let outcome = inner.attempt(cx).await;
        if outcome.is_failure() {
            self.apply_hint(inner.call_state().hint());
        }
        permit.settle(outcome);
        outcome
    }

    fn describe(&self, explanation: &mut Explanation) {
        let config = self.config();
        let AdaptiveLimitConfig { by, min, max, .. } = config;
        let settings = format!("{min} to {max} at once by {by:?}, now {}", self.limit()).to_lowercase();
        let layer = Layer::new(PolicyKind::ConcurrencyLimit, self.0.name.clone(), settings).with_component(self);
        explanation.push(config.warnings().into_iter().fold(layer, Layer::with_warning));
    }
}

crate::build::debug_fields!(AdaptiveLimiter, |this|
    name: this.0.name, limit: this.limit(), in_flight: this.in_flight()
);
