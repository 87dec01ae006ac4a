//! The ports: the traits behind which the patterns keep their state, each with an implementation in
//! memory.

pub mod lease;
pub mod notify;
pub mod port;
pub mod queue;
pub mod store;
