//! The client throttle: a client that turns its own calls away while the other side refuses too many of them.
use std::{fmt, future::Future, sync::Arc};

use super::{ClientThrottleConfig, odds::Odds};
use crate::{
    call::{self, Attempt, CallContext, Explanation, Layer, Operation, Policy},
    config::{ConfigError, Name},
    entropy::Entropy,
    observe::{Events, Subscription},
    outcome::{CallError, Class, KindSet, Outcome, PolicyKind, Reason, Rejected, Verdict},
    sync::{AtomicU64, Mutex, Ordering},
    throttling::ThrottlingEvent,
    time::{Clock, Instant},
    window::{ChangingWindow, Stamp},
};

/// Rejects calls here, with the probability `max(0, (requests - k * accepts) / (requests + 1))`, while the other side refuses too many.
///
/// A refusal costs an overloaded service nearly as much as an answer; this saves it most of them, and needs nothing of it but that it refuses
/// recognisably (kinds `throttled` and `overloaded`). Requests count before they return, and those that are rejected here count too; a dropped
/// call, and one that a policy inside refused, count as if they had not been. It differs from a
/// [circuit breaker](crate::circuit_breaker) in that it knows no states: it rejects as large a share as is in vain.
///
/// A clone is the same throttle.
///
/// ```
/// use steadfast::{FailureKind, Pipeline, Verdict, throttling::{ClientThrottle, ClientThrottleConfig}};
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
pub struct ClientThrottle(Arc<Inner>);

struct Inner {
    /// The settings as they were given; calls read the dials.
    config: Mutex<ClientThrottleConfig>,
    dials: Dials,
    requests: ChangingWindow,
    accepts: ChangingWindow,
    name: Option<Name>,
    clock: Clock,
    entropy: Entropy,
    events: Events<ThrottlingEvent>,
}

/// The settings as calls read them, each in a word of its own: between the writes of a change a call may see some old and some new.
struct Dials {
    odds: [AtomicU64; 4],
    refusals: AtomicU64,
}

/// So many steps has the window: an event counts for the window less one step, or longer.
const BUCKETS: u32 = 12;

impl Dials {
    fn new(config: &ClientThrottleConfig) -> Self {
        let dials = Self { odds: std::array::from_fn(|_| AtomicU64::new(0)), refusals: AtomicU64::new(0) };
        dials.set(config);
        dials
    }

    fn set(&self, config: &ClientThrottleConfig) {
        let Odds { k, power, floor, most } = Odds::of(config);
        for (dial, value) in self.odds.iter().zip([k, power, floor, most]) {
            dial.store(value.to_bits(), Ordering::Relaxed);
        }
        self.refusals.store(config.refusals.to_bits().into(), Ordering::Relaxed);
    }

    #[inline]
    fn odds(&self) -> Odds {
        let [k, power, floor, most] = self.odds.each_ref().map(|dial| f64::from_bits(dial.load(Ordering::Relaxed)));
        Odds { k, power, floor, most }
    }

    #[inline]
    fn refusals(&self) -> KindSet {
        KindSet::from_bits(self.refusals.load(Ordering::Relaxed) as u16)
    }
}

/// What a [`ClientThrottle`] has seen in its window.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct ClientThrottleSnapshot {
    /// Calls that were made, or rejected here.
    pub requests: u64,
    /// Calls that the other side accepted.
    pub accepts: u64,
    /// The probability with which the next call is rejected, from 0 to 1.
    pub rejection: f64,
}

impl ClientThrottle {
    /// A throttle by these settings, which has seen nothing.
    ///
    /// # Errors
    /// Where a setting breaks its rule.
    pub fn new(config: ClientThrottleConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::make(config, Clock::tokio(), Entropy::from_os(), None))
    }

    pub(crate) fn make(config: ClientThrottleConfig, clock: Clock, entropy: Entropy, name: Option<Name>) -> Self {
        Self(Arc::new(Inner {
            config: Mutex::new(config),
            dials: Dials::new(&config),
            requests: ChangingWindow::new(config.window, BUCKETS),
            accepts: ChangingWindow::new(config.window, BUCKETS),
            name,
            clock,
            entropy,
            events: Events::new(),
        }))
    }

    /// A new throttle of the same settings with a name, for errors and events.
    #[must_use]
    pub fn named(self, name: impl Into<Name>) -> Self {
        Self::make(self.config(), self.0.clock.clone(), self.0.entropy.clone(), Some(name.into()))
    }

    /// A new throttle of the same settings on another clock.
    #[must_use]
    pub fn with_clock(self, clock: &Clock) -> Self {
        Self::make(self.config(), clock.clone(), self.0.entropy.clone(), self.0.name.clone())
    }

    /// A new throttle of the same settings that draws from this stream. Seeded by the system by default.
    #[must_use]
    pub fn with_entropy(self, entropy: &Entropy) -> Self {
        Self::make(self.config(), self.0.clock.clone(), entropy.clone(), self.0.name.clone())
    }

    /// Its settings, as they are now.
    pub fn config(&self) -> ClientThrottleConfig {
        *self.0.config.lock()
    }

    /// Changes the settings while it is in use. What it has seen stays seen, in proportion where the window becomes shorter.
    ///
    /// # Errors
    /// Where a setting breaks its rule; then nothing has changed.
    pub fn reconfigure(&self, config: ClientThrottleConfig) -> Result<(), ConfigError> {
        config.check()?;
        let Inner { dials, requests, accepts, clock, events, name, .. } = &*self.0;
        let now = clock.now();
        {
            let mut current = self.0.config.lock();
            *current = config;
            dials.set(&config);
            ChangingWindow::set_spans([requests, accepts], config.window, now);
        }
        events.send(name.as_ref(), now, || ThrottlingEvent::LimitChanged);
        Ok(())
    }

    /// What it has seen, and what it would do now.
    pub fn snapshot(&self) -> ClientThrottleSnapshot {
        let now = self.0.clock.now();
        let (requests, accepts) = (self.0.requests.sum(now), self.0.accepts.sum(now));
        ClientThrottleSnapshot { requests, accepts, rejection: self.0.dials.odds().of_rejection(requests, accepts) }
    }

    /// Its events from now on.
    pub fn events(&self) -> Subscription<ThrottlingEvent> {
        self.0.events.subscribe()
    }

    /// Asks to make a call: a permit, by which to tell what came of it.
    ///
    /// # Errors
    /// The rejection: [`Reason::LikelyRefused`].
    #[inline]
    pub fn try_acquire(&self) -> Result<ClientThrottlePermit<'_>, Rejected> {
        let this = &*self.0;
        let now = this.clock.now();
        let odds = this.dials.odds().of_rejection(this.requests.sum(now), this.accepts.sum(now));
        let stamp = this.requests.add(now, 1, &this.accepts);
        if odds > 0.0 && this.entropy.unit() < odds {
            return Err(this.rejected(now));
        }
        Ok(ClientThrottlePermit { throttle: this, stamp: Some(stamp) })
    }

    /// Runs `operation` with nothing but this throttle around it. Every `Err` is of kind `other`, which no refusal is by default: to say which errors
    /// are, use it in a [`Pipeline`](crate::Pipeline) with a classifier.
    ///
    /// # Errors
    /// The operation's own, or the rejection.
    ///
    /// # Cancel safety
    /// Dropped, it drops the operation, and counts as if it had not been made.
    pub fn call<O: Operation>(
        &self,
        operation: O,
    ) -> impl Future<Output = Result<O::Output, CallError<O::Error>>> + Send {
        call::call_alone(self, operation)
    }
}

impl Inner {
    #[cold]
    fn rejected(&self, now: Instant) -> Rejected {
        let reason = Reason::LikelyRefused;
        self.events.send(self.name.as_ref(), now, || ThrottlingEvent::Rejected { reason, retry_after: None });
        Rejected::new(PolicyKind::ClientThrottle, reason).named(self.name.clone())
    }

    /// An accept of a request that was counted before the window changed.
    #[cold]
    fn accept_now(&self) {
        self.accepts.add(self.clock.now(), 1, &self.requests);
    }
}

/// A call that is under way. Dropped without a word it counts as if it had not been made.
#[must_use = "a permit that is dropped at once counts nothing"]
pub struct ClientThrottlePermit<'a> {
    throttle: &'a Inner,
    /// `None` when it was recorded.
    stamp: Option<Stamp>,
}

impl ClientThrottlePermit<'_> {
    /// Tells what came of the call.
    pub fn record(self, verdict: Verdict) {
        self.settle(verdict.class());
    }

    #[inline]
    pub(crate) fn settle(mut self, class: Class) {
        let accepted = match class {
            Class::Success => true,
            Class::Failure { kind, .. } => !self.throttle.dials.refusals().contains(kind),
            Class::Ignore => return,
        };
        // With its request, so that both leave the window together, and no clock is read.
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
            "at most {k} requests for each accepted one in {window:?}, rejects at most {:.0} %",
            max_rejection * 100.0
        );
        let layer = Layer::new(PolicyKind::ClientThrottle, self.0.name.clone(), settings);
        explanation.push(config.warnings().into_iter().fold(layer, Layer::with_warning));
    }
}

impl fmt::Debug for ClientThrottle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientThrottle")
            .field("name", &self.0.name)
            .field("snapshot", &self.snapshot())
            .finish_non_exhaustive()
    }
}
