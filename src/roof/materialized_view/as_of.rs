//! The place up to which a view has its sources.
use std::fmt;

use crate::{config::Name, event_sourcing::Token};

/// The place up to which rows have the events of each source.
///
/// Its text names the sources: `conference@1042, clicks@7.9` for a log, and a topic of two
/// partitions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AsOf(Vec<(Name, Vec<u64>)>);

impl AsOf {
    pub(super) const fn new(sources: Vec<(Name, Vec<u64>)>) -> Self {
        Self(sources)
    }

    /// Returns the offset of the last event of a partition that the rows have, 0 for none; `None`
    /// for another topic.
    pub fn offset(&self, topic: &str, partition: u16) -> Option<u64> {
        let (_, offsets) = self.0.iter().find(|(name, _)| name.as_str() == topic)?;
        offsets.get(usize::from(partition)).copied()
    }

    /// Returns `true` if the rows have all that the token covers.
    pub fn covers(&self, token: &Token) -> bool {
        self.offset(token.log(), 0).is_some_and(|offset| offset >= token.number())
    }

    /// Returns `true` if no place is before that of the other one.
    pub(super) fn reaches(&self, other: &Self) -> bool {
        let has = |(name, offsets): &(Name, Vec<u64>)| {
            (0..).zip(offsets).all(|(partition, offset)| self.offset(name.as_str(), partition) >= Some(*offset))
        };
        other.0.iter().all(has)
    }

    /// Returns the number of events between this place and a later one.
    pub fn events_to(&self, later: &Self) -> u64 {
        let offsets = |of: &Self| of.0.iter().flat_map(|(_, offsets)| offsets).sum::<u64>();
        offsets(later).saturating_sub(offsets(self))
    }
}

impl fmt::Display for AsOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, (name, offsets)) in self.0.iter().enumerate() {
            let offsets: Vec<_> = offsets.iter().map(u64::to_string).collect();
            write!(f, "{}{name}@{}", if nth > 0 { ", " } else { "" }, offsets.join("."))?;
        }
        Ok(())
    }
}
