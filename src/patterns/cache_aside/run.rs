//! The background work of a cache with other processes: receiving notices and delivering pending
//! invalidations.
use std::{future::Future, hash::Hash, pin::pin, time::Duration};

use super::{
    CacheAside, CacheAsideEvent as Event, RemoteCall,
    remote::backplane::{Backplane, CacheNotice},
    remote::shared::Shared,
    state::Inner,
    stats::count,
};
use crate::{
    notify::{Notice, Notices},
    port::ask,
    race::race,
    store::Version,
};

/// Time limit of a subscription. Longer than that of a request, because a subscription may set up a
/// connection, and no get waits for it.
const SUBSCRIBE_LIMIT: Duration = Duration::from_secs(10);

impl<K, V> CacheAside<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Receives the invalidations of other processes and delivers pending ones, until `shutdown` is
    /// ready.
    ///
    /// Run it beside your service if there is a remote tier or a backplane. Without it, the
    /// invalidations of other processes take effect only when local times to live end.
    ///
    /// A new subscription, and one that may have missed notices, treats every existing local entry
    /// as expired. On shutdown it waits for [background
    /// writes](super::RemoteConfig::background_writes) for at most `remote.timeout`, tries once
    /// more to deliver, and returns the number of invalidations that are still pending.
    ///
    /// # Cancel safety
    /// If the future is dropped, it receives nothing more, and the next subscription treats
    /// existing entries as expired. No pending invalidation is lost.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) -> usize {
        let inner = &*self.0;
        let Some(shared) = &inner.shared else {
            shutdown.await;
            return 0;
        };
        let mut shutdown = pin!(shutdown);
        race(shutdown.as_mut(), race(inner.receive_notices(shared), shared.keep_delivering(&inner.report))).await;
        let timeout = inner.config.now().remote.timeout;
        race(shared.background.flush(), inner.report.sleep(timeout)).await;
        shared.deliver_once(&inner.report).await;
        shared.pending_invalidations.len()
    }

    /// Waits until all [background writes](super::RemoteConfig::background_writes) that have
    /// started before this call have ended. Each ends within about `remote.timeout`, if its task
    /// runs.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is lost: the writes continue.
    pub async fn flush(&self) {
        if let Some(shared) = &self.0.shared {
            shared.background.flush().await;
        }
    }
}

impl<K: Hash + Eq, V: Clone> Inner<K, V> {
    /// Receives notices without end.
    async fn receive_notices(&self, shared: &Shared<K, V>) {
        let Some(backplane) = &shared.backplane else { return std::future::pending().await };
        loop {
            let subscribed = backplane.notifier.subscribe(&backplane.topic);
            match ask(&self.report.clock, SUBSCRIBE_LIMIT, subscribed).await {
                Ok(notices) => self.apply_notices(shared, backplane, notices).await,
                Err(error) => {
                    self.report.remote_failed(RemoteCall::Notify, error.kind());
                    self.report.sleep(shared.pause()).await;
                }
            }
        }
    }

    async fn apply_notices(&self, shared: &Shared<K, V>, backplane: &Backplane, mut notices: Notices) {
        // Notices from before this subscription were not received.
        self.gap();
        loop {
            match notices.recv().await {
                Notice::Gap => self.gap(),
                Notice::Message(notice) => {
                    // Notices of this cache itself need no action.
                    if let Some(content) = backplane.read(&notice) {
                        self.apply(shared, content);
                    }
                }
            }
        }
    }

    fn gap(&self) {
        self.tags.raise_floor();
        self.report.event(|| Event::Gap);
    }

    fn apply(&self, shared: &Shared<K, V>, content: CacheNotice) {
        count(&self.report.stats.invalidations);
        match content {
            CacheNotice::Row(row, version) => match (shared.parse)(&row) {
                Some(key) => self.apply_row(&key, version),
                // This release cannot parse the key, so it may be any key.
                None => self.gap(),
            },
            CacheNotice::Tag(tag) => self.tags.invalidate(&tag),
            CacheNotice::All => self.clear_here(),
        }
    }

    fn apply_row(&self, key: &K, version: Option<Version>) {
        // The entry is the value that was put, or a later one.
        let has = |entry: &super::local::entry::Entry<V>| version.is_some() && entry.rest.version >= version;
        if self.local.peek(key).is_some_and(|entry| has(&entry)) {
            return;
        }
        self.invalidate_here(key);
    }
}
