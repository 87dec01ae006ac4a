//! Leases of received messages, as this process counts them.
pub(crate) mod backlog;
pub(crate) mod renewal;

use std::{time::Duration, vec};

use crate::{
    queue::{Delivery, MessageId, Receipt, untried},
    queue_listener::{
        QueueListenerConfig,
        settle::{Decision, PendingSettlement},
    },
    time::{Instant, nanos},
};

/// The lease of one message, counted from the moment at which its request was sent.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    pub(crate) source: usize,
    pub(crate) id: MessageId,
    pub(crate) receipt: Receipt,
    pub(crate) deliveries: u32,
    /// Number of the attempt that this delivery is or would be, starting at 1, without those of
    /// which nothing tells that their handlers began.
    pub(crate) attempt: u32,
    /// Consecutive earlier deliveries that ended without a settlement, except those that this
    /// process explains.
    pub(crate) expiries: u32,
    /// Those of them whose handler had begun.
    pub(crate) crashes: u32,
    /// Number of earlier deliveries of which nothing tells that their handlers began.
    pub(crate) untried: u32,
    /// `true` if a suspect message has begun, so that its probation ends with this lease.
    pub(crate) begun: bool,
    /// Time from which on a suspect message kept others from beginning.
    pub(crate) alone_since: Instant,
    /// End of the lease.
    pub(crate) until: Instant,
    /// Time of the next renewal.
    pub(crate) renew_at: Instant,
    /// Time of the request that received the message, to which its age refers.
    pub(crate) received: Instant,
    /// `true` if another process has the message or may have it.
    pub(crate) lost: bool,
}

/// Durations derived from the visibility time-out, divided once.
pub(crate) struct Parts {
    whole: Duration,
    pub(crate) third: Duration,
    /// Time that must be left of a lease for its handler to begin, besides the time that the
    /// handler takes.
    pub(crate) margin: Duration,
    pub(crate) half: Duration,
    /// Nanoseconds of work that a run prefetches.
    pub(crate) ahead: u64,
}

impl Parts {
    pub(crate) fn of(config: &QueueListenerConfig) -> Self {
        let whole = config.visibility;
        let ahead = nanos(AHEAD.min(whole / 16));
        Self { whole, third: whole / 3, margin: config.lease_margin(), half: whole / 2, ahead }
    }
}

/// Maximum time of work that a run prefetches; a sixteenth of the visibility time-out is the other
/// bound.
const AHEAD: Duration = Duration::from_secs(1);

/// The end and the renewal time that all leases of one poll share.
#[derive(Clone, Copy)]
pub(crate) struct Term {
    source: usize,
    until: Instant,
    pub(crate) renew_at: Instant,
    received: Instant,
}

impl Term {
    /// Returns the term of leases of this source whose request was sent at this time.
    #[inline]
    pub(crate) fn since(since: Instant, source: usize, parts: &Parts) -> Self {
        Self { source, until: since + parts.whole, renew_at: since + parts.third, received: since }
    }
}

impl Lease {
    #[inline]
    pub(crate) fn of(delivery: &Delivery, term: Term) -> Self {
        let untried = untried(delivery.expiries, delivery.crashes);
        Self {
            source: term.source,
            id: delivery.id.clone(),
            receipt: delivery.receipt.clone(),
            deliveries: delivery.deliveries,
            attempt: delivery.attempts.saturating_sub(untried).saturating_add(1),
            expiries: delivery.expiries,
            crashes: delivery.crashes,
            untried,
            begun: false,
            alone_since: term.received,
            until: term.until,
            renew_at: term.renew_at,
            received: term.received,
            lost: false,
        }
    }

    /// Returns the age of the message now, which has waited here since it was received.
    #[inline]
    pub(crate) fn age_of(&self, delivery: &Delivery, now: Instant) -> Duration {
        delivery.age.saturating_add(now - self.received)
    }

    /// Records a renewal whose request was sent at this time.
    pub(crate) fn renewed(&mut self, since: Instant, visibility: Duration) {
        (self.until, self.renew_at) = (since + visibility, since + visibility / 3);
    }

    /// Returns `true` if the end of an earlier delivery is unexplained: its handler may have ended
    /// its process.
    #[inline]
    pub(crate) const fn is_suspect(&self) -> bool {
        self.expiries > 0
    }

    /// Returns `true` if the attempts before this one are used up.
    #[inline]
    pub(crate) const fn exceeds(&self, max_attempts: u32) -> bool {
        self.attempt > max_attempts
    }

    /// Returns the number of earlier releases. Untried deliveries before a failed attempt count as
    /// releases: the queue no longer tells them apart.
    pub(crate) const fn releases(&self) -> u32 {
        self.deliveries.saturating_sub(self.attempt.saturating_add(self.untried))
    }

    #[inline]
    pub(crate) fn settlement(self, decision: Decision) -> PendingSettlement {
        let Self { source, id, receipt, deliveries, attempt, expiries, until, .. } = self;
        // A lost lease was already subtracted from the outstanding messages.
        let (may_be_settled, is_overdue) = (false, matches!(decision, Decision::LeaseLost));
        PendingSettlement {
            source,
            id,
            receipt,
            deliveries,
            attempt,
            expiries,
            until,
            decision,
            may_be_settled,
            is_overdue,
            found_full: false,
            held: None,
        }
    }
}

/// The messages of one poll that no task has taken yet.
pub(crate) struct Batch {
    pub(crate) deliveries: vec::IntoIter<Delivery>,
    pub(crate) term: Term,
}

/// A received message with its lease.
pub(crate) struct LeasedDelivery {
    pub(crate) delivery: Delivery,
    pub(crate) lease: Lease,
}
