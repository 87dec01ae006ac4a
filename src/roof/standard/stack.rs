//! The stack.
use std::{fmt, sync::Arc};

use super::{StandardConfig, parts::Parts};
use crate::{
    call::{Attempt, BorrowedAttempt, CallContext, Explanation, Identity, Pipeline, Policy, Stack},
    circuit_breaker::CircuitBreaker,
    config::{ConfigError, Name},
    entropy::Entropy,
    fallback::Fallback,
    hedge::Hedge,
    outcome::Outcome,
    retry::Retry,
    sync::Mutex,
    throttling::{AdaptiveLimiter, ClientThrottle, ConcurrencyLimiter, Gauges, RateLimiter, Reading, Shedder},
    time::Clock,
    timeout::Timeout,
};

/// The standard stack as one policy. A clone shares its state.
#[derive(Clone)]
pub struct Standard(Arc<StandardInner>);

struct StandardInner {
    config: Mutex<StandardConfig>,
    surroundings: Surroundings,
    parts: Parts,
}

/// The components from which the parts are made, beside their settings.
#[derive(Debug, Clone)]
pub(super) struct Surroundings {
    pub(super) name: Option<Name>,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
    pub(super) gauges: Gauges,
}

impl Standard {
    /// Creates the stack.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] if a setting is out of range; it names the field by its path in
    /// the document. Every part is checked, also a budget without a retry that uses it.
    pub fn new(config: StandardConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let (clock, entropy) = (Clock::tokio(), Entropy::from_os());
        Ok(Self::make(config, Surroundings { name: None, clock, entropy, gauges: Gauges::default() }))
    }

    /// Creates a stack from settings that were checked before.
    fn make(config: StandardConfig, surroundings: Surroundings) -> Self {
        let parts = Parts::new(&config, &surroundings);
        Self(Arc::new(StandardInner { config: Mutex::new(config), surroundings, parts }))
    }

    fn changed(&self, change: impl FnOnce(&mut Surroundings)) -> Self {
        let mut surroundings = self.0.surroundings.clone();
        change(&mut surroundings);
        Self::make(self.config(), surroundings)
    }

    /// Creates a new stack with the same settings and a name; its parts are named `name.retry` and
    /// so on.
    #[must_use]
    pub fn named(self, name: impl Into<Name>) -> Self {
        self.changed(|with| with.name = Some(name.into()))
    }

    /// Creates a new stack with the same settings on another clock.
    #[must_use]
    pub fn with_clock(self, clock: &Clock) -> Self {
        self.changed(|with| with.clock = clock.clone())
    }

    /// Creates a new stack with the same settings and another source of randomness for its jitter.
    #[must_use]
    pub fn with_entropy(self, entropy: &Entropy) -> Self {
        self.changed(|with| with.entropy = entropy.clone())
    }

    /// Creates a new stack with the same settings whose shedder also watches this gauge. This holds
    /// for a shedder that the document switches on later, too.
    ///
    /// # Errors
    /// Returns an error if the shedder is on and has no limits for a gauge of this name.
    pub fn with_gauge(self, name: impl Into<Name>, gauge: impl Reading) -> Result<Self, ConfigError> {
        let gauges = self.0.surroundings.gauges.clone().and(name.into(), gauge);
        if let Some(shed) = self.config().shed {
            gauges.all_have(&shed.limits).map_err(|e| e.within("shed"))?;
        }
        Ok(self.changed(|with| with.gauges = gauges))
    }

    /// Returns the current settings.
    pub fn config(&self) -> StandardConfig {
        self.0.config.lock().clone()
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
        config.check()?;
        // Held to the end, so that two concurrent changes do not mix their documents.
        let mut current = self.0.config.lock();
        self.0.parts.reconfigure(&config)?;
        *current = config;
        Ok(())
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

    /// Creates a pipeline of this stack alone, with the same name.
    pub fn into_pipeline(self) -> Pipeline<Stack<Identity, Self>> {
        match self.0.surroundings.name.clone() {
            Some(name) => Pipeline::new().named(name).then(self),
            None => Pipeline::new().then(self),
        }
    }

    /// Describes the policies, in order, with warnings about their settings.
    pub fn explain(&self) -> Explanation {
        let mut explanation = Explanation::new(self.0.surroundings.name.clone());
        self.describe(&mut explanation);
        explanation
    }
}

impl Policy for Standard {
    #[inline]
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        let Parts { fallback, timeout, admission, retry, budget: _, hedge, guard, attempt_timeout } = &self.0.parts;
        // Not built by `Pipeline::then`, which begins with a policy that does nothing: the compiler
        // bounds how deep they nest.
        let attempt = Stack::new(guard, attempt_timeout);
        let stack = Stack::new(timeout, Stack::new(admission, Stack::new(retry, Stack::new(hedge, attempt))));
        let outcome = stack.around(BorrowedAttempt(&mut inner), cx).await;
        match fallback.get() {
            Some(fallback) => fallback.settle(inner, outcome, cx).await,
            None => outcome,
        }
    }

    fn has_fallback(&self) -> bool {
        self.0.parts.fallback.has_fallback()
    }

    fn describe(&self, explanation: &mut Explanation) {
        let parts = &self.0.parts;
        parts.fallback.describe(explanation);
        parts.timeout.describe(explanation);
        parts.admission.describe(explanation);
        parts.retry.describe(explanation);
        parts.hedge.describe(explanation);
        parts.guard.describe(explanation);
        parts.attempt_timeout.describe(explanation);
    }
}

impl fmt::Debug for Standard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Standard").field("name", &self.0.surroundings.name).field("parts", &self.0.parts).finish()
    }
}
