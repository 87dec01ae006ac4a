//! What a breaker needs from the first time that it stops being closed: a healthy one of a large family goes without.
use crate::{
    outcome::{FailureKind, TripRule},
    striped::Striped,
    sync::{AtomicU32, AtomicU64, Ordering},
    time::Instant,
};

/// What is read without the lock while the breaker is not simply closed. Written under the lock, and before the word.
pub(super) struct Gate {
    /// When it opened, or was isolated; when the open time ends; when the probes in flight will have hung; when a ramp began.
    pub(super) since: AtomicU64,
    pub(super) until: AtomicU64,
    pub(super) deadline: AtomicU64,
    pub(super) slow_start: AtomicU64,
    /// What a ramp lets pass, in shares of a call: the next whole one is the next call.
    pub(super) credit: AtomicU64,
    /// The rule that opened it, and the kind of the last failure plus one, in a byte each.
    why: AtomicU32,
    /// How many loops probe its health, and whether one of them is probing just now.
    pub(super) probers: AtomicU32,
    pub(super) probing: AtomicU32,
    rejections: Rejections,
}

/// One breaker alone may be asked by all threads at once; of a family, each has few callers, and must be small.
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

    /// How many calls were refused.
    pub(super) fn rejected(&self) -> u64 {
        match &self.rejections {
            Rejections::Many(count) => count.sum(),
            Rejections::Few(count) => count.load(Ordering::Relaxed),
        }
    }

    /// Remembers the rule that opened it.
    pub(super) fn set_rule(&self, rule: TripRule) {
        let last = self.why.load(Ordering::Relaxed) & 0xff;
        self.why.store(u32::from(rule.to_bits()) << 8 | last, Ordering::Release);
    }

    /// Remembers the last failure's kind, or forgets it with all the rest.
    pub(super) fn set_last(&self, kind: Option<FailureKind>) {
        let why = kind.map_or(0, |kind| self.why.load(Ordering::Relaxed) & 0xff00 | (u32::from(kind.to_bits()) + 1));
        self.why.store(why, Ordering::Release);
    }

    /// The rule that opened it, and the last failure's kind.
    pub(super) fn why(&self) -> (TripRule, Option<FailureKind>) {
        let why = self.why.load(Ordering::Acquire);
        (TripRule::from_bits((why >> 8) as u8), (why as u8).checked_sub(1).and_then(FailureKind::from_bits))
    }

    /// Whether a call passes, of which the ramp lets this share pass. Of any n calls in a row at one share s, it lets no fewer than
    /// n s - 1 and no more than n s + 1 pass.
    pub(super) fn passes(&self, share: u64) -> bool {
        let before = self.credit.fetch_add(share, Ordering::Relaxed);
        before >> 32 != before.wrapping_add(share) >> 32
    }

    /// Begins a ramp: its first call passes.
    pub(super) fn begin_slow_start(&self, now: Instant) {
        self.credit.store(super::plan::ALL - 1, Ordering::Relaxed);
        self.slow_start.store(now.as_nanos(), Ordering::Release);
    }
}

pub(super) fn load(at: &AtomicU64) -> Instant {
    Instant::from_nanos(at.load(Ordering::Acquire))
}
