//! The time of the server.
use crate::{backend::nats::api::nanoseconds, sync::Mutex, time::Instant};

/// Age at which an answer no longer tells the time.
const OLD: std::time::Duration = std::time::Duration::from_secs(10);

/// The server's clock, as its last answer told it.
#[derive(Debug, Default)]
pub(super) struct Times(Mutex<Option<(Instant, u64)>>);

impl Times {
    /// Notes the time in an answer to a request that was made between two instants.
    pub(super) fn note(&self, asked: Instant, answered: Instant, time: &str) {
        if let Some(time) = nanoseconds(time) {
            *self.0.lock() = Some((asked + (answered - asked) / 2, time));
        }
    }

    /// Returns the time in nanoseconds since 1970, if it is known.
    pub(super) fn now(&self, now: Instant) -> Option<u64> {
        let (at, time) = (*self.0.lock())?;
        let passed = now - at;
        (passed < OLD).then(|| time.saturating_add(crate::time::nanos(passed)))
    }
}
