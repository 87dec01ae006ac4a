//! The faults that are planted in the plain queue, and the cases that find them.
use std::sync::Arc;

use steadfast::{
    queue::Queue,
    testing::conformance::{Fixture, queue},
    time::Clock,
};

use super::{
    LIMIT, assert_each_fault_is_found,
    queue::{BOUND, NaiveQueue},
};

/// Defines the faults, the table of each with the case that finds it, and what the contract allows.
macro_rules! faults {
    (allowed { $($(#[$of:meta])* $allowed:ident,)+ } $($(#[$about:meta])* $fault:ident => $case:ident,)+) => {
        /// The fault of a queue.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Fault {
            Nothing,
            $($(#[$of])* $allowed,)+
            $($(#[$about])* $fault,)+
        }

        /// Each fault, and the case that finds it.
        const FAULTS: &[(Fault, &str)] = &[$((Fault::$fault, stringify!($case)),)+];

        /// What the contract allows: no case may find it.
        const ALLOWED: &[Fault] = &[$(Fault::$allowed,)+];
    };
}

faults! {
    allowed {
        OneMessageIsReturnedAtATime,
        /// The latest message is the first, without `Ordered`.
        MessagesComeInAnyOrder,
        /// A delivery ends with its visibility time-out.
        LateSettlementsAreRefused,
        /// Each receiver looks once a second, without `Push`.
        ReceiversPoll,
        /// No groups, delays, de-duplication, forwards or errors.
        CapabilitiesAreFew,
        ReceiptsAndIdsAreTexts,
        APurgeForgetsIds,
        /// For a third longer than stated.
        IdsAreRememberedForLonger,
    }
    // Sending.
    /// Each message is a request of its own, and a dropped send leaves a part.
    MessagesAreSentOneByOne => a_dropped_send_accepts_all_messages_or_none,
    /// Those before an invalid message are accepted.
    MessagesAreCheckedOneByOne => a_send_with_an_invalid_message_accepts_none,
    /// A refused send remembers its de-duplication ids, so that the next one loses its messages.
    RefusedIdsAreRemembered => a_send_with_an_invalid_message_accepts_none,
    EmptyKeysAreAccepted => a_send_with_an_invalid_message_accepts_none,
    LongKeysAreAccepted => a_send_with_an_invalid_message_accepts_none,
    SizesAreNotChecked => oversized_requests_are_refused_whole,
    BatchesAreNotChecked => oversized_requests_are_refused_whole,
    AFullQueueIsNotRefused => a_full_queue_refuses_all_messages_of_a_send,
    AFullQueueAcceptsAPart => a_full_queue_refuses_all_messages_of_a_send,
    AFullQueueRefusesDuplicates => a_full_queue_refuses_all_messages_of_a_send,
    /// The error tells to try again at once, elsewhere.
    AFullQueueIsUnavailable => a_full_queue_refuses_all_messages_of_a_send,
    IdsAreReversed => ids_are_those_of_the_messages_in_their_order,
    /// Sending returns another form of the id than a delivery has.
    IdsAreOfNoMessage => ids_are_those_of_the_messages_in_their_order,
    /// The next id is the highest of the present messages and one.
    IdsOfMessagesRepeat => no_receipt_and_no_id_is_given_twice,
    LastInFirstOut => messages_come_in_the_order_of_sending,
    /// 10 comes before 9.
    OrderIsOfTextualIds => ids_are_those_of_the_messages_in_their_order,
    DelayIsIgnored => a_delayed_message_is_hidden_at_first,
    /// At 15 minutes.
    DelayIsCapped => long_durations_are_not_capped,
    DelayCountsAsADelivery => the_depth_follows_each_message,

    // Contents.
    /// At 64 KiB.
    BodiesAreCut => a_large_body_comes_through_whole,
    /// Bytes that are no UTF-8 are replaced.
    BodiesAreText => any_bytes_and_texts_come_through,
    EmptyBodiesAreDropped => any_bytes_and_texts_come_through,
    EmptyHeadersAreDropped => a_message_keeps_its_parts,
    HeadersAreLowerCase => a_message_keeps_its_parts,
    HeadersAreLostOnRedelivery => a_message_keeps_its_parts,
    GroupsAreLostOnRedelivery => a_message_keeps_its_parts,
    RedeliveriesHaveAnotherId => a_message_keeps_its_parts,
    SentAtIsZero => a_message_has_the_time_of_its_acceptance,
    SentAtIsInSeconds => a_message_has_the_time_of_its_acceptance,
    SentAtIsOfTheDelivery => a_message_has_the_time_of_its_acceptance,
    SentAtIsOfTheDeadLetter => a_message_has_the_time_of_its_acceptance,

    // De-duplication.
    IdsAreForgottenAtOnce => a_duplicate_is_accepted_once,
    IdsAreForgottenWhenCompleted => a_duplicate_is_accepted_once,
    IdsAreForgottenAfterASecond => an_id_is_remembered_for_the_stated_window,
    /// After half of the window.
    IdsAreForgottenEarly => an_id_is_remembered_for_the_stated_window,
    IdsAreKeptForever => an_id_is_remembered_for_the_stated_window,
    DuplicatesRenewTheWindow => an_id_is_remembered_for_the_stated_window,
    /// The latest ten.
    FewIdsAreRemembered => each_of_many_ids_is_remembered,
    /// Ids are compared with those of earlier requests.
    DuplicatesWithinARequestAreAccepted => duplicates_within_a_request_are_accepted_once,
    DuplicatesReplaceTheBody => a_duplicate_is_accepted_once,
    DuplicatesGetAnIdOfTheirOwn => a_duplicate_is_accepted_once,
    IdsIgnoreCase => keys_that_look_alike_are_different,
    IdsAreTrimmed => keys_that_look_alike_are_different,
    LongIdsAreCut => keys_that_look_alike_are_different,

    // Groups.
    GroupsAreIgnored => a_group_is_handed_out_one_at_a_time_in_order,
    GroupsIgnoreCase => keys_that_look_alike_are_different,
    LongGroupsAreCut => keys_that_look_alike_are_different,
    /// A message with a group waits for those of all groups.
    AGroupBlocksAllMessages => messages_that_wait_hide_no_other_message,
    /// A message that waits for its return holds nobody back.
    AnAbandonedMessageFreesItsGroup => a_group_is_handed_out_one_at_a_time_in_order,
    ADelayedMessageFreesItsGroup => a_delayed_message_holds_its_group,
    /// All visible messages of a group come at once.
    OnlyHiddenMessagesBlockTheirGroup => a_group_is_handed_out_one_at_a_time_in_order,
    AReturnedMessageIsLastOfItsGroup => a_message_that_returns_stays_the_first_of_its_group,
    APurgeLeavesGroupsLocked => a_purged_group_begins_anew,
    /// The groups in flight are read, then rows are locked and taken.
    GroupsAreCheckedBefore => receives_at_once_keep_groups_and_messages_apart,
    /// A receive reads the first 20 messages, and drops those that it cannot deliver.
    OnlyTheFirstMessagesAreLookedAt => messages_that_wait_hide_no_other_message,

    // Visibility.
    VisibilityFromSending => the_visibility_begins_with_each_delivery,
    /// At 30 seconds.
    VisibilityIsCapped => long_durations_are_not_capped,
    VisibilityIsCappedAtADay => long_durations_are_not_capped,
    VisibilityInWholeSeconds => a_received_message_is_hidden_until_its_time_is_over,
    /// That of the queue, not of the receive.
    VisibilityIsFixed => each_receive_has_a_visibility_of_its_own,
    /// A redelivery does not begin it anew.
    TheFirstVisibilityStays => the_visibility_begins_with_each_delivery,
    NeverVisibleAgain => a_received_message_is_hidden_until_its_time_is_over,
    TimeIsThatOfTheWallClock => hidden_messages_follow_no_wall_clock,
    DeliveriesAreNotCounted => a_received_message_is_hidden_until_its_time_is_over,
    /// To the time that is left.
    AnExtensionIsAdded => an_extension_sets_the_time_that_is_left,
    AnExtensionNeverShortens => an_extension_sets_the_time_that_is_left,
    AnExtensionNeverLengthens => an_extended_message_stays_hidden,
    AnExtensionIsIgnored => an_extended_message_stays_hidden,
    /// At 30 seconds.
    AnExtensionIsCapped => long_durations_are_not_capped,
    /// The requested time is ignored.
    AnExtensionIsOfTheFirstVisibility => an_extended_message_stays_hidden,
    AnExtensionCountsAsADelivery => an_extension_is_no_delivery,
    AnExtensionCountsAsAnAttempt => an_extension_is_no_delivery,
    AnExtensionEndsTheReceipt => an_extension_is_no_delivery,
    AnExtensionIsOfAllMessages => an_extension_is_of_one_message,
    AZeroExtensionIsAccepted => invalid_arguments_are_refused,
    InvalidReceivesAreAccepted => invalid_arguments_are_refused,
    AnAbandonIgnoresItsDelay => an_abandoned_message_returns_after_its_delay,
    /// A delay of zero leaves the message hidden.
    AnAbandonWaitsForTheVisibility => an_abandoned_message_returns_after_its_delay,
    AReleaseIgnoresItsDelay => a_released_delivery_is_no_attempt,
    ADelayIsAtMostTheVisibility => a_message_may_return_later_than_it_would_have_expired,
    ADelayIsAddedToTheVisibility => an_abandoned_message_returns_after_its_delay,
    ADelayInWholeSeconds => an_abandoned_message_returns_after_its_delay,

    // Receipts.
    AReceiptOfAnEarlierDeliveryIsValid => an_old_receipt_can_do_nothing,
    ReceiptsAreIdsOfMessages => an_old_receipt_can_do_nothing,
    /// The queue and its dead letters give the same ones.
    ReceiptsAreCountedByQueue => a_receipt_of_another_queue_is_stale,
    /// A receipt is looked up in all queues.
    AReceiptOfTheDeadLettersIsValid => a_receipt_of_another_queue_is_stale,
    AReceiptIsValidAtOneHandle => a_receipt_is_valid_at_each_handle,
    /// As if it had settled.
    AStaleReceiptIsAnswered => an_old_receipt_can_do_nothing,
    AStaleExtensionIsAnswered => an_old_receipt_can_do_nothing,
    AStaleReceiptReleases => an_old_receipt_cannot_release,
    /// Answered as an error of another kind.
    AStaleReceiptIsInvalid => an_old_receipt_can_do_nothing,
    AStaleReceiptAddsItsError => an_old_receipt_adds_no_error,
    NonsenseIsInvalid => nonsense_is_a_stale_receipt,
    ASettledReceiptStaysValid => an_abandoned_message_returns_after_its_delay,
    AReceiptMaySettleTwice => a_receipt_settles_once,
    /// The receipt is checked, then the message is settled.
    TwoSettlementsOfOneReceiptSucceed => a_receipt_settles_once,
    /// One of an expired delivery has no effect.
    ALateSettlementIsAnsweredOnly => a_late_settlement_takes_effect_or_is_refused,
    /// As an attempt, and as an expiry.
    ALateAbandonCountsTwice => a_late_settlement_takes_effect_or_is_refused,
    OneStaleReceiptFailsAll => settlements_are_answered_one_by_one,
    AnswersAreSorted => settlements_are_answered_one_by_one,
    /// The first hundred of a request.
    OnlyTheFirstSettlementsAreMade => many_settlements_are_answered_in_one_request,
    LargeSettlementsAreRefused => many_settlements_are_answered_in_one_request,

    // Counts and errors.
    AnAbandonIsFree => an_abandoned_delivery_is_an_attempt,
    AnAbandonKeepsExpiries => an_expired_delivery_is_an_attempt_without_an_explanation,
    AnAbandonKeepsWhatNeverBegan => an_expired_delivery_is_an_attempt_without_an_explanation,
    AnAbandonForgetsCrashes => only_a_delivery_whose_handling_had_begun_is_a_crash,
    AnExpiryIsFree => an_expired_delivery_is_an_attempt_without_an_explanation,
    AnExpiryIsNotTold => attempts_are_counted_message_by_message,
    AReleaseIsAnAttempt => a_released_delivery_is_no_attempt,
    EachExpiryIsACrash => only_a_delivery_whose_handling_had_begun_is_a_crash,
    ACrashIsNotTold => only_a_delivery_whose_handling_had_begun_is_a_crash,
    AMarkIsACrash => only_a_delivery_whose_handling_had_begun_is_a_crash,
    AMarkIsIgnored => only_a_delivery_whose_handling_had_begun_is_a_crash,
    AMarkIsOfAllLaterDeliveries => only_a_delivery_whose_handling_had_begun_is_a_crash,
    AMarkDoesNotExtend => only_a_delivery_whose_handling_had_begun_is_a_crash,
    AMarkIsNeverTakenBack => a_mark_ends_with_its_delivery_or_is_taken_back,
    AReleaseKeepsTheMark => a_mark_ends_with_its_delivery_or_is_taken_back,
    AReleaseEndsCrashes => a_mark_ends_with_its_delivery_or_is_taken_back,
    AnAbandonKeepsCrashes => a_mark_ends_with_its_delivery_or_is_taken_back,
    ADeadLetterKeepsTheMark => dead_letters_keep_crashes_and_no_mark,
    DeadLettersForgetTheirCrashes => dead_letters_keep_crashes_and_no_mark,
    AReleaseEndsExpiries => a_release_keeps_the_counts_as_they_were,
    AReleaseTakesBackItsDelivery => a_released_delivery_is_no_attempt,
    AReleaseClearsErrors => errors_of_attempts_come_with_later_deliveries,
    ErrorsAreLost => errors_of_attempts_come_with_later_deliveries,
    OneErrorIsKept => errors_of_attempts_come_with_later_deliveries,
    TheLastErrorIsLost => a_dead_letter_has_the_errors_of_its_attempts,
    TheOldestErrorsAreLost => of_many_errors_the_first_and_the_latest_are_kept,

    // Waits.
    AWaitEndsEarly => a_wait_that_is_over_gives_nothing,
    AWaitEndsLate => a_wait_that_is_over_gives_nothing,
    AWaitNeverEnds => a_wait_that_is_over_gives_nothing,
    AWaitIsIgnored => a_wait_that_is_over_gives_nothing,
    /// At a queue to which nothing was ever sent.
    AWaitOfZeroNeverEnds => an_empty_queue_gives_nothing_at_once,
    AWaitMissesWhatComesBack => a_waiting_receiver_sees_what_comes_back,
    AWaitHidesForAnHour => the_visibility_begins_when_the_wait_ends,
    /// A task receives for the caller, and sets the visibility afterwards.
    ADroppedWaitHidesForAnHour => a_dropped_receive_loses_nothing,
    /// A task receives for the caller, and keeps the messages for it.
    ADroppedWaitLosesMessages => a_dropped_receive_loses_nothing,
    /// A task receives for the caller until the wait is over.
    ADroppedWaitGoesOn => a_dropped_receive_loses_nothing,
    VisibilityFromTheStartOfTheWait => the_visibility_begins_when_the_wait_ends,
    TheLastLookIsMissing => a_wait_does_not_end_with_nothing_while_a_message_is_visible,
    NobodyIsWokenBySending => a_waiting_receiver_is_woken,
    OtherHandlesAreNotWoken => a_waiting_receiver_is_woken,
    /// Of all that wait at a handle.
    OneReceiverIsWoken => each_of_several_waiting_receivers_gets_a_message,
    NobodyIsWokenBySettling => a_waiting_receiver_sees_what_is_given_back,
    NobodyIsWokenByAnExtension => a_waiting_receiver_sees_what_is_given_back,
    NobodyIsWokenByAFreedGroup => a_waiting_receiver_sees_the_next_of_a_group,
    NobodyIsWokenByADeadLetter => a_receiver_that_waits_for_dead_letters_is_woken,
    /// A receiver that is dropped in between loses it.
    ATakenMessageIsOutOfTheQueueForAMoment => a_receive_that_is_dropped_midway_loses_nothing,
    ATakenMessageIsHiddenForAnHourAtFirst => a_receive_that_is_dropped_midway_loses_nothing,
    TwoReceiversTakeOneMessage => receives_at_once_keep_groups_and_messages_apart,
    MaxIsIgnored => a_receive_returns_between_one_and_its_maximum,
    MaxIsOneMore => a_receive_returns_between_one_and_its_maximum,
    MaxAboveTheBatchIsRefused => a_receive_returns_between_one_and_its_maximum,

    // Dead letters.
    ADeadLetterIsInBothQueues => a_dead_letter_is_in_one_queue_with_its_reason,
    ADeadLetterIsLost => a_dead_letter_is_in_one_queue_with_its_reason,
    /// As a duplicate of itself.
    ADeadLetterWithAKnownIdIsLost => a_message_with_a_known_id_becomes_a_dead_letter,
    ARefusedDeadLetterIsGone => a_dead_letter_does_not_become_one_again,
    DeadLettersOfDeadLettersAreAccepted => a_dead_letter_does_not_become_one_again,
    DeadLettersHaveDeadLetters => a_dead_letter_does_not_become_one_again,
    DeadLettersAreNotHidden => dead_letters_are_received_as_messages_are,
    /// For the time that was left.
    DeadLettersStayHidden => a_dead_letter_is_visible_at_once,
    DeadLettersForgetTheirCounts => a_dead_letter_keeps_its_counts,
    /// They were never delivered.
    DeadLettersAreNewMessages => a_dead_letter_keeps_its_counts,
    DeadLettersHaveAnotherId => a_message_keeps_its_parts,
    DeadLettersLoseTheirReason => a_message_keeps_its_parts,
    DeadLettersLoseTheirHeaders => a_message_keeps_its_parts,
    DeadLettersLoseTheirGroup => dead_letters_of_a_group_come_in_its_order,
    /// At 64 KiB.
    DeadLettersAreCut => a_large_body_comes_through_whole,
    GroupsOfDeadLettersAreIgnored => dead_letters_of_a_group_come_in_its_order,
    GroupsOfDeadLettersAreReversed => dead_letters_of_a_group_come_in_its_order,

    // Depth, peek, purge and identity.
    DepthCountsTheExpiredAsInFlight => the_depth_follows_each_message,
    DepthCountsTheDueAsDelayed => the_depth_follows_each_message,
    /// Those that wait for their return.
    DepthCountsReturnedAsVisible => the_depth_follows_each_message,
    DepthCountsReturnedAsDelayed => the_depth_follows_each_message,
    DepthCountsDelayedAsInFlight => the_depth_follows_each_message,
    DepthForgetsTheRestOfAGroup => the_depth_follows_each_message,
    DepthForgetsHiddenMessages => the_depth_follows_each_message,
    DepthCountsDeadLetters => the_depth_follows_each_message,
    APeekIsOfTheLatest => a_peek_shows_the_oldest_messages_as_they_are,
    APeekOmitsHiddenMessages => a_peek_shows_the_oldest_messages_as_they_are,
    APeekIgnoresItsMaximum => a_peek_shows_the_oldest_messages_as_they_are,
    APeekShowsAllAsVisible => a_peek_shows_the_oldest_messages_as_they_are,
    APeekShowsDelayedAsVisible => a_peek_shows_the_oldest_messages_as_they_are,
    APeekHidesMessages => a_peek_shows_the_oldest_messages_as_they_are,
    APeekIsADelivery => a_peek_shows_the_oldest_messages_as_they_are,
    APeekOmitsHeaders => a_message_keeps_its_parts,
    APeekOmitsGroups => a_message_keeps_its_parts,
    APeekOmitsReasons => a_message_keeps_its_parts,
    APeekOmitsSentAt => a_message_keeps_its_parts,
    /// At 1 KiB.
    APeekCutsBodies => a_large_body_comes_through_whole,
    APeekOmitsErrors => errors_of_attempts_come_with_later_deliveries,
    APeekOmitsCounts => an_abandoned_delivery_is_an_attempt,
    APurgeDoesNothing => a_purge_leaves_nothing_but_dead_letters,
    APurgeLeavesDeliveredMessages => a_purge_leaves_nothing_but_dead_letters,
    APurgeLeavesDelayedMessages => a_purge_leaves_nothing_but_dead_letters,
    APurgeDeletesDeadLetters => a_purge_leaves_nothing_but_dead_letters,
    APurgeCountsVisibleMessages => a_purge_leaves_nothing_but_dead_letters,
    APurgeOfDeadLettersPurgesTheQueue => a_purge_of_dead_letters_leaves_the_queue,
    EachHandleHasAnIdentity => a_queue_is_told_from_its_dead_letters_by_its_identity,
    DeadLettersHaveTheIdentityOfTheQueue => a_queue_is_told_from_its_dead_letters_by_its_identity,
    TheIdentityIsThatOfTheBackend => a_queue_is_told_from_its_dead_letters_by_its_identity,
    TheIdentityIsEmpty => a_queue_is_told_from_its_dead_letters_by_its_identity,
    TheIdentityIsLong => a_queue_is_told_from_its_dead_letters_by_its_identity,

    // Forwards and ages.
    AForwardOnlyCompletes => a_forward_ends_the_delivery_and_sends_its_messages,
    AForwardLeavesItsMessage => a_forward_ends_the_delivery_and_sends_its_messages,
    AForwardOfNothingIsRefused => a_forward_without_messages_completes,
    AStaleReceiptForwards => an_old_receipt_forwards_nothing,
    AForwardToAnotherBackendIsDropped => a_forward_to_another_backend_changes_nothing,
    AForwardSendsBeforeItChecks => a_forward_to_another_backend_changes_nothing,
    ARefusedForwardFailsAll => forwards_are_answered_one_by_one,
    AForwardIgnoresThatAQueueIsFull => a_full_target_refuses_a_forward_alone,
    AForwardToItsOwnFullQueueIsRefused => a_full_target_refuses_a_forward_alone,
    AForwardToAFullQueueSendsAPart => a_full_target_refuses_a_forward_alone,
    /// The message is removed, then its results are sent.
    AForwardToAFullQueueEndsItsMessage => a_full_target_refuses_a_forward_alone,
    ForwardedMessagesAreNotChecked => a_forward_of_an_invalid_message_changes_nothing,
    ForwardedMessagesAreReversed => a_forward_ends_the_delivery_and_sends_its_messages,
    ForwardedMessagesLoseTheirHeaders => a_forward_ends_the_delivery_and_sends_its_messages,
    ForwardedMessagesLoseTheirGroup => forwarded_messages_have_their_groups_and_delays,
    ForwardedMessagesLoseTheirDelay => forwarded_messages_have_their_groups_and_delays,
    ForwardedDuplicatesAreAccepted => a_duplicate_counts_as_forwarded,
    ForwardedDuplicatesAreRefused => a_duplicate_counts_as_forwarded,
    DeadLettersAreNoTarget => a_queue_forwards_to_its_dead_letters_and_back,
    NobodyIsWokenByAForward => a_waiting_receiver_gets_what_is_forwarded,
    TheAgeIsZero => the_age_of_a_delivery_counts_from_its_acceptance,
    TheAgeIsThatOfTheDelivery => the_age_of_a_delivery_counts_from_its_acceptance,
    TheAgeIsOfTheWallClock => no_step_of_the_wall_clock_changes_an_age,
    TheAgeOfADeadLetterBeginsAnew => a_dead_letter_keeps_its_age,
}

fn fixture(fault: Fault) -> Fixture<dyn Queue> {
    let (clock, time) = Clock::manual();
    let (port, other) = NaiveQueue::two_handles(fault, &clock);
    let neighbour = Arc::new(port.neighbour());
    let fixture = Fixture::<dyn Queue>::new(Arc::new(port)).with_second_handle(Arc::new(other));
    fixture.with_neighbour(neighbour).full_at(BOUND).on_manual_time(&time)
}

#[test]
fn each_fault_of_a_plain_queue_is_found_by_a_case() {
    assert_each_fault_is_found(&queue::cases(), FAULTS, async |fault| fixture(fault.unwrap_or(Fault::Nothing)));
}

#[test]
fn no_case_asks_more_than_the_contract_promises() {
    let mut wrong = Vec::new();
    for allowed in ALLOWED.iter().copied() {
        for case in queue::cases() {
            if let Err(error) = case.run(LIMIT, async move || fixture(allowed)) {
                wrong.push(format!("{allowed:?}: `{}`: {error}", case.name()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
