//! Leases of received messages, as this process counts them.
pub(crate) mod backlog;
pub(crate) mod renewal;

use std::{time::Duration, vec};

use crate::{
    queue::{Delivery, MessageId, Receipt},
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
    /// Number of the attempt that this delivery is or would be, starting at 1.
    pub(crate) attempt: u32,
    /// Consecutive earlier deliveries that ended without a settlement, except those that this
    /// process explains.
    pub(crate) expiries: u32,
    /// Those of them whose handler had begun.
    pub(crate) crashes: u32,
    /// Number of attempts before this one of which nothing tells that their handlers began. The
    /// first one before a recorded death is taken for a death, too.
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
        Self {
            source: term.source,
            id: delivery.id.clone(),
            receipt: delivery.receipt.clone(),
            deliveries: delivery.deliveries,
            attempt: delivery.attempts.saturating_add(1),
            expiries: delivery.expiries,
            crashes: delivery.crashes,
            untried: delivery.expiries.saturating_sub(delivery.crashes).saturating_sub(u32::from(delivery.crashes > 0)),
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

    /// Returns `true` if the attempts before this one are used up, as far as their handlers began.
    #[inline]
    pub(crate) const fn exceeds(&self, max_attempts: u32) -> bool {
        self.attempt.saturating_sub(self.untried) > max_attempts
    }

    /// Returns `true` if the message was released before.
    pub(crate) const fn was_released(&self) -> bool {
        self.deliveries > self.attempt
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
