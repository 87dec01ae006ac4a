//! Lineage ids: each names one message of a chain, the same in each attempt and process.
use std::{borrow::Cow, collections::BTreeMap};

use crate::{hash::stable_hash, queue::MessageId};

/// Header with the lineage id of a message: the path by which it came into being.
///
/// A filter sets it on each message that it emits. A producer may set it on the first message of a
/// chain, to an id of its own that no other message has; otherwise the first filter begins with the
/// queue and the id of the message.
pub const LINEAGE: &str = "lineage";

/// Maximum length of a lineage id, in bytes. A longer one is replaced by its hash.
pub(super) const LONGEST: usize = 128;

/// Returns the lineage id of a received message. `queue` is the [hash](of_queue) of its queue.
pub(super) fn of<'a>(headers: &'a BTreeMap<String, String>, queue: u64, id: &MessageId) -> Cow<'a, str> {
    match headers.get(LINEAGE) {
        Some(lineage) if is_plain(lineage) => Cow::Borrowed(lineage),
        // Set by a producer, to anything.
        Some(lineage) if !lineage.is_empty() => Cow::Owned(hashed(lineage)),
        // Two queues may have messages of one id.
        _ => Cow::Owned(shortened(format!("{queue:016x}-{id}"))),
    }
}

/// Returns the lineage id of the output with this number, from 0, of a filter.
pub(super) fn of_output(lineage: &str, filter: &str, number: usize) -> String {
    shortened(format!("{lineage}/{filter}.{number}"))
}

/// Returns the number that stands for a queue in the lineage ids that begin there.
pub(super) fn of_queue(identity: &str) -> u64 {
    stable_hash(identity.as_bytes())
}

/// Returns `true` if each backend accepts the text as it is, as an id and as a header.
fn is_plain(lineage: &str) -> bool {
    !lineage.is_empty() && lineage.len() <= LONGEST && lineage.bytes().all(|byte| byte.is_ascii_graphic())
}

fn shortened(lineage: String) -> String {
    if lineage.len() <= LONGEST { lineage } else { hashed(&lineage) }
}

/// Returns 128 bits that stand for a long id. Of a billion such ids, two are equal with a
/// probability below 10^-20.
fn hashed(lineage: &str) -> String {
    let other = stable_hash(&[b"other half:", lineage.as_bytes()].concat());
    format!("#{:016x}{other:016x}", stable_hash(lineage.as_bytes()))
}
