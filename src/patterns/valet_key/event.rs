//! Events of valet keys.
use super::Operation;
use crate::{config::Name, observe::Traced, port::PortErrorKind};

/// An event of [`ValetKeys`](super::ValetKeys). None contains a key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValetKeyEvent {
    /// A key was issued or renewed.
    Issued {
        /// The id of the key, which it keeps when it is renewed.
        id: Name,
        /// The tag of its grant.
        tag: Option<Name>,
        /// The operation that it is for.
        operation: Operation,
        /// The path or folder that it is for.
        path: Name,
    },
    /// A request with a key was let in.
    Used {
        /// The id of the key.
        id: Name,
        /// The tag of its grant.
        tag: Option<Name>,
        /// The operation.
        operation: Operation,
        /// The path of the request.
        path: Name,
    },
    /// A body of a request that was let in has ended.
    Transferred {
        /// The id of the key.
        id: Name,
        /// The tag of its grant.
        tag: Option<Name>,
        /// Bytes that passed.
        bytes: u64,
        /// `true` if the body ended by itself: neither by an error, nor by a drop, nor at its
        /// limit.
        is_whole: bool,
    },
    /// A request was refused.
    Refused {
        /// The id of the key, if its signature is right.
        id: Option<Name>,
        /// The tag of its grant.
        tag: Option<Name>,
        /// The reason, as a word: see [`KeyRefused::as_str`](super::KeyRefused::as_str).
        why: &'static str,
    },
    /// One key was revoked, or all of a tag.
    Revoked {
        /// The id of the key.
        id: Option<Name>,
        /// The tag.
        tag: Option<Name>,
    },
    /// The store did not answer. Without a refusal after it, a key was let in by
    /// [`OnStoreFailure::Allow`](super::OnStoreFailure::Allow).
    StoreAway {
        /// Kind of the failure; `None` for a time-out.
        kind: Option<PortErrorKind>,
    },
}

impl Traced for ValetKeyEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::valet_key", tracing::Level::WARN)
    }

    fn trace(&self, keys: &str) {
        const TARGET: &str = "steadfast::valet_key";
        let text = |name: &Option<Name>| name.as_ref().map(|name| name.as_str().to_owned());
        match self {
            Self::Issued { id, tag, operation, path } => {
                let (operation, tag) = (operation.as_str(), text(tag));
                tracing::debug!(target: TARGET, keys, %id, tag, operation, %path, "key issued");
            }
            Self::Used { id, tag, operation, path } => {
                let (operation, tag) = (operation.as_str(), text(tag));
                tracing::debug!(target: TARGET, keys, %id, tag, operation, %path, "key used");
            }
            Self::Transferred { id, tag, bytes, is_whole } => {
                tracing::debug!(target: TARGET, keys, %id, tag = text(tag), bytes, is_whole, "body ended");
            }
            Self::Refused { id, tag, why } => {
                tracing::info!(target: TARGET, keys, id = text(id), tag = text(tag), why, "key refused");
            }
            Self::Revoked { id, tag } => {
                tracing::info!(target: TARGET, keys, id = text(id), tag = text(tag), "revoked");
            }
            Self::StoreAway { kind } => {
                tracing::warn!(target: TARGET, keys, ?kind, "the store of revoked keys is away");
            }
        }
    }
}
