//! The cache: its doors for who changes something.
use std::{borrow::Borrow, future::Future, hash::Hash, time::Duration};

use super::{
    CacheAside, CacheAsideEvent as Event, Loaded,
    backplane::Told,
    debts::{Debt, Halves},
    entry::{Birth, Entry},
    inner::Inner,
    remote::Put,
    stats::count,
};
use crate::{store::Version, time::Instant};

/// How far an invalidation has come. In this process it holds in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reached {
    /// Everywhere: the remote tier and the other processes, where there are any, have been told.
    Everywhere,
    /// This process alone: the rest could not be told, or not in time. It is owed; [`run`](CacheAside::run) delivers it. Until then this process goes
    /// without the remote tier for what is concerned, and others may serve the old value for as long as its times to live last.
    ThisProcess,
}

impl<K, V> CacheAside<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Invalidates the key: no get that starts after this returned gives a value that was read before it, and no load that is under way now
    /// stores its own.
    ///
    /// Call it **after** the source was written; or leave the order to [`update`](Self::update).
    ///
    /// # Cancel safety
    /// Dropped at any point, it holds in this process, and is owed to the others.
    pub async fn invalidate<Q>(&self, key: &Q) -> Reached
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + Sync + ?Sized,
    {
        count(&self.0.report.stats.invalidations);
        self.0.invalidate_here(key);
        self.owing_row(key).deliver().await
    }

    /// Invalidates everything with this tag.
    ///
    /// # Cancel safety
    /// As [`invalidate`](Self::invalidate).
    pub async fn invalidate_tag(&self, tag: &str) -> Reached {
        let inner = &*self.0;
        count(&inner.report.stats.invalidations);
        self.spread(|_| Debt::Tag(tag.to_owned()), || inner.tags.invalidate(tag)).await
    }

    /// Invalidates everything. In the remote tier every row is deleted: as long as it has many, that takes.
    ///
    /// # Cancel safety
    /// As [`invalidate`](Self::invalidate).
    pub async fn clear(&self) -> Reached {
        let inner = &*self.0;
        count(&inner.report.stats.invalidations);
        self.spread(|_| Debt::All, || inner.clear_here()).await
    }

    /// Writes the source, then invalidates the key, in this order: the other leaves a gap in which a reader caches the old value.
    ///
    /// A write that fails, or is given up, may have been made all the same: the key is invalidated then, too.
    ///
    /// # Errors
    /// The write's.
    ///
    /// # Cancel safety
    /// Dropped while it writes, it leaves the key invalidated in this process, and owes it to the others. The source's write is the user's.
    pub async fn update<Q, T, E>(&self, key: &Q, write: impl Future<Output = Result<T, E>>) -> Result<T, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + Sync + ?Sized,
    {
        count(&self.0.report.stats.invalidations);
        let sure = self.owing_row(key);
        let written = write.await;
        sure.deliver().await;
        written
    }

    /// Stores a value that the caller knows to be current. It wins over any load that is under way.
    ///
    /// After a write to the source prefer [`update`](Self::update): of two writers who put what they wrote, the later put need not be the later
    /// write.
    ///
    /// # Cancel safety
    /// Dropped before the value is stored, it leaves nothing under the key in this process, and what is in the remote tier is owed to be
    /// deleted. Dropped afterwards, it owes the notice to the other processes.
    pub async fn put<Q>(&self, key: &Q, value: impl Into<Loaded<V>>) -> Reached
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + Sync + ?Sized,
    {
        let inner = &*self.0;
        let Loaded { value, ttl, tags } = value.into();
        let ttl = ttl.unwrap_or(inner.config.ttl);
        let born = inner.tags.now();
        let Some(shared) = &inner.shared else {
            self.keep(key, 0, self.born(key, value, ttl, &tags, born, None));
            return Reached::Everywhere;
        };
        let deadline = inner.report.now() + inner.config.remote.timeout;
        let epoch = inner.invalidate_here(key);
        let row = (shared.row)(&key.to_owned());
        let mut sure = self.owing_row(key);
        let put = match &shared.remote {
            Some(remote) if remote.health.admits(inner.report.now()) => {
                remote.put(&inner.report, deadline, &row, &value, (ttl, &tags)).await
            }
            Some(_) => Put::Unknown,
            None => Put::NotStorable,
        };
        let version = match put {
            Put::Stored(version) => Some(version),
            Put::NotStorable => None,
            // By whom, nobody knows: perhaps by an echo of its own request. Neither stays.
            Put::Overtaken => return sure.deliver_by(deadline).await,
            Put::Unknown => {
                // Owed before it is kept: so no load takes what was in the remote tier before.
                sure.owe();
                // Others cannot have it. Here it is the newest, unless somebody invalidated it meanwhile.
                if self.keep(key, epoch, self.born(key, value, ttl, &tags, born, None)) {
                    sure.here = None;
                }
                return Reached::ThisProcess;
            }
        };
        if !self.keep(key, epoch, self.born(key, value, ttl, &tags, born, version)) {
            // Somebody invalidated it meanwhile, and nobody knows which came first in the remote tier: neither stays.
            return sure.deliver_by(deadline).await;
        }
        // What was put stays, even if the others cannot be told.
        sure.here = None;
        sure.paid(Halves::STORE);
        let told = match &shared.backplane {
            Some(backplane) => backplane.tell(&inner.report, &Told::Row(row, version), deadline).await,
            None => true,
        };
        if told {
            sure.paid(Halves::NOTICE);
            Reached::Everywhere
        } else {
            Reached::ThisProcess
        }
    }

    /// Stores values that are known at start-up, in this process, where it has none: what is put here never takes the place of anything.
    ///
    /// It does not replace loading on demand. With a backplane let [`run`](Self::run) subscribe first: a subscription that begins takes all that is there
    /// for expired.
    pub fn prime(&self, values: impl IntoIterator<Item = (K, V)>) {
        let inner = &*self.0;
        for (key, value) in values {
            let born = inner.tags.now();
            let (key, entry) = self.born(&key, value, inner.config.ttl, &[], born, None);
            // Not while a load is under way, either: it knows better.
            let left = inner.flights.if_idle(&key, || {
                inner.local.peek(&key).is_none().then(|| inner.local.insert(key.clone(), &key, entry))
            });
            if let Some(left) = left.flatten() {
                inner.clear_away(left);
            }
        }
    }

    /// An entry that was born now.
    fn born<Q>(
        &self,
        key: &Q,
        value: V,
        ttl: Duration,
        tags: &[String],
        born: u64,
        version: Option<Version>,
    ) -> (K, Entry<V>)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let (inner, key) = (&*self.0, key.to_owned());
        let birth = Birth {
            born,
            ttl,
            local: inner.local_ttl(),
            age: Duration::ZERO,
            took: Duration::ZERO,
            version,
            tags: inner.slots(tags),
            weight: inner.weight(&key, Some(&value)),
        };
        (key, inner.entry(Some(value), birth, inner.report.now()))
    }

    /// Stores what was put, unless the key was invalidated since this epoch, which it returns; cuts off the loads that began meanwhile.
    fn keep<Q>(&self, key: &Q, epoch: u64, (own, entry): (K, Entry<V>)) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let inner = &*self.0;
        let (same, left) = inner.flights.supersede(key, || {
            let same = inner.shared.as_ref().is_none_or(|shared| shared.epochs.now(key) == epoch);
            let lives =
                entry.rest.fresh_until > entry.rest.stored && !inner.tags.overtook(entry.hot.born, entry.tags());
            (same, if same && lives { inner.local.insert(own, key, entry) } else { inner.local.remove(key) })
        });
        inner.clear_away(left);
        same
    }

    /// The invalidation of one key, on its way.
    fn owing_row<'a, Q>(&'a self, key: &'a Q) -> Owing<'a, K, V, impl Fn() + use<'a, Q, K, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.owing(|row| Debt::Row(row(&key.to_owned())), || _ = self.0.invalidate_here(key))
    }

    /// Invalidates here and everywhere.
    async fn spread(&self, debt: impl FnOnce(fn(&K) -> String) -> Debt, here: impl Fn()) -> Reached {
        here();
        self.owing(debt, here).deliver().await
    }

    fn owing<H: Fn()>(&self, debt: impl FnOnce(fn(&K) -> String) -> Debt, here: H) -> Owing<'_, K, V, H> {
        let inner = &*self.0;
        let owes = inner.shared.as_ref().map(|shared| (debt(shared.row), shared.halves()));
        let stamp = inner.shared.as_ref().map_or(0, |shared| shared.debts.stamp());
        Owing { inner, owes, behind: None, stamp, here: Some(here) }
    }
}

/// An invalidation on its way. Dropped before it has reached everything, it holds in this process, and the rest is owed.
struct Owing<'a, K: Hash + Eq, V, H: Fn()> {
    inner: &'a Inner<K, V>,
    /// Its halves that are still to be paid.
    owes: Option<(Debt, Halves)>,
    /// Where the deletion of all rows goes on.
    behind: Option<String>,
    /// Higher than the numbers of all debts that what is done from now on pays, too.
    stamp: u64,
    /// Does it in this process: what was loaded while it was on its way may be from before it.
    here: Option<H>,
}

impl<K: Hash + Eq, V, H: Fn()> Owing<'_, K, V, H> {
    async fn deliver(self) -> Reached {
        let deadline = self.inner.report.now() + self.inner.config.remote.timeout;
        self.deliver_by(deadline).await
    }

    /// Does what is left: the write, then the notice.
    async fn deliver_by(mut self, mut deadline: Instant) -> Reached {
        let (inner, report) = (self.inner, &self.inner.report);
        let Some(shared) = &inner.shared else { return Reached::Everywhere };
        self.stamp = shared.debts.stamp();
        while let Some((debt, _)) = self.owes.as_ref().filter(|(_, halves)| halves.store)
            && let Some(remote) = &shared.remote
        {
            let before = self.behind.clone();
            if !remote.health.admits(report.now()) {
                return Reached::ThisProcess;
            }
            if remote.write(report, debt, deadline, &mut self.behind).await {
                self.paid(Halves::STORE);
            } else if self.behind == before {
                return Reached::ThisProcess;
            } else {
                // Each page of what is deleted has the time-out for itself.
                deadline = report.now() + inner.config.remote.timeout;
            }
        }
        if let Some(told) = self.owes.as_ref().filter(|(_, halves)| halves.notice).and_then(|(debt, _)| debt.told())
            && let Some(backplane) = &shared.backplane
        {
            if !backplane.tell(report, &told, deadline).await {
                return Reached::ThisProcess;
            }
            self.paid(Halves::NOTICE);
        }
        Reached::Everywhere
    }

    /// Notes that these halves are done, also for whoever owed them before.
    fn paid(&mut self, done: Halves) {
        if let Some((shared, (debt, halves))) = self.inner.shared.as_ref().zip(self.owes.as_mut()) {
            halves.store &= !done.store;
            halves.notice &= !done.notice;
            if shared.debts.paid(debt, self.stamp, done) {
                self.inner.report.tell(|| Event::Settled);
            }
        }
    }

    /// Leaves the rest to be delivered later.
    fn owe(&mut self) {
        if let Some((shared, (debt, halves))) = self.inner.shared.as_ref().zip(self.owes.take())
            && halves.any()
        {
            shared.owe(&self.inner.report, debt, halves, self.behind.take());
        }
    }
}

impl<K: Hash + Eq, V, H: Fn()> Drop for Owing<'_, K, V, H> {
    fn drop(&mut self) {
        // First of all: a load that looks into the remote tier between the two would bring the old value back.
        self.owe();
        if let Some(here) = &self.here {
            here();
        }
    }
}
