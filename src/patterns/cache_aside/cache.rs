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
    inner::{Inner, Outcome, Seen, What},
    load::{For, Load, LoaderResult},
    stats::count,
    wait::{Wait, Waited},
};
use crate::{
    call::Cold,
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
        let (loader, stale) = match self.serve(key, loader, seen, false) {
            Ok(value) => return value.ok_or(LoadError::Panicked),
            Err(load) => load,
        };
        // Boxed, so that a hit moves a small future.
        let value = Cold::new(Box::pin(self.get_slowly(key, loader, stale, false))).await?;
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
            Err((loader, stale)) => Cold::new(Box::pin(self.get_slowly(key, loader, stale, true))).await,
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
        let landed = landed?;
        match &landed.what {
            What::Value(value) if inner.is_current(&landed) => Some(value.clone()),
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

    fn load(&self, lead: &Lead<K, Outcome<V>>) -> Load<K, V> {
        Load { inner: self.0.clone(), ticket: lead.ticket(), born: self.0.tags.now() }
    }

    /// What there is no load to wait for; else the loader, and what may be served if it fails. Gives nothing only where
    /// `may_be_absent`.
    #[cold]
    fn serve<Q, L, F>(&self, key: &Q, loader: L, seen: Seen<V>, may_be_absent: bool) -> Result<Option<V>, ToLoad<L, V>>
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
            Seen::Expired(entry) => Err((loader, Some(Box::new(entry)))),
            Seen::Fresh(_) | Seen::Nothing => Err((loader, None)),
        }
    }

    /// Loads, or waits for a load. Gives nothing only where `may_be_absent`.
    async fn get_slowly<Q, L, F, E>(
        &self,
        key: &Q,
        loader: L,
        stale: Option<Box<Entry<V>>>,
        may_be_absent: bool,
    ) -> Result<Option<V>, LoadError<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        L: FnOnce() -> F,
        F: Future<Output = LoaderResult<V>> + Send + 'static,
        E: Send + Sync + 'static,
    {
        let (inner, mut loader) = (&self.0, Some(loader));
        let stats = &inner.report.stats;
        stats.misses.increase();
        let mut wait = Wait::new(inner, inner.config.soft_timeout.filter(|_| stale.is_some()));
        loop {
            // Between the first look and this one a load may have ended.
            let answer = || inner.peek(key).filter(|(entry, _)| entry.hot.value.is_some() || may_be_absent);
            let (mut seat, leads) = match inner.flights.board_unless(key, answer) {
                Err((entry, is_stale)) => {
                    if is_stale {
                        count(&stats.stale_hits);
                    }
                    return Ok(entry.hot.value);
                }
                Ok(Boarding::Joined(seat)) => (seat, false),
                Ok(Boarding::Leads(lead)) => {
                    // A leader has brought its loader, and comes back here never again.
                    let Some(loader) = loader.take() else { return Err(LoadError::Panicked) };
                    let lead = lead.of_type(TypeId::of::<F>());
                    let load = self.load(&lead);
                    (lead.depart(Box::pin(load.run(For::Load, loader()))), true)
                }
            };
            let mut waited = wait.on(&inner.report, &mut seat).await;
            if let (Waited::Soft, Some(stale)) = (&waited, stale.as_deref()) {
                if self.leave_in_background(key, &seat, stale) {
                    count(&stats.stale_hits);
                    return Ok(stale.hot.value.clone());
                }
                waited = wait.on(&inner.report, &mut seat).await;
            }
            let timed_out = || LoadError::TimedOut { after: inner.config.hard_timeout.unwrap_or_default() };
            let error = match waited {
                Waited::Landed(Some(landed)) if !leads && !inner.is_current(&landed) => continue,
                Waited::Landed(Some(landed)) => match &landed.what {
                    What::Value(value) => return Ok(Some(value.clone())),
                    What::Absent if may_be_absent => return Ok(None),
                    What::Failed(error) => match error.clone().downcast::<E>() {
                        Ok(error) => LoadError::Failed(error),
                        // Another caller's error, of another type: this one asks by itself.
                        Err(_) if !leads => continue,
                        Err(_) => LoadError::Panicked,
                    },
                    What::TimedOut => timed_out(),
                    What::Absent | What::Nothing if !leads => continue,
                    What::Absent | What::Nothing => LoadError::Panicked,
                },
                // Another caller's loader, of another type, panicked: this one asks by itself. One of its own type would panic, too.
                Waited::Landed(None) if !leads && !seat.works_as(TypeId::of::<F>()) => continue,
                Waited::Landed(None) => LoadError::Panicked,
                Waited::Soft | Waited::Limit => timed_out(),
            };
            return match stale {
                Some(stale) if inner.report.now() < stale.rest.stale_until => {
                    count(&stats.stale_hits);
                    Ok(stale.hot.value)
                }
                _ => Err(error),
            };
        }
    }

    /// Has the load go on in the background, once; says whether it can, and the stale value may be served.
    fn leave_in_background<Q>(&self, key: &Q, seat: &Seat<K, Outcome<V>>, stale: &Entry<V>) -> bool
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

/// A loader, and what may be served if it fails.
type ToLoad<L, V> = (L, Option<Box<Entry<V>>>);

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
