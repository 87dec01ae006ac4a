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
    event_sourcing::{Commit, EventStore, Expected, NewEvent},
    port::{Capabilities, Capability, PortError, PortErrorKind},
    store::{DeleteOptions, InMemoryStore, Key, Page, PutOptions, Record, Scan, Store, StoreFuture, Version, Write},
};

/// The treatment of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Treat {
    Passes,
    /// It is applied, and its reply is lost.
    Loses,
    /// It is kept, its reply is lost, and [`Unsteady::apply_kept`] applies it later.
    Keeps,
    /// Its reply never comes.
    Hangs,
}

#[derive(Debug, Default)]
pub(crate) struct Unsteady {
    pub(crate) store: InMemoryStore,
    script: Mutex<VecDeque<Treat>>,
    kept: Mutex<Vec<(String, Vec<Write>)>>,
    /// Every request fails while this is true.
    pub(crate) is_away: Mutex<bool>,
    /// Every request is refused with an error of this kind.
    pub(crate) refuses: Mutex<Option<PortErrorKind>>,
    /// A capability that it does not have.
    pub(crate) lacks: Option<Capability>,
    refused: Mutex<Option<&'static str>>,
    /// The store behind this one, once it was restored.
    restored: Mutex<Option<InMemoryStore>>,
    /// A handle of another process, which appends to this stream before each of so many batches.
    rival: tokio::sync::Mutex<Option<(EventStore, &'static str, u32)>>,
    ids: AtomicUsize,
    pub(crate) batches: AtomicUsize,
    pub(crate) scans: AtomicUsize,
    /// Rows of their pages.
    pub(crate) rows: AtomicUsize,
}

fn lost() -> PortError {
    PortError::new(PortErrorKind::Unavailable, "the connection was lost").outcome_unknown()
}

impl Unsteady {
    pub(crate) fn treat(&self, next: impl IntoIterator<Item = Treat>) {
        self.script.lock().unwrap().extend(next);
    }

    /// Replaces the state by that of another store.
    pub(crate) fn restore(&self, from: &InMemoryStore) {
        *self.restored.lock().unwrap() = Some(from.clone());
    }

    fn now(&self) -> InMemoryStore {
        self.restored.lock().unwrap().clone().unwrap_or_else(|| self.store.clone())
    }

    /// Lets another process append to a stream before each of the next batches.
    pub(crate) async fn competes(&self, log: EventStore, stream: &'static str, times: u32) {
        *self.rival.lock().await = Some((log, stream, times));
    }

    async fn compete(&self) {
        if let Some((log, stream, times)) = self.rival.lock().await.as_mut().filter(|(_, _, times)| *times > 0) {
            *times -= 1;
            let commit = Commit::unnamed().append(*stream, Expected::Any, [NewEvent::new("Booked", "1")]);
            log.commit(commit).await.unwrap();
        }
    }

    /// Ends the script.
    pub(crate) fn treat_well(&self) {
        self.script.lock().unwrap().clear();
    }

    /// Refuses for good each batch with a command of this name.
    pub(crate) fn refuse_batches_with(&self, command: &'static str) {
        *self.refused.lock().unwrap() = Some(command);
    }

    /// Returns the highest number of commands in a batch whose reply was lost.
    pub(crate) fn most_ids(&self) -> usize {
        self.ids.load(SeqCst)
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
        if let Some(kind) = *self.refuses.lock().unwrap() {
            return Err(PortError::new(kind, "refused"));
        }
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
            self.now().get(key).await
        })
    }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            self.pass()?;
            self.now().put(key, value, options).await
        })
    }

    fn delete<'a>(&'a self, key: Key<'a>, options: DeleteOptions) -> StoreFuture<'a, bool> {
        self.store.delete(key, options)
    }

    fn scan<'a>(&'a self, scan: &'a Scan) -> StoreFuture<'a, Page> {
        Box::pin(async move {
            self.pass()?;
            self.scans.fetch_add(1, SeqCst);
            let page = self.now().scan(scan).await?;
            self.rows.fetch_add(page.rows.len(), SeqCst);
            Ok(page)
        })
    }

    fn batch<'a>(&'a self, partition: &'a str, writes: Vec<Write>) -> StoreFuture<'a, Vec<Option<Version>>> {
        Box::pin(async move {
            self.pass()?;
            self.batches.fetch_add(1, SeqCst);
            self.compete().await;
            // The other callers gather meanwhile.
            tokio::task::yield_now().await;
            let refused = self.refused.lock().unwrap().map(|command| format!("k/{command}"));
            if writes.iter().any(|write| write.row().is_some_and(|row| Some(row) == refused.as_deref())) {
                return Err(PortError::new(PortErrorKind::Invalid, "too large").into());
            }
            let treat = self.script.lock().unwrap().pop_front();
            if matches!(treat, Some(Treat::Loses | Treat::Keeps)) {
                let ids = writes.iter().filter(|write| write.row().is_some_and(|row| row.starts_with("k/"))).count();
                self.ids.fetch_max(ids, SeqCst);
            }
            match treat {
                None | Some(Treat::Passes) => self.now().batch(partition, writes).await,
                Some(Treat::Loses) => {
                    self.now().batch(partition, writes).await?;
                    Err(lost().into())
                }
                Some(Treat::Hangs) => std::future::pending().await,
                Some(Treat::Keeps) => {
                    self.kept.lock().unwrap().push((partition.to_owned(), writes));
                    Err(lost().into())
                }
            }
        })
    }
}
