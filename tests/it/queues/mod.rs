//! Tests of `queues`.
mod partitioned_queue;
mod redrive;
