//! Event streams through their public API.
mod processor;
mod topic;
