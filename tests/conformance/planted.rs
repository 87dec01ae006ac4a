//! Queues with one planted fault each. The named case of the suite must find it.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use steadfast::{
    port::BoxFuture,
    queue::{Delivery, InMemoryQueue, Queue, QueueError, Receipt, Receive, Settle},
    testing::conformance::{Fixture, queue, run},
    time::Clock,
};

/// The fault of a queue.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Nothing,
    ReleaseCounts,
    ReleaseIgnoresItsDelay,
    ReleaseClearsTheCounts,
    AbandonIsFree,
    AbandonLeavesExpiries,
    ExpiryIsFree,
    ExpiryIsNotTold,
    OldReceiptReleases,
    DeadLetterForgets,
}

#[derive(Debug)]
struct Planted(Arc<dyn Queue>, Fault, AtomicBool);

impl Queue for Planted {
    forward_queue! { 0: capabilities, identity, send, extend, depth, peek, purge }

    fn receive<'a>(&'a self, receive: Receive) -> BoxFuture<'a, Result<Vec<Delivery>, QueueError>> {
        Box::pin(async move {
            let mut taken = self.0.receive(receive).await?;
            for delivery in &mut taken {
                match self.1 {
                    Fault::AbandonIsFree => delivery.attempts = delivery.expiries,
                    Fault::AbandonLeavesExpiries if delivery.attempts > 3 => delivery.expiries = 3,
                    Fault::ExpiryIsFree => delivery.attempts -= delivery.expiries,
                    Fault::ExpiryIsNotTold => delivery.expiries = 0,
                    Fault::ReleaseClearsTheCounts if self.2.load(Ordering::Relaxed) => delivery.expiries = 0,
                    Fault::DeadLetterForgets if delivery.reason.is_some() => delivery.attempts = 0,
                    _ => {}
                }
            }
            Ok(taken)
        })
    }
    fn settle<'a>(
        &'a self,
        mut settlements: Vec<(Receipt, Settle)>,
    ) -> BoxFuture<'a, Result<Vec<Result<(), QueueError>>, QueueError>> {
        for (_, how) in &mut settlements {
            if let Settle::Release { after } = how {
                match self.1 {
                    Fault::ReleaseCounts => *how = Settle::abandon(*after),
                    Fault::ReleaseIgnoresItsDelay => *after = Duration::ZERO,
                    _ => {}
                }
            }
        }
        Box::pin(async move {
            let releases = settlements.iter().any(|(_, how)| matches!(how, Settle::Release { .. }));
            self.2.fetch_or(releases, Ordering::Relaxed);
            let mut settled = self.0.settle(settlements).await?;
            if releases && matches!(self.1, Fault::OldReceiptReleases) {
                settled.iter_mut().for_each(|settled| *settled = Ok(()));
            }
            Ok(settled)
        })
    }
    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        let dead = self.0.dead_letters()?;
        Some(Arc::new(Self(dead, self.1, AtomicBool::new(false))))
    }
}

/// `true` if the case finds the fault.
macro_rules! finds {
    ($case:ident, $fault:expr) => {{
        let case = || {
            run(async {
                let (clock, time) = Clock::manual();
                let queue = Arc::new(InMemoryQueue::builder("jobs").clock(&clock).build());
                let queue: Arc<dyn Queue> = Arc::new(Planted(queue, $fault, AtomicBool::new(false)));
                queue::$case(&Fixture::new(queue).on_manual_time(&time)).await;
            });
        };
        std::panic::catch_unwind(case).is_err()
    }};
}

#[test]
fn each_planted_fault_of_the_counts_is_found_by_a_case() {
    assert!(finds!(a_released_delivery_is_no_attempt, Fault::ReleaseCounts));
    assert!(finds!(a_released_delivery_is_no_attempt, Fault::ReleaseIgnoresItsDelay));
    assert!(finds!(an_abandoned_delivery_is_an_attempt, Fault::AbandonIsFree));
    assert!(finds!(an_expired_delivery_is_an_attempt_without_an_explanation, Fault::AbandonLeavesExpiries));
    assert!(finds!(an_expired_delivery_is_an_attempt_without_an_explanation, Fault::ExpiryIsFree));
    assert!(finds!(an_expired_delivery_is_an_attempt_without_an_explanation, Fault::ExpiryIsNotTold));
    assert!(finds!(attempts_are_counted_message_by_message, Fault::ExpiryIsNotTold));
    assert!(finds!(a_release_keeps_the_counts_as_they_were, Fault::ReleaseClearsTheCounts));
    assert!(finds!(an_old_receipt_cannot_release, Fault::OldReceiptReleases));
    assert!(finds!(a_dead_letter_keeps_its_counts, Fault::DeadLetterForgets));
}

#[test]
fn without_a_fault_no_case_finds_one() {
    assert!(!finds!(a_released_delivery_is_no_attempt, Fault::Nothing));
    assert!(!finds!(an_abandoned_delivery_is_an_attempt, Fault::Nothing));
    assert!(!finds!(an_expired_delivery_is_an_attempt_without_an_explanation, Fault::Nothing));
    assert!(!finds!(attempts_are_counted_message_by_message, Fault::Nothing));
    assert!(!finds!(a_release_keeps_the_counts_as_they_were, Fault::Nothing));
    assert!(!finds!(an_old_receipt_cannot_release, Fault::Nothing));
    assert!(!finds!(a_dead_letter_keeps_its_counts, Fault::Nothing));
}
