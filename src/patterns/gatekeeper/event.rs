//! Events of a trusted host.
use crate::{observe::Traced, port::PortErrorKind, token::TokenReason};

/// An event of a [`TrustedHost`](super::TrustedHost). None contains a part of the content.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrustedHostEvent {
    /// A seal was refused.
    Refused {
        /// The reason.
        reason: TokenReason,
    },
    /// A seal that was used before came again.
    Replayed,
    /// The content behind a valid seal could not be decoded.
    Undecodable,
    /// The store of used seals did not answer, so nothing was opened.
    StoreAway {
        /// Kind of the failure; `None` for a time-out.
        kind: Option<PortErrorKind>,
    },
}

impl Traced for TrustedHostEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::gatekeeper", tracing::Level::WARN)
    }

    fn trace(&self, host: &str) {
        const TARGET: &str = "steadfast::gatekeeper";
        match self {
            Self::Refused { reason } => {
                tracing::warn!(target: TARGET, host, reason = reason.as_str(), "seal refused");
            }
            Self::Replayed => tracing::warn!(target: TARGET, host, "seal used before"),
            Self::Undecodable => tracing::warn!(target: TARGET, host, "content cannot be decoded"),
            Self::StoreAway { kind } => {
                tracing::warn!(target: TARGET, host, ?kind, "the store of used seals is away");
            }
        }
    }
}
