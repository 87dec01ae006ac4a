//! What a cache shares with those of other processes: a remote tier, a backplane, and what it owes to both.
use std::{
    hash::{BuildHasher, Hash, RandomState},
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::Duration,
};

use tokio::sync::Notify;

use super::{
    CacheAsideEvent as Event,
    backplane::Backplane,
    debts::{Debt, Debts},
    remote::{Claim, Looked, Purpose, Remote},
    report::Report,
};
use crate::store::Version;

pub(super) struct Shared<K, V> {
    /// A key as text, and back.
    pub(super) row: fn(&K) -> String,
    pub(super) parse: fn(&str) -> Option<K>,
    pub(super) remote: Option<Remote<V>>,
    pub(super) backplane: Option<Backplane>,
    pub(super) epochs: Epochs,
    pub(super) debts: Debts,
    /// Something is owed.
    pub(super) owed: Notify,
    /// How long to wait before what could not be delivered is tried again.
    pub(super) rest: Duration,
}

impl<K, V> Shared<K, V> {
    /// Looks into the remote tier, unless what is there may be what was invalidated.
    pub(super) async fn look(&self, report: &Report, key: &K, purpose: Purpose) -> Looked<V> {
        let Some(remote) = &self.remote else { return Looked::Without };
        let row = (self.row)(key);
        while let Some((debt, number)) = self.debts.bars(&row) {
            if !remote.is_up(report.now()) || !self.pay(report, &debt, number).await {
                return Looked::Without;
            }
        }
        remote.look(report, &row, purpose).await
    }

    /// Makes an invalidation known: to the remote tier, then to the other processes. Says whether it is.
    pub(super) async fn spread(&self, report: &Report, debt: &Debt) -> bool {
        if let Some(remote) = &self.remote {
            let done = match debt {
                Debt::All => remote.clear(report).await,
                Debt::Tag(tag) => remote.invalidate_tag(report, tag).await,
                Debt::Row(row) => remote.invalidate(report, row).await,
                Debt::Claim(row, version) => remote.release_version(report, row, *version).await,
            };
            if !done {
                return false;
            }
        }
        match (&self.backplane, debt.told()) {
            (Some(backplane), Some(told)) => backplane.tell(report, &told).await,
            _ => true,
        }
    }

    /// Pays one debt; says whether it could.
    pub(super) async fn pay(&self, report: &Report, debt: &Debt, number: u64) -> bool {
        let paid = self.spread(report, debt).await;
        if paid && self.debts.paid(debt, number) {
            report.tell(|| Event::Settled);
        }
        paid
    }

    pub(super) fn owe(&self, report: &Report, debt: Debt) {
        let told = !matches!(debt, Debt::Claim(..));
        let debts = self.debts.owe(debt);
        self.owed.notify_one();
        if told {
            report.tell(|| Event::Owed { debts });
        }
    }
}

/// A claim while its load is under way. Dropped with the load, it is given back as soon as that can be.
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

    /// It was redeemed.
    pub(super) fn over(mut self) {
        self.over = true;
    }
}

impl<K, V> Drop for Holding<'_, K, V> {
    fn drop(&mut self) {
        if let Some(version) = self.claim.of_load().filter(|_| !self.over) {
            self.shared.owe(self.report, Debt::Claim(self.claim.row.clone(), version));
        }
    }
}

impl Claim {
    /// The version of the row that is nothing but this claim. (A refresh leaves a value there.)
    fn of_load(&self) -> Option<Version> {
        self.lock.is_none().then_some(self.version)
    }
}

/// Counts the invalidations of keys, for those who put a value while others may invalidate it. Keys share counters by their hash: two that
/// meet in one cost a load and nothing else.
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

    /// The key was invalidated; gives its new epoch.
    pub(super) fn next<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.counter(key).fetch_add(1, SeqCst) + 1
    }

    pub(super) fn all(&self) {
        for counter in &self.counters {
            counter.fetch_add(1, SeqCst);
        }
    }
}
