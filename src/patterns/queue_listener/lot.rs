//! Messages that were taken, with their leases, and what is to become of them.
use std::{time::Duration, vec};

use super::QueueListenerConfig;
use crate::{
    queue::{Delivery, MessageId, Receipt, Settle},
    time::{Instant, nanos},
};

/// The lease of one message, as this side counts it: from the moment at which the request was sent.
#[derive(Debug, Clone)]
pub(super) struct Lease {
    pub(super) source: usize,
    pub(super) id: MessageId,
    pub(super) receipt: Receipt,
    pub(super) deliveries: u32,
    /// Number of the attempt that this delivery is or would be: 1 at first.
    pub(super) attempt: u32,
    /// Deliveries in a row before this one that ended without being settled, but for those that this process explains.
    pub(super) expiries: u32,
    /// When it ends.
    pub(super) until: Instant,
    /// When it is to be renewed.
    pub(super) renew_at: Instant,
    /// Another has it, or may have it.
    pub(super) lost: bool,
}

/// The visibility time-out and its parts, divided once.
pub(super) struct Parts {
    whole: Duration,
    third: Duration,
    /// What a message needs of its lease to begin, besides the time that it takes.
    pub(super) margin: Duration,
    pub(super) half: Duration,
    /// Messages that begin within this are taken ahead.
    pub(super) ahead: u64,
}

impl Parts {
    pub(super) fn of(config: &QueueListenerConfig) -> Self {
        let whole = config.visibility;
        let ahead = nanos(AHEAD.min(whole / 16));
        Self { whole, third: whole / 3, margin: config.lease_margin(), half: whole / 2, ahead }
    }
}

/// A run takes ahead what it begins within a sixteenth of the visibility time-out, and within this.
const AHEAD: Duration = Duration::from_secs(1);

/// The term of the leases of one poll.
#[derive(Clone, Copy)]
pub(super) struct Term {
    source: usize,
    until: Instant,
    pub(super) renew_at: Instant,
}

impl Term {
    /// The term of leases on this source that were asked for at this time.
    #[inline]
    pub(super) fn since(since: Instant, source: usize, parts: &Parts) -> Self {
        Self { source, until: since + parts.whole, renew_at: since + parts.third }
    }
}

impl Lease {
    #[inline]
    pub(super) fn of(delivery: &Delivery, term: Term) -> Self {
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
    pub(super) fn renewed(&mut self, since: Instant, visibility: Duration) {
        (self.until, self.renew_at) = (since + visibility, since + visibility / 3);
    }

    /// Whether the message was handed back before without being tried.
    pub(super) const fn was_released(&self) -> bool {
        self.deliveries > self.attempt
    }

    #[inline]
    pub(super) fn settling(self, how: How) -> Settling {
        let Self { source, id, receipt, deliveries, attempt, expiries, until, .. } = self;
        // One that is given up was counted out when its lease was lost.
        let (may_be_settled, is_overdue) = (false, matches!(how, How::GiveUp));
        Settling { source, id, receipt, deliveries, attempt, expiries, until, how, may_be_settled, is_overdue }
    }
}

/// The messages of one poll, or what is left of them.
pub(super) struct Lot {
    pub(super) deliveries: vec::IntoIter<Delivery>,
    pub(super) term: Term,
}

/// A message that waits for a handler.
pub(super) struct Held {
    pub(super) delivery: Delivery,
    pub(super) lease: Lease,
}

/// What is to become of a message, and what to say when it has.
pub(super) struct Settling {
    pub(super) source: usize,
    pub(super) id: MessageId,
    pub(super) receipt: Receipt,
    pub(super) deliveries: u32,
    pub(super) attempt: u32,
    pub(super) expiries: u32,
    pub(super) until: Instant,
    pub(super) how: How,
    /// A request to settle it was sent, and no answer came.
    pub(super) may_be_settled: bool,
    /// It is settled beside everything else, and not counted as in hand any more: the first request
    /// failed, or its lease is lost.
    pub(super) is_overdue: bool,
}

#[derive(Clone)]
pub(super) enum How {
    /// It was handled.
    Complete,
    /// It was handled before.
    Duplicate,
    /// It failed, and comes back after so long.
    Retry {
        after: Duration,
        error: String,
    },
    DeadLetter {
        reason: String,
    },
    /// No handler began with it.
    HandBack,
    /// What its handler needs refused it, or is away: it comes back after so long, uncounted.
    Refused {
        after: Duration,
        error: String,
    },
    /// Its lease is lost, which was told: a release that the queue still honours explains the end of the delivery.
    GiveUp,
}

impl How {
    pub(super) fn settle(&self) -> Settle {
        match self {
            Self::Complete | Self::Duplicate => Settle::Complete,
            Self::Retry { after, .. } => Settle::abandon(*after),
            Self::DeadLetter { reason } => Settle::dead_letter(reason.clone()),
            Self::HandBack | Self::GiveUp => Settle::release(Duration::ZERO),
            Self::Refused { after, .. } => Settle::release(*after),
        }
    }
}
