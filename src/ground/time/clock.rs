//! The clock that every policy asks.
use std::{fmt, future::Future, pin::Pin, sync::Arc, sync::OnceLock, time::Duration};

use super::{Instant, ManualClock, Sleep, Timestamp, manual, nanos};

/// Where a policy reads the time and waits for it.
///
/// A closed type over a few kinds, so that no type parameter reaches your structs and neither tokio's clock nor the
/// manual one costs an allocation. The default, [`Clock::tokio`], obeys `tokio::time::pause`.
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

/// A clock of your own, for [`Clock::from_source`]: a simulator's, a game's, a replayed log's.
///
/// `now` must never go back.
pub trait TimeSource: Send + Sync {
    /// The time now.
    fn now(&self) -> Instant;
    /// A future that is ready once [`now`](Self::now) is `at` or later.
    fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// The origin of tokio's clock lies this far before the first reading, so that "before the first reading" is a number too: a
/// runtime whose time was paused before then reads less.
const BIAS: Duration = Duration::from_secs(3600);

impl Clock {
    /// tokio's clock: the system's monotonic time, or the paused time of a test. Waiting needs a tokio runtime with time
    /// enabled; reading does not.
    pub const fn tokio() -> Self {
        Self(Kind::Tokio)
    }

    /// Reads the processor's time-stamp counter where it is invariant (about 10 ns a reading, against 22 ns), and the
    /// system's monotonic time where it is not. Waits on tokio's timers; does not obey `tokio::time::pause`.
    ///
    /// The first call in a process calibrates the counter, which takes up to 200 ms: make it at start-up.
    #[cfg(feature = "quanta")]
    pub fn quanta() -> Self {
        Self(Kind::Quanta(quanta::Clock::new()))
    }

    /// A clock that stands still until the [`ManualClock`] moves it.
    pub fn manual() -> (Self, ManualClock) {
        let hand = ManualClock::new();
        (hand.clock(), hand)
    }

    /// A clock over your own source of time.
    pub fn from_source(source: impl TimeSource + 'static) -> Self {
        Self(Kind::Foreign(Arc::new(source)))
    }

    /// The time now. Never goes back.
    #[inline]
    pub fn now(&self) -> Instant {
        match &self.0 {
            Kind::Tokio => tokio_now(),
            #[cfg(feature = "quanta")]
            Kind::Quanta(q) => Instant::from_nanos(q.delta_as_nanos(0, q.raw())),
            Kind::Manual(m) => m.now(),
            Kind::Foreign(s) => s.now(),
        }
    }

    /// Returns whether both read the same time, and wait for it on the same timers. No source of a
    /// user's own is the same as another.
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

    /// The wall clock's time, for what is compared across processes with some seconds of tolerance. Follows virtual time: that of a manual
    /// clock, and that of a tokio runtime that is paused.
    pub(crate) fn wall(&self) -> Timestamp {
        match &self.0 {
            Kind::Manual(m) => Timestamp::from_millis(m.now().as_nanos() / 1_000_000),
            Kind::Tokio => {
                // Beside the system's monotonic clock, so that only what tokio's time was moved by is added.
                let (tokio, system) = (tokio_now().as_nanos(), system_now().as_nanos());
                let (ahead, behind) = (tokio.saturating_sub(system), system.saturating_sub(tokio));
                let now = Timestamp::now().as_millis();
                Timestamp::from_millis(now.saturating_add(ahead / 1_000_000).saturating_sub(behind / 1_000_000))
            }
            _ => Timestamp::now(),
        }
    }

    /// Returns false for tokio's clock outside a tokio runtime, where a wait would panic.
    pub(crate) fn can_wait(&self) -> bool {
        match &self.0 {
            Kind::Manual(_) | Kind::Foreign(_) => true,
            _ => tokio::runtime::Handle::try_current().is_ok(),
        }
    }

    /// A future that is ready once `d` has passed.
    ///
    /// # Cancel safety
    /// Nothing is lost when it is dropped.
    pub fn sleep(&self, d: Duration) -> Sleep {
        self.sleep_until(self.now() + d)
    }

    /// A future that is ready at `at`, or at once if that is past.
    ///
    /// # Cancel safety
    /// Nothing is lost when it is dropped.
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

#[inline]
pub(super) fn tokio_now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads tokio's clock")]
    let now = tokio::time::Instant::now().into_std();
    let since = now.saturating_duration_since(origin());
    // Not `as_nanos`, which is 128 bits wide.
    Instant::from_nanos(since.as_secs().wrapping_mul(1_000_000_000).wrapping_add(since.subsec_nanos().into()))
}

/// The system's monotonic time, whatever tokio's is.
fn system_now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the system's clock")]
    let now = std::time::Instant::now();
    Instant::from_nanos(nanos(now.saturating_duration_since(origin())))
}

/// `at`, an instant of [`tokio_now`], on tokio's clock.
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
