//! Invalidations that have not reached the remote tier, or the other processes: kept until they have. A pure machine.
use std::collections::BTreeMap;

use crate::{store::Version, sync::Mutex};

/// So many are kept apart; beyond, the cache owes all of itself.
const MOST: usize = 10_000;

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

#[derive(Default)]
pub(super) struct Debts(Mutex<State>);

#[derive(Default)]
struct State {
    /// With the number of the invalidation that owes it: one that is owed again while it is being paid stays.
    owed: BTreeMap<Debt, u64>,
    count: u64,
}

impl Debts {
    /// Notes one more; gives how many there are.
    pub(super) fn owe(&self, debt: Debt) -> usize {
        let mut state = self.0.lock();
        state.count += 1;
        let number = state.count;
        state.owed.insert(debt, number);
        if state.owed.len() > MOST {
            state.owed.clear();
            state.owed.insert(Debt::All, number);
        }
        state.owed.len()
    }

    /// What bars a look into the remote tier for this row, with its number.
    pub(super) fn bars(&self, row: &str) -> Option<(Debt, u64)> {
        let state = self.0.lock();
        if state.owed.is_empty() {
            return None;
        }
        let all = state.owed.range(..Debt::Row(String::new())).next();
        let bar = all.or_else(|| state.owed.get_key_value(&Debt::Row(row.to_owned())));
        bar.map(|(debt, number)| (debt.clone(), *number))
    }

    /// The first of all, with its number.
    pub(super) fn first(&self) -> Option<(Debt, u64)> {
        self.0.lock().owed.first_key_value().map(|(debt, number)| (debt.clone(), *number))
    }

    /// It was made known; says whether it was the last. One that was owed again meanwhile stays.
    pub(super) fn paid(&self, debt: &Debt, number: u64) -> bool {
        let mut state = self.0.lock();
        let same = state.owed.get(debt) == Some(&number);
        same && state.owed.remove(debt).is_some() && state.owed.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.lock().owed.len()
    }
}
