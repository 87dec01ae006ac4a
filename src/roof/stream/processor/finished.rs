//! The set of finished events of one partition: the low watermark, and a bitmap above it.
use std::collections::VecDeque;

/// Events whose processing ended. All positions up to the watermark are in the set; those above it
/// are bits.
///
/// The watermark is the highest position below which no event is unfinished. It never moves back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Finished {
    /// Position of the first bit, a multiple of 64.
    base: u64,
    /// Bits from `base` on. Those up to the watermark are set; the first word is never full.
    words: VecDeque<u64>,
}

impl Default for Finished {
    fn default() -> Self {
        Self::up_to(0)
    }
}

/// Number of words that a set may have: more cannot be read back.
pub(super) const MAX_WORDS: usize = super::config::MAX_AHEAD as usize / 64 + 2;

impl Finished {
    /// Returns the set of all positions up to `watermark`.
    pub(super) fn up_to(watermark: u64) -> Self {
        let next = watermark.saturating_add(1);
        let mut words = VecDeque::new();
        if !next.is_multiple_of(64) {
            words.push_back((1 << (next % 64)) - 1);
        }
        Self { base: next / 64 * 64, words }
    }

    /// Returns the watermark.
    pub(super) fn watermark(&self) -> u64 {
        // Position 0 is no event, and its bit is set from the beginning.
        let ones = self.words.front().map_or(0, |word| u64::from(word.trailing_ones()));
        (self.base + ones).saturating_sub(1)
    }

    /// Returns `true` if the event at this position is finished.
    pub(super) fn contains(&self, position: u64) -> bool {
        let Some(bit) = position.checked_sub(self.base) else { return true };
        let word = usize::try_from(bit / 64).ok().and_then(|at| self.words.get(at));
        word.is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }

    /// Adds a position. Returns `false` if the set had it.
    pub(super) fn add(&mut self, position: u64) -> bool {
        if self.contains(position) {
            return false;
        }
        let bit = position - self.base;
        let at = (bit / 64) as usize;
        while self.words.len() <= at {
            self.words.push_back(0);
        }
        self.words[at] |= 1 << (bit % 64);
        while self.words.front() == Some(&u64::MAX) {
            self.words.pop_front();
            self.base += 64;
        }
        true
    }

    /// Adds all positions up to this one, and returns the number of those that the set did not
    /// have.
    pub(super) fn skip_to(&mut self, position: u64) -> u64 {
        let watermark = self.watermark();
        if position <= watermark {
            return 0;
        }
        let had = self.above().filter(|above| *above <= position).count() as u64;
        let above: Vec<u64> = self.above().filter(|above| *above > position).collect();
        *self = Self::up_to(position);
        for position in above {
            self.add(position);
        }
        position - watermark - had
    }

    /// Returns the finished positions above the watermark, in order.
    pub(super) fn above(&self) -> impl Iterator<Item = u64> + '_ {
        let watermark = self.watermark();
        let bits = self.words.iter().enumerate().flat_map(|(at, word)| {
            let first = self.base + at as u64 * 64;
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit)
        });
        bits.filter(move |position| *position > watermark)
    }

    /// Returns the number of finished positions above the watermark.
    pub(super) fn count_above(&self) -> u64 {
        let ones: u64 = self.words.iter().map(|word| u64::from(word.count_ones())).sum();
        let below = self.words.front().map_or(0, |word| u64::from(word.trailing_ones()));
        ones - below
    }

    /// Returns the bits above the watermark, from the one behind it, which is never set. The last
    /// word has a bit.
    pub(super) fn words_above(&self) -> Vec<u64> {
        let next = self.watermark() + 1;
        let mut words = Vec::new();
        for position in self.above() {
            let bit = position - next;
            let at = (bit / 64) as usize;
            words.resize(words.len().max(at + 1), 0);
            words[at] |= 1 << (bit % 64);
        }
        words
    }

    /// Returns the set that has this watermark and these bits; `None` if
    /// [`words_above`](Self::words_above) never returns them.
    pub(super) fn of_words(watermark: u64, words: &[u64]) -> Option<Self> {
        let is_canonical = words.first().is_none_or(|word| word & 1 == 0) && words.last() != Some(&0);
        let end = watermark.checked_add(1)?.checked_add((words.len() as u64).checked_mul(64)?)?;
        if !is_canonical || words.len() > MAX_WORDS || end > u64::MAX - 128 {
            return None;
        }
        let mut set = Self::up_to(watermark);
        for (at, word) in words.iter().enumerate() {
            for bit in (0..64).filter(|bit| word >> bit & 1 == 1) {
                set.add(watermark + 1 + at as u64 * 64 + bit);
            }
        }
        Some(set)
    }
}
