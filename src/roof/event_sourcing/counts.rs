//! Totals of a log.
use super::{
    error::CommitError,
    send::{Answer, Done},
};
use crate::sync::{AtomicU64, Ordering};

/// Number of commits under way, and totals of an [`EventStore`](super::EventStore) since it was
/// opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct EventStoreState {
    /// Commits and commands under way.
    pub pending: u32,
    /// Commits that took effect.
    pub committed: u64,
    /// Commits that took effect before, under the same id.
    pub repeated: u64,
    /// Commits that were refused by a version, a claim, a row or an id. Commands that are decided
    /// anew are counted each time.
    pub refused: u64,
    /// Commits that failed because of the store, also those that may have been applied.
    pub failed: u64,
    /// Requests for commits. Those that met share one.
    pub requests: u64,
    /// Requests for commits whose replies were lost.
    pub lost_replies: u64,
}

/// The totals. They are read one by one, and none depends on another.
#[derive(Default)]
pub(super) struct Counts {
    committed: AtomicU64,
    repeated: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    requests: AtomicU64,
    lost_replies: AtomicU64,
}

fn add(total: &AtomicU64, n: usize) {
    total.fetch_add(n as u64, Ordering::Relaxed);
}

impl Counts {
    /// Counts a request for commits.
    pub(super) fn request(&self) {
        add(&self.requests, 1);
    }

    /// Counts a request without a reply.
    pub(super) fn lost_reply(&self) {
        add(&self.lost_replies, 1);
    }

    /// Counts the answer to a job of so many commits.
    pub(super) fn answer(&self, answer: &Answer, commits: usize) {
        match answer {
            Ok(Done::Committed(_)) => add(&self.committed, commits),
            // The others of its job are sent again.
            Ok(Done::Repeated { .. }) => add(&self.repeated, 1),
            Err(CommitError::Store(_)) => add(&self.failed, commits),
            Err(_) => add(&self.refused, commits),
        }
    }

    pub(super) fn state(&self, pending: u32) -> EventStoreState {
        let read = |total: &AtomicU64| total.load(Ordering::Relaxed);
        EventStoreState {
            pending,
            committed: read(&self.committed),
            repeated: read(&self.repeated),
            refused: read(&self.refused),
            failed: read(&self.failed),
            requests: read(&self.requests),
            lost_replies: read(&self.lost_replies),
        }
    }
}
