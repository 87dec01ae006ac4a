//! Messages that were taken, with their leases, and what is to become of them.
pub(crate) mod backlog;
pub(crate) mod renewal;

use std::{time::Duration, vec};

use crate::{
    queue::{Delivery, MessageId, Receipt},
    queue_listener::{
        QueueListenerConfig,
        settle::{How, Settling},
    },
    time::{Instant, nanos},
};

/// The lease of one message, as this side counts it: from the moment at which the request was sent.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    pub(crate) source: usize,
    pub(crate) id: MessageId,
    pub(crate) receipt: Receipt,
    pub(crate) deliveries: u32,
    /// Number of the attempt that this delivery is or would be: 1 at first.
    pub(crate) attempt: u32,
    /// Deliveries in a row before this one that ended without being settled, but for those that this process explains.
    pub(crate) expiries: u32,
    /// When it ends.
    pub(crate) until: Instant,
    /// When it is to be renewed.
    pub(crate) renew_at: Instant,
    /// Another has it, or may have it.
    pub(crate) lost: bool,
}

/// The visibility time-out and its parts, divided once.
pub(crate) struct Parts {
    whole: Duration,
    third: Duration,
    /// What a message needs of its lease to begin, besides the time that it takes.
    pub(crate) margin: Duration,
    pub(crate) half: Duration,
    /// Messages that begin within this are taken ahead.
    pub(crate) ahead: u64,
}

impl Parts {
    pub(crate) fn of(config: &QueueListenerConfig) -> Self {
        let whole = config.visibility;
        let ahead = nanos(AHEAD.min(whole / 16));
        Self { whole, third: whole / 3, margin: config.lease_margin(), half: whole / 2, ahead }
    }
}

/// A run takes ahead what it begins within a sixteenth of the visibility time-out, and within this.
const AHEAD: Duration = Duration::from_secs(1);

/// The term of the leases of one poll.
#[derive(Clone, Copy)]
pub(crate) struct Term {
    source: usize,
    until: Instant,
    pub(crate) renew_at: Instant,
}

impl Term {
    /// The term of leases on this source that were asked for at this time.
    #[inline]
    pub(crate) fn since(since: Instant, source: usize, parts: &Parts) -> Self {
        Self { source, until: since + parts.whole, renew_at: since + parts.third }
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
            until: term.until,
            renew_at: term.renew_at,
            lost: false,
        }
    }

    /// It was renewed by a request that was sent then.
    pub(crate) fn renewed(&mut self, since: Instant, visibility: Duration) {
        (self.until, self.renew_at) = (since + visibility, since + visibility / 3);
    }

    /// Whether the message was handed back before without being tried.
    pub(crate) const fn was_released(&self) -> bool {
        self.deliveries > self.attempt
    }

    #[inline]
    pub(crate) fn settling(self, how: How) -> Settling {
        let Self { source, id, receipt, deliveries, attempt, expiries, until, .. } = self;
        // One that is given up was counted out when its lease was lost.
        let (may_be_settled, is_overdue) = (false, matches!(how, How::GiveUp));
        Settling { source, id, receipt, deliveries, attempt, expiries, until, how, may_be_settled, is_overdue }
    }
}

/// The messages of one poll, or what is left of them.
pub(crate) struct Lot {
    pub(crate) deliveries: vec::IntoIter<Delivery>,
    pub(crate) term: Term,
}

/// A message that waits for a handler.
pub(crate) struct Held {
    pub(crate) delivery: Delivery,
    pub(crate) lease: Lease,
}
