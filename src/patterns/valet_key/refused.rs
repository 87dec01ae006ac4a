//! The reasons for which a key is refused.
use std::time::Duration;

use crate::{
    port::PortErrorKind,
    token::{SignError, TokenRefused},
};

/// Reason for which a request with a key is refused. It contains no part of the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyRefused {
    /// The key is malformed, expired, not valid yet, for other keys, or not signed by the ring.
    #[error("key refused: {0}")]
    Token(TokenRefused),
    /// The key is for another operation.
    #[error("key for another operation")]
    Operation,
    /// The key is for another path, or the path is ambiguous.
    #[error("key for another path")]
    Path,
    /// The key is for one use, and was used or revoked before; or one for one use is to be renewed.
    #[error("key used before")]
    Used,
    /// The key, or all of its tag, was revoked.
    #[error("key revoked")]
    Revoked,
    /// The store does not tell whether the key may be used, or a key for one use has none. A key
    /// for one use may be used up.
    #[error("the store of revoked keys is away")]
    Unavailable {
        /// Kind of the store's failure; `None` for a time-out.
        kind: Option<PortErrorKind>,
        /// Time after which the caller may return.
        retry_after: Duration,
    },
    /// A key that is to be renewed cannot be signed.
    #[error(transparent)]
    Sign(SignError),
}

impl KeyRefused {
    /// All words, without those of tokens.
    #[cfg(feature = "metrics")]
    pub(crate) const WORDS: [&str; 5] = ["operation", "path", "used", "revoked", "cannot_sign"];

    /// Returns the reason as a word, the same as in events and metrics: `revoked`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Token(refused) => refused.reason().as_str(),
            Self::Operation => "operation",
            Self::Path => "path",
            Self::Used => "used",
            Self::Revoked => "revoked",
            Self::Unavailable { .. } => "unavailable",
            Self::Sign(_) => "cannot_sign",
        }
    }

    /// Returns the status of an answer over HTTP: 503 while the store is away, 500 for a ring that
    /// cannot sign, and otherwise 403, which does not tell why.
    pub const fn status(&self) -> u16 {
        match self {
            Self::Unavailable { .. } => 503,
            Self::Sign(_) => 500,
            _ => 403,
        }
    }

    /// Returns the time after which the caller may return; only while the store is away.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Unavailable { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }
}
