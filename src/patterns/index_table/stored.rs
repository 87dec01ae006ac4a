//! The stored form of indexes.
//!
//! | partition | row | content |
//! |---|---|---|
//! | `index/NAME` | `state` | whether the index is built, and was looked up |
//! | `index/NAME/00` to `15` | the key and the place of a row | an entry, with a copy or none |
//! | the same, of a unique index | the key | the place of its row, with a copy or none |
//! | that of a row | `index/`, index, key and row | an entry beside it, with a copy or none |
//!
//! In the table itself a tombstone takes the place of a deleted row for a time.
use std::fmt;

use bytes::Bytes;

use super::RowKey;
use crate::{
    port::{PortError, PortErrorKind},
    record::Unreadable,
    store::Key,
    wire::{In, Out},
};

/// Version of the encoding of entries.
const FORM: u64 = 1;

/// The value in the place of a deleted row.
const TOMBSTONE: &[u8] = b"\0deleted from an index table";

pub(super) const STATE: &str = "state";

/// Returns the partition with the state of an index.
pub(super) fn state_partition(index: &str) -> String {
    format!("index/{index}")
}

pub(super) const fn tombstone() -> Bytes {
    Bytes::from_static(TOMBSTONE)
}

/// Returns `true` if this value in the store of a table stands for a deleted row: for programs that
/// read the store past the table.
pub fn is_deleted(value: &[u8]) -> bool {
    value == TOMBSTONE
}

/// Returns the value of an entry of an index that is not unique.
pub(super) fn plain(copy: Option<&Bytes>) -> Bytes {
    with_copy(Out::of_form(FORM), copy)
}

/// Returns the value of an entry of a unique index.
pub(super) fn claim(owner: Key<'_>, copy: Option<&Bytes>) -> Bytes {
    let mut out = Out::of_form(FORM);
    out.text(owner.partition);
    out.text(owner.row);
    with_copy(out, copy)
}

fn with_copy(mut out: Out, copy: Option<&Bytes>) -> Bytes {
    if let Some(copy) = copy {
        out.bytes(copy);
    }
    out.into_bytes()
}

/// Reads the rest of an entry: a copy, or none.
fn rest(input: &mut In) -> Option<Option<Bytes>> {
    if input.is_empty() { Some(None) } else { Some(Some(input.bytes()?)) }
}

/// `what` is formatted for an error alone.
fn open<T>(what: fmt::Arguments<'_>, value: Bytes, read: impl FnOnce(&mut In) -> Option<T>) -> Result<T, PortError> {
    In::open(value, FORM, read).map_err(|unreadable| match unreadable {
        Unreadable::TooNew => {
            PortError::new(PortErrorKind::TooNew, format!("index_table: {what} was written by a newer release"))
        }
        Unreadable::Foreign => corrupt(what),
    })
}

fn corrupt(what: fmt::Arguments<'_>) -> PortError {
    PortError::new(PortErrorKind::Corrupt, format!("index_table: {what} cannot be decoded"))
}

/// Returns the error of a name that is the one of no entry.
pub(super) fn damaged(entry: &str) -> PortError {
    corrupt(format_args!("the entry {entry:?}"))
}

/// Reads the owner of a unique key, and the copy of its row.
pub(super) fn owner(entry: &str, value: Bytes) -> Result<(RowKey, Option<Bytes>), PortError> {
    let read = |input: &mut In| Some((RowKey { partition: input.text()?, row: input.text()? }, rest(input)?));
    open(format_args!("the entry {entry:?}"), value, read)
}

/// Reads the copy of an entry of an index that is not unique.
pub(super) fn copy(entry: &str, value: Bytes) -> Result<Option<Bytes>, PortError> {
    open(format_args!("the entry {entry:?}"), value, rest)
}

/// Returns `true` if this value claims a unique key for this row.
pub(super) fn is_claim_of(of: Key<'_>, value: &Bytes) -> bool {
    owner("", value.clone()).is_ok_and(|(owner, _)| owner.as_key() == of)
}

/// The state of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct State {
    /// `true` if all rows have their entries.
    pub(super) is_built: bool,
    /// `true` if a process has looked it up.
    pub(super) is_looked_up: bool,
}

impl State {
    pub(super) fn encode(self) -> Bytes {
        let mut out = Out::of_form(FORM);
        out.number(u64::from(self.is_built));
        out.number(u64::from(self.is_looked_up));
        out.into_bytes()
    }

    pub(super) fn decode(index: &str, value: Bytes) -> Result<Self, PortError> {
        let flag = |input: &mut In| match input.number()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        };
        let read = |input: &mut In| Some(Self { is_built: flag(input)?, is_looked_up: flag(input)? });
        open(format_args!("the state of {index:?}"), value, read)
    }
}
