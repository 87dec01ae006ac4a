//! A write, and what it asks of the record before it.
use std::time::Duration;

use bytes::Bytes;

use super::{StoreError, Version};
use crate::port::{Capabilities, Capability, FencingToken, PortError, check_part};

/// What a write asks of the record before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precondition {
    /// Nothing: whatever is there, or nothing.
    #[default]
    Any,
    /// That there is none.
    Absent,
    /// That it is of this version still.
    Version(Version),
}

impl Precondition {
    /// Whether a record of this version, or none, is as asked. For backends.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] of write 0.
    pub fn check(self, current: Option<Version>) -> Result<(), StoreError> {
        let holds = match self {
            Self::Any => true,
            Self::Absent => current.is_none(),
            Self::Version(wanted) => current == Some(wanted),
        };
        if holds { Ok(()) } else { Err(StoreError::Conflict { write: 0, current }) }
    }
}

/// How to put a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PutOptions {
    /// What is asked of the record before it. Nothing by default.
    pub when: Precondition,
    /// After how long the record ends, by the store's own clock. Never by default.
    pub ttl: Option<Duration>,
    /// The token of the lease under which it is written: refused if the key has seen a higher one. None by default.
    pub fence: Option<FencingToken>,
}

/// How to delete a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct DeleteOptions {
    /// What is asked of the record. Nothing by default.
    pub when: Precondition,
    /// The token of the lease under which it is deleted: refused if the key has seen a higher one. None by default.
    pub fence: Option<FencingToken>,
}

impl PutOptions {
    /// Asks nothing, lasts, is not fenced.
    pub const fn new() -> Self {
        Self { when: Precondition::Any, ttl: None, fence: None }
    }

    /// Sets what is asked of the record before it.
    #[must_use]
    pub const fn when(mut self, when: Precondition) -> Self {
        self.when = when;
        self
    }

    /// Sets after how long the record ends.
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Sets the token of the lease under which it is written.
    #[must_use]
    pub const fn fence(mut self, token: FencingToken) -> Self {
        self.fence = Some(token);
        self
    }
}

impl DeleteOptions {
    /// Asks nothing, is not fenced.
    pub const fn new() -> Self {
        Self { when: Precondition::Any, fence: None }
    }

    /// Sets what is asked of the record.
    #[must_use]
    pub const fn when(mut self, when: Precondition) -> Self {
        self.when = when;
        self
    }

    /// Sets the token of the lease under which it is deleted.
    #[must_use]
    pub const fn fence(mut self, token: FencingToken) -> Self {
        self.fence = Some(token);
        self
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
pub enum Write {
    /// As [`Store::put`](super::Store::put).
    Put {
        /// The row.
        row: String,
        /// What to store.
        value: Bytes,
        /// How.
        options: PutOptions,
    },
    /// As [`Store::delete`](super::Store::delete).
    Delete {
        /// The row.
        row: String,
        /// How.
        options: DeleteOptions,
    },
}

impl Write {
    /// Puts a record in this row.
    pub fn put(row: impl Into<String>, value: impl Into<Bytes>, options: impl Into<PutOptions>) -> Self {
        Self::Put { row: row.into(), value: value.into(), options: options.into() }
    }

    /// Deletes the record in this row.
    pub fn delete(row: impl Into<String>, options: impl Into<DeleteOptions>) -> Self {
        Self::Delete { row: row.into(), options: options.into() }
    }

    /// The row that it writes to.
    pub fn row(&self) -> &str {
        match self {
            Self::Put { row, .. } | Self::Delete { row, .. } => row,
        }
    }

    /// What it asks of the record.
    pub const fn when(&self) -> Precondition {
        match self {
            Self::Put { options, .. } => options.when,
            Self::Delete { options, .. } => options.when,
        }
    }

    /// The token under which it is made.
    pub const fn fence(&self) -> Option<FencingToken> {
        match self {
            Self::Put { options, .. } => options.fence,
            Self::Delete { options, .. } => options.fence,
        }
    }

    /// Refuses what breaks a rule that every backend has, or that this one states. For backends: call it before anything is
    /// sent.
    ///
    /// # Errors
    /// `Invalid` or `Unsupported`, by name.
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
                Err(PortError::invalid("when", "must not ask that the record to delete be absent"))
            }
            Self::Delete { .. } => Ok(()),
        }
    }

    /// The same for a whole batch.
    ///
    /// # Errors
    /// As [`check`](Self::check); also where two writes name one row, or where there are too many.
    pub fn check_batch(partition: &str, writes: &[Self], can: &Capabilities) -> Result<(), PortError> {
        can.require(Capability::AtomicBatch)?;
        check_part("partition", partition, can)?;
        if writes.len() > can.max_batch() {
            let rule = format_args!("must be at most {} writes, are {}", can.max_batch(), writes.len());
            return Err(PortError::invalid("writes", rule));
        }
        let mut rows: Vec<&str> = writes.iter().map(Self::row).collect();
        rows.sort_unstable();
        if let Some(twice) = rows.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(PortError::invalid(
                "writes",
                format_args!("must name each row once, {:?} is there twice", twice[0]),
            ));
        }
        writes.iter().try_for_each(|write| write.check(can))
    }
}
