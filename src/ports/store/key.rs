//! Keys and versions of records.
use std::fmt;

use crate::port::{Capabilities, PortError};

/// The location of a record: a partition, and a row in it.
///
/// Writes to one partition can be batched, and its rows can be scanned in order. Different
/// partitions are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Key<'a> {
    /// The partition key.
    pub partition: &'a str,
    /// The row key within the partition.
    pub row: &'a str,
}

impl<'a> Key<'a> {
    /// Creates the key of this row in this partition.
    pub const fn new(partition: &'a str, row: &'a str) -> Self {
        Self { partition, row }
    }

    /// Rejects a key with a part that is empty, or longer than the backend can hold. For backends.
    ///
    /// # Errors
    /// `Invalid`, with the part's name and the rule.
    pub fn check(&self, can: &Capabilities) -> Result<(), PortError> {
        can.check_key("partition", self.partition)?;
        can.check_key("row", self.row)
    }
}

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{:?}", self.partition, self.row)
    }
}

/// The version of a record: the ETag of cloud tables. Each write creates a new one, which never
/// repeats for that key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(u64);

impl Version {
    /// Creates a version from its number, for backends.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the version's number, for logs and backends.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
