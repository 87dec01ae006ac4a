//! The client throttle: a client that rejects its own calls while the service refuses too many of
//! them.
use std::{fmt, future::Future, sync::Arc};

use super::{ClientThrottleConfig, odds::Odds};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents, HasName},
    call::{self, Attempt, CallContext, Explanation, Layer, Operation, Policy},
    config::{ConfigError, Name, Reconfigure, reconfigurable},
    entropy::Entropy,
    observe::{Events, Subscription},
    outcome::{CallError, Class, KindSet, Outcome, PolicyKind, Reason, Rejected, Verdict},
    sync::{AtomicU64, Mutex, Ordering},
    throttling::ThrottlingEvent,
    time::{Clock, Instant},
    window::{Bound, ChangingWindow, Stamp},
};

/// Rejects calls on the client's side while the service refuses too many of them. The probability
/// is `max(0, (requests - k * accepts) / (requests + 1))`.
///
/// A refusal costs an overloaded service nearly as much as an answer. The throttle saves the
/// service most of them, if refusals are recognizable (kinds `throttled` and `overloaded`).
/// Requests count before they return, and requests that are rejected here count too. A dropped
/// call, and a call that an inner policy rejected, do not count. Unlike a [circuit
/// breaker](crate::circuit_breaker) the throttle has no states: the share that it rejects follows
/// the share that is in vain.
///
/// A clone is the same throttle.
///
/// ```
/// use steadfast::{
///     FailureKind, Pipeline, Verdict,
///     throttling::{ClientThrottle, ClientThrottleConfig},
/// };
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let throttle = ClientThrottle::new(ClientThrottleConfig::sre()).unwrap();
/// let pipeline = Pipeline::new()
///     .then(throttle.clone())
///     .classify(|_: &Result<(), &str>| Verdict::failure(FailureKind::Overloaded));
/// for _ in 0..100 {
///     let _ = pipeline.call(|| async { Err("busy") }).await;
/// }
/// assert_eq!((throttle.snapshot().requests, throttle.snapshot().accepts), (100, 0));
/// assert_eq!(throttle.snapshot().rejection, 100.0 / 101.0);
/// # });
/// ```
#[derive(Clone)]
pub struct ClientThrottle(Arc<ThrottleCore>);

struct ThrottleCore {
    /// The settings as they were given. Calls read `live`.
    config: Mutex<ClientThrottleConfig>,
    live: LiveSettings,
    requests: ChangingWindow,
    accepts: ChangingWindow,
    /// The number of requests in the current bucket up to which none is rejected. Until the next
    /// tick accepts only become more, and other requests only fewer.
    none_rejected: Bound,
    name: Option<Name>,
    clock: Clock,
    entropy: Entropy,
    events: Events<ThrottlingEvent>,
}

/// The settings as calls read them, each in a word of its own, written under the lock of `config`.
/// A call that races with a change may combine old and new words. That gives one decision by a
/// mixture of two valid settings, so `Relaxed` suffices.
struct LiveSettings {
    odds: [AtomicU64; 4],
    refusals: AtomicU64,
}

/// Number of buckets in the window: an event counts for the window less one bucket, or longer.
const BUCKETS: u32 = 12;

impl LiveSettings {
    fn new(config: &ClientThrottleConfig) -> Self {
        let live = Self { odds: std::array::from_fn(|_| AtomicU64::new(0)), refusals: AtomicU64::new(0) };
        live.set(config);
        live
    }

    fn set(&self, config: &ClientThrottleConfig) {
        let Odds { k, power, floor, most } = Odds::of(config);
        for (word, value) in self.odds.iter().zip([k, power, floor, most]) {
            word.store(value.to_bits(), Ordering::Relaxed);
        }
        self.refusals.store(config.refusals.to_bits().into(), Ordering::Relaxed);
    }

    #[inline]
    fn odds(&self) -> Odds {
        let [k, power, floor, most] = self.odds.each_ref().map(|word| f64::from_bits(word.load(Ordering::Relaxed)));
        Odds { k, power, floor, most }
    }

    #[inline]
    fn refusals(&self) -> KindSet {
        KindSet::from_bits(self.refusals.load(Ordering::Relaxed) as u16)
    }
}

/// The counts of a [`ClientThrottle`] in its window.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct ClientThrottleSnapshot {
    /// Number of calls that were made, or rejected here.
    pub requests: u64,
    /// Number of calls that the service accepted.
    pub accepts: u64,
    /// Probability with which the next call is rejected, from 0 to 1.
    pub rejection: f64,
}

reconfigurable!(ClientThrottle, ClientThrottleConfig, |_this, next| next.check());

impl ClientThrottle {
    /// Creates a throttle by these settings, with empty counts.
    ///
    /// # Errors
    /// If a setting is invalid.
    pub fn new(config: ClientThrottleConfig) -> Result<Self, ConfigError> {
        Self::builder(config).build()
    }

    /// Creates a builder of a throttle.
    pub fn builder(config: ClientThrottleConfig) -> Builder<Self> {
        Builder::new(config)
    }

    pub(crate) fn make(config: ClientThrottleConfig, common: Common) -> Self {
        let (entropy, Common { name, clock, hooks, .. }) = (common.entropy(), common);
        Self(Arc::new(ThrottleCore {
            config: Mutex::new(config),
            live: LiveSettings::new(&config),
            requests: ChangingWindow::new(config.window, BUCKETS),
            accepts: ChangingWindow::new(config.window, BUCKETS),
            none_rejected: Bound::new(),
            name,
            clock,
            entropy,
            events: hooks.events(),
        }))
    }

    /// Returns the current settings.
    pub fn config(&self) -> ClientThrottleConfig {
        *self.0.config.lock()
    }

    /// Changes the settings while the throttle is in use. The counts are kept, in proportion if the
    /// window becomes shorter.
    ///
    /// # Errors
    /// If a setting is invalid; then nothing has changed.
    pub fn reconfigure(&self, config: ClientThrottleConfig) -> Result<(), ConfigError> {
        self.validate(&config)?;
        let ThrottleCore { live, requests, accepts, none_rejected, clock, events, name, .. } = &*self.0;
        let now = clock.now();
        {
            let mut current = self.0.config.lock();
            *current = config;
            live.set(&config);
            ChangingWindow::set_spans([requests, accepts], config.window, now);
            none_rejected.clear();
        }
        events.send(name.as_ref(), now, || ThrottlingEvent::LimitChanged);
        Ok(())
    }

    /// Returns the counts and the current rejection probability.
    pub fn snapshot(&self) -> ClientThrottleSnapshot {
        let now = self.0.clock.now();
        let ThrottleCore { requests, accepts, .. } = &*self.0;
        let [requests, accepts] = ChangingWindow::sums([requests, accepts], requests.stamp(now), now);
        ClientThrottleSnapshot { requests, accepts, rejection: self.0.live.odds().of_rejection(requests, accepts) }
    }

    /// Subscribes to the events from now on.
    pub fn events(&self) -> Subscription<ThrottlingEvent> {
        self.0.events.subscribe()
    }

    /// Counts a request and decides about it. Returns a permit, by which the caller records the
    /// outcome.
    ///
    /// # Errors
    /// The rejection: [`Reason::LikelyRefused`].
    #[inline]
    pub fn try_acquire(&self) -> Result<ClientThrottlePermit<'_>, Rejected> {
        let this = &*self.0;
        let now = this.clock.now();
        let stamp = this.requests.stamp(now);
        let (bound, word) = (this.none_rejected.load(), this.requests.word(stamp));
        let odds = if Bound::is_above(bound, word) { 0.0 } else { this.odds(now, stamp, bound, word) };
        let stamp = this.requests.add_stamped(stamp, now, 1, &this.accepts);
        if odds > 0.0 && this.entropy.unit() < odds {
            return Err(this.rejected(now));
        }
        Ok(ClientThrottlePermit { throttle: this, stamp: Some(stamp) })
    }

    /// Runs `operation` under this throttle alone. Every `Err` is of kind `other`, which is no
    /// refusal by default. To tell refusals apart, use the throttle in a
    /// [`Pipeline`](crate::Pipeline) with a classifier.
    ///
    /// # Errors
    /// The operation's own error, or the rejection.
    ///
    /// # Cancel safety
    /// A future that is dropped drops the operation, and its request does not count.
    pub fn call<T: Send, E: Send, O>(&self, operation: O) -> impl Future<Output = Result<T, CallError<E>>> + Send
    where
        O: Operation<Output = T, Error = E>, // `|| async { .. }`; blocks: `call_blocking`; not `Send`: `Pipeline::call_local`; `&mut`: `with_state`
    {
        call::call_alone(self, operation)
    }
}

impl ThrottleCore {
    /// Returns the rejection probability. `bound` and `word` were loaded before.
    #[inline(never)]
    fn odds(&self, now: Instant, stamp: Stamp, bound: u64, word: u64) -> f64 {
        let [requests, accepts] = ChangingWindow::sums([&self.requests, &self.accepts], stamp, now);
        let odds = self.live.odds();
        let rejection = odds.of_rejection(requests, accepts);
        if rejection == 0.0 {
            self.none_rejected.set(bound, word, odds.room(requests, accepts));
        }
        rejection
    }

    #[cold]
    fn rejected(&self, now: Instant) -> Rejected {
        let reason = Reason::LikelyRefused;
        self.events.send(self.name.as_ref(), now, || ThrottlingEvent::Rejected { reason, retry_after: None });
        Rejected::new(PolicyKind::ClientThrottle, reason).named(self.name.clone())
    }

    /// Records the accept of a request that was counted before the window changed.
    #[cold]
    fn accept_now(&self) {
        self.accepts.add(self.clock.now(), 1, &self.requests);
    }
}

/// A request under way. A permit that is dropped without `record` uncounts its request.
#[must_use = "a permit that is dropped at once counts nothing"]
pub struct ClientThrottlePermit<'a> {
    throttle: &'a ThrottleCore,
    /// `None` after the outcome was recorded.
    stamp: Option<Stamp>,
}

impl ClientThrottlePermit<'_> {
    /// Records the outcome of the request.
    // Inline: in memory, permit and verdict are read in wider words than they were written in, and
    // each such read waits for the writes. That took 11 of 59 ns.
    #[inline]
    pub fn record(self, verdict: Verdict) {
        self.settle(verdict.class());
    }

    #[inline]
    pub(crate) fn settle(mut self, class: Class) {
        let accepted = match class {
            Class::Success => true,
            Class::Failure { kind, .. } => !self.throttle.live.refusals().contains(kind),
            Class::Ignore => return,
        };
        // In the bucket of its request, so that both leave the window together, and without a clock
        // read.
        if let Some(stamp) = self.stamp.take()
            && accepted
            && !self.throttle.accepts.add_at(stamp)
        {
            self.throttle.accept_now();
        }
    }
}

impl Drop for ClientThrottlePermit<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(stamp) = self.stamp {
            self.throttle.requests.take_back(stamp);
        }
    }
}

impl fmt::Debug for ClientThrottlePermit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientThrottlePermit")
    }
}

impl Component for ClientThrottle {
    type Built = Result<Self, ConfigError>;
    type Spec = ClientThrottleConfig;

    fn assemble(spec: ClientThrottleConfig, common: Common) -> Self::Built {
        spec.check()?;
        Ok(Self::make(spec, common))
    }
}

impl HasName for ClientThrottle {}
impl HasEntropy for ClientThrottle {}
impl HasEvents<ThrottlingEvent> for ClientThrottle {}

call::blocking_door!(ClientThrottle);

impl Policy for ClientThrottle {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        let permit = match self.try_acquire() {
            Ok(permit) => permit,
            Err(rejected) => return inner.refuse(rejected),
        };
        let outcome = inner.attempt(cx).await;
        permit.settle(outcome.class());
        outcome
    }

    fn describe(&self, explanation: &mut Explanation) {
        let config = self.config();
        let ClientThrottleConfig { k, window, max_rejection, .. } = config;
        let settings = format!(
            "rejects above {k} requests per accepted one in {window:?}, at most {:.0} %",
            max_rejection * 100.0
        );
        let layer = Layer::new(PolicyKind::ClientThrottle, self.0.name.clone(), settings).with_component(self);
        explanation.push(config.warnings().into_iter().fold(layer, Layer::with_warning));
    }
}

crate::build::debug_fields!(ClientThrottle, |this| name: this.0.name, snapshot: this.snapshot());
