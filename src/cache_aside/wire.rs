//! A record of the remote tier: a header of lines of text, for people who look into their store, then the value's bytes.
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};

use crate::time::nanos;

/// Names the form, so that another one can follow.
const FORM: &str = "cache 1";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) kind: Kind,
    /// For how long the value was fresh when it was stored; of a claim, how long it holds.
    pub(super) ttl: Duration,
    /// The number of the tags' sequence when the load began.
    pub(super) born: u64,
    pub(super) tags: Vec<String>,
    /// Of a value, its bytes.
    pub(super) payload: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Value,
    /// The source has nothing.
    Absent,
    /// A cache of this number loads it. The record that the load stores takes this one's place, or none.
    Claim(u64),
}

impl Stored {
    pub(super) fn claim(by: u64, ttl: Duration) -> Self {
        Self { kind: Kind::Claim(by), ttl, born: 0, tags: Vec::new(), payload: Bytes::new() }
    }

    pub(super) fn encode(&self) -> Bytes {
        let kind = match self.kind {
            Kind::Value => "value".to_owned(),
            Kind::Absent => "absent".to_owned(),
            Kind::Claim(by) => format!("claim {by:016x}"),
        };
        let header = format!("{FORM}\n{kind}\nttl {}\nborn {}\n", nanos(self.ttl), self.born);
        let tags: usize = self.tags.iter().map(|tag| tag.len() + 32).sum();
        let mut all = BytesMut::with_capacity(header.len() + tags + 1 + self.payload.len());
        all.put_slice(header.as_bytes());
        for tag in &self.tags {
            // With its length, as a tag may hold anything.
            all.put_slice(format!("tag {}\n{tag}\n", tag.len()).as_bytes());
        }
        all.put_slice(b"\n");
        all.put_slice(&self.payload);
        all.freeze()
    }

    /// `None` for what is of no form that this release knows.
    pub(super) fn decode(record: &Bytes) -> Option<Self> {
        let mut rest = record.clone();
        if line(&mut rest)? != FORM {
            return None;
        }
        let kind = match line(&mut rest)?.as_str() {
            "value" => Kind::Value,
            "absent" => Kind::Absent,
            other => Kind::Claim(u64::from_str_radix(other.strip_prefix("claim ")?, 16).ok()?),
        };
        let ttl = Duration::from_nanos(line(&mut rest)?.strip_prefix("ttl ")?.parse().ok()?);
        let born = line(&mut rest)?.strip_prefix("born ")?.parse().ok()?;
        let mut tags = Vec::new();
        loop {
            let next = line(&mut rest)?;
            if next.is_empty() {
                return Some(Self { kind, ttl, born, tags, payload: rest });
            }
            let length: usize = next.strip_prefix("tag ")?.parse().ok()?;
            if rest.len() <= length || rest[length] != b'\n' {
                return None;
            }
            tags.push(String::from_utf8(rest.split_to(length).to_vec()).ok()?);
            let _ = rest.split_to(1);
        }
    }
}

/// Takes a line off the front.
fn line(rest: &mut Bytes) -> Option<String> {
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let line = String::from_utf8(rest.split_to(end).to_vec()).ok()?;
    let _ = rest.split_to(1);
    Some(line)
}

/// The row of the tags' sequence, which no tag's own row is like.
pub(super) const SEQUENCE: &str = "sequence";

/// The row of a tag's mark.
pub(super) fn mark_of(tag: &str) -> String {
    format!("tag {tag}")
}

/// The row that keeps others from refreshing.
pub(super) fn lock_of(row: &str) -> String {
    format!("refresh {row}")
}

pub(super) fn number(value: &[u8]) -> u64 {
    // What is none counts as an invalidation of everything before it: nothing wrong is served.
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(u64::MAX)
}
