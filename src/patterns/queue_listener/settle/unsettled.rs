//! What this process knows of messages that come back because it could not settle them.
//!
//! While settlement requests fail though messages can be received, each message whose handler ended comes back, and the queue counts
//! an expiry, as if its handler had killed the process. Here is what its handler decided, so that it is settled by that, and how
//! many of its expiries that explains, so that it is no suspect.
use std::collections::{HashMap, VecDeque};

use crate::{
    queue::MessageId,
    queue_listener::{
        lease::Held,
        run::state::Shift,
        settle::{How, Settling},
    },
};

/// More are not kept in mind: the oldest is forgotten, and is a suspect when it comes back.
const MOST: usize = 4096;

/// Messages by their queue and id.
#[derive(Default)]
pub(crate) struct Unsettled {
    known: HashMap<(usize, MessageId), Known>,
    /// In the order in which they were noted; one that is noted again stays where it is.
    order: VecDeque<(usize, MessageId)>,
}

struct Known {
    /// The delivery that was noted last, and the expiries before it.
    deliveries: u32,
    expiries: u32,
    /// So many of the expiries are of deliveries that this process had and lives on after.
    explained: u32,
    /// What is to become of the message, where that delivery decided it.
    how: Option<How>,
}

impl Unsettled {
    /// A delivery ended in this way, and could not be settled, or not yet.
    fn note(&mut self, settling: &Settling) {
        let Settling { source, id, deliveries, expiries, how, .. } = settling;
        let how = match how {
            How::Complete | How::Duplicate | How::Retry { .. } | How::DeadLetter { .. } => Some(how.clone()),
            How::HandBack | How::Refused { .. } | How::GiveUp => None,
        };
        let key = (*source, id.clone());
        let explained = match self.known.get(&key) {
            // An earlier delivery, which is tried yet, says less than the newest one.
            Some(known) if known.deliveries > *deliveries => return,
            Some(known) if known.deliveries == *deliveries => known.explained,
            _ => 0,
        };
        let expiries = expiries.saturating_add(explained);
        let known = Known { deliveries: *deliveries, expiries, explained, how };
        if self.known.insert(key.clone(), known).is_none() {
            self.order.push_back(key);
            if self.order.len() > MOST
                && let Some(oldest) = self.order.pop_front()
            {
                self.known.remove(&oldest);
            }
        }
    }

    /// A message came back: how many of its expiries are explained, and what was decided on it.
    fn recall(&mut self, source: usize, id: &MessageId, deliveries: u32, expiries: u32) -> (u32, Option<How>) {
        let Some(known) = self.known.get_mut(&(source, id.clone())) else { return (0, None) };
        // Another may have settled it since, and then its expiries began anew.
        let explained = if expiries < known.expiries { 0 } else { known.explained };
        let is_next = deliveries == known.deliveries.wrapping_add(1) && expiries > known.expiries;
        let explained = explained.saturating_add(u32::from(is_next)).min(expiries);
        let how = match known.how.take() {
            Some(how @ (How::Complete | How::Duplicate)) => Some(how),
            how => how.filter(|_| is_next),
        };
        *known = Known { deliveries, expiries, explained, how: None };
        (explained, how)
    }
}

impl Shift {
    /// Notes deliveries that could not be settled.
    #[cold]
    pub(crate) fn note_unsettled(&self, settlings: &[Settling]) {
        let mut unsettled = self.inner.unsettled.lock();
        settlings.iter().for_each(|settling| unsettled.note(settling));
    }

    /// Takes out the messages on which a decision was made before, and clears the others of what this process explains.
    pub(crate) fn recall(&self, held: &mut Vec<Held>) -> Vec<Settling> {
        let mut unsettled = self.inner.unsettled.lock();
        let (mut decided, mut rest) = (Vec::new(), Vec::with_capacity(held.len()));
        for Held { delivery, mut lease } in held.drain(..) {
            let (explained, how) = unsettled.recall(lease.source, &lease.id, lease.deliveries, lease.expiries);
            lease.expiries -= explained;
            match how {
                Some(how) => decided.push(lease.settling(how)),
                None => rest.push(Held { delivery, lease }),
            }
        }
        *held = rest;
        decided
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{queue::Receipt, time::Instant};

    fn settling(n: usize, deliveries: u32, expiries: u32, how: How) -> Settling {
        Settling {
            source: 0,
            id: MessageId::new(format!("{n}")),
            receipt: Receipt::new("r"),
            deliveries,
            attempt: 1,
            expiries,
            until: Instant::default(),
            how,
            may_be_settled: false,
            is_overdue: true,
        }
    }

    fn recall(unsettled: &mut Unsettled, deliveries: u32, expiries: u32) -> (u32, Option<&'static str>) {
        let (explained, how) = unsettled.recall(0, &MessageId::new("1"), deliveries, expiries);
        let name = |how| match how {
            How::Complete => "complete",
            How::Retry { .. } => "retry",
            How::DeadLetter { .. } => "dead letter",
            _ => "other",
        };
        (explained, how.map(name))
    }

    fn retry() -> How {
        How::Retry { after: Duration::ZERO, error: "e".into() }
    }

    #[test]
    fn a_decision_is_for_the_next_delivery_and_a_completion_for_any() {
        let mut unsettled = Unsettled::default();
        unsettled.note(&settling(1, 1, 0, retry()));
        assert_eq!(recall(&mut unsettled, 2, 1), (1, Some("retry")));
        assert_eq!(recall(&mut unsettled, 3, 2), (2, None), "the delivery of the decision itself was not settled");
        // Another process had it in between: its end is not explained here.
        unsettled.note(&settling(1, 3, 0, retry()));
        assert_eq!(recall(&mut unsettled, 5, 4), (2, None));
        unsettled.note(&settling(1, 5, 2, How::Complete));
        assert_eq!(recall(&mut unsettled, 9, 6), (2, Some("complete")));
        assert_eq!(recall(&mut Unsettled::default(), 2, 1), (0, None));
    }

    #[test]
    fn what_ended_without_a_decision_is_explained_as_often_as_this_process_could_not_settle_it() {
        let mut unsettled = Unsettled::default();
        for delivery in 1..10 {
            unsettled.note(&settling(1, delivery, 0, How::HandBack));
            assert_eq!(recall(&mut unsettled, delivery + 1, delivery), (delivery, None));
        }
        // It was released after all: no expiry came of that.
        unsettled.note(&settling(1, 10, 0, How::HandBack));
        assert_eq!(recall(&mut unsettled, 11, 9), (9, None));
        // Abandoned by another, it begins anew.
        assert_eq!(recall(&mut unsettled, 13, 1), (0, None));
    }

    #[test]
    fn an_earlier_delivery_that_fails_again_changes_nothing() {
        let mut unsettled = Unsettled::default();
        unsettled.note(&settling(1, 1, 0, How::HandBack));
        assert_eq!(recall(&mut unsettled, 2, 1), (1, None));
        unsettled.note(&settling(1, 1, 0, How::HandBack));
        unsettled.note(&settling(1, 2, 0, retry()));
        assert_eq!(recall(&mut unsettled, 3, 2), (2, Some("retry")));
    }

    #[test]
    fn no_more_messages_than_the_bound_are_kept_in_mind() {
        let mut unsettled = Unsettled::default();
        for n in 0..3 * MOST {
            unsettled.note(&settling(n, 1, 0, How::Complete));
            unsettled.note(&settling(n, 2, 1, How::Complete));
        }
        assert_eq!((unsettled.known.len(), unsettled.order.len()), (MOST, MOST));
        assert!(unsettled.known.contains_key(&(0, MessageId::new(format!("{}", 3 * MOST - 1)))));
    }
}
