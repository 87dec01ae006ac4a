//! A stored body, and the claim to it.
use bytes::Bytes;

use crate::hash::stable_hash;

/// The claim that replaces a body in the queue: the row of the body in the store, its length and
/// its checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) row: String,
    /// Length of the original body.
    length: usize,
    checksum: u64,
    lz4: bool,
}

/// Header that carries the claim.
pub(super) const CLAIM: &str = "claim-check";

/// The form of a claim, its first word.
const FORM: u32 = 1;

/// The reason for which a claim cannot be read.
pub(super) enum Unreadable {
    /// A newer release wrote it, in this form.
    TooNew(u32),
    Damaged,
}

impl Claim {
    /// Returns the claim to a body under this row, and the bytes to store.
    pub(super) fn check_in(row: String, body: Bytes, compress: bool) -> (Self, Bytes) {
        let (length, checksum) = (body.len(), stable_hash(&body));
        let smaller = if compress { shrunk(&body) } else { None };
        let claim = Self { row, length, checksum, lz4: smaller.is_some() };
        (claim, smaller.unwrap_or(body))
    }

    /// Returns the claim as a header value.
    pub(super) fn write(&self) -> String {
        let how = if self.lz4 { "lz4" } else { "plain" };
        format!("{FORM} {} {} {:016x} {how}", self.row, self.length, self.checksum)
    }

    pub(super) fn read(header: &str) -> Result<Self, Unreadable> {
        let (form, words) = header.split_once(' ').unwrap_or((header, ""));
        match form.parse() {
            Ok(FORM) => Self::parse(words).ok_or(Unreadable::Damaged),
            Ok(form) if form > FORM => Err(Unreadable::TooNew(form)),
            _ => Err(Unreadable::Damaged),
        }
    }

    fn parse(words: &str) -> Option<Self> {
        let mut words = words.split(' ');
        let row = words.next()?.to_owned();
        let length = words.next()?.parse().ok()?;
        let checksum = u64::from_str_radix(words.next()?, 16).ok()?;
        let lz4 = match words.next()? {
            "lz4" => true,
            "plain" => false,
            _ => return None,
        };
        words.next().is_none().then_some(Self { row, length, checksum, lz4 })
    }

    /// Restores the original body from the stored bytes.
    ///
    /// # Errors
    /// The reason for which the stored bytes are not the original body.
    pub(super) fn check_out(&self, stored: Bytes) -> Result<Bytes, String> {
        let body = if self.lz4 { grown(&stored, self.length)? } else { stored };
        if body.len() != self.length {
            return Err(format!("it has {} bytes instead of {}", body.len(), self.length));
        }
        if stable_hash(&body) != self.checksum {
            return Err("its checksum differs".to_owned());
        }
        Ok(body)
    }
}

#[cfg(feature = "lz4")]
fn shrunk(body: &Bytes) -> Option<Bytes> {
    let smaller = lz4_flex::block::compress(body);
    (smaller.len() < body.len()).then(|| smaller.into())
}

#[cfg(not(feature = "lz4"))]
fn shrunk(_: &Bytes) -> Option<Bytes> {
    None
}

#[cfg(feature = "lz4")]
fn grown(stored: &Bytes, length: usize) -> Result<Bytes, String> {
    // LZ4 shrinks to a 255th at best, so a greater length is false and must not be allocated.
    if length / 255 > stored.len() {
        return Err(format!("{} bytes cannot grow to {length}", stored.len()));
    }
    lz4_flex::block::decompress(stored, length).map(Into::into).map_err(|error| error.to_string())
}

#[cfg(not(feature = "lz4"))]
fn grown(_: &Bytes, _: usize) -> Result<Bytes, String> {
    Err("it is compressed, but the feature `lz4` is off".to_owned())
}
