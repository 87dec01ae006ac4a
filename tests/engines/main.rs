//! The engines that run as servers. Each test process starts private servers on loopback, and ends them.
#![cfg(any(feature = "postgres", feature = "redis"))]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]
mod faults;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
mod server;
