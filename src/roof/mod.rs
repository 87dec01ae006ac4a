//! Combinations of several patterns.

pub mod journal;
pub mod pipes_and_filters;
pub mod scheduler;
pub mod standard;
pub mod stream;
