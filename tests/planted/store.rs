//! A plain store with one fault at a time.
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    port::{Capabilities, Capability, FencingToken, PortError, PortErrorKind},
    store::{
        Continuation, DeleteOptions, Key, Order, Page, Precondition, PutOptions, Record, Row, Rows, Scan, Sequence,
        Store, StoreError, StoreFuture, Version, Write,
    },
    testing::conformance::{Fixture, store},
    time::{Clock, Instant},
};

use super::assert_each_fault_is_found;

/// The faults, and the case that finds each.
const FAULTS: &[(Fault, &str)] = {
    use Fault::*;
    &[
        // Reads and writes.
        (WritesAreCachedInTheHandle, "a_put_is_visible_through_a_second_handle"),
        (PartitionsAreOne, "a_put_is_visible_through_a_second_handle"),
        (KeysAreJoinedByAColon, "keys_that_look_alike_are_apart"),
        (KeysAreCutAtNul, "hostile_keys_come_back_or_are_refused"),
        (KeysAreInLowerCase, "hostile_keys_come_back_or_are_refused"),
        (KeysAreTrimmed, "keys_that_look_alike_are_apart"),
        (KeysAreComparedAsNumbers, "keys_that_look_alike_are_apart"),
        (KeysAreCountedInCharacters, "the_largest_stated_sizes_are_accepted"),
        (TheLongestKeyIsRefused, "the_largest_stated_sizes_are_accepted"),
        (LongKeysMustShrink, "the_largest_stated_sizes_are_accepted"),
        (LongKeysAreCut, "oversized_requests_are_refused"),
        (AnEmptyRowIsAccepted, "hostile_keys_come_back_or_are_refused"),
        (ValuesAreText, "any_bytes_are_values"),
        (ValuesAreCutAt64KiB, "any_bytes_are_values"),
        (AnEmptyValueIsNone, "any_bytes_are_values"),
        (LargeValuesAreAccepted, "oversized_requests_are_refused"),
        (RefusalsNameNoField, "oversized_requests_are_refused"),
        // Preconditions and versions.
        (CompareAndSetIsTwoSteps, "of_many_writers_with_one_version_one_wins"),
        (InsertIsTwoSteps, "of_many_writers_to_an_absent_record_one_wins"),
        (RacingInsertsFail, "of_many_writers_to_an_absent_record_one_wins"),
        (AbsentIsNotChecked, "of_many_writers_to_an_absent_record_one_wins"),
        (AnyOlderVersionMayWrite, "a_precondition_that_fails_names_the_current_version"),
        (AVersionAboveMayWrite, "a_precondition_that_fails_names_the_current_version"),
        (ADeleteChecksNoVersion, "a_precondition_that_fails_names_the_current_version"),
        (AMissingRecordFitsAnyVersion, "a_precondition_that_fails_names_the_current_version"),
        (ConflictsNameNoVersion, "a_precondition_that_fails_names_the_current_version"),
        (VersionsRestartAfterADelete, "versions_never_repeat"),
        (VersionsRestartAfterAnExpiry, "versions_never_repeat"),
        (ReplacesKeepTheVersion, "a_put_is_visible_through_a_second_handle"),
        (VersionsAreRandom, "versions_never_repeat"),
        (ADeleteIsAlwaysTrue, "a_delete_reports_whether_a_record_existed"),
        (ADeleteThatRequiresAbsenceIsAccepted, "a_delete_reports_whether_a_record_existed"),
        // Scans.
        (TokensAreOffsets, "rows_inserted_behind_the_token_stay_away_and_ahead_appear"),
        (TokensNeedTheirRow, "rows_inserted_behind_the_token_stay_away_and_ahead_appear"),
        (TokensIncludeTheirRow, "pages_miss_nothing_and_double_nothing"),
        (TokensWidenTheScan, "a_token_never_widens_a_scan"),
        (TheLastPageHasAToken, "pages_miss_nothing_and_double_nothing"),
        (AFullPageEndsTheScan, "pages_miss_nothing_and_double_nothing"),
        (LimitsAreIgnored, "pages_miss_nothing_and_double_nothing"),
        (ALimitOfZeroIsAccepted, "a_scan_gives_the_rows_asked_for_in_order"),
        (DescendingScansAscend, "a_scan_gives_the_rows_asked_for_in_order"),
        (RowsAreInTheOrderOfTheirLetters, "a_scan_gives_the_rows_asked_for_in_order"),
        (LowerBoundsAreIncluded, "a_scan_gives_the_rows_asked_for_in_order"),
        (UpperBoundsAreExcluded, "a_scan_gives_the_rows_asked_for_in_order"),
        (BoundsUpsideDownAreAnError, "a_scan_gives_the_rows_asked_for_in_order"),
        (PrefixesArePatterns, "a_prefix_is_plain_text"),
        (PartitionsArePrefixes, "a_scan_gives_the_rows_asked_for_in_order"),
        (ScannedRowsHaveNoVersion, "a_scan_gives_the_rows_asked_for_in_order"),
        (APageOfEndedRowsEndsTheScan, "a_page_of_expired_rows_ends_no_scan"),
        (APageIsReadRowByRow, "a_page_is_one_snapshot"),
        // Batches.
        (BatchesAreAppliedRowByRow, "a_dropped_batch_is_whole_or_not_there"),
        (BatchesStopAtTheFirstFailure, "a_batch_names_the_write_that_failed"),
        (BatchesNameNoWrite, "a_batch_names_the_write_that_failed"),
        (BatchesNameTheLastFailure, "a_batch_names_the_write_that_failed"),
        (BatchesReturnVersionsByRow, "a_batch_returns_versions_in_the_order_of_its_writes"),
        (BatchesReturnTheVersionsOfPutsOnly, "a_batch_returns_versions_in_the_order_of_its_writes"),
        (ARowMayBeWrittenTwice, "an_invalid_batch_is_refused"),
        (TheLargestBatchIsRefused, "a_batch_returns_versions_in_the_order_of_its_writes"),
        (LargeBatchesAreAccepted, "an_invalid_batch_is_refused"),
        (BatchesLackTheCapability, "a_batch_is_all_or_none"),
        // Times to live.
        (LivesAreIgnored, "a_record_ends_when_its_time_is_over"),
        (LivesLackTheCapability, "a_record_ends_when_its_time_is_over"),
        (LivesAreOfWholeSeconds, "a_record_ends_when_its_time_is_over"),
        (LivesAreAtMostAnHour, "a_long_life_is_not_shortened"),
        (LivesBeginWithTheRecord, "a_later_write_without_a_time_makes_it_last"),
        (LivesStayWhenNoneIsGiven, "a_later_write_without_a_time_makes_it_last"),
        (LivesAreProlongedByReads, "only_an_accepted_write_changes_a_life"),
        (LivesAreProlongedByRefusedWrites, "only_an_accepted_write_changes_a_life"),
        (LivesAreIgnoredInBatches, "only_an_accepted_write_changes_a_life"),
        (LivesFollowTheWallClock, "a_life_follows_no_wall_clock"),
        (LivesOfZeroAreAccepted, "a_record_ends_when_its_time_is_over"),
        (EndedRowsAreScanned, "a_record_ends_when_its_time_is_over"),
        (EndedRowsAreThereForPreconditions, "a_record_ends_when_its_time_is_over"),
        (EndedRowsAreDeleted, "a_record_ends_when_its_time_is_over"),
        // Fences.
        (FencesAreIgnored, "a_lower_fencing_token_is_refused"),
        (FencesLackTheCapability, "a_lower_fencing_token_is_refused"),
        (FencesEndWithTheRecord, "a_fence_outlives_its_record"),
        (FencesEndWithALife, "a_fence_outlives_its_record"),
        (FencesAreOfThePartition, "a_lower_fencing_token_is_refused"),
        (FencesNeedAHigherToken, "a_lower_fencing_token_is_refused"),
        (DeletesRaiseNoFence, "each_accepted_write_with_a_token_raises_the_fence"),
        (DeletesOfNothingRaiseNoFence, "each_accepted_write_with_a_token_raises_the_fence"),
        (DeletesCheckNoFence, "a_lower_fencing_token_is_refused"),
        (BatchesRaiseNoFence, "each_accepted_write_with_a_token_raises_the_fence"),
        (BatchesCheckNoFence, "a_lower_fencing_token_is_refused"),
        (RefusedWritesRaiseTheFence, "a_lower_fencing_token_is_refused"),
        (TokensAreComparedAsDoubles, "tokens_are_compared_exactly"),
        (TokensAreComparedAsTexts, "tokens_are_compared_exactly"),
        (TokensAreComparedAsSigned, "tokens_are_compared_exactly"),
        (ConflictsHideStaleTokens, "a_stale_token_is_told_before_a_conflict"),
        (RefusalsNameTheRefusedToken, "a_lower_fencing_token_is_refused"),
        // Sequences, checks, named rows.
        (NumbersBeginAtZero, "an_append_takes_the_next_number_and_answers_with_it"),
        (NumbersAreOfAllSequences, "sequences_with_names_that_begin_alike_do_not_mix"),
        (NumbersAreTakenByRefusedBatches, "a_refused_batch_takes_no_number"),
        (NumbersAreThoseOfTheRows, "numbers_never_come_twice_also_after_all_rows_were_deleted"),
        (NumbersAreTakenBeforeTheyAppear, "a_reader_passes_no_number_that_appears_later"),
        (AppendsIgnoreTheLastNumber, "of_many_appends_behind_one_number_one_wins"),
        (AppendsReturnNoNumber, "an_append_takes_the_next_number_and_answers_with_it"),
        (AppendedRowsHaveOtherVersions, "an_append_takes_the_next_number_and_answers_with_it"),
        (PutsCreateRowsOfSequences, "only_an_append_creates_a_row_of_a_sequence"),
        (FirstAppendsIgnoreRowsOfPuts, "a_sequence_begins_only_where_no_put_left_a_row"),
        (AnyNameIsASequence, "an_invalid_append_is_refused"),
        (ChecksAreIgnored, "a_check_asks_of_a_row_that_it_does_not_write"),
        (ChecksAreTwoSteps, "of_two_batches_that_check_each_other_s_row_one_wins"),
        (RacingChecksFail, "of_two_batches_that_check_each_other_s_row_one_wins"),
        (ChecksOfNothingAreAccepted, "an_invalid_check_is_refused"),
        (NamedRowsComeAsNamed, "named_rows_come_once_and_in_order"),
        (NamedRowsAreReadOneByOne, "a_page_of_named_rows_is_one_snapshot"),
        (TooManyNamesAreAccepted, "invalid_names_of_rows_are_refused"),
        // Restarts.
        (RestartsNumberSequencesAnew, "sequences_go_on_over_a_restart"),
        (RestartsLoseTheLastWrite, "what_was_accepted_outlives_a_restart"),
        (RestartsBringDeletedRecordsBack, "what_was_accepted_outlives_a_restart"),
        (RestartsNumberVersionsAnew, "versions_never_repeat_after_a_restart"),
        (RestartsLoseFences, "a_fence_outlives_a_restart"),
        (RestartsLoseFencesOfDeletedRecords, "a_fence_outlives_a_restart"),
        (RestartsBeginLivesAnew, "lives_go_on_over_a_restart"),
        (RestartsMakeRecordsPermanent, "lives_go_on_over_a_restart"),
        (DurabilityIsNotTested, "what_was_accepted_outlives_a_restart"),
    ]
};

/// A fault of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[rustfmt::skip]
enum Fault {
    WritesAreCachedInTheHandle, PartitionsAreOne, KeysAreJoinedByAColon, KeysAreCutAtNul, KeysAreInLowerCase, KeysAreTrimmed,
    KeysAreComparedAsNumbers, KeysAreCountedInCharacters, TheLongestKeyIsRefused, LongKeysAreCut, AnEmptyRowIsAccepted,
    LongKeysMustShrink, ValuesAreText, ValuesAreCutAt64KiB, AnEmptyValueIsNone, LargeValuesAreAccepted, RefusalsNameNoField,
    CompareAndSetIsTwoSteps, InsertIsTwoSteps, RacingInsertsFail, AbsentIsNotChecked, AnyOlderVersionMayWrite, AVersionAboveMayWrite,
    ADeleteChecksNoVersion, AMissingRecordFitsAnyVersion, ConflictsNameNoVersion, VersionsRestartAfterADelete,
    VersionsRestartAfterAnExpiry, ReplacesKeepTheVersion, VersionsAreRandom, ADeleteIsAlwaysTrue,
    ADeleteThatRequiresAbsenceIsAccepted,
    TokensAreOffsets, TokensNeedTheirRow, TokensIncludeTheirRow, TokensWidenTheScan, TheLastPageHasAToken, AFullPageEndsTheScan,
    LimitsAreIgnored, ALimitOfZeroIsAccepted, DescendingScansAscend, RowsAreInTheOrderOfTheirLetters, LowerBoundsAreIncluded,
    UpperBoundsAreExcluded, BoundsUpsideDownAreAnError, PrefixesArePatterns, PartitionsArePrefixes, ScannedRowsHaveNoVersion,
    APageOfEndedRowsEndsTheScan, APageIsReadRowByRow,
    BatchesAreAppliedRowByRow, BatchesStopAtTheFirstFailure, BatchesNameNoWrite, BatchesNameTheLastFailure,
    BatchesReturnVersionsByRow, BatchesReturnTheVersionsOfPutsOnly, ARowMayBeWrittenTwice, TheLargestBatchIsRefused,
    LargeBatchesAreAccepted, BatchesLackTheCapability,
    LivesAreIgnored, LivesLackTheCapability, LivesAreOfWholeSeconds, LivesAreAtMostAnHour, LivesBeginWithTheRecord,
    LivesStayWhenNoneIsGiven, LivesAreProlongedByReads, LivesAreProlongedByRefusedWrites, LivesAreIgnoredInBatches,
    LivesFollowTheWallClock, LivesOfZeroAreAccepted, EndedRowsAreScanned, EndedRowsAreThereForPreconditions, EndedRowsAreDeleted,
    FencesAreIgnored, FencesLackTheCapability, FencesEndWithTheRecord, FencesEndWithALife, FencesAreOfThePartition,
    FencesNeedAHigherToken, DeletesRaiseNoFence, DeletesOfNothingRaiseNoFence, DeletesCheckNoFence, BatchesRaiseNoFence,
    BatchesCheckNoFence, RefusedWritesRaiseTheFence, TokensAreComparedAsDoubles, TokensAreComparedAsTexts,
    TokensAreComparedAsSigned, ConflictsHideStaleTokens, RefusalsNameTheRefusedToken,
    NumbersBeginAtZero, NumbersAreOfAllSequences, NumbersAreTakenByRefusedBatches, NumbersAreThoseOfTheRows,
    NumbersAreTakenBeforeTheyAppear, AppendsIgnoreTheLastNumber, AppendsReturnNoNumber, AppendedRowsHaveOtherVersions,
    PutsCreateRowsOfSequences, FirstAppendsIgnoreRowsOfPuts, AnyNameIsASequence, ChecksAreIgnored, ChecksAreTwoSteps, RacingChecksFail,
    ChecksOfNothingAreAccepted,
    NamedRowsComeAsNamed, NamedRowsAreReadOneByOne, TooManyNamesAreAccepted, RestartsNumberSequencesAnew,
    RestartsLoseTheLastWrite, RestartsBringDeletedRecordsBack, RestartsNumberVersionsAnew, RestartsLoseFences,
    RestartsLoseFencesOfDeletedRecords, RestartsBeginLivesAnew, RestartsMakeRecordsPermanent, DurabilityIsNotTested,
}

/// A store that is slow and plain: every record is in one map, and a scan looks at all of them.
#[derive(Debug)]
struct Planted {
    data: Arc<Mutex<Data>>,
    clock: Clock,
    fault: Option<Fault>,
    /// Values that this handle wrote or read, for the fault that caches them.
    cache: Mutex<BTreeMap<(String, String), Option<Record>>>,
}

#[derive(Debug, Default, Clone)]
struct Data {
    records: BTreeMap<(String, String), Stored>,
    fences: BTreeMap<(String, String), u64>,
    writes: u64,
    /// The last number of each sequence, by partition and name.
    last: BTreeMap<(String, String), u64>,
    /// Deleted records, and the state before the last write, for faults of restarts.
    deleted: Vec<((String, String), Stored)>,
    before: Option<Box<Data>>,
}

#[derive(Debug, Clone)]
struct Stored {
    value: Bytes,
    version: u64,
    life: Option<Duration>,
    ends: Option<Instant>,
}

const CAN: Capabilities = Capabilities::of(
    "planted",
    &[
        Capability::Linearizable,
        Capability::AtomicBatch,
        Capability::OrderedAppend,
        Capability::OrderedVersions,
        Capability::Fencing,
        Capability::TimeToLive,
    ],
)
.largest_value(1 << 20)
.largest_batch(200)
.largest_key(1024);

impl Planted {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn data(&self) -> MutexGuard<'_, Data> {
        self.data.lock().unwrap()
    }

    fn now(&self) -> Instant {
        if self.is(Fault::LivesFollowTheWallClock) {
            return Instant::from_nanos(self.clock.wall().as_millis() * 1_000_000);
        }
        self.clock.now()
    }

    /// Returns the key as the engine stores it.
    fn stored_key(&self, partition: &str, row: &str) -> (String, String) {
        let part = |text: &str| match self.fault {
            Some(Fault::KeysAreCutAtNul) => text.split('\0').next().unwrap_or_default().to_owned(),
            Some(Fault::KeysAreInLowerCase) => text.to_lowercase(),
            Some(Fault::KeysAreTrimmed) => text.trim_end_matches(' ').to_owned(),
            Some(Fault::KeysAreComparedAsNumbers) => {
                text.parse().map_or_else(|_| text.to_owned(), |number: f64| number.to_string())
            }
            Some(Fault::LongKeysAreCut) => text.chars().take(1024).collect(),
            _ => text.to_owned(),
        };
        match self.fault {
            Some(Fault::PartitionsAreOne) => (String::new(), part(row)),
            Some(Fault::KeysAreJoinedByAColon) => {
                let joined = format!("{partition}:{row}");
                let (partition, row) = joined.split_once(':').unwrap();
                (partition.to_owned(), row.to_owned())
            }
            _ => (part(partition), part(row)),
        }
    }

    fn is_live(&self, stored: &Stored) -> bool {
        stored.ends.is_none_or(|ends| self.now() < ends)
    }

    fn check_key(&self, partition: &str, row: &str) -> Result<(), PortError> {
        match self.fault {
            Some(Fault::KeysAreCountedInCharacters) if row.chars().count() <= CAN.max_key() && !row.is_empty() => {
                return Key::new(partition, "r").check(&CAN);
            }
            Some(Fault::TheLongestKeyIsRefused) if row.len() == CAN.max_key() => {
                return Err(PortError::invalid("row", "too long"));
            }
            Some(Fault::LongKeysMustShrink) if row.len() > 512 && row.chars().collect::<BTreeSet<_>>().len() > 16 => {
                return Err(PortError::new(PortErrorKind::Full, "the index entry is too large"));
            }
            Some(Fault::LongKeysAreCut) if !row.is_empty() && !partition.is_empty() => return Ok(()),
            Some(Fault::AnEmptyRowIsAccepted) if row.is_empty() => return Key::new(partition, "r").check(&CAN),
            _ => {}
        }
        Key::new(partition, row).check(&CAN)
    }

    /// Checks one write, by the rules of all backends.
    fn check_write(&self, partition: &str, write: &Write) -> Result<(), StoreError> {
        if let Write::Append { sequence, .. } = write {
            let is_checked = !self.is(Fault::AnyNameIsASequence) || sequence.is_empty();
            return if is_checked { Ok(write.check(&CAN)?) } else { Ok(()) };
        }
        self.check_key(partition, write.row().unwrap())?;
        if matches!(write, Write::Check { when: Precondition::Any, .. }) && !self.is(Fault::ChecksOfNothingAreAccepted)
        {
            return Ok(write.check(&CAN)?);
        }
        let checked = match write.clone() {
            Write::Put { value, mut options, .. } => {
                let value = if self.is(Fault::LargeValuesAreAccepted) { Bytes::new() } else { value };
                if self.is(Fault::LivesOfZeroAreAccepted) {
                    options.ttl = None;
                }
                Write::put("r", value, options)
            }
            Write::Delete { options, .. } if self.is(Fault::ADeleteThatRequiresAbsenceIsAccepted) => {
                Write::delete("r", options.when(Precondition::Any))
            }
            Write::Delete { options, .. } => Write::delete("r", options),
            _ => return Ok(()),
        };
        checked.check(&CAN).map_err(|error| self.refusal(error).into())
    }

    fn refusal(&self, error: PortError) -> PortError {
        if self.is(Fault::RefusalsNameNoField) { PortError::new(error.kind(), "invalid request") } else { error }
    }

    fn fence_of(&self, data: &Data, key: &(String, String)) -> Option<u64> {
        if self.is(Fault::FencesAreOfThePartition) {
            return data.fences.iter().filter(|(fenced, _)| fenced.0 == key.0).map(|(_, token)| *token).max();
        }
        data.fences.get(key).copied()
    }

    /// Checks fence and precondition.
    fn admit(&self, data: &mut Data, key: &(String, String), write: &Write, in_batch: bool) -> Result<(), StoreError> {
        if let Write::Append { sequence, after, .. } = write {
            return self.admit_append(data, &key.0, sequence, *after);
        }
        if matches!(write, Write::Check { .. }) && self.is(Fault::ChecksAreIgnored) {
            return Ok(());
        }
        let is_delete = matches!(write, Write::Delete { .. });
        let stored = data.records.get(key).cloned();
        let live = stored.filter(|stored| self.is(Fault::EndedRowsAreThereForPreconditions) || self.is_live(stored));
        let current = live.as_ref().map(|stored| Version::new(stored.version));
        let when = match (write.when(), self.fault) {
            (Precondition::Absent, Some(Fault::AbsentIsNotChecked)) => Precondition::Any,
            (Precondition::Absent, Some(Fault::ADeleteThatRequiresAbsenceIsAccepted)) if is_delete => Precondition::Any,
            (Precondition::Version(_), Some(Fault::ADeleteChecksNoVersion)) if is_delete => Precondition::Any,
            (Precondition::Version(wanted), Some(Fault::AnyOlderVersionMayWrite))
                if current.is_some_and(|current| current > wanted) =>
            {
                Precondition::Any
            }
            (Precondition::Version(wanted), Some(Fault::AVersionAboveMayWrite))
                if current.is_some_and(|current| current < wanted) =>
            {
                Precondition::Any
            }
            (Precondition::Version(_), Some(Fault::AMissingRecordFitsAnyVersion)) if current.is_none() => {
                Precondition::Any
            }
            (when, _) => when,
        };
        let mut conflict = when.check(current);
        if let (Err(StoreError::Conflict { current, .. }), Some(Fault::ConflictsNameNoVersion)) =
            (&mut conflict, self.fault)
        {
            *current = None;
        }
        if self.is(Fault::ConflictsHideStaleTokens) {
            conflict.clone()?;
        }
        if let (Some(token), Some(highest)) = (write.fence(), self.fence_of(data, key)) {
            let token = token.as_u64();
            let is_stale = match self.fault {
                Some(Fault::FencesAreIgnored) => false,
                Some(Fault::DeletesCheckNoFence) if is_delete => false,
                Some(Fault::BatchesCheckNoFence) if in_batch => false,
                Some(Fault::FencesNeedAHigherToken) => token <= highest,
                Some(Fault::TokensAreComparedAsDoubles) => (token as f64) < highest as f64,
                Some(Fault::TokensAreComparedAsTexts) => token.to_string() < highest.to_string(),
                Some(Fault::TokensAreComparedAsSigned) => token.cast_signed() < highest.cast_signed(),
                _ => token < highest,
            };
            if is_stale {
                let told = if self.is(Fault::RefusalsNameTheRefusedToken) { token } else { highest };
                return Err(StoreError::Fenced { write: 0, highest: FencingToken::new(told) });
            }
        }
        if let (Some(token), Some(Fault::RefusedWritesRaiseTheFence)) = (write.fence(), self.fault) {
            data.fences.insert(key.clone(), token.as_u64());
        }
        if conflict.is_err()
            && let (Some(Fault::LivesAreProlongedByRefusedWrites), Some(stored)) =
                (self.fault, data.records.get_mut(key))
        {
            stored.ends = stored.life.map(|life| self.now() + life);
        }
        conflict?;
        let creates = current.is_none() && matches!(write, Write::Put { .. });
        match Sequence::of_row(&key.1).filter(|_| creates && !self.is(Fault::PutsCreateRowsOfSequences)) {
            Some(of) if data.last.contains_key(&(key.0.clone(), of.as_str().to_owned())) => Err(of.refuse_put(&key.1)),
            _ => Ok(()),
        }
    }

    /// Returns the key of the last number of a sequence.
    fn counter(&self, partition: &str, name: &str) -> (String, String) {
        let name = if self.is(Fault::NumbersAreOfAllSequences) { "" } else { name };
        (partition.to_owned(), name.to_owned())
    }

    fn last(&self, data: &Data, partition: &str, name: &str) -> u64 {
        if self.is(Fault::NumbersAreThoseOfTheRows) {
            let rows = data.records.keys().filter(|key| key.0 == partition);
            return rows.filter_map(|key| Sequence::new(name).number(&key.1)).max().unwrap_or(0);
        }
        data.last.get(&self.counter(partition, name)).copied().unwrap_or(0)
    }

    fn admit_append(&self, data: &Data, partition: &str, name: &str, after: Option<u64>) -> Result<(), StoreError> {
        let (sequence, last) = (Sequence::new(name), self.last(data, partition, name));
        let after = after.filter(|_| !self.is(Fault::AppendsIgnoreTheLastNumber));
        sequence.next(last, after)?;
        let mut rows = data.records.iter().filter(|(key, stored)| key.0 == partition && self.is_live(stored));
        let of_a_put = rows.find(|((_, row), _)| Sequence::of_row(row).is_some_and(|of| of.as_str() == name));
        match of_a_put {
            Some(((_, row), _)) if last == 0 && !self.is(Fault::FirstAppendsIgnoreRowsOfPuts) => {
                Err(sequence.refuse_first(row))
            }
            _ => Ok(()),
        }
    }

    /// Takes the next number, and stores the row.
    fn append(&self, data: &mut Data, partition: &str, name: &str, value: Bytes) -> Option<Version> {
        let number = self.last(data, partition, name) + 1;
        data.last.insert(self.counter(partition, name), number);
        data.writes += 1;
        let shown = if self.is(Fault::NumbersBeginAtZero) { number - 1 } else { number };
        let version = if self.is(Fault::AppendedRowsHaveOtherVersions) { data.writes + 100 } else { shown };
        let stored = Stored { value, version, life: None, ends: None };
        data.records.insert((partition.to_owned(), Sequence::new(name).row(shown)), stored);
        (!self.is(Fault::AppendsReturnNoNumber)).then(|| Version::new(shown))
    }

    fn apply(&self, data: &mut Data, key: (String, String), write: Write, in_batch: bool) -> Option<Version> {
        let before = data.records.get(&key).cloned();
        if let Some(token) = write.fence() {
            let is_delete = matches!(write, Write::Delete { .. });
            let raises = match self.fault {
                Some(Fault::DeletesRaiseNoFence) => !is_delete,
                Some(Fault::DeletesOfNothingRaiseNoFence) => !is_delete || before.is_some(),
                Some(Fault::BatchesRaiseNoFence) => !in_batch,
                _ => true,
            };
            if raises {
                data.fences.insert(key.clone(), token.as_u64());
            }
        }
        match write {
            Write::Put { value, options, .. } => {
                data.writes += 1;
                let version = match (self.fault, &before) {
                    (Some(Fault::VersionsRestartAfterADelete), _) => before.as_ref().map_or(1, |old| old.version + 1),
                    (Some(Fault::VersionsRestartAfterAnExpiry), Some(old)) if !self.is_live(old) => 1,
                    (Some(Fault::ReplacesKeepTheVersion), Some(old)) => old.version,
                    (Some(Fault::VersionsAreRandom), _) => data.writes.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                    _ => data.writes,
                };
                let life = match self.fault {
                    Some(Fault::LivesAreIgnored | Fault::LivesLackTheCapability) => None,
                    Some(Fault::LivesAreIgnoredInBatches) if in_batch => None,
                    Some(Fault::LivesAreOfWholeSeconds) => {
                        options.ttl.map(|life| Duration::from_secs(life.as_secs().saturating_add(1)))
                    }
                    Some(Fault::LivesAreAtMostAnHour) => options.ttl.map(|life| life.min(Duration::from_secs(3600))),
                    Some(Fault::LivesStayWhenNoneIsGiven) if options.ttl.is_none() => {
                        before.as_ref().and_then(|old| old.life)
                    }
                    _ => options.ttl,
                };
                let mut ends = life.map(|life| self.now() + life);
                if let (Some(Fault::LivesBeginWithTheRecord), Some(old)) = (self.fault, &before)
                    && life.is_some()
                {
                    ends = old.ends.or(ends);
                }
                if let (Some(Fault::LivesStayWhenNoneIsGiven), Some(old)) = (self.fault, &before)
                    && options.ttl.is_none()
                {
                    ends = old.ends;
                }
                let value = match self.fault {
                    Some(Fault::ValuesAreText) => String::from_utf8_lossy(&value).into_owned().into(),
                    Some(Fault::ValuesAreCutAt64KiB) => value.slice(..value.len().min(1 << 16)),
                    _ => value,
                };
                data.records.insert(key, Stored { value, version, life, ends });
                Some(Version::new(version))
            }
            Write::Append { sequence, value, .. } => self.append(data, &key.0, &sequence, value),
            Write::Check { .. } => None,
            _ => {
                if let Some(stored) = data.records.remove(&key) {
                    data.deleted.push((key.clone(), stored));
                }
                if self.is(Fault::FencesEndWithTheRecord) {
                    data.fences.remove(&key);
                }
                None
            }
        }
    }

    /// Returns the steps between which other requests run.
    async fn pause(&self, fault: Fault) {
        if self.is(fault) {
            tokio::task::yield_now().await;
        }
    }

    async fn write(
        &self,
        partition: &str,
        writes: Vec<Write>,
        in_batch: bool,
    ) -> Result<Vec<Option<Version>>, StoreError> {
        // The key of an append has the partition alone.
        let key = |write: &Write| self.stored_key(partition, write.row().unwrap_or_default());
        let keys: Vec<_> = writes.iter().map(key).collect();
        if self.is(Fault::NumbersAreTakenBeforeTheyAppear)
            && writes.iter().any(|write| matches!(write, Write::Append { .. }))
        {
            return self.append_late(partition, &keys, writes).await;
        }
        if let (Some(Fault::CompareAndSetIsTwoSteps), [write]) = (self.fault, &writes[..])
            && matches!(write.when(), Precondition::Version(_))
        {
            self.admit(&mut self.data(), &keys[0], write, in_batch)?;
            self.pause(Fault::CompareAndSetIsTwoSteps).await;
            return Ok(vec![self.apply(&mut self.data(), keys[0].clone(), write.clone(), in_batch)]);
        }
        if let (Some(Fault::InsertIsTwoSteps), [write]) = (self.fault, &writes[..])
            && write.when() == Precondition::Absent
        {
            self.admit(&mut self.data(), &keys[0], write, in_batch)?;
            self.pause(Fault::InsertIsTwoSteps).await;
            return Ok(vec![self.apply(&mut self.data(), keys[0].clone(), write.clone(), in_batch)]);
        }
        let is_in_two_steps = match self.fault {
            Some(Fault::RacingInsertsFail) => !in_batch && writes[0].when() == Precondition::Absent,
            Some(Fault::ChecksAreTwoSteps | Fault::RacingChecksFail) => {
                writes.iter().any(|write| matches!(write, Write::Check { .. }))
            }
            _ => false,
        };
        if is_in_two_steps {
            let admit = |data: &mut Data| {
                keys.iter().zip(&writes).enumerate().try_for_each(|(i, (key, write))| {
                    self.admit(data, key, write, in_batch).map_err(|error| error.of_write(i))
                })
            };
            admit(&mut self.data())?;
            tokio::task::yield_now().await;
            let data = &mut *self.data();
            if !self.is(Fault::ChecksAreTwoSteps) && admit(data).is_err() {
                return Err(PortError::new(PortErrorKind::Other, "another transaction was faster").into());
            }
            let made = keys.into_iter().zip(writes).map(|(key, write)| self.apply(data, key, write, in_batch));
            return Ok(made.collect());
        }
        if self.is(Fault::BatchesStopAtTheFirstFailure) {
            let mut made = Vec::new();
            for (i, (key, write)) in keys.into_iter().zip(writes).enumerate() {
                self.admit(&mut self.data(), &key, &write, in_batch).map_err(|error| error.of_write(i))?;
                made.push(self.apply(&mut self.data(), key, write, in_batch));
            }
            return Ok(made);
        }
        if self.is(Fault::FencesEndWithALife) {
            let mut data = self.data();
            let ended: Vec<_> =
                data.records.iter().filter(|(_, old)| !self.is_live(old)).map(|(key, _)| key.clone()).collect();
            for key in ended {
                data.records.remove(&key);
                data.fences.remove(&key);
            }
        }
        {
            let data = &mut *self.data();
            let mut failed = None;
            for (i, (key, write)) in keys.iter().zip(&writes).enumerate() {
                if let Err(error) = self.admit(data, key, write, in_batch) {
                    failed = Some(if self.is(Fault::BatchesNameNoWrite) { error } else { error.of_write(i) });
                    if !self.is(Fault::BatchesNameTheLastFailure) {
                        break;
                    }
                }
            }
            if let Some(error) = failed {
                for write in &writes {
                    if let (Some(Fault::NumbersAreTakenByRefusedBatches), Write::Append { sequence, .. }) =
                        (self.fault, write)
                    {
                        *data.last.entry(self.counter(partition, sequence)).or_default() += 1;
                    }
                }
                return Err(error);
            }
            if self.is(Fault::RestartsLoseTheLastWrite) {
                data.before = None;
                data.before = Some(Box::new(data.clone()));
            }
            if !self.is(Fault::BatchesAreAppliedRowByRow) {
                let made = keys.into_iter().zip(writes).map(|(key, write)| self.apply(data, key, write, in_batch));
                return Ok(made.collect());
            }
        }
        let mut made = Vec::new();
        for (key, write) in keys.into_iter().zip(writes) {
            self.pause(Fault::BatchesAreAppliedRowByRow).await;
            made.push(self.apply(&mut self.data(), key, write, in_batch));
        }
        Ok(made)
    }

    /// Takes the numbers of a batch first, and stores its rows later, like a sequence of a database.
    async fn append_late(
        &self,
        partition: &str,
        keys: &[(String, String)],
        writes: Vec<Write>,
    ) -> Result<Vec<Option<Version>>, StoreError> {
        let mut numbers = Vec::new();
        {
            let data = &mut *self.data();
            for (i, (key, write)) in keys.iter().zip(&writes).enumerate() {
                self.admit(data, key, write, true).map_err(|error| error.of_write(i))?;
            }
            for write in &writes {
                let Write::Append { sequence, value, .. } = write else { continue };
                let last = data.last.entry(self.counter(partition, sequence)).or_default();
                *last += 1;
                numbers.push((Sequence::new(sequence).row(*last), *last, value.clone()));
            }
        }
        // A later one appears earlier, if there is one.
        for _ in 0..numbers[0].1 % 3 * 200 {
            tokio::task::yield_now().await;
        }
        let data = &mut *self.data();
        let mut made = Vec::new();
        for (row, number, value) in numbers {
            let stored = Stored { value, version: number, life: None, ends: None };
            data.writes += 1;
            data.records.insert((partition.to_owned(), row), stored);
            made.push(Some(Version::new(number)));
        }
        Ok(made)
    }

    async fn read(&self, key: Key<'_>) -> Result<Option<Record>, StoreError> {
        self.check_key(key.partition, key.row).map_err(|error| self.refusal(error))?;
        let stored_key = self.stored_key(key.partition, key.row);
        if self.is(Fault::WritesAreCachedInTheHandle)
            && let Some(cached) = self.cache.lock().unwrap().get(&stored_key)
        {
            return Ok(cached.clone());
        }
        let mut data = self.data();
        let Some(stored) = data.records.get_mut(&stored_key).filter(|stored| self.is_live(stored)) else {
            return Ok(None);
        };
        if self.is(Fault::LivesAreProlongedByReads) {
            stored.ends = stored.life.map(|life| self.now() + life);
        }
        if self.is(Fault::AnEmptyValueIsNone) && stored.value.is_empty() {
            return Ok(None);
        }
        let record = Record::new(stored.value.clone(), Version::new(stored.version));
        self.cache.lock().unwrap().insert(stored_key, Some(record.clone()));
        Ok(Some(record))
    }

    async fn page(&self, scan: &Scan) -> Result<Page, StoreError> {
        let too_many = matches!(&scan.rows, Rows::Named(names) if names.len() > CAN.max_batch());
        let is_accepted = self.is(Fault::ALimitOfZeroIsAccepted) && scan.limit == 0
            || self.is(Fault::TooManyNamesAreAccepted) && too_many;
        if !is_accepted {
            scan.check(&CAN).map_err(|error| self.refusal(error))?;
        }
        if let (
            Some(Fault::BoundsUpsideDownAreAnError),
            Rows::Range(std::ops::Bound::Included(from), std::ops::Bound::Included(to)),
        ) = (self.fault, &scan.rows)
            && from > to
        {
            return Err(PortError::new(PortErrorKind::Other, "range start is greater than range end").into());
        }
        let partition = self.stored_key(&scan.partition, "r").0;
        let token = scan.after.as_ref().map(Continuation::as_str);
        let mut all: Vec<Row> = Vec::new();
        let mut ended: Vec<String> = Vec::new();
        {
            let data = self.data();
            for ((of, row), stored) in &data.records {
                let is_of =
                    if self.is(Fault::PartitionsArePrefixes) { of.starts_with(&partition) } else { *of == partition };
                if !is_of || !self.contains(&scan.rows, row) {
                    continue;
                }
                if !self.is_live(stored) && !self.is(Fault::EndedRowsAreScanned) {
                    ended.push(row.clone());
                    if !self.is(Fault::APageOfEndedRowsEndsTheScan) {
                        continue;
                    }
                }
                let version = if self.is(Fault::ScannedRowsHaveNoVersion) { 0 } else { stored.version };
                all.push(Row::new(row.clone(), stored.value.clone(), Version::new(version)));
            }
        }
        if self.is(Fault::RowsAreInTheOrderOfTheirLetters) {
            all.sort_by_key(|row| (row.row.to_lowercase(), row.row.clone()));
        }
        let ascends = scan.order == Order::Ascending || self.is(Fault::DescendingScansAscend);
        if !ascends {
            all.reverse();
        }
        match (self.fault, token) {
            (_, None) => {}
            (Some(Fault::TokensAreOffsets), Some(token)) => {
                all.drain(..token.parse::<usize>().unwrap_or(0).min(all.len()));
            }
            (Some(Fault::TokensNeedTheirRow), Some(token)) => {
                let at = all.iter().position(|row| row.row == token).map_or(all.len(), |at| at + 1);
                all.drain(..at);
            }
            (Some(Fault::TokensIncludeTheirRow), Some(token)) => {
                all.retain(|row| if ascends { &*row.row >= token } else { &*row.row <= token });
            }
            (Some(Fault::RowsAreInTheOrderOfTheirLetters), Some(token)) => {
                let key = |text: &str| (text.to_lowercase(), text.to_owned());
                all.retain(|row| if ascends { key(&row.row) > key(token) } else { key(&row.row) < key(token) });
            }
            (Some(Fault::TokensWidenTheScan), Some(token)) => {
                let data = self.data();
                let rows = data
                    .records
                    .iter()
                    .filter(|((of, row), _)| *of == partition && if ascends { &**row > token } else { &**row < token });
                all = rows
                    .map(|((_, row), old)| Row::new(row.clone(), old.value.clone(), Version::new(old.version)))
                    .collect();
                if !ascends {
                    all.reverse();
                }
            }
            (_, Some(token)) => all.retain(|row| if ascends { &*row.row > token } else { &*row.row < token }),
        }
        let limit = if self.is(Fault::LimitsAreIgnored) { usize::MAX } else { scan.limit.min(1000) };
        if let (Rows::Named(names), Some(Fault::NamedRowsComeAsNamed)) = (&scan.rows, self.fault) {
            let found = std::mem::take(&mut all);
            let named = names.iter().filter_map(|name| found.iter().find(|row| row.row == *name));
            all = named.cloned().collect();
        }
        let more = all.len() > limit;
        all.truncate(limit);
        let is_named = matches!(scan.rows, Rows::Named(_));
        if self.is(Fault::APageIsReadRowByRow) || self.is(Fault::NamedRowsAreReadOneByOne) && is_named {
            for row in &mut all {
                // Other requests come between the reads.
                let writes = self.data().writes;
                for _ in 0..1000 {
                    tokio::task::yield_now().await;
                    if self.data().writes != writes {
                        break;
                    }
                }
                let data = self.data();
                if let Some(stored) = data.records.get(&(partition.clone(), row.row.clone())) {
                    row.value = stored.value.clone();
                }
            }
        }
        let offset = token.and_then(|token| token.parse::<usize>().ok()).unwrap_or(0) + all.len();
        let mut next = all.last().filter(|_| more).map(|last| Continuation::behind(&*last.row));
        match self.fault {
            Some(Fault::TokensAreOffsets) => next = next.map(|_| Continuation::from(offset.to_string())),
            Some(Fault::TheLastPageHasAToken) => next = all.last().map(|last| Continuation::behind(&*last.row)),
            Some(Fault::AFullPageEndsTheScan) if all.len() == limit && limit > 1 => next = None,
            Some(Fault::APageOfEndedRowsEndsTheScan) => {
                all.retain(|row| !ended.contains(&row.row));
                if all.is_empty() {
                    next = None;
                }
            }
            _ => {}
        }
        Ok(Page::new(all, next))
    }

    fn contains(&self, rows: &Rows, row: &str) -> bool {
        match (self.fault, rows) {
            (Some(Fault::PrefixesArePatterns), Rows::Prefix(prefix)) => is_like(&format!("{prefix}%"), row),
            (Some(Fault::LowerBoundsAreIncluded), Rows::Range(std::ops::Bound::Excluded(from), to)) => {
                Rows::Range(std::ops::Bound::Included(from.clone()), to.clone()).contains(row)
            }
            (Some(Fault::UpperBoundsAreExcluded), Rows::Range(from, std::ops::Bound::Included(to))) => {
                Rows::Range(from.clone(), std::ops::Bound::Excluded(to.clone())).contains(row)
            }
            _ => rows.contains(row),
        }
    }

    /// Brings the state back after a restart.
    fn restart(&self) {
        let now = self.now();
        let data = &mut *self.data();
        match self.fault {
            Some(Fault::RestartsLoseTheLastWrite) => {
                if let Some(before) = data.before.take() {
                    *data = *before;
                }
            }
            Some(Fault::RestartsBringDeletedRecordsBack) => data.records.extend(std::mem::take(&mut data.deleted)),
            Some(Fault::RestartsNumberVersionsAnew) => data.writes = 0,
            Some(Fault::RestartsNumberSequencesAnew) => data.last.clear(),
            Some(Fault::RestartsLoseFences) => data.fences.clear(),
            Some(Fault::RestartsLoseFencesOfDeletedRecords) => {
                let records = &data.records;
                data.fences.retain(|key, _| records.contains_key(key));
            }
            Some(Fault::RestartsBeginLivesAnew) => {
                data.records.values_mut().for_each(|old| old.ends = old.life.map(|life| now + life));
            }
            Some(Fault::RestartsMakeRecordsPermanent) => data.records.values_mut().for_each(|old| old.ends = None),
            _ => {}
        }
    }
}

/// `true` if the text has the pattern of SQL's `LIKE`, in which `%` is any text and `_` is any character.
fn is_like(pattern: &str, text: &str) -> bool {
    let mut characters = pattern.chars();
    match characters.next() {
        None => text.is_empty(),
        Some('%') => {
            let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            ends.into_iter().any(|at| is_like(characters.as_str(), &text[at..]))
        }
        Some(wanted) => {
            let mut rest = text.chars();
            rest.next().is_some_and(|found| wanted == '_' || wanted == found)
                && is_like(characters.as_str(), rest.as_str())
        }
    }
}

impl Store for Planted {
    fn capabilities(&self) -> Capabilities {
        match self.fault {
            Some(Fault::BatchesLackTheCapability) => {
                CAN.without(Capability::AtomicBatch).without(Capability::OrderedAppend)
            }
            Some(Fault::LivesLackTheCapability) => CAN.without(Capability::TimeToLive),
            Some(Fault::FencesLackTheCapability) => CAN.without(Capability::Fencing),
            Some(Fault::DurabilityIsNotTested) => CAN.with(Capability::Durable),
            _ => CAN,
        }
    }

    fn get<'a>(&'a self, key: Key<'a>) -> StoreFuture<'a, Option<Record>> {
        Box::pin(self.read(key))
    }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            let write = Write::put(key.row, value, options);
            self.check_write(key.partition, &write)?;
            let made = self.write(key.partition, vec![write], false).await?;
            self.cache.lock().unwrap().remove(&self.stored_key(key.partition, key.row));
            Ok(made[0].unwrap())
        })
    }

    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let write = Write::delete(key.row, options);
            self.check_write(key.partition, &write)?;
            let before = self.data().records.get(&self.stored_key(key.partition, key.row)).cloned();
            let was_there = before.is_some_and(|old| self.is(Fault::EndedRowsAreDeleted) || self.is_live(&old));
            self.write(key.partition, vec![write], false).await?;
            self.cache.lock().unwrap().remove(&self.stored_key(key.partition, key.row));
            Ok(was_there || self.is(Fault::ADeleteIsAlwaysTrue))
        })
    }

    fn scan<'a>(&'a self, scan: &'a Scan) -> StoreFuture<'a, Page> {
        Box::pin(self.page(scan))
    }

    fn batch<'a>(&'a self, partition: &'a str, writes: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>> {
        Box::pin(async move {
            let mut to_check = writes.clone();
            if self.is(Fault::ARowMayBeWrittenTwice) {
                to_check.dedup_by(|one, other| one.row() == other.row());
                to_check.sort_by(|one, other| one.row().cmp(&other.row()));
                to_check.dedup_by(|one, other| one.row() == other.row());
            }
            if self.is(Fault::LargeBatchesAreAccepted) {
                to_check.truncate(CAN.max_batch());
            }
            if self.is(Fault::TheLargestBatchIsRefused) && writes.len() == CAN.max_batch() {
                return Err(PortError::invalid("writes", "too many").into());
            }
            for write in &to_check {
                self.check_write(partition, write)?;
            }
            let name = |write: &Write| match write.row() {
                Some(row) => Write::delete(row, Precondition::Any),
                None => write.clone(),
            };
            let names: Vec<_> = to_check.iter().map(name).collect();
            let keys_are_checked = matches!(
                self.fault,
                Some(
                    Fault::KeysAreCountedInCharacters
                        | Fault::LongKeysAreCut
                        | Fault::AnEmptyRowIsAccepted
                        | Fault::AnyNameIsASequence
                )
            );
            if !keys_are_checked {
                Write::check_batch(partition, &names, &CAN).map_err(|error| self.refusal(error))?;
            }
            let mut rows: Vec<_> = writes.iter().map(|write| write.row().unwrap_or_default().to_owned()).collect();
            let made = self.write(partition, writes, true).await?;
            Ok(match self.fault {
                Some(Fault::BatchesReturnVersionsByRow) => {
                    let by_row: BTreeMap<_, _> = rows.drain(..).zip(made).collect();
                    by_row.into_values().collect()
                }
                Some(Fault::BatchesReturnTheVersionsOfPutsOnly) => made.into_iter().filter(Option::is_some).collect(),
                _ => made,
            })
        })
    }
}

#[test]
fn each_fault_of_a_store_is_found_by_a_case() {
    assert_each_fault_is_found(&store::cases(), FAULTS, async |fault| {
        let (clock, time) = Clock::manual();
        let data = Arc::<Mutex<Data>>::default();
        let handles = move || {
            let handle = || -> Arc<dyn Store> {
                Arc::new(Planted { data: data.clone(), clock: clock.clone(), fault, cache: Mutex::default() })
            };
            let restarted = Planted { data: data.clone(), clock: clock.clone(), fault, cache: Mutex::default() };
            (Fixture::new(handle()).with_second_handle(handle()), restarted)
        };
        let fixture = handles().0.on_manual_time(&time);
        if fault == Some(Fault::DurabilityIsNotTested) {
            return fixture;
        }
        fixture.with_restart(async move || {
            let (fixture, restarted) = handles();
            restarted.restart();
            fixture
        })
    });
}
