//! Event stream: a partitioned log, its producers, and processors that share its partitions.
//!
//! An event is appended to one partition of a [`Topic`], and gets the next [`Position`] there.
mod event; // events and positions; those of the processor, for observers, are in `observed`
mod log;
mod notices;
mod producer;
mod reader;
mod request;
mod store_topic;
mod stored;
mod topic;

pub use event::{Appended, Event, Position, Recorded};
pub use producer::{Producer, ProducerConfig, partition_of};
pub use store_topic::StoreTopic;
pub use topic::{Bounds, Read, Topic};
