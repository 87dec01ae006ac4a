//! The metrics of each pattern: the state that is read and the events that are counted.
mod calls;
#[cfg(feature = "data")]
mod data;
mod standard;
#[cfg(feature = "stream")]
mod stream;
mod throttling;
#[cfg(feature = "work")]
mod work;
#[cfg(feature = "workflow")]
mod workflow;
