//! What a time-out tells.
use std::time::Duration;

use crate::observe::Traced;

/// Something a [`Timeout`](super::Timeout) did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimeoutEvent {
    /// It dropped the work.
    TimedOut {
        /// How long the work had been given.
        after: Duration,
    },
}

impl Traced for TimeoutEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::timeout", tracing::Level::WARN)
    }

    fn trace(&self, source: &str) {
        let Self::TimedOut { after } = self;
        tracing::warn!(target: "steadfast::timeout", timeout = source, ?after, "timed out");
    }
}
