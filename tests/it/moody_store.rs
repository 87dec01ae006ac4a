//! A store that is slow, failing or hanging on demand.
use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use steadfast::{
    port::{PortError, PortErrorKind},
    store::{DeleteOptions, InMemoryStore, Key, PutOptions, Record, Store, StoreError, StoreFuture, Version},
    time::Clock,
};

/// The behaviour of a store.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(dead_code, reason = "each of the two binaries uses some of it")]
pub(crate) enum Mode {
    Well,
    /// Each request takes this long.
    Slow(Duration),
    /// Each request takes this long for each concurrent request, like on one shared line.
    Narrow(Duration),
    Fails(PortErrorKind),
    Hangs,
}

/// A store with a chosen behaviour. Rows whose body begins with "hangs" never respond.
#[derive(Debug)]
pub(crate) struct Moody {
    pub(crate) store: InMemoryStore,
    clock: Clock,
    mode: Mutex<Mode>,
    under_way: AtomicUsize,
    /// Maximum number of concurrent requests.
    pub(crate) most: AtomicUsize,
}

impl Moody {
    pub(crate) fn new(clock: &Clock) -> Self {
        let store = InMemoryStore::builder().clock(clock).build();
        let (mode, under_way, most) = (Mutex::new(Mode::Well), AtomicUsize::new(0), AtomicUsize::new(0));
        Self { store, clock: clock.clone(), mode, under_way, most }
    }

    pub(crate) fn is(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
    }

    async fn pass(&self) -> Result<(), StoreError> {
        struct Leaves<'a>(&'a AtomicUsize);
        impl Drop for Leaves<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.most.fetch_max(self.under_way.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        let _leaves = Leaves(&self.under_way);
        let mode = *self.mode.lock().unwrap();
        match mode {
            Mode::Well => {}
            Mode::Slow(time) => self.clock.sleep(time).await,
            Mode::Narrow(time) => {
                let mut left = time;
                while !left.is_zero() {
                    let others = self.under_way.load(Ordering::Relaxed) as u32;
                    let step = left.min(Duration::from_millis(20));
                    self.clock.sleep(step * others).await;
                    left -= step;
                }
            }
            Mode::Fails(kind) => return Err(PortError::new(kind, "the store is away").into()),
            Mode::Hangs => std::future::pending().await,
        }
        Ok(())
    }
}

impl Store for Moody {
    forward_store! { store: capabilities, scan, batch }

    fn get<'a>(&'a self, key: Key<'a>) -> StoreFuture<'a, Option<Record>> {
        Box::pin(async move {
            self.pass().await?;
            let found = self.store.get(key).await?;
            if found.as_ref().is_some_and(|record| record.value.starts_with(b"hangs")) {
                std::future::pending::<()>().await;
            }
            Ok(found)
        })
    }
    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            self.pass().await?;
            self.store.put(key, value, options).await
        })
    }
    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            self.pass().await?;
            self.store.delete(key, options).await
        })
    }
}
