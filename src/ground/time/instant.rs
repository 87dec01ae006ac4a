//! A point on a monotonic clock, in 8 bytes.
use std::{
    fmt,
    ops::{Add, Sub},
    time::Duration,
};

/// A point in monotonic time: nanoseconds since an arbitrary origin.
///
/// Unlike [`std::time::Instant`] it fits an atomic, can be made from a number, and never panics:
/// additions saturate at [`Instant::FAR_FUTURE`] (584 years), differences at zero. Two instants
/// compare only if the same [`Clock`] returned both; all clocks of one kind share an origin.
///
/// [`Clock`]: super::Clock
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// An instant later than any that a clock returns: "never".
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// Returns the instant `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the duration from `earlier` to this instant; zero if this one is not later.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the instant `by` before this one; saturates at the origin.
    pub const fn saturating_sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(by)))
    }

    /// Returns the instant `by` after this one; saturates at [`Instant::FAR_FUTURE`].
    pub const fn saturating_add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(nanos(by)))
    }
}

/// Returns a duration as nanoseconds in a `u64`; saturates at 584 years.
pub(crate) const fn nanos(d: Duration) -> u64 {
    let n = d.as_nanos();
    if n > u64::MAX as u128 { u64::MAX } else { n as u64 }
}

/// Multiplies a duration by a factor that is at least 0; saturates at [`Duration::MAX`], where
/// `Duration::mul_f64` panics.
pub(crate) fn scaled(d: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(d.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, by: Duration) -> Self {
        self.saturating_add(by)
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.saturating_since(earlier)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Instant({:?})", Duration::from_nanos(self.0))
    }
}
