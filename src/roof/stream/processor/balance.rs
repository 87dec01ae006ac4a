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

/// The members of a group, as one of them sees them.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct View {
    /// The partitions of each live member.
    pub(super) live: BTreeMap<String, BTreeSet<u16>>,
    /// Live members that began a short time ago.
    pub(super) newcomers: BTreeSet<String>,
    /// Partitions of members that are gone, and those that had no owner for long.
    pub(super) left: BTreeSet<u16>,
}

/// Returns the part of `me` in the division of all partitions: each member gets the floor or the
/// ceiling of an equal share, and as few partitions move as possible.
///
/// `me` is among the live members. If two of them name one partition, because it moves at this
/// moment, it counts as that of the first.
///
/// The partitions of members that are gone fall to no newcomer, unless all are new, and meanwhile
/// newcomers ask for none. A process that dies again and again would otherwise keep them free for
/// ever: each restart begins the wait for their leases again.
pub(super) fn plan(partitions: u16, view: &View, me: &str) -> Plan {
    let mut free: BTreeSet<u16> = (0..partitions).collect();
    let mut owned: BTreeMap<&str, Vec<u16>> = BTreeMap::new();
    // The own partitions are known best.
    let own = view.live.get_key_value(me);
    for (member, partitions) in own.into_iter().chain(view.live.iter().filter(|(member, _)| *member != me)) {
        let partitions = partitions.iter().copied().filter(|partition| free.remove(partition));
        owned.insert(member, partitions.collect());
    }
    let mut by_count: BTreeSet<(usize, &str)> = owned.iter().map(|(member, own)| (own.len(), *member)).collect();
    let has_older = view.live.len() > view.newcomers.len();
    let is_older = |member: &str| !view.newcomers.contains(member);
    let is_left = |partition: &u16| has_older && view.left.contains(partition);
    // In a group that changes, the emptiest members take, and each claim and each arrival may move takers.
    let is_settled = view.newcomers.is_empty();
    let mut plan = Plan::default();
    // Number of free partitions that fall to each member.
    let mut falls: BTreeMap<&str, usize> = BTreeMap::new();
    for partition in &free {
        let mut takers = by_count.iter().filter(|(_, member)| !is_left(partition) || is_older(member));
        let Some((count, member)) = takers.next().copied() else { return plan };
        *falls.entry(member).or_default() += 1;
        if !is_settled && member == me {
            plan.take.push(*partition);
        }
        by_count.remove(&(count, member));
        by_count.insert((count + 1, member));
    }
    if is_settled {
        let numbers = view.live.keys().map(|member| falls.get(member.as_str()).copied().unwrap_or(0));
        let place = view.live.keys().position(|member| member == me);
        plan.take.extend(taken(free.iter().copied(), numbers, place));
    }
    if free.iter().any(is_left) {
        by_count.retain(|(_, member)| is_older(member));
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

/// Returns the partitions among `free` that fall to the member at the place `me`, if so many fall
/// to each.
///
/// A partition prefers the member at its own number, and then those that follow. So the claim of
/// one changes the taker of no other one: a member that has begun to wait for the lease of a dead
/// owner would otherwise wait in vain, and the next one would begin anew.
fn taken(
    free: impl Iterator<Item = u16>,
    numbers: impl Iterator<Item = usize>,
    me: Option<usize>,
) -> impl Iterator<Item = u16> {
    let numbers: Vec<usize> = numbers.collect();
    let members = numbers.len().max(1);
    let mut left: BTreeMap<usize, usize> = numbers.into_iter().enumerate().filter(|(_, number)| *number > 0).collect();
    free.filter(move |partition| {
        let preferred = usize::from(*partition) % members;
        let next =
            left.range(preferred..).next().or_else(|| left.iter().next()).map(|(member, number)| (*member, *number));
        let Some((member, number)) = next else { return false };
        if number > 1 {
            left.insert(member, number - 1)
        } else {
            left.remove(&member)
        };
        Some(member) == me
    })
}
