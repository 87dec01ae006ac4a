//! What is convenient on every store.
use std::future::Future;

use bytes::Bytes;

use super::{Key, Precondition, PutOptions, Record, Row, Scan, Store, StoreError, Version};
use crate::port::FencingToken;

/// What is convenient on every [`Store`]: built on its methods, never implemented by a backend.
pub trait StoreExt: Store {
    /// Puts a record where there is none.
    ///
    /// # Errors
    /// [`Conflict`](StoreError::Conflict) where there is one.
    ///
    /// # Cancel safety
    /// As [`Store::put`].
    fn insert(
        &self,
        key: Key<'_>,
        value: impl Into<Bytes> + Send,
    ) -> impl Future<Output = Result<Version, StoreError>> + Send {
        let value = value.into();
        async move { self.put(key, value, Precondition::Absent.into()).await }
    }

    /// Puts a record in place of this version of it: compare and set.
    ///
    /// # Errors
    /// [`Conflict`](StoreError::Conflict) where it is of another, or absent.
    ///
    /// # Cancel safety
    /// As [`Store::put`].
    fn replace(
        &self,
        key: Key<'_>,
        value: impl Into<Bytes> + Send,
        version: Version,
    ) -> impl Future<Output = Result<Version, StoreError>> + Send {
        let value = value.into();
        async move { self.put(key, value, Precondition::Version(version).into()).await }
    }

    /// Puts a record under a fencing token, unless the key has seen a higher one.
    ///
    /// # Errors
    /// [`Fenced`](StoreError::Fenced) where it has.
    ///
    /// # Cancel safety
    /// As [`Store::put`].
    fn put_fenced(
        &self,
        key: Key<'_>,
        value: impl Into<Bytes> + Send,
        token: FencingToken,
    ) -> impl Future<Output = Result<Version, StoreError>> + Send {
        let value = value.into();
        async move { self.put(key, value, PutOptions::new().fence(token)).await }
    }

    /// Reads the record, lets `change` make the new value from it, and puts that in its place; again from the start whenever
    /// another writer was faster. `change` that gives `None` leaves the record as it is. Gives the record as it is then.
    ///
    /// Of any number of concurrent updates one succeeds in each round, so this ends; under heavy contention give it a time-out.
    ///
    /// # Errors
    /// Any of the store's but a conflict.
    ///
    /// # Cancel safety
    /// The last write is applied whole or not at all.
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

    /// All rows of a scan, page after page. Bound it by the scan's range: they are all held at once.
    ///
    /// # Errors
    /// Any of the store's.
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
}

impl<S: Store + ?Sized> StoreExt for S {}
