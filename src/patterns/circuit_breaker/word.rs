//! The word that admission reads: state, generation and count, changed together by compare-and-set.

/// State of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
/// size are used. Half-open, it is the number of used permits. The generation increases with every
/// change of state, and with every change of a closed breaker's windows, so that a compare-and-set
/// that began by the old settings fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Word(pub(super) u64);

const SLOW_START: u64 = 1 << 61;
const FULL: u64 = 1 << 60;
const GENERATION: u64 = (1 << 28) - 1;

impl Word {
    pub(super) const fn new(state: State, generation: u32, count: u32) -> Self {
        Self((state as u64) << 62 | (generation as u64 & GENERATION) << 32 | count as u64)
    }

    #[inline]
    pub(super) const fn state(self) -> State {
        match self.0 >> 62 {
            0 => State::Closed,
            1 => State::Open,
            2 => State::HalfOpen,
            _ => State::Isolated,
        }
    }

    /// Returns whether the breaker is closed and not in a slow start: every call passes.
    #[inline]
    pub(super) const fn passes_all(self) -> bool {
        self.0 >> 61 == 0
    }

    #[inline]
    pub(super) const fn in_slow_start(self) -> bool {
        self.0 & SLOW_START != 0
    }

    /// Returns the word with or without the mark of a slow start.
    pub(super) const fn with_slow_start(self, on: bool) -> Self {
        Self(if on { self.0 | SLOW_START } else { self.0 & !SLOW_START })
    }

    #[inline]
    pub(super) const fn is_closed(self) -> bool {
        self.0 >> 62 == 0
    }

    #[inline]
    pub(super) const fn generation(self) -> u32 {
        (self.0 >> 32 & GENERATION) as u32
    }

    #[inline]
    pub(super) const fn count(self) -> u32 {
        self.0 as u32
    }

    #[inline]
    pub(super) const fn is_full(self) -> bool {
        self.0 & FULL != 0
    }

    /// Returns the word with one more outcome, in a window of `size`.
    #[inline]
    pub(super) const fn counted(self, size: u32) -> Self {
        let count = self.count().wrapping_add(1);
        let full = if count >= size { FULL } else { self.0 & FULL };
        Self(self.0 >> 32 << 32 | full | count as u64)
    }

    /// Returns the number of outcomes that a window of `size` holds.
    pub(super) const fn filled(self, size: u32) -> u32 {
        if self.is_full() { size } else { self.count() }
    }

    /// Returns the word in this generation.
    pub(super) const fn in_generation(self, generation: u32) -> Self {
        Self(self.0 & !(GENERATION << 32) | (generation as u64 & GENERATION) << 32)
    }

    /// Returns the word in the next generation, with an unchanged window.
    pub(super) const fn next(self) -> Self {
        let generation = (self.generation() as u64 + 1) & GENERATION;
        Self(self.0 & !(GENERATION << 32) | generation << 32)
    }

    /// Returns the word with a window that is full, or is not, at this count.
    pub(super) const fn with_window(self, full: bool, count: u32) -> Self {
        let flags = if full { self.0 | FULL } else { self.0 & !FULL };
        Self(flags >> 32 << 32 | count as u64)
    }

    /// Returns whether `generation` lies between `first` and this word's, both included.
    /// Generations wrap.
    pub(super) fn is_since(self, first: u32, generation: u32) -> bool {
        let after = |g: u32| u64::from(g.wrapping_sub(first)) & GENERATION;
        after(generation) <= after(self.generation())
    }

    /// Returns the word with another count.
    pub(super) const fn with_count(self, count: u32) -> Self {
        Self((self.0 >> 32 << 32) | count as u64)
    }
}
