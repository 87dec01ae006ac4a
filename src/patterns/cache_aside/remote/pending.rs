//! Invalidations that have not yet reached the remote tier or the other processes. They stay
//! pending until they have. The module is a pure state machine.
//!
//! An invalidation has two steps: the write to the remote tier, and the notice to other processes.
//! Each is delivered once. Only a pending write keeps loads away from the remote tier, and only
//! loads of the keys that it affects.
use std::collections::BTreeMap;

use crate::{store::Version, sync::Mutex, time::Instant};

/// Maximum number of pending keys and tags. Above it they become one invalidation of everything.
const MAX_PENDING: usize = 10_000;

/// Maximum number of pending releases of claims. Further claims end by their own time to live.
const MAX_CLAIMS: usize = 1000;

/// The target of a pending invalidation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Invalidation {
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
pub(crate) struct Steps {
    /// The write to the remote tier.
    pub(crate) store: bool,
    /// The notice to other processes, which follows the write.
    pub(crate) notice: bool,
}

impl Steps {
    pub(crate) const STORE: Self = Self { store: true, notice: false };
    pub(crate) const NOTICE: Self = Self { store: false, notice: true };

    pub(crate) const fn any(self) -> bool {
        self.store || self.notice
    }
}

#[derive(Default)]
pub(crate) struct PendingInvalidations(Mutex<PendingState>);

#[derive(Default)]
struct PendingState {
    pending: BTreeMap<Invalidation, Pending>,
    count: u64,
    claims: usize,
}

#[derive(Debug, Clone, Default)]
struct Pending {
    /// Number of the latest invalidation of this target. A delivery that began earlier does not
    /// count.
    number: u64,
    steps: Steps,
    /// For [`Invalidation::All`]: the continuation of the deletion of all rows.
    continuation: Option<String>,
    /// `true` while a delivery is in progress.
    busy: bool,
    /// Time before which no load retries a delivery that failed.
    not_before: Instant,
}

/// A delivery in progress. While it lives, no other begins for the same target.
pub(crate) struct Delivery<'a> {
    all: &'a PendingInvalidations,
    pub(crate) invalidation: Invalidation,
    pub(crate) steps: Steps,
    pub(crate) continuation: Option<String>,
    number: u64,
}

impl PendingInvalidations {
    /// Returns a number that is at least that of every invalidation so far.
    pub(crate) fn stamp(&self) -> u64 {
        self.0.lock().count
    }

    /// Adds an invalidation, or more steps to a pending one, and returns the number of pending
    /// ones. For all rows, the deletion continues at `continuation`.
    pub(crate) fn add(&self, invalidation: Invalidation, steps: Steps, continuation: Option<String>) -> usize {
        let mut state = self.0.lock();
        state.count += 1;
        let number = state.count;
        let is_claim = matches!(invalidation, Invalidation::Claim(..));
        if is_claim && state.claims >= MAX_CLAIMS {
            return state.pending.len();
        }
        // A pending invalidation of everything covers this one if its delivery has not begun: a delivery
        // that began earlier does not.
        let all = state
            .pending
            .get_mut(&Invalidation::All)
            .filter(|all| !is_claim && invalidation != Invalidation::All && all.covers(steps));
        if let Some(all) = all {
            all.number = number;
            return state.pending.len();
        }
        match state.pending.get_mut(&invalidation) {
            Some(pending) => {
                pending.number = number;
                pending.steps.store |= steps.store;
                pending.steps.notice |= steps.notice;
                pending.continuation = continuation;
            }
            None => {
                state.claims += usize::from(is_claim);
                state.pending.insert(invalidation, Pending { number, steps, continuation, ..Pending::default() });
            }
        }
        if state.pending.len() - state.claims > MAX_PENDING {
            state.merge_into_one(number);
        }
        state.pending.len()
    }

    /// Returns the invalidation that keeps a load of this row away from the remote tier.
    pub(crate) fn blocking(&self, row: &str) -> Option<Invalidation> {
        let state = self.0.lock();
        let remaining = |invalidation: &Invalidation| {
            state
                .pending
                .get_key_value(invalidation)
                .filter(|(_, pending)| pending.steps.store)
                .map(|(invalidation, _)| invalidation.clone())
        };
        if state.pending.is_empty() {
            None
        } else {
            remaining(&Invalidation::All).or_else(|| remaining(&Invalidation::Row(row.to_owned())))
        }
    }

    /// Returns the invalidation of the first of these tags that the remote tier does not know.
    pub(crate) fn blocking_tag(&self, tags: &[String]) -> Option<Invalidation> {
        let state = self.0.lock();
        if state.pending.is_empty() {
            return None;
        }
        let all = tags.iter().map(|tag| Invalidation::Tag(tag.clone()));
        all.into_iter().find(|invalidation| state.pending.get(invalidation).is_some_and(|pending| pending.steps.store))
    }

    /// Returns the targets of all pending invalidations.
    pub(crate) fn all(&self) -> Vec<Invalidation> {
        self.0.lock().pending.keys().cloned().collect()
    }

    /// Begins a delivery. Returns `None` if one is in progress or none is pending, and for a load
    /// at this time also if a delivery has just failed.
    pub(crate) fn begin(&self, invalidation: Invalidation, by_load: Option<Instant>) -> Option<Delivery<'_>> {
        let mut state = self.0.lock();
        let pending = state.pending.get_mut(&invalidation)?;
        if pending.busy || by_load.is_some_and(|now| now < pending.not_before) {
            return None;
        }
        pending.busy = true;
        let (steps, continuation, number) = (pending.steps, pending.continuation.clone(), pending.number);
        Some(Delivery { all: self, invalidation, steps, continuation, number })
    }

    /// Removes these steps from an invalidation whose number is at most `number`. Returns `true` if
    /// nothing is pending any more.
    pub(crate) fn delivered(&self, invalidation: &Invalidation, number: u64, steps: Steps) -> bool {
        let mut state = self.0.lock();
        let Some(pending) = state.pending.get_mut(invalidation).filter(|pending| pending.number <= number) else {
            return false;
        };
        pending.steps.store &= !steps.store;
        pending.steps.notice &= !steps.notice;
        if pending.steps.any() {
            return false;
        }
        state.claims -= usize::from(matches!(invalidation, Invalidation::Claim(..)));
        state.pending.remove(invalidation);
        state.pending.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().pending.len()
    }
}

impl PendingState {
    /// Replaces all keys and tags by one invalidation of everything, with the steps that any of
    /// them has.
    fn merge_into_one(&mut self, number: u64) {
        let mut all = Pending { number, ..Pending::default() };
        self.pending.retain(|invalidation, pending| {
            let is_claim = matches!(invalidation, Invalidation::Claim(..));
            if !is_claim {
                all.steps.store |= pending.steps.store;
                all.steps.notice |= pending.steps.notice;
                all.busy |= *invalidation == Invalidation::All && pending.busy;
            }
            is_claim
        });
        self.pending.insert(Invalidation::All, all);
    }
}

impl Pending {
    /// Returns `true` if the delivery of this invalidation of everything also covers these steps of
    /// another one.
    fn covers(&self, steps: Steps) -> bool {
        let both = (self.steps.store || !steps.store) && (self.steps.notice || !steps.notice);
        both && !self.busy && self.continuation.is_none()
    }
}

impl Delivery<'_> {
    /// Records where the deletion of all rows continues.
    pub(crate) fn advance(&mut self, continuation: Option<String>) {
        let mut state = self.all.0.lock();
        if let Some(pending) = state.pending.get_mut(&self.invalidation).filter(|pending| pending.number == self.number)
        {
            pending.continuation.clone_from(&continuation);
        }
        drop(state);
        self.continuation = continuation;
    }

    /// Records a failure: no load retries it before this time.
    pub(crate) fn failed(&mut self, not_before: Instant) {
        if let Some(pending) = self.all.0.lock().pending.get_mut(&self.invalidation) {
            pending.not_before = not_before;
        }
    }

    /// Records that these steps are delivered. Returns `true` if nothing is pending any more.
    pub(crate) fn delivered(&mut self, steps: Steps) -> bool {
        self.steps.store &= !steps.store;
        self.steps.notice &= !steps.notice;
        self.all.delivered(&self.invalidation, self.number, steps)
    }
}

impl Drop for Delivery<'_> {
    fn drop(&mut self) {
        if let Some(pending) = self.all.0.lock().pending.get_mut(&self.invalidation) {
            pending.busy = false;
        }
    }
}
