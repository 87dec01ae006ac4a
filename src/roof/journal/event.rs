//! What a journal tells.
use std::time::Duration;

use crate::{observe::Traced, port::PortErrorKind};

/// Something a [`Journal`](super::Journal) did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum JournalEvent {
    /// It took an entry.
    Deferred {
        /// Its key.
        key: String,
    },
    /// An entry could not be taken: the call's own refusal stands.
    DeferFailed {
        /// Its key.
        key: String,
        /// How; `None` where it took too long.
        kind: Option<PortErrorKind>,
    },
    /// An entry was done.
    Replayed {
        /// Its key.
        key: String,
        /// How often it was taken.
        deliveries: u32,
    },
    /// An entry failed while the gate was open: it is tried again later, or was tried for the last time.
    Failed {
        /// Its key.
        key: String,
        /// How often it was taken.
        deliveries: u32,
        /// How.
        error: String,
    },
    /// An entry can never be done, and is set aside.
    Poisoned {
        /// Its key.
        key: String,
        /// Why.
        reason: String,
    },
    /// Entries wait for the gate.
    Waiting {
        /// For how long, as far as is known.
        wait: Duration,
    },
    /// The gate is open: entries are replayed.
    Replaying,
    /// Its settings were changed.
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
            Self::DeferFailed { key, kind } => tracing::warn!(target: TARGET, journal, key, ?kind, "not deferred"),
            Self::Replayed { key, deliveries } => tracing::info!(target: TARGET, journal, key, deliveries, "replayed"),
            Self::Failed { key, deliveries, error } => {
                tracing::warn!(target: TARGET, journal, key, deliveries, error, "replay failed");
            }
            Self::Poisoned { key, reason } => tracing::warn!(target: TARGET, journal, key, reason, "set aside"),
            Self::Waiting { wait } => tracing::info!(target: TARGET, journal, ?wait, "waiting"),
            Self::Replaying => tracing::info!(target: TARGET, journal, "replaying"),
            Self::ConfigChanged => tracing::info!(target: TARGET, journal, "config changed"),
        }
    }
}
