//! The machines of throttling against naive models: whole numbers, plain lists, nothing clever.
#![allow(clippy::unwrap_used, reason = "tests")]
mod semaphore;
mod turns;
