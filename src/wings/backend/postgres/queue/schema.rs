//! Tables and functions of queues.

/// The statements that create them. `{s}` stands for the schema.
pub(crate) const QUEUE: &str =
    concat!(include_str!("queue.sql"), include_str!("settle.sql"), include_str!("outbox.sql"));

/// The condition of a message `m` that a release has written. One that does not meet it was damaged
/// by hand, and is set aside: arithmetic on it would fail the request of all messages beside it.
pub(crate) const SOUND: &str = "(m.id > 0 AND m.size >= 0 AND m.body IS NOT NULL AND m.receipt >= 0
    AND m.deliveries BETWEEN 0 AND 2147483646 AND m.attempts BETWEEN 0 AND 2147483646 AND m.expiries >= 0
    AND m.accepted_at BETWEEN 0 AND 4611686018427387904 AND m.due BETWEEN 0 AND 6917529027641081856
    AND CASE array_ndims(m.errors) WHEN 1 THEN array_position(m.errors, NULL::bytea) IS NULL
        ELSE array_ndims(m.errors) IS NULL END) IS TRUE";
