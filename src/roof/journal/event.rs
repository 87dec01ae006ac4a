//! Events of a journal.
use std::time::Duration;

use crate::{observe::Traced, port::PortErrorKind};

/// An event of a [`Journal`](super::Journal).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum JournalEvent {
    /// An entry was deferred.
    Deferred {
        /// Idempotency key of the entry.
        key: String,
    },
    /// An entry could not be deferred, so the rejection of its call was returned.
    DeferFailed {
        /// Idempotency key of the entry.
        key: String,
        /// Kind of the failure, or `None` if the request timed out.
        kind: Option<PortErrorKind>,
    },
    /// An entry was replayed successfully.
    Replayed {
        /// Idempotency key of the entry.
        key: String,
        /// Number of deliveries so far.
        deliveries: u32,
    },
    /// A replay failed while the gate was open. It is tried again later, unless this was the last
    /// attempt.
    Failed {
        /// Idempotency key of the entry.
        key: String,
        /// Number of deliveries so far.
        deliveries: u32,
        /// Error text of the replay.
        error: String,
    },
    /// An entry can never be replayed and becomes a dead letter.
    Poisoned {
        /// Idempotency key of the entry.
        key: String,
        /// Reason that the dead letter carries.
        reason: String,
    },
    /// Entries wait for the gate.
    Waiting {
        /// Expected wait, as far as it is known.
        wait: Duration,
    },
    /// The gate is open again, and entries are replayed.
    Replaying,
    /// The settings were changed.
    ConfigChanged,
}

impl Traced for JournalEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::journal", tracing::Level::INFO)
    }

    fn trace(&self, journal: &str) {
        const TARGET: &str = "steadfast::journal";
        match self {
            Self::Deferred { key } => tracing::info!(target: TARGET, journal, key, "deferred"),
            Self::DeferFailed { key, kind } => tracing::warn!(target: TARGET, journal, key, ?kind, "defer failed"),
            Self::Replayed { key, deliveries } => tracing::info!(target: TARGET, journal, key, deliveries, "replayed"),
            Self::Failed { key, deliveries, error } => {
                tracing::warn!(target: TARGET, journal, key, deliveries, error, "replay failed");
            }
            Self::Poisoned { key, reason } => tracing::warn!(target: TARGET, journal, key, reason, "dead-lettered"),
            Self::Waiting { wait } => tracing::info!(target: TARGET, journal, ?wait, "waiting for the gate"),
            Self::Replaying => tracing::info!(target: TARGET, journal, "replaying"),
            Self::ConfigChanged => tracing::info!(target: TARGET, journal, "config changed"),
        }
    }
}
