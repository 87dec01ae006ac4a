//! The contract of every [`Queue`].
mod ages;
mod attempts;
mod contents;
mod deliveries;
mod edges;
mod forwards;
mod groups;
mod history;
mod letters;
mod receipts;
mod restarts;
mod sends;
mod views;
mod visibility;
mod waits;

pub use ages::*;
pub use attempts::*;
pub use contents::*;
pub use deliveries::*;
pub use edges::*;
pub use forwards::*;
pub use groups::*;
pub use history::*;
pub use letters::*;
pub use receipts::*;
pub use restarts::*;
pub use sends::*;
pub use views::*;
pub use visibility::*;
pub use waits::*;

use std::{
    collections::BTreeSet,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use super::{
    Fixture, HOUR, NOON,
    case::suite,
    fixture::{in_time, stretched},
    later, noise,
};
use crate::{
    port::{Capability, ErrorClass, Failure, PortErrorKind},
    queue::{
        Address, AttemptError, AttemptErrorKind, Delivery, Depth, ErrorHistory, Message, MessageId, Queue, QueueError,
        QueueExt, Receipt, Receive, Settle,
    },
    race::{First, both, race, yield_now},
    time::{Clock, Timestamp},
};

suite! {
    $
    /// Defines one named test for each case of the queue's contract.
    queue_conformance;
    /// Returns the cases of the queue's contract.
    queue::cases -> dyn Queue;
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
    only_a_delivery_whose_handling_had_begun_is_a_crash,
    a_mark_ends_with_its_delivery_or_is_taken_back,
    dead_letters_keep_crashes_and_no_mark,
    a_stale_receipt_marks_nothing,
    attempts_are_counted_message_by_message,
    an_old_receipt_cannot_release,
    a_dead_letter_keeps_its_counts,
    infinite_durations_hide_messages_forever,
    messages_that_are_large_together_all_come,
    a_queue_is_told_from_its_dead_letters_by_its_identity,
    errors_of_attempts_come_with_later_deliveries,
    a_dead_letter_has_the_errors_of_its_attempts,
    of_many_errors_the_first_and_the_latest_are_kept,
    an_old_receipt_adds_no_error,
    a_queue_that_cannot_forward_refuses_it,
    a_forward_ends_the_delivery_and_sends_its_messages,
    a_forward_without_messages_completes,
    an_old_receipt_forwards_nothing,
    a_forward_to_another_backend_changes_nothing,
    a_forward_of_an_invalid_message_changes_nothing,
    a_queue_forwards_to_itself_behind_its_group,
    a_queue_forwards_to_its_dead_letters_and_back,
    a_duplicate_counts_as_forwarded,
    forwarded_messages_have_their_groups_and_delays,
    one_forward_reaches_several_queues,
    forwards_are_answered_one_by_one,
    a_full_target_refuses_a_forward_alone,
    a_waiting_receiver_gets_what_is_forwarded,
    of_many_forwarders_none_loses_or_doubles_a_message,
    the_age_of_a_delivery_counts_from_its_acceptance,
    a_dead_letter_keeps_its_age,
    no_step_of_the_wall_clock_changes_an_age,
    a_deduplication_id_is_remembered_for_the_stated_window,
    an_id_is_remembered_for_the_stated_window,
    the_visibility_begins_with_each_delivery,
    each_receive_has_a_visibility_of_its_own,
    an_extension_sets_the_time_that_is_left,
    an_extension_is_no_delivery,
    an_extension_is_of_one_message,
    a_message_may_return_later_than_it_would_have_expired,
    long_durations_are_not_capped,
    a_late_settlement_takes_effect_or_is_refused,
    no_receipt_and_no_id_is_given_twice,
    a_receipt_of_another_queue_is_stale,
    nonsense_is_a_stale_receipt,
    a_receipt_is_valid_at_each_handle,
    a_receipt_settles_once,
    many_settlements_are_answered_in_one_request,
    ids_are_those_of_the_messages_in_their_order,
    a_send_with_an_invalid_message_accepts_none,
    a_dropped_send_accepts_all_messages_or_none,
    a_full_queue_refuses_all_messages_of_a_send,
    duplicates_within_a_request_are_accepted_once,
    each_of_many_ids_is_remembered,
    keys_that_look_alike_are_different,
    a_message_that_returns_stays_the_first_of_its_group,
    a_delayed_message_holds_its_group,
    messages_that_wait_hide_no_other_message,
    dead_letters_of_a_group_come_in_its_order,
    a_purged_group_begins_anew,
    receives_at_once_keep_groups_and_messages_apart,
    a_message_keeps_its_parts,
    a_large_body_comes_through_whole,
    a_message_has_the_time_of_its_acceptance,
    a_waiting_receiver_sees_what_is_given_back,
    a_waiting_receiver_sees_a_delayed_message,
    a_waiting_receiver_sees_the_next_of_a_group,
    a_receiver_that_waits_for_dead_letters_is_woken,
    each_of_several_waiting_receivers_gets_a_message,
    a_wait_does_not_end_with_nothing_while_a_message_is_visible,
    the_visibility_begins_when_the_wait_ends,
    a_receive_that_is_dropped_midway_loses_nothing,
    the_depth_follows_each_message,
    a_peek_shows_the_oldest_messages_as_they_are,
    a_receive_returns_between_one_and_its_maximum,
    dead_letters_are_received_as_messages_are,
    a_dead_letter_is_visible_at_once,
    a_dead_letter_does_not_become_one_again,
    a_message_with_a_known_id_becomes_a_dead_letter,
    a_purge_of_dead_letters_leaves_the_queue,
    what_was_accepted_outlives_a_restart,
    hidden_messages_return_after_a_restart,
    duplicates_are_known_after_a_restart,
    groups_keep_their_order_over_a_restart,
    a_lost_connection_loses_no_message,
    hidden_messages_follow_no_wall_clock,
}

const MINUTE: Duration = Duration::from_secs(60);
/// Short, for backends that live in real time; longer when a case is run again.
fn a_while() -> Duration {
    stretched(Duration::from_millis(200))
}

fn ok<T>(result: Result<T, QueueError>) -> T {
    result.unwrap_or_else(|error| panic!("the backend failed: {error}"))
}

async fn send(queue: &dyn Queue, bodies: &[&str]) {
    send_many(queue, bodies.iter().map(|body| Message::new(body.to_string())).collect()).await;
}

/// Sends messages in as few requests as the queue takes, and returns their ids.
async fn send_many(queue: &dyn Queue, messages: Vec<Message>) -> Vec<MessageId> {
    let mut ids = Vec::new();
    for some in messages.chunks(queue.capabilities().max_batch().max(1)) {
        ids.extend(ok(queue.send(some.to_vec()).await));
    }
    ids
}

/// Takes messages until there are `max`, or the queue has no more: one request may return fewer.
/// Those of a queue that states no order are in the order of their bodies.
async fn take(queue: &dyn Queue, max: usize, visibility: Duration) -> Vec<Delivery> {
    let mut taken = Vec::new();
    while taken.len() < max {
        let receive = queue.receive(Receive::new(max - taken.len(), visibility));
        let some = ok(in_time("a receive without a wait", receive).await);
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

/// Polls a future at most so many times, and drops it.
async fn poll_times<F: Future>(times: usize, future: F) {
    let mut future = pin!(future);
    for _ in 0..times {
        if poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await {
            return;
        }
        yield_now().await;
    }
}

async fn one(queue: &dyn Queue, visibility: Duration) -> Delivery {
    take(queue, 1, visibility).await.pop().unwrap_or_else(|| panic!("the queue returned no message"))
}

fn bodies(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(|d| String::from_utf8_lossy(&d.body).into_owned()).collect()
}

/// Returns the bodies in their order as texts, where the contract promises no other.
fn sorted(deliveries: &[Delivery]) -> Vec<String> {
    let mut bodies = bodies(deliveries);
    bodies.sort_unstable();
    bodies
}

fn dead(queue: &dyn Queue) -> Arc<dyn Queue> {
    queue.dead_letters().unwrap_or_else(|| panic!("the queue has no dead letters"))
}

/// Asserts that the backend refuses a capability that it does not state.
fn assert_unsupported<T: std::fmt::Debug>(result: Result<T, QueueError>) {
    let error = result.expect_err("the capability is not stated");
    assert_eq!(error.backend().map(crate::port::PortError::kind), Some(PortErrorKind::Unsupported), "{error}");
}
