//! Convenience methods of stores.
use std::future::Future;

use bytes::Bytes;

use super::{DeleteOptions, Key, Precondition, PutOptions, Record, Row, Scan, Store, StoreError, Version, Write};
use crate::port::{Capability, FencingToken};

/// Convenience methods of every [`Store`], built on its own methods. Backends do not implement
/// them.
pub trait StoreExt: Store {
    /// Writes a record if none exists.
    ///
    /// # Errors
    /// [`Conflict`](StoreError::Conflict) if one exists.
    ///
    /// # Cancel safety
    /// Same as [`Store::put`].
    fn insert(
        &self,
        key: Key<'_>,
        value: impl Into<Bytes> + Send,
    ) -> impl Future<Output = Result<Version, StoreError>> + Send {
        let value = value.into();
        async move { self.put(key, value, Precondition::Absent.into()).await }
    }

    /// Replaces this version of a record: a compare-and-set.
    ///
    /// # Errors
    /// [`Conflict`](StoreError::Conflict) if the record has another version, or is absent.
    ///
    /// # Cancel safety
    /// Same as [`Store::put`].
    fn replace(
        &self,
        key: Key<'_>,
        value: impl Into<Bytes> + Send,
        version: Version,
    ) -> impl Future<Output = Result<Version, StoreError>> + Send {
        let value = value.into();
        async move { self.put(key, value, Precondition::Version(version).into()).await }
    }

    /// Writes a record under a fencing token, unless the key has seen a higher one.
    ///
    /// # Errors
    /// [`Fenced`](StoreError::Fenced) if the key has seen a higher token.
    ///
    /// # Cancel safety
    /// Same as [`Store::put`].
    fn put_fenced(
        &self,
        key: Key<'_>,
        value: impl Into<Bytes> + Send,
        token: FencingToken,
    ) -> impl Future<Output = Result<Version, StoreError>> + Send {
        let value = value.into();
        async move { self.put(key, value, PutOptions::new().fence(token)).await }
    }

    /// Reads the record, computes its new value with `change`, and replaces it. Starts again if
    /// another writer was faster. If `change` returns `None`, the record stays unchanged. Returns
    /// the record as it is afterwards.
    ///
    /// In each round one of the concurrent updates succeeds, so that all of them end. Under heavy
    /// contention set a time-out.
    ///
    /// # Errors
    /// Any error of the store except a conflict.
    ///
    /// # Cancel safety
    /// The last write is applied as a whole or not at all.
    fn update(
        &self,
        key: Key<'_>,
        mut change: impl FnMut(Option<&Record>) -> Option<Bytes> + Send,
    ) -> impl Future<Output = Result<Option<Record>, StoreError>> + Send {
        async move {
            loop {
                let old = self.get(key).await?;
                let Some(value) = change(old.as_ref()) else { return Ok(old) };
                let when = old.map_or(Precondition::Absent, |record| Precondition::Version(record.version));
                match self.put(key, value.clone(), when.into()).await {
                    Ok(version) => return Ok(Some(Record { value, version })),
                    Err(StoreError::Conflict { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Returns all rows of a scan, page after page. All rows are in memory at once: limit them by
    /// the scan's range.
    ///
    /// # Errors
    /// Any error of the store.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    fn scan_all(&self, mut scan: Scan) -> impl Future<Output = Result<Vec<Row>, StoreError>> + Send {
        async move {
            let mut rows = Vec::new();
            loop {
                let page = self.scan(&scan).await?;
                rows.extend(page.rows);
                match page.next {
                    Some(next) => scan.after = Some(next),
                    None => return Ok(rows),
                }
            }
        }
    }

    /// Deletes all rows of a scan, page after page, and returns their number. With
    /// [`AtomicBatch`](Capability::AtomicBatch) a page is deleted as a whole or not at all.
    ///
    /// Rows are deleted whatever their versions are. A row that is inserted ahead of the scan
    /// meanwhile is deleted, one that is inserted behind it is not. If another task deletes the
    /// same rows, both may count them.
    ///
    /// # Errors
    /// Any error of the store. The pages before it are deleted; the same call again deletes the
    /// rest.
    ///
    /// # Cancel safety
    /// The pages before the last request are deleted. The same call again deletes the rest.
    fn delete_scanned(&self, mut scan: Scan) -> impl Future<Output = Result<u64, StoreError>> + Send {
        async move {
            let can = self.capabilities();
            // One page is one batch.
            scan.limit = scan.limit.min(can.max_batch());
            let mut deleted = 0;
            loop {
                let page = self.scan(&scan).await?;
                if can.has(Capability::AtomicBatch) && !page.rows.is_empty() {
                    let writes = page.rows.iter().map(|row| Write::delete(&*row.row, DeleteOptions::new()));
                    self.batch(&scan.partition, writes.collect()).await?;
                    deleted += page.rows.len() as u64;
                } else {
                    for row in &page.rows {
                        let key = Key::new(&scan.partition, &row.row);
                        deleted += u64::from(self.delete(key, DeleteOptions::new()).await?);
                    }
                }
                match page.next {
                    Some(next) => scan.after = Some(next),
                    None => return Ok(deleted),
                }
            }
        }
    }
}

impl<S: Store + ?Sized> StoreExt for S {}
