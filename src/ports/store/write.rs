//! Writes, and their preconditions.
use std::{collections::HashSet, time::Duration};

use bytes::Bytes;

use super::{Sequence, StoreError, Version};
use crate::{
    config::setters,
    port::{Capabilities, Capability, FencingToken, PortError},
};

/// The state of the record that a write requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Precondition {
    /// No requirement.
    #[default]
    Any,
    /// No record exists.
    Absent,
    /// The record still has this version.
    Version(Version),
}

impl Precondition {
    /// Checks the precondition against the current version, `None` if there is no record. For
    /// backends.
    ///
    /// # Errors
    /// [`StoreError::Conflict`], with 0 as the index of the write.
    pub fn check(self, current: Option<Version>) -> Result<(), StoreError> {
        let holds = match self {
            Self::Any => true,
            Self::Absent => current.is_none(),
            Self::Version(wanted) => current == Some(wanted),
        };
        if holds { Ok(()) } else { Err(StoreError::Conflict { write: 0, current }) }
    }
}

/// Options of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PutOptions {
    /// The required state of the record. None by default.
    pub when: Precondition,
    /// Time to live of the record, by the store's own clock. Without limit by default.
    pub ttl: Option<Duration>,
    /// Fencing token of the lease under which the record is written. The store refuses it if the
    /// key has seen a higher one. None by default.
    pub fence: Option<FencingToken>,
}

/// Options of a delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct DeleteOptions {
    /// The required state of the record. None by default.
    pub when: Precondition,
    /// Fencing token of the lease under which the record is deleted. The store refuses it if the
    /// key has seen a higher one. None by default.
    pub fence: Option<FencingToken>,
}

setters! {
    impl PutOptions {
        when: Precondition,
        ttl: Option<Duration>,
        fence: Option<FencingToken>,
    }
}

impl PutOptions {
    /// Creates options without precondition, time to live and fencing token.
    pub const fn new() -> Self {
        Self { when: Precondition::Any, ttl: None, fence: None }
    }
}

setters! {
    impl DeleteOptions {
        when: Precondition,
        fence: Option<FencingToken>,
    }
}

impl DeleteOptions {
    /// Creates options without precondition and fencing token.
    pub const fn new() -> Self {
        Self { when: Precondition::Any, fence: None }
    }
}

impl From<Precondition> for PutOptions {
    fn from(when: Precondition) -> Self {
        Self::new().when(when)
    }
}

impl From<Precondition> for DeleteOptions {
    fn from(when: Precondition) -> Self {
        Self::new().when(when)
    }
}

/// One write of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Write {
    /// A write like [`Store::put`](super::Store::put).
    Put {
        /// The row key.
        row: String,
        /// The value to store.
        value: Bytes,
        /// The options of the put.
        options: PutOptions,
    },
    /// A write like [`Store::delete`](super::Store::delete).
    Delete {
        /// The row key.
        row: String,
        /// The options of the delete.
        options: DeleteOptions,
    },
    /// An append of the next row of a sequence, whose key is the sequence's name and the next
    /// number in 20 digits. That number is also the row's version. Needs
    /// [`OrderedAppend`](Capability::OrderedAppend).
    ///
    /// An append has no time to live and no fencing token. To fence it, put a row with the token in
    /// the same batch.
    Append {
        /// The name of the sequence ([`Sequence`]).
        sequence: String,
        /// The value to store.
        value: Bytes,
        /// The required last number of the sequence, 0 for none yet. `None` requires nothing. Only
        /// the first append of a batch to a sequence may require it.
        after: Option<u64>,
    },
    /// A requirement on a row that the batch does not write.
    Check {
        /// The row key.
        row: String,
        /// The required state of the row; not [`Precondition::Any`].
        when: Precondition,
    },
}

impl Write {
    /// Creates a put of this row.
    pub fn put(row: impl Into<String>, value: impl Into<Bytes>, options: impl Into<PutOptions>) -> Self {
        Self::Put { row: row.into(), value: value.into(), options: options.into() }
    }

    /// Creates a delete of this row.
    pub fn delete(row: impl Into<String>, options: impl Into<DeleteOptions>) -> Self {
        Self::Delete { row: row.into(), options: options.into() }
    }

    /// Creates an append to this sequence.
    pub fn append(sequence: impl Into<String>, value: impl Into<Bytes>) -> Self {
        Self::Append { sequence: sequence.into(), value: value.into(), after: None }
    }

    /// Creates an append to this sequence that requires `after` as its last number, 0 for none yet.
    pub fn append_after(sequence: impl Into<String>, value: impl Into<Bytes>, after: u64) -> Self {
        Self::Append { sequence: sequence.into(), value: value.into(), after: Some(after) }
    }

    /// Creates a requirement on this row, which the batch does not write.
    pub fn check_row(row: impl Into<String>, when: Precondition) -> Self {
        Self::Check { row: row.into(), when }
    }

    /// Returns the key of the row that this writes or checks. `None` for an append, whose row
    /// depends on the last number.
    pub fn row(&self) -> Option<&str> {
        match self {
            Self::Put { row, .. } | Self::Delete { row, .. } | Self::Check { row, .. } => Some(row),
            Self::Append { .. } => None,
        }
    }

    /// Returns the precondition on the row. [`Any`](Precondition::Any) for an append, which may
    /// require a last number instead.
    pub const fn when(&self) -> Precondition {
        match self {
            Self::Put { options, .. } => options.when,
            Self::Delete { options, .. } => options.when,
            Self::Check { when, .. } => *when,
            Self::Append { .. } => Precondition::Any,
        }
    }

    /// Returns the fencing token. Only puts and deletes have one.
    pub const fn fence(&self) -> Option<FencingToken> {
        match self {
            Self::Put { options, .. } => options.fence,
            Self::Delete { options, .. } => options.fence,
            Self::Append { .. } | Self::Check { .. } => None,
        }
    }

    /// Rejects a write that violates a rule of all backends, or a limit of this one. Backends call
    /// it before they send anything.
    ///
    /// # Errors
    /// `Invalid` or `Unsupported`, with the name of the field or the capability.
    pub fn check(&self, can: &Capabilities) -> Result<(), PortError> {
        if let Some(row) = self.row() {
            can.check_key("row", row)?;
        }
        if self.fence().is_some() {
            can.require(Capability::Fencing)?;
        }
        match self {
            Self::Put { value, options, .. } => {
                can.check_value("value", value)?;
                match options.ttl {
                    Some(ttl) if ttl.is_zero() => Err(PortError::invalid("ttl", "must be longer than zero")),
                    Some(_) => Ok(can.require(Capability::TimeToLive)?),
                    None => Ok(()),
                }
            }
            Self::Append { sequence, value, .. } => {
                Sequence::new(sequence).check(can)?;
                can.check_value("value", value)
            }
            Self::Check { when: Precondition::Any, .. } => {
                Err(PortError::invalid("when", "must not be `Any` for a check"))
            }
            Self::Check { .. } => Ok(()),
            Self::Delete { options, .. } if options.when == Precondition::Absent => {
                Err(PortError::invalid("when", "must not be `Absent` for a delete"))
            }
            Self::Delete { .. } => Ok(()),
        }
    }

    /// Checks a whole batch.
    ///
    /// # Errors
    /// Same as [`check`](Self::check), and `Invalid` if
    /// - two writes name one row, or one names a row of a sequence to which another one appends,
    /// - another append than the first to a sequence requires its last number,
    /// - there are too many writes.
    pub fn check_batch(partition: &str, writes: &[Self], can: &Capabilities) -> Result<(), PortError> {
        can.require(Capability::AtomicBatch)?;
        can.check_key("partition", partition)?;
        if writes.len() > can.max_batch() {
            let rule = format_args!("must have at most {} entries, has {}", can.max_batch(), writes.len());
            return Err(PortError::invalid("writes", rule));
        }
        let mut rows: Vec<&str> = writes.iter().filter_map(Self::row).collect();
        rows.sort_unstable();
        if let Some(twice) = rows.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(PortError::invalid(
                "writes",
                format_args!("must name each row once, but {:?} occurs twice", twice[0]),
            ));
        }
        writes.iter().try_for_each(|write| write.check(can))?;
        check_appends(writes, &rows)
    }
}

/// Checks the appends of a batch against each other and the rows that the batch names.
fn check_appends(writes: &[Write], rows: &[&str]) -> Result<(), PortError> {
    let mut appended = HashSet::new();
    for write in writes {
        if let Write::Append { sequence, after, .. } = write
            && !appended.insert(sequence.as_str())
            && after.is_some()
        {
            let rule = format_args!("must be set only in the first append to the sequence {sequence:?}");
            return Err(PortError::invalid("after", rule));
        }
    }
    if appended.is_empty() {
        return Ok(());
    }
    // The batch may create this very row.
    let of_appended = |row: &&&str| Sequence::of_row(row).is_some_and(|of| appended.contains(of.as_str()));
    match rows.iter().find(of_appended) {
        Some(row) => {
            let rule = format_args!("must not name {row:?}, a row of a sequence to which the batch appends");
            Err(PortError::invalid("writes", rule))
        }
        None => Ok(()),
    }
}
