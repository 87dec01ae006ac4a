//! Events of a shared breaker.
use std::time::Duration;

use crate::{observe::Traced, port::PortErrorKind};

/// Event of a [`SharedCircuitBreaker`](super::SharedCircuitBreaker).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedCircuitBreakerEvent {
    /// The breaker opened by its own rules, and the store has the report.
    Reported {
        /// Remaining open time.
        open_for: Duration,
    },
    /// The breaker opened because enough others have.
    OpenedWithOthers {
        /// Number of other breakers that are open.
        reports: usize,
        /// Duration of the opening.
        open_for: Duration,
    },
    /// The store failed or timed out. The breaker continues by its own rules.
    StoreFailed {
        /// Kind of the failure; `None` for a time-out.
        kind: Option<PortErrorKind>,
    },
    /// The store answers again.
    StoreBack,
    /// Hints could not be sent or received. The next poll reads the reports instead.
    NotifierFailed {
        /// Kind of the failure; `None` for a time-out.
        kind: Option<PortErrorKind>,
    },
    /// The configuration was replaced.
    ConfigChanged,
}

impl Traced for SharedCircuitBreakerEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::circuit_breaker", tracing::Level::INFO)
    }

    fn trace(&self, breaker: &str) {
        const TARGET: &str = "steadfast::circuit_breaker";
        match self {
            Self::Reported { open_for } => tracing::info!(target: TARGET, breaker, ?open_for, "opening reported"),
            Self::OpenedWithOthers { reports, open_for } => {
                tracing::warn!(target: TARGET, breaker, reports, ?open_for, "opened with others");
            }
            Self::StoreFailed { kind } => tracing::warn!(target: TARGET, breaker, ?kind, "store failed"),
            Self::StoreBack => tracing::info!(target: TARGET, breaker, "store is back"),
            Self::NotifierFailed { kind } => tracing::warn!(target: TARGET, breaker, ?kind, "notifier failed"),
            Self::ConfigChanged => tracing::info!(target: TARGET, breaker, "configuration of sharing changed"),
        }
    }
}
