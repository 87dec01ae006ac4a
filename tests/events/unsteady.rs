//! A store that treats the next batches by a script, and counts requests.
use std::{
    collections::VecDeque,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use bytes::Bytes;
use steadfast::{
    port::{Capabilities, Capability, PortError, PortErrorKind},
    store::{DeleteOptions, InMemoryStore, Key, Page, PutOptions, Record, Scan, Store, StoreFuture, Version, Write},
};

/// The treatment of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Treat {
    /// It is applied, and its reply is lost.
    Loses,
    /// It is kept, its reply is lost, and [`Unsteady::apply_kept`] applies it later.
    Keeps,
}

#[derive(Debug, Default)]
pub(crate) struct Unsteady {
    pub(crate) store: InMemoryStore,
    script: Mutex<VecDeque<Treat>>,
    kept: Mutex<Vec<(String, Vec<Write>)>>,
    /// Every request fails while this is true.
    pub(crate) is_away: Mutex<bool>,
    /// A capability that it does not have.
    pub(crate) lacks: Option<Capability>,
    pub(crate) batches: AtomicUsize,
    pub(crate) scans: AtomicUsize,
}

fn lost() -> PortError {
    PortError::new(PortErrorKind::Unavailable, "the connection was lost").outcome_unknown()
}

impl Unsteady {
    pub(crate) fn treat(&self, next: impl IntoIterator<Item = Treat>) {
        self.script.lock().unwrap().extend(next);
    }

    /// Applies the batches that were kept, and returns how many the store accepts now.
    pub(crate) async fn apply_kept(&self) -> usize {
        let kept = std::mem::take(&mut *self.kept.lock().unwrap());
        let mut accepted = 0;
        for (partition, writes) in kept {
            accepted += usize::from(self.store.batch(&partition, writes).await.is_ok());
        }
        accepted
    }

    fn pass(&self) -> Result<(), PortError> {
        if *self.is_away.lock().unwrap() { Err(lost()) } else { Ok(()) }
    }
}

impl Store for Unsteady {
    fn capabilities(&self) -> Capabilities {
        self.lacks.into_iter().fold(self.store.capabilities(), Capabilities::without)
    }

    fn get<'a>(&'a self, key: Key<'a>) -> StoreFuture<'a, Option<Record>> {
        Box::pin(async move {
            self.pass()?;
            self.store.get(key).await
        })
    }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            self.pass()?;
            self.store.put(key, value, options).await
        })
    }

    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> StoreFuture<'a, bool> {
        self.store.delete(key, options)
    }

    fn scan<'a>(&'a self, scan: &'a Scan) -> StoreFuture<'a, Page> {
        Box::pin(async move {
            self.pass()?;
            self.scans.fetch_add(1, SeqCst);
            self.store.scan(scan).await
        })
    }

    fn batch<'a>(&'a self, partition: &'a str, writes: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>> {
        Box::pin(async move {
            self.pass()?;
            self.batches.fetch_add(1, SeqCst);
            // The other callers gather meanwhile.
            tokio::task::yield_now().await;
            let treat = self.script.lock().unwrap().pop_front();
            match treat {
                None => self.store.batch(partition, writes).await,
                Some(Treat::Loses) => {
                    self.store.batch(partition, writes).await?;
                    Err(lost().into())
                }
                Some(Treat::Keeps) => {
                    self.kept.lock().unwrap().push((partition.to_owned(), writes));
                    Err(lost().into())
                }
            }
        })
    }
}
