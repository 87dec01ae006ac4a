//! Settings of an index table.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require, setters};

/// Settings of an [`IndexTable`](super::IndexTable).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct IndexTableConfig {
    /// Time for which a unique key stays claimed for a row that does not have it, before a put of
    /// another row takes it over; up to as much again is added at random. 1 s by default.
    #[serde(with = "human")]
    pub patience: Duration,
    /// Time for which a tombstone takes the place of a deleted row. No put may be on its way for
    /// more than half of it. The same in all processes of a table. 1 h by default; 1 min and ten
    /// times `patience` at least.
    #[serde(with = "human")]
    pub grace: Duration,
    /// Rows, or entries, that a repair reads at a time. 100 by default.
    pub page: u32,
}

impl Default for IndexTableConfig {
    fn default() -> Self {
        Self { patience: Duration::from_secs(1), grace: Duration::from_secs(3_600), page: 100 }
    }
}

setters! {
    impl IndexTableConfig {
        patience: Duration,
        grace: Duration,
        page: u32,
    }
}

impl IndexTableConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(!self.patience.is_zero(), "patience", "must be longer than zero")?;
        // Several requests, each up to its time limit, and those that go on behind it.
        require(self.grace >= Duration::from_secs(60), "grace", "must be at least 1 min")?;
        require(self.grace >= self.patience.saturating_mul(10), "grace", "must be at least ten times `patience`")?;
        require((1..=10_000).contains(&self.page), "page", "must lie between 1 and 10000")
    }
}
