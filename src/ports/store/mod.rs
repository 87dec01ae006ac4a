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
//! # Sequences
//!
//! A sequence is a log within a partition: each append takes the next number, and no reader can
//! miss one. Appends and other writes of a batch take effect together. [`Write::append_after`]
//! requires the last number; [`Write::check_row`] requires the state of a row that the batch does
//! not write.
//!
//! ```
//! use steadfast::store::{
//!     InMemoryStore, Precondition, Scan, Sequence, Store, StoreError, StoreExt, Version, Write,
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), StoreError> {
//! let store = InMemoryStore::new();
//! let placed = Write::append_after("orders/", "placed 42", 0);
//! let stock = Write::put("stock", "9", Precondition::Absent);
//! let done = store.batch("shop", vec![placed, stock]).await?;
//! assert_eq!(done[0], Some(Version::new(1)));
//!
//! // Another writer that has not seen number 1 gets a conflict, and takes no number.
//! let late = store.batch("shop", vec![Write::append_after("orders/", "placed 43", 0)]).await;
//! assert!(matches!(late, Err(StoreError::Conflict { current: Some(v), .. }) if v.as_u64() == 1));
//!
//! // A reader continues behind the last number that it has seen.
//! let orders = Sequence::new("orders/");
//! let rows = store.scan_all(Scan::partition("shop").sequence(orders, 0)).await?;
//! assert_eq!(rows[0].row, "orders/00000000000000000001");
//! assert_eq!(orders.number(&rows[0].row), Some(1));
//! # Ok(())
//! # }
//! ```
//!
//! End a name with a character that it does not contain elsewhere, such as `/`. Rows that begin
//! with the name and another digit, such as those of `orders/2026/`, lie between those of
//! `orders/`; [`Sequence::number`] tells them apart.
//!
//! The store keeps the last number of each sequence for ever, also after all its rows were deleted:
//! the partition, the name and 8 bytes. Put what ends, such as a day or a job, into rows rather
//! than into names of sequences. A sequence stays in its store: appends to another store number
//! anew, and rows that a mover copied there by puts are no sequence, and block the first append.
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
//!    appear, rows inserted behind do not. Rows are in the order of their bytes. A page may hold
//!    fewer rows than the limit, or none, although more follow.
//!    A page of [named rows](Rows::Named) ends at its limit alone: with the limit that
//!    [`Scan::named`] sets, it has all of them as of one moment.
//! 4. **A batch is all or none.** Its writes are to different rows of one partition. Of several
//!    writes that fail, the error names the first in the order of the batch. A
//!    [check](Write::Check) of another row holds at the moment at which the batch takes effect.
//! 5. **A record expires by the store's own clock**, its time to live after the write that set it.
//!    From then on it is absent for reads, scans and preconditions. A later write without a time to
//!    live makes it permanent. Reads and refused writes change no life, and neither does a jump of
//!    the client's wall clock. A life of any length is kept.
//! 6. **A fencing token stays.** Each accepted write with a token raises the fence of its key: a
//!    put, a delete, also of an absent record, and each write of a batch. A write with a lower
//!    token is refused from then on, also after the record was deleted or expired, and the refusal
//!    has precedence over that of the precondition. With the same or a higher token a write is
//!    accepted if the precondition holds. Tokens are compared with all their 64 bits. Writes
//!    without a token are not checked: do not mix the two on one key.
//! 7. **Keys are any text** of up to [`max_key`](crate::port::Capabilities::max_key) bytes, for the
//!    partition and the row each; neither is empty. A key that the engine cannot hold is refused as
//!    `Invalid` before it is sent; it is never changed. Values are any bytes up to
//!    [`max_value`](crate::port::Capabilities::max_value).
//! 8. **Errors say whether the write may have been applied.** A write without a response is an
//!    error with [`may_have_been_applied`](crate::port::Failure::may_have_been_applied); it is
//!    never repeated silently.
//! 9. **A dropped future** leaves its write applied as a whole or not at all.
//! 10. **Numbers of a sequence are dense**, with
//!     [`OrderedAppend`](crate::port::Capability::OrderedAppend): they begin at 1, in the order in
//!     which their batches took effect. A refused batch takes none. The number is the version of
//!     the row, until a put replaces it. None comes twice, also after rows, or all of them, were
//!     deleted. The last one is [`Sequence::LAST`]; an append behind it is refused as `Full`.
//! 11. **A reader passes no number.** If a read returns a row of a sequence, that read and each
//!     later one see all lower ones that were not deleted and have not expired.
//! 12. **Of many appends behind one number one wins.** Each other one is a conflict with the last
//!     number.
//! 13. **Only an append creates a row of a sequence.** Its rows can be replaced and deleted as
//!     others. A put that would create one is refused as `Invalid`, so that no append finds its row
//!     taken. Before the first append such names are free; if rows of that form exist then, the
//!     first append is refused as `Invalid`, until they are deleted. Their versions were no
//!     numbers: guarantee 2 counts from the first append.
//! 14. **With [`Durable`](crate::port::Capability::Durable)**, a restart of the backend changes
//!     none of this: records, versions, TTLs, fences and sequences go on as they were.
mod error;
mod ext;
mod key;
mod memory;
mod scan;
mod sequence;
mod write;

pub use error::{StoreError, StoreFuture};
pub use ext::StoreExt;
pub use key::{Key, Version};
pub use memory::InMemoryStore;
pub use scan::{Continuation, Order, Page, Row, Rows, Scan};
pub use sequence::Sequence;
pub use write::{DeleteOptions, Precondition, PutOptions, Write};

use std::{fmt, sync::Arc};

use bytes::Bytes;

use crate::port::Capabilities;

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
    /// # Errors
    /// `Invalid` for a key that is empty or too long.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    fn get<'a>(&'a self, key: Key<'a>) -> StoreFuture<'a, Option<Record>>;

    /// Writes the whole record, and returns its new version.
    ///
    /// # Errors
    /// [`Fenced`](StoreError::Fenced) if the fencing token is stale, else
    /// [`Conflict`](StoreError::Conflict) if the precondition does not hold. `Invalid` for a key
    /// that is empty or too long, a value that is too large, or a time to live of zero;
    /// `Unsupported` for an option that the backend lacks.
    ///
    /// # Cancel safety
    /// If the future is dropped, the write is applied as a whole or not at all, and the caller
    /// cannot tell which: read again.
    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version>;

    /// Deletes the record, and returns `true` if there was one. With a fencing token it raises the
    /// fence of the key, also if there was none.
    ///
    /// A delete with [`Precondition::Absent`] is rejected as invalid, because it could do nothing.
    ///
    /// # Errors
    /// Same as [`put`](Self::put). If a version is required and there is no record, the error is a
    /// conflict with `current: None`.
    ///
    /// # Cancel safety
    /// Same as [`put`](Self::put).
    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> StoreFuture<'a, bool>;

    /// Returns one page of a partition.
    ///
    /// A page may hold fewer rows than the limit, or none, although more follow: a backend limits
    /// its size, and may skip expired rows. Only [`Page::next`] tells whether it is the last.
    ///
    /// # Errors
    /// `Invalid` for a partition that is empty or too long, or a limit of zero.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    fn scan<'a>(&'a self, scan: &'a Scan) -> StoreFuture<'a, Page>;

    /// Writes several rows of one partition, all or none. Returns the version of each put, the
    /// number of each append as its version, and `None` for each delete and check, in the order of
    /// the writes.
    ///
    /// All requirements are compared with the state before the batch. Several appends to one
    /// sequence take consecutive numbers.
    ///
    /// # Errors
    /// Same as [`put`](Self::put), with the index of the write; the first write that fails is
    /// named. `Unsupported` without [`AtomicBatch`](crate::port::Capability::AtomicBatch), or with
    /// an append without [`OrderedAppend`](crate::port::Capability::OrderedAppend). `Invalid` if
    /// the batch violates a rule of [`Write::check_batch`], if there are more than
    /// [`max_batch`](Capabilities::max_batch) writes, or if a put or a first append would break
    /// guarantee 13.
    ///
    /// # Cancel safety
    /// Same as [`put`](Self::put).
    fn batch<'a>(&'a self, partition: &'a str, writes: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>>;
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }
    fn get<'a>(&'a self, key: Key<'a>) -> StoreFuture<'a, Option<Record>> {
        (**self).get(key)
    }
    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        (**self).put(key, value, options)
    }
    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> StoreFuture<'a, bool> {
        (**self).delete(key, options)
    }
    fn scan<'a>(&'a self, scan: &'a Scan) -> StoreFuture<'a, Page> {
        (**self).scan(scan)
    }
    fn batch<'a>(&'a self, partition: &'a str, writes: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>> {
        (**self).batch(partition, writes)
    }
}
