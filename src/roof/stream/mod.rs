//! Event stream: a partitioned log, its producers, and processors that share its partitions.
//!
//! An event is appended to one partition of a [`Topic`], and gets the next [`Position`] there.
mod event; // events, and their positions
mod log;
mod notices;
mod processor; // members of a group
mod producer;
mod reader;
mod request;
mod store_topic;
mod stored;
mod topic;

pub use event::{Appended, Event, Position, Recorded};
pub use processor::{
    Delivered, OutOfRange, PartitionState, StreamCall, StreamProcessor, StreamProcessorConfig, StreamProcessorEvent,
    StreamStart,
};
pub use producer::{Producer, ProducerConfig, partition_of};
pub use store_topic::StoreTopic;
pub use topic::{Bounds, Read, Topic};
