//! Event streams through their public API.
mod topic;
