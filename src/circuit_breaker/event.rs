//! What a circuit breaker tells.
use std::time::Duration;

use crate::{
    observe::Traced,
    outcome::{FailureKind, TripRule},
};

/// Something a [`CircuitBreaker`](super::CircuitBreaker) did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CircuitBreakerEvent {
    /// It opened: calls are rejected from now on.
    Opened {
        /// By which rule.
        rule: TripRule,
        /// For how long.
        open_for: Duration,
        /// How many openings in a row this makes.
        openings: u32,
        /// The kind of the last failure.
        last: Option<FailureKind>,
    },
    /// Its open time was over when a call came: that call is the first probe.
    HalfOpened,
    /// It closed: all calls pass.
    Closed,
    /// It was isolated by hand: calls are rejected until somebody closes it.
    Isolated,
    /// A call that it had let through failed.
    Failed {
        /// How.
        kind: FailureKind,
    },
    /// A call that it had let through succeeded, but slowly.
    Slow,
    /// It rejected a call (in shadow mode: it would have).
    Rejected,
}

impl Traced for CircuitBreakerEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::circuit_breaker", tracing::Level::INFO)
    }

    fn trace(&self, breaker: &str) {
        const TARGET: &str = "steadfast::circuit_breaker";
        match self {
            Self::Opened { rule, open_for, openings, last } => {
                tracing::warn!(target: TARGET, breaker, %rule, ?open_for, openings, ?last, "opened");
            }
            Self::HalfOpened => tracing::info!(target: TARGET, breaker, "half-open"),
            Self::Closed => tracing::info!(target: TARGET, breaker, "closed"),
            Self::Isolated => tracing::warn!(target: TARGET, breaker, "isolated"),
            Self::Failed { kind } => tracing::info!(target: TARGET, breaker, %kind, "call failed"),
            Self::Slow => tracing::info!(target: TARGET, breaker, "call was slow"),
            Self::Rejected => tracing::debug!(target: TARGET, breaker, "rejected"),
        }
    }
}
