//! Writes of loaded values to the remote tier beside the calls that loaded them.
//!
//! A background write has the same guard as one in the call: it stores its value only in the place
//! of the claim that its load made before it asked the source. So an invalidation or a put, which
//! removes the claim, is never overtaken, however late the write is.
use std::{collections::BTreeSet, hash::Hash, pin::pin, sync::Arc};

use tokio::sync::Notify;

use super::super::{
    CacheAsideEvent as Event,
    loaded::ValueSettings,
    local::entry::Entry,
    local::tags::Slot,
    remote::fill::Content,
    remote::lookup::{Claim, RemoteFill},
    state::Inner,
    stats::count,
};
use crate::{store::Version, sync::Mutex};

/// The background writes in progress.
#[derive(Default)]
pub(crate) struct BackgroundWrites {
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Default)]
struct State {
    started: u64,
    pending: BTreeSet<u64>,
}

impl BackgroundWrites {
    /// Starts a write and returns its number, or `None` if there are `most` already.
    pub(crate) fn start(&self, most: u32) -> Option<u64> {
        if most == 0 {
            return None;
        }
        let mut state = self.state.lock();
        if state.pending.len() >= most as usize {
            return None;
        }
        state.started += 1;
        let number = state.started;
        state.pending.insert(number);
        Some(number)
    }

    fn end(&self, number: u64) {
        self.state.lock().pending.remove(&number);
        self.ended.notify_waiters();
    }

    /// Waits until all writes that have started before this call have ended.
    pub(crate) async fn flush(&self) {
        let last = self.state.lock().started;
        loop {
            let mut ended = pin!(self.ended.notified());
            // Enabled before the check, so that no end is missed between the two.
            ended.as_mut().enable();
            if self.state.lock().pending.first().is_none_or(|first| *first > last) {
                return;
            }
            ended.await;
        }
    }
}

/// A write in the background. If it is dropped before its end, the release of its claim becomes
/// pending.
pub(crate) struct BackgroundWrite<K: Hash + Eq, V> {
    pub(crate) inner: Arc<Inner<K, V>>,
    pub(crate) key: K,
    pub(crate) number: u64,
    /// The claim, until it is redeemed.
    pub(crate) claim: Option<Claim>,
    pub(crate) value: Option<V>,
    pub(crate) ttl: std::time::Duration,
    pub(crate) tags: Vec<String>,
    pub(crate) slots: Box<[Slot]>,
    pub(crate) settings: ValueSettings,
    /// The local entry and the key's epoch when it was stored, unless its load was superseded.
    pub(crate) kept: Option<(Entry<V>, u64)>,
}

impl<K: Hash + Eq + Clone, V: Clone> BackgroundWrite<K, V> {
    pub(crate) async fn run(mut self) {
        let (inner, key) = (self.inner.clone(), self.key.clone());
        let Some(shared) = &inner.shared else { return };
        let (Some(remote), Some(mut claim)) = (&shared.remote, self.claim.clone()) else { return };
        claim.left = remote.config.now().remote.timeout;
        let report = &inner.report;
        let current = self.kept.as_ref().filter(|(entry, epoch)| {
            shared.epochs.now(&key) == *epoch && !inner.tags.invalidated_since(entry.hot.born, &self.slots)
        });
        if current.is_none() {
            if remote.release(report, &claim, report.now() + claim.left).await {
                self.claim = None;
            }
            return;
        }
        let (value, ttl) = (self.value.as_ref(), self.ttl);
        let content = Content { value, ttl, tags: &self.tags, settings: &self.settings };
        match remote.fill(report, &claim, content).await {
            RemoteFill::Stored(version) => {
                self.claim = None;
                self.stored(version);
            }
            RemoteFill::Nothing => self.claim = None,
            // Dropping the write makes the release of the claim pending.
            RemoteFill::Unknown => {}
            RemoteFill::Superseded { released } => {
                if released {
                    self.claim = None;
                }
                self.superseded();
            }
        }
    }

    /// Records the version of the value in its local entry.
    fn stored(&self, version: Version) {
        let (inner, Some((entry, _))) = (&*self.inner, &self.kept) else { return };
        // Peeked under the lock, because the entry may have been marked since.
        let left = inner.flights.between(&self.key, || {
            let found = inner.local.peek(&self.key).filter(|found| found.is_of(entry))?;
            Some(inner.local.mark(self.key.clone(), found.with_version(version)))
        });
        drop(left);
    }

    /// Removes the local entry: its value was read before an invalidation.
    fn superseded(&self) {
        let (inner, Some((entry, _))) = (&*self.inner, &self.kept) else { return };
        let remove = || inner.local.holds(&self.key, entry).then(|| inner.local.remove(&self.key));
        let left = inner.flights.between(&self.key, remove);
        drop(left);
        count(&inner.report.stats.superseded);
        inner.report.event(|| Event::Superseded);
    }
}

impl<K: Hash + Eq, V> Drop for BackgroundWrite<K, V> {
    fn drop(&mut self) {
        let Some(shared) = &self.inner.shared else { return };
        if let Some(claim) = self.claim.take() {
            shared.defer_claim(&self.inner.report, &claim);
        }
        shared.background.end(self.number);
    }
}
