//! The clock that every policy reads.
use std::{fmt, future::Future, pin::Pin, sync::Arc, sync::OnceLock, time::Duration};

use super::{Instant, ManualClock, Sleep, Timestamp, is_blocking, manual, nanos};

/// A source of time: policies read it and wait on it.
///
/// A closed type over a few kinds: no type parameter reaches your structs, and neither tokio's
/// clock nor the manual one costs an allocation. The default, [`Clock::tokio`], obeys
/// `tokio::time::pause`.
#[derive(Clone, Debug, Default)]
pub struct Clock(pub(super) Kind);

#[derive(Clone, Default)]
pub(super) enum Kind {
    #[default]
    Tokio,
    #[cfg(feature = "quanta")]
    Quanta(quanta::Clock),
    Manual(Arc<manual::Shared>),
    Foreign(Arc<dyn TimeSource>),
}

/// A custom clock for [`Clock::from_source`]: of a simulator, a game, a replayed log.
///
/// `now` must never go back.
pub trait TimeSource: Send + Sync {
    /// Returns the current time.
    fn now(&self) -> Instant;
    /// Returns a future that is ready once [`now`](Self::now) is `at` or later.
    fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>>;
    /// Returns the current wall time. By default the system's, whatever [`now`](Self::now) returns.
    fn wall(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Distance from the origin of tokio's clock to the first reading. A runtime whose time was paused
/// before the first reading reads less than that reading; the distance keeps such a time above
/// zero.
const BIAS: Duration = Duration::from_secs(3600);

impl Clock {
    /// Returns tokio's clock: the system's monotonic time, or the paused time of a test. Waiting
    /// needs a tokio runtime with time enabled, or a thread in [`block_on`](super::block_on);
    /// reading needs neither.
    pub const fn tokio() -> Self {
        Self(Kind::Tokio)
    }

    /// Returns a clock over the processor's time-stamp counter, where that is invariant: about 10
    /// ns a reading, against 22 ns. Elsewhere it reads the system's monotonic time. It waits on
    /// tokio's timers and ignores `tokio::time::pause`.
    ///
    /// The first call in a process calibrates the counter, which takes up to 200 ms: make it at
    /// start-up.
    #[cfg(feature = "quanta")]
    pub fn quanta() -> Self {
        Self(Kind::Quanta(quanta::Clock::new()))
    }

    /// Returns a clock that stands still, and the [`ManualClock`] that moves it.
    pub fn manual() -> (Self, ManualClock) {
        let driver = ManualClock::new();
        (driver.clock(), driver)
    }

    /// Returns a clock over a custom source of time.
    pub fn from_source(source: impl TimeSource + 'static) -> Self {
        Self(Kind::Foreign(Arc::new(source)))
    }

    /// Returns the current monotonic time, which never goes back.
    #[inline]
    pub fn now(&self) -> Instant {
        match &self.0 {
            Kind::Tokio => tokio_now(),
            #[cfg(feature = "quanta")]
            Kind::Quanta(q) => Instant::from_nanos(q.delta_as_nanos(0, q.raw())),
            Kind::Manual(_) | Kind::Foreign(_) => self.now_by_others(),
        }
    }

    #[cold]
    #[inline(never)]
    fn now_by_others(&self) -> Instant {
        match &self.0 {
            Kind::Manual(m) => m.now(),
            Kind::Foreign(s) => s.now(),
            _ => tokio_now(),
        }
    }

    /// Returns `true` if both clocks read the same time and wait for it on the same timers. Two
    /// custom sources never count as the same.
    #[inline]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Kind::Tokio, Kind::Tokio) => true,
            #[cfg(feature = "quanta")]
            (Kind::Quanta(_), Kind::Quanta(_)) => true,
            (Kind::Manual(mine), Kind::Manual(theirs)) => Arc::ptr_eq(mine, theirs),
            _ => false,
        }
    }

    /// Returns the current wall time, for records that people read or that other processes compare
    /// with seconds of tolerance.
    ///
    /// | clock | wall time |
    /// |---|---|
    /// | [`tokio`](Self::tokio) | the system's; moved with tokio's time where a test pauses and advances that |
    /// | [`manual`](Self::manual) | set by [`ManualClock::set_wall`], and moved with the clock |
    /// | [`from_source`](Self::from_source) | [`TimeSource::wall`]: the system's, unless overridden |
    /// | `quanta` | the system's |
    ///
    /// ```
    /// use std::time::Duration;
    /// use steadfast::time::{Clock, Timestamp};
    ///
    /// let (clock, time) = Clock::manual();
    /// time.set_wall(Timestamp::from_millis(1_800_000_000_000));
    /// time.advance(Duration::from_secs(60));
    /// assert_eq!(clock.wall().to_string(), "2027-01-15T08:01:00.000Z");
    /// ```
    pub fn wall(&self) -> Timestamp {
        match &self.0 {
            Kind::Manual(m) => m.wall(),
            Kind::Foreign(s) => s.wall(),
            Kind::Tokio => {
                // The difference to the system's monotonic clock is how far a test moved tokio's time.
                let (tokio, system) = (tokio_now().as_nanos(), system_now().as_nanos());
                let (ahead, behind) = (tokio.saturating_sub(system), system.saturating_sub(tokio));
                let now = Timestamp::now().as_millis();
                Timestamp::from_millis(now.saturating_add(ahead / 1_000_000).saturating_sub(behind / 1_000_000))
            }
            #[cfg(feature = "quanta")]
            Kind::Quanta(_) => Timestamp::now(),
        }
    }

    /// Returns `false` for tokio's clock outside a tokio runtime and outside `block_on`, where a
    /// wait would panic.
    pub(crate) fn can_wait(&self) -> bool {
        match &self.0 {
            Kind::Manual(_) | Kind::Foreign(_) => true,
            _ => is_blocking() || tokio::runtime::Handle::try_current().is_ok(),
        }
    }

    /// Returns a future that is ready once `d` has passed.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub fn sleep(&self, d: Duration) -> Sleep {
        self.sleep_until(self.now() + d)
    }

    /// Returns a future that is ready at `at`, or at once if that is past.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    #[inline]
    pub fn sleep_until(&self, at: Instant) -> Sleep {
        Sleep::new(self, at)
    }
}

fn origin() -> std::time::Instant {
    static ORIGIN: OnceLock<std::time::Instant> = OnceLock::new();
    *ORIGIN.get_or_init(|| {
        #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the system's clock")]
        let now = std::time::Instant::now();
        now.checked_sub(BIAS).unwrap_or(now)
    })
}

// Out of line: a reading of the system's clock costs more than the call, and inlined into each `now`
// it would keep that from being inlined for the cheaper clocks.
#[inline(never)]
pub(super) fn tokio_now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads tokio's clock")]
    let now = tokio::time::Instant::now().into_std();
    let since = now.saturating_duration_since(origin());
    // Not `as_nanos`, which is 128 bits wide.
    Instant::from_nanos(since.as_secs().wrapping_mul(1_000_000_000).wrapping_add(since.subsec_nanos().into()))
}

/// Returns the system's monotonic time, also where tokio's time is paused.
pub(super) fn system_now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the system's clock")]
    let now = std::time::Instant::now();
    Instant::from_nanos(nanos(now.saturating_duration_since(origin())))
}

/// Converts `at`, an instant of [`tokio_now`], to tokio's type.
pub(super) fn tokio_instant(at: Instant) -> tokio::time::Instant {
    tokio::time::Instant::from_std(origin() + Duration::from_nanos(at.as_nanos()))
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Tokio => "Tokio",
            #[cfg(feature = "quanta")]
            Kind::Quanta(_) => "Quanta",
            Kind::Manual(_) => "Manual",
            Kind::Foreign(_) => "Foreign",
        })
    }
}
