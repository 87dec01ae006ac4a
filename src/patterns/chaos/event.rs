//! What chaos tells.
use std::time::Duration;

use crate::{observe::Traced, outcome::FailureKind};

/// Something a [`Chaos`](super::Chaos) did. An attempt that it spared is no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChaosEvent {
    /// An attempt starts later.
    Delayed {
        /// By this.
        by: Duration,
    },
    /// An attempt failed without being made.
    Failed {
        /// The kind that it is judged as.
        kind: FailureKind,
    },
    /// An operation came back with a result that was made up.
    Replaced,
    /// An attempt will never end.
    Hung,
    /// An attempt panicked.
    Panicked,
    /// It was switched on.
    SwitchedOn,
    /// It was switched off.
    SwitchedOff,
}

impl Traced for ChaosEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::chaos", tracing::Level::WARN)
    }

    fn trace(&self, source: &str) {
        const TARGET: &str = "steadfast::chaos";
        match self {
            Self::SwitchedOn => tracing::warn!(target: TARGET, chaos = source, "chaos switched on"),
            Self::SwitchedOff => tracing::warn!(target: TARGET, chaos = source, "chaos switched off"),
            injected => tracing::info!(target: TARGET, chaos = source, ?injected, "chaos injected"),
        }
    }
}
