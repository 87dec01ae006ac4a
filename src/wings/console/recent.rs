//! Counts of the last 15 minutes.
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use super::readout::Table;
use crate::{
    sync::Mutex,
    time::{Clock, Instant},
};

/// Number of minutes that are kept.
pub(super) const MINUTES: u64 = 15;

/// Returns the number of the minute.
pub(super) fn number_of(now: Instant) -> u64 {
    now.as_nanos() / 60_000_000_000
}

/// The counts of each of the last 15 minutes, oldest first; minutes without any are left out.
#[derive(Default)]
pub(super) struct Minutes<T>(VecDeque<(u64, T)>);

impl<T: Default> Minutes<T> {
    /// Returns the counts of this minute. A call that was delayed between its look at the clock and
    /// the lock counts for the latest one.
    pub(super) fn at(&mut self, number: u64) -> &mut T {
        if self.0.back().is_none_or(|(last, _)| *last < number) {
            self.0.push_back((number, T::default()));
            while self.0.front().is_some_and(|(first, _)| first + MINUTES <= number) {
                self.0.pop_front();
            }
        }
        let last = self.0.len() - 1;
        &mut self.0[last].1
    }

    /// Returns the counts of the last 15 minutes, of which this is the latest, with their numbers.
    pub(super) fn until(&self, number: u64) -> impl Iterator<Item = (u64, &T)> {
        self.0.iter().filter(move |(minute, _)| minute + MINUTES > number).map(|(minute, counts)| (*minute, counts))
    }
}

/// A happening, and its kind or reason; empty if it has none.
pub(super) type Happening = (&'static str, &'static str);

/// Counts of what happened in the last 15 minutes. Clones share them.
#[derive(Clone)]
pub(super) struct Recent(Arc<Counts>);

struct Counts {
    clock: Clock,
    minutes: Mutex<Minutes<BTreeMap<Happening, u64>>>,
}

impl Recent {
    pub(super) fn new(clock: &Clock) -> Self {
        Self(Arc::new(Counts { clock: clock.clone(), minutes: Mutex::default() }))
    }

    pub(super) fn add(&self, happening: Happening) {
        let number = number_of(self.0.clock.now());
        *self.0.minutes.lock().at(number).entry(happening).or_default() += 1;
    }

    fn read(&self) -> BTreeMap<Happening, u64> {
        let number = number_of(self.0.clock.now());
        let mut all = BTreeMap::new();
        let minutes = self.0.minutes.lock();
        for (_, counts) in minutes.until(number) {
            counts.iter().for_each(|(happening, n)| *all.entry(*happening).or_default() += n);
        }
        all
    }

    /// Returns how often this happened, whatever its kind.
    pub(super) fn sum(&self, what: &str) -> u64 {
        self.read().iter().filter(|((happened, _), _)| *happened == what).map(|(_, n)| n).sum()
    }

    /// Returns all counts as a table.
    pub(super) fn table(&self) -> Table {
        let mut table = Table::new("The last 15 minutes", &["what", "number"]);
        for ((what, kind), n) in self.read() {
            let what = if kind.is_empty() { what.to_owned() } else { format!("{what}: {kind}") };
            table.push([what, n.to_string()]);
        }
        table
    }
}
