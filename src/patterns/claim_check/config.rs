//! Settings of a claim check.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require};

/// Settings of a [`ClaimCheck`](super::ClaimCheck).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ClaimCheckConfig {
    /// Bodies of more bytes go to the store. 32 KiB by default.
    pub threshold: usize,
    /// Whether bodies are compressed where that shrinks them; needs the feature `lz4`. On by default.
    pub compress: bool,
    /// The partition of the store where bodies lie. `claim-check` by default.
    pub partition: String,
    /// How long a stored body lasts at most. For ever by default.
    #[serde(with = "human::option")]
    pub keep: Option<Duration>,
}

impl Default for ClaimCheckConfig {
    fn default() -> Self {
        Self { threshold: 32 * 1024, compress: true, partition: "claim-check".to_owned(), keep: None }
    }
}

impl ClaimCheckConfig {
    /// Sets above how many bytes bodies go to the store.
    #[must_use]
    pub const fn threshold(mut self, bytes: usize) -> Self {
        self.threshold = bytes;
        self
    }

    /// Sets whether bodies are compressed.
    #[must_use]
    pub const fn compress(mut self, compress: bool) -> Self {
        self.compress = compress;
        self
    }

    /// Sets how long a stored body lasts at most.
    #[must_use]
    pub const fn keep(mut self, keep: Duration) -> Self {
        self.keep = Some(keep);
        self
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(!self.partition.is_empty(), "partition", "must not be empty")?;
        require(self.keep.is_none_or(|keep| !keep.is_zero()), "keep", "must be longer than zero")
    }
}
