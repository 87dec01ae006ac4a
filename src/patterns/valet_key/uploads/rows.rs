//! The rows of uploads in their store.
use std::{future::Future, sync::Arc, time::Duration};

use super::row::{Outstanding, Share, Upload, decode, encode};
use crate::{
    config::Name,
    port::{PortError, PortErrorKind, ask},
    store::{Continuation, DeleteOptions, Key, Page, Precondition, PutOptions, Row, Scan, Store, StoreError, Version},
    time::{Clock, Timestamp},
};

const PARTITION: &str = "valet-upload";

/// Rows of one page of a sweep.
const PAGE: usize = 100;

/// The rows of all uploads of one name: `open` ones, `done` ones and those of a `tag`.
pub(super) struct Rows {
    pub(super) store: Arc<dyn Store>,
    pub(super) name: Name,
    pub(super) clock: Clock,
    pub(super) call_timeout: Duration,
}

impl Rows {
    fn row(&self, kind: &str, name: &str) -> String {
        format!("{}/{kind}/{name}", self.name)
    }

    async fn ask<T>(&self, request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let asked = ask(&self.clock, self.call_timeout, request).await;
        asked.map_err(|error| error.or_timed_out("the store of uploads did not answer in time"))
    }

    /// Writes a row, and returns its version, or `None` if the precondition does not hold.
    async fn put(&self, row: &str, value: bytes::Bytes, options: PutOptions) -> Result<Option<Version>, StoreError> {
        match self.ask(self.store.put(Key::new(PARTITION, row), value, options)).await {
            Ok(version) => Ok(Some(version)),
            Err(error) if error.is_conflict() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn delete(&self, row: &str, version: Version) -> Result<bool, StoreError> {
        let options = DeleteOptions::new().when(Precondition::Version(version));
        match self.ask(self.store.delete(Key::new(PARTITION, row), options)).await {
            Ok(was_there) => Ok(was_there),
            Err(error) if error.is_conflict() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns an upload that is not forgotten.
    pub(super) async fn upload(&self, id: &str) -> Result<Option<(Upload, Version)>, StoreError> {
        let row = self.row("open", id);
        let record = self.ask(self.store.get(Key::new(PARTITION, &row))).await?;
        Ok(record.map(|record| decode(&record.value).map(|upload| (upload, record.version))).transpose()?)
    }

    /// Returns an upload of which the result alone is kept.
    pub(super) async fn result(&self, id: &str) -> Result<Option<Upload>, StoreError> {
        let row = self.row("done", id);
        let record = self.ask(self.store.get(Key::new(PARTITION, &row))).await?;
        Ok(record.map(|record| decode(&record.value)).transpose()?)
    }

    /// Inserts an upload, and returns its version.
    pub(super) async fn insert(&self, id: &str, upload: &Upload) -> Result<Option<Version>, StoreError> {
        self.put(&self.row("open", id), encode(upload), PutOptions::new().when(Precondition::Absent)).await
    }

    /// Replaces an upload, and returns its version, or `None` if it was changed meanwhile.
    pub(super) async fn replace(
        &self,
        id: &str,
        upload: &Upload,
        version: Version,
    ) -> Result<Option<Version>, StoreError> {
        self.put(&self.row("open", id), encode(upload), PutOptions::new().when(Precondition::Version(version))).await
    }

    /// Removes an upload, unless it was changed meanwhile.
    pub(super) async fn remove(&self, id: &str, version: Version) -> Result<bool, StoreError> {
        self.delete(&self.row("open", id), version).await
    }

    /// Keeps the result of an upload.
    pub(super) async fn keep(&self, id: &str, upload: &Upload, ttl: Duration) -> Result<(), StoreError> {
        self.put(&self.row("done", id), encode(upload), PutOptions::new().ttl(ttl)).await.map(|_| ())
    }

    /// Adds an upload to the outstanding ones of a tag. Returns the time at which there may be room
    /// for it if there is none now.
    pub(super) async fn take(
        &self,
        tag: &str,
        (id, share, max): (&str, Share, u64),
        (now, grace): (Timestamp, Duration),
    ) -> Result<Result<(), Timestamp>, StoreError> {
        let row = self.row("tag", tag);
        loop {
            let (mut outstanding, when) = self.outstanding(&row).await?;
            if !outstanding.add(id, share, max) {
                // A process that was paused while it began one has added it after its end.
                for overdue in outstanding.overdue(now, grace) {
                    match self.upload(&overdue).await {
                        Ok(None) => {
                            outstanding.uploads.remove(&overdue);
                        }
                        Ok(Some(_)) => {}
                        // One that cannot be read is there, and stops no other.
                        Err(StoreError::Failed(error)) if is_unreadable(&error) => {}
                        Err(error) => return Err(error),
                    }
                }
                if !outstanding.add(id, share, max) {
                    return Ok(Err(outstanding.first_end(grace).unwrap_or(now)));
                }
            }
            if self.put(&row, encode(&outstanding), PutOptions::new().when(when)).await?.is_some() {
                return Ok(Ok(()));
            }
        }
    }

    /// Takes an upload from the outstanding ones of a tag, if it is one of them.
    pub(super) async fn give_back(&self, tag: &str, id: &str) -> Result<(), StoreError> {
        let row = self.row("tag", tag);
        loop {
            let (mut outstanding, when) = self.outstanding(&row).await?;
            let (Some(_), Precondition::Version(version)) = (outstanding.uploads.remove(id), when) else {
                return Ok(());
            };
            let is_done = match outstanding.uploads.is_empty() {
                true => self.delete(&row, version).await?,
                false => self.put(&row, encode(&outstanding), PutOptions::new().when(when)).await?.is_some(),
            };
            if is_done {
                return Ok(());
            }
        }
    }

    async fn outstanding(&self, row: &str) -> Result<(Outstanding, Precondition), StoreError> {
        let record = self.ask(self.store.get(Key::new(PARTITION, row))).await?;
        Ok(match record {
            Some(record) => (decode(&record.value)?, Precondition::Version(record.version)),
            None => (Outstanding::default(), Precondition::Absent),
        })
    }

    /// Returns a page of the uploads that are not forgotten.
    pub(super) async fn page(&self, after: Option<Continuation>) -> Result<Page, StoreError> {
        let mut scan = Scan::partition(PARTITION).prefix(self.row("open", "")).limit(PAGE);
        scan.after = after;
        self.ask(self.store.scan(&scan)).await
    }

    /// Returns the id of a row of a page, its upload and its version.
    pub(super) fn read(&self, row: &Row) -> (String, Result<(Upload, Version), StoreError>) {
        let id = row.row.strip_prefix(&self.row("open", "")).unwrap_or_default().to_owned();
        (id, decode(&row.value).map(|upload| (upload, row.version)).map_err(Into::into))
    }
}

fn is_unreadable(error: &PortError) -> bool {
    matches!(error.kind(), PortErrorKind::Corrupt | PortErrorKind::TooNew)
}
