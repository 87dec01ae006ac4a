//! The one word that admission reads: state, generation and count, moved together by compare-and-set.

/// What a breaker does with calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// All calls pass.
    Closed,
    /// Calls are rejected until a time.
    Open,
    /// A few calls pass as probes.
    HalfOpen,
    /// Calls are rejected until somebody closes it.
    Isolated,
}

impl State {
    /// All states, for a gauge each.
    pub const ALL: [Self; 4] = [Self::Closed, Self::Open, Self::HalfOpen, Self::Isolated];

    /// The state as a number, for a gauge: 0 closed, 1 open, 2 half-open, 3 isolated.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// A gauge for each state, with its label: exactly one reads 1.
    pub fn gauges(self) -> [(&'static str, u8); 4] {
        Self::ALL.map(|state| (state.as_str(), u8::from(state == self)))
    }

    /// The state as a word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
            Self::Isolated => "isolated",
        }
    }
}

/// From the top: state (2 bits), "ramping up" (1), "the window is full" (1), generation (28), count (32).
///
/// Closed, the count numbers the recorded outcomes (it wraps: only differences below a window's size are used); half-open, it
/// is the number of probes taken. The generation goes up with every change of state, and where a closed breaker's windows are
/// changed, so that a compare-and-set which was begun by the old settings fails.
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

    /// Closed, and not ramping up: every call passes.
    #[inline]
    pub(super) const fn passes_all(self) -> bool {
        self.0 >> 61 == 0
    }

    #[inline]
    pub(super) const fn in_slow_start(self) -> bool {
        self.0 & SLOW_START != 0
    }

    /// The same with or without the mark of a ramp.
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

    /// One outcome more, in a window of `size`.
    #[inline]
    pub(super) const fn counted(self, size: u32) -> Self {
        let count = self.count().wrapping_add(1);
        let full = if count >= size { FULL } else { self.0 & FULL };
        Self(self.0 >> 32 << 32 | full | count as u64)
    }

    /// How many outcomes the window of `size` holds.
    pub(super) const fn filled(self, size: u32) -> u32 {
        if self.is_full() { size } else { self.count() }
    }

    /// The same in this generation.
    pub(super) const fn in_generation(self, generation: u32) -> Self {
        Self(self.0 & !(GENERATION << 32) | (generation as u64 & GENERATION) << 32)
    }

    /// The generation after this one, with a window that holds what it held.
    pub(super) const fn next(self) -> Self {
        let generation = (self.generation() as u64 + 1) & GENERATION;
        Self(self.0 & !(GENERATION << 32) | generation << 32)
    }

    /// The same with a window that is full, or is not, at this count.
    pub(super) const fn with_window(self, full: bool, count: u32) -> Self {
        let flags = if full { self.0 | FULL } else { self.0 & !FULL };
        Self(flags >> 32 << 32 | count as u64)
    }

    /// Whether `generation` lies between `first` and this one's, both included. Generations come round.
    pub(super) fn is_since(self, first: u32, generation: u32) -> bool {
        let after = |g: u32| u64::from(g.wrapping_sub(first)) & GENERATION;
        after(generation) <= after(self.generation())
    }

    /// The same with another count.
    pub(super) const fn with_count(self, count: u32) -> Self {
        Self((self.0 >> 32 << 32) | count as u64)
    }
}
