//! The metrics of each pattern: the state that is read and the events that are counted.
mod calls;
mod data;
mod standard;
mod throttling;
mod work;
