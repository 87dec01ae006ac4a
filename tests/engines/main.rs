//! The engines that run as servers. Each test process starts private servers on loopback, and ends them.
#![cfg(any(feature = "nats", feature = "postgres", feature = "redis"))]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "real servers take real time")]
#[cfg(all(feature = "nats", feature = "postgres", feature = "redis"))]
mod capabilities;
mod faults;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
mod server;
