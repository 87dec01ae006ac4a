//! The store on a server.
use std::{fmt, sync::Arc};

use bytes::Bytes;

use super::{
    failure::unexpected,
    handle::RedisCore,
    store_calls::{self, Applied, Found},
};
use crate::{
    port::{BoxFuture, Capabilities, Capability, PortError},
    store::{DeleteOptions, Key, Page, PutOptions, Record, Scan, Store, StoreError, Version, Write},
};

/// The store on a Redis server, from [`Redis::store`](super::Redis::store). A clone is the same
/// store.
#[derive(Clone)]
pub struct RedisStore {
    core: Arc<RedisCore>,
    can: Capabilities,
}

const CAN: Capabilities = Capabilities::of(
    "redis",
    &[
        Capability::AtomicBatch,
        Capability::OrderedVersions,
        Capability::Fencing,
        Capability::OrderedAppend,
        Capability::TimeToLive,
    ],
)
.largest_value(16 << 20)
.largest_batch(1000)
.largest_key(1024);

impl RedisStore {
    pub(super) fn new(core: Arc<RedisCore>) -> Self {
        let can = core.link.server().grant(CAN);
        Self { core, can }
    }

    /// Returns the first part of the keys of a partition.
    fn root(&self, partition: &str) -> String {
        self.core.keys.partition(partition)
    }

    fn unexpected(&self) -> PortError {
        unexpected(self.core.target(), "a request to the store")
    }

    async fn write(&self, partition: &str, writes: &[Write]) -> Result<Vec<Applied>, StoreError> {
        let answer = self.core.link.call(store_calls::write(self.root(partition), writes)).await?;
        // The write was made, so an answer that cannot be read leaves its result unknown.
        store_calls::results(answer, writes).unwrap_or_else(|| Err(self.unexpected().outcome_unknown().into()))
    }
}

impl Store for RedisStore {
    fn capabilities(&self) -> Capabilities {
        self.can
    }

    fn get<'a>(&'a self, key: Key<'a>) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            key.check(&self.can)?;
            let root = self.root(key.partition);
            // Only records that have an end need the time. The first of them that a handle reads is read twice.
            let mut with_time = self.core.has_ends.get().is_some();
            loop {
                let answer = self.core.link.call(store_calls::read(&root, key.row, with_time)).await?;
                match store_calls::found(answer, with_time).ok_or_else(|| self.unexpected())? {
                    Found::Record(record) => return Ok(record),
                    Found::Ending => with_time = true,
                }
                let _ = self.core.has_ends.set(());
            }
        })
    }

    fn put<'a>(
        &'a self,
        key: Key<'a>,
        value: Bytes,
        options: PutOptions,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        Box::pin(async move {
            key.check(&self.can)?;
            let write = Write::put(key.row, value, options);
            write.check(&self.can)?;
            match self.write(key.partition, &[write]).await?[..] {
                [Applied::Put(version)] => Ok(version),
                _ => Err(store_calls::no_version().into()),
            }
        })
    }

    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            key.check(&self.can)?;
            let write = Write::delete(key.row, options);
            write.check(&self.can)?;
            Ok(matches!(self.write(key.partition, &[write]).await?[..], [Applied::Deleted(true)]))
        })
    }

    fn scan<'a>(&'a self, scan: &'a Scan) -> BoxFuture<'a, Result<Page, StoreError>> {
        Box::pin(async move {
            scan.check(&self.can)?;
            let limit = scan.limit.min(self.can.max_batch());
            let answer = self.core.link.call(store_calls::scan(scan, self.root(&scan.partition), limit)).await?;
            Ok(store_calls::page(answer).ok_or_else(|| self.unexpected())?)
        })
    }

    fn batch<'a>(
        &'a self,
        partition: &'a str,
        writes: Vec<Write>,
    ) -> BoxFuture<'a, Result<Vec<Option<Version>>, StoreError>> {
        Box::pin(async move {
            Write::check_batch(partition, &writes, &self.can)?;
            let version = |applied| match applied {
                Applied::Put(version) => Some(version),
                Applied::Deleted(_) | Applied::Checked => None,
            };
            Ok(self.write(partition, &writes).await?.into_iter().map(version).collect())
        })
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("server", &self.core.target().address()).finish_non_exhaustive()
    }
}
