//! The ports: traits for the patterns' state, each with an in-memory implementation.

pub(crate) mod gather;
pub mod lease;
pub mod notify;
pub mod port;
pub(crate) mod presence;
pub mod queue;
pub(crate) mod revisions;
pub mod store;
