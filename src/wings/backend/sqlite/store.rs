//! The store in a SQLite file.
use std::{fmt, sync::Arc};

use bytes::Bytes;
use rusqlite::Connection;

use super::{
    handle::SqliteCore,
    store_sql::{self, Applied},
};
use crate::{
    port::{Capabilities, Capability, PortError},
    store::{DeleteOptions, Key, Page, PutOptions, Record, Scan, Store, StoreError, StoreFuture, Version, Write},
};

/// The store in a SQLite file, from [`Sqlite::store`](super::Sqlite::store). A clone is the same
/// store.
#[derive(Clone)]
pub struct SqliteStore(pub(super) Arc<SqliteCore>);

const CAN: Capabilities = Capabilities::of(
    "sqlite",
    &[
        Capability::Durable,
        Capability::Shared,
        Capability::Linearizable,
        Capability::AtomicBatch,
        Capability::OrderedVersions,
        Capability::Fencing,
        Capability::OrderedAppend,
        Capability::TimeToLive,
    ],
)
.largest_value(64 << 20)
.largest_batch(1000)
.largest_key(1024);

/// Number of expired records that a scan may skip before it requests a sweep.
const ENDED_TO_SWEEP: usize = 100;

impl SqliteStore {
    async fn write(&self, partition: &str, writes: Vec<Write>) -> Result<Vec<Applied>, StoreError> {
        let partition = partition.to_owned();
        self.0.writer.write(move |c, now| store_sql::write(c, now, &partition, &writes)).await
    }
}

impl Store for SqliteStore {
    fn capabilities(&self) -> Capabilities {
        CAN
    }

    fn get<'a>(&'a self, key: Key<'a>) -> StoreFuture<'a, Option<Record>> {
        Box::pin(async move {
            key.check(&CAN)?;
            let (partition, row, time) = (key.partition.to_owned(), key.row.to_owned(), self.0.time.clone());
            let get = move |c: &Connection| store_sql::get(c, &partition, &row, time.now());
            Ok(self.0.readers.read(get).await?)
        })
    }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            key.check(&CAN)?;
            let write = Write::put(key.row, value, options);
            write.check(&CAN)?;
            match self.write(key.partition, vec![write]).await?[..] {
                [Applied::Put(version)] => Ok(version),
                _ => Err(PortError::new(crate::port::PortErrorKind::Other, "sqlite: a put returned no version").into()),
            }
        })
    }

    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            key.check(&CAN)?;
            let write = Write::delete(key.row, options);
            write.check(&CAN)?;
            Ok(matches!(self.write(key.partition, vec![write]).await?[..], [Applied::Deleted(true)]))
        })
    }

    fn scan<'a>(&'a self, scan: &'a Scan) -> StoreFuture<'a, Page> {
        Box::pin(async move {
            scan.check(&CAN)?;
            let (scan, time) = (scan.clone(), self.0.time.clone());
            let read = move |c: &Connection| store_sql::scan(c, &scan, scan.limit.min(CAN.max_batch()), time.now());
            let (page, ended) = self.0.readers.read(read).await?;
            if ended >= ENDED_TO_SWEEP {
                self.0.writer.sweep();
            }
            Ok(page)
        })
    }

    fn batch<'a>(&'a self, partition: &'a str, writes: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>> {
        Box::pin(async move {
            Write::check_batch(partition, &writes, &CAN)?;
            let version = |applied| match applied {
                Applied::Put(version) => Some(version),
                Applied::Deleted(_) | Applied::Checked => None,
            };
            Ok(self.write(partition, writes).await?.into_iter().map(version).collect())
        })
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.0.config.path).finish_non_exhaustive()
    }
}
