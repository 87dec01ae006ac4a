//! Events of chaos.
use std::time::Duration;

use crate::{observe::Traced, outcome::FailureKind};

/// Event of a [`Chaos`](super::Chaos). An attempt without an injection is no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChaosEvent {
    /// An attempt starts later.
    Delayed {
        /// Delay.
        by: Duration,
    },
    /// An attempt failed without being started.
    Failed {
        /// Kind of failure as which it is judged.
        kind: FailureKind,
    },
    /// The result of an operation was replaced.
    Replaced,
    /// An attempt hangs and will never end.
    Hung,
    /// An attempt panicked.
    Panicked,
    /// Chaos was enabled.
    SwitchedOn,
    /// Chaos was disabled.
    SwitchedOff,
}

impl Traced for ChaosEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::chaos", tracing::Level::WARN)
    }

    fn trace(&self, source: &str) {
        const TARGET: &str = "steadfast::chaos";
        match self {
            Self::SwitchedOn => tracing::warn!(target: TARGET, chaos = source, "chaos enabled"),
            Self::SwitchedOff => tracing::warn!(target: TARGET, chaos = source, "chaos disabled"),
            injected => tracing::debug!(target: TARGET, chaos = source, ?injected, "chaos injected"),
        }
    }
}
