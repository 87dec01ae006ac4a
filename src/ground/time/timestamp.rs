//! The wall clock's time: for people and logs.
use std::{fmt, time::Duration};

/// A point in wall time: milliseconds since 1970-01-01 UTC. Unlike an [`Instant`](super::Instant) it may jump, forwards and
/// back: no pattern compares two of them, but for the age of a cached value that another process loaded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// So many milliseconds since 1970.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since 1970.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The wall clock's time now, by the system. A time before 1970 is 1970.
    pub fn now() -> Self {
        #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the wall clock")]
        let now = std::time::SystemTime::now();
        let since = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Timestamp {
    /// As RFC 3339, in UTC.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::time::UNIX_EPOCH.checked_add(Duration::from_millis(self.0)) {
            // Beyond the year 9999 that form ends.
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
