//! The contract of every [`Queue`].
mod attempts;
mod deliveries;
mod edges;

pub use attempts::*;
pub use deliveries::*;
pub use edges::*;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::Fixture;
use crate::{
    port::{Capability, Failure, PortErrorKind},
    queue::{Delivery, Message, Queue, QueueError, QueueExt, Receive, Settle},
    race::race,
};

/// Defines one named test for each case of the queue's contract.
#[macro_export]
macro_rules! queue_conformance {
    ($make:expr) => {
        $crate::conformance_cases!(queue, $make;
            an_empty_queue_gives_nothing_at_once,
            a_sent_message_is_received_through_a_second_handle_and_completed,
            messages_come_in_the_order_of_sending,
            a_received_message_is_hidden_until_its_time_is_over,
            an_old_receipt_can_do_nothing,
            an_extended_message_stays_hidden,
            an_abandoned_message_returns_after_its_delay,
            a_delayed_message_is_hidden_at_first,
            a_group_is_handed_out_one_at_a_time_in_order,
            a_duplicate_is_accepted_once,
            a_duplicate_of_one_group_is_accepted_once,
            a_dead_letter_is_in_one_queue_with_its_reason,
            a_dead_letter_can_be_sent_again,
            settlements_are_answered_one_by_one,
            a_waiting_receiver_is_woken,
            a_waiting_receiver_sees_what_comes_back,
            a_wait_that_is_over_gives_nothing,
            a_dropped_receive_loses_nothing,
            any_bytes_and_texts_come_through,
            oversized_requests_are_refused_whole,
            invalid_arguments_are_refused,
            depth_counts_visible_delayed_and_in_flight_messages,
            a_peek_takes_nothing,
            a_purge_leaves_nothing_but_dead_letters,
            of_many_receivers_each_message_has_one,
            a_released_delivery_is_no_attempt,
            an_abandoned_delivery_is_an_attempt,
            an_expired_delivery_is_an_attempt_without_an_explanation,
            a_release_keeps_the_counts_as_they_were,
            attempts_are_counted_message_by_message,
            an_old_receipt_cannot_release,
            a_dead_letter_keeps_its_counts,
            infinite_durations_hide_messages_forever,
            messages_that_are_large_together_all_come,
            a_queue_is_told_from_its_dead_letters_by_its_identity,
        );
    };
}

const MINUTE: Duration = Duration::from_secs(60);
/// Short, for backends that live in real time.
const SHORT: Duration = Duration::from_millis(200);

fn ok<T>(result: Result<T, QueueError>) -> T {
    result.unwrap_or_else(|error| panic!("the backend failed: {error}"))
}

async fn send(queue: &dyn Queue, bodies: &[&str]) {
    ok(queue.send(bodies.iter().map(|body| Message::new(body.to_string())).collect()).await);
}

/// Takes messages until there are `max`, or the queue has no more: one request may return fewer.
/// Those of a queue that states no order are in the order of their bodies.
async fn take(queue: &dyn Queue, max: usize, visibility: Duration) -> Vec<Delivery> {
    let mut taken = Vec::new();
    while taken.len() < max {
        let some = ok(queue.receive(Receive::new(max - taken.len(), visibility)).await);
        if some.is_empty() {
            break;
        }
        taken.extend(some);
        assert!(taken.len() <= max, "more were handed out than were asked for");
    }
    if !queue.capabilities().has(Capability::Ordered) {
        taken.sort_by(|one, other| one.body.cmp(&other.body));
    }
    taken
}

async fn one(queue: &dyn Queue, visibility: Duration) -> Delivery {
    take(queue, 1, visibility).await.pop().unwrap_or_else(|| panic!("the queue returned no message"))
}

fn bodies(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(|d| String::from_utf8_lossy(&d.body).into_owned()).collect()
}

fn dead(queue: &dyn Queue) -> Arc<dyn Queue> {
    queue.dead_letters().unwrap_or_else(|| panic!("the queue has no dead letters"))
}

/// Asserts that the backend refuses a capability that it does not state.
fn assert_unsupported<T: std::fmt::Debug>(result: Result<T, QueueError>) {
    let error = result.expect_err("the capability is not stated");
    assert_eq!(error.backend().map(crate::port::PortError::kind), Some(PortErrorKind::Unsupported), "{error}");
}
