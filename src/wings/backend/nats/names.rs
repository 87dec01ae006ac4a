//! Names of subjects and streams.
//!
//! A key of the store is the subject `PREFIX.s.PARTITION.v.ROW`. A subject consists of tokens
//! between dots, and some characters are reserved, so a partition is one escaped token, and a row
//! [several](super::rows).
use std::borrow::Cow;

use super::rows;
use crate::{
    backend::common::base64::{decode, encode},
    hash::stable_hash,
};

/// Maximum length of an escaped token. Those of a partition and a row, the prefix and the address
/// of the reply are at most the 4,096 bytes that a server reads as a line.
const LONGEST: usize = 700;

/// Returns the token of a text of at most 1,024 bytes. Different texts have different tokens, and
/// none is `=` or `%`.
pub(super) fn token(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'.' | b'*' | b'>' | b'%' | b'=' | 0..=b' ' | 0x7f.. => {
                escaped.push('%');
                escaped.extend([byte >> 4, byte & 15].map(|digit| char::from(b"0123456789ABCDEF"[usize::from(digit)])));
            }
            plain => escaped.push(char::from(plain)),
        }
    }
    if escaped.len() <= LONGEST { escaped } else { format!("={}", encode(text.as_bytes())) }
}

/// Returns the text of a token; `None` if it is no token of a text.
pub(super) fn text(token: &str) -> Option<String> {
    let bytes: Cow<'_, [u8]> = match token.strip_prefix('=') {
        Some(encoded) => decode(encoded).filter(|bytes| !bytes.is_empty())?.into(),
        None if !token.contains('%') => token.as_bytes().into(),
        None => {
            let mut bytes = Vec::with_capacity(token.len());
            let mut parts = token.split('%');
            bytes.extend(parts.next()?.bytes());
            for part in parts {
                let (digits, rest) = part.split_at_checked(2)?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                bytes.extend(rest.bytes());
            }
            bytes.into()
        }
    };
    String::from_utf8(bytes.into_owned()).ok()
}

/// Token of the subjects of records.
const RECORD: &str = "v";
/// Token of the subjects of heads of sequences.
const HEAD: &str = "h";

/// A place of the store, which has one message that counts, and marks of reads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    partition: String,
    kind: &'static str,
    name: String,
}

impl Place {
    /// Returns the subject of the message that counts.
    pub(super) fn subject(&self) -> String {
        self.with(self.kind)
    }

    /// Returns the subject of marks.
    pub(super) fn mark(&self) -> String {
        self.with("b")
    }

    /// Returns a filter of both.
    pub(super) fn both(&self) -> String {
        self.with("*")
    }

    fn with(&self, kind: &str) -> String {
        format!("{}.{kind}.{}", self.partition, self.name)
    }
}

/// Makes the names of a handle.
#[derive(Debug, Clone)]
pub(super) struct Names {
    prefix: String,
}

impl Names {
    pub(super) const fn new(prefix: String) -> Self {
        Self { prefix }
    }

    /// Returns the name of the store's stream.
    pub(super) fn store(&self) -> String {
        format!("{}_store", self.prefix)
    }

    /// Returns the subjects of the store.
    pub(super) fn all_records(&self) -> String {
        format!("{}.s.>", self.prefix)
    }

    /// Returns the place of a record.
    pub(super) fn record(&self, partition: &str, row: &str) -> Place {
        Place { partition: self.of_partition(partition), kind: RECORD, name: rows::tokens(row) }
    }

    fn of_partition(&self, partition: &str) -> String {
        format!("{}.s.{}", self.prefix, token(partition))
    }

    /// Returns the subjects of those records of a partition that match a filter of rows.
    pub(super) fn records(&self, partition: &str, filter: &str) -> String {
        format!("{}.{RECORD}.{filter}", self.of_partition(partition))
    }

    /// Returns the subjects of all records of a partition.
    pub(super) fn partition(&self, partition: &str) -> String {
        self.records(partition, ">")
    }

    /// Returns the row of a record's subject; `None` if it is of no record.
    pub(super) fn row(subject: &str) -> Option<String> {
        let mut parts = subject.splitn(5, '.').skip(3);
        rows::row(parts.next().filter(|kind| *kind == RECORD).and(parts.next())?)
    }

    /// Returns the subject of a partition's marks. It is among those of its records, and no
    /// record's.
    pub(super) fn mark(&self, partition: &str) -> String {
        self.records(partition, "=")
    }

    /// Returns the place of the head of a sequence.
    pub(super) fn sequence(&self, partition: &str, sequence: &str) -> Place {
        Place { partition: self.of_partition(partition), kind: HEAD, name: format!("=.{}", token(sequence)) }
    }

    /// Returns the place of puts that a sequence finds before it begins.
    pub(super) fn touched(&self, partition: &str, sequence: &str) -> Place {
        let mut place = self.sequence(partition, sequence);
        place.name.push_str(".t");
        place
    }

    /// Returns the subject of messages that carry a requirement of a batch, and nothing else.
    pub(super) fn carrier(&self, partition: &str) -> String {
        format!("{}.c", self.of_partition(partition))
    }

    /// Returns the subject of the identity of a stream that is being created. No partition has it.
    pub(super) fn creation(&self, stream: &str) -> String {
        format!("{}.s.=.{stream}", self.prefix)
    }

    /// Returns the subject of a topic.
    pub(super) fn topic(&self, topic: &str) -> String {
        format!("{}.n.{}", self.prefix, token(topic))
    }

    /// Returns the name of the stream of a queue's messages, or of its dead letters: names of
    /// streams are names of folders, so the queue's is hashed.
    pub(super) fn queue(&self, name: &str, part: Part) -> String {
        self.of_queue(name, if part == Part::Messages { "queue" } else { "dead" })
    }

    /// Returns the name of the stream of a queue's claims.
    pub(super) fn claims_stream(&self, name: &str) -> String {
        self.of_queue(name, "claims")
    }

    fn of_queue(&self, name: &str, kind: &str) -> String {
        let reversed: String = name.chars().rev().collect();
        let (one, other) = (stable_hash(name.as_bytes()), stable_hash(format!("{reversed}\t").as_bytes()));
        format!("{}_{kind}_{one:016x}{other:016x}", self.prefix)
    }

    /// Returns the subject of the messages of a queue, or of its dead letters. A delayed message
    /// has one more token: the time at which it is due, in milliseconds.
    pub(super) fn messages(&self, name: &str, part: Part) -> String {
        format!("{}.{}.{}", self.prefix, part.letter(), token(name))
    }

    /// Returns the subject of the claims of a queue's messages, without its last token.
    pub(super) fn claims_of(&self, name: &str, part: Part) -> String {
        format!("{}.{}", self.claims(name), part.letter())
    }

    /// Returns the beginning of the subjects of the claims of a queue.
    pub(super) fn claims(&self, name: &str) -> String {
        format!("{}.c.{}", self.prefix, token(name))
    }

    /// Returns the subject of a de-duplication id of a message that is gone.
    pub(super) fn id_of(&self, name: &str, part: Part, id: &str) -> String {
        format!("{}.i.{}.{}.{}", self.prefix, token(name), part.letter(), token(id))
    }

    /// Returns the name and the subjects of the stream of all de-duplication ids of messages that
    /// are gone.
    pub(super) fn ids(&self) -> (String, String) {
        (format!("{}_ids", self.prefix), format!("{}.i.>", self.prefix))
    }
}

/// The part of a queue: its messages or its dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Messages,
    DeadLetters,
}

impl Part {
    pub(super) const fn letter(self) -> char {
        match self {
            Self::Messages => 'q',
            Self::DeadLetters => 'd',
        }
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_of_any_text_are_apart_and_come_back() {
        let long = ["x".repeat(1024), " ".repeat(1024), "\u{10ffff}".repeat(256), "=".repeat(1024)];
        let short =
            ["a", "a.b", "a%2Eb", "*", ">", "%", "=", "==", "=YQ", " ", "\u{0}", "日本", "a/b", "\u{7f}", "$JS", "A"];
        let texts: Vec<&str> = short.into_iter().chain(long.iter().map(String::as_str)).collect();
        let tokens: Vec<String> = texts.iter().map(|text| token(text)).collect();
        assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), texts.len());
        for (whole, token) in texts.iter().zip(&tokens) {
            assert_eq!(text(token).as_deref(), Some(*whole));
            let is_reserved = |c: char| c.is_ascii_whitespace() || c.is_ascii_control() || ".*>".contains(c);
            assert!(token.len() <= 1_400 && !token.contains(is_reserved), "{token}");
            assert!(token != "=" && token != "%", "{token}");
        }
        assert_eq!((text("="), text("%ZZ"), text("%2")), (None, None, None));
    }
}
