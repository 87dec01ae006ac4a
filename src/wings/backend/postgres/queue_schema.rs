//! Tables and functions of queues.

/// The statements that create them. `{s}` stands for the schema.
pub(super) const QUEUE: &str =
    concat!(include_str!("queue.sql"), include_str!("queue_settle.sql"), include_str!("outbox.sql"));
