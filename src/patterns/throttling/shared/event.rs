//! Events of shared limiters.
use std::time::Duration;

use crate::{observe::Traced, outcome::Reason, port::PortErrorKind};

/// An event of a [`SharedRateLimiter`](super::SharedRateLimiter). An admitted call sends none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedRateLimitEvent {
    /// A call was rejected.
    Rejected {
        /// The reason.
        reason: Reason,
        /// Time after which the call could pass, if known.
        retry_after: Option<Duration>,
    },
    /// Permits were leased ahead of calls.
    Leased {
        /// Number of permits.
        permits: u32,
    },
    /// The store failed or timed out. The limiter goes on as `when_down` says.
    StoreFailed {
        /// Kind of the failure; `None` for a time-out.
        kind: Option<PortErrorKind>,
    },
    /// The store answers again.
    StoreBack,
    /// The settings were changed.
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
                tracing::debug!(target: TARGET, limiter, ?reason, ?retry_after, "rejected");
            }
            Self::Leased { permits } => tracing::debug!(target: TARGET, limiter, permits, "leased"),
            Self::StoreFailed { kind } => tracing::warn!(target: TARGET, limiter, ?kind, "the store failed"),
            Self::StoreBack => tracing::info!(target: TARGET, limiter, "the store is back"),
            Self::LimitChanged => tracing::info!(target: TARGET, limiter, "limit changed"),
        }
    }
}
