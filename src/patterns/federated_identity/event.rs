//! Events of a verifier.
use std::time::Duration;

use crate::{config::Name, observe::Traced, token::TokenReason};

/// Reason for which a fetch changed no key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FetchFailure {
    /// The issuer did not answer in time.
    TimedOut,
    /// The user's function failed, with this text.
    Failed(String),
    /// A document is larger than `max_document`, or the set has more keys than `max_keys`.
    TooLarge,
    /// A document is no JSON of the expected form.
    Unparsable,
    /// The set has no key that could be used.
    NoKey,
    /// The discovery document names another issuer.
    OtherIssuer,
    /// The discovery document names a key set without TLS, or on loopback although the issuer is
    /// not there.
    UnsafeAddress,
}

impl FetchFailure {
    /// All words.
    #[cfg(feature = "metrics")]
    pub(crate) const WORDS: [&str; 7] =
        ["timed_out", "failed", "too_large", "unparsable", "no_key", "other_issuer", "unsafe_address"];

    /// Returns the reason as a word, the same as in the metrics: `timed_out`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::TimedOut => "timed_out",
            Self::Failed(_) => "failed",
            Self::TooLarge => "too_large",
            Self::Unparsable => "unparsable",
            Self::NoKey => "no_key",
            Self::OtherIssuer => "other_issuer",
            Self::UnsafeAddress => "unsafe_address",
        }
    }
}

/// An event of a [`TokenVerifier`](super::TokenVerifier). None contains a part of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenVerifierEvent {
    /// A token was refused.
    Refused {
        /// The issuer, if it is a configured one.
        issuer: Option<Name>,
        /// The reason.
        reason: TokenReason,
    },
    /// The keys of an issuer were fetched, and replace those before.
    KeysFetched {
        /// The issuer.
        issuer: Name,
        /// Number of keys.
        keys: usize,
        /// Number of keys that were left out: of unknown types, too short, or different ones with
        /// one id.
        left_out: usize,
    },
    /// A fetch failed, and the keys stay as they are.
    FetchFailed {
        /// The issuer.
        issuer: Name,
        /// The reason.
        why: FetchFailure,
        /// Time for which the keys will still serve; zero if there are none.
        serves_for: Duration,
    },
}

impl Traced for TokenVerifierEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::federated_identity", tracing::Level::WARN)
    }

    fn trace(&self, name: &str) {
        const TARGET: &str = "steadfast::federated_identity";
        match self {
            Self::Refused { issuer, reason } => {
                let (issuer, reason) = (issuer.as_ref().map(Name::as_str), reason.as_str());
                tracing::debug!(target: TARGET, name, issuer, reason, "token refused");
            }
            Self::KeysFetched { issuer, keys, left_out } => {
                tracing::info!(target: TARGET, name, %issuer, keys, left_out, "keys fetched");
            }
            Self::FetchFailed { issuer, why, serves_for } => {
                tracing::warn!(target: TARGET, name, %issuer, ?why, ?serves_for, "keys not fetched");
            }
        }
    }
}
