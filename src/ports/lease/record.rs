//! A lease as a record of a store holds it: three lines of text, for people who look into their
//! store.
use std::time::Duration;

use bytes::Bytes;

use super::LeaseError;
use crate::{
    port::{FencingToken, PortError, PortErrorKind},
    store::{Key, Record, Version},
};

/// Names the form, so that another one can follow.
const FORM: &str = "lease 1";

/// Who holds a name, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) holder: String,
    pub(super) token: FencingToken,
    pub(super) term: Duration,
    /// Which write this was read from.
    pub(super) version: Version,
}

/// What to store. The token of a new grant is the version that its own write gets, which nobody
/// knows before: it is left out.
pub(super) fn encode(holder: &str, token: Option<FencingToken>, term: Duration) -> Bytes {
    let token = token.map_or_else(|| "version".to_owned(), |token| token.to_string());
    Bytes::from(format!("{FORM}\ntoken {token}\nterm {}\n{holder}", crate::time::nanos(term)))
}

/// What is stored. The lease record serves nothing else: what is none is an error, and is left
/// alone.
pub(super) fn decode(key: Key<'_>, record: &Record) -> Result<Stored, LeaseError> {
    let parsed = std::str::from_utf8(&record.value).ok().and_then(|text| parse(text, record.version));
    parsed.ok_or_else(|| {
        let message = format!("the record at {key} is no lease: something else writes there");
        PortError::new(PortErrorKind::Corrupt, message).into()
    })
}

fn parse(text: &str, version: Version) -> Option<Stored> {
    let (form, text) = text.split_once('\n')?;
    let (token, text) = text.strip_prefix("token ")?.split_once('\n')?;
    let (term, holder) = text.strip_prefix("term ")?.split_once('\n')?;
    let token = match token {
        "version" => version.as_u64(),
        number => number.parse().ok()?,
    };
    let term = Duration::from_nanos(term.parse().ok()?);
    (form == FORM).then(|| Stored { holder: holder.to_owned(), token: FencingToken::new(token), term, version })
}
