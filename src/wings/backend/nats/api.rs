//! The requests of JetStream's API that the ports use, and their answers.
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::backend::common::base64::decode;

/// Codes of refusals that are expected.
pub(super) const NO_MESSAGE: u64 = 10_037;
pub(super) const SEQUENCE_NOT_FOUND: u64 = 10_043;
pub(super) const DELETE_FAILED: u64 = 10_057;
pub(super) const STREAM_EXISTS: u64 = 10_058;
pub(super) const NO_STREAM: u64 = 10_059;
pub(super) const NO_CLUSTER: u64 = 10_074;
pub(super) const WRONG_LAST_SEQUENCE: u64 = 10_071;
pub(super) const WRONG_LAST_SEQUENCE_UNSAID: u64 = 10_164;
/// Up to 2.12 also the refusal of one batch too many.
pub(super) const INCOMPLETE_BATCH: u64 = 10_176;
pub(super) const TOO_MANY_BATCHES: u64 = 10_210;

/// Header of a write that requires the last sequence number of its subject.
pub(super) const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";

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
    pub(super) subjects: [&'a str; 1],
    pub(super) storage: &'static str,
    pub(super) retention: &'static str,
    pub(super) discard: &'static str,
    pub(super) max_msgs_per_subject: i64,
    pub(super) num_replicas: u8,
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
    /// Time of the server.
    #[serde(default)]
    pub(super) ts: String,
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
        let block = String::from_utf8(decode(self.hdrs.trim_end_matches('='))?).ok()?;
        block.lines().find_map(|line| Some(line.split_once(':').filter(|(key, _)| *key == name)?.1.trim().to_owned()))
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
    pub(super) seq: u64,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) opt_start_seq: Option<u64>,
    pub(super) ack_policy: &'static str,
    pub(super) max_deliver: i32,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) filter_subjects: &'a [String],
    pub(super) headers_only: bool,
    pub(super) flow_control: bool,
    pub(super) idle_heartbeat: u64,
    pub(super) inactive_threshold: u64,
    pub(super) num_replicas: u8,
    pub(super) mem_storage: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct ConsumerInfo {
    pub(super) name: String,
    #[serde(default)]
    pub(super) num_pending: u64,
}

/// The place of a delivered message, from the subject of its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
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
        let from = if tokens.len() == 9 { 5 } else { 7 };
        let number = |at: usize| tokens.get(from + at)?.parse().ok();
        Some(Self { sequence: number(0)?, delivery: number(1)?, stored_at: number(2)?, pending: number(3)? })
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_message_is_parsed_in_both_forms() {
        let place = Place { sequence: 7, delivery: 3, stored_at: 1_795_418_631_691_156_631, pending: 9 };
        assert_eq!(Place::parse("$JS.ACK.S.c.1.7.3.1795418631691156631.9"), Some(place));
        assert_eq!(Place::parse("$JS.ACK._.hash.S.c.1.7.3.1795418631691156631.9.x"), Some(place));
        assert_eq!(Place::parse("$JS.ACK._.hash.S.c.1.7.3.1795418631691156631.9"), Some(place));
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
