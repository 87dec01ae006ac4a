//! Partitioned queues, and the redrive of dead letters.
mod partitioned_queue;
mod redrive;
