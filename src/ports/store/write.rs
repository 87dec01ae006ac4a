//! Writes, and their preconditions.
use std::time::Duration;

use bytes::Bytes;

use super::{StoreError, Version};
use crate::{
    config::setters,
    port::{Capabilities, Capability, FencingToken, PortError, check_part},
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

    /// Returns the key of the row that this writes to.
    pub fn row(&self) -> &str {
        match self {
            Self::Put { row, .. } | Self::Delete { row, .. } => row,
        }
    }

    /// Returns the precondition.
    pub const fn when(&self) -> Precondition {
        match self {
            Self::Put { options, .. } => options.when,
            Self::Delete { options, .. } => options.when,
        }
    }

    /// Returns the fencing token.
    pub const fn fence(&self) -> Option<FencingToken> {
        match self {
            Self::Put { options, .. } => options.fence,
            Self::Delete { options, .. } => options.fence,
        }
    }

    /// Rejects a write that violates a rule of all backends, or a limit of this one. Backends call
    /// it before they send anything.
    ///
    /// # Errors
    /// `Invalid` or `Unsupported`, with the name of the field or the capability.
    pub fn check(&self, can: &Capabilities) -> Result<(), PortError> {
        check_part("row", self.row(), can)?;
        if self.fence().is_some() {
            can.require(Capability::Fencing)?;
        }
        match self {
            Self::Put { value, options, .. } => {
                if value.len() > can.max_value() {
                    let rule = format_args!("must be at most {} bytes, is {}", can.max_value(), value.len());
                    return Err(PortError::invalid("value", rule));
                }
                match options.ttl {
                    Some(ttl) if ttl.is_zero() => Err(PortError::invalid("ttl", "must be longer than zero")),
                    Some(_) => Ok(can.require(Capability::TimeToLive)?),
                    None => Ok(()),
                }
            }
            Self::Delete { options, .. } if options.when == Precondition::Absent => {
                Err(PortError::invalid("when", "must not be `Absent` for a delete"))
            }
            Self::Delete { .. } => Ok(()),
        }
    }

    /// Checks a whole batch.
    ///
    /// # Errors
    /// Same as [`check`](Self::check), and `Invalid` if two writes name one row, or if there are
    /// too many writes.
    pub fn check_batch(partition: &str, writes: &[Self], can: &Capabilities) -> Result<(), PortError> {
        can.require(Capability::AtomicBatch)?;
        check_part("partition", partition, can)?;
        if writes.len() > can.max_batch() {
            let rule = format_args!("must have at most {} entries, has {}", can.max_batch(), writes.len());
            return Err(PortError::invalid("writes", rule));
        }
        let mut rows: Vec<&str> = writes.iter().map(Self::row).collect();
        rows.sort_unstable();
        if let Some(twice) = rows.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(PortError::invalid(
                "writes",
                format_args!("must name each row once, but {:?} occurs twice", twice[0]),
            ));
        }
        writes.iter().try_for_each(|write| write.check(can))
    }
}
