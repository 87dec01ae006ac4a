//! Neighbouring ranges of bytes, each with its owner, and a search in them that stays in few cache lines.
use super::map::ShardId;

/// All bytes, cut into half-open ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ranges {
    /// Where each begins, and whose it is; sorted, the first begins at nothing.
    list: Vec<(Vec<u8>, Option<ShardId>)>,
    /// What all starts but the first begin with, and the eight bytes that follow it in each.
    common: Vec<u8>,
    prefixes: Vec<u64>,
    /// For each of the first bits in which the prefixes differ, how many of them are below.
    index: Vec<u32>,
    /// How many bits all prefixes begin with, and how far down the ones that follow are to be shifted.
    skip: u32,
    shift: u32,
}

/// The first eight bytes as a number. Where two of them differ they are ordered as their bytes are; where they do not, all bytes say.
#[inline]
fn prefix(bytes: &[u8]) -> u64 {
    if let Some(first) = bytes.first_chunk() {
        return u64::from_be_bytes(*first);
    }
    // From both ends: what overlaps is the same.
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
    /// Of a list that is sorted, without two of one start; a gap is put before it where it does not begin at nothing.
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
        // In a sorted list the first and the last differ first.
        self.common = match (starts.first(), starts.last()) {
            (Some((a, _)), Some((b, _))) => a.iter().zip(b).take_while(|(a, b)| a == b).map(|(a, _)| *a).collect(),
            _ => Vec::new(),
        };
        self.prefixes = starts.iter().map(|(start, _)| prefix(&start[self.common.len()..])).collect();
        (self.index, self.skip, self.shift) = (Vec::new(), 0, 0);
        let (Some(first), Some(last)) = (self.prefixes.first(), self.prefixes.last()) else { return };
        self.skip = (first ^ last).leading_zeros();
        // Two to four places for each prefix.
        let bits = (self.prefixes.len().ilog2() + 2).min(64 - self.skip.min(63));
        self.shift = 64 - bits;
        let mut below = 0;
        for (at, prefix) in (0..).zip(&self.prefixes) {
            // Those that are all alike are never looked for here.
            let place = if self.skip == 64 { 0 } else { (prefix << self.skip >> self.shift) as usize };
            while below <= place {
                self.index.push(at);
                below += 1;
            }
        }
        self.index.resize((1 << bits) + 1, u32::try_from(self.prefixes.len()).unwrap_or(u32::MAX));
    }

    /// How many prefixes are below this.
    #[inline]
    fn below(&self, wanted: u64) -> usize {
        match (self.prefixes.first(), self.prefixes.last()) {
            (Some(first), Some(last)) if wanted > *first && wanted <= *last => {
                // Between two that begin with the same bits, so it does, too.
                let place = (wanted << self.skip >> self.shift) as usize;
                let (from, to) = (self.index[place] as usize, self.index[place + 1] as usize);
                from + self.prefixes[from..to].partition_point(|p| *p < wanted)
            }
            (Some(first), _) if wanted > *first => self.prefixes.len(),
            _ => 0,
        }
    }

    /// The number of the range that a position is in. A call of its own, so that a look-up of a virtual shard does not carry it.
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
        // Mostly it is alone.
        let alike = match self.prefixes.get(from + 1) {
            Some(next) if *next == wanted => self.prefixes[from..].partition_point(|p| *p == wanted),
            _ => 1,
        };
        from + self.list[from + 1..=from + alike].partition_point(|(start, _)| start.as_slice() <= position)
    }

    /// Whose a position is.
    #[inline]
    pub(super) fn owner(&self, position: &[u8]) -> Option<ShardId> {
        self.list[self.place(position)].1
    }

    /// The one owner of all of `[low, high)`; `None` where there are several, or none.
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

    /// Gives `[low, high)` to a shard.
    pub(super) fn assign(&mut self, low: &[u8], high: Option<&[u8]>, to: ShardId) {
        let behind = high.map(|high| (high.to_vec(), self.owner(high)));
        self.list.retain(|(start, _)| start.as_slice() < low || high.is_some_and(|high| start.as_slice() > high));
        let at = self.list.partition_point(|(start, _)| start.as_slice() < low);
        self.list.splice(at..at, std::iter::once((low.to_vec(), Some(to))).chain(behind));
        self.index();
    }

    /// Drops what lies outside of so many virtual shards, and what is empty: nobody owns it.
    pub(super) fn cut_to(&mut self, slots: u32) {
        let (first, end) = ([0; 4], slots.to_be_bytes());
        self.list.retain(|(start, _)| start.as_slice() < end.as_slice());
        let from = self.list.partition_point(|(start, _)| start.as_slice() <= first.as_slice());
        self.list.drain(..from.saturating_sub(1));
        if let Some((start, _)) = self.list.first_mut() {
            start.clear();
        }
    }

    /// Joins neighbours of one owner.
    pub(super) fn join(&mut self) {
        self.list.dedup_by(|next, before| next.1 == before.1);
        self.index();
    }

    /// Cuts the range that this is in, there; says whether it was not cut there already.
    pub(super) fn split(&mut self, at: &[u8]) -> bool {
        let place = self.place(at);
        let fresh = self.list[place].0 != at;
        if fresh {
            self.list.insert(place + 1, (at.to_vec(), self.list[place].1));
            self.index();
        }
        fresh
    }

    /// Joins the range that begins there with the one before. `None` where none begins there, `Some(false)` where their owners differ.
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

    /// Each range: from here, to there, whose.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>, Option<ShardId>)> {
        let highs = self.list[1..].iter().map(|(start, _)| Some(start.as_slice())).chain([None]);
        self.list.iter().zip(highs).map(|((low, owner), high)| (low.as_slice(), high, *owner))
    }
}
