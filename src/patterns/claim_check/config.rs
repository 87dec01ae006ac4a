//! Settings of a claim check.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, human, require, setters};

/// Settings of a [`ClaimCheck`](super::ClaimCheck).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ClaimCheckConfig {
    /// Size in bytes above which a body goes to the store. 32 KiB by default.
    pub threshold: usize,
    /// If set, bodies are compressed if that shrinks them. Needs the feature `lz4`. On by default.
    pub compress: bool,
    /// Partition of the store for bodies. `claim-check` by default.
    pub partition: String,
    /// Maximum lifetime of a stored body. Unlimited by default.
    #[serde(with = "human::option")]
    pub keep: Option<Duration>,
}

impl Default for ClaimCheckConfig {
    fn default() -> Self {
        Self { threshold: 32 * 1024, compress: true, partition: "claim-check".to_owned(), keep: None }
    }
}

setters! {
    impl ClaimCheckConfig {
        threshold: usize,
        compress: bool,
        partition: impl Into<String>,
        keep: Option<Duration>,
    }
}

impl ClaimCheckConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(!self.partition.is_empty(), "partition", "must not be empty")?;
        require(self.keep.is_none_or(|keep| !keep.is_zero()), "keep", "must be longer than zero")
    }
}
