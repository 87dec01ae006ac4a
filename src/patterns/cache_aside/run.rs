//! What a cache with other processes does beside its calls: hears from them, and pays what it owes.
use std::{future::Future, hash::Hash, pin::pin};

use super::{
    CacheAside, CacheAsideEvent as Event, RemoteCall,
    backplane::{Backplane, Told},
    inner::Inner,
    shared::Shared,
    stats::count,
};
use crate::{
    notify::{Notice, Notices},
    race::race,
    store::Version,
};

impl<K, V> CacheAside<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Hears what other processes invalidate, and delivers what could not be delivered at once, until `shutdown` is ready. With a remote
    /// tier or a backplane run it beside your service: without it other processes' invalidations are noticed when local times to
    /// live end.
    ///
    /// A subscription that begins, and one that may have missed notices, takes every local entry from before for expired. On shutdown it
    /// tries once more to deliver what is owed, and gives how many invalidations still are.
    ///
    /// # Cancel safety
    /// Dropped, it stops to hear: the next subscription takes what is there for expired. Nothing that is owed is lost.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) -> usize {
        let inner = &*self.0;
        let Some(shared) = &inner.shared else {
            shutdown.await;
            return 0;
        };
        let mut shutdown = pin!(shutdown);
        race(shutdown.as_mut(), race(inner.hear(shared), shared.keep_paying(&inner.report))).await;
        shared.pay_once(&inner.report).await;
        shared.debts.len()
    }
}

impl<K: Hash + Eq, V: Clone> Inner<K, V> {
    /// Hears for ever.
    async fn hear(&self, shared: &Shared<K, V>) {
        let Some(backplane) = &shared.backplane else { return std::future::pending().await };
        loop {
            match backplane.notifier.subscribe(&backplane.topic).await {
                Ok(notices) => self.obey(shared, backplane, notices).await,
                Err(error) => {
                    self.report.remote_failed(RemoteCall::Notify, Some(error.kind()));
                    self.report.sleep(shared.pause()).await;
                }
            }
        }
    }

    async fn obey(&self, shared: &Shared<K, V>, backplane: &Backplane, mut notices: Notices) {
        // What was told before this subscription began was not heard.
        self.gap();
        loop {
            match notices.recv().await {
                Notice::Gap => self.gap(),
                Notice::Message(notice) => {
                    // Its own say nothing.
                    if let Some(told) = backplane.hear(&notice) {
                        self.heard(shared, told);
                    }
                }
            }
        }
    }

    fn gap(&self) {
        self.tags.raise_floor();
        self.report.tell(|| Event::Gap);
    }

    fn heard(&self, shared: &Shared<K, V>, told: Told) {
        count(&self.report.stats.invalidations);
        match told {
            Told::Row(row, version) => match (shared.parse)(&row) {
                Some(key) => self.heard_row(&key, version),
                // A key that this release cannot read: it may be any.
                None => self.gap(),
            },
            Told::Tag(tag) => self.tags.invalidate(&tag),
            Told::All => self.clear_here(),
        }
    }

    fn heard_row(&self, key: &K, version: Option<Version>) {
        // It has what was put already, or what was put later.
        let has = |entry: &super::entry::Entry<V>| version.is_some() && entry.rest.version >= version;
        if self.local.peek(key).is_some_and(|entry| has(&entry)) {
            return;
        }
        self.invalidate_here(key);
    }
}
