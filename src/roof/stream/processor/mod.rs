//! Members of a group that share the partitions of a topic.
mod balance; // the machine: which member owns how many
mod checkpoint; // the stored form of the progress
mod checkpoint_store; // claims and writes it in the store
mod checkpointer; // what the next checkpoint has, and when it is due
mod component;
mod config;
mod delivered;
mod event;
mod finished; // the machine: low watermark and bitmap
mod handlers; // handlers that run, and dead letters on their way
mod lanes; // the machine: the order of keys
mod members; // announcements, and the view of the others
mod owner; // the term of an owner, and its hand-over
mod reader; // reads ahead of the handlers
mod run;
mod settle; // the end of an attempt
mod state;
mod wake_ups; // the partitions of a member, and notices of new events
mod worker; // polls its reader, handlers and checkpointer

#[cfg(all(test, not(steadfast_loom)))]
mod tests;

pub use component::StreamProcessor;
pub use config::{OutOfRange, StreamProcessorConfig, StreamStart};
pub use delivered::Delivered;
pub use event::{StreamCall, StreamProcessorEvent};
pub use state::PartitionState;
