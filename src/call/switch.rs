//! A policy that can be switched off while it is in use.
use std::{
    future::Future,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use super::{
    Attempt, CallContext, Explanation, Policy,
    policy::{Either, Identity},
};
use crate::outcome::Outcome;

/// A policy that can be switched off and on while it is in use. While off it lets everything pass
/// and keeps its state.
///
/// Calls in flight end as they began. Settings change by the policy's own `reconfigure`.
///
/// ```
/// use std::sync::Arc;
/// use steadfast::{
///     Pipeline,
///     call::Switch,
///     circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
/// };
///
/// let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
/// let breaker = Arc::new(Switch::new(breaker));
/// let pipeline = Pipeline::new().then(breaker.clone());
/// breaker.policy().isolate();
/// breaker.set(false);
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// assert!(pipeline.call(|| async { Ok::<_, std::io::Error>(1) }).await.is_ok());
/// breaker.set(true);
/// assert!(pipeline.call(|| async { Ok::<_, std::io::Error>(1) }).await.is_err());
/// # });
/// ```
#[derive(Debug)]
pub struct Switch<P> {
    on: AtomicBool,
    policy: P,
}

impl<P> Switch<P> {
    /// Wraps a policy, switched on.
    pub const fn new(policy: P) -> Self {
        Self { on: AtomicBool::new(true), policy }
    }

    /// Switches the policy on or off, for calls that begin from now on.
    pub fn set(&self, on: bool) {
        // `Relaxed`: the flag publishes nothing, as the policy synchronises its own settings.
        self.on.store(on, Relaxed);
    }

    /// Returns `true` if the policy is on.
    pub fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Returns the policy, on or off.
    pub const fn policy(&self) -> &P {
        &self.policy
    }

    /// Returns the policy, if it is on.
    #[inline]
    pub fn get(&self) -> Option<&P> {
        self.is_on().then_some(&self.policy)
    }
}

impl<P: Policy> Policy for Switch<P> {
    #[inline]
    fn around<A: Attempt>(&self, inner: A, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        match self.get() {
            Some(policy) => Either::Left { future: policy.around(inner, cx) },
            None => Either::Right { future: Identity.around(inner, cx) },
        }
    }

    fn has_fallback(&self) -> bool {
        self.get().is_some_and(Policy::has_fallback)
    }

    fn describe(&self, explanation: &mut Explanation) {
        if let Some(policy) = self.get() {
            policy.describe(explanation);
        }
    }
}
