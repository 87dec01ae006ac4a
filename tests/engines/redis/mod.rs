//! Redis.
mod queue;
