//! Invalidations that have not reached the remote tier, or the other processes: kept until they have. A pure machine.
//!
//! An invalidation has two halves: the write to the remote tier, and the notice to other processes. Each is paid once. Only the first keeps
//! loads away from the remote tier, and only those of the keys that it concerns.
use std::collections::BTreeMap;

use crate::{store::Version, sync::Mutex, time::Instant};

/// Maximum number of keys and tags that are kept apart. Beyond it they become one invalidation of everything.
const MOST: usize = 10_000;

/// Maximum number of claims that are kept. Those beyond it end by their own time to live.
const MOST_CLAIMS: usize = 1000;

/// What has to be made known.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Debt {
    /// Everything is invalid.
    All,
    /// Everything with this tag is.
    Tag(String),
    /// This row is.
    Row(String),
    /// Nobody loads what this version claims. Nothing wrong is served while it is owed.
    Claim(String, Version),
}

/// The halves of an invalidation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Halves {
    /// The write to the remote tier.
    pub(super) store: bool,
    /// The notice to other processes, which follows the write.
    pub(super) notice: bool,
}

impl Halves {
    pub(super) const STORE: Self = Self { store: true, notice: false };
    pub(super) const NOTICE: Self = Self { store: false, notice: true };

    pub(super) const fn any(self) -> bool {
        self.store || self.notice
    }
}

#[derive(Default)]
pub(super) struct Debts(Mutex<State>);

#[derive(Default)]
struct State {
    owed: BTreeMap<Debt, Owed>,
    count: u64,
    claims: usize,
}

#[derive(Debug, Clone, Default)]
struct Owed {
    /// The number of the invalidation that owes it: a payment that began before it does not count.
    number: u64,
    halves: Halves,
    /// Of [`Debt::All`]: where the deletion of all rows goes on.
    behind: Option<String>,
    /// A payment is under way.
    busy: bool,
    /// When a load may try to pay it again, after a payment that failed.
    not_before: Instant,
}

/// A payment under way. While it lives no other begins for the same debt.
pub(super) struct Payment<'a> {
    debts: &'a Debts,
    pub(super) debt: Debt,
    pub(super) halves: Halves,
    pub(super) behind: Option<String>,
    number: u64,
}

impl Debts {
    /// Returns a number that is higher than those of all debts so far.
    pub(super) fn stamp(&self) -> u64 {
        self.0.lock().count
    }

    /// Adds a debt, or more halves to it; returns how many there are. The deletion of all rows goes on at `behind`.
    pub(super) fn owe(&self, debt: Debt, halves: Halves, behind: Option<String>) -> usize {
        let mut state = self.0.lock();
        state.count += 1;
        let number = state.count;
        let is_claim = matches!(debt, Debt::Claim(..));
        if is_claim && state.claims >= MOST_CLAIMS {
            return state.owed.len();
        }
        // An invalidation of everything that nobody has begun to pay will pay this one, too; what began before now does not.
        let all = state.owed.get_mut(&Debt::All).filter(|all| !is_claim && debt != Debt::All && all.covers(halves));
        if let Some(all) = all {
            all.number = number;
            return state.owed.len();
        }
        match state.owed.get_mut(&debt) {
            Some(owed) => {
                owed.number = number;
                owed.halves.store |= halves.store;
                owed.halves.notice |= halves.notice;
                owed.behind = behind;
            }
            None => {
                state.claims += usize::from(is_claim);
                state.owed.insert(debt, Owed { number, halves, behind, ..Owed::default() });
            }
        }
        if state.owed.len() - state.claims > MOST {
            state.become_one(number);
        }
        state.owed.len()
    }

    /// Returns the debt that keeps a load of this row away from the remote tier.
    pub(super) fn bars(&self, row: &str) -> Option<Debt> {
        let state = self.0.lock();
        let owes = |debt: &Debt| {
            state.owed.get_key_value(debt).filter(|(_, owed)| owed.halves.store).map(|(debt, _)| debt.clone())
        };
        if state.owed.is_empty() { None } else { owes(&Debt::All).or_else(|| owes(&Debt::Row(row.to_owned()))) }
    }

    /// Returns the first of these tags whose invalidation the remote tier does not know.
    pub(super) fn bars_tag(&self, tags: &[String]) -> Option<Debt> {
        let state = self.0.lock();
        if state.owed.is_empty() {
            return None;
        }
        let debts = tags.iter().map(|tag| Debt::Tag(tag.clone()));
        debts.into_iter().find(|debt| state.owed.get(debt).is_some_and(|owed| owed.halves.store))
    }

    /// Returns all debts.
    pub(super) fn all(&self) -> Vec<Debt> {
        self.0.lock().owed.keys().cloned().collect()
    }

    /// Begins a payment, unless one is under way or nothing is owed; by a load at this time, also unless one has just failed.
    pub(super) fn begin(&self, debt: Debt, by_load: Option<Instant>) -> Option<Payment<'_>> {
        let mut state = self.0.lock();
        let owed = state.owed.get_mut(&debt)?;
        if owed.busy || by_load.is_some_and(|now| now < owed.not_before) {
            return None;
        }
        owed.busy = true;
        let (halves, behind, number) = (owed.halves, owed.behind.clone(), owed.number);
        Some(Payment { debts: self, debt, halves, behind, number })
    }

    /// Strikes these halves off a debt that is not younger than this number; returns whether it was the last of all.
    pub(super) fn paid(&self, debt: &Debt, number: u64, halves: Halves) -> bool {
        let mut state = self.0.lock();
        let Some(owed) = state.owed.get_mut(debt).filter(|owed| owed.number <= number) else { return false };
        owed.halves.store &= !halves.store;
        owed.halves.notice &= !halves.notice;
        if owed.halves.any() {
            return false;
        }
        state.claims -= usize::from(matches!(debt, Debt::Claim(..)));
        state.owed.remove(debt);
        state.owed.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.lock().owed.len()
    }
}

impl State {
    /// Puts one invalidation of everything in the place of all keys and tags, with the halves that any of them has.
    fn become_one(&mut self, number: u64) {
        let mut all = Owed { number, ..Owed::default() };
        self.owed.retain(|debt, owed| {
            let is_claim = matches!(debt, Debt::Claim(..));
            if !is_claim {
                all.halves.store |= owed.halves.store;
                all.halves.notice |= owed.halves.notice;
                all.busy |= *debt == Debt::All && owed.busy;
            }
            is_claim
        });
        self.owed.insert(Debt::All, all);
    }
}

impl Owed {
    /// Whether the payment of this invalidation of everything will pay these halves of another one, too.
    fn covers(&self, halves: Halves) -> bool {
        let both = (self.halves.store || !halves.store) && (self.halves.notice || !halves.notice);
        both && !self.busy && self.behind.is_none()
    }
}

impl Payment<'_> {
    /// Notes where the deletion of all rows goes on.
    pub(super) fn advance(&mut self, behind: Option<String>) {
        let mut state = self.debts.0.lock();
        if let Some(owed) = state.owed.get_mut(&self.debt).filter(|owed| owed.number == self.number) {
            owed.behind.clone_from(&behind);
        }
        drop(state);
        self.behind = behind;
    }

    /// Notes that it failed: until this time no load tries it again.
    pub(super) fn failed(&mut self, not_before: Instant) {
        if let Some(owed) = self.debts.0.lock().owed.get_mut(&self.debt) {
            owed.not_before = not_before;
        }
    }

    /// Notes that these halves are paid; returns whether nothing at all is owed any more.
    pub(super) fn paid(&mut self, halves: Halves) -> bool {
        self.halves.store &= !halves.store;
        self.halves.notice &= !halves.notice;
        self.debts.paid(&self.debt, self.number, halves)
    }
}

impl Drop for Payment<'_> {
    fn drop(&mut self) {
        if let Some(owed) = self.debts.0.lock().owed.get_mut(&self.debt) {
            owed.busy = false;
        }
    }
}
