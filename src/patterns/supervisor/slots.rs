//! The slots of all children, filed by what is due for them: a step of the machine looks at those
//! that move, and not at all of them. So `n` children are stopped in `n` steps of a few looks.
//
// Whoever changes a slot does it by `IndexMut`, which notes the child. `file` puts noted children into their sets; it runs
// before the sets are read.
use std::{
    collections::BTreeSet,
    ops::{Index, IndexMut},
};

use super::state::{ChildPhase, Slot};

pub(super) struct Slots {
    all: Vec<Slot>,
    /// Children that wait for their start.
    waiting: BTreeSet<usize>,
    /// Children with a time limit: those that start, stop or are dropped.
    moving: BTreeSet<usize>,
    /// Children that run, and must be stopped.
    to_stop: BTreeSet<usize>,
    /// Children that may have changed since they were filed.
    noted: Vec<usize>,
    /// Children that may have changed since they were shown.
    unseen: Vec<usize>,
    #[cfg(test)]
    looks: std::cell::Cell<u64>,
}

impl Slots {
    pub(super) fn new(all: Vec<Slot>) -> Self {
        let noted = (0..all.len()).collect();
        let (waiting, moving, to_stop, unseen) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new(), Vec::new());
        Self {
            all,
            waiting,
            moving,
            to_stop,
            noted,
            unseen,
            #[cfg(test)]
            looks: std::cell::Cell::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        (0..self.all.len()).map(|child| &self[child])
    }

    /// Puts the children that have changed into their sets.
    pub(super) fn file(&mut self) {
        while let Some(child) = self.noted.pop() {
            let slot = &self[child];
            let waits = slot.phase == ChildPhase::Waiting;
            let (moves, stops) = (slot.ends() || slot.phase == ChildPhase::Starting, slot.runs() && slot.is_stopped);
            for (set, is_in) in [(&mut self.waiting, waits), (&mut self.moving, moves), (&mut self.to_stop, stops)] {
                if is_in {
                    set.insert(child);
                } else {
                    set.remove(&child);
                }
            }
            self.unseen.push(child);
        }
    }

    pub(super) fn waiting(&self) -> &BTreeSet<usize> {
        &self.waiting
    }

    pub(super) fn moving(&self) -> &BTreeSet<usize> {
        &self.moving
    }

    pub(super) fn to_stop(&self) -> &BTreeSet<usize> {
        &self.to_stop
    }

    /// Returns the children that may have changed since the last call.
    pub(super) fn take_unseen(&mut self) -> Vec<usize> {
        self.file();
        std::mem::take(&mut self.unseen)
    }

    /// Returns the number of looks at a child so far.
    #[cfg(test)]
    pub(super) fn looks(&self) -> u64 {
        self.looks.get()
    }
}

impl Index<usize> for Slots {
    type Output = Slot;

    fn index(&self, child: usize) -> &Slot {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        &self.all[child]
    }
}

impl IndexMut<usize> for Slots {
    fn index_mut(&mut self, child: usize) -> &mut Slot {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        if self.noted.last() != Some(&child) {
            self.noted.push(child);
        }
        &mut self.all[child]
    }
}
