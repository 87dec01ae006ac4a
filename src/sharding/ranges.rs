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
}

/// The first eight bytes as a number. Where two of them differ they are ordered as their bytes are; where they do not, all bytes say.
fn prefix(bytes: &[u8]) -> u64 {
    let mut first = [0; 8];
    let n = bytes.len().min(8);
    first[..n].copy_from_slice(&bytes[..n]);
    u64::from_be_bytes(first)
}

impl Ranges {
    /// Of a list that is sorted, without two of one start; a gap is put before it where it does not begin at nothing.
    pub(super) fn of(mut list: Vec<(Vec<u8>, Option<ShardId>)>) -> Self {
        if list.first().is_none_or(|first| !first.0.is_empty()) {
            list.insert(0, (Vec::new(), None));
        }
        let mut ranges = Self { list, common: Vec::new(), prefixes: Vec::new() };
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
    }

    /// The number of the range that a position is in.
    pub(super) fn place(&self, position: &[u8]) -> usize {
        let (head, rest) = position.split_at(position.len().min(self.common.len()));
        match head.cmp(&self.common) {
            std::cmp::Ordering::Less => return 0,
            std::cmp::Ordering::Greater => return self.list.len() - 1,
            std::cmp::Ordering::Equal => {}
        }
        let wanted = prefix(rest);
        let from = self.prefixes.partition_point(|p| *p < wanted);
        if self.prefixes.get(from) != Some(&wanted) {
            return from;
        }
        let alike = self.prefixes[from..].partition_point(|p| *p == wanted);
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
