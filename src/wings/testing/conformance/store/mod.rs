//! The contract of every [`Store`].
use std::{collections::BTreeSet, ops::Bound, time::Duration};

use bytes::Bytes;

mod batches;
mod edges;
mod records;
mod scans;

pub use batches::*;
pub use edges::*;
pub use records::*;
pub use scans::*;

use super::Fixture;
use crate::{
    port::{Capability, Failure, FencingToken, PortError, PortErrorKind},
    store::{
        Continuation, DeleteOptions, Key, Precondition, PutOptions, Record, Scan, Store, StoreError, StoreExt, Version,
        Write,
    },
};

/// Defines one named test for each case of the store's contract.
#[macro_export]
macro_rules! store_conformance {
    ($make:expr) => {
        $crate::conformance_cases!(store, $make;
            a_record_that_is_not_there_is_none,
            a_put_is_visible_through_a_second_handle,
            a_precondition_that_fails_names_the_current_version,
            of_many_writers_with_one_version_one_wins,
            of_many_writers_to_an_absent_record_one_wins,
            concurrent_updates_lose_nothing,
            versions_never_repeat,
            a_delete_reports_whether_a_record_existed,
            a_scan_gives_the_rows_asked_for_in_order,
            pages_miss_nothing_and_double_nothing,
            rows_inserted_behind_the_token_stay_away_and_ahead_appear,
            a_token_never_widens_a_scan,
            a_page_is_one_snapshot,
            a_batch_is_all_or_none,
            a_batch_names_the_write_that_failed,
            an_invalid_batch_is_refused,
            a_record_ends_when_its_time_is_over,
            a_later_write_without_a_time_makes_it_last,
            a_lower_fencing_token_is_refused,
            a_fence_outlives_its_record,
            any_bytes_are_values,
            hostile_keys_come_back_or_are_refused,
            oversized_requests_are_refused,
        );
    };
}

const SHORT: Duration = Duration::from_millis(200);

fn ok<T>(result: Result<T, StoreError>) -> T {
    result.unwrap_or_else(|error| panic!("the backend failed: {error}"))
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

async fn rows(store: &dyn Store, scan: Scan) -> Vec<String> {
    ok(store.scan_all(scan).await).into_iter().map(|row| row.row).collect()
}
