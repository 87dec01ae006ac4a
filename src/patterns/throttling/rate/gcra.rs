//! The generic cell rate algorithm: a rate limit in one number.
//!
//! The number is the theoretical arrival time (TAT): the time at which the bucket will be empty
//! again if no more permits are taken. A permit moves it forward by one interval. A permit that
//! would move it further than a burst beyond now must wait. The result equals a token bucket that
//! fills continuously, without a timer. Source: ITU-T Recommendation I.371, "virtual scheduling".

// Concurrency. `tat` alone holds the limit. Each admission is one compare-and-set of it, from the
// value that the decision was based on to one at most `span` ahead of now. So no permit is taken
// twice, and a task that loses decides again by the new value.
//
// `Relaxed` suffices for all accesses to `tat`: a permit is a number, and it publishes no other
// memory. The modification order of `tat` decides between racing tasks.
//
// The pace is two words, which belong together: one interval against the burst of another setting
// would admit more than either burst. It is written under the lock of the queue (`TurnQueue`) and
// read without it. `version` names one of two slots, and a change writes the other slot before it
// stores the next version. So a reader waits for no writer, and repeats only if a change has ended
// meanwhile.
//
// - `version` is stored `Release` after the slot, and loaded `Acquire` before it: a reader sees the
//   slot of its version, or a later content of the same slot.
// - A later content is that of the version after next. Its writer's release fence comes after the
//   store of the next version. If a reader saw that content, its acquire fence pairs with that
//   fence, so its second load sees the next version or a later one, and it reads again. `Relaxed`
//   therefore suffices for the slot and for the second load.
//
// A call that races with a change is charged by the old pace or by the new one. `change` scales
// `tat` before it writes the pace: a call between the two is charged at the old pace on top of the
// scaled value.
//
// `give_back`, `drain`, `replace_pause`, `change` and `restart` run under the lock of the queue, so that
// reservations and the queue agree. They race only with `take` and with the first attempt of
// `enqueue`, which need no queue.

use super::Quota;
use crate::{
    sync::{AtomicU32, AtomicU64, Line, Ordering, fence},
    time::nanos,
};

/// A quota in the form that the algorithm uses, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Time between two permits. Rounded up, so that the limit is never exceeded.
    pub(crate) interval: u64,
    /// Maximum distance of the arrival time ahead of now: a whole burst.
    pub(crate) span: u64,
}

impl Pace {
    pub(crate) fn new(quota: &Quota) -> Self {
        let interval = nanos(quota.per).div_ceil(u64::from(quota.permits).max(1));
        Self { interval, span: interval.saturating_mul(u64::from(quota.largest())) }
    }

    /// Returns `true` if the burst has room for `n` permits at one moment.
    #[inline]
    pub(crate) fn allows(self, n: u32) -> bool {
        self.interval.saturating_mul(u64::from(n)) <= self.span
    }

    /// Converts the arrival time `tat` of the pace `old` to this pace, so that the same share of
    /// the burst stays used. Rounded up, so that the limit is never exceeded.
    pub(crate) fn take_over(self, old: Self, tat: u64, now: u64) -> u64 {
        let debt = u128::from(tat.saturating_sub(now));
        let debt = (debt * u128::from(self.span)).div_ceil(u128::from(old.span));
        now.saturating_add(u64::try_from(debt).unwrap_or(u64::MAX))
    }

    /// Returns the arrival time at which no permit is available before `until`, and one is at
    /// `until`.
    pub(crate) fn drained(self, until: u64) -> u64 {
        until.saturating_add(self.span.saturating_sub(self.interval))
    }

    /// Returns the number of permits that have not returned by `now`, rounded up.
    pub(crate) fn used(self, tat: u64, now: u64) -> u64 {
        tat.saturating_sub(now).div_ceil(self.interval)
    }

    /// Returns the arrival time after `n` more permits at `now`, or the time that they must wait.
    #[inline]
    pub(crate) fn take(self, tat: u64, n: u32, now: u64) -> Result<u64, u64> {
        let next = tat.max(now).saturating_add(self.interval.saturating_mul(u64::from(n)));
        let wait = next.saturating_sub(now).saturating_sub(self.span);
        if wait == 0 { Ok(next) } else { Err(wait) }
    }
}

/// One smooth limit, lock-free.
pub(crate) struct Gcra {
    tat: Line<AtomicU64>,
    pace: LivePace,
}

/// A pace that is replaced under a lock, and read as a whole without it. See the header.
struct LivePace {
    /// Number of changes. The last bit is the index of the slot that is in use.
    version: AtomicU32,
    slots: [PaceSlot; 2],
}

struct PaceSlot {
    interval: AtomicU64,
    span: AtomicU64,
}

impl LivePace {
    fn new(pace: Pace) -> Self {
        let slot = || PaceSlot { interval: AtomicU64::new(pace.interval), span: AtomicU64::new(pace.span) };
        Self { version: AtomicU32::new(0), slots: [slot(), slot()] }
    }

    fn slot(&self, version: u32) -> &PaceSlot {
        &self.slots[(version & 1) as usize]
    }

    #[inline]
    fn load(&self) -> Pace {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let PaceSlot { interval, span } = self.slot(version);
            let pace = Pace { interval: interval.load(Ordering::Relaxed), span: span.load(Ordering::Relaxed) };
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) == version {
                return pace;
            }
        }
    }

    /// Replaces the pace. Called under the lock of the queue.
    fn store(&self, pace: Pace) {
        let next = self.version.load(Ordering::Relaxed).wrapping_add(1);
        let PaceSlot { interval, span } = self.slot(next);
        fence(Ordering::Release);
        interval.store(pace.interval, Ordering::Relaxed);
        span.store(pace.span, Ordering::Relaxed);
        self.version.store(next, Ordering::Release);
    }
}

impl Gcra {
    pub(crate) fn new(pace: Pace) -> Self {
        Self { tat: Line(AtomicU64::new(0)), pace: LivePace::new(pace) }
    }

    #[inline]
    pub(crate) fn pace(&self) -> Pace {
        self.pace.load()
    }

    /// Takes `n` permits at `now` and returns the new arrival time, or the time that they must
    /// wait.
    #[inline]
    pub(crate) fn take(&self, n: u32, now: u64) -> Result<u64, u64> {
        let pace = self.pace();
        let mut tat = self.tat.0.load(Ordering::Relaxed);
        loop {
            let next = pace.take(tat, n, now)?;
            // Relaxed: the word publishes no other memory.
            match self.tat.0.compare_exchange_weak(tat, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(next),
                Err(changed) => tat = changed,
            }
        }
    }

    /// Takes `n` permits at `now`, or reserves them for later if they are available by `latest`.
    /// Returns the time from which they may be used, or the time that they must wait.
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

    /// Gives back `n` permits and returns the time by which later reservations move forward.
    /// Correct only if the arrival time has stayed ahead of now since the permits were taken.
    pub(crate) fn give_back(&self, n: u32, now: u64) -> u64 {
        let earlier = self.pace().interval.saturating_mul(u64::from(n));
        self.update(|tat| if tat > now { tat.saturating_sub(earlier).max(now) } else { tat });
        earlier
    }

    /// Sets the arrival time, which must be one of the same pace.
    pub(crate) fn start_at(&self, tat: u64) {
        self.tat.0.store(tat, Ordering::Relaxed);
    }

    /// Admits nothing before `until`, when one permit is available. Also gives back `waiting`
    /// reserved permits, which the caller reserves again. Returns the arrival time before, without
    /// the reserved permits.
    pub(crate) fn drain(&self, until: u64, waiting: u64) -> u64 {
        let pace = self.pace();
        let (drained, reserved) = (pace.drained(until), pace.interval.saturating_mul(waiting));
        self.update(|tat| tat.saturating_sub(reserved).max(drained)).saturating_sub(reserved)
    }

    /// Replaces the arrival time `paused` of a running pause by `next`, at this pace. Permits
    /// beyond it stay used: a call took them when the pause ended by itself, after the caller read
    /// the clock. Also gives back `waiting` reserved permits, which the caller reserves again.
    pub(crate) fn replace_pause(&self, paused: u64, waiting: u64, pace: Pace, next: u64) {
        let old = self.pace();
        let reserved = old.interval.saturating_mul(waiting);
        self.update(|tat| {
            let taken = tat.saturating_sub(reserved).saturating_sub(paused).div_ceil(old.interval);
            next.saturating_add(pace.interval.saturating_mul(taken))
        });
        if pace != old {
            self.pace.store(pace);
        }
    }

    /// Admits nothing before `until`, when one permit is available, and forgets all earlier
    /// permits.
    pub(crate) fn restart_drained(&self, until: u64) {
        self.tat.0.store(self.pace().drained(until), Ordering::Relaxed);
    }

    /// Changes the pace and keeps the share of the burst that is used, so that repeated changes
    /// gain nothing. (If the number of used permits were kept instead, a limit of 1,000 that
    /// becomes one of 10 would admit nothing until 990 permits had returned at the slow pace.) Also
    /// gives back `waiting` reserved permits, which the caller reserves again.
    pub(crate) fn change(&self, pace: Pace, now: u64, waiting: u64) {
        let old = self.pace();
        self.update(|tat| pace.take_over(old, tat.saturating_sub(old.interval.saturating_mul(waiting)), now));
        // Stored after the arrival time: a call between the two is charged at the old pace, and
        // that charge is not scaled by the change.
        self.pace.store(pace);
    }

    /// Returns the number of permits that have not returned by `now`, without the `waiting`
    /// reserved ones. Rounded up.
    pub(crate) fn used(&self, now: u64, waiting: u64) -> u64 {
        let interval = self.pace().interval;
        let debt = self.tat.0.load(Ordering::Relaxed).saturating_sub(now);
        debt.saturating_sub(interval.saturating_mul(waiting)).div_ceil(interval)
    }

    /// Starts again at this pace, with `used` permits taken.
    pub(crate) fn restart(&self, pace: Pace, used: u64, now: u64) {
        self.pace.store(pace);
        let debt = pace.interval.saturating_mul(used).min(pace.span);
        self.tat.0.store(now.saturating_add(debt), Ordering::Relaxed);
    }

    /// Returns the arrival time before the change.
    fn update(&self, change: impl Fn(u64) -> u64) -> u64 {
        let mut tat = self.tat.0.load(Ordering::Relaxed);
        while let Err(changed) =
            self.tat.0.compare_exchange_weak(tat, change(tat), Ordering::Relaxed, Ordering::Relaxed)
        {
            tat = changed;
        }
        tat
    }
}
