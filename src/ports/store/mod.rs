//! Keyed records with versions: where patterns keep their state.
//!
//! The model is the classical cloud table. A record lies under a partition and a row, and has a value (any bytes) and a
//! [`Version`], which changes with each write; a write may ask that the record be absent, or be of one version still. That is
//! enough to build locks, leases, counters, caches and maps on, without a lock held anywhere.
//!
//! ```
//! use steadfast::store::{InMemoryStore, Key, Precondition, Store, StoreError, StoreExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), StoreError> {
//! let store = InMemoryStore::new();
//! let key = Key::new("orders", "42");
//!
//! let first = store.insert(key, "placed").await?;
//! let second = store.replace(key, "paid", first).await?;
//!
//! // Whoever still holds the first version learns that the world moved on, and where it is now.
//! let late = store.replace(key, "cancelled", first).await.unwrap_err();
//! assert!(matches!(late, StoreError::Conflict { current: Some(v), .. } if v == second));
//! # Ok(())
//! # }
//! ```
//!
//! # The contract, for those who write a backend
//!
//! The public conformance suite (`testing::conformance`, feature `testing`) holds a backend to each of these by name.
//!
//! 1. **One winner.** Of any number of concurrent writes that ask for the same version (or for absence) at most one succeeds; each
//!    other gets [`StoreError::Conflict`] with the version that is current.
//! 2. **Versions never repeat** for a key, also after it was deleted, or ended, and was made again. With
//!    [`OrderedVersions`](crate::port::Capability::OrderedVersions) they grow, too. Two versions of different keys mean nothing
//!    beside each other.
//! 3. **A page is one snapshot** of its partition. A scan goes on behind the last row of the page before: rows that stand still are
//!    neither missed nor doubled, rows inserted ahead appear, rows inserted behind do not. Rows are in the order of their bytes.
//! 4. **A batch is all or none.** Its writes are to one partition and to rows that differ.
//! 5. **A record ends by the store's own clock**, its time to live after the write that gave it one. From then on it is absent: for reads,
//!    scans and preconditions. A later write without a time to live makes it last.
//! 6. **A fence stays.** A write with a fencing token below the highest that the key has seen is refused, also after the record
//!    was deleted or ended; with the same or a higher one it goes through, if the precondition holds. Writes without a token are
//!    not checked: do not mix them on one key.
//! 7. **Keys are any text** up to [`max_key`](crate::port::Capabilities::max_key) bytes, a partition and a row each, no part empty; what
//!    the engine cannot hold is refused as `Invalid` before it is sent, never changed. Values are any bytes up to
//!    [`max_value`](crate::port::Capabilities::max_value).
//! 8. **Errors say whether the write may have been applied.** A write whose reply was lost is an error with
//!    [`may_have_been_applied`](crate::port::Failure::may_have_been_applied), never silently repeated.
//! 9. **A dropped future** leaves its write applied whole or not at all.
mod error;
mod ext;
mod key;
mod memory;
mod scan;
mod write;

pub use error::StoreError;
pub use ext::StoreExt;
pub use key::{Key, Version};
pub use memory::InMemoryStore;
pub use scan::{Continuation, Order, Page, Row, Rows, Scan};
pub use write::{DeleteOptions, Precondition, PutOptions, Write};

use std::{fmt, sync::Arc};

use bytes::Bytes;

use crate::port::{BoxFuture, Capabilities};

/// A record as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// What is stored.
    pub value: Bytes,
    /// Which write stored it.
    pub version: Version,
}

/// Keyed records with versions. The [module's page](self) has the contract; [`StoreExt`] has what is convenient.
///
/// Object-safe: patterns hold an `Arc<dyn Store>`.
pub trait Store: Send + Sync + fmt::Debug {
    /// What this backend can do, and how large what it takes may be.
    fn capabilities(&self) -> Capabilities;

    /// The record, or `None` where there is none.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    fn get<'a>(&'a self, key: Key<'a>) -> BoxFuture<'a, Result<Option<Record>, StoreError>>;

    /// Writes the record whole, and gives its new version.
    ///
    /// # Errors
    /// [`Conflict`](StoreError::Conflict) where the precondition does not hold, [`Fenced`](StoreError::Fenced) where the fencing
    /// token is too low.
    ///
    /// # Cancel safety
    /// When the future is dropped the write is applied whole or not at all, and nobody is told which: read again.
    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions)
    -> BoxFuture<'a, Result<Version, StoreError>>;

    /// Deletes the record, and says whether there was one.
    ///
    /// With [`Precondition::Absent`] it is refused as invalid: it could do nothing.
    ///
    /// # Errors
    /// As [`put`](Self::put). A version that is asked for of a record that is not there is a conflict with `current: None`.
    ///
    /// # Cancel safety
    /// As [`put`](Self::put).
    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// One page of a partition.
    ///
    /// A page may hold fewer rows than the limit although more follow (a backend caps its size); only
    /// [`Page::next`] says whether it was the last.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    fn scan<'a>(&'a self, scan: &'a Scan) -> BoxFuture<'a, Result<Page, StoreError>>;

    /// Writes to several rows of one partition, all or none; gives each put's version, and `None` for each delete, in the order of
    /// the writes.
    ///
    /// # Errors
    /// As [`put`](Self::put); the error names the write by its place. `Unsupported` without
    /// [`AtomicBatch`](crate::port::Capability::AtomicBatch); `Invalid` where two writes name one row, or where there are more than
    /// [`max_batch`](Capabilities::max_batch).
    ///
    /// # Cancel safety
    /// As [`put`](Self::put).
    fn batch<'a>(
        &'a self,
        partition: &'a str,
        writes: Vec<Write>,
    ) -> BoxFuture<'a, Result<Vec<Option<Version>>, StoreError>>;
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }
    fn get<'a>(&'a self, key: Key<'a>) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        (**self).get(key)
    }
    fn put<'a>(
        &'a self,
        key: Key<'a>,
        value: Bytes,
        options: PutOptions,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        (**self).put(key, value, options)
    }
    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> BoxFuture<'a, Result<bool, StoreError>> {
        (**self).delete(key, options)
    }
    fn scan<'a>(&'a self, scan: &'a Scan) -> BoxFuture<'a, Result<Page, StoreError>> {
        (**self).scan(scan)
    }
    fn batch<'a>(
        &'a self,
        partition: &'a str,
        writes: Vec<Write>,
    ) -> BoxFuture<'a, Result<Vec<Option<Version>>, StoreError>> {
        (**self).batch(partition, writes)
    }
}
