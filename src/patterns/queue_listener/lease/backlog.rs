//! Messages that were taken and that no handler has begun with. They belong to no task: each takes the next, so that none waits behind a
//! task that is held up. A machine that takes `now` as an argument.
use std::collections::VecDeque;

use crate::{
    queue_listener::lease::{Held, Lease, Lot},
    time::Instant,
};

#[derive(Default)]
pub(crate) struct Backlog {
    /// As they were received: their leases are all of one age, and each is made when its message is taken.
    lots: VecDeque<Lot>,
    /// Those whose leases were renewed.
    held: VecDeque<Held>,
    /// Counts messages that were taken out: unchanged between two looks, nobody takes any.
    taken: u64,
}

impl Backlog {
    pub(crate) fn len(&self) -> usize {
        self.lots.iter().map(|lot| lot.deliveries.len()).sum::<usize>() + self.held.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lots.is_empty() && self.held.is_empty()
    }

    pub(crate) const fn taken(&self) -> u64 {
        self.taken
    }

    pub(crate) fn push(&mut self, lot: Lot) {
        if lot.deliveries.len() > 0 {
            self.lots.push_back(lot);
        }
    }

    /// Puts back a message whose lease was renewed: before all others.
    pub(crate) fn put_back(&mut self, held: Held) {
        self.held.push_back(held);
    }

    /// Takes the next message.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Held> {
        self.taken = self.taken.wrapping_add(1);
        if let Some(held) = self.held.pop_front() {
            return Some(held);
        }
        let lot = self.lots.front_mut()?;
        let lease = Lease::of(lot.deliveries.as_slice().first()?, lot.term);
        let delivery = lot.deliveries.next()?;
        if lot.deliveries.len() == 0 {
            self.lots.pop_front();
        }
        Some(Held { delivery, lease })
    }

    /// Takes out those whose leases are to be renewed by now.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Held> {
        let mut due = Vec::new();
        self.lots.retain_mut(|lot| {
            let is_due = lot.term.renew_at <= now;
            if is_due {
                let held = |delivery| Held { lease: Lease::of(&delivery, lot.term), delivery };
                due.extend(lot.deliveries.by_ref().map(held));
            }
            !is_due
        });
        for _ in 0..self.held.len() {
            if let Some(held) = self.held.pop_front() {
                if held.lease.renew_at <= now {
                    due.push(held);
                } else {
                    self.held.push_back(held);
                }
            }
        }
        due
    }

    /// Takes out all.
    pub(crate) fn drain(&mut self) -> Vec<Held> {
        std::iter::from_fn(|| self.next()).collect()
    }
}
