//! Tables and functions of queues.

/// The statements that create them. `{s}` stands for the schema.
pub(crate) const QUEUE: &str =
    concat!(include_str!("queue.sql"), include_str!("settle.sql"), include_str!("outbox.sql"));
