//! Events of a time-out.
use std::time::Duration;

use crate::observe::Traced;

/// An event of a [`Timeout`](super::Timeout).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimeoutEvent {
    /// It dropped the work.
    TimedOut {
        /// Time that the work had been given.
        after: Duration,
    },
}

impl Traced for TimeoutEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::timeout", tracing::Level::DEBUG)
    }

    fn trace(&self, source: &str) {
        let Self::TimedOut { after } = self;
        tracing::debug!(target: "steadfast::timeout", timeout = source, ?after, "timed out");
    }
}
