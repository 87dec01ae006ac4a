//! The balance of partitions among members. A state machine that knows neither async nor the clock.
//!
//! Each member computes the same division from the same view, and does its own part of it: it takes
//! the free partitions that fall to it, and asks the fullest members for the rest. Members whose
//! views differ for a moment ask for the same partition, or for one too many; a lease decides, and
//! the next view is closer. No partition is taken from a live owner.
use std::collections::{BTreeMap, BTreeSet};

/// The part of one member in a division.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in super::super) struct Plan {
    /// Partitions without an owner that fall to this member.
    pub(super) take: Vec<u16>,
    /// Owners to be asked to resign, each with the partition.
    pub(super) ask: Vec<(String, u16)>,
}

/// Returns the part of `me` in the division of all partitions: each member gets the floor or the
/// ceiling of an equal share, and as few partitions move as possible.
///
/// `members` has the partitions of each live member, `me` among them. If two of them name one
/// partition, because it moves at this moment, it counts as that of the first.
pub(super) fn plan(partitions: u16, members: &BTreeMap<String, BTreeSet<u16>>, me: &str) -> Plan {
    let mut free: BTreeSet<u16> = (0..partitions).collect();
    let mut owned: BTreeMap<&str, Vec<u16>> = BTreeMap::new();
    // The own partitions are known best.
    let own = members.get_key_value(me);
    for (member, partitions) in own.into_iter().chain(members.iter().filter(|(member, _)| *member != me)) {
        let partitions = partitions.iter().copied().filter(|partition| free.remove(partition));
        owned.insert(member, partitions.collect());
    }
    let mut by_count: BTreeSet<(usize, &str)> = owned.iter().map(|(member, own)| (own.len(), *member)).collect();
    let mut plan = Plan::default();
    for partition in free {
        let Some((count, member)) = by_count.pop_first() else { return plan };
        if member == me {
            plan.take.push(partition);
        }
        by_count.insert((count + 1, member));
    }
    // A member that got a free partition has at most one more than the emptiest, so it gives none.
    while let (Some((low, needs)), Some((high, gives))) = (by_count.first().copied(), by_count.last().copied())
        && high >= low + 2
    {
        let Some(partition) = owned.get_mut(gives).and_then(Vec::pop) else { return plan };
        if needs == me {
            plan.ask.push((gives.to_owned(), partition));
        }
        by_count.remove(&(low, needs));
        by_count.remove(&(high, gives));
        by_count.insert((low + 1, needs));
        by_count.insert((high - 1, gives));
    }
    plan
}
