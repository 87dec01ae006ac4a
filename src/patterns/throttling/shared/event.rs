//! What a shared limiter tells.
use std::time::Duration;

use crate::{observe::Traced, outcome::Reason, port::PortErrorKind};

/// Something a [`SharedRateLimiter`](super::SharedRateLimiter) did. A call that passes is no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedRateLimitEvent {
    /// It rejected a call.
    Rejected {
        /// Why.
        reason: Reason,
        /// When the call could pass.
        retry_after: Option<Duration>,
    },
    /// It took permits ahead of its calls.
    Leased {
        /// How many.
        permits: u32,
    },
    /// The store failed, or took too long: it goes on as configured for that.
    StoreFailed {
        /// How; `None` where it took too long.
        kind: Option<PortErrorKind>,
    },
    /// The store answers again.
    StoreBack,
    /// Its settings were changed.
    LimitChanged,
}

impl Traced for SharedRateLimitEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::throttling", tracing::Level::INFO)
    }

    fn trace(&self, limiter: &str) {
        const TARGET: &str = "steadfast::throttling";
        match self {
            Self::Rejected { reason, retry_after } => {
                tracing::info!(target: TARGET, limiter, ?reason, ?retry_after, "rejected");
            }
            Self::Leased { permits } => tracing::debug!(target: TARGET, limiter, permits, "leased"),
            Self::StoreFailed { kind } => tracing::warn!(target: TARGET, limiter, ?kind, "the store failed"),
            Self::StoreBack => tracing::info!(target: TARGET, limiter, "the store is back"),
            Self::LimitChanged => tracing::info!(target: TARGET, limiter, "limit changed"),
        }
    }
}
