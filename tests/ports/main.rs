//! What is particular to one backend or one port, beyond the conformance suites.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]
mod sqlite_files;
mod sqlite_killed;
mod sqlite_writes;
