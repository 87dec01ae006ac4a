//! Events of index tables.
use crate::observe::Traced;

/// An event of an [`IndexTable`](super::IndexTable).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum IndexTableEvent {
    /// A look-up left out entries whose rows no longer have the key.
    StaleEntries {
        /// Name of the index.
        index: String,
        /// Number of entries.
        entries: u64,
    },
    /// A put took over a unique key whose owner did not have it.
    TookOver {
        /// Name of the index.
        index: String,
    },
    /// A repair has ended.
    Repaired {
        /// Number of entries that were missing, and were added.
        added: u64,
        /// Number of stale entries that were removed.
        removed: u64,
        /// Number of rows that do not decode.
        unreadable: u64,
    },
    /// A repair found an index that no process has looked up.
    NeverLookedUp {
        /// Name of the index.
        index: String,
    },
    /// A repair found a key with more than a tenth of the entries of its index.
    CoarseKey {
        /// Name of the index.
        index: String,
        /// First part of the key.
        key: String,
        /// Number of its entries.
        entries: u64,
        /// Number of all entries of the index.
        all: u64,
    },
}

const TARGET: &str = "steadfast::index_table";

impl Traced for IndexTableEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::index_table", tracing::Level::INFO)
    }

    fn trace(&self, table: &str) {
        match self {
            Self::StaleEntries { index, entries } => {
                tracing::trace!(target: TARGET, table, index, entries, "stale entries were left out");
            }
            Self::TookOver { index } => tracing::info!(target: TARGET, table, index, "a unique key was taken over"),
            Self::Repaired { added, removed, unreadable } => {
                tracing::info!(target: TARGET, table, added, removed, unreadable, "repaired");
            }
            Self::NeverLookedUp { index } => {
                tracing::warn!(target: TARGET, table, index, "the index was never looked up");
            }
            Self::CoarseKey { index, key, entries, all } => {
                tracing::warn!(target: TARGET, table, index, key, entries, all, "a key has over a tenth of the entries");
            }
        }
    }
}
