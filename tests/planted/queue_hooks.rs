//! Faults of a queue at restarts and lost connections, in a wrapper of the queue in memory.
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use steadfast::{
    port::{Capabilities, Capability, PortError, PortErrorKind},
    queue::{
        Address, Delivery, InMemoryQueue, Message, MessageId, Queue, QueueError, QueueExt, QueueFuture, Receipt,
        Receive, Settle,
    },
    testing::conformance::{Fixture, queue},
    time::Clock,
};
use tokio::sync::watch;

use super::assert_each_fault_is_found;

/// The faults, and the case that finds each.
const FAULTS: &[(Fault, &str)] = {
    use Fault::*;
    &[
        (RestartsLoseMessages, "what_was_accepted_outlives_a_restart"),
        (RestartsShowHiddenMessages, "what_was_accepted_outlives_a_restart"),
        (RestartsCompleteHiddenMessages, "what_was_accepted_outlives_a_restart"),
        (RestartsHideMessagesForEver, "hidden_messages_return_after_a_restart"),
        (RestartsBeginVisibilityAnew, "hidden_messages_return_after_a_restart"),
        (RestartsInvalidateReceipts, "what_was_accepted_outlives_a_restart"),
        (RestartsForgetCounts, "what_was_accepted_outlives_a_restart"),
        (RestartsForgetDuplicates, "duplicates_are_known_after_a_restart"),
        (RestartsLoseDeadLetters, "what_was_accepted_outlives_a_restart"),
        (RestartsChangeTheIdentity, "what_was_accepted_outlives_a_restart"),
        (RestartsForgetGroups, "groups_keep_their_order_over_a_restart"),
        (DurabilityIsNotTested, "what_was_accepted_outlives_a_restart"),
        (ALostConnectionBlocksTheReceive, "a_lost_connection_loses_no_message"),
        (ALostConnectionLosesWhatWasTaken, "a_lost_connection_loses_no_message"),
        (ALostConnectionHidesWhatWasTaken, "a_lost_connection_loses_no_message"),
        (ALostConnectionEndsTheHandle, "a_lost_connection_loses_no_message"),
    ]
};

/// A fault of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[rustfmt::skip]
enum Fault {
    RestartsLoseMessages, RestartsShowHiddenMessages, RestartsCompleteHiddenMessages, RestartsHideMessagesForEver,
    RestartsBeginVisibilityAnew, RestartsInvalidateReceipts, RestartsForgetCounts, RestartsForgetDuplicates, RestartsLoseDeadLetters,
    RestartsChangeTheIdentity, RestartsForgetGroups, DurabilityIsNotTested, ALostConnectionBlocksTheReceive,
    ALostConnectionLosesWhatWasTaken, ALostConnectionHidesWhatWasTaken, ALostConnectionEndsTheHandle,
}

#[derive(Debug, Clone)]
struct Planted {
    queue: InMemoryQueue,
    fault: Option<Fault>,
    shared: Arc<Shared>,
    /// Number of times at which the connections of this handle were cut.
    cuts: watch::Sender<u32>,
}

#[derive(Debug, Default)]
struct Shared {
    restarts: AtomicU32,
    /// Deliveries that were handed out: the number of restarts before, and the receipt.
    taken: Mutex<Vec<(u32, Receipt)>>,
}

impl Planted {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn restarts(&self) -> u32 {
        self.shared.restarts.load(Ordering::Relaxed)
    }

    async fn restart(&self) {
        self.shared.restarts.fetch_add(1, Ordering::Relaxed);
        let taken: Vec<_> = self.shared.taken.lock().unwrap().iter().map(|(_, receipt)| receipt.clone()).collect();
        match self.fault {
            Some(Fault::RestartsLoseMessages) => drop(self.queue.purge().await),
            Some(Fault::RestartsLoseDeadLetters) => drop(self.queue.dead_letters().unwrap().purge().await),
            _ => {}
        }
        // A settled delivery's receipt is refused, which is fine here.
        for receipt in taken {
            let _ = match self.fault {
                Some(Fault::RestartsShowHiddenMessages) => self.queue.release(&receipt, Duration::ZERO).await,
                Some(Fault::RestartsCompleteHiddenMessages) => self.queue.complete(&receipt).await,
                Some(Fault::RestartsHideMessagesForEver) => self.queue.extend(&receipt, Duration::MAX).await,
                Some(Fault::RestartsBeginVisibilityAnew) => {
                    self.queue.extend(&receipt, Duration::from_millis(400)).await
                }
                _ => Ok(()),
            };
        }
    }

    fn unavailable(&self) -> QueueError {
        PortError::new(PortErrorKind::Unavailable, "connection lost").into()
    }

    async fn try_receive(&self, receive: Receive) -> Result<Vec<Delivery>, QueueError> {
        if self.is(Fault::ALostConnectionEndsTheHandle) && *self.cuts.borrow() > 0 {
            return Err(self.unavailable());
        }
        let mut cuts = self.cuts.subscribe();
        let took = tokio::select! {
            biased;
            taken = self.queue.receive(receive) => Some(taken?),
            cut = cuts.changed(), if !receive.wait.is_zero() => {
                cut.unwrap();
                None
            }
        };
        let Some(mut taken) = took else {
            let what_came =
                || self.queue.receive(Receive::new(1, Duration::from_secs(3600)).wait(Duration::from_secs(600)));
            match self.fault {
                Some(Fault::ALostConnectionBlocksTheReceive) => std::future::pending().await,
                Some(Fault::ALostConnectionLosesWhatWasTaken) => {
                    for delivery in what_came().await? {
                        self.queue.complete(&delivery.receipt).await?;
                    }
                }
                Some(Fault::ALostConnectionHidesWhatWasTaken) => drop(what_came().await?),
                _ => {}
            }
            return Err(self.unavailable());
        };
        let restarts = self.restarts();
        self.shared.taken.lock().unwrap().extend(taken.iter().map(|delivery| (restarts, delivery.receipt.clone())));
        if self.is(Fault::RestartsForgetCounts) && restarts > 0 {
            for delivery in &mut taken {
                (delivery.deliveries, delivery.attempts) = (1, 0);
            }
        }
        if self.is(Fault::RestartsForgetGroups) && restarts > 0 {
            taken.iter_mut().for_each(|delivery| delivery.group = None);
        }
        Ok(taken)
    }
}

impl Queue for Planted {
    forward_queue! { queue: depth, peek, purge, dead_letters }

    fn capabilities(&self) -> Capabilities {
        let can = self.queue.capabilities();
        if self.is(Fault::DurabilityIsNotTested) { can.with(Capability::Durable) } else { can }
    }

    fn address(&self) -> Option<Address> {
        self.queue.address()
    }

    fn identity(&self) -> String {
        match self.restarts() {
            restarts if self.is(Fault::RestartsChangeTheIdentity) => format!("{} {restarts}", self.queue.identity()),
            _ => self.queue.identity(),
        }
    }

    fn send<'a>(&'a self, mut messages: Vec<Message>) -> QueueFuture<'a, Vec<MessageId>> {
        for message in &mut messages {
            if let (Some(Fault::RestartsForgetDuplicates), Some(id)) = (self.fault, &mut message.deduplication_id) {
                *id = format!("{id} {}", self.restarts());
            }
        }
        self.queue.send(messages)
    }

    fn receive<'a>(&'a self, receive: Receive) -> QueueFuture<'a, Vec<Delivery>> {
        Box::pin(self.try_receive(receive))
    }

    fn settle<'a>(&'a self, settlements: Vec<(Receipt, Settle)>) -> QueueFuture<'a, Vec<Result<(), QueueError>>> {
        Box::pin(async move {
            let restarts = self.restarts();
            let is_old = |receipt: &Receipt| {
                let taken = self.shared.taken.lock().unwrap();
                taken.iter().any(|(taken_at, of)| of == receipt && *taken_at < restarts)
            };
            if self.is(Fault::RestartsInvalidateReceipts) && settlements.iter().any(|(receipt, _)| is_old(receipt)) {
                return Ok(settlements.iter().map(|_| Err(QueueError::LeaseLost)).collect());
            }
            self.queue.settle(settlements).await
        })
    }

    fn extend<'a>(&'a self, receipt: &'a Receipt, visibility: Duration) -> QueueFuture<'a, ()> {
        self.queue.extend(receipt, visibility)
    }
    fn mark_begun<'a>(&'a self, receipt: &'a Receipt, visibility: Duration, begun: bool) -> QueueFuture<'a, ()> {
        self.queue.mark_begun(receipt, visibility, begun)
    }
}

#[test]
fn each_fault_of_a_queue_at_a_restart_or_a_lost_connection_is_found_by_a_case() {
    assert_each_fault_is_found(&queue::cases(), FAULTS, async |fault| {
        let (clock, time) = Clock::manual();
        let queue = InMemoryQueue::builder("jobs").clock(&clock).build();
        let shared = Arc::<Shared>::default();
        let handle =
            move || Planted { queue: queue.clone(), fault, shared: shared.clone(), cuts: watch::Sender::new(0) };
        let first = handle();
        let fixture = Fixture::<dyn Queue>::new(Arc::new(first.clone())).with_second_handle(Arc::new(handle()));
        let fixture = fixture.on_manual_time(&time).with_cut(async move || first.cuts.send_modify(|cuts| *cuts += 1));
        if fault == Some(Fault::DurabilityIsNotTested) {
            return fixture;
        }
        fixture.with_restart(async move || {
            handle().restart().await;
            Fixture::<dyn Queue>::new(Arc::new(handle())).with_second_handle(Arc::new(handle()))
        })
    });
}
