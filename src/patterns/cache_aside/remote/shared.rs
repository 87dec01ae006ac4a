//! The part of a cache that it shares with other processes: a remote tier, a backplane, and the
//! invalidations that are pending for both.
use std::{
    hash::{BuildHasher, Hash, RandomState},
    pin::pin,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::sync::Notify;

use super::super::{
    CacheAsideConfig, CacheAsideEvent as Event, RemoteCall,
    remote::background::BackgroundWrites,
    remote::backplane::Backplane,
    remote::lookup::{Claim, LookupPurpose, Remote, RemoteLookup, SIDE_BY_SIDE},
    remote::pending::{Delivery, Invalidation, PendingInvalidations, Steps},
    report::Report,
};
use crate::{config::Live, race::both, store::Version, time::Instant};

pub(crate) struct Shared<K, V> {
    /// Converts a key to text.
    pub(crate) row: fn(&K) -> String,
    pub(crate) parse: fn(&str) -> Option<K>,
    pub(crate) remote: Option<Remote<V>>,
    pub(crate) backplane: Option<Backplane>,
    pub(crate) epochs: Epochs,
    pub(crate) pending_invalidations: PendingInvalidations,
    pub(crate) background: BackgroundWrites,
    /// Notifies waiting deliveries that an invalidation became pending.
    pub(crate) became_pending: Notify,
    pub(crate) config: Live<CacheAsideConfig>,
}

/// Minimum time between two attempts to deliver, however short `rest` is.
const PAUSE: Duration = Duration::from_millis(100);

/// Number of sequential requests that the invalidation of a tag takes, including one for a
/// conflict.
const REQUESTS: u32 = 4;

impl<K, V> Shared<K, V> {
    /// Looks a key up in the remote tier, unless the stored value may be an invalidated one.
    ///
    /// It delivers only the pending invalidation that blocks this key, and only within the
    /// time-out.
    pub(crate) async fn look(&self, report: &Report, key: &K, purpose: LookupPurpose) -> RemoteLookup<V> {
        let Some(remote) = &self.remote else { return RemoteLookup::Without };
        let row = (self.row)(key);
        let deadline = report.now() + remote.config.now().remote.timeout;
        if let Some(invalidation) = self.pending_invalidations.blocking(&row) {
            let Some(delivery) = self.pending_invalidations.begin(invalidation, Some(report.now())) else {
                return RemoteLookup::Without;
            };
            if !remote.health.admits(report.now()) || !self.deliver_write(report, delivery, deadline).await {
                return RemoteLookup::Without;
            }
            if self.pending_invalidations.blocking(&row).is_some() {
                return RemoteLookup::Without;
            }
        } else if !remote.health.admits(report.now()) {
            return RemoteLookup::Without;
        }
        let looked = remote.look((report, &self.pending_invalidations), &row, purpose, deadline).await;
        if let RemoteLookup::Blocked(invalidation) = looked {
            if let Some(delivery) = self.pending_invalidations.begin(invalidation, Some(report.now())) {
                self.deliver_write(report, delivery, deadline).await;
            }
            return RemoteLookup::Without;
        }
        looked
    }

    /// Sets the cool-down of the remote tier and of the backplane.
    pub(crate) fn set_rest(&self, rest: Duration) {
        let tiers =
            [self.remote.as_ref().map(|remote| &remote.health), self.backplane.as_ref().map(|plane| &plane.health)];
        tiers.into_iter().flatten().for_each(|health| health.set_rest(rest));
    }

    /// Returns the steps of an invalidation here: one is missing without a remote tier or a
    /// backplane.
    pub(crate) const fn steps(&self) -> Steps {
        Steps { store: self.remote.is_some(), notice: self.backplane.is_some() }
    }

    /// Delivers once the step that a load waits for; of an invalidation of everything, one page.
    async fn deliver_write(&self, report: &Report, mut delivery: Delivery<'_>, deadline: Instant) -> bool {
        let Some(remote) = self.remote.as_ref().filter(|_| delivery.steps.store) else { return true };
        let mut continuation = delivery.continuation.clone();
        let done = remote.write(report, &delivery.invalidation, deadline, &mut continuation).await;
        self.note(report, &mut delivery, done, continuation);
        done
    }

    fn note(&self, report: &Report, delivery: &mut Delivery<'_>, done: bool, continuation: Option<String>) {
        if done {
            if delivery.delivered(Steps::STORE) {
                report.event(|| Event::InvalidationsDelivered);
            }
        } else if continuation != delivery.continuation {
            delivery.advance(continuation);
        } else {
            delivery.failed(report.now() + self.config.now().remote.rest);
        }
    }

    /// Delivers a pending invalidation as far as possible. Returns `true` if all steps are done.
    async fn deliver(&self, report: &Report, invalidation: Invalidation) -> bool {
        let Some(mut delivery) = self.pending_invalidations.begin(invalidation, None) else { return false };
        if let Some(remote) = &self.remote {
            while delivery.steps.store {
                if !remote.health.admits(report.now()) {
                    return false;
                }
                let mut continuation = delivery.continuation.clone();
                // No caller waits, so each request of the invalidation may take the whole time-out.
                let deadline = report.now() + remote.config.now().remote.timeout.saturating_mul(REQUESTS);
                let done = remote.write(report, &delivery.invalidation, deadline, &mut continuation).await;
                let more = continuation != delivery.continuation;
                self.note(report, &mut delivery, done, continuation);
                if !done && !more {
                    return false;
                }
            }
        }
        if let (Some(backplane), Some(notice)) = (&self.backplane, delivery.invalidation.notice())
            && delivery.steps.notice
        {
            if !backplane.publish(report, &notice, report.now() + backplane.config.now().remote.timeout).await {
                return false;
            }
            if delivery.delivered(Steps::NOTICE) {
                report.event(|| Event::InvalidationsDelivered);
            }
        }
        true
    }

    /// Delivers all of these invalidations, several concurrently. Returns `true` if all are done.
    async fn deliver_all(&self, report: &Report, pending: Vec<Invalidation>) -> bool {
        let mut pending = pending.into_iter();
        let deliver = |invalidation| self.deliver(report, invalidation);
        let mut under_way: FuturesUnordered<_> = pending.by_ref().take(SIDE_BY_SIDE).map(deliver).collect();
        let mut all = true;
        while let Some(delivered) = under_way.next().await {
            all &= delivered;
            under_way.extend(pending.next().map(deliver));
        }
        all
    }

    /// Tries once to deliver everything that is pending now.
    pub(crate) async fn deliver_once(&self, report: &Report) {
        self.deliver_all(report, self.pending_invalidations.all()).await;
    }

    /// Delivers pending invalidations without end: at once, and after a failure when the pause is
    /// over.
    pub(crate) async fn keep_delivering(&self, report: &Report) {
        // The deletion of all rows may take long and must not delay other invalidations.
        let some = |is_all: bool| async move {
            loop {
                let mut became_pending = pin!(self.became_pending.notified());
                became_pending.as_mut().enable();
                let mut pending = self.pending_invalidations.all();
                pending.retain(|invalidation| (*invalidation == Invalidation::All) == is_all);
                if pending.is_empty() {
                    became_pending.await;
                } else if !self.deliver_all(report, pending).await {
                    report.sleep(self.pause()).await;
                }
            }
        };
        both(some(true), some(false)).await;
    }

    /// Returns the time between two attempts to deliver pending invalidations.
    pub(crate) fn pause(&self) -> Duration {
        self.config.now().remote.rest.max(PAUSE)
    }

    pub(crate) fn defer(
        &self,
        report: &Report,
        invalidation: Invalidation,
        steps: Steps,
        continuation: Option<String>,
    ) {
        let is_reported = !matches!(invalidation, Invalidation::Claim(..));
        let pending_invalidations = self.pending_invalidations.add(invalidation, steps, continuation);
        self.became_pending.notify_waiters();
        if is_reported {
            report.event(|| Event::InvalidationPending { pending_invalidations });
        }
    }
}

impl<K, V> Shared<K, V> {
    /// Makes the release of a claim pending.
    pub(crate) fn defer_claim(&self, report: &Report, claim: &Claim) {
        if let Some(version) = claim.of_load() {
            self.defer(report, Invalidation::Claim(claim.row.clone(), version), Steps::STORE, None);
        }
    }
}

impl<V> Remote<V> {
    /// Writes an invalidation to the remote tier. Returns `true` if it is known to be complete.
    ///
    /// An invalidation of everything deletes one page per call and sets `continuation` to the next.
    pub(crate) async fn write(
        &self,
        report: &Report,
        invalidation: &Invalidation,
        deadline: Instant,
        continuation: &mut Option<String>,
    ) -> bool {
        match invalidation {
            Invalidation::All => match self.clear_page(report, deadline, continuation.as_deref()).await {
                Ok(None) => true,
                Ok(next) => {
                    *continuation = next;
                    false
                }
                Err(_) => false,
            },
            Invalidation::Tag(tag) => self.invalidate_tag(report, deadline, tag).await,
            Invalidation::Row(row) => self.invalidate(report, deadline, row).await,
            Invalidation::Claim(row, version) => {
                self.release_version(report, (RemoteCall::Invalidate, row), *version, deadline).await
            }
        }
    }
}

/// A claim while its load is in progress. If it is dropped, the release of the claim becomes
/// pending.
pub(crate) struct ClaimGuard<'a, K, V> {
    shared: &'a Shared<K, V>,
    report: &'a Report,
    pub(crate) claim: Claim,
    over: bool,
}

impl<'a, K, V> ClaimGuard<'a, K, V> {
    pub(crate) const fn new(shared: &'a Shared<K, V>, report: &'a Report, claim: Claim) -> Self {
        Self { shared, report, claim, over: false }
    }

    /// Returns the claim, which the caller must redeem or release.
    pub(crate) fn into_claim(mut self) -> Claim {
        self.over = true;
        self.claim.clone()
    }

    /// Records that the claim was redeemed.
    pub(crate) fn redeemed(mut self) {
        self.over = true;
    }
}

impl<K, V> Drop for ClaimGuard<'_, K, V> {
    fn drop(&mut self) {
        if !self.over {
            self.shared.defer_claim(self.report, &self.claim);
        }
    }
}

impl Claim {
    /// Returns the version of the row if it holds only this claim. (A refresh leaves a value
    /// there.)
    fn of_load(&self) -> Option<Version> {
        self.lock.is_none().then_some(self.version)
    }
}

/// Counters of the invalidations of keys. A put compares them to find out whether its key was
/// invalidated meanwhile.
///
/// Keys share counters by their hash. A collision costs a load and nothing else.
//
// A put compares its counter under the lock of the key's flights, and `next` is called under that
// lock. `all` is not: a clear raises all counters first, and then takes the lock of each shard and
// empties the table. A put that stores before that is removed by the clear. A put that takes the lock
// afterwards sees the raised counter, because the lock orders the two. So the lock publishes the
// counters, and `SeqCst` is stronger than they need.
pub(crate) struct Epochs {
    counters: Box<[AtomicU64]>,
    hasher: RandomState,
}

impl Epochs {
    pub(crate) fn new() -> Self {
        Self { counters: (0..4096).map(|_| AtomicU64::new(0)).collect(), hasher: RandomState::new() }
    }

    fn counter<Q: Hash + ?Sized>(&self, key: &Q) -> &AtomicU64 {
        let at = self.hasher.hash_one(key) as usize % self.counters.len();
        &self.counters[at]
    }

    pub(crate) fn now<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.counter(key).load(SeqCst)
    }

    /// Records an invalidation of the key and returns its new epoch.
    pub(crate) fn next<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.counter(key).fetch_add(1, SeqCst) + 1
    }

    pub(crate) fn all(&self) {
        for counter in &self.counters {
            counter.fetch_add(1, SeqCst);
        }
    }
}
