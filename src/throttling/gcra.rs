//! The generic cell rate algorithm: a rate limit in one number.
//!
//! The number is the theoretical arrival time: when the bucket will be empty again if nothing more comes. A permit moves it on by
//! one interval; a permit that would move it further than a burst beyond now must wait. It equals a token bucket that fills
//! continuously, without a timer. Source: ITU-T Recommendation I.371, "virtual scheduling".
use super::Quota;
use crate::{
    sync::{AtomicU64, Line, Ordering},
    time::nanos,
};

/// A quota as the algorithm wants it, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    /// Between two permits. Rounded up, so that the limit is never exceeded.
    pub(super) interval: u64,
    /// How far the arrival time may lie ahead.
    pub(super) span: u64,
}

impl Pace {
    pub(super) fn new(quota: &Quota) -> Self {
        let interval = nanos(quota.per).div_ceil(u64::from(quota.permits));
        Self { interval, span: interval.saturating_mul(u64::from(quota.largest())) }
    }

    /// Whether it can give so many at one moment at all.
    #[inline]
    pub(super) fn allows(self, n: u32) -> bool {
        self.interval.saturating_mul(u64::from(n)) <= self.span
    }

    /// The arrival time after `n` more permits at `now`, or how long they must wait.
    #[inline]
    pub(super) fn take(self, tat: u64, n: u32, now: u64) -> Result<u64, u64> {
        let next = tat.max(now).saturating_add(self.interval.saturating_mul(u64::from(n)));
        let wait = next.saturating_sub(now).saturating_sub(self.span);
        if wait == 0 { Ok(next) } else { Err(wait) }
    }
}

/// One limit, lock-free.
pub(super) struct Gcra {
    tat: Line<AtomicU64>,
    /// The pace, in two words: between the two writes of a change a call may see one old and one new, which is no worse than
    /// having come a moment earlier.
    interval: AtomicU64,
    span: AtomicU64,
}

impl Gcra {
    pub(super) fn new(pace: Pace) -> Self {
        Self { tat: Line(AtomicU64::new(0)), interval: AtomicU64::new(pace.interval), span: AtomicU64::new(pace.span) }
    }

    #[inline]
    pub(super) fn pace(&self) -> Pace {
        Pace { interval: self.interval.load(Ordering::Relaxed), span: self.span.load(Ordering::Relaxed) }
    }

    /// Takes `n` permits at `now`, or says how long they must wait.
    #[inline]
    pub(super) fn take(&self, n: u32, now: u64) -> Result<(), u64> {
        let pace = self.pace();
        let mut tat = self.tat.0.load(Ordering::Relaxed);
        loop {
            let next = pace.take(tat, n, now)?;
            // Relaxed: the number guards nothing but itself.
            match self.tat.0.compare_exchange_weak(tat, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(changed) => tat = changed,
            }
        }
    }

    /// Takes `n` permits at `now` or in the future, if that is not beyond `latest`: when they may be used.
    pub(super) fn reserve(&self, n: u32, now: u64, latest: u64) -> Result<u64, u64> {
        let pace = self.pace();
        let mut tat = self.tat.0.load(Ordering::Relaxed);
        loop {
            let next = tat.max(now).saturating_add(pace.interval.saturating_mul(u64::from(n)));
            let ready = next.saturating_sub(pace.span).max(now);
            if ready > latest {
                return Err(ready - now);
            }
            match self.tat.0.compare_exchange_weak(tat, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(ready),
                Err(changed) => tat = changed,
            }
        }
    }

    /// Gives back `n` permits: by how much whoever reserved after them comes earlier. Right only while the arrival time has
    /// not been overtaken by now since they were taken.
    pub(super) fn give_back(&self, n: u32) -> u64 {
        let earlier = self.pace().interval.saturating_mul(u64::from(n));
        self.tat.0.fetch_sub(earlier, Ordering::Relaxed);
        earlier
    }

    /// Changes the pace. What was taken stays taken, in permits: `waiting` of them are given back, for the caller to reserve
    /// again at the new pace.
    pub(super) fn change(&self, pace: Pace, now: u64, waiting: u64) {
        let old = self.pace();
        self.interval.store(pace.interval, Ordering::Relaxed);
        self.span.store(pace.span, Ordering::Relaxed);
        let mut tat = self.tat.0.load(Ordering::Relaxed);
        loop {
            let debt = tat.saturating_sub(old.interval.saturating_mul(waiting)).saturating_sub(now);
            let debt = u128::from(debt) * u128::from(pace.interval) / u128::from(old.interval.max(1));
            let next = now.saturating_add(u64::try_from(debt).unwrap_or(u64::MAX));
            match self.tat.0.compare_exchange_weak(tat, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(changed) => tat = changed,
            }
        }
    }
}
