//! What is read of each pattern, and which of its events are counted.
mod calls;
mod data;
mod throttling;
mod work;
