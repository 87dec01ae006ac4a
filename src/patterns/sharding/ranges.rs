//! Adjacent ranges of bytes with their owners, and a search that touches few cache lines.
use super::map::ShardId;

/// All byte strings, divided into half-open ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ranges {
    /// Start and owner of each range, sorted; the first start is empty.
    list: Vec<(Vec<u8>, Option<ShardId>)>,
    /// Common prefix of all starts but the first. `prefixes` has the eight bytes after it of each
    /// start.
    common: Vec<u8>,
    prefixes: Vec<u64>,
    /// For each value of the first differing bits of the prefixes, the number of prefixes below it.
    index: Vec<u32>,
    /// Number of leading bits that all prefixes share, and the shift that moves the following bits
    /// down.
    skip: u32,
    shift: u32,
}

/// Returns the first eight bytes as a number. Different numbers have the order of their bytes; if
/// they are equal, all bytes must be compared.
#[inline]
fn prefix(bytes: &[u8]) -> u64 {
    if let Some(first) = bytes.first_chunk() {
        return u64::from_be_bytes(*first);
    }
    // Two loads, one from each end. Overlapping bytes are the same in both.
    let left = 64 - 8 * bytes.len() as u32;
    match (bytes.first_chunk(), bytes.last_chunk(), bytes) {
        (Some(first), Some(last), _) => {
            u64::from(u32::from_be_bytes(*first)) << 32 | u64::from(u32::from_be_bytes(*last)) << left
        }
        (_, _, []) => 0,
        (_, _, [a]) => u64::from(*a) << 56,
        (_, _, [a, b, rest @ ..]) => {
            u64::from(*a) << 56 | u64::from(*b) << 48 | rest.first().map_or(0, |c| u64::from(*c) << 40)
        }
    }
}

impl Ranges {
    /// Creates the ranges from a sorted list with distinct starts. A gap is prepended if the first
    /// start is not empty.
    pub(super) fn of(mut list: Vec<(Vec<u8>, Option<ShardId>)>) -> Self {
        if list.first().is_none_or(|first| !first.0.is_empty()) {
            list.insert(0, (Vec::new(), None));
        }
        let mut ranges = Self { list, common: Vec::new(), prefixes: Vec::new(), index: Vec::new(), skip: 0, shift: 0 };
        ranges.index();
        ranges
    }

    fn index(&mut self) {
        let starts = &self.list[1..];
        // In a sorted list the first and the last entry have the shortest common prefix.
        self.common = match (starts.first(), starts.last()) {
            (Some((a, _)), Some((b, _))) => a.iter().zip(b).take_while(|(a, b)| a == b).map(|(a, _)| *a).collect(),
            _ => Vec::new(),
        };
        self.prefixes = starts.iter().map(|(start, _)| prefix(&start[self.common.len()..])).collect();
        (self.index, self.skip, self.shift) = (Vec::new(), 0, 0);
        let (Some(first), Some(last)) = (self.prefixes.first(), self.prefixes.last()) else { return };
        self.skip = (first ^ last).leading_zeros();
        // Two to four index places for each prefix.
        let bits = (self.prefixes.len().ilog2() + 2).min(64 - self.skip.min(63));
        self.shift = 64 - bits;
        let mut below = 0;
        for (at, prefix) in (0..).zip(&self.prefixes) {
            // If all prefixes are equal, this index is never searched.
            let place = if self.skip == 64 { 0 } else { (prefix << self.skip >> self.shift) as usize };
            while below <= place {
                self.index.push(at);
                below += 1;
            }
        }
        self.index.resize((1 << bits) + 1, u32::try_from(self.prefixes.len()).unwrap_or(u32::MAX));
    }

    /// Returns the number of prefixes below `wanted`.
    #[inline]
    fn below(&self, wanted: u64) -> usize {
        match (self.prefixes.first(), self.prefixes.last()) {
            (Some(first), Some(last)) if wanted > *first && wanted <= *last => {
                // `wanted` is between two prefixes with the same leading bits, so it has these
                // bits, too.
                let place = (wanted << self.skip >> self.shift) as usize;
                let (from, to) = (self.index[place] as usize, self.index[place + 1] as usize);
                from + self.prefixes[from..to].partition_point(|p| *p < wanted)
            }
            (Some(first), _) if wanted > *first => self.prefixes.len(),
            _ => 0,
        }
    }

    /// Returns the index of the range that contains a position. Not inlined, so that look-ups of
    /// virtual shards stay small.
    #[inline(never)]
    pub(super) fn place(&self, position: &[u8]) -> usize {
        let (head, rest) = position.split_at(position.len().min(self.common.len()));
        if !self.common.is_empty() {
            match head.cmp(&self.common) {
                std::cmp::Ordering::Less => return 0,
                std::cmp::Ordering::Greater => return self.list.len() - 1,
                std::cmp::Ordering::Equal => {}
            }
        }
        let wanted = prefix(rest);
        let from = self.below(wanted);
        if self.prefixes.get(from) != Some(&wanted) {
            return from;
        }
        // Mostly the prefix is unique.
        let alike = match self.prefixes.get(from + 1) {
            Some(next) if *next == wanted => self.prefixes[from..].partition_point(|p| *p == wanted),
            _ => 1,
        };
        from + self.list[from + 1..=from + alike].partition_point(|(start, _)| start.as_slice() <= position)
    }

    /// Returns the owner of a position.
    #[inline]
    pub(super) fn owner(&self, position: &[u8]) -> Option<ShardId> {
        self.list[self.place(position)].1
    }

    /// Returns the owner of all of `[low, high)`; `None` if it has several owners, or none.
    pub(super) fn owner_of(&self, low: &[u8], high: Option<&[u8]>) -> Option<ShardId> {
        if high.is_some_and(|high| high <= low) {
            return None;
        }
        let from = self.place(low);
        let owner = self.list[from].1?;
        let mut rest =
            self.list[from..].iter().take_while(|(start, _)| high.is_none_or(|high| start.as_slice() < high));
        rest.all(|(_, other)| *other == Some(owner)).then_some(owner)
    }

    /// Assigns `[low, high)` to a shard.
    pub(super) fn assign(&mut self, low: &[u8], high: Option<&[u8]>, to: ShardId) {
        let behind = high.map(|high| (high.to_vec(), self.owner(high)));
        self.list.retain(|(start, _)| start.as_slice() < low || high.is_some_and(|high| start.as_slice() > high));
        let at = self.list.partition_point(|(start, _)| start.as_slice() < low);
        self.list.splice(at..at, std::iter::once((low.to_vec(), Some(to))).chain(behind));
        self.index();
    }

    /// Removes empty ranges and those above the last of `slots` virtual shards: they have no owner.
    pub(super) fn cut_to(&mut self, slots: u32) {
        let (first, end) = ([0; 4], slots.to_be_bytes());
        self.list.retain(|(start, _)| start.as_slice() < end.as_slice());
        let from = self.list.partition_point(|(start, _)| start.as_slice() <= first.as_slice());
        self.list.drain(..from.saturating_sub(1));
        if let Some((start, _)) = self.list.first_mut() {
            start.clear();
        }
    }

    /// Merges adjacent ranges of one owner.
    pub(super) fn join(&mut self) {
        self.list.dedup_by(|next, before| next.1 == before.1);
        self.index();
    }

    /// Splits the range that contains this position. Returns `false` if a range starts there
    /// already.
    pub(super) fn split(&mut self, at: &[u8]) -> bool {
        let place = self.place(at);
        let fresh = self.list[place].0 != at;
        if fresh {
            self.list.insert(place + 1, (at.to_vec(), self.list[place].1));
            self.index();
        }
        fresh
    }

    /// Merges the range that starts at this position with the previous one. Returns `None` if no
    /// range starts there, and `Some(false)` if the owners differ.
    pub(super) fn merge(&mut self, at: &[u8]) -> Option<bool> {
        let place = self.place(at);
        if place == 0 || self.list[place].0 != at {
            return None;
        }
        let alike = self.list[place].1 == self.list[place - 1].1;
        if alike {
            self.list.remove(place);
            self.index();
        }
        Some(alike)
    }

    /// Returns the start, the end and the owner of each range.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>, Option<ShardId>)> {
        let highs = self.list[1..].iter().map(|(start, _)| Some(start.as_slice())).chain([None]);
        self.list.iter().zip(highs).map(|((low, owner), high)| (low.as_slice(), high, *owner))
    }
}
