//! Behaviour of the rooms of operations: `supervisor`, `config_store`, `reconfiguration`, `health`; with feature
//! `object_store` also `static_content`, with feature `console` also `console`.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#[macro_use]
#[path = "../it/forward.rs"]
mod forward;
#[cfg(feature = "object_store")]
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../it/bucket.rs"]
mod bucket;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../it/engines.rs"]
mod engines;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../it/moody_store.rs"]
mod moody_store;

mod config_store;
#[cfg(feature = "console")]
mod console;
mod health;
mod reconfiguration;
#[cfg(feature = "object_store")]
mod static_content;
mod supervisor;
mod world;
