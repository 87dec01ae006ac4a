//! A store from which a guard is taken out, to see that it is missed.
use std::fmt;

use bytes::Bytes;
use steadfast::{
    port::{BoxFuture, Capabilities},
    store::{DeleteOptions, InMemoryStore, Key, Page, PutOptions, Record, Scan, Store, StoreError, Version, Write},
};

/// A store whose puts are done otherwise than they were asked for.
pub(crate) struct Poor<F> {
    store: InMemoryStore,
    change: F,
}

impl<F: Fn(&mut PutOptions) + Send + Sync> Poor<F> {
    pub(crate) fn new(store: InMemoryStore, change: F) -> Self {
        Self { store, change }
    }
}

impl<F> fmt::Debug for Poor<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poor").finish_non_exhaustive()
    }
}

impl<F: Fn(&mut PutOptions) + Send + Sync> Store for Poor<F> {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }
    fn get<'a>(&'a self, key: Key<'a>) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        self.store.get(key)
    }
    fn put<'a>(
        &'a self,
        key: Key<'a>,
        value: Bytes,
        mut options: PutOptions,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        (self.change)(&mut options);
        self.store.put(key, value, options)
    }
    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.store.delete(key, options)
    }
    fn scan<'a>(&'a self, scan: &'a Scan) -> BoxFuture<'a, Result<Page, StoreError>> {
        self.store.scan(scan)
    }
    fn batch<'a>(
        &'a self,
        partition: &'a str,
        writes: Vec<Write>,
    ) -> BoxFuture<'a, Result<Vec<Option<Version>>, StoreError>> {
        self.store.batch(partition, writes)
    }
}
