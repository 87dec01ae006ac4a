//! The public conformance suites, over every backend.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#[macro_use]
#[path = "../it/forward.rs"]
mod forward;

mod faulty;
mod foreign;
mod memory;
mod sqlite;
