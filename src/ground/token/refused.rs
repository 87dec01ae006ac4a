//! The reasons for which a token is refused.
use std::{fmt, time::Duration};

/// Reason for which a token, or a request without one, is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TokenReason {
    /// There is no token.
    Missing,
    /// The token cannot be read, is too large, is nested or encrypted, lacks a required claim, or
    /// came in two headers.
    Malformed,
    /// The algorithm is `none`, unknown, not configured, or does not fit the key.
    Algorithm,
    /// The issuer is not configured.
    Issuer,
    /// The issuer has no such key, or none of its keys is the only one that fits.
    Key,
    /// The signature is wrong.
    Signature,
    /// The token is for another audience.
    Audience,
    /// The token has expired.
    Expired,
    /// The token is not valid yet.
    NotYetValid,
    /// The token lacks a scope.
    Scope,
    /// The keys of the issuer cannot be fetched, so that nothing is known of the token.
    Unavailable,
}

impl TokenReason {
    #[cfg(feature = "metrics")]
    pub(crate) const ALL: [Self; 11] = [
        Self::Missing,
        Self::Malformed,
        Self::Algorithm,
        Self::Issuer,
        Self::Key,
        Self::Signature,
        Self::Audience,
        Self::Expired,
        Self::NotYetValid,
        Self::Scope,
        Self::Unavailable,
    ];

    /// Returns the reason as a word, the same as in events: `not_yet_valid`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::Algorithm => "algorithm",
            Self::Issuer => "issuer",
            Self::Key => "key",
            Self::Signature => "signature",
            Self::Audience => "audience",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::Scope => "scope",
            Self::Unavailable => "unavailable",
        }
    }
}

/// The error for a token that is refused. It never contains a part of the token.
///
/// Its text is for logs. A caller of the service gets no more than the answer of
/// `http::token_answer`, which does not tell one invalid token from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenRefused {
    reason: TokenReason,
    retry_after: Option<Duration>,
}

impl TokenRefused {
    /// Creates an error for this reason.
    pub const fn new(reason: TokenReason) -> Self {
        Self { reason, retry_after: None }
    }

    /// Creates an error for an issuer whose keys can be asked for again after this time.
    pub(crate) const fn unavailable_for(wait: Duration) -> Self {
        Self { reason: TokenReason::Unavailable, retry_after: Some(wait) }
    }

    /// Returns the reason.
    pub const fn reason(&self) -> TokenReason {
        self.reason
    }

    /// Returns the time after which the same token may be accepted; only while the keys of its
    /// issuer are unavailable.
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl From<TokenReason> for TokenRefused {
    fn from(reason: TokenReason) -> Self {
        Self::new(reason)
    }
}

impl fmt::Display for TokenRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.reason {
            TokenReason::Missing => "no token",
            TokenReason::Malformed => "malformed token",
            TokenReason::Algorithm => "algorithm not allowed",
            TokenReason::Issuer => "unknown issuer",
            TokenReason::Key => "unknown key",
            TokenReason::Signature => "wrong signature",
            TokenReason::Audience => "token for another audience",
            TokenReason::Expired => "expired token",
            TokenReason::NotYetValid => "token not valid yet",
            TokenReason::Scope => "token lacks the scope",
            TokenReason::Unavailable => "keys of the issuer unavailable",
        })
    }
}

impl std::error::Error for TokenRefused {}
