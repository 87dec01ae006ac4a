//! Behaviour of the rooms of operations: `supervisor`, `health`.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#[macro_use]
#[path = "../it/forward.rs"]
mod forward;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../it/engines.rs"]
mod engines;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../it/moody_store.rs"]
mod moody_store;

mod health;
mod supervisor;
mod world;
