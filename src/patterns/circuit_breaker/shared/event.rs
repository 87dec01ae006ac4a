//! What a breaker tells of sharing its openings.
use std::time::Duration;

use crate::{observe::Traced, port::PortErrorKind};

/// Something a [`SharedCircuitBreaker`](super::SharedCircuitBreaker) did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedCircuitBreakerEvent {
    /// The breaker opened by its own judgement, and the others can read that.
    Reported {
        /// For how long yet.
        open_for: Duration,
    },
    /// The breaker was opened, because so many others have.
    OpenedWithOthers {
        /// How many.
        reports: usize,
        /// For how long.
        open_for: Duration,
    },
    /// The store failed, or took too long: the breaker goes on by itself.
    StoreFailed {
        /// How; `None` where it took too long.
        kind: Option<PortErrorKind>,
    },
    /// The store answers again.
    StoreBack,
    /// Hints could not be sent or heard: others are seen when it looks.
    NotifierFailed {
        /// How; `None` where it took too long.
        kind: Option<PortErrorKind>,
    },
    /// Its settings were changed.
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
            Self::StoreFailed { kind } => tracing::warn!(target: TARGET, breaker, ?kind, "the store failed"),
            Self::StoreBack => tracing::info!(target: TARGET, breaker, "the store is back"),
            Self::NotifierFailed { kind } => tracing::warn!(target: TARGET, breaker, ?kind, "the notifier failed"),
            Self::ConfigChanged => tracing::info!(target: TARGET, breaker, "sharing changed"),
        }
    }
}
