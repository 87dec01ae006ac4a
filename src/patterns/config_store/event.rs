//! Events of configuration stores and of their publishers. They have no values.
use crate::{observe::Traced, port::PortErrorKind};

/// The reason for which a process does not take a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectReason {
    /// The stored bytes have a form that this release does not know.
    Unreadable,
    /// The digest is not that of the documents.
    WrongDigest,
    /// A document is larger than `max_document`.
    TooLarge,
    /// The loader refused it.
    Refused,
    /// The loader panicked.
    Panicked,
    /// The program vetoed it.
    Vetoed,
    /// It ended the process too often.
    Quarantined,
}

impl RejectReason {
    /// All reasons.
    pub const ALL: [Self; 7] = [
        Self::Unreadable,
        Self::WrongDigest,
        Self::TooLarge,
        Self::Refused,
        Self::Panicked,
        Self::Vetoed,
        Self::Quarantined,
    ];

    /// Returns the reason as one word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::WrongDigest => "wrong_digest",
            Self::TooLarge => "too_large",
            Self::Refused => "refused",
            Self::Panicked => "panicked",
            Self::Vetoed => "vetoed",
            Self::Quarantined => "quarantined",
        }
    }
}

/// An event of a [`ConfigStore`](super::ConfigStore).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigStoreEvent {
    /// A revision is in effect in this process.
    Applied {
        /// Number of the one before.
        from: u64,
        /// Its number. A lower one than `from` is a head from a backup, or the end of a roll-out
        /// that was aborted.
        number: u64,
        /// `true` if it changes no layer of this program, and was taken as it is.
        is_same: bool,
    },
    /// The revision is not taken. The one before stays in effect.
    Rejected {
        /// Number of the revision.
        number: u64,
        /// Reason.
        reason: RejectReason,
        /// Field of the settings, or name of the document, if the loader named one.
        field: Option<String>,
    },
    /// A look at the store failed. The revision in effect stays.
    RefreshFailed {
        /// Kind of failure; `None` if the head or its revision is missing.
        kind: Option<PortErrorKind>,
    },
    /// A revision is recorded on trial.
    TrialBegan {
        /// Number of the revision.
        number: u64,
        /// Number of lives that began with it.
        lives: u32,
    },
    /// The revision on trial has run well for its time.
    TrialPassed {
        /// Number of the revision.
        number: u64,
    },
    /// The process started with the last revision that passed its trial here.
    StartedFromLocal {
        /// Number of the revision.
        number: u64,
    },
    /// The local store failed. What was to be recorded is not, and a revision that has not passed
    /// its trial is not taken.
    LocalFailed {
        /// Kind of failure.
        kind: Option<PortErrorKind>,
    },
}

impl Traced for ConfigStoreEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::config_store", tracing::Level::INFO)
    }

    fn trace(&self, name: &str) {
        const TARGET: &str = "steadfast::config_store";
        match self {
            Self::Applied { from, number, is_same } => {
                tracing::info!(target: TARGET, name, from, number, is_same, "revision applied");
            }
            Self::Rejected { number, reason, field } => {
                tracing::warn!(target: TARGET, name, number, reason = reason.as_str(), field, "revision rejected");
            }
            Self::RefreshFailed { kind } => {
                tracing::warn!(target: TARGET, name, ?kind, "the store failed: the last revision stays");
            }
            Self::TrialBegan { number, lives } => {
                tracing::info!(target: TARGET, name, number, lives, "revision on trial");
            }
            Self::TrialPassed { number } => tracing::info!(target: TARGET, name, number, "revision passed its trial"),
            Self::StartedFromLocal { number } => {
                tracing::warn!(target: TARGET, name, number, "started with the last known good revision");
            }
            Self::LocalFailed { kind } => {
                tracing::warn!(target: TARGET, name, ?kind, "the local store failed: no new revision is taken");
            }
        }
    }
}

/// An event of a [`ConfigPublisher`](super::ConfigPublisher).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PublisherEvent {
    /// A revision was published.
    Published {
        /// Its number.
        number: u64,
        /// The author.
        author: String,
        /// Number of the revision whose documents a rollback has published anew.
        source: Option<u64>,
    },
    /// A change was refused by the loader of a reader.
    Refused {
        /// Layers of the reader.
        reader: String,
        /// Field of the settings, or name of the document, if the loader named one.
        field: Option<String>,
    },
}

impl Traced for PublisherEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::config_store", tracing::Level::INFO)
    }

    fn trace(&self, name: &str) {
        const TARGET: &str = "steadfast::config_store";
        match self {
            Self::Published { number, author, source } => {
                tracing::info!(target: TARGET, name, number, author, source, "revision published");
            }
            Self::Refused { reader, field } => {
                tracing::warn!(target: TARGET, name, reader, field, "change refused");
            }
        }
    }
}
