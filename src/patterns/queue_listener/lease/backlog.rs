//! Messages that wait for a handler. They belong to no task: the next free task takes the next
//! message, so that none waits behind a blocked task. A state machine that takes `now` as an
//! argument.
use std::collections::VecDeque;

use crate::{
    queue::Receipt,
    queue_listener::lease::{Batch, Lease, LeasedDelivery},
    time::Instant,
};

/// Maximum number of suspect messages that wait in one run. Others are released for a while.
const SUSPECTS: usize = 64;

#[derive(Default)]
pub(crate) struct Backlog {
    /// Batches as received. All leases of a batch have the same age, and a `Lease` is made only
    /// when its message is taken.
    batches: VecDeque<Batch>,
    /// Messages whose leases were renewed.
    leased: VecDeque<LeasedDelivery>,
    /// Suspect messages. They begin one at a time.
    suspects: VecDeque<LeasedDelivery>,
    /// The suspect message that is handled and whose beginning is recorded.
    probation: Option<(usize, Receipt)>,
    /// Time before which no suspect message begins, because an earlier one was alone for long.
    rests_until: Option<Instant>,
    /// Number of messages taken out. If it does not change between two checks, all tasks are
    /// blocked.
    taken: u64,
}

impl Backlog {
    /// Returns the number of messages that tasks may take now.
    pub(crate) fn len(&self) -> usize {
        let others = self.batches.iter().map(|batch| batch.deliveries.len()).sum::<usize>() + self.leased.len();
        others + usize::from(self.has_suspect())
    }

    /// Returns `true` if tasks may take no message now.
    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty() && self.leased.is_empty() && !self.has_suspect()
    }

    /// Returns `true` if no lease is to be kept here.
    pub(crate) fn holds_none(&self) -> bool {
        self.is_empty() && self.suspects.is_empty()
    }

    /// Returns `true` if a suspect message may begin.
    fn has_suspect(&self) -> bool {
        self.probation.is_none() && self.rests_until.is_none() && !self.suspects.is_empty()
    }

    /// Lets no suspect message begin before this time, or a later one that was set before.
    pub(crate) fn rest_until(&mut self, until: Instant) {
        self.rests_until = self.rests_until.max(Some(until));
    }

    /// Adds a suspect message. Returns it if too many wait.
    pub(crate) fn push_suspect(&mut self, leased: LeasedDelivery) -> Option<LeasedDelivery> {
        if self.suspects.len() >= SUSPECTS {
            return Some(leased);
        }
        self.suspects.push_back(leased);
        None
    }

    /// Returns `true` if suspect messages wait for the end of another's probation.
    pub(crate) fn has_waiting_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// Returns `true` if this message is on probation.
    pub(crate) fn is_on_probation(&self, lease: &Lease) -> bool {
        self.probation.as_ref().is_some_and(|(source, receipt)| *source == lease.source && *receipt == lease.receipt)
    }

    /// Puts a suspect message on probation if no other is, and none waits for that.
    pub(crate) fn try_probation(&mut self, lease: &Lease) -> bool {
        let may = self.probation.is_none() && self.rests_until.is_none() && self.suspects.is_empty();
        if may {
            self.probation = Some((lease.source, lease.receipt.clone()));
        }
        may
    }

    /// Ends the probation of this message. Returns `false` if it is not on probation.
    pub(crate) fn end_probation(&mut self, lease: &Lease) -> bool {
        let was = self.is_on_probation(lease);
        if was {
            self.probation = None;
        }
        was
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

    /// Takes the next message: a suspect one first, if none is on probation.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<LeasedDelivery> {
        if self.has_suspect()
            && let Some(leased) = self.suspects.pop_front()
        {
            self.taken = self.taken.wrapping_add(1);
            self.probation = Some((leased.lease.source, leased.lease.receipt.clone()));
            return Some(leased);
        }
        self.next_trusted()
    }

    /// Takes the next message that is not suspect.
    #[inline]
    pub(crate) fn next_trusted(&mut self) -> Option<LeasedDelivery> {
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
        self.rests_until = self.rests_until.filter(|until| *until > now);
        let mut due = Vec::new();
        self.batches.retain_mut(|batch| {
            let is_due = batch.term.renew_at <= now;
            if is_due {
                let leased = |delivery| LeasedDelivery { lease: Lease::of(&delivery, batch.term), delivery };
                due.extend(batch.deliveries.by_ref().map(leased));
            }
            !is_due
        });
        for renewed in [&mut self.leased, &mut self.suspects] {
            for _ in 0..renewed.len() {
                if let Some(leased) = renewed.pop_front() {
                    if leased.lease.renew_at <= now {
                        due.push(leased);
                    } else {
                        renewed.push_back(leased);
                    }
                }
            }
        }
        due
    }

    /// Takes out all messages.
    pub(crate) fn drain(&mut self) -> Vec<LeasedDelivery> {
        let suspects = std::mem::take(&mut self.suspects);
        std::iter::from_fn(|| self.next_trusted()).chain(suspects).collect()
    }
}
