//! A record of the remote tier: a header of lines of text, for people who look into their store, then the value's bytes.
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    hash::stable_hash,
    time::{Timestamp, nanos},
};

/// Names the form, so that another one can follow. (The first had no checksum and no time.)
const FORM: &[u8] = b"cache 2\n";

/// The length of a checksum's line.
const SUM: usize = 16 + 1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) kind: Kind,
    /// For how long the value was fresh when it was stored; of a claim, how long it holds.
    pub(super) ttl: Duration,
    /// The number of the tags' sequence when the load began.
    pub(super) born: u64,
    /// When the value was loaded, by the wall clock of the process that loaded it.
    pub(super) loaded: Timestamp,
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

/// Why a record cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unread {
    /// It has a form that this release does not know.
    Form,
    /// Its bytes are not those that were written.
    Damaged,
}

impl Stored {
    pub(super) fn claim(by: u64, ttl: Duration) -> Self {
        let (tags, payload) = (Vec::new(), Bytes::new());
        Self { kind: Kind::Claim(by), ttl, born: 0, loaded: Timestamp::from_millis(0), tags, payload }
    }

    pub(super) fn encode(&self) -> Bytes {
        let kind = match self.kind {
            Kind::Value => "value".to_owned(),
            Kind::Absent => "absent".to_owned(),
            Kind::Claim(by) => format!("claim {by:016x}"),
        };
        let (ttl, loaded) = (nanos(self.ttl), self.loaded.as_millis());
        let header = format!("{kind}\nttl {ttl}\nborn {}\nloaded {loaded}\n", self.born);
        let tags: usize = self.tags.iter().map(|tag| tag.len() + 32).sum();
        let start = FORM.len() + SUM;
        let mut all = BytesMut::with_capacity(start + header.len() + tags + 1 + self.payload.len());
        all.put_slice(FORM);
        all.put_slice(&[b'0'; SUM]);
        all.put_slice(header.as_bytes());
        for tag in &self.tags {
            // With its length, as a tag may hold anything.
            all.put_slice(format!("tag {}\n{tag}\n", tag.len()).as_bytes());
        }
        all.put_slice(b"\n");
        all.put_slice(&self.payload);
        let sum = sum_line(&all[start..]);
        all[FORM.len()..start].copy_from_slice(sum.as_bytes());
        all.freeze()
    }

    pub(super) fn decode(record: &Bytes) -> Result<Self, Unread> {
        if !record.starts_with(FORM) {
            return Err(Unread::Form);
        }
        let sum = record.get(FORM.len()..FORM.len() + SUM).ok_or(Unread::Damaged)?;
        let rest = record.slice(FORM.len() + SUM..);
        if sum != sum_line(&rest).as_bytes() {
            return Err(Unread::Damaged);
        }
        Self::body(rest).ok_or(Unread::Form)
    }

    fn body(mut rest: Bytes) -> Option<Self> {
        let kind = match line(&mut rest)?.as_str() {
            "value" => Kind::Value,
            "absent" => Kind::Absent,
            other => Kind::Claim(u64::from_str_radix(other.strip_prefix("claim ")?, 16).ok()?),
        };
        let ttl = Duration::from_nanos(line(&mut rest)?.strip_prefix("ttl ")?.parse().ok()?);
        let born = line(&mut rest)?.strip_prefix("born ")?.parse().ok()?;
        let loaded = Timestamp::from_millis(line(&mut rest)?.strip_prefix("loaded ")?.parse().ok()?);
        let mut tags = Vec::new();
        loop {
            let next = line(&mut rest)?;
            if next.is_empty() {
                return Some(Self { kind, ttl, born, loaded, tags, payload: rest });
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

fn sum_line(bytes: &[u8]) -> String {
    format!("{:016x}\n", stable_hash(bytes))
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

/// The mark of a tag that was invalidated at this number.
pub(super) fn mark(number: u64) -> Bytes {
    let number = number.to_string();
    format!("{}{number}", sum_line(number.as_bytes())).into()
}

/// Returns the number of a mark; `None` for one that is damaged.
pub(super) fn number(mark: &[u8]) -> Option<u64> {
    let number = mark.get(SUM..)?;
    let is_sound = mark[..SUM] == *sum_line(number).as_bytes();
    std::str::from_utf8(number).ok().filter(|_| is_sound)?.parse().ok()
}
