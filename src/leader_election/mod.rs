//! Leader election.
pub mod by_message;
