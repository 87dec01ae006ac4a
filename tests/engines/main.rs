//! The engines that run as servers. Each test process starts private servers on loopback, and ends them.
#![cfg(any(feature = "nats", feature = "postgres", feature = "redis"))]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real servers take real time")]
mod attack;
#[path = "../it/capability_table.rs"]
mod capability_table;
mod configs;
mod documented;
mod door;
mod faults;
#[cfg(feature = "nats")]
mod nats;
mod pipes;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
mod sagas;
mod server;
mod shared;
mod streams;
mod topics;

use steadfast::port::{Failure, PortErrorKind};

/// Checks the kind and the words of an error.
#[track_caller]
fn says(error: &(impl Failure + std::fmt::Display), kind: PortErrorKind, words: &[&str]) {
    let text = error.to_string();
    assert_eq!(error.backend().map(|error| error.kind()), Some(kind), "{text}");
    words.iter().for_each(|word| assert!(text.contains(word), "names {word:?}: {text}"));
}
