//! Events of a circuit breaker: all of them, and its state transitions alone.
use std::time::Duration;

use super::State;
use crate::{
    observe::Traced,
    outcome::{FailureKind, TripRule},
};

/// Event of a [`CircuitBreaker`](super::CircuitBreaker).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CircuitBreakerEvent {
    /// The breaker opened and rejects calls.
    Opened {
        /// Rule that opened the breaker.
        rule: TripRule,
        /// Duration of the opening.
        open_for: Duration,
        /// Number of consecutive openings, with this one.
        openings: u32,
        /// Kind of the last failure.
        last: Option<FailureKind>,
    },
    /// A call came after the open time: it is the first probe.
    HalfOpened,
    /// The breaker closed: all calls pass, or during a slow start a growing share of them.
    Closed,
    /// The slow start ended: all calls pass.
    SlowStartEnded,
    /// The breaker was isolated manually: it rejects calls until it is closed manually.
    Isolated,
    /// The breaker opened soon after closing, several times in a row. Its open time is too short,
    /// or its probes are too few, to judge the service. Sent after the opening, from the third time
    /// on.
    Flapped {
        /// Number of consecutive openings that came before `reset_after` in the closed state.
        times: u32,
    },
    /// A rule would have opened the breaker, but `max_open` of its registry was reached: it stays
    /// closed.
    Suppressed {
        /// Rule that would have opened the breaker.
        rule: TripRule,
    },
    /// The configuration was replaced.
    Reconfigured,
    /// A call that passed failed.
    Failed {
        /// Kind of the failure.
        kind: FailureKind,
    },
    /// A call that passed succeeded, but was slow.
    Slow,
    /// The breaker rejected a call (in shadow mode: would have rejected it).
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
            Self::SlowStartEnded => tracing::info!(target: TARGET, breaker, "slow start ended"),
            Self::Flapped { times } => tracing::warn!(target: TARGET, breaker, times, "opens again soon after closing"),
            Self::Suppressed { rule } => {
                tracing::warn!(target: TARGET, breaker, %rule, "opening suppressed: `max_open` reached")
            }
            Self::Reconfigured => tracing::info!(target: TARGET, breaker, "reconfigured"),
            Self::Isolated => tracing::warn!(target: TARGET, breaker, "isolated"),
            Self::Failed { kind } => tracing::debug!(target: TARGET, breaker, %kind, "call failed"),
            Self::Slow => tracing::debug!(target: TARGET, breaker, "call was slow"),
            Self::Rejected => tracing::debug!(target: TARGET, breaker, "rejected"),
        }
    }
}

/// Change of a breaker's state, from
/// [`CircuitBreaker::transitions`](super::CircuitBreaker::transitions).
///
/// Transitions come in a stream of their own: failed and rejected calls, however many, do not push
/// transitions out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transition {
    /// State before. Equal to `to` if an open breaker was opened again.
    pub from: State,
    /// State after.
    pub to: State,
    /// Time that the breaker had spent in the state before.
    pub after: Duration,
    /// Rule that opened the breaker, if it opened.
    pub rule: Option<TripRule>,
    /// Duration of the opening, if the breaker opened.
    pub open_for: Option<Duration>,
}

impl Traced for Transition {
    fn wanted() -> bool {
        false // `CircuitBreakerEvent` sends the same to `tracing`
    }

    fn trace(&self, _breaker: &str) {}
}
