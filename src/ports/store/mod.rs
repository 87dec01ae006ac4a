//! Keyed records with versions: the store of a pattern's state.
//!
//! The model is that of cloud tables. A record lies under a partition and a row, and has a value
//! (any bytes) and a [`Version`], which changes with each write. A write may require that the
//! record is absent, or still has one version. That is enough for locks, leases, counters, caches
//! and maps, without holding a lock anywhere.
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
//! // A writer with the first version gets a conflict, with the current version.
//! let late = store.replace(key, "cancelled", first).await.unwrap_err();
//! assert!(matches!(late, StoreError::Conflict { current: Some(v), .. } if v == second));
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! Each backend upholds these. The public conformance suite (`testing::conformance`, feature
//! `testing`) checks a backend against them, with one named test for each case.
//!
//! 1. **One winner.** Of any number of concurrent writes that require the same version (or
//!    absence), at most one succeeds. Each other one returns [`StoreError::Conflict`] with the
//!    current version.
//! 2. **Versions never repeat** for a key, also after its record was deleted or expired and was
//!    created again. With [`OrderedVersions`](crate::port::Capability::OrderedVersions) they also
//!    grow. Versions of different keys cannot be compared.
//! 3. **A page is one snapshot** of its partition. A scan continues behind the last row of the
//!    previous page. Rows that do not change are neither missed nor repeated; rows inserted ahead
//!    appear, rows inserted behind do not. Rows are in the order of their bytes.
//! 4. **A batch is all or none.** Its writes are to different rows of one partition.
//! 5. **A record expires by the store's own clock**, its time to live after the write that set it.
//!    From then on it is absent for reads, scans and preconditions. A later write without a time to
//!    live makes it permanent.
//! 6. **A fencing token stays.** A write with a token below the highest that the key has seen is
//!    refused, also after the record was deleted or expired. With the same or a higher token it is
//!    accepted if the precondition holds. Writes without a token are not checked: do not mix the
//!    two on one key.
//! 7. **Keys are any text** of up to [`max_key`](crate::port::Capabilities::max_key) bytes, for the
//!    partition and the row each; neither is empty. A key that the engine cannot hold is refused as
//!    `Invalid` before it is sent; it is never changed. Values are any bytes up to
//!    [`max_value`](crate::port::Capabilities::max_value).
//! 8. **Errors say whether the write may have been applied.** A write without a response is an
//!    error with [`may_have_been_applied`](crate::port::Failure::may_have_been_applied); it is
//!    never repeated silently.
//! 9. **A dropped future** leaves its write applied as a whole or not at all.
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
#[non_exhaustive]
pub struct Record {
    /// The stored value.
    pub value: Bytes,
    /// The version of the record.
    pub version: Version,
}

impl Record {
    /// Creates a record, for backends.
    pub const fn new(value: Bytes, version: Version) -> Self {
        Self { value, version }
    }
}

/// A store of keyed records with versions. The [module's page](self) lists the guarantees;
/// [`StoreExt`] has convenience methods.
///
/// The trait is object-safe: patterns hold an `Arc<dyn Store>`.
pub trait Store: Send + Sync + fmt::Debug {
    /// Returns the capabilities of this backend, and the largest sizes that it accepts.
    fn capabilities(&self) -> Capabilities;

    /// Returns the record, or `None` if there is none.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    fn get<'a>(&'a self, key: Key<'a>) -> BoxFuture<'a, Result<Option<Record>, StoreError>>;

    /// Writes the whole record, and returns its new version.
    ///
    /// # Errors
    /// [`Conflict`](StoreError::Conflict) if the precondition does not hold,
    /// [`Fenced`](StoreError::Fenced) if the fencing token is stale.
    ///
    /// # Cancel safety
    /// If the future is dropped, the write is applied as a whole or not at all, and the caller
    /// cannot tell which: read again.
    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions)
    -> BoxFuture<'a, Result<Version, StoreError>>;

    /// Deletes the record, and returns `true` if there was one.
    ///
    /// A delete with [`Precondition::Absent`] is rejected as invalid, because it could do nothing.
    ///
    /// # Errors
    /// Same as [`put`](Self::put). If a version is required and there is no record, the error is a
    /// conflict with `current: None`.
    ///
    /// # Cancel safety
    /// Same as [`put`](Self::put).
    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Returns one page of a partition.
    ///
    /// A page may hold fewer rows than the limit although more follow, because a backend limits its
    /// size. Only [`Page::next`] tells whether it is the last.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    fn scan<'a>(&'a self, scan: &'a Scan) -> BoxFuture<'a, Result<Page, StoreError>>;

    /// Writes several rows of one partition, all or none. Returns the version of each put and
    /// `None` for each delete, in the order of the writes.
    ///
    /// # Errors
    /// Same as [`put`](Self::put), with the index of the write. `Unsupported` without
    /// [`AtomicBatch`](crate::port::Capability::AtomicBatch). `Invalid` if two writes name one row,
    /// or if there are more than [`max_batch`](Capabilities::max_batch).
    ///
    /// # Cancel safety
    /// Same as [`put`](Self::put).
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
