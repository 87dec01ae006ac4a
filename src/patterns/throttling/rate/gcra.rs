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
pub(crate) struct Pace {
    /// Between two permits. Rounded up, so that the limit is never exceeded.
    pub(crate) interval: u64,
    /// How far the arrival time may lie ahead.
    pub(crate) span: u64,
}

impl Pace {
    pub(crate) fn new(quota: &Quota) -> Self {
        let interval = nanos(quota.per).div_ceil(u64::from(quota.permits).max(1));
        Self { interval, span: interval.saturating_mul(u64::from(quota.largest())) }
    }

    /// Whether it can give so many at one moment at all.
    #[inline]
    pub(crate) fn allows(self, n: u32) -> bool {
        self.interval.saturating_mul(u64::from(n)) <= self.span
    }

    /// The arrival time that leaves as large a share of this burst as `tat` left of the old one's. Rounded up, so that the limit is never exceeded.
    pub(crate) fn take_over(self, old: Self, tat: u64, now: u64) -> u64 {
        let debt = u128::from(tat.saturating_sub(now));
        let debt = (debt * u128::from(self.span)).div_ceil(u128::from(old.span));
        now.saturating_add(u64::try_from(debt).unwrap_or(u64::MAX))
    }

    /// The arrival time at which one permit is there at `until`, and none before.
    pub(crate) fn drained(self, until: u64) -> u64 {
        until.saturating_add(self.span.saturating_sub(self.interval))
    }

    /// How many permits are not back at `now`. Rounded up.
    pub(crate) fn used(self, tat: u64, now: u64) -> u64 {
        tat.saturating_sub(now).div_ceil(self.interval)
    }

    /// The arrival time after `n` more permits at `now`, or how long they must wait.
    #[inline]
    pub(crate) fn take(self, tat: u64, n: u32, now: u64) -> Result<u64, u64> {
        let next = tat.max(now).saturating_add(self.interval.saturating_mul(u64::from(n)));
        let wait = next.saturating_sub(now).saturating_sub(self.span);
        if wait == 0 { Ok(next) } else { Err(wait) }
    }
}

/// One limit, lock-free.
pub(crate) struct Gcra {
    tat: Line<AtomicU64>,
    /// The pace, in two words: between the two writes of a change a call may see one old and one new, which is no worse than
    /// having come a moment earlier.
    interval: AtomicU64,
    span: AtomicU64,
}

impl Gcra {
    pub(crate) fn new(pace: Pace) -> Self {
        Self { tat: Line(AtomicU64::new(0)), interval: AtomicU64::new(pace.interval), span: AtomicU64::new(pace.span) }
    }

    #[inline]
    pub(crate) fn pace(&self) -> Pace {
        Pace { interval: self.interval.load(Ordering::Relaxed), span: self.span.load(Ordering::Relaxed) }
    }

    /// Takes `n` permits at `now`, or says how long they must wait: the arrival time that they lead to.
    #[inline]
    pub(crate) fn take(&self, n: u32, now: u64) -> Result<u64, u64> {
        let pace = self.pace();
        let mut tat = self.tat.0.load(Ordering::Relaxed);
        loop {
            let next = pace.take(tat, n, now)?;
            // Relaxed: the number guards nothing but itself.
            match self.tat.0.compare_exchange_weak(tat, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(next),
                Err(changed) => tat = changed,
            }
        }
    }

    /// Takes `n` permits at `now` or in the future, if that is not beyond `latest`: when they may be used.
    pub(crate) fn reserve(&self, n: u32, now: u64, latest: u64) -> Result<u64, u64> {
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
    pub(crate) fn give_back(&self, n: u32, now: u64) -> u64 {
        let earlier = self.pace().interval.saturating_mul(u64::from(n));
        self.update(|tat| if tat > now { tat.saturating_sub(earlier).max(now) } else { tat });
        earlier
    }

    /// Takes over this arrival time, of the same pace.
    pub(crate) fn start_at(&self, tat: u64) {
        self.tat.0.store(tat, Ordering::Relaxed);
    }

    /// Lets nothing pass before `until`, when one permit is there. `waiting` reserved permits are given back, for the caller to reserve again.
    pub(crate) fn drain(&self, until: u64, waiting: u64) {
        let pace = self.pace();
        let drained = pace.drained(until);
        self.update(|tat| tat.saturating_sub(pace.interval.saturating_mul(waiting)).max(drained));
    }

    /// The same, in the place of all that was taken.
    pub(crate) fn restart_drained(&self, until: u64) {
        self.tat.0.store(self.pace().drained(until), Ordering::Relaxed);
    }

    /// Changes the pace. The bucket stays as full as it was: full stays full, empty stays empty, and changing to and fro gains
    /// nothing. (If it kept the number of permits taken instead, a limit of 1000 that is made one of 10 would let nobody pass
    /// until 990 had come back at the slow pace.) `waiting` reserved permits are given back, for the caller to reserve again.
    pub(crate) fn change(&self, pace: Pace, now: u64, waiting: u64) {
        let old = self.pace();
        self.update(|tat| pace.take_over(old, tat.saturating_sub(old.interval.saturating_mul(waiting)), now));
        // After the arrival time: a call that comes between the two is charged by the old pace, and that is not multiplied.
        self.interval.store(pace.interval, Ordering::Relaxed);
        self.span.store(pace.span, Ordering::Relaxed);
    }

    /// How many permits are not back at `now`, beside those that wait. Rounded up.
    pub(crate) fn used(&self, now: u64, waiting: u64) -> u64 {
        let interval = self.pace().interval;
        let debt = self.tat.0.load(Ordering::Relaxed).saturating_sub(now);
        debt.saturating_sub(interval.saturating_mul(waiting)).div_ceil(interval)
    }

    /// Begins anew at this pace, with so many permits taken.
    pub(crate) fn restart(&self, pace: Pace, used: u64, now: u64) {
        self.interval.store(pace.interval, Ordering::Relaxed);
        self.span.store(pace.span, Ordering::Relaxed);
        let debt = pace.interval.saturating_mul(used).min(pace.span);
        self.tat.0.store(now.saturating_add(debt), Ordering::Relaxed);
    }

    fn update(&self, change: impl Fn(u64) -> u64) {
        let mut tat = self.tat.0.load(Ordering::Relaxed);
        while let Err(changed) =
            self.tat.0.compare_exchange_weak(tat, change(tat), Ordering::Relaxed, Ordering::Relaxed)
        {
            tat = changed;
        }
    }
}
