//! The stack itself.
use super::StandardConfig;
use crate::{
    call::{Attempt, CallContext, Explanation, Pipeline, Policy, Stack},
    circuit_breaker::CircuitBreaker,
    config::{ConfigError, Name},
    entropy::Entropy,
    outcome::Outcome,
    retry::{Retry, RetryBudget},
    throttling::{ConcurrencyLimiter, RateLimiter},
    time::Clock,
    timeout::Timeout,
};

/// The standard stack as one policy. A clone shares its state.
#[derive(Debug, Clone)]
pub struct Standard {
    config: StandardConfig,
    name: Option<Name>,
    clock: Clock,
    entropy: Entropy,
    parts: Parts,
}

#[derive(Debug, Clone)]
struct Parts {
    timeout: Option<Timeout>,
    rate_limit: Option<RateLimiter>,
    concurrency_limit: Option<ConcurrencyLimiter>,
    retry: Option<Retry>,
    circuit_breaker: Option<CircuitBreaker>,
    attempt_timeout: Option<Timeout>,
}

impl Standard {
    /// The stack by these settings.
    ///
    /// # Errors
    /// Where a setting breaks its rule; the field is named by its path in the document. Every part is checked, also a budget
    /// without a retry to use it.
    pub fn new(config: StandardConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self::make(config, None, Clock::tokio(), Entropy::from_os()))
    }

    /// For settings that were checked before.
    fn make(config: StandardConfig, name: Option<Name>, clock: Clock, entropy: Entropy) -> Self {
        // Each part is called by the stack's name and its own.
        let title = |part: &str| Name::from(name.as_ref().map_or_else(|| part.to_owned(), |n| format!("{n}.{part}")));
        let timeout = |limit, part| Timeout::new(limit).named(title(part)).with_clock(&clock);
        let budget = config.retry_budget.map(RetryBudget::make);
        let parts = Parts {
            timeout: config.timeout.map(|limit| timeout(limit, "timeout")),
            rate_limit: config.rate_limit.map(|c| RateLimiter::make(&c, clock.clone(), Some(title("rate_limit")))),
            concurrency_limit: config
                .concurrency_limit
                .map(|c| ConcurrencyLimiter::make(c, clock.clone(), Some(title("concurrency_limit")))),
            retry: config.retry.map(|c| {
                let retry = Retry::make(c, clock.clone(), entropy.clone(), Some(title("retry")));
                budget.iter().fold(retry, Retry::with_budget)
            }),
            circuit_breaker: config
                .circuit_breaker
                .map(|c| CircuitBreaker::make(c, clock.clone(), entropy.clone(), Some(title("circuit_breaker")))),
            attempt_timeout: config.attempt_timeout.map(|limit| timeout(limit, "attempt_timeout")),
        };
        Self { config, name, clock, entropy, parts }
    }

    /// A new stack of the same settings with a name; its parts are called `name.retry` and so on.
    #[must_use]
    pub fn named(self, name: impl Into<Name>) -> Self {
        Self::make(self.config, Some(name.into()), self.clock, self.entropy)
    }

    /// A new stack of the same settings on another clock.
    #[must_use]
    pub fn with_clock(self, clock: &Clock) -> Self {
        Self::make(self.config, self.name, clock.clone(), self.entropy)
    }

    /// A new stack of the same settings with other randomness for its jitter.
    #[must_use]
    pub fn with_entropy(self, entropy: &Entropy) -> Self {
        Self::make(self.config, self.name, self.clock, entropy.clone())
    }

    /// Its settings.
    pub fn config(&self) -> &StandardConfig {
        &self.config
    }

    /// The time-out of the whole call.
    pub fn timeout(&self) -> Option<&Timeout> {
        self.parts.timeout.as_ref()
    }

    /// The rate limit.
    pub fn rate_limit(&self) -> Option<&RateLimiter> {
        self.parts.rate_limit.as_ref()
    }

    /// The concurrency limit.
    pub fn concurrency_limit(&self) -> Option<&ConcurrencyLimiter> {
        self.parts.concurrency_limit.as_ref()
    }

    /// The retry.
    pub fn retry(&self) -> Option<&Retry> {
        self.parts.retry.as_ref()
    }

    /// The circuit breaker.
    pub fn circuit_breaker(&self) -> Option<&CircuitBreaker> {
        self.parts.circuit_breaker.as_ref()
    }

    /// The time-out of each attempt.
    pub fn attempt_timeout(&self) -> Option<&Timeout> {
        self.parts.attempt_timeout.as_ref()
    }

    /// A pipeline of this stack alone, of the same name.
    pub fn into_pipeline(self) -> Pipeline<Stack<crate::call::Identity, Self>> {
        match self.name.clone() {
            Some(name) => Pipeline::new().named(name).then(self),
            None => Pipeline::new().then(self),
        }
    }

    /// What it does, in order, with warnings where the settings will hurt.
    pub fn explain(&self) -> Explanation {
        let mut explanation = Explanation::new(self.name.clone());
        self.describe(&mut explanation);
        explanation
    }
}

impl Policy for Standard {
    #[inline]
    async fn around<A: Attempt>(&self, inner: A, cx: CallContext<'_>) -> Outcome {
        let Parts { timeout, rate_limit, concurrency_limit, retry, circuit_breaker, attempt_timeout } = &self.parts;
        let stack = Pipeline::new()
            .then(timeout)
            .then(rate_limit)
            .then(concurrency_limit)
            .then(retry)
            .then(circuit_breaker)
            .then(attempt_timeout);
        stack.policy().around(inner, cx).await
    }

    fn describe(&self, explanation: &mut Explanation) {
        let Parts { timeout, rate_limit, concurrency_limit, retry, circuit_breaker, attempt_timeout } = &self.parts;
        timeout.describe(explanation);
        rate_limit.describe(explanation);
        concurrency_limit.describe(explanation);
        retry.describe(explanation);
        circuit_breaker.describe(explanation);
        attempt_timeout.describe(explanation);
    }
}
