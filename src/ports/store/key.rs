//! Where a record lies, and which write of it one has seen.
use std::fmt;

use crate::port::{Capabilities, PortError, check_part};

/// Where a record lies: a partition, and a row in it.
///
/// Writes to one partition can be batched, and its rows scanned in order; different partitions have nothing to do with each
/// other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key<'a> {
    /// The partition.
    pub partition: &'a str,
    /// The row in it.
    pub row: &'a str,
}

impl<'a> Key<'a> {
    /// The key of this row in this partition.
    pub const fn new(partition: &'a str, row: &'a str) -> Self {
        Self { partition, row }
    }

    /// Refuses a key that is empty in a part, or longer than the backend can hold. For backends.
    ///
    /// # Errors
    /// `Invalid`, with the part's name and the rule.
    pub fn check(&self, can: &Capabilities) -> Result<(), PortError> {
        check_part("partition", self.partition, can)?;
        check_part("row", self.row, can)
    }
}

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{:?}", self.partition, self.row)
    }
}

/// Which write a record is of: the classical ETag. It never comes again for that key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(u64);

impl Version {
    /// The version of this number. For backends.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number: for logs, and for backends.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
