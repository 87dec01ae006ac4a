//! Messages that wait for a handler. They belong to no task: the next free task takes the next
//! message, so that none waits behind a blocked task. A state machine that takes `now` as an
//! argument.
use std::collections::VecDeque;

use crate::{
    queue_listener::lease::{Batch, Lease, LeasedDelivery},
    time::Instant,
};

#[derive(Default)]
pub(crate) struct Backlog {
    /// Batches as received. All leases of a batch have the same age, and a `Lease` is made only
    /// when its message is taken.
    batches: VecDeque<Batch>,
    /// Messages whose leases were renewed.
    leased: VecDeque<LeasedDelivery>,
    /// Number of messages taken out. If it does not change between two checks, all tasks are
    /// blocked.
    taken: u64,
}

impl Backlog {
    pub(crate) fn len(&self) -> usize {
        self.batches.iter().map(|batch| batch.deliveries.len()).sum::<usize>() + self.leased.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty() && self.leased.is_empty()
    }

    pub(crate) const fn taken(&self) -> u64 {
        self.taken
    }

    pub(crate) fn push(&mut self, batch: Batch) {
        if batch.deliveries.len() > 0 {
            self.batches.push_back(batch);
        }
    }

    /// Puts back a message whose lease was renewed; it goes before all batches.
    pub(crate) fn put_back(&mut self, leased: LeasedDelivery) {
        self.leased.push_back(leased);
    }

    /// Takes the next message.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<LeasedDelivery> {
        self.taken = self.taken.wrapping_add(1);
        if let Some(leased) = self.leased.pop_front() {
            return Some(leased);
        }
        let batch = self.batches.front_mut()?;
        let lease = Lease::of(batch.deliveries.as_slice().first()?, batch.term);
        let delivery = batch.deliveries.next()?;
        if batch.deliveries.len() == 0 {
            self.batches.pop_front();
        }
        Some(LeasedDelivery { delivery, lease })
    }

    /// Takes out the messages whose leases are due for renewal.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<LeasedDelivery> {
        let mut due = Vec::new();
        self.batches.retain_mut(|batch| {
            let is_due = batch.term.renew_at <= now;
            if is_due {
                let leased = |delivery| LeasedDelivery { lease: Lease::of(&delivery, batch.term), delivery };
                due.extend(batch.deliveries.by_ref().map(leased));
            }
            !is_due
        });
        for _ in 0..self.leased.len() {
            if let Some(leased) = self.leased.pop_front() {
                if leased.lease.renew_at <= now {
                    due.push(leased);
                } else {
                    self.leased.push_back(leased);
                }
            }
        }
        due
    }

    /// Takes out all messages.
    pub(crate) fn drain(&mut self) -> Vec<LeasedDelivery> {
        std::iter::from_fn(|| self.next()).collect()
    }
}
