//! Numbered documents that never change, under one name, and one head that says which of them is in
//! effect.
//!
//! A publisher writes a document under a row of its own, and then moves the head by
//! compare-and-set. So a crash leaves a row that nothing refers to, and never half a document. The
//! head lists the rows of the latest documents: of two publishers that wrote the same number, it
//! has the one that won.
mod head;
mod looks;

use std::{ops::Bound, sync::Arc, time::Duration};

use bytes::Bytes;

pub(crate) use self::{
    head::{Head, Stage, threshold_for},
    looks::Looks,
};
use crate::{
    port::{AskError, Failure as _, FencingToken, PortError, PortErrorKind, ask},
    record::Unreadable,
    store::{DeleteOptions, Key, Precondition, PutOptions, Row, Scan, Store, StoreError, StoreExt as _, Version},
    time::Clock,
};

/// Row of the head.
const HEAD: &str = "head";

/// Prefix of the rows of documents.
const ROW: &str = "rev ";

/// Text of a time-out.
const LATE: &str = "the store did not answer in time";

/// Length of the longest name of a row: that of a note, with its number and its time.
const LONGEST_ROW: usize = 46;

/// The documents under one name.
#[derive(Clone)]
pub(crate) struct Revisions {
    store: Arc<dyn Store>,
    clock: Clock,
    limit: Duration,
    partition: String,
    /// Token under which the head is written.
    fence: Option<FencingToken>,
}

impl Revisions {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Clock, limit: Duration, partition: String) -> Self {
        Self { store, clock, limit, partition, fence: None }
    }

    /// Returns the same documents, whose head is written under this token. A name has publishers
    /// with tokens, or none has one.
    pub(crate) fn fenced(&self, token: FencingToken) -> Self {
        Self { fence: Some(token), ..self.clone() }
    }

    /// Returns the longest key that is used.
    pub(crate) fn longest_key(&self) -> usize {
        self.partition.len().max(LONGEST_ROW)
    }

    /// Reads the head, and its version; `None` before the first document.
    pub(crate) async fn head(&self) -> Result<Option<(Head, Version)>, StoreError> {
        let Some(record) = self.ask(self.store.get(self.key(HEAD))).await? else { return Ok(None) };
        Ok(Some((Head::decode(record.value)?, record.version)))
    }

    /// Reads a document that the head lists. `None` if it does not list it, or has been replaced
    /// since, and the row was deleted.
    pub(crate) async fn document(&self, head: &Head, number: u64) -> Result<Option<Bytes>, StoreError> {
        let Some(owner) = head.owner(number) else { return Ok(None) };
        let found = self.ask(self.store.get(self.key(&row(number, owner)))).await?;
        Ok(found.map(|record| record.value))
    }

    /// Writes a document under its number and the publisher's random number.
    pub(crate) async fn write(&self, number: u64, owner: u64, document: Bytes) -> Result<(), StoreError> {
        let row = row(number, owner);
        let put = self.store.put(self.key(&row), document, Precondition::Absent.into());
        self.ask(put).await.map(|_| ())
    }

    /// Deletes a document that no head refers to. An error leaves it there, which harms nobody.
    pub(crate) async fn discard(&self, number: u64, owner: u64) {
        let _ = self.ask(self.store.delete(self.key(&row(number, owner)), DeleteOptions::new())).await;
    }

    /// Writes the head as it is, so that it refuses all lower tokens from then on. Returns its
    /// version, or `None` if another process was faster.
    pub(crate) async fn claim(&self, head: &Head, version: Option<Version>) -> Result<Option<Version>, StoreError> {
        match self.ask(self.store.put(self.key(HEAD), head.encode(), self.when(version))).await {
            Ok(version) => Ok(Some(version)),
            Err(StoreError::Conflict { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the options of a write of the head.
    fn when(&self, version: Option<Version>) -> PutOptions {
        let when = version.map_or(Precondition::Absent, Precondition::Version);
        PutOptions { fence: self.fence, ..when.into() }
    }

    /// Reads the documents that the head does not list, with their numbers and the random numbers
    /// of their publishers.
    pub(crate) async fn unlisted(&self, head: &Head) -> Result<Vec<(u64, u64, Bytes)>, StoreError> {
        let mut found = Vec::new();
        let mut scan = Scan::partition(&self.partition).prefix(ROW).limit(10);
        loop {
            let page = self.ask(self.store.scan(&scan)).await?;
            let rows = page.rows.into_iter().filter_map(|row| {
                let (number, owner) = row.row.strip_prefix(ROW)?.split_once(' ')?;
                let (number, owner) = (number.parse().ok()?, u64::from_str_radix(owner, 16).ok()?);
                (head.owner(number) != Some(owner)).then_some((number, owner, row.value))
            });
            found.extend(rows);
            match page.next {
                Some(next) => scan.after = Some(next),
                None => return Ok(found),
            }
        }
    }

    /// Replaces this version of the head. Returns `false` if another process was faster. After a
    /// write whose reply was lost it looks: a document that it has put into effect is still listed
    /// behind a later one. After a conflict, too: a client may have repeated the write by itself.
    pub(crate) async fn move_head(
        &self,
        next: &Head,
        (before, version): (&Head, Option<Version>),
    ) -> Result<bool, StoreError> {
        let put = self.store.put(self.key(HEAD), next.encode(), self.when(version));
        match ask(&self.clock, self.limit, put).await.map_err(|error| error.or_timed_out(LATE)) {
            Ok(_) => Ok(true),
            Err(error) if error.is_conflict() || error.may_have_been_applied() => {
                let ours = next.owner(next.last()).filter(|_| before.last() < next.last());
                match self.head().await {
                    Ok(Some((found, _))) if ours.is_some() && found.owner(next.last()) == ours => Ok(true),
                    _ if error.is_conflict() => Ok(false),
                    Ok(Some((found, _))) if found == *next => Ok(true),
                    _ => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Deletes the documents that the head has dropped from the list that it had before, and those
    /// that no head ever referred to: of this number, and of all that are too old. It reads no
    /// document that is kept. An error leaves them to a later publisher, at the end of the history.
    pub(crate) async fn prune(&self, before: &Head, head: &Head) {
        for (number, owner) in before.rows().filter(|(number, _)| head.owner(*number).is_none()) {
            self.discard(number, owner).await;
        }
        let oldest = head.rows().map(|(number, _)| number).min().unwrap_or_default();
        let (last, owner) = (head.last(), head.owner(head.last()).unwrap_or_default());
        let ours = row(last, owner);
        self.delete(Bound::Included(row(0, 0)), row(oldest, 0)).await;
        self.delete(Bound::Included(row(last, 0)), ours.clone()).await;
        self.delete(Bound::Excluded(ours), row(last + 1, 0)).await;
        self.delete(Bound::Included(notes_of(0)), notes_of(oldest)).await;
    }

    /// Deletes the rows of a range, as far as that is possible.
    async fn delete(&self, from: Bound<String>, to: String) {
        let mut scan = Scan::partition(&self.partition).range(from, Bound::Excluded(to)).limit(10);
        loop {
            let Ok(page) = self.ask(self.store.scan(&scan)).await else { return };
            for found in &page.rows {
                let _ = self.ask(self.store.delete(self.key(&found.row), DeleteOptions::new())).await;
            }
            let Some(next) = page.next else { return };
            scan.after = Some(next);
        }
    }

    /// Notes something about a number, at a time. An error leaves it out.
    pub(crate) async fn note(&self, number: u64, at: u64, text: String) {
        let row = format!("{}{at:020}", notes_of(number));
        let _ = self.ask(self.store.put(self.key(&row), text.into(), PutOptions::new())).await;
    }

    /// Returns the notes about a number, with their times.
    pub(crate) async fn notes(&self, number: u64) -> Result<Vec<(u64, String)>, StoreError> {
        let prefix = notes_of(number);
        let rows = self.ask(self.store.scan_all(Scan::partition(&self.partition).prefix(&prefix))).await?;
        let note = |row: Row| {
            let at = row.row.strip_prefix(&prefix)?.parse().ok()?;
            Some((at, String::from_utf8(row.value.into()).ok()?))
        };
        Ok(rows.into_iter().filter_map(note).collect())
    }

    fn key<'a>(&'a self, row: &'a str) -> Key<'a> {
        Key::new(&self.partition, row)
    }

    /// Makes a request that puts nothing into effect: its failure leaves nothing open.
    async fn ask<T>(&self, request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        ask(&self.clock, self.limit, request).await.map_err(|error| match error {
            AskError::Failed(StoreError::Failed(error)) => error.nothing_applied().into(),
            AskError::Failed(error) => error,
            AskError::TimedOut => PortError::new(PortErrorKind::TimedOut, LATE).into(),
        })
    }
}

/// Returns the row of a document. Rows have the order of their numbers.
fn row(number: u64, owner: u64) -> String {
    format!("{ROW}{number:020} {owner:016x}")
}

/// Returns the prefix of the rows with notes about a number.
fn notes_of(number: u64) -> String {
    format!("step {number:020} ")
}

/// Returns the error for bytes that this release does not know.
pub(crate) fn unreadable(what: &str, why: Unreadable) -> StoreError {
    let (kind, why) = match why {
        Unreadable::TooNew => (PortErrorKind::TooNew, "was written by a newer release"),
        Unreadable::Foreign => (PortErrorKind::Corrupt, "is damaged"),
    };
    PortError::new(kind, format!("{what} {why}")).into()
}
