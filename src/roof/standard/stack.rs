//! The stack.
use std::{fmt, future::Future, sync::Arc};

use super::{StandardConfig, parts::Parts};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents, HasName},
    call::{Attempt, CallContext, Explanation, Identity, Nested, Pipeline, Policy},
    circuit_breaker::{CircuitBreaker, CircuitBreakerEvent, Transition},
    config::{ConfigError, Name, Reconfigure, apply_newest, reconfigurable},
    fallback::{Fallback, FallbackEvent},
    hedge::{Hedge, HedgeEvent},
    outcome::{ErrIsFailure, Outcome},
    retry::{Retry, RetryEvent},
    sync::Mutex,
    throttling::{
        AdaptiveLimiter, ClientThrottle, ConcurrencyLimiter, Gauges, RateLimiter, Reading, Shedder, ThrottlingEvent,
    },
    timeout::{Timeout, TimeoutEvent},
};

/// A pipeline of a standard stack alone: [`Standard::into_pipeline`] creates it. The type for a
/// field, where no other policy is added.
///
/// A classifier changes `C`: `StandardPipeline<ByStatus>`, or `StandardPipeline<fn(&R) -> Verdict>`
/// for a function `judge as fn(&R) -> Verdict`. A [`BoxedPipeline`](crate::BoxedPipeline) needs no
/// such type, but serves one type of result. It also costs an eighth of the [time to
/// compile](crate::standard#boxed-or-not) at each place that calls it.
///
/// ```
/// use steadfast::standard::{Standard, StandardPipeline};
///
/// struct Client { calls: StandardPipeline }
///
/// # fn main() -> Result<(), steadfast::ConfigError> {
/// let client = Client { calls: Standard::new(Default::default())?.into_pipeline() };
/// assert!(client.calls.explain().layers().len() > 3);
/// # Ok(())
/// # }
/// ```
pub type StandardPipeline<C = ErrIsFailure> = Pipeline<(Identity, Standard), C>;

/// The standard stack as one policy. A clone shares its state.
#[derive(Clone)]
pub struct Standard(Arc<StandardInner>);

struct StandardInner {
    config: Mutex<Arc<StandardConfig>>,
    surroundings: Surroundings,
    parts: Parts,
}

/// The components from which the parts are made, beside their settings.
#[derive(Debug, Clone)]
pub(super) struct Surroundings {
    /// Has an entropy.
    pub(super) common: Common,
    pub(super) gauges: Gauges,
}

/// Arguments of a stack, beside name, clock and entropy.
#[derive(Debug)]
pub struct StandardSpec {
    config: StandardConfig,
    gauges: Gauges,
}

impl Builder<Standard> {
    /// Lets the shedder also watch this gauge: a closure, or a
    /// [`Gauge`](crate::throttling::Gauge). The shedder's settings must have limits for its name.
    /// This holds for a shedder that the document switches on later, too.
    pub fn gauge(mut self, name: impl Into<Name>, gauge: impl Reading) -> Self {
        self.spec.gauges = self.spec.gauges.and(name.into(), gauge);
        self
    }
}

impl Component for Standard {
    type Built = Result<Self, ConfigError>;
    type Spec = StandardSpec;

    fn assemble(spec: StandardSpec, common: Common) -> Self::Built {
        let StandardSpec { config, gauges } = spec;
        config.check_with(&gauges)?;
        Ok(Self::make(config, gauges, common))
    }
}

impl HasName for Standard {}
impl HasEntropy for Standard {}

// A hook is passed to each part that has such events, switched on or off.
impl HasEvents<TimeoutEvent> for Standard {}
impl HasEvents<RetryEvent> for Standard {}
impl HasEvents<CircuitBreakerEvent> for Standard {}
impl HasEvents<Transition> for Standard {}
impl HasEvents<ThrottlingEvent> for Standard {}
impl HasEvents<HedgeEvent> for Standard {}
impl HasEvents<FallbackEvent> for Standard {}

reconfigurable!(Standard, StandardConfig, |this, next| next.check_with(&this.0.surroundings.gauges));

impl Standard {
    /// Creates the stack from settings that are checked already.
    pub(super) fn make(config: StandardConfig, gauges: Gauges, common: Common) -> Self {
        let common = Common { entropy: Some(common.entropy()), ..common };
        let surroundings = Surroundings { common, gauges };
        let parts = Parts::new(&config, &surroundings);
        Self(Arc::new(StandardInner { config: Mutex::new(Arc::new(config)), surroundings, parts }))
    }

    /// Creates the stack.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] if a setting is out of range; it names the field by its path in
    /// the document. Every part is checked, also a budget without a retry that uses it.
    pub fn new(config: StandardConfig) -> Result<Self, ConfigError> {
        Self::builder(config).build()
    }

    /// Creates a builder of the stack. Its parts are named `name.retry` and so on.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CStandard%3E): `gauge`.
    pub fn builder(config: StandardConfig) -> Builder<Self> {
        Builder::new(StandardSpec { config, gauges: Gauges::default() })
    }

    /// Returns the current settings.
    pub fn config(&self) -> StandardConfig {
        StandardConfig::clone(&self.0.config.lock())
    }

    /// Replaces the settings while in use, for all clones.
    ///
    /// Each part keeps its state, also while it is switched off: a breaker stays open, a limit
    /// stays as full as it was. Calls in flight end under the settings that admitted them or under
    /// the new ones, as documented at `reconfigure` of each part; none is lost.
    ///
    /// ```
    /// use steadfast::standard::{Standard, StandardConfig};
    ///
    /// let stack = Standard::new(StandardConfig::default()).unwrap();
    /// let load = |document| -> Result<(), Box<dyn std::error::Error>> {
    ///     Ok(stack.reconfigure(toml::from_str(document)?)?)
    /// };
    ///
    /// load("retry = { max_attempts = 5 }\nrate_limit = { permits = 10, per = '1s' }").unwrap();
    /// assert_eq!(stack.retry().unwrap().config().max_attempts, 5);
    ///
    /// let error = load("retry = { max_attempts = 0 }").unwrap_err();
    /// assert_eq!(error.to_string(), "invalid `retry.max_attempts`: must be at least 1");
    /// assert_eq!(stack.retry().unwrap().config().max_attempts, 5);
    /// ```
    ///
    /// # Errors
    /// As [`new`](Self::new), and if the shedder watches a gauge without limits. Nothing has
    /// changed then.
    pub fn reconfigure(&self, config: StandardConfig) -> Result<(), ConfigError> {
        self.validate(&config)?;
        let StandardInner { config: current, parts, .. } = &*self.0;
        *current.lock() = Arc::new(config);
        apply_newest(|| current.lock().clone(), |config| parts.reconfigure(config))
    }

    /// Returns the fallback, if it is on.
    pub fn fallback(&self) -> Option<&Fallback> {
        self.0.parts.fallback.get()
    }

    /// Returns the time-out of the whole call, if it is on.
    pub fn timeout(&self) -> Option<&Timeout> {
        self.0.parts.timeout.get()
    }

    /// Returns the shedder, if it is on.
    pub fn shed(&self) -> Option<&Shedder> {
        self.0.parts.admission.shed.get()
    }

    /// Returns the rate limit, if it is on.
    pub fn rate_limit(&self) -> Option<&RateLimiter> {
        self.0.parts.admission.rate_limit.get()
    }

    /// Returns the concurrency limit, if it is on.
    pub fn concurrency_limit(&self) -> Option<&ConcurrencyLimiter> {
        self.0.parts.admission.concurrency_limit.get()
    }

    /// Returns the adaptive concurrency limit, if it is on.
    pub fn adaptive_limit(&self) -> Option<&AdaptiveLimiter> {
        self.0.parts.admission.adaptive_limit.get()
    }

    /// Returns the retry, if it is on.
    pub fn retry(&self) -> Option<&Retry> {
        self.0.parts.retry.get()
    }

    /// Returns the hedge, if it is on.
    pub fn hedge(&self) -> Option<&Hedge> {
        self.0.parts.hedge.get()
    }

    /// Returns the client throttle, if it is on.
    pub fn client_throttle(&self) -> Option<&ClientThrottle> {
        self.0.parts.guard.throttle.get()
    }

    /// Returns the circuit breaker, if it is on.
    pub fn circuit_breaker(&self) -> Option<&CircuitBreaker> {
        self.0.parts.guard.breaker.get()
    }

    /// Returns the time-out of each attempt, if it is on.
    pub fn attempt_timeout(&self) -> Option<&Timeout> {
        self.0.parts.attempt_timeout.get()
    }

    /// Returns all parts, on or off.
    #[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "read by metrics alone"))]
    pub(crate) fn parts(&self) -> &Parts {
        &self.0.parts
    }

    /// Creates a pipeline of this stack alone, with the same name.
    pub fn into_pipeline(self) -> StandardPipeline {
        match self.0.surroundings.common.name.clone() {
            Some(name) => Pipeline::new().named(name).then(self),
            None => Pipeline::new().then(self),
        }
    }

    /// Describes the policies, in order, with warnings about their settings.
    pub fn explain(&self) -> Explanation {
        let mut explanation = Explanation::new(self.0.surroundings.common.name.clone());
        self.describe(&mut explanation);
        explanation
    }
}

impl Policy for Standard {
    #[inline]
    fn around<A: Attempt>(&self, inner: A, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        A::under_stack(&*self.0, inner, cx)
    }

    fn has_fallback(&self) -> bool {
        self.0.parts.fallback.has_fallback()
    }

    fn describe(&self, explanation: &mut Explanation) {
        let parts = &self.0.parts;
        explanation.push_parts(|explanation| {
            parts.fallback.describe(explanation);
            parts.timeout.describe(explanation);
            parts.admission.describe(explanation);
            parts.retry.describe(explanation);
            parts.hedge.describe(explanation);
            parts.guard.describe(explanation);
            parts.attempt_timeout.describe(explanation);
        });
    }
}

impl Policy for StandardInner {
    #[inline]
    fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        async move {
            let Parts { fallback, timeout, admission, retry, budget: _, hedge, guard, attempt_timeout } = &self.parts;
            // Not built by `Pipeline::then`, which begins with a policy that does nothing: the compiler
            // bounds how deep they nest.
            let stack = (timeout, (admission, (retry, (hedge, (guard, attempt_timeout)))));
            let began_with = fallback.get();
            if began_with.is_some() {
                inner.claim_fallback();
            }
            let outcome = stack.around(Nested(&mut inner), cx).await;
            match began_with.or_else(|| fallback.get()) {
                Some(fallback) => fallback.settle(inner, outcome, cx).await,
                None => outcome,
            }
        }
    }
}

impl fmt::Debug for Standard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Standard")
            .field("name", &self.0.surroundings.common.name)
            .field("parts", &self.0.parts)
            .finish()
    }
}
