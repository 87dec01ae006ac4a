//! Decisions on messages that this process could not settle.
//!
//! If settle requests fail while messages can be received, each handled message is delivered again,
//! and the queue counts an expiry, as if its handler had killed the process. This table keeps the
//! decision of the handler, so that the message is settled by it. It also keeps the number of
//! expiries that this explains, so that the message is not suspect.
use std::collections::{HashMap, VecDeque};

use crate::{
    queue::MessageId,
    queue_listener::{
        lease::{Lease, LeasedDelivery},
        settle::{Decision, PendingSettlement},
    },
};

/// Maximum number of messages kept. The oldest is forgotten, and is suspect when it is delivered
/// again.
const MOST: usize = 4096;

/// Messages by source and id.
#[derive(Default)]
pub(crate) struct Unsettled {
    known: HashMap<(usize, MessageId), KnownMessage>,
    /// In the order in which the messages were first noted.
    order: VecDeque<(usize, MessageId)>,
}

struct KnownMessage {
    /// Number of the delivery noted last, and of the expiries before it.
    deliveries: u32,
    expiries: u32,
    /// Number of the expiries that belong to deliveries of this process, which survived them.
    explained: u32,
    /// Decision on that delivery, if its handler made one.
    decision: Option<Decision>,
}

impl Unsettled {
    /// Records a delivery that could not be settled, or not yet.
    pub(crate) fn note(&mut self, settlement: &PendingSettlement) {
        let PendingSettlement { lease: Lease { source, id, deliveries, expiries, .. }, decision, .. } = settlement;
        let decision = match decision {
            Decision::Complete
            | Decision::Forward(_)
            | Decision::Duplicate
            | Decision::Retry { .. }
            | Decision::Snooze { .. }
            | Decision::DeadLetter { .. }
            | Decision::Cancelled { .. } => Some(decision.clone()),
            Decision::Release { .. } | Decision::Refused { .. } | Decision::LeaseLost => None,
        };
        let key = (*source, id.clone());
        let explained = match self.known.get(&key) {
            // A late retry of an earlier delivery knows less than the newest one.
            Some(known) if known.deliveries > *deliveries => return,
            Some(known) if known.deliveries == *deliveries => known.explained,
            _ => 0,
        };
        let expiries = expiries.saturating_add(explained);
        let known = KnownMessage { deliveries: *deliveries, expiries, explained, decision };
        if self.known.insert(key.clone(), known).is_none() {
            self.order.push_back(key);
            if self.order.len() > MOST
                && let Some(oldest) = self.order.pop_front()
            {
                self.known.remove(&oldest);
            }
        }
    }

    /// Returns how many expiries of a redelivered message are explained, and the decision on it.
    fn recall(&mut self, source: usize, id: &MessageId, deliveries: u32, expiries: u32) -> (u32, Option<Decision>) {
        let Some(known) = self.known.get_mut(&(source, id.clone())) else { return (0, None) };
        // Another process may have settled it since, which reset its expiries.
        let explained = if expiries < known.expiries { 0 } else { known.explained };
        let is_next = deliveries == known.deliveries.wrapping_add(1) && expiries > known.expiries;
        let explained = explained.saturating_add(u32::from(is_next)).min(expiries);
        let decision = match known.decision.take() {
            Some(decision @ (Decision::Complete | Decision::Forward(_) | Decision::Duplicate)) => Some(decision),
            decision => decision.filter(|_| is_next),
        };
        *known = KnownMessage { deliveries, expiries, explained, decision: None };
        (explained, decision)
    }

    /// Forgets the results of a forward that was settled after all, or is settled otherwise: they
    /// may be large.
    pub(crate) fn forget_results(&mut self, settlement: &PendingSettlement) {
        let key = (settlement.lease.source, settlement.lease.id.clone());
        if let Some(known) = self.known.get_mut(&key) {
            known.decision = None;
        }
    }

    /// Takes out the messages with an earlier decision, and subtracts the explained expiries from
    /// the others.
    pub(crate) fn recall_all(&mut self, leased: &mut Vec<LeasedDelivery>) -> Vec<PendingSettlement> {
        let (mut decided, mut rest) = (Vec::new(), Vec::with_capacity(leased.len()));
        for LeasedDelivery { delivery, mut lease } in leased.drain(..) {
            let (explained, decision) = self.recall(lease.source, &lease.id, lease.deliveries, lease.expiries);
            lease.expiries -= explained;
            lease.crashes = lease.crashes.saturating_sub(explained);
            match decision {
                Some(decision) => decided.push(lease.settlement(decision)),
                None => rest.push(LeasedDelivery { delivery, lease }),
            }
        }
        *leased = rest;
        decided
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        queue::{AttemptErrorKind, Delivery, Receipt},
        queue_listener::{
            QueueListenerConfig,
            lease::{Parts, Term},
            settle::decision::Failed,
        },
        time::{Instant, Timestamp},
    };

    fn settlement(n: usize, deliveries: u32, expiries: u32, decision: Decision) -> PendingSettlement {
        let (id, receipt) = (MessageId::new(format!("{n}")), Receipt::new("r"));
        let mut delivery = Delivery::new(id, receipt, "".into(), deliveries, Timestamp::default());
        delivery.expiries = expiries;
        let term = Term::since(Instant::default(), 0, &Parts::of(&QueueListenerConfig::default()));
        PendingSettlement { is_overdue: true, ..Lease::of(&delivery, term).settlement(decision) }
    }

    fn recall(unsettled: &mut Unsettled, deliveries: u32, expiries: u32) -> (u32, Option<&'static str>) {
        let (explained, decision) = unsettled.recall(0, &MessageId::new("1"), deliveries, expiries);
        let name = |decision| match decision {
            Decision::Complete => "complete",
            Decision::Retry { .. } => "retry",
            Decision::DeadLetter { .. } => "dead letter",
            _ => "other",
        };
        (explained, decision.map(name))
    }

    fn retry() -> Decision {
        let failure = Failed { at: Timestamp::default(), kind: AttemptErrorKind::Failed, error: "e".into() };
        Decision::Retry { after: Duration::ZERO, failure: Box::new(failure) }
    }

    #[test]
    fn a_decision_is_for_the_next_delivery_and_a_completion_for_any() {
        let mut unsettled = Unsettled::default();
        unsettled.note(&settlement(1, 1, 0, retry()));
        assert_eq!(recall(&mut unsettled, 2, 1), (1, Some("retry")));
        assert_eq!(recall(&mut unsettled, 3, 2), (2, None), "the delivery of the decision itself was not settled");
        // Another process had the delivery in between, whose end is not explained here.
        unsettled.note(&settlement(1, 3, 0, retry()));
        assert_eq!(recall(&mut unsettled, 5, 4), (2, None));
        unsettled.note(&settlement(1, 5, 2, Decision::Complete));
        assert_eq!(recall(&mut unsettled, 9, 6), (2, Some("complete")));
        assert_eq!(recall(&mut Unsettled::default(), 2, 1), (0, None));
    }

    #[test]
    fn what_ended_without_a_decision_is_explained_as_often_as_this_process_could_not_settle_it() {
        let mut unsettled = Unsettled::default();
        for delivery in 1..10 {
            unsettled.note(&settlement(1, delivery, 0, Decision::RELEASE));
            assert_eq!(recall(&mut unsettled, delivery + 1, delivery), (delivery, None));
        }
        // The release was applied after all, so it caused no expiry.
        unsettled.note(&settlement(1, 10, 0, Decision::RELEASE));
        assert_eq!(recall(&mut unsettled, 11, 9), (9, None));
        // An abandon by another process resets the expiries.
        assert_eq!(recall(&mut unsettled, 13, 1), (0, None));
    }

    #[test]
    fn an_earlier_delivery_that_fails_again_changes_nothing() {
        let mut unsettled = Unsettled::default();
        unsettled.note(&settlement(1, 1, 0, Decision::RELEASE));
        assert_eq!(recall(&mut unsettled, 2, 1), (1, None));
        unsettled.note(&settlement(1, 1, 0, Decision::RELEASE));
        unsettled.note(&settlement(1, 2, 0, retry()));
        assert_eq!(recall(&mut unsettled, 3, 2), (2, Some("retry")));
    }

    #[test]
    fn no_more_messages_than_the_bound_are_kept_in_mind() {
        let mut unsettled = Unsettled::default();
        for n in 0..3 * MOST {
            unsettled.note(&settlement(n, 1, 0, Decision::Complete));
            unsettled.note(&settlement(n, 2, 1, Decision::Complete));
        }
        assert_eq!((unsettled.known.len(), unsettled.order.len()), (MOST, MOST));
        assert!(unsettled.known.contains_key(&(0, MessageId::new(format!("{}", 3 * MOST - 1)))));
    }
}
