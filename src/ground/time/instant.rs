//! A point on a monotonic clock, in 8 bytes.
use std::{
    fmt,
    ops::{Add, Sub},
    time::Duration,
};

/// A point in monotonic time: nanoseconds since an origin that means nothing by itself.
///
/// Unlike [`std::time::Instant`] it fits an atomic, can be made from a number, and never panics: additions stop at
/// [`Instant::FAR_FUTURE`] (584 years), differences stop at zero. Two instants compare only if the same [`Clock`] gave
/// both; every clock of one kind shares an origin.
///
/// [`Clock`]: super::Clock
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// Later than any instant that a clock gives: "never".
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero where it is not after it.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The instant `by` before this one, at the earliest the origin.
    pub const fn saturating_sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(by)))
    }

    /// The instant `by` after this one, at the latest [`Instant::FAR_FUTURE`].
    pub const fn saturating_add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(nanos(by)))
    }
}

/// A duration as nanoseconds in a `u64`; longer than 584 years is 584 years.
pub(crate) const fn nanos(d: Duration) -> u64 {
    let n = d.as_nanos();
    if n > u64::MAX as u128 { u64::MAX } else { n as u64 }
}

/// Multiplies a duration by a factor that is at least 0; the result is at most [`Duration::MAX`]. `Duration::mul_f64` panics there.
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
