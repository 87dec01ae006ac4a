//! Invalidations that have not yet reached the remote tier or the other processes. They stay
//! pending until they have. The module is a pure state machine.
//!
//! An invalidation has two steps: the write to the remote tier, and the notice to other processes.
//! Each is delivered once. Only a pending write keeps loads away from the remote tier, and only
//! loads of the keys that it affects.
use std::collections::BTreeMap;

use crate::{store::Version, sync::Mutex, time::Instant};

/// Maximum number of pending keys and tags. Above it they become one invalidation of everything.
const MOST: usize = 10_000;

/// Maximum number of pending releases of claims. Further claims end by their own time to live.
const MOST_CLAIMS: usize = 1000;

/// The target of a pending invalidation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Debt {
    /// All values.
    All,
    /// All values with this tag.
    Tag(String),
    /// The value of this row.
    Row(String),
    /// A claim of this version, whose load has ended without storing. While its release is pending,
    /// no wrong value is served.
    Claim(String, Version),
}

/// The steps of an invalidation.
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
    /// Number of the latest invalidation of this target. A delivery that began earlier does not
    /// count.
    number: u64,
    halves: Halves,
    /// For [`Invalidation::All`]: the continuation of the deletion of all rows.
    behind: Option<String>,
    /// `true` while a delivery is in progress.
    busy: bool,
    /// Time before which no load retries a delivery that failed.
    not_before: Instant,
}

/// A delivery in progress. While it lives, no other begins for the same target.
pub(super) struct Payment<'a> {
    debts: &'a Debts,
    pub(super) debt: Debt,
    pub(super) halves: Halves,
    pub(super) behind: Option<String>,
    number: u64,
}

impl Debts {
    /// Returns a number that is at least that of every invalidation so far.
    pub(super) fn stamp(&self) -> u64 {
        self.0.lock().count
    }

    /// Adds an invalidation, or more steps to a pending one, and returns the number of pending
    /// ones. For all rows, the deletion continues at `continuation`.
    pub(super) fn owe(&self, debt: Debt, halves: Halves, behind: Option<String>) -> usize {
        let mut state = self.0.lock();
        state.count += 1;
        let number = state.count;
        let is_claim = matches!(debt, Debt::Claim(..));
        if is_claim && state.claims >= MOST_CLAIMS {
            return state.owed.len();
        }
        // A pending invalidation of everything covers this one if its delivery has not begun: a delivery
        // that began earlier does not.
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

    /// Returns the invalidation that keeps a load of this row away from the remote tier.
    pub(super) fn bars(&self, row: &str) -> Option<Debt> {
        let state = self.0.lock();
        let owes = |debt: &Debt| {
            state.owed.get_key_value(debt).filter(|(_, owed)| owed.halves.store).map(|(debt, _)| debt.clone())
        };
        if state.owed.is_empty() { None } else { owes(&Debt::All).or_else(|| owes(&Debt::Row(row.to_owned()))) }
    }

    /// Returns the invalidation of the first of these tags that the remote tier does not know.
    pub(super) fn bars_tag(&self, tags: &[String]) -> Option<Debt> {
        let state = self.0.lock();
        if state.owed.is_empty() {
            return None;
        }
        let debts = tags.iter().map(|tag| Debt::Tag(tag.clone()));
        debts.into_iter().find(|debt| state.owed.get(debt).is_some_and(|owed| owed.halves.store))
    }

    /// Returns the targets of all pending invalidations.
    pub(super) fn all(&self) -> Vec<Debt> {
        self.0.lock().owed.keys().cloned().collect()
    }

    /// Begins a delivery. Returns `None` if one is in progress or none is pending, and for a load
    /// at this time also if a delivery has just failed.
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

    /// Removes these steps from an invalidation whose number is at most `number`. Returns `true` if
    /// nothing is pending any more.
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
    /// Replaces all keys and tags by one invalidation of everything, with the steps that any of
    /// them has.
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
    /// Returns `true` if the delivery of this invalidation of everything also covers these steps of
    /// another one.
    fn covers(&self, halves: Halves) -> bool {
        let both = (self.halves.store || !halves.store) && (self.halves.notice || !halves.notice);
        both && !self.busy && self.behind.is_none()
    }
}

impl Payment<'_> {
    /// Records where the deletion of all rows continues.
    pub(super) fn advance(&mut self, behind: Option<String>) {
        let mut state = self.debts.0.lock();
        if let Some(owed) = state.owed.get_mut(&self.debt).filter(|owed| owed.number == self.number) {
            owed.behind.clone_from(&behind);
        }
        drop(state);
        self.behind = behind;
    }

    /// Records a failure: no load retries it before this time.
    pub(super) fn failed(&mut self, not_before: Instant) {
        if let Some(owed) = self.debts.0.lock().owed.get_mut(&self.debt) {
            owed.not_before = not_before;
        }
    }

    /// Records that these steps are delivered. Returns `true` if nothing is pending any more.
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
