//! Combinations of several patterns.

pub mod journal;
pub mod scheduler;
pub mod standard;
pub mod stream;
