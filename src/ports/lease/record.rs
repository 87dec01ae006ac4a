//! The stored form of a lease: three lines of text, readable in the store.
use std::time::Duration;

use bytes::Bytes;

use super::LeaseError;
use crate::{
    port::{FencingToken, PortError, PortErrorKind},
    record::{Unreadable, check_form},
    store::{Key, Record, Version},
};

/// Names the format, so that another one can follow.
const FORM: &str = "lease 1";

/// A stored lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) holder: String,
    pub(super) token: FencingToken,
    pub(super) term: Duration,
    /// Version of the record that was read.
    pub(super) version: Version,
}

/// Returns the stored form. The token of a new grant is the version of its own write, which is not
/// known yet, so `token` is `None` for it.
pub(super) fn encode(holder: &str, token: Option<FencingToken>, term: Duration) -> Bytes {
    let token = token.map_or_else(|| "version".to_owned(), |token| token.to_string());
    Bytes::from(format!("{FORM}\ntoken {token}\nterm {}\n{holder}", crate::time::nanos(term)))
}

/// Parses a record. Any other content is an error, and the record is left as it is.
///
/// # Errors
/// `TooNew` for a lease of a newer release, `Corrupt` for anything else.
pub(super) fn decode(key: Key<'_>, record: &Record) -> Result<Stored, LeaseError> {
    let text = std::str::from_utf8(&record.value).unwrap_or_default();
    let (form, rest) = text.split_once('\n').unwrap_or((text, ""));
    let parsed = check_form(FORM, form).and_then(|()| parse(rest, record.version).ok_or(Unreadable::Foreign));
    parsed.map_err(|reason| {
        let (kind, reason) = match reason {
            Unreadable::TooNew => (PortErrorKind::TooNew, "was written by a newer release: upgrade this program"),
            Unreadable::Foreign => (PortErrorKind::Corrupt, "is not a lease: something else writes to it"),
        };
        PortError::new(kind, format!("the record at {key} {reason}")).into()
    })
}

fn parse(text: &str, version: Version) -> Option<Stored> {
    let (token, text) = text.strip_prefix("token ")?.split_once('\n')?;
    let (term, holder) = text.strip_prefix("term ")?.split_once('\n')?;
    let token = match token {
        "version" => version.as_u64(),
        number => number.parse().ok()?,
    };
    let term = Duration::from_nanos(term.parse().ok()?);
    Some(Stored { holder: holder.to_owned(), token: FencingToken::new(token), term, version })
}
