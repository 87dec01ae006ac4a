//! A store without one of its guards, to show that the guard is needed.
use std::fmt;

use bytes::Bytes;
use steadfast::{
    port::BoxFuture,
    store::{InMemoryStore, Key, PutOptions, Store, StoreError, Version},
};

/// A store that changes its puts.
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
    forward_store! { store: capabilities, get, delete, scan, batch }

    fn put<'a>(
        &'a self,
        key: Key<'a>,
        value: Bytes,
        mut options: PutOptions,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        (self.change)(&mut options);
        self.store.put(key, value, options)
    }
}
