//! The requests of JetStream's API that the ports use, and their answers.
use std::collections::HashMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::queue::Numbered;
use crate::backend::common::base64::decode;

/// Codes of refusals that are expected.
pub(super) const NO_CONSUMER: u64 = 10_014;
pub(super) const NO_MESSAGE: u64 = 10_037;
pub(super) const SEQUENCE_NOT_FOUND: u64 = 10_043;
pub(super) const DELETE_FAILED: u64 = 10_057;
pub(super) const STREAM_EXISTS: u64 = 10_058;
pub(super) const NO_STREAM: u64 = 10_059;
pub(super) const NO_CLUSTER: u64 = 10_074;
pub(super) const WRONG_LAST_SEQUENCE: u64 = 10_071;
pub(super) const WRONG_LAST_SEQUENCE_UNSAID: u64 = 10_164;
/// A message with the same id is being stored.
pub(super) const DUPLICATE_UNDER_WAY: u64 = 10_158;
/// A message of a batch has an id that is known.
pub(super) const DUPLICATE_IN_BATCH: u64 = 10_201;
/// Up to 2.12 also the refusal of one batch too many.
pub(super) const INCOMPLETE_BATCH: u64 = 10_176;
pub(super) const TOO_MANY_BATCHES: u64 = 10_210;

/// Header of a write that requires the last sequence number of its subject.
pub(super) const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";
/// Header with the id of a message. A second one with a known id is not stored.
pub(super) const MESSAGE_ID: &str = "Nats-Msg-Id";

/// Header of a write that requires it of another subject.
pub(super) const EXPECTED_OF: &str = "Nats-Expected-Last-Subject-Sequence-Subject";

/// A refusal.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ApiError {
    #[serde(default)]
    pub(super) code: u16,
    #[serde(default)]
    pub(super) err_code: u64,
    #[serde(default)]
    pub(super) description: String,
}

impl ApiError {
    /// Returns `true` if a required sequence number was not the last.
    pub(super) const fn is_conflict(&self) -> bool {
        matches!(self.err_code, WRONG_LAST_SEQUENCE | WRONG_LAST_SEQUENCE_UNSAID)
    }

    /// Returns `true` if the server did not take a batch as a whole: it has too many, or the stream
    /// has another leader than at the batch's begin.
    pub(super) const fn is_crowded(&self) -> bool {
        matches!(self.err_code, INCOMPLETE_BATCH | TOO_MANY_BATCHES)
    }
}

/// Answer to a request that may have been refused.
#[derive(Debug, Deserialize)]
pub(super) struct Refusal {
    pub(super) error: Option<ApiError>,
}

/// Answer to a stored message.
#[derive(Debug, Deserialize)]
pub(super) struct PubAck {
    /// Number of the message; of the last one, for a batch; of the first one, for a duplicate.
    pub(super) seq: u64,
    /// Number of messages of a batch.
    #[serde(default)]
    pub(super) count: u64,
}

/// A request without arguments.
#[derive(Debug, Serialize)]
pub(super) struct Nothing {}

/// Settings of a new stream.
#[derive(Debug, Serialize)]
pub(super) struct NewStream<'a> {
    pub(super) name: &'a str,
    pub(super) subjects: &'a [String],
    pub(super) storage: &'static str,
    pub(super) retention: &'static str,
    pub(super) discard: &'static str,
    pub(super) max_msgs_per_subject: i64,
    pub(super) num_replicas: u8,
    /// Age at which messages are removed, in nanoseconds; 0 is never.
    pub(super) max_age: u64,
    /// Time for which ids of messages are remembered, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) duplicate_window: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) allow_atomic: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) allow_msg_ttl: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) allow_direct: bool,
    pub(super) metadata: Metadata,
}

/// Metadata of the crate's streams.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Metadata {
    /// Form of the data.
    #[serde(rename = "steadfast.form", default)]
    pub(super) form: String,
    /// Text that distinguishes the data from any other; the store's has none.
    #[serde(rename = "steadfast.identity", default, skip_serializing_if = "String::is_empty")]
    pub(super) identity: String,
    /// Name of the queue in the stream.
    #[serde(rename = "steadfast.queue", default, skip_serializing_if = "String::is_empty")]
    pub(super) queue: String,
}

/// A stream as it is.
#[derive(Debug, Deserialize)]
pub(super) struct StreamInfo {
    pub(super) config: StreamConfig,
    #[serde(default)]
    pub(super) state: StreamState,
    /// The time of the server, as RFC 3339 writes it.
    #[serde(default)]
    pub(super) ts: String,
    /// Number of subjects, if their names were asked for.
    #[serde(default)]
    pub(super) total: usize,
}

#[derive(Debug, Deserialize)]
pub(super) struct StreamConfig {
    #[serde(default)]
    pub(super) retention: String,
    #[serde(default)]
    pub(super) storage: String,
    #[serde(default)]
    pub(super) discard: String,
    #[serde(default)]
    pub(super) max_msgs_per_subject: i64,
    #[serde(default)]
    pub(super) max_msgs: i64,
    #[serde(default)]
    pub(super) max_age: u64,
    #[serde(default)]
    pub(super) duplicate_window: u64,
    #[serde(default)]
    pub(super) allow_atomic: bool,
    #[serde(default)]
    pub(super) num_replicas: u8,
    #[serde(default)]
    pub(super) metadata: Metadata,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct StreamState {
    #[serde(default)]
    pub(super) messages: u64,
    #[serde(default)]
    pub(super) first_seq: u64,
    #[serde(default)]
    pub(super) last_seq: u64,
    /// Number of messages of each subject, if it was asked for.
    #[serde(default)]
    pub(super) subjects: HashMap<String, u64>,
}

/// Request for the numbers of messages of the subjects that match.
#[derive(Debug, Serialize)]
pub(super) struct CountSubjects<'a> {
    pub(super) subjects_filter: &'a str,
    /// Number of subjects to skip.
    pub(super) offset: usize,
}

/// Request for one message.
#[derive(Debug, Default, Serialize)]
pub(super) struct GetMessage<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) seq: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) last_by_subj: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next_by_subj: Option<&'a str>,
}

/// Request for the last messages of many subjects.
#[derive(Debug, Serialize)]
pub(super) struct GetMany<'a> {
    pub(super) multi_last: &'a [String],
    /// Size of the answer at which it ends; zero is the server's own.
    pub(super) max_bytes: usize,
    /// Number of messages at which it ends; zero is the server's own.
    pub(super) batch: usize,
}

#[derive(Debug, Deserialize)]
pub(super) struct GotMessage {
    pub(super) message: RawMessage,
}

/// A stored message.
#[derive(Debug, Deserialize)]
pub(super) struct RawMessage {
    pub(super) subject: String,
    pub(super) seq: u64,
    #[serde(default)]
    time: String,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
}

impl RawMessage {
    /// Returns the body; `None` if the answer is damaged.
    pub(super) fn body(&self) -> Option<Bytes> {
        decode(self.data.trim_end_matches('=')).map(Bytes::from)
    }

    /// Returns the time at which it was stored, in nanoseconds since 1970.
    pub(super) fn stored_at(&self) -> Option<u64> {
        nanoseconds(&self.time)
    }

    /// Returns the value of a header.
    pub(super) fn header(&self, name: &str) -> Option<String> {
        self.headers().into_iter().find_map(|(key, value)| (key == name).then_some(value))
    }

    /// Returns the headers.
    pub(super) fn headers(&self) -> Vec<(String, String)> {
        let block = decode(self.hdrs.trim_end_matches('=')).and_then(|block| String::from_utf8(block).ok());
        let lines = block.unwrap_or_default();
        let lines = lines.split("\r\n").filter_map(|line| line.split_once(':'));
        lines.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
    }
}

/// Returns a time of the server in nanoseconds since 1970.
pub(super) fn nanoseconds(time: &str) -> Option<u64> {
    let time = humantime::parse_rfc3339(time).ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    time.as_nanos().try_into().ok()
}

#[derive(Debug, Serialize)]
pub(super) struct DeleteMessage {
    pub(super) seq: u64,
    pub(super) no_erase: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct Purge<'a> {
    /// Only messages of this subject are deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) filter: Option<&'a str>,
    /// Messages below this number are deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) seq: Option<u64>,
}

/// Settings of a consumer that a reader creates for itself.
#[derive(Debug, Serialize)]
pub(super) struct NewConsumer<'a> {
    pub(super) stream_name: &'a str,
    pub(super) config: ConsumerConfig<'a>,
}

/// Intervals are in nanoseconds.
#[derive(Debug, Serialize)]
pub(super) struct ConsumerConfig<'a> {
    pub(super) deliver_subject: &'a str,
    pub(super) deliver_policy: &'static str,
    pub(super) ack_policy: &'static str,
    pub(super) max_deliver: i32,
    pub(super) filter_subjects: &'a [String],
    pub(super) headers_only: bool,
    pub(super) flow_control: bool,
    pub(super) idle_heartbeat: u64,
    pub(super) inactive_threshold: u64,
    pub(super) num_replicas: u8,
    pub(super) mem_storage: bool,
}

/// Settings of the consumer that all handles of a queue share. Times are in nanoseconds.
#[derive(Debug, Serialize)]
pub(super) struct SharedConsumer<'a> {
    pub(super) stream_name: &'a str,
    pub(super) config: SharedConsumerConfig<'a>,
}

#[derive(Debug, Serialize)]
pub(super) struct SharedConsumerConfig<'a> {
    pub(super) name: &'a str,
    pub(super) durable_name: &'a str,
    pub(super) ack_policy: &'static str,
    pub(super) ack_wait: u64,
    pub(super) max_deliver: i64,
    pub(super) max_ack_pending: i64,
    pub(super) max_waiting: i64,
}

/// Request for messages of a shared consumer. Times are in nanoseconds.
#[derive(Debug, Serialize)]
pub(super) struct Pull {
    pub(super) batch: usize,
    pub(super) max_bytes: usize,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) no_wait: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) idle_heartbeat: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Purged {
    #[serde(default)]
    pub(super) purged: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct ConsumerInfo {
    pub(super) name: String,
    /// Number of messages that were never delivered.
    #[serde(default)]
    pub(super) num_pending: u64,
    /// Number of messages that were delivered, and not acknowledged.
    #[serde(default)]
    pub(super) num_ack_pending: u64,
    #[serde(default)]
    pub(super) delivered: Delivered,
}

/// The last delivery of a consumer.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Delivered {
    /// Number of the delivery.
    #[serde(default)]
    pub(super) consumer_seq: u64,
}

/// The place of a delivered message, from the subject of its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Number of times that the server has delivered the message.
    pub(super) attempt: u64,
    /// Number in the stream.
    pub(super) sequence: u64,
    /// Number of the delivery of this consumer.
    pub(super) delivery: u64,
    /// Time at which the message was stored, in nanoseconds since 1970.
    pub(super) stored_at: u64,
    /// Number of messages behind it.
    pub(super) pending: u64,
}

impl Place {
    /// Parses `$JS.ACK.STREAM.CONSUMER.COUNT.SEQUENCE.DELIVERY.TIME.PENDING`; later servers add a
    /// domain and an account before the stream, and a token at the end.
    pub(super) fn parse(reply: &str) -> Option<Self> {
        let tokens: Vec<&str> = reply.split('.').collect();
        if tokens.first() != Some(&"$JS") || tokens.get(1) != Some(&"ACK") {
            return None;
        }
        let from = if tokens.len() == 9 { 4 } else { 6 };
        let number = |at: usize| tokens.get(from + at)?.parse().ok();
        Some(Self {
            attempt: number(0)?,
            sequence: number(1)?,
            delivery: number(2)?,
            stored_at: number(3)?,
            pending: number(4)?,
        })
    }

    /// Returns the message.
    pub(super) const fn message(&self) -> Numbered {
        Numbered { number: self.sequence, stored_at: self.stored_at }
    }

    /// Returns the subject of a reply with the number of another delivery.
    pub(super) fn with_delivery(reply: &str, delivery: u64) -> String {
        let mut tokens: Vec<&str> = reply.split('.').collect();
        let (at, delivery) = (if tokens.len() == 9 { 6 } else { 8 }, delivery.to_string());
        if let Some(token) = tokens.get_mut(at) {
            *token = &delivery;
        }
        tokens.join(".")
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_message_is_parsed_in_both_forms() {
        let place = Place { attempt: 1, sequence: 7, delivery: 3, stored_at: 1_795_418_631_691_156_631, pending: 9 };
        assert_eq!(Place::parse("$JS.ACK.S.c.1.7.3.1795418631691156631.9"), Some(place));
        assert_eq!(Place::parse("$JS.ACK._.hash.S.c.1.7.3.1795418631691156631.9.x"), Some(place));
        assert_eq!(Place::parse("$JS.ACK._.hash.S.c.1.7.3.1795418631691156631.9"), Some(place));
        for reply in ["$JS.ACK.S.c.1.7.3.5.9", "$JS.ACK._.hash.S.c.1.7.3.5.9.x"] {
            assert_eq!(Place::with_delivery(reply, 8), reply.replace(".7.3.", ".7.8."));
        }
        for other in ["", "_INBOX.x", "$JS.ACK.S.c.1", "$JS.ACK.S.c.1.x.3.4.5"] {
            assert_eq!(Place::parse(other), None);
        }
    }

    #[test]
    fn a_stored_message_is_decoded() {
        let raw = r#"{"subject":"a","seq":2,"data":"eHg=","hdrs":"TkFUUy8xLjANCkE6IDENCg0K"}"#;
        let raw: RawMessage = serde_json::from_str(raw).unwrap();
        assert_eq!((raw.body().unwrap(), raw.header("A").as_deref(), raw.header("B")), ("xx".into(), Some("1"), None));
    }
}
