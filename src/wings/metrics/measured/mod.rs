//! The metrics of each pattern: the state that is read and the events that are counted.
mod calls;
#[cfg(feature = "data")]
mod data;
#[cfg(any(feature = "jwt", feature = "object_store", all(feature = "tower", feature = "http")))]
mod edge;
#[cfg(feature = "events")]
mod events;
#[cfg(any(feature = "stream", feature = "work"))]
mod leader_election;
#[cfg(feature = "operations")]
mod operations;
#[cfg(any(feature = "work", feature = "workflow"))]
mod queue_listener;
mod standard;
#[cfg(feature = "stream")]
mod stream;
mod throttling;
#[cfg(feature = "work")]
mod work;
#[cfg(feature = "workflow")]
mod workflow;
