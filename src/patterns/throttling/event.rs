//! What a limiter tells.
use std::time::Duration;

use crate::{config::Name, observe::Traced, outcome::Reason};

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
    /// Its limit, or another setting, was changed.
    LimitChanged,
    /// It lets no call pass for a time: the other side asked for that, or somebody told it to.
    Paused {
        /// For how long.
        time: Duration,
    },
    /// A shedder began to shed.
    SheddingBegan,
    /// A shedder sheds nothing any more.
    SheddingEnded,
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
            Self::Paused { time } => tracing::info!(target: TARGET, limiter, ?time, "paused"),
            Self::LimitChanged => tracing::info!(target: TARGET, limiter, "limit changed"),
            Self::SheddingBegan => tracing::info!(target: TARGET, limiter, "shedding began"),
            Self::SheddingEnded => tracing::info!(target: TARGET, limiter, "shedding ended"),
        }
    }
}

/// What a [`Degradation`](super::Degradation) did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DegradationEvent {
    /// It switched a feature off.
    SwitchedOff {
        /// Which.
        feature: Name,
    },
    /// It switched a feature on again.
    SwitchedOn {
        /// Which.
        feature: Name,
    },
}

impl Traced for DegradationEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::throttling", tracing::Level::INFO)
    }

    fn trace(&self, degradation: &str) {
        const TARGET: &str = "steadfast::throttling";
        match self {
            Self::SwitchedOff { feature } => tracing::info!(target: TARGET, degradation, %feature, "switched off"),
            Self::SwitchedOn { feature } => tracing::info!(target: TARGET, degradation, %feature, "switched on"),
        }
    }
}
