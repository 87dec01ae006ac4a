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

/// From the top: state (2 bits), "the window is full" (1), generation (29), count (32).
///
/// Closed, the count numbers the recorded outcomes (it wraps: only differences below a window's size are used); half-open, it
/// is the number of probes taken. The generation goes up with every change of state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Word(pub(super) u64);

const FULL: u64 = 1 << 61;
const GENERATION: u64 = (1 << 29) - 1;

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

    /// The same with another count.
    pub(super) const fn with_count(self, count: u32) -> Self {
        Self((self.0 >> 32 << 32) | count as u64)
    }
}
