//! Events of limiters.
use std::time::Duration;

use crate::{config::Name, observe::Traced, outcome::Reason};

/// An event of a limiter. An admitted call sends none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ThrottlingEvent {
    /// A call was rejected.
    Rejected {
        /// The reason.
        reason: Reason,
        /// Time after which the call could pass, if known.
        retry_after: Option<Duration>,
    },
    /// A call began to wait.
    Queued {
        /// The expected wait, if known.
        wait: Option<Duration>,
    },
    /// The limit or another setting was changed.
    LimitChanged,
    /// The limiter admits no call for a time, because of a server's hint or a call of `pause`.
    Paused {
        /// Length of the pause.
        time: Duration,
    },
    /// A pause ended before its time, by a call of `resume`.
    Resumed,
    /// A shedder began to shed calls.
    SheddingBegan,
    /// A shedder stopped shedding calls.
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
                tracing::debug!(target: TARGET, limiter, ?reason, ?retry_after, "rejected");
            }
            Self::Queued { wait } => tracing::debug!(target: TARGET, limiter, ?wait, "queued"),
            Self::Paused { time } => tracing::info!(target: TARGET, limiter, ?time, "paused"),
            Self::Resumed => tracing::info!(target: TARGET, limiter, "resumed"),
            Self::LimitChanged => tracing::info!(target: TARGET, limiter, "limit changed"),
            Self::SheddingBegan => tracing::info!(target: TARGET, limiter, "shedding began"),
            Self::SheddingEnded => tracing::info!(target: TARGET, limiter, "shedding ended"),
        }
    }
}

/// An event of a [`Degradation`](super::Degradation).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DegradationEvent {
    /// A feature was switched off.
    SwitchedOff {
        /// The feature's name.
        feature: Name,
    },
    /// A feature was switched on again.
    SwitchedOn {
        /// The feature's name.
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
