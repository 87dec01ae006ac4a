//! The machines of a processor, compared with naive models.
#![allow(clippy::unwrap_used, reason = "tests")]
mod balance;
mod checkpoint;
mod lanes;
