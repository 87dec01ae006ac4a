//! The cache: its doors for who asks.
use std::{
    any::{Any, TypeId},
    borrow::Borrow,
    fmt,
    future::Future,
    hash::Hash,
    sync::Arc,
};

use super::{
    CacheAsideBuilder, CacheAsideConfig, CacheAsideEvent as Event, CacheAsideStats, LoadError, Loaded,
    entry::Entry,
    inner::{Inner, Landed, Seen, What},
    load::{For, Load, LoaderResult},
    miss::Miss,
    stats::count,
    wait::{Wait, Waited},
};
use crate::{
    config::ConfigError,
    flight::{Boarding, Lead, Seat},
    observe::Subscription,
};

/// Copies of what a slower source holds, by key; loaded when they are asked for, gone when they are invalidated.
///
/// A clone is the same cache. The [room's page](super) says how it works.
pub struct CacheAside<K: Hash + Eq, V>(pub(super) Arc<Inner<K, V>>);

impl<K, V> CacheAside<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// A cache of one tier by these settings.
    ///
    /// # Errors
    /// Where a setting breaks its rule.
    pub fn new(config: CacheAsideConfig) -> Result<Self, ConfigError> {
        Self::builder().config(config).build()
    }

    /// Makes a cache with a clock, a remote tier, a backplane, ... of its own.
    pub fn builder() -> CacheAsideBuilder<K, V> {
        CacheAsideBuilder::new()
    }

    /// The value under this key, from the cache or else from `loader`.
    ///
    /// `loader` is called where this process has no fresh value, and the future that it gives is polled where the remote tier has none,
    /// either. Of all who ask meanwhile one loads, and the others wait. The loader's future may outlive the caller who brought it, so it
    /// owns what it needs; the closure itself may borrow, and is the place for clones that a hit should not pay.
    ///
    /// # Errors
    /// The loader's, shared by all who waited, or that it took too long; where an expired value may be served, that is given instead.
    ///
    /// # Cancel safety
    /// Dropped, it takes nothing from others who wait: one of them drives the load on. With nobody waiting the load is dropped or
    /// finished, as [configured](CacheAsideConfig::unattended).
    #[inline]
    pub async fn get_or_load<Q, L, F, T, E>(&self, key: &Q, loader: L) -> Result<V, LoadError<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        L: FnOnce() -> F,
        F: Future<Output = Result<T, E>> + Send + 'static,
        T: Into<Loaded<V>>,
        E: Send + Sync + 'static,
    {
        let seen = match self.0.look(key) {
            Ok(value) => return Ok(value),
            Err(seen) => seen,
        };
        let loader = || {
            let load = loader();
            async { Ok(Some(load.await.map_err(forget)?.into())) }
        };
        let value = match self.serve(key, loader, seen, false) {
            Ok(value) => value,
            Err(miss) => self.ask(key, miss).await?,
        };
        // A loader of this kind always gives a value.
        value.ok_or(LoadError::Panicked)
    }

    /// The same for a source that may have nothing: remembered for [`negative_ttl`](CacheAsideConfig::negative_ttl), if that is set.
    ///
    /// # Errors
    /// As [`get_or_load`](Self::get_or_load).
    ///
    /// # Cancel safety
    /// As [`get_or_load`](Self::get_or_load).
    pub async fn get_or_load_optional<Q, L, F, T, E>(&self, key: &Q, loader: L) -> Result<Option<V>, LoadError<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        L: FnOnce() -> F,
        F: Future<Output = Result<Option<T>, E>> + Send + 'static,
        T: Into<Loaded<V>>,
        E: Send + Sync + 'static,
    {
        let seen = match self.0.look(key) {
            Ok(value) => return Ok(Some(value)),
            Err(seen) => seen,
        };
        let loader = || {
            let load = loader();
            async { Ok(load.await.map_err(forget)?.map(Into::into)) }
        };
        match self.serve(key, loader, seen, true) {
            Ok(value) => Ok(value),
            Err(miss) => self.ask(key, miss).await,
        }
    }

    /// The value under this key, if this process or the remote tier has a fresh one. Joins a load that is under way, and begins none.
    ///
    /// # Cancel safety
    /// As [`get_or_load`](Self::get_or_load).
    pub async fn get<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let inner = &self.0;
        match inner.look(key) {
            Ok(value) => return Some(value),
            Err(Seen::Fresh(entry) | Seen::Due(entry)) => {
                inner.report.stats.hits.increase();
                return entry.hot.value;
            }
            Err(_) => inner.report.stats.misses.increase(),
        }
        let seat = match inner.flights.board(key) {
            Boarding::Joined(seat) => seat,
            Boarding::Leads(_) if inner.shared.as_ref().is_none_or(|shared| shared.remote.is_none()) => return None,
            Boarding::Leads(lead) => {
                let load = self.load(&lead);
                lead.depart(Box::pin(load.look_up()))
            }
        };
        let mut seat = seat;
        let Waited::Landed(landed) = Wait::new(inner, None).on(&inner.report, &mut seat).await else { return None };
        match landed.filter(|landed| inner.is_current(landed))?.into_what() {
            What::Value(value) => Some(value),
            _ => None,
        }
    }

    /// What it did since it was made.
    pub fn stats(&self) -> CacheAsideStats {
        self.0.report.stats.read(self.0.local.len())
    }

    /// What it does from now on.
    pub fn events(&self) -> Subscription<Event> {
        self.0.report.events.subscribe()
    }

    /// What it is called, if anything.
    pub fn name(&self) -> Option<&str> {
        self.0.report.name.as_ref().map(crate::config::Name::as_str)
    }

    pub(super) fn load(&self, lead: &Lead<K, Landed<V>>) -> Load<K, V> {
        Load { inner: self.0.clone(), ticket: lead.ticket(), born: self.0.tags.now() }
    }

    /// Returns what can be served without waiting for a load; else what is known of the miss. Gives nothing only where `may_be_absent`.
    #[cold]
    fn serve<Q, L, F>(&self, key: &Q, loader: L, seen: Seen<V>, may_be_absent: bool) -> Result<Option<V>, Miss<L, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        L: FnOnce() -> F,
        F: Future<Output = LoaderResult<V>> + Send + 'static,
    {
        let stats = &self.0.report.stats;
        match seen {
            Seen::Fresh(entry) if entry.hot.value.is_some() || may_be_absent => {
                stats.hits.increase();
                Ok(entry.hot.value)
            }
            Seen::Due(entry) => {
                stats.hits.increase();
                self.refresh(key, &entry, loader);
                Ok(entry.hot.value)
            }
            Seen::Throttled(entry) => {
                count(&stats.stale_hits);
                Ok(entry.hot.value)
            }
            Seen::Expired(entry) => Err(Miss { loader: Some(loader), stale: Some(Box::new(entry)), may_be_absent }),
            Seen::Fresh(_) | Seen::Nothing => Err(Miss { loader: Some(loader), stale: None, may_be_absent }),
        }
    }

    /// Has the load go on in the background, once; says whether it can, and the stale value may be served.
    pub(super) fn leave_in_background<Q>(&self, key: &Q, seat: &Seat<K, Landed<V>>, stale: &Entry<V>) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let inner = &self.0;
        if !inner.spawner.is_there() || inner.report.now() >= stale.rest.stale_until {
            return false;
        }
        if let Some(seat) = seat.for_background() {
            inner.spawner.spawn(Box::pin(async move { drop(seat.await) }));
            inner.report.tell(|| Event::LeftInBackground);
        }
        // Until it has ended the next who ask do not wait so long again.
        if let Some(until) = inner.retry_at() {
            let (key, slow) = (key.to_owned(), stale.clone().throttled(until));
            let mark = || inner.local.holds(key.borrow(), stale).then(|| inner.local.mark(key.clone(), slow));
            let left = inner.flights.between(key.borrow(), mark);
            drop(left);
        }
        true
    }

    /// Begins a load in the background for a value that is still valid, unless one was begun for it before.
    fn refresh<Q, L, F>(&self, key: &Q, entry: &Entry<V>, loader: L)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        L: FnOnce() -> F,
        F: Future<Output = LoaderResult<V>> + Send + 'static,
    {
        let inner = &self.0;
        if !inner.spawner.is_there() {
            return;
        }
        let mut left = None;
        let boarded = inner.flights.board_unless(key, || {
            let found = inner.local.peek(key).filter(|found| found.is_of(entry) && found.is_refreshable());
            let Some(found) = found else { return Some(()) };
            left = Some(inner.local.mark(key.to_owned(), found.refreshing()));
            None
        });
        drop(left);
        if let Ok(Boarding::Leads(lead)) = boarded {
            let lead = lead.of_type(TypeId::of::<F>());
            let load = self.load(&lead);
            let seat = lead.depart(Box::pin(load.run(For::Refresh(entry.rest.version), loader()))).in_background();
            inner.spawner.spawn(Box::pin(async move { drop(seat.await) }));
        }
    }
}

fn forget<E: Send + Sync + 'static>(error: E) -> Arc<dyn Any + Send + Sync> {
    Arc::new(error)
}

impl<K: Hash + Eq, V> Clone for CacheAside<K, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Hash + Eq, V> fmt::Debug for CacheAside<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        f.debug_struct("CacheAside")
            .field("name", &inner.report.name)
            .field("config", &inner.config)
            .finish_non_exhaustive()
    }
}
