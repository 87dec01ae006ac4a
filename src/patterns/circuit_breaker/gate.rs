//! State of a breaker that is not simply closed. It is allocated when the breaker first leaves the
//! closed state, so that a healthy breaker of a large registry stays small.

// Ordering. `since`, `until`, `deadline`, `slow_start` and `why` are written under the breaker's
// lock, by `Release` stores, and before the breaker's word is swapped (`AcqRel`) to the state that
// they belong to. So a caller that loads the word (`Acquire`) and then one of these values reads a
// value at least as new as that word.
//
// It may be newer: another opening may have begun meanwhile. A reader that combines several values
// (`Core::admit_as`) therefore loads the word again after them and starts over if it has changed.
// That suffices where the word is swapped between two openings: the second opening's values are
// stored after that swap, so a reader that saw one of them sees the swap too. It does not for a
// breaker that is opened again while it is open (`force_open`, or an opening of other processes),
// whose values change before the word does: a rejection at that moment may combine the times of
// both openings.
//
// `credit` and the counts of rejections order nothing else and are `Relaxed`. `probers` and
// `probing` are counters of guards (`health.rs`): `AcqRel` lets a prober that takes `probing` see
// what the one before it did.

use crate::{
    outcome::{FailureKind, TripRule},
    striped::Striped,
    sync::{AtomicU32, AtomicU64, Ordering},
    time::Instant,
};

/// Values that admission reads without the lock while the breaker is not simply closed.
pub(super) struct Gate {
    /// Time of the opening or isolation.
    pub(super) since: AtomicU64,
    /// End of the open time.
    pub(super) until: AtomicU64,
    /// Time at which the probes in flight will have hung.
    pub(super) deadline: AtomicU64,
    /// Start of the slow start.
    pub(super) slow_start: AtomicU64,
    /// Sum of the shares of all calls of a slow start, in units of 2^-32 calls. A call passes if it
    /// carries the sum over a whole number.
    pub(super) credit: AtomicU64,
    /// Rule that opened the breaker, and the kind of the last failure plus one, in one byte each.
    why: AtomicU32,
    /// Number of health probe loops.
    pub(super) probers: AtomicU32,
    /// 1 while one of the loops probes.
    pub(super) probing: AtomicU32,
    rejections: Rejections,
}

/// Counter of rejections. A breaker alone may be called by all threads at once; each breaker of a
/// registry has few callers, and must be small.
enum Rejections {
    Many(Box<Striped>),
    Few(AtomicU64),
}

impl Gate {
    pub(super) fn new(of_registry: bool) -> Self {
        let zero = || AtomicU64::new(0);
        let rejections = if of_registry { Rejections::Few(zero()) } else { Rejections::Many(Box::new(Striped::new())) };
        Self {
            since: zero(),
            until: zero(),
            deadline: zero(),
            slow_start: zero(),
            credit: zero(),
            why: AtomicU32::new(0),
            probers: AtomicU32::new(0),
            probing: AtomicU32::new(0),
            rejections,
        }
    }

    #[inline]
    pub(super) fn count_rejection(&self) {
        match &self.rejections {
            Rejections::Many(count) => count.increase(),
            Rejections::Few(count) => {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Returns the number of rejected calls.
    pub(super) fn rejected(&self) -> u64 {
        match &self.rejections {
            Rejections::Many(count) => count.sum(),
            Rejections::Few(count) => count.load(Ordering::Relaxed),
        }
    }

    /// Sets the rule that opened the breaker.
    pub(super) fn set_rule(&self, rule: TripRule) {
        let last = self.why.load(Ordering::Relaxed) & 0xff;
        self.why.store(u32::from(rule.to_bits()) << 8 | last, Ordering::Release);
    }

    /// Sets the kind of the last failure. `None` clears it, and the rule with it.
    pub(super) fn set_last(&self, kind: Option<FailureKind>) {
        let why = kind.map_or(0, |kind| self.why.load(Ordering::Relaxed) & 0xff00 | (u32::from(kind.to_bits()) + 1));
        self.why.store(why, Ordering::Release);
    }

    /// Returns the rule that opened the breaker, and the kind of the last failure.
    pub(super) fn why(&self) -> (TripRule, Option<FailureKind>) {
        let why = self.why.load(Ordering::Acquire);
        (TripRule::from_bits((why >> 8) as u8), (why as u8).checked_sub(1).and_then(FailureKind::from_bits))
    }

    /// Returns whether a call passes a slow start that admits this share. Of any `n` consecutive
    /// calls at one share `s`, at least `n * s - 1` and at most `n * s + 1` pass.
    pub(super) fn passes(&self, share: u64) -> bool {
        let before = self.credit.fetch_add(share, Ordering::Relaxed);
        before >> 32 != before.wrapping_add(share) >> 32
    }

    /// Begins a slow start, whose first call passes.
    pub(super) fn begin_slow_start(&self, now: Instant) {
        self.credit.store(super::plan::ALL - 1, Ordering::Relaxed);
        self.slow_start.store(now.as_nanos(), Ordering::Release);
    }
}

pub(super) fn load(at: &AtomicU64) -> Instant {
    Instant::from_nanos(at.load(Ordering::Acquire))
}
