//! The format of a record in the remote tier: a header of text lines, readable in the store, and
//! then the bytes of the value.
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};

use super::super::validator::Validator;
use crate::{
    hash::stable_hash,
    time::{Timestamp, nanos},
};

/// Names the format, so that another one can follow. (The first had no checksum and no time.)
const FORM: &[u8] = b"cache 2\n";

/// Length of the checksum line.
const SUM: usize = 16 + 1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) kind: Kind,
    /// Time to live of the value when it was stored, or of the claim.
    pub(crate) ttl: Duration,
    /// Number of the tags' sequence when the load began.
    pub(crate) born: u64,
    /// Time of the load, by the wall clock of the process that loaded the value.
    pub(crate) loaded: Timestamp,
    pub(crate) tags: Vec<String>,
    /// Validator of the value, for a conditional refresh. Records of earlier releases have none.
    pub(crate) validator: Option<Validator>,
    /// The value's own maximum age while the source fails.
    pub(crate) stale_max_age: Option<Duration>,
    /// Bytes of the value; empty for other kinds.
    pub(crate) payload: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Value,
    /// The source has nothing under the key.
    Absent,
    /// The cache with this number is loading the value. Only the result of that load may replace
    /// the claim.
    Claim(u64),
}

/// The reason for which a record cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadError {
    /// The record has a format that this release does not know.
    Form,
    /// The bytes differ from those that were written.
    Damaged,
}

impl Stored {
    pub(crate) fn claim(by: u64, ttl: Duration) -> Self {
        let (tags, payload) = (Vec::new(), Bytes::new());
        let loaded = Timestamp::from_millis(0);
        Self { kind: Kind::Claim(by), ttl, born: 0, loaded, tags, validator: None, stale_max_age: None, payload }
    }

    pub(crate) fn encode(&self) -> Bytes {
        let kind = match self.kind {
            Kind::Value => "value".to_owned(),
            Kind::Absent => "absent".to_owned(),
            Kind::Claim(by) => format!("claim {by:016x}"),
        };
        let (ttl, loaded) = (nanos(self.ttl), self.loaded.as_millis());
        let header = format!("{kind}\nttl {ttl}\nborn {}\nloaded {loaded}\n", self.born);
        let tags: usize = self.tags.iter().map(|tag| tag.len() + 32).sum();
        let rare = self.rare_lines();
        let start = FORM.len() + SUM;
        let mut all = BytesMut::with_capacity(start + header.len() + tags + rare.len() + 1 + self.payload.len());
        all.put_slice(FORM);
        all.put_slice(&[b'0'; SUM]);
        all.put_slice(header.as_bytes());
        for tag in &self.tags {
            all.put_slice(text_line("tag", tag).as_bytes());
        }
        all.put_slice(rare.as_bytes());
        all.put_slice(b"\n");
        all.put_slice(&self.payload);
        let sum = sum_line(&all[start..]);
        all[FORM.len()..start].copy_from_slice(sum.as_bytes());
        all.freeze()
    }

    /// Returns the header lines that few records have. A release that does not know them reads a
    /// record that has any as one of an unknown format.
    fn rare_lines(&self) -> String {
        let mut lines = String::new();
        if let Some(validator) = &self.validator {
            lines += "validator\n";
            lines.extend(validator.etag.as_ref().map(|etag| text_line("etag", etag)));
            lines.extend(validator.last_modified.as_ref().map(|time| text_line("modified", time)));
        }
        lines.extend(self.stale_max_age.map(|age| format!("stale {}\n", nanos(age))));
        lines
    }

    pub(crate) fn decode(record: &Bytes) -> Result<Self, ReadError> {
        if !record.starts_with(FORM) {
            return Err(ReadError::Form);
        }
        let sum = record.get(FORM.len()..FORM.len() + SUM).ok_or(ReadError::Damaged)?;
        let rest = record.slice(FORM.len() + SUM..);
        if sum != sum_line(&rest).as_bytes() {
            return Err(ReadError::Damaged);
        }
        Self::body(rest).ok_or(ReadError::Form)
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
        let (tags, payload) = (Vec::new(), Bytes::new());
        let mut stored = Self { kind, ttl, born, loaded, tags, validator: None, stale_max_age: None, payload };
        loop {
            let next = line(&mut rest)?;
            let (name, number) = next.split_once(' ').unwrap_or((&next, ""));
            match name {
                "" if next.is_empty() => return Some(Self { payload: rest, ..stored }),
                "tag" => stored.tags.push(text(&mut rest, number)?),
                "validator" => stored.validator = Some(Validator::default()),
                "etag" => stored.validator.as_mut()?.etag = Some(text(&mut rest, number)?),
                "modified" => stored.validator.as_mut()?.last_modified = Some(text(&mut rest, number)?),
                "stale" => stored.stale_max_age = Some(Duration::from_nanos(number.parse().ok()?)),
                _ => return None,
            }
        }
    }
}

/// Returns a text with its length, because it may contain any character.
fn text_line(name: &str, text: &str) -> String {
    format!("{name} {}\n{text}\n", text.len())
}

/// Removes a text of this length and the end of its line, and returns the text.
fn text(rest: &mut Bytes, length: &str) -> Option<String> {
    let length: usize = length.parse().ok()?;
    if rest.len() <= length || rest[length] != b'\n' {
        return None;
    }
    let text = String::from_utf8(rest.split_to(length).to_vec()).ok()?;
    let _ = rest.split_to(1);
    Some(text)
}

fn sum_line(bytes: &[u8]) -> String {
    format!("{:016x}\n", stable_hash(bytes))
}

/// Removes the first line and returns it.
fn line(rest: &mut Bytes) -> Option<String> {
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let line = String::from_utf8(rest.split_to(end).to_vec()).ok()?;
    let _ = rest.split_to(1);
    Some(line)
}

/// Row of the tags' sequence. No tag's row has this name.
pub(crate) const SEQUENCE: &str = "sequence";

/// Returns the row of a tag's mark.
pub(crate) fn mark_of(tag: &str) -> String {
    format!("tag {tag}")
}

/// Returns the lock row that keeps other processes from refreshing.
pub(crate) fn lock_of(row: &str) -> String {
    format!("refresh {row}")
}

/// Returns the mark of a tag that was invalidated at this number.
pub(crate) fn mark(number: u64) -> Bytes {
    let number = number.to_string();
    format!("{}{number}", sum_line(number.as_bytes())).into()
}

/// Returns the number of a mark, or `None` if it is damaged.
pub(crate) fn number(mark: &[u8]) -> Option<u64> {
    let number = mark.get(SUM..)?;
    let is_sound = mark[..SUM] == *sum_line(number).as_bytes();
    std::str::from_utf8(number).ok().filter(|_| is_sound)?.parse().ok()
}
