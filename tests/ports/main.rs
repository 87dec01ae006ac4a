//! What is particular to one backend or one port, beyond the conformance suites.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]
mod memory_models;
mod memory_queue;
mod sqlite_bounds;
mod sqlite_drops;
mod sqlite_files;
mod sqlite_identity;
mod sqlite_killed;
mod sqlite_locks;
mod sqlite_writes;
