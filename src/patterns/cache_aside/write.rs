//! The write side of the cache: invalidations, updates and puts.
use std::{borrow::Borrow, future::Future, hash::Hash, time::Duration};

use super::{
    CacheAside, CacheAsideEvent as Event, Loaded,
    loaded::ValueSettings,
    local::entry::{Birth, Entry},
    remote::backplane::CacheNotice,
    remote::fill::Content,
    remote::lookup::RemotePut,
    remote::pending::{Invalidation, Steps},
    state::Inner,
    stats::count,
};
use crate::{store::Version, time::Instant};

/// The processes that an invalidation has reached. In this process it always holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reached {
    /// The remote tier and the other processes, if there are any, know of the invalidation.
    Everywhere,
    /// Only this process knows of the invalidation so far; it is pending for the others, and
    /// [`run`](CacheAside::run) delivers it. Until then this process does not use the remote tier
    /// for the affected keys, and other processes may serve the old value until its time to live
    /// ends.
    ThisProcess,
}

impl<K, V> CacheAside<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Invalidates the key.
    ///
    /// No get that starts after this has returned gives a value that was read before, and no load
    /// in progress stores its value. Call it **after** the source was written, or use
    /// [`update`](Self::update), which keeps the order.
    ///
    /// # Cancel safety
    /// If the future is dropped at any point, the invalidation holds in this process and stays
    /// pending for the others.
    pub async fn invalidate<Q>(&self, key: &Q) -> Reached
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + Sync + ?Sized,
    {
        count(&self.0.report.stats.invalidations);
        self.0.invalidate_here(key);
        self.row_propagation(key).deliver().await
    }

    /// Invalidates all values with this tag.
    ///
    /// # Cancel safety
    /// As [`invalidate`](Self::invalidate).
    pub async fn invalidate_tag(&self, tag: &str) -> Reached {
        let inner = &*self.0;
        count(&inner.report.stats.invalidations);
        self.spread(|_| Invalidation::Tag(tag.to_owned()), || inner.tags.invalidate(tag)).await
    }

    /// Invalidates everything. It deletes every row of the remote tier, which takes long if it has
    /// many.
    ///
    /// # Cancel safety
    /// As [`invalidate`](Self::invalidate).
    pub async fn clear(&self) -> Reached {
        let inner = &*self.0;
        count(&inner.report.stats.invalidations);
        self.spread(|_| Invalidation::All, || inner.clear_here()).await
    }

    /// Writes the source and then invalidates the key. The reverse order would leave a gap in which
    /// a reader caches the old value.
    ///
    /// A write that fails or is dropped may have been made all the same, so the key is invalidated
    /// in that case, too.
    ///
    /// # Errors
    /// Those of `write`.
    ///
    /// # Cancel safety
    /// If the future is dropped during the write, the key is invalidated in this process and the
    /// invalidation stays pending for the others. The write itself is the caller's to judge.
    pub async fn update<Q, T, E>(&self, key: &Q, write: impl Future<Output = Result<T, E>>) -> Result<T, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + Sync + ?Sized,
    {
        count(&self.0.report.stats.invalidations);
        let propagation = self.row_propagation(key);
        let written = write.await;
        propagation.deliver().await;
        written
    }

    /// Stores a value that the caller knows to be current. It wins over any load in progress.
    ///
    /// After a write to the source prefer [`update`](Self::update): if two writers put what they
    /// wrote, the later put need not be the later write.
    ///
    /// # Cancel safety
    /// If the future is dropped before the value is stored, this process holds nothing under the
    /// key, and the deletion from the remote tier stays pending. If it is dropped afterwards, the
    /// notice to the other processes stays pending.
    pub async fn put<Q>(&self, key: &Q, value: impl Into<Loaded<V>>) -> Reached
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + Sync + ?Sized,
    {
        let inner = &*self.0;
        let (value, ttl, tags, settings) = value.into().into_parts();
        let ttl = ttl.unwrap_or(inner.config.now().ttl);
        let settings = settings.as_deref().unwrap_or(ValueSettings::NONE);
        let entry = |value, born, version| self.born(key, value, (ttl, &tags, settings), born, version);
        let born = inner.tags.now();
        let Some(shared) = &inner.shared else {
            self.keep(key, 0, entry(value, born, None));
            return Reached::Everywhere;
        };
        let deadline = inner.report.now() + inner.config.now().remote.timeout;
        let epoch = inner.invalidate_here(key);
        let row = (shared.row)(&key.to_owned());
        let mut propagation = self.row_propagation(key);
        let put = match &shared.remote {
            Some(remote) if remote.health.admits(inner.report.now()) => {
                let content = Content { value: Some(&value), ttl, tags: &tags, settings };
                remote.put(&inner.report, deadline, &row, content).await
            }
            Some(_) => RemotePut::Unknown,
            None => RemotePut::NotStorable,
        };
        let version = match put {
            RemotePut::Stored(version) => Some(version),
            RemotePut::NotStorable => None,
            // The writer is unknown; it may be a late copy of this put's own request. Neither value stays.
            RemotePut::Superseded => return propagation.deliver_by(deadline).await,
            RemotePut::Unknown => {
                // Made pending before the value is kept, so that no load takes the remote tier's old value.
                propagation.defer();
                // Other processes cannot have this value. Here it is the newest, unless it was invalidated meanwhile.
                if self.keep(key, epoch, entry(value, born, None)) {
                    propagation.here = None;
                }
                return Reached::ThisProcess;
            }
        };
        if !self.keep(key, epoch, entry(value, born, version)) {
            // The key was invalidated meanwhile, in an unknown order in the remote tier: neither value stays.
            return propagation.deliver_by(deadline).await;
        }
        // The value stays in this process even if the others cannot be notified.
        propagation.here = None;
        propagation.delivered(Steps::STORE);
        let is_published = match &shared.backplane {
            Some(backplane) => backplane.publish(&inner.report, &CacheNotice::Row(row, version), deadline).await,
            None => true,
        };
        if is_published {
            propagation.delivered(Steps::NOTICE);
            Reached::Everywhere
        } else {
            Reached::ThisProcess
        }
    }

    /// Stores values that are known at start-up, in this process only. An existing value is never
    /// replaced.
    ///
    /// It does not replace loading on demand. With a backplane, let [`run`](Self::run) subscribe
    /// first: a new subscription treats all existing entries as expired.
    pub fn prime(&self, values: impl IntoIterator<Item = (K, V)>) {
        let inner = &*self.0;
        for (key, value) in values {
            let born = inner.tags.now();
            let settings = (inner.config.now().ttl, &[][..], ValueSettings::NONE);
            let (key, entry, _) = self.born(&key, value, settings, born, None);
            // A load in progress has a newer value, so its key is not primed either.
            let left = inner.flights.if_idle(&key, || {
                inner.local.peek(&key).is_none().then(|| inner.local.insert(key.clone(), &key, entry))
            });
            if let Some(left) = left.flatten() {
                inner.clear_away(left);
            }
        }
    }

    /// Returns an entry whose value is current now, and whether it is to be kept.
    fn born<Q>(
        &self,
        key: &Q,
        value: V,
        (ttl, names, settings): (Duration, &[String], &ValueSettings),
        born: u64,
        version: Option<Version>,
    ) -> (K, Entry<V>, bool)
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
            tags: inner.slots(names),
            names,
            settings,
            weight: inner.weight(&key, Some(&value)),
        };
        (key, inner.entry(Some(value), birth, inner.report.now()), !settings.skip_local_write)
    }

    /// Stores the value of a put unless the key was invalidated since `epoch`, and supersedes loads
    /// that began meanwhile. Returns `true` if the epoch is unchanged.
    fn keep<Q>(&self, key: &Q, epoch: u64, (own, entry, kept): (K, Entry<V>, bool)) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let inner = &*self.0;
        let (same, left) = inner.flights.supersede(key, || {
            let same = inner.shared.as_ref().is_none_or(|shared| shared.epochs.now(key) == epoch);
            let lives = kept
                && entry.rest.fresh_until > entry.rest.stored
                && !inner.tags.invalidated_since(entry.hot.born, entry.tags());
            (same, if same && lives { inner.local.insert(own, key, entry) } else { inner.local.remove(key) })
        });
        inner.clear_away(left);
        same
    }

    /// Returns the propagation of the invalidation of one key.
    fn row_propagation<'a, Q>(&'a self, key: &'a Q) -> Propagation<'a, K, V, impl Fn() + use<'a, Q, K, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.propagation(|row| Invalidation::Row(row(&key.to_owned())), || _ = self.0.invalidate_here(key))
    }

    /// Invalidates in this process and then everywhere.
    async fn spread(&self, invalidation: impl FnOnce(fn(&K) -> String) -> Invalidation, here: impl Fn()) -> Reached {
        here();
        self.propagation(invalidation, here).deliver().await
    }

    fn propagation<H: Fn()>(
        &self,
        invalidation: impl FnOnce(fn(&K) -> String) -> Invalidation,
        here: H,
    ) -> Propagation<'_, K, V, H> {
        let inner = &*self.0;
        let remaining = inner.shared.as_ref().map(|shared| (invalidation(shared.row), shared.steps()));
        let stamp = inner.shared.as_ref().map_or(0, |shared| shared.pending_invalidations.stamp());
        Propagation { inner, remaining, continuation: None, stamp, here: Some(here) }
    }
}

/// An invalidation that is being propagated. If it is dropped before it has reached everything, it
/// holds in this process and the remaining steps become pending.
struct Propagation<'a, K: Hash + Eq, V, H: Fn()> {
    inner: &'a Inner<K, V>,
    /// The invalidation and its remaining steps.
    remaining: Option<(Invalidation, Steps)>,
    /// Continuation of the deletion of all rows.
    continuation: Option<String>,
    /// At least the number of every pending invalidation that this propagation also delivers.
    stamp: u64,
    /// Invalidates in this process once more at the end: a load during the propagation may have
    /// stored an older value.
    here: Option<H>,
}

impl<K: Hash + Eq, V, H: Fn()> Propagation<'_, K, V, H> {
    async fn deliver(self) -> Reached {
        let deadline = self.inner.report.now() + self.inner.config.now().remote.timeout;
        self.deliver_by(deadline).await
    }

    /// Performs the remaining steps: the write, then the notice.
    async fn deliver_by(mut self, mut deadline: Instant) -> Reached {
        let (inner, report) = (self.inner, &self.inner.report);
        let Some(shared) = &inner.shared else { return Reached::Everywhere };
        self.stamp = shared.pending_invalidations.stamp();
        while let Some((invalidation, _)) = self.remaining.as_ref().filter(|(_, steps)| steps.store)
            && let Some(remote) = &shared.remote
        {
            let before = self.continuation.clone();
            if !remote.health.admits(report.now()) {
                return Reached::ThisProcess;
            }
            if remote.write(report, invalidation, deadline, &mut self.continuation).await {
                self.delivered(Steps::STORE);
            } else if self.continuation == before {
                return Reached::ThisProcess;
            } else {
                // Each page of deleted rows has a time-out of its own.
                deadline = report.now() + inner.config.now().remote.timeout;
            }
        }
        if let Some(notice) = self
            .remaining
            .as_ref()
            .filter(|(_, steps)| steps.notice)
            .and_then(|(invalidation, _)| invalidation.notice())
            && let Some(backplane) = &shared.backplane
        {
            if !backplane.publish(report, &notice, deadline).await {
                return Reached::ThisProcess;
            }
            self.delivered(Steps::NOTICE);
        }
        Reached::Everywhere
    }

    /// Records that these steps are done, also for an earlier pending invalidation of the same
    /// target.
    fn delivered(&mut self, done: Steps) {
        if let Some((shared, (invalidation, steps))) = self.inner.shared.as_ref().zip(self.remaining.as_mut()) {
            steps.store &= !done.store;
            steps.notice &= !done.notice;
            if shared.pending_invalidations.delivered(invalidation, self.stamp, done) {
                self.inner.report.event(|| Event::InvalidationsDelivered);
            }
        }
    }

    /// Leaves the remaining steps pending.
    fn defer(&mut self) {
        if let Some((shared, (invalidation, steps))) = self.inner.shared.as_ref().zip(self.remaining.take())
            && steps.any()
        {
            shared.defer(&self.inner.report, invalidation, steps, self.continuation.take());
        }
    }
}

impl<K: Hash + Eq, V, H: Fn()> Drop for Propagation<'_, K, V, H> {
    fn drop(&mut self) {
        // This comes first: between the two, a load could bring back the old value from the remote tier.
        self.defer();
        if let Some(here) = &self.here {
            here();
        }
    }
}
