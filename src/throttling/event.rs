//! What a limiter tells.
use std::time::Duration;

use crate::{observe::Traced, outcome::Reason};

/// Something a limiter did. A call that passes is no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ThrottlingEvent {
    /// It rejected a call.
    Rejected {
        /// Why.
        reason: Reason,
        /// When the call could pass.
        retry_after: Option<Duration>,
    },
    /// A call has to wait its turn.
    Queued {
        /// For how long, where that is known.
        wait: Option<Duration>,
    },
    /// Its limit was changed.
    LimitChanged,
}

impl Traced for ThrottlingEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::throttling", tracing::Level::INFO)
    }

    fn trace(&self, limiter: &str) {
        const TARGET: &str = "steadfast::throttling";
        match self {
            Self::Rejected { reason, retry_after } => {
                tracing::info!(target: TARGET, limiter, ?reason, ?retry_after, "rejected");
            }
            Self::Queued { wait } => tracing::debug!(target: TARGET, limiter, ?wait, "queued"),
            Self::LimitChanged => tracing::info!(target: TARGET, limiter, "limit changed"),
        }
    }
}
