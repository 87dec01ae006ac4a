//! The atomics that admission reads: the word (state, generation and count, changed together by
//! compare-and-set), and the gate, which holds the rest of a state that is not simply closed.
//!
//! The gate is allocated when the breaker first leaves the closed state, so that a healthy breaker
//! of a large registry stays small.

// Ordering. `since`, `until`, `deadline`, `slow_start` and `why` are written under the breaker's
// lock, by `Release` stores, and before the breaker's word is swapped (`AcqRel`) to the state that
// they belong to. So a caller that loads the word (`Acquire`) and then one of these values reads a
// value at least as new as that word.
//
// It may be newer: another opening may have begun meanwhile. A reader that combines several values
// (`Core::admit_as`) therefore loads the word again after them and starts over if it has changed.
// That suffices because the word is swapped between two openings: the second opening's values are
// stored after that swap, so a reader that saw one of them sees the swap too. Where no other state
// lies between them (`force_open`, isolation, an opening of other processes), the swap is to the
// mark `is_replacing`. A reader that finds the mark waits for the lock, under which it ends.
//
// `credit` and the counts of rejections order nothing else and are `Relaxed`. A prober that takes
// `probing` (`health.rs`) sees what the one before it did.

use super::super::window::ALL;
use crate::{
    in_progress::InProgress,
    outcome::{FailureKind, TripRule},
    striped::Striped,
    sync::{AtomicU32, AtomicU64, Ordering},
    time::Instant,
};

/// State of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
// Exhaustive: a user shows or counts each state, and a new one would be another pattern.
pub enum State {
    /// All calls pass.
    Closed,
    /// Calls are rejected until the open time is over.
    Open,
    /// A few calls pass as probes.
    HalfOpen,
    /// Calls are rejected until the breaker is closed manually.
    Isolated,
}

impl State {
    /// All states, for one gauge each.
    pub const ALL: [Self; 4] = [Self::Closed, Self::Open, Self::HalfOpen, Self::Isolated];

    /// Returns the state as a number, for a gauge: 0 closed, 1 open, 2 half-open, 3 isolated.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Returns one gauge per state, with its label: exactly one reads 1.
    pub fn gauges(self) -> [(&'static str, u8); 4] {
        Self::ALL.map(|state| (state.as_str(), u8::from(state == self)))
    }

    /// Returns the state as a word in snake case, as labels of metrics have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
            Self::Isolated => "isolated",
        }
    }
}

/// From the top: state (2 bits), slow start (1), "the window is full" (1), generation (28), count
/// (32).
///
/// Closed, the count numbers the recorded outcomes. It wraps: only differences below a window's
/// size are used. Half-open, it is the number of used permits. Open or isolated, it is 1 while the
/// values in the gate are replaced, and otherwise 0. The generation increases with every
/// change of state, and with every change of a closed breaker's windows, so that a compare-and-set
/// that began by the old settings fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Word(pub(in super::super) u64);

const SLOW_START: u64 = 1 << 61;
const FULL: u64 = 1 << 60;
const GENERATION: u64 = (1 << 28) - 1;

impl Word {
    pub(in super::super) const fn new(state: State, generation: u32, count: u32) -> Self {
        Self((state as u64) << 62 | (generation as u64 & GENERATION) << 32 | count as u64)
    }

    #[inline]
    pub(in super::super) const fn state(self) -> State {
        match self.0 >> 62 {
            0 => State::Closed,
            1 => State::Open,
            2 => State::HalfOpen,
            _ => State::Isolated,
        }
    }

    /// Returns whether the breaker is closed and not in a slow start: every call passes.
    #[inline]
    pub(in super::super) const fn passes_all(self) -> bool {
        self.0 >> 61 == 0
    }

    #[inline]
    pub(in super::super) const fn in_slow_start(self) -> bool {
        self.0 & SLOW_START != 0
    }

    /// Returns the word with or without the mark of a slow start.
    pub(in super::super) const fn with_slow_start(self, on: bool) -> Self {
        Self(if on { self.0 | SLOW_START } else { self.0 & !SLOW_START })
    }

    #[inline]
    pub(in super::super) const fn is_closed(self) -> bool {
        self.0 >> 62 == 0
    }

    /// Returns whether the breaker is open or isolated: the gate holds the values of that opening.
    #[inline]
    pub(in super::super) const fn has_opening(self) -> bool {
        self.0 >> 62 & 1 == 1
    }

    /// Returns whether the values in the gate are being replaced.
    #[inline]
    pub(in super::super) const fn is_replacing(self) -> bool {
        self.has_opening() && self.count() != 0
    }

    #[inline]
    pub(in super::super) const fn generation(self) -> u32 {
        (self.0 >> 32 & GENERATION) as u32
    }

    #[inline]
    pub(in super::super) const fn count(self) -> u32 {
        self.0 as u32
    }

    #[inline]
    pub(in super::super) const fn is_full(self) -> bool {
        self.0 & FULL != 0
    }

    /// Returns whether the breaker is closed in this generation, not in a slow start, with a window
    /// that is full.
    #[inline]
    pub(in super::super) const fn is_full_and_closed(self, generation: u32) -> bool {
        self.0 >> 32 == FULL >> 32 | generation as u64
    }

    /// Returns the word with one more outcome, in a window of `size`.
    #[inline]
    pub(in super::super) const fn counted(self, size: u32) -> Self {
        let count = self.count().wrapping_add(1);
        let full = if count >= size { FULL } else { self.0 & FULL };
        Self(self.0 >> 32 << 32 | full | count as u64)
    }

    /// Returns the number of outcomes that a window of `size` holds.
    pub(in super::super) const fn filled(self, size: u32) -> u32 {
        if self.is_full() { size } else { self.count() }
    }

    /// Returns the word in this generation.
    pub(in super::super) const fn in_generation(self, generation: u32) -> Self {
        Self(self.0 & !(GENERATION << 32) | (generation as u64 & GENERATION) << 32)
    }

    /// Returns the word in the next generation, with an unchanged window.
    pub(in super::super) const fn next(self) -> Self {
        let generation = (self.generation() as u64 + 1) & GENERATION;
        Self(self.0 & !(GENERATION << 32) | generation << 32)
    }

    /// Returns the word with a window that is full, or is not, at this count.
    pub(in super::super) const fn with_window(self, full: bool, count: u32) -> Self {
        let flags = if full { self.0 | FULL } else { self.0 & !FULL };
        Self(flags >> 32 << 32 | count as u64)
    }

    /// Returns whether `generation` lies between `first` and this word's, both included.
    /// Generations wrap.
    pub(in super::super) fn is_since(self, first: u32, generation: u32) -> bool {
        Self::is_between(first, generation, self.generation())
    }

    /// Returns whether `generation` lies between `first` and `last`, both included. Generations
    /// wrap.
    pub(in super::super) fn is_between(first: u32, generation: u32, last: u32) -> bool {
        let after = |g: u32| u64::from(g.wrapping_sub(first)) & GENERATION;
        after(generation) <= after(last)
    }

    /// Returns the word with another count.
    pub(in super::super) const fn with_count(self, count: u32) -> Self {
        Self((self.0 >> 32 << 32) | count as u64)
    }
}

/// Values that admission reads without the lock while the breaker is not simply closed.
pub(in super::super) struct Gate {
    /// Time of the opening or isolation.
    pub(in super::super) since: AtomicU64,
    /// End of the open time.
    pub(in super::super) until: AtomicU64,
    /// Time at which the probes in flight will have hung.
    pub(in super::super) deadline: AtomicU64,
    /// Start of the slow start.
    pub(in super::super) slow_start: AtomicU64,
    /// Sum of the shares of all calls of a slow start, in units of 2^-32 calls. A call passes if it
    /// carries the sum over a whole number.
    pub(in super::super) credit: AtomicU64,
    /// Rule that opened the breaker, and the kind of the last failure plus one, in one byte each.
    why: AtomicU32,
    /// Number of health probe loops.
    pub(in super::super) probers: InProgress,
    /// One of the loops, while it probes.
    pub(in super::super) probing: InProgress,
    rejections: Rejections,
}

/// Counter of rejections. A breaker alone may be called by all threads at once; each breaker of a
/// registry has few callers, and must be small.
enum Rejections {
    Many(Box<Striped>),
    Few(AtomicU64),
}

impl Gate {
    pub(in super::super) fn new(of_registry: bool) -> Self {
        let zero = || AtomicU64::new(0);
        let rejections = if of_registry { Rejections::Few(zero()) } else { Rejections::Many(Box::new(Striped::new())) };
        Self {
            since: zero(),
            until: zero(),
            deadline: zero(),
            slow_start: zero(),
            credit: zero(),
            why: AtomicU32::new(0),
            probers: InProgress::default(),
            probing: InProgress::default(),
            rejections,
        }
    }

    #[inline]
    pub(in super::super) fn count_rejection(&self) {
        match &self.rejections {
            Rejections::Many(count) => count.increase(),
            Rejections::Few(count) => {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Returns the number of rejected calls.
    pub(in super::super) fn rejected(&self) -> u64 {
        match &self.rejections {
            Rejections::Many(count) => count.sum(),
            Rejections::Few(count) => count.load(Ordering::Relaxed),
        }
    }

    /// Sets the rule that opened the breaker.
    pub(in super::super) fn set_rule(&self, rule: TripRule) {
        let last = self.why.load(Ordering::Relaxed) & 0xff;
        self.why.store(u32::from(rule.to_bits()) << 8 | last, Ordering::Release);
    }

    /// Sets the kind of the last failure. `None` clears it, and the rule with it.
    pub(in super::super) fn set_last(&self, kind: Option<FailureKind>) {
        let why = kind.map_or(0, |kind| self.why.load(Ordering::Relaxed) & 0xff00 | (u32::from(kind.to_bits()) + 1));
        self.why.store(why, Ordering::Release);
    }

    /// Returns the rule that opened the breaker, and the kind of the last failure.
    pub(in super::super) fn why(&self) -> (TripRule, Option<FailureKind>) {
        let why = self.why.load(Ordering::Acquire);
        (TripRule::from_bits((why >> 8) as u8), (why as u8).checked_sub(1).and_then(FailureKind::from_bits))
    }

    /// Returns whether a call passes a slow start that admits this share. Of any `n` consecutive
    /// calls at one share `s`, at least `n * s - 1` and at most `n * s + 1` pass.
    pub(in super::super) fn passes(&self, share: u64) -> bool {
        let before = self.credit.fetch_add(share, Ordering::Relaxed);
        before >> 32 != before.wrapping_add(share) >> 32
    }

    /// Begins a slow start, whose first call passes.
    pub(in super::super) fn begin_slow_start(&self, now: Instant) {
        self.credit.store(ALL - 1, Ordering::Relaxed);
        self.slow_start.store(now.as_nanos(), Ordering::Release);
    }
}

pub(in super::super) fn load(at: &AtomicU64) -> Instant {
    Instant::from_nanos(at.load(Ordering::Acquire))
}
