//! A grant: one operation on one path, or on all paths below a folder.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ValetKeyConfig;
use crate::{
    config::{ConfigError, require},
    strict_path::strict_path,
};

/// An operation on bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Operation {
    /// Reading one path.
    Get,
    /// Writing one path.
    Put,
    /// Reading the names below a folder.
    List,
    /// Deleting one path.
    Delete,
}

impl Operation {
    /// Returns the operation as a word: `get`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::List => "list",
            Self::Delete => "delete",
        }
    }

    /// Returns the operation of a method of HTTP: of `GET`, `HEAD`, `PUT` and `DELETE`. Listing has
    /// no method of its own.
    pub fn of_method(method: &str) -> Option<Self> {
        match method {
            "GET" | "HEAD" => Some(Self::Get),
            "PUT" => Some(Self::Put),
            "DELETE" => Some(Self::Delete),
            _ => None,
        }
    }
}

/// The rights of a key.
///
/// A path that ends with `/` is a folder: the key is valid for all paths below it, by whole
/// segments. Any other path stands for itself alone. Neither begins with `/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub(super) operation: Operation,
    pub(super) path: String,
    pub(super) max_bytes: Option<u64>,
    pub(super) is_single_use: bool,
    pub(super) lifetime: Option<Duration>,
    pub(super) tag: Option<String>,
}

impl Grant {
    /// Grants reading.
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Operation::Get, path)
    }

    /// Grants writing.
    pub fn put(path: impl Into<String>) -> Self {
        Self::new(Operation::Put, path)
    }

    /// Grants reading the names in a folder and in all below it.
    pub fn list(path: impl Into<String>) -> Self {
        Self::new(Operation::List, path)
    }

    /// Grants deleting.
    pub fn delete(path: impl Into<String>) -> Self {
        Self::new(Operation::Delete, path)
    }

    /// Grants this operation.
    pub fn new(operation: Operation, path: impl Into<String>) -> Self {
        let (path, max_bytes, lifetime, tag) = (path.into(), None, None, None);
        Self { operation, path, max_bytes, is_single_use: false, lifetime, tag }
    }

    /// Ends a body after so many bytes; see [`Pass::limit`](super::Pass::limit).
    #[must_use]
    pub const fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Makes the key valid for one request.
    #[must_use]
    pub const fn single_use(mut self) -> Self {
        self.is_single_use = true;
        self
    }

    /// Sets the time for which the key is valid.
    #[must_use]
    pub const fn expires_in(mut self, lifetime: Duration) -> Self {
        self.lifetime = Some(lifetime);
        self
    }

    /// Names the holder, by whose tag all keys are revoked together. It is readable in the key.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Checks the grant, and returns the time for which its key is valid.
    pub(super) fn check(&self, config: &ValetKeyConfig, has_store: bool) -> Result<Duration, ConfigError> {
        let is_some = !self.path.is_empty() && self.path != "/";
        require(is_some, "path", "must not be empty: a key for everything is refused")?;
        let is_strict = self.path.len() <= MAX_PATH && strict_path(&format!("/{}", self.path)).is_ok();
        require(is_strict, "path", "must be a strict path of at most 1,024 bytes that does not begin with `/`")?;
        require(!self.is_single_use || has_store, "single_use", "must have a store: make the keys revocable")?;
        let is_name = |tag: &String| (1..=MAX_TAG).contains(&tag.len());
        require(self.tag.as_ref().is_none_or(is_name), "tag", "must have 1 to 128 bytes")?;
        let lifetime = self.lifetime.unwrap_or(config.lifetime);
        let is_allowed = !lifetime.is_zero() && lifetime <= config.max_lifetime;
        require(is_allowed, "expires_in", "must be some time, and at most `max_lifetime`")?;
        Ok(lifetime)
    }
}

/// Longest path, and longest tag, in bytes.
const MAX_PATH: usize = 1024;
pub(super) const MAX_TAG: usize = 128;

/// Returns `true` if a key for `granted` is valid for this operation on `path`. Neither begins with
/// `/`.
pub(super) fn covers(granted: &str, operation: Operation, path: &str) -> bool {
    // A folder can be listed, and nothing else be done with it.
    if path.ends_with('/') && operation != Operation::List || path.is_empty() {
        return false;
    }
    match granted.ends_with('/') {
        true => path.starts_with(granted),
        false => path == granted,
    }
}
