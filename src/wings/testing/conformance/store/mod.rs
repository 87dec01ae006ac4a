//! The contract of every [`Store`].
use std::{collections::BTreeSet, ops::Bound, time::Duration};

use bytes::Bytes;

mod appends;
mod batches;
mod checks;
mod edges;
mod expiry;
mod fences;
mod named;
mod records;
mod restarts;
mod scans;

pub use appends::*;
pub use batches::*;
pub use checks::*;
pub use edges::*;
pub use expiry::*;
pub use fences::*;
pub use named::*;
pub use records::*;
pub use restarts::*;
pub use scans::*;

use super::{Fixture, HOUR, NOON, case::suite, fixture::stretched, later, noise};
use crate::{
    port::{Capability, Failure, FencingToken, PortError, PortErrorKind},
    race::{race, yield_now},
    store::{
        Continuation, DeleteOptions, Key, Precondition, PutOptions, Record, Scan, Store, StoreError, StoreExt, Version,
        Write,
    },
};

suite! {
    $
    /// Defines one named test for each case of the store's contract.
    store_conformance;
    /// Returns the cases of the store's contract.
    store::cases -> dyn Store;
    a_record_that_is_not_there_is_none,
    a_put_is_visible_through_a_second_handle,
    a_precondition_that_fails_names_the_current_version,
    of_many_writers_with_one_version_one_wins,
    of_many_writers_to_an_absent_record_one_wins,
    concurrent_updates_lose_nothing,
    versions_never_repeat,
    a_delete_reports_whether_a_record_existed,
    a_scan_gives_the_rows_asked_for_in_order,
    a_prefix_is_plain_text,
    pages_miss_nothing_and_double_nothing,
    rows_inserted_behind_the_token_stay_away_and_ahead_appear,
    a_token_never_widens_a_scan,
    a_page_is_one_snapshot,
    a_batch_is_all_or_none,
    a_batch_names_the_write_that_failed,
    an_invalid_batch_is_refused,
    a_batch_returns_versions_in_the_order_of_its_writes,
    a_dropped_batch_is_whole_or_not_there,
    a_record_ends_when_its_time_is_over,
    a_later_write_without_a_time_makes_it_last,
    only_an_accepted_write_changes_a_life,
    a_long_life_is_not_shortened,
    a_page_of_expired_rows_ends_no_scan,
    a_life_follows_no_wall_clock,
    a_lower_fencing_token_is_refused,
    a_fence_outlives_its_record,
    each_accepted_write_with_a_token_raises_the_fence,
    tokens_are_compared_exactly,
    a_stale_token_is_told_before_a_conflict,
    any_bytes_are_values,
    hostile_keys_come_back_or_are_refused,
    keys_that_look_alike_are_apart,
    the_largest_stated_sizes_are_accepted,
    oversized_requests_are_refused,
    what_was_accepted_outlives_a_restart,
    versions_never_repeat_after_a_restart,
    a_fence_outlives_a_restart,
    lives_go_on_over_a_restart,
    sequences_go_on_over_a_restart,
    an_append_takes_the_next_number_and_answers_with_it,
    of_many_appends_behind_one_number_one_wins,
    a_refused_batch_takes_no_number,
    numbers_never_come_twice_also_after_all_rows_were_deleted,
    a_reader_passes_no_number_that_appears_later,
    sequences_with_names_that_begin_alike_do_not_mix,
    only_an_append_creates_a_row_of_a_sequence,
    a_sequence_begins_only_where_no_put_left_a_row,
    an_invalid_append_is_refused,
    a_check_asks_of_a_row_that_it_does_not_write,
    of_two_batches_that_check_each_other_s_row_one_wins,
    an_invalid_check_is_refused,
    named_rows_come_once_and_in_order,
    a_page_of_named_rows_is_one_snapshot,
    invalid_names_of_rows_are_refused,
}

fn a_while() -> Duration {
    stretched(Duration::from_millis(200))
}

fn ok<T>(result: Result<T, StoreError>) -> T {
    result.unwrap_or_else(|error| panic!("the backend failed: {error}"))
}

/// Asserts that an argument is refused as invalid, by the name of the field.
fn refused<T: std::fmt::Debug>(result: Result<T, StoreError>, field: &str) {
    let error = result.expect_err("it must be refused");
    assert_eq!(error.backend().map(PortError::kind), Some(PortErrorKind::Invalid), "{error}");
    assert!(error.to_string().contains(field), "names `{field}`: {error}");
}

fn is_invalid<T: std::fmt::Debug>(result: Result<T, StoreError>) -> bool {
    let error = result.expect_err("it must be refused");
    error.backend().map(PortError::kind) == Some(PortErrorKind::Invalid)
}

fn is_unsupported<T: std::fmt::Debug>(result: Result<T, StoreError>) -> bool {
    let error = result.expect_err("the capability is not stated");
    error.backend().map(PortError::kind) == Some(PortErrorKind::Unsupported)
}

async fn value(store: &dyn Store, key: Key<'_>) -> Option<String> {
    ok(store.get(key).await).map(|Record { value, .. }| String::from_utf8_lossy(&value).into_owned())
}

/// Returns the rows of a scan, page after page; fails if the pages do not end.
async fn rows(store: &dyn Store, mut scan: Scan) -> Vec<String> {
    let mut rows = Vec::new();
    for _ in 0..1000 {
        let page = ok(store.scan(&scan).await);
        rows.extend(page.rows.into_iter().map(|row| row.row));
        match page.next {
            Some(next) => scan.after = Some(next),
            None => return rows,
        }
    }
    panic!("the scan does not end after 1,000 pages: {scan:?}")
}
