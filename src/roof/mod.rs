//! Combinations of several patterns.

pub mod journal;
pub mod standard;
