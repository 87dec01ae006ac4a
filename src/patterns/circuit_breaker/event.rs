//! What a circuit breaker tells: all that it does, and its changes of state alone.
use std::time::Duration;

use super::State;
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
    /// It closed: all calls pass, or with a ramp a growing share of them.
    Closed,
    /// The ramp is over: all calls pass.
    SlowStartEnded,
    /// It was isolated by hand: calls are rejected until somebody closes it.
    Isolated,
    /// It has opened again so soon after closing, so often in a row: its open time is too short, or its probes too few, to tell
    /// whether the other side is well. Told after the opening, from the third time on.
    Flapped {
        /// How many times in a row it opened before it had been closed for `reset_after`.
        times: u32,
    },
    /// A rule would have opened it, but too large a share of its family is open already: it stays closed.
    Suppressed {
        /// By which rule.
        rule: TripRule,
    },
    /// Its settings were replaced.
    Reconfigured,
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
            Self::SlowStartEnded => tracing::info!(target: TARGET, breaker, "ramped up"),
            Self::Flapped { times } => tracing::warn!(target: TARGET, breaker, times, "flaps"),
            Self::Suppressed { rule } => tracing::warn!(target: TARGET, breaker, %rule, "spared: too many are open"),
            Self::Reconfigured => tracing::info!(target: TARGET, breaker, "reconfigured"),
            Self::Isolated => tracing::warn!(target: TARGET, breaker, "isolated"),
            Self::Failed { kind } => tracing::info!(target: TARGET, breaker, %kind, "call failed"),
            Self::Slow => tracing::info!(target: TARGET, breaker, "call was slow"),
            Self::Rejected => tracing::debug!(target: TARGET, breaker, "rejected"),
        }
    }
}

/// A change of a breaker's state, from [`CircuitBreaker::transitions`](super::CircuitBreaker::transitions).
///
/// These come in a stream of their own: however many calls fail and are rejected, they push no transition out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transition {
    /// The state before. The same as `to` where an open breaker was opened anew by hand.
    pub from: State,
    /// The state from now on.
    pub to: State,
    /// How long it had been in the state before.
    pub after: Duration,
    /// What opened it, if it opened.
    pub rule: Option<TripRule>,
    /// For how long it opened, if it did.
    pub open_for: Option<Duration>,
}

impl Traced for Transition {
    fn wanted() -> bool {
        false // `CircuitBreakerEvent` tells `tracing` the same
    }

    fn trace(&self, _breaker: &str) {}
}
