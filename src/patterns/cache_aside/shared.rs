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

use super::{
    CacheAsideEvent as Event, RemoteCall,
    backplane::Backplane,
    debts::{Debt, Debts, Halves, Payment},
    remote::{Claim, Looked, Purpose, Remote, SIDE_BY_SIDE},
    report::Report,
};
use crate::{race::both, store::Version, time::Instant};

pub(super) struct Shared<K, V> {
    /// Converts a key to text.
    pub(super) row: fn(&K) -> String,
    pub(super) parse: fn(&str) -> Option<K>,
    pub(super) remote: Option<Remote<V>>,
    pub(super) backplane: Option<Backplane>,
    pub(super) epochs: Epochs,
    pub(super) debts: Debts,
    /// Notifies waiting deliveries that an invalidation became pending.
    pub(super) owed: Notify,
    /// Time between two attempts to deliver a pending invalidation.
    pub(super) rest: Duration,
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
    pub(super) async fn look(&self, report: &Report, key: &K, purpose: Purpose) -> Looked<V> {
        let Some(remote) = &self.remote else { return Looked::Without };
        let row = (self.row)(key);
        let deadline = report.now() + remote.config.timeout;
        if let Some(debt) = self.debts.bars(&row) {
            let Some(payment) = self.debts.begin(debt, Some(report.now())) else { return Looked::Without };
            if !remote.health.admits(report.now()) || !self.pay_store(report, payment, deadline).await {
                return Looked::Without;
            }
            if self.debts.bars(&row).is_some() {
                return Looked::Without;
            }
        } else if !remote.health.admits(report.now()) {
            return Looked::Without;
        }
        let looked = remote.look(report, &row, purpose, deadline).await;
        if let Looked::Found(found) = &looked
            && let Some(debt) = self.debts.bars_tag(&found.tags)
        {
            if let Some(payment) = self.debts.begin(debt, Some(report.now())) {
                self.pay_store(report, payment, deadline).await;
            }
            return Looked::Without;
        }
        looked
    }

    /// Returns the steps of an invalidation here: one is missing without a remote tier or a
    /// backplane.
    pub(super) const fn halves(&self) -> Halves {
        Halves { store: self.remote.is_some(), notice: self.backplane.is_some() }
    }

    /// Delivers once the step that a load waits for; of an invalidation of everything, one page.
    async fn pay_store(&self, report: &Report, mut payment: Payment<'_>, deadline: Instant) -> bool {
        let Some(remote) = self.remote.as_ref().filter(|_| payment.halves.store) else { return true };
        let mut behind = payment.behind.clone();
        let done = remote.write(report, &payment.debt, deadline, &mut behind).await;
        self.note(report, &mut payment, done, behind);
        done
    }

    fn note(&self, report: &Report, payment: &mut Payment<'_>, done: bool, behind: Option<String>) {
        if done {
            if payment.paid(Halves::STORE) {
                report.tell(|| Event::Settled);
            }
        } else if behind != payment.behind {
            payment.advance(behind);
        } else {
            payment.failed(report.now() + self.rest);
        }
    }

    /// Delivers a pending invalidation as far as possible. Returns `true` if all steps are done.
    async fn pay(&self, report: &Report, debt: Debt) -> bool {
        let Some(mut payment) = self.debts.begin(debt, None) else { return false };
        if let Some(remote) = &self.remote {
            while payment.halves.store {
                if !remote.health.admits(report.now()) {
                    return false;
                }
                let mut behind = payment.behind.clone();
                // No caller waits, so each request of the invalidation may take the whole time-out.
                let deadline = report.now() + remote.config.timeout.saturating_mul(REQUESTS);
                let done = remote.write(report, &payment.debt, deadline, &mut behind).await;
                let more = behind != payment.behind;
                self.note(report, &mut payment, done, behind);
                if !done && !more {
                    return false;
                }
            }
        }
        if let (Some(backplane), Some(told)) = (&self.backplane, payment.debt.told())
            && payment.halves.notice
        {
            if !backplane.tell(report, &told, report.now() + backplane.timeout).await {
                return false;
            }
            if payment.paid(Halves::NOTICE) {
                report.tell(|| Event::Settled);
            }
        }
        true
    }

    /// Delivers all of these invalidations, several concurrently. Returns `true` if all are done.
    async fn pay_all(&self, report: &Report, debts: Vec<Debt>) -> bool {
        let mut debts = debts.into_iter();
        let pay = |debt| self.pay(report, debt);
        let mut under_way: FuturesUnordered<_> = debts.by_ref().take(SIDE_BY_SIDE).map(pay).collect();
        let mut all = true;
        while let Some(paid) = under_way.next().await {
            all &= paid;
            under_way.extend(debts.next().map(pay));
        }
        all
    }

    /// Tries once to deliver everything that is pending now.
    pub(super) async fn pay_once(&self, report: &Report) {
        self.pay_all(report, self.debts.all()).await;
    }

    /// Delivers pending invalidations without end: at once, and after a failure when the pause is
    /// over.
    pub(super) async fn keep_paying(&self, report: &Report) {
        // The deletion of all rows may take long and must not delay other invalidations.
        let some = |is_all: bool| async move {
            loop {
                let mut owed = pin!(self.owed.notified());
                owed.as_mut().enable();
                let mut debts = self.debts.all();
                debts.retain(|debt| (*debt == Debt::All) == is_all);
                if debts.is_empty() {
                    owed.await;
                } else if !self.pay_all(report, debts).await {
                    report.sleep(self.pause()).await;
                }
            }
        };
        both(some(true), some(false)).await;
    }

    /// Returns the time between two attempts.
    pub(super) fn pause(&self) -> Duration {
        self.rest.max(PAUSE)
    }

    pub(super) fn owe(&self, report: &Report, debt: Debt, halves: Halves, behind: Option<String>) {
        let told = !matches!(debt, Debt::Claim(..));
        let debts = self.debts.owe(debt, halves, behind);
        self.owed.notify_waiters();
        if told {
            report.tell(|| Event::Owed { debts });
        }
    }
}

impl<V> Remote<V> {
    /// Writes an invalidation to the remote tier. Returns `true` if it is known to be complete.
    ///
    /// An invalidation of everything deletes one page per call and sets `continuation` to the next.
    pub(super) async fn write(
        &self,
        report: &Report,
        debt: &Debt,
        deadline: Instant,
        behind: &mut Option<String>,
    ) -> bool {
        match debt {
            Debt::All => match self.clear_page(report, deadline, behind.as_deref()).await {
                Ok(None) => true,
                Ok(next) => {
                    *behind = next;
                    false
                }
                Err(_) => false,
            },
            Debt::Tag(tag) => self.invalidate_tag(report, deadline, tag).await,
            Debt::Row(row) => self.invalidate(report, deadline, row).await,
            Debt::Claim(row, version) => {
                self.release_version(report, (RemoteCall::Invalidate, row), *version, deadline).await
            }
        }
    }
}

/// A claim while its load is in progress. If it is dropped, the release of the claim becomes
/// pending.
pub(super) struct Holding<'a, K, V> {
    shared: &'a Shared<K, V>,
    report: &'a Report,
    pub(super) claim: Claim,
    over: bool,
}

impl<'a, K, V> Holding<'a, K, V> {
    pub(super) const fn new(shared: &'a Shared<K, V>, report: &'a Report, claim: Claim) -> Self {
        Self { shared, report, claim, over: false }
    }

    /// Records that the claim was redeemed.
    pub(super) fn over(mut self) {
        self.over = true;
    }
}

impl<K, V> Drop for Holding<'_, K, V> {
    fn drop(&mut self) {
        if let Some(version) = self.claim.of_load().filter(|_| !self.over) {
            self.shared.owe(self.report, Debt::Claim(self.claim.row.clone(), version), Halves::STORE, None);
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
pub(super) struct Epochs {
    counters: Box<[AtomicU64]>,
    hasher: RandomState,
}

impl Epochs {
    pub(super) fn new() -> Self {
        Self { counters: (0..4096).map(|_| AtomicU64::new(0)).collect(), hasher: RandomState::new() }
    }

    fn counter<Q: Hash + ?Sized>(&self, key: &Q) -> &AtomicU64 {
        let at = self.hasher.hash_one(key) as usize % self.counters.len();
        &self.counters[at]
    }

    pub(super) fn now<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.counter(key).load(SeqCst)
    }

    /// Records an invalidation of the key and returns its new epoch.
    pub(super) fn next<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.counter(key).fetch_add(1, SeqCst) + 1
    }

    pub(super) fn all(&self) {
        for counter in &self.counters {
            counter.fetch_add(1, SeqCst);
        }
    }
}
