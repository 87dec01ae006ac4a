//! Behaviours of single backends and ports beyond the conformance suites.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]
mod children;
mod delete_scanned;
mod memory_forwards;
mod memory_models;
mod memory_queue;
mod sqlite_appends;
mod sqlite_bounds;
mod sqlite_drops;
mod sqlite_files;
mod sqlite_forwards;
mod sqlite_identity;
mod sqlite_killed;
mod sqlite_locks;
mod sqlite_topic;
mod sqlite_within;
mod sqlite_writes;
mod store_batches;

/// Makes a SQLite file what the release before sequences and ages wrote.
const TO_SCHEMA_6: &str =
    "DROP TABLE sequences; ALTER TABLE messages DROP COLUMN accepted_at; PRAGMA user_version = 6;";

/// Gives a backend's thread, which is a real one, time to run.
#[expect(clippy::disallowed_methods, reason = "no clock of ours moves a thread")]
fn wait_for_a_real_thread(millis: u64) {
    std::thread::sleep(std::time::Duration::from_millis(millis));
}
