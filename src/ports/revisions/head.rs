//! The head: the number in effect, and the stage of a change that is rolled out.
use bytes::Bytes;

use super::unreadable;
use crate::{
    hash::stable_hash,
    store::StoreError,
    wire::{In, Out},
};

/// Number of the stored form.
const FORM: u64 = 1;

/// The head of a name.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Head {
    /// Highest number that was given, also to a change that was aborted. It is never given again.
    last: u64,
    /// Number in effect.
    stable: u64,
    /// A change that a part of the members takes.
    stage: Option<Stage>,
    /// The latest documents: their numbers, ascending, and the random numbers of their publishers.
    rows: Vec<(u64, u64)>,
}

/// A change that is rolled out, and its step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stage {
    /// Number of the change.
    pub(crate) number: u64,
    /// Members whose hash lies below take the number.
    pub(crate) threshold: u64,
    /// Shares of all steps, in millionths.
    pub(crate) shares: Vec<u64>,
    /// The current step.
    pub(crate) step: u64,
}

impl Head {
    /// Returns the highest number that was given.
    pub(crate) const fn last(&self) -> u64 {
        self.last
    }

    /// Returns the number in effect.
    pub(crate) const fn stable(&self) -> u64 {
        self.stable
    }

    /// Returns the change that is rolled out.
    pub(crate) const fn stage(&self) -> Option<&Stage> {
        self.stage.as_ref()
    }

    /// Returns the rows of the latest documents, with the oldest first.
    pub(crate) fn rows(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.rows.iter().copied()
    }

    /// Returns the random number of the publisher whose document has this number.
    pub(crate) fn owner(&self, number: u64) -> Option<u64> {
        self.rows.iter().find(|(known, _)| *known == number).map(|(_, owner)| *owner)
    }

    /// Returns the number that a member takes. Without a name it takes no part in a roll-out.
    pub(crate) fn number_for(&self, member: Option<&str>) -> u64 {
        match (&self.stage, member) {
            (Some(stage), Some(member)) if lot(member, stage.number) < stage.threshold => stage.number,
            _ => self.stable,
        }
    }

    /// Returns the head after the next number was published by this owner: in effect for all, or
    /// staged. It keeps `history` documents, and those in use.
    #[must_use]
    pub(crate) fn publish(&self, owner: u64, stage: Option<Vec<u64>>, history: usize) -> Self {
        let number = self.last + 1;
        let mut rows = self.rows.clone();
        rows.push((number, owner));
        let stage = stage.map(|shares| Stage { number, threshold: 0, shares, step: 0 });
        let stable = if stage.is_some() { self.stable } else { number };
        let mut over = rows.len().saturating_sub(history);
        rows.retain(|(kept, _)| {
            let goes = over > 0 && *kept != stable && *kept != number;
            over -= usize::from(goes);
            !goes
        });
        Self { last: number, stable, stage, rows }
    }

    /// Returns the head with these of its documents alone. The one in effect stays.
    #[must_use]
    pub(crate) fn keep(&self, is_kept: impl Fn(u64) -> bool) -> Self {
        let rows = self.rows().filter(|(number, _)| *number == self.stable || is_kept(*number)).collect();
        Self { rows, ..self.clone() }
    }

    /// Returns the head that gives this number to no document any more, nor a lower one.
    #[must_use]
    pub(crate) fn after(&self, number: u64) -> Self {
        Self { last: self.last.max(number), ..self.clone() }
    }

    /// Returns the head with another stage of the same change.
    #[must_use]
    pub(crate) fn at_stage(&self, stage: Stage) -> Self {
        Self { stage: Some(stage), ..self.clone() }
    }

    /// Returns the head after the roll-out: the change is in effect for all, or for nobody.
    #[must_use]
    pub(crate) fn end_stage(&self, is_good: bool) -> Self {
        let stable = self.stage.as_ref().filter(|_| is_good).map_or(self.stable, |stage| stage.number);
        Self { stable, stage: None, ..self.clone() }
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Out::of_form(FORM);
        out.number(self.last);
        out.number(self.stable);
        out.option(self.stage.as_ref(), |out, stage| {
            out.number(stage.number);
            out.number(stage.threshold);
            out.list(stage.shares.iter(), |out, share| out.number(*share));
            out.number(stage.step);
        });
        out.list(self.rows.iter(), |out, (number, owner)| {
            out.number(*number);
            out.number(*owner);
        });
        out.into_bytes()
    }

    pub(crate) fn decode(bytes: Bytes) -> Result<Self, StoreError> {
        let read = |input: &mut In| {
            let (last, stable) = (input.number()?, input.number()?);
            let stage = input.option(|input| {
                let (number, threshold) = (input.number()?, input.number()?);
                Some(Stage { number, threshold, shares: input.list(In::number)?, step: input.number()? })
            })?;
            let rows = input.list(|input| Some((input.number()?, input.number()?)))?;
            Some(Self { last, stable, stage, rows })
        };
        In::open(bytes, FORM, read).map_err(|why| unreadable("the head of the revisions", why))
    }
}

/// Returns the lot that a member draws for a number: the same in each process, another one for each
/// number.
fn lot(member: &str, number: u64) -> u64 {
    stable_hash(format!("{number} {member}").as_bytes())
}

/// Returns the lowest threshold below which so many of the members lie, or all of them if there are
/// fewer. The members have no name twice. One that is not listed may lie below it, too.
pub(crate) fn threshold_for(count: usize, number: u64, members: &[String]) -> u64 {
    let mut lots: Vec<u64> = members.iter().map(|member| lot(member, number)).collect();
    lots.sort_unstable();
    lots.into_iter().take(count).next_back().map_or(0, |last| last.saturating_add(1))
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_threshold_has_as_many_members_below_it_as_asked_for(names in prop::collection::hash_set("[a-z]{1,6}", 1..40), number in 1u64..100, count in 0usize..40) {
            let members: Vec<String> = names.into_iter().collect();
            let threshold = threshold_for(count, number, &members);
            let below = members.iter().filter(|member| lot(member, number) < threshold).count();
            prop_assert_eq!(below, count.min(members.len()));
        }

        #[test]
        fn a_head_keeps_the_documents_in_use_and_so_many_others_and_is_read_as_it_was_written(steps in prop::collection::vec((any::<u64>(), 0u8..4), 1..60), history in 1usize..6) {
            // The naive model: all numbers ever, and the one in effect.
            let (mut head, mut given, mut stable) = (Head::default(), Vec::new(), 0);
            for (owner, step) in steps {
                match step {
                    0 | 1 if head.stage().is_none() => {
                        let is_staged = step == 1 && stable > 0;
                        head = head.publish(owner, is_staged.then(|| vec![1_000_000]), history);
                        given.push((given.len() as u64 + 1, owner));
                        if !is_staged {
                            stable = given.len() as u64;
                        }
                    }
                    2 | 3 => {
                        stable = head.stage().filter(|_| step == 2).map_or(stable, |stage| stage.number);
                        head = head.end_stage(step == 2);
                    }
                    _ => {}
                }
                prop_assert_eq!((head.last(), head.stable()), (given.len() as u64, stable));
                prop_assert_eq!(Head::decode(head.encode()).unwrap(), head.clone());
                prop_assert!(stable == 0 || head.owner(stable) == Some(given[stable as usize - 1].1));
                prop_assert!(head.rows().all(|row| given.contains(&row)));
                prop_assert!(head.rows().count() <= history.max(2), "one more than `history` at most");
                prop_assert!(given.is_empty() || head.owner(head.last()).is_some());
            }
        }
    }

    #[test]
    fn a_member_draws_another_lot_for_each_number_and_one_without_a_name_takes_what_is_stable() {
        let members: Vec<String> = (0..20).map(|i| format!("member-{i}")).collect();
        let canary = |number| {
            let stage = Stage { number, threshold: threshold_for(1, number, &members), shares: Vec::new(), step: 0 };
            let head = Head { last: number, stable: 1, stage: Some(stage), rows: Vec::new() };
            assert_eq!(head.number_for(None), 1);
            members.iter().position(|member| head.number_for(Some(member)) == number).unwrap()
        };
        let canaries: std::collections::BTreeSet<_> = (2..30).map(canary).collect();
        assert!(canaries.len() > 10, "{canaries:?}");
    }

    #[test]
    fn a_damaged_head_and_one_of_a_newer_release_are_told_apart() {
        let told = |bytes: &'static [u8]| Head::decode(Bytes::from_static(bytes)).unwrap_err().to_string();
        assert!(told(b"").contains("damaged") && told(b"\x01\x01").contains("damaged"));
        assert!(told(b"\x02").contains("newer release"));
    }
}
