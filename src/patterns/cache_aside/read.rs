//! The read side of the cache.
use std::{any::Any, borrow::Borrow, fmt, future::Future, hash::Hash, sync::Arc};

use super::{
    CacheAsideConfig, CacheAsideEvent as Event, CacheAsideStats, CacheView, LoadError, LoadOptions, Loaded,
    builder::CacheAsideSpec,
    load::{Load, LoaderResult},
    local::entry::{Entry, Freshness},
    miss::Miss,
    options::CallOptions,
    refresh,
    state::{Inner, LoadOutcome, LoadResult, LocalLookup},
    stats::count,
    validator::Stale,
    wait::{Wait, Waited},
};
use crate::{
    build::Builder,
    config::{ConfigError, Effect, Reconfigure},
    flight::{JoinOrLead, Lead, Seat},
    observe::Subscription,
};

/// A cache of values of a slower source, loaded on demand and removed when they are invalidated.
///
/// A clone shares the cache. The [module's page](super) describes how it works.
pub struct CacheAside<K: Hash + Eq, V>(pub(super) Arc<Inner<K, V>>);

impl<K, V> Reconfigure<CacheAsideConfig> for CacheAside<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    fn config(&self) -> CacheAsideConfig {
        self.config()
    }

    fn validate(&self, next: &CacheAsideConfig) -> Result<Effect, ConfigError> {
        self.config().check_change(next)
    }

    fn apply(&self, next: CacheAsideConfig) -> Result<(), ConfigError> {
        self.reconfigure(next)
    }
}

impl<K, V> CacheAside<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Creates a cache of one tier.
    ///
    /// # Errors
    /// If a setting breaks its rule.
    pub fn new(config: CacheAsideConfig) -> Result<Self, ConfigError> {
        Self::builder(config).build()
    }

    /// Creates a builder, which can also set a clock, a remote tier and a backplane.
    ///
    /// Methods of [this builder
    /// alone](crate::Builder#impl-Builder%3CCacheAside%3CK,+V%3E%3E): `spawner`, `weigher`,
    /// `remote`, `backplane`.
    pub fn builder(config: CacheAsideConfig) -> Builder<Self> {
        Builder::new(CacheAsideSpec::new(config))
    }

    /// Returns the current settings.
    pub fn config(&self) -> CacheAsideConfig {
        self.0.config.now()
    }

    /// Replaces the settings while the cache is in use, for all clones. Entries stay, and keep the
    /// times that they were stored with; the next load of their key uses the new ones. A load in
    /// progress may use old and new settings. A smaller `capacity` evicts entries at once; it is
    /// rounded up to one entry for each shard of the table, of which there are four for each core.
    ///
    /// ```
    /// use std::time::Duration;
    /// use steadfast::cache_aside::{CacheAside, CacheAsideConfig, Unattended};
    ///
    /// # fn main() -> Result<(), steadfast::ConfigError> {
    /// let cache = CacheAside::<u32, String>::new(CacheAsideConfig::default())?;
    /// cache.reconfigure(cache.config().ttl(Duration::from_secs(300)))?;
    /// assert_eq!(cache.config().ttl, Duration::from_secs(300));
    ///
    /// let error = cache.reconfigure(cache.config().unattended(Unattended::Finish)).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "invalid `unattended`: must stay as it is while the cache is in use",
    /// );
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If a setting breaks its rule, or `unattended` is another one. Nothing has changed then.
    pub fn reconfigure(&self, config: CacheAsideConfig) -> Result<(), ConfigError> {
        if let Effect::Restart(error) = self.validate(&config)? {
            return Err(error);
        }
        let Inner { config: live, local, shared, report, .. } = &*self.0;
        live.replace(config);
        let mut config = config;
        // Two concurrent changes do not mix their settings: each ends with the newest ones.
        loop {
            local.set_capacity(config.capacity);
            if let Some(shared) = shared {
                shared.set_rest(config.remote.rest);
            }
            let newest = live.now();
            if newest == config {
                break;
            }
            config = newest;
        }
        report.event(|| Event::ConfigChanged);
        Ok(())
    }

    /// Returns the value under this key, from the cache or else from `loader`.
    ///
    /// `loader` is called if this process has no fresh value, and its future is polled if the
    /// remote tier has none, either. Of all concurrent callers one loads, and the others wait. The
    /// loader's future may outlive its caller, so it must own what it needs. The closure may
    /// borrow, and is the place for clones that a hit should not make.
    ///
    /// # Errors
    /// The loader's error, shared by all waiting callers, or a time-out. If an expired value may be
    /// served, it is returned instead.
    ///
    /// # Cancel safety
    /// If the future is dropped, other callers lose nothing: one of them continues the load. A load
    /// without callers is dropped or finished, as [configured](CacheAsideConfig::unattended).
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
        let found = match self.0.look(key) {
            Ok(value) => return Ok(value),
            Err(found) => found,
        };
        let loader = || {
            let load = loader();
            async { Ok(Some(load.await.map_err(forget)?.into())) }
        };
        let value = match self.serve(key, loader, found, false, ()) {
            Ok(value) => value,
            Err(miss) => self.ask(key, miss).await?,
        };
        // A loader of this kind always returns a value.
        value.ok_or(LoadError::Panicked)
    }

    /// Returns the value under this key, or `None` if the source has nothing, which is remembered
    /// for [`negative_ttl`](CacheAsideConfig::negative_ttl), if set.
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
        let found = match self.0.look(key) {
            Ok(value) => return Ok(Some(value)),
            Err(found) => found,
        };
        let loader = || {
            let load = loader();
            async { Ok(load.await.map_err(forget)?.map(Into::into)) }
        };
        match self.serve(key, loader, found, true, ()) {
            Ok(value) => Ok(value),
            Err(miss) => self.ask(key, miss).await,
        }
    }

    /// Returns the value under this key, as [`get_or_load`](Self::get_or_load) does, from a loader
    /// that can ask the source whether the value has changed.
    ///
    /// The loader receives the value of this process that has expired, or that is due for a
    /// refresh, if it is still kept and has a [validator](Loaded::validator). If the source says
    /// that the value has not changed, the loader returns [`Stale::not_modified`]: the value is
    /// kept, and its time to live starts anew. Such an answer is subject to the same guard as a new
    /// value. In particular it does not revive a value that was invalidated during the load.
    ///
    /// ```
    /// use std::convert::Infallible;
    /// use steadfast::cache_aside::{CacheAside, CacheAsideConfig, Loaded, Stale, Validator};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # struct Response { status: u16, etag: &'static str, body: u32 }
    /// # async fn request(if_none_match: Option<String>) -> Result<Response, Infallible> {
    /// #     let status = if if_none_match.is_some() { 304 } else { 200 };
    /// #     Ok(Response { status, etag: "v1", body: 117 })
    /// # }
    /// let prices: CacheAside<String, u32> = CacheAside::new(CacheAsideConfig::default())?;
    /// let load = |stale: Option<Stale<u32>>| async move {
    ///     let etag = stale.as_ref().and_then(|stale| stale.validator().etag.clone());
    ///     let response = request(etag).await?;
    ///     Ok::<_, Infallible>(match stale {
    ///         Some(stale) if response.status == 304 => stale.not_modified(),
    ///         _ => Loaded::new(response.body).validator(Validator::default().etag(response.etag)),
    ///     })
    /// };
    /// assert_eq!(prices.get_or_refresh("eur", load).await?, 117);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`get_or_load`](Self::get_or_load).
    ///
    /// # Cancel safety
    /// As [`get_or_load`](Self::get_or_load).
    pub async fn get_or_refresh<Q, L, F, T, E>(&self, key: &Q, loader: L) -> Result<V, LoadError<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        L: FnOnce(Option<Stale<V>>) -> F,
        F: Future<Output = Result<T, E>> + Send + 'static,
        T: Into<Loaded<V>>,
        E: Send + Sync + 'static,
    {
        let found = match self.0.look(key) {
            Ok(value) => return Ok(value),
            Err(found) => found,
        };
        self.value(key, || loader(self.stale(key)), found, ()).await
    }

    /// Returns a view of this cache whose loads have these options.
    ///
    /// The view is cheap to clone, and can be kept and used for many calls. If calls with different
    /// options ask for one key at the same time, they share one load, with the options of the call
    /// that started it. `soft_timeout` and `hard_timeout` also limit the wait of their own call.
    ///
    /// # Errors
    /// If an option breaks its rule.
    pub fn with(&self, options: LoadOptions) -> Result<CacheView<K, V>, ConfigError> {
        let shared = self.0.shared.as_ref();
        options.check(&self.0.config.now(), shared.is_some_and(|shared| shared.remote.is_some()))?;
        Ok(CacheView { cache: self.clone(), options: Arc::new(options) })
    }

    /// Returns the value under this key if this process or the remote tier has a fresh one. It
    /// joins a load in progress, but starts none.
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
            Err(Some((Freshness::Fresh | Freshness::Due, entry))) => {
                inner.report.stats.hits.increase();
                return entry.hot.value;
            }
            Err(_) => inner.report.stats.misses.increase(),
        }
        let seat = match inner.flights.join_or_lead(key) {
            JoinOrLead::Joined(seat) => seat,
            JoinOrLead::Leads(_) if inner.shared.as_ref().is_none_or(|shared| shared.remote.is_none()) => return None,
            JoinOrLead::Leads(lead) => {
                let load = self.load(&lead);
                lead.start(Box::pin(load.look_up()))
            }
        };
        let mut seat = seat;
        let limit = inner.config.now().hard_timeout;
        let Waited::Ended(outcome) = Wait::new(inner, None, limit).on(&inner.report, &mut seat).await else {
            return None;
        };
        match outcome.filter(|outcome| inner.is_current(outcome))?.into_result() {
            LoadResult::Value(value) => Some(value),
            _ => None,
        }
    }

    /// Returns the counts since the cache was created.
    pub fn stats(&self) -> CacheAsideStats {
        self.0.report.stats.read(self.0.local.len())
    }

    /// Returns `true` for the remote tier and for the backplane if they are not suspended after
    /// failures; `None` for one that the cache does not have.
    #[cfg_attr(not(any(feature = "console", feature = "metrics")), allow(dead_code, reason = "read by both alone"))]
    pub(crate) fn tiers_up(&self) -> [Option<bool>; 2] {
        let shared = self.0.shared.as_ref();
        let remote = shared.and_then(|shared| shared.remote.as_ref()).map(|remote| &remote.health);
        let backplane = shared.and_then(|shared| shared.backplane.as_ref()).map(|backplane| &backplane.health);
        [remote, backplane].map(|health| health.map(|health| !health.is_suspended()))
    }

    /// Subscribes to the cache's events from now on.
    pub fn events(&self) -> Subscription<Event> {
        self.0.report.events.subscribe()
    }

    /// Returns the name, if one was set.
    pub fn name(&self) -> Option<&str> {
        self.0.report.name.as_ref().map(crate::config::Name::as_str)
    }

    pub(super) fn load(&self, lead: &Lead<K, LoadOutcome<V>>) -> Load<K, V> {
        Load { inner: self.0.clone(), handle: lead.handle(), born: self.0.tags.now() }
    }

    /// Returns a value that can be served without a load, or else the miss. Returns `Ok(None)` only
    /// if `may_be_absent` is set.
    #[cold]
    pub(super) fn serve<Q, L, F, O>(
        &self,
        key: &Q,
        loader: L,
        found: LocalLookup<V>,
        may_be_absent: bool,
        options: O,
    ) -> Result<Option<V>, Miss<L, V, O>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        L: FnOnce() -> F,
        F: Future<Output = LoaderResult<V>> + Send + 'static,
        O: CallOptions,
    {
        let stats = &self.0.report.stats;
        match found {
            Some((Freshness::Fresh, entry)) if entry.hot.value.is_some() || may_be_absent => {
                stats.hits.increase();
                Ok(entry.hot.value)
            }
            Some((Freshness::Due, entry)) => {
                stats.hits.increase();
                refresh::refresh(self, key, &entry, loader, options);
                Ok(entry.hot.value)
            }
            Some((Freshness::Throttled, entry)) => {
                count(&stats.stale_hits);
                Ok(entry.hot.value)
            }
            Some((Freshness::Expired, entry)) => {
                Err(Miss { loader: Some(loader), stale: Some(Box::new(entry)), may_be_absent, options })
            }
            Some((Freshness::Fresh, _)) | None => {
                Err(Miss { loader: Some(loader), stale: None, may_be_absent, options })
            }
        }
    }

    /// Returns the value that was found, or else one of the loader.
    pub(super) async fn value<Q, L, F, T, E, O>(
        &self,
        key: &Q,
        loader: L,
        found: LocalLookup<V>,
        options: O,
    ) -> Result<V, LoadError<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        L: FnOnce() -> F,
        F: Future<Output = Result<T, E>> + Send + 'static,
        T: Into<Loaded<V>>,
        E: Send + Sync + 'static,
        O: CallOptions,
    {
        let loader = || {
            let load = loader();
            async { LoaderResult::Ok(Some(load.await.map_err(forget)?.into())) }
        };
        let value = match self.serve(key, loader, found, false, options) {
            Ok(value) => value,
            Err(miss) => self.ask(key, miss).await?,
        };
        // A loader of this kind always returns a value.
        value.ok_or(LoadError::Panicked)
    }

    /// Lets the load continue in the background, once. Returns `true` if it can, and if the stale
    /// value may be served.
    pub(super) fn leave_in_background<Q>(&self, key: &Q, seat: &Seat<K, LoadOutcome<V>>, stale: &Entry<V>) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let inner = &self.0;
        if !inner.spawner.is_there() || inner.report.now() >= stale.rest.stale_until {
            return false;
        }
        if let Some(seat) = seat.for_background() {
            inner.spawner.spawn(async move { drop(seat.await) });
            inner.report.event(|| Event::LeftInBackground);
        }
        // Until the load has ended, later gets are served the stale value at once.
        if let Some(until) = inner.retry_at() {
            let (key, slow) = (key.to_owned(), stale.clone().throttled(until));
            let mark = || inner.local.holds(key.borrow(), stale).then(|| inner.local.mark(key.clone(), slow));
            let left = inner.flights.between(key.borrow(), mark);
            drop(left);
        }
        true
    }

    /// Returns the value of this process, fresh or not, and its validator.
    pub(super) fn stale<Q>(&self, key: &Q) -> Option<Stale<V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let entry = self.0.local.peek(key)?;
        let is_valid = !self.0.tags.invalidated_since(entry.hot.born, entry.tags());
        entry.into_stale().filter(|_| is_valid)
    }
}

pub(super) fn forget<E: Send + Sync + 'static>(error: E) -> Arc<dyn Any + Send + Sync> {
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
            .field("config", &inner.config.now())
            .finish_non_exhaustive()
    }
}
