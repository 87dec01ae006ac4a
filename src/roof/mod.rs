//! Combinations of several patterns.

#[cfg(feature = "events")]
pub mod event_sourcing;
#[cfg(feature = "work")]
pub mod journal;
#[cfg(feature = "events")]
pub mod materialized_view;
#[cfg(feature = "work")]
pub mod pipes_and_filters;
#[cfg(feature = "operations")]
pub mod reconfiguration;
#[cfg(feature = "workflow")]
pub mod scheduler;
pub mod standard;
#[cfg(feature = "stream")]
pub mod stream;
