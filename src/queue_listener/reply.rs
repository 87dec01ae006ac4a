//! Where an answer is expected, and which question it answers: two headers.
use std::collections::BTreeMap;

/// The header that names the queue for the answer.
pub(super) const REPLY_TO: &str = "reply-to";
/// The header that tells which question an answer is to.
pub(super) const CORRELATION_ID: &str = "correlation-id";

/// Where an answer is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplyTo<'a> {
    /// The name of the queue for the answer.
    pub queue: &'a str,
    /// Which question it answers.
    pub correlation_id: &'a str,
}

impl<'a> ReplyTo<'a> {
    /// As a message's headers have it, if they do.
    pub fn of(headers: &'a BTreeMap<String, String>) -> Option<Self> {
        Some(Self { queue: headers.get(REPLY_TO)?, correlation_id: headers.get(CORRELATION_ID)? })
    }

    /// The answer.
    pub fn answer(&self, body: impl Into<bytes::Bytes>) -> crate::queue::Message {
        crate::queue::Message::new(body).header(CORRELATION_ID, self.correlation_id)
    }
}
