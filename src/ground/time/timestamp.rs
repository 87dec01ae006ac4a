//! Wall time: for people and logs.
use std::{fmt, ops::Add, time::Duration};

/// A point in wall time: milliseconds since 1970-01-01 UTC.
///
/// Unlike an [`Instant`](super::Instant) it may jump, forwards and back. No pattern compares two of
/// them, except for the age of a cached value that another process loaded, and the end of a token.
/// [`Clock::wall`](super::Clock::wall) returns the current one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Returns the timestamp `millis` milliseconds after 1970-01-01 UTC.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Returns the milliseconds since 1970-01-01 UTC.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Returns the system's wall time; a time before 1970 becomes 1970. Code outside this module
    /// reads [`Clock::wall`](super::Clock::wall), which follows a test's time, unless it compares
    /// the times of several processes.
    pub(crate) fn now() -> Self {
        #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the wall clock")]
        let now = std::time::SystemTime::now();
        let since = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    /// Returns the timestamp that is later by this duration, or the last one there is.
    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for Timestamp {
    /// Formats the timestamp by RFC 3339, in UTC.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::time::UNIX_EPOCH.checked_add(Duration::from_millis(self.0)) {
            // RFC 3339 ends with the year 9999.
            Some(time) if self.0 < 253_402_300_800_000 => humantime::format_rfc3339_millis(time).fmt(f),
            _ => write!(f, "{} ms", self.0),
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timestamp({self})")
    }
}
