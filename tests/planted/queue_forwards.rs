//! Faults in forwards, ages and the stated window of a queue, in a wrapper of the queue in memory.
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::assert_each_fault_is_found;
use steadfast::{
    port::{Capabilities, Capability},
    queue::{Address, Delivery, InMemoryQueue, Message, Queue, QueueError, QueueFuture, Receipt, Receive, Settle},
    testing::conformance::{Fixture, queue},
    time::{Clock, Timestamp},
};

/// The fault of a queue.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    CapabilityIsNotStated,
    MessagesAreLost,
    DeliveryStays,
    MessagesAreSentTwice,
    MessagesAreReversed,
    HeadersAreLost,
    GroupIsLost,
    DelayIsLost,
    DeduplicationIdIsLost,
    DuplicatesAreRefused,
    EmptyForwardIsRefused,
    OldReceiptSends,
    ForeignAddressIsSkipped,
    InvalidMessageIsSkipped,
    RefusalFailsTheRequest,
    OnlyTheFirstTargetIsReached,
    DeadLettersHaveNoAddress,
    AddressIsOfTheHandle,
    AgeIsZero,
    AgeIsOfTheWallClock,
    AgeBeginsWithTheFirstDelivery,
    AgeOfADeadLetterBeginsAnew,
    WindowIsNotStated,
    WindowIsOverstated,
}

#[derive(Debug)]
struct Planted {
    queue: Arc<dyn Queue>,
    neighbour: Arc<dyn Queue>,
    fault: Fault,
    clock: Clock,
    is_second: bool,
}

impl Planted {
    /// Returns the settlements as the fault changes them.
    fn change(&self, how: &mut Settle) {
        let Settle::Forward { messages } = how else { return };
        let first = messages.first().map(|(address, _)| address.clone());
        let is_known = |address: &Address| *address != Address::new("another backend");
        for (_, message) in messages.iter_mut() {
            match self.fault {
                Fault::HeadersAreLost => message.headers = BTreeMap::new(),
                Fault::GroupIsLost => message.group = None,
                Fault::DelayIsLost => message.delay = Duration::ZERO,
                Fault::DeduplicationIdIsLost => message.deduplication_id = None,
                _ => {}
            }
        }
        match self.fault {
            Fault::MessagesAreLost => messages.clear(),
            Fault::MessagesAreReversed => messages.reverse(),
            Fault::MessagesAreSentTwice => messages.extend(messages.clone()),
            Fault::ForeignAddressIsSkipped => messages.retain(|(address, _)| is_known(address)),
            Fault::InvalidMessageIsSkipped => {
                messages.retain(|(_, message)| message.group.as_deref() != Some("") && message.size() < 64 << 20);
            }
            Fault::OnlyTheFirstTargetIsReached => messages.retain(|(address, _)| Some(address) == first.as_ref()),
            _ => {}
        }
    }
}

impl Queue for Planted {
    forward_queue! { queue: identity, send, extend, depth, peek, purge }

    fn capabilities(&self) -> Capabilities {
        let can = self.queue.capabilities();
        match self.fault {
            Fault::CapabilityIsNotStated => can.without(Capability::Forward),
            Fault::WindowIsNotStated => {
                Capabilities::of("planted", &[Capability::Deduplication, Capability::Ordered]).and(&can)
            }
            Fault::WindowIsOverstated => can.deduplicating_for(Duration::from_secs(600)),
            _ => can,
        }
    }
    fn address(&self) -> Option<Address> {
        match self.fault {
            Fault::AddressIsOfTheHandle if self.is_second => Some(Address::new("the second handle")),
            _ => self.queue.address(),
        }
    }
    fn receive<'a>(&'a self, receive: Receive) -> QueueFuture<'a, Vec<Delivery>> {
        Box::pin(async move {
            let mut taken = self.queue.receive(receive).await?;
            for delivery in &mut taken {
                match self.fault {
                    Fault::AgeIsZero => delivery.age = Duration::ZERO,
                    Fault::AgeIsOfTheWallClock => {
                        let millis = |wall: Timestamp| wall.as_millis();
                        let age = millis(self.clock.wall()).saturating_sub(millis(delivery.sent_at));
                        delivery.age = Duration::from_millis(age);
                    }
                    Fault::AgeBeginsWithTheFirstDelivery if delivery.deliveries == 1 => delivery.age = Duration::ZERO,
                    Fault::AgeOfADeadLetterBeginsAnew if delivery.reason.is_some() => delivery.age = Duration::ZERO,
                    _ => {}
                }
            }
            Ok(taken)
        })
    }
    fn settle<'a>(&'a self, mut settlements: Vec<(Receipt, Settle)>) -> QueueFuture<'a, Vec<Result<(), QueueError>>> {
        Box::pin(async move {
            let mut answers = Vec::new();
            for (receipt, mut how) in settlements.drain(..) {
                self.change(&mut how);
                let Settle::Forward { messages } = &how else {
                    answers.extend(self.queue.settle(vec![(receipt, how)]).await?);
                    continue;
                };
                let target = self.neighbour.address();
                let to_neighbour = messages.iter().filter(|(address, _)| Some(address) == target.as_ref());
                let copies: Vec<Message> = to_neighbour.map(|(_, message)| message.clone()).collect();
                let refused = match self.fault {
                    Fault::EmptyForwardIsRefused => messages.is_empty(),
                    Fault::DuplicatesAreRefused => {
                        let known = self.neighbour.peek(10).await?.len();
                        known > 0 && messages.iter().any(|(_, message)| message.deduplication_id.is_some())
                    }
                    _ => false,
                };
                if refused {
                    answers.push(Err(QueueError::LeaseLost));
                    continue;
                }
                if self.fault == Fault::DeliveryStays {
                    self.neighbour.send(copies).await?;
                    answers.push(Ok(()));
                    continue;
                }
                let answer = self.queue.settle(vec![(receipt, how)]).await?.remove(0);
                match &answer {
                    Err(QueueError::LeaseLost) if self.fault == Fault::OldReceiptSends => {
                        self.neighbour.send(copies).await?;
                    }
                    Err(QueueError::Failed(error)) if self.fault == Fault::RefusalFailsTheRequest => {
                        return Err(error.clone().into());
                    }
                    _ => {}
                }
                answers.push(answer);
            }
            Ok(answers)
        })
    }
    fn dead_letters(&self) -> Option<Arc<dyn Queue>> {
        let queue = self.queue.dead_letters()?;
        if self.fault == Fault::DeadLettersHaveNoAddress {
            return Some(Arc::new(NoAddress(queue)));
        }
        let (neighbour, clock) = (self.neighbour.clone(), self.clock.clone());
        Some(Arc::new(Self { queue, neighbour, clock, ..*self }))
    }
}

#[derive(Debug)]
struct NoAddress(Arc<dyn Queue>);

impl Queue for NoAddress {
    forward_queue! { 0: capabilities, identity, send, receive, extend, depth, peek, purge, dead_letters, settle }

    fn address(&self) -> Option<Address> {
        None
    }
}

const TABLE: &[(Fault, &str)] = &[
    (Fault::CapabilityIsNotStated, "a_queue_that_cannot_forward_refuses_it"),
    (Fault::MessagesAreLost, "a_forward_ends_the_delivery_and_sends_its_messages"),
    (Fault::DeliveryStays, "a_forward_ends_the_delivery_and_sends_its_messages"),
    (Fault::MessagesAreSentTwice, "a_forward_ends_the_delivery_and_sends_its_messages"),
    (Fault::MessagesAreReversed, "a_forward_ends_the_delivery_and_sends_its_messages"),
    (Fault::HeadersAreLost, "a_forward_ends_the_delivery_and_sends_its_messages"),
    (Fault::GroupIsLost, "forwarded_messages_have_their_groups_and_delays"),
    (Fault::DelayIsLost, "forwarded_messages_have_their_groups_and_delays"),
    (Fault::DeduplicationIdIsLost, "a_duplicate_counts_as_forwarded"),
    (Fault::DuplicatesAreRefused, "a_duplicate_counts_as_forwarded"),
    (Fault::EmptyForwardIsRefused, "a_forward_without_messages_completes"),
    (Fault::OldReceiptSends, "an_old_receipt_forwards_nothing"),
    (Fault::OldReceiptSends, "forwards_are_answered_one_by_one"),
    (Fault::OldReceiptSends, "of_many_forwarders_none_loses_or_doubles_a_message"),
    (Fault::ForeignAddressIsSkipped, "a_forward_to_another_backend_changes_nothing"),
    (Fault::InvalidMessageIsSkipped, "a_forward_of_an_invalid_message_changes_nothing"),
    (Fault::RefusalFailsTheRequest, "forwards_are_answered_one_by_one"),
    (Fault::OnlyTheFirstTargetIsReached, "one_forward_reaches_several_queues"),
    (Fault::DeadLettersHaveNoAddress, "a_queue_forwards_to_its_dead_letters_and_back"),
    (Fault::AddressIsOfTheHandle, "a_queue_forwards_to_itself_behind_its_group"),
    (Fault::AgeIsZero, "the_age_of_a_delivery_counts_from_its_acceptance"),
    (Fault::AgeIsOfTheWallClock, "no_step_of_the_wall_clock_changes_an_age"),
    (Fault::AgeBeginsWithTheFirstDelivery, "the_age_of_a_delivery_counts_from_its_acceptance"),
    (Fault::AgeOfADeadLetterBeginsAnew, "a_dead_letter_keeps_its_age"),
    (Fault::WindowIsNotStated, "a_deduplication_id_is_remembered_for_the_stated_window"),
    (Fault::WindowIsOverstated, "a_deduplication_id_is_remembered_for_the_stated_window"),
];

#[test]
fn each_planted_fault_of_forwards_and_ages_is_found_by_a_case() {
    assert_each_fault_is_found(&queue::cases(), TABLE, async |fault| {
        let (clock, time) = Clock::manual();
        let make = |name: &str| -> Arc<dyn Queue> { Arc::new(InMemoryQueue::builder(name).clock(&clock).build()) };
        let (jobs, neighbour) = (make("jobs"), make("others"));
        let planted = |is_second| -> Arc<dyn Queue> {
            let (queue, neighbour) = (jobs.clone(), neighbour.clone());
            match fault {
                Some(fault) => Arc::new(Planted { queue, neighbour, fault, clock: clock.clone(), is_second }),
                None => queue,
            }
        };
        let fixture = Fixture::new(planted(false)).with_second_handle(planted(true));
        fixture.with_neighbour(neighbour.clone()).on_manual_time(&time)
    });
}
