//! Doors to a cache beside the plain ones: conditional refresh, and options per call.
use std::{borrow::Borrow, fmt, future::Future, hash::Hash, sync::Arc};

use super::{
    CacheAside, LoadError, LoadOptions, Loaded, Stale, load::LoaderResult, options::CallOptions, read::forget,
    state::LocalLookup,
};
use crate::config::ConfigError;

impl<K, V> CacheAside<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
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

    /// Returns the value that was found, or else one of the loader.
    async fn value<Q, L, F, T, E, O>(
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
}

/// A view of a cache whose loads have [`LoadOptions`]; [`CacheAside::with`] returns it.
///
/// A clone shares the cache and the options.
pub struct CacheView<K: Hash + Eq, V> {
    pub(super) cache: CacheAside<K, V>,
    pub(super) options: Arc<LoadOptions>,
}

impl<K, V> CacheView<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Returns the value under this key, as [`CacheAside::get_or_load`] does, with the options of
    /// this view.
    ///
    /// # Errors
    /// As [`CacheAside::get_or_load`].
    ///
    /// # Cancel safety
    /// As [`CacheAside::get_or_load`].
    pub async fn get_or_load<Q, L, F, T, E>(&self, key: &Q, loader: L) -> Result<V, LoadError<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        L: FnOnce() -> F,
        F: Future<Output = Result<T, E>> + Send + 'static,
        T: Into<Loaded<V>>,
        E: Send + Sync + 'static,
    {
        let found = match self.look(key) {
            Ok(value) => return Ok(value),
            Err(found) => found,
        };
        self.cache.value(key, loader, found, self.options.clone()).await
    }

    /// Returns the value under this key, or `None` if the source has nothing, as
    /// [`CacheAside::get_or_load_optional`] does, with the options of this view.
    ///
    /// # Errors
    /// As [`CacheAside::get_or_load`].
    ///
    /// # Cancel safety
    /// As [`CacheAside::get_or_load`].
    pub async fn get_or_load_optional<Q, L, F, T, E>(&self, key: &Q, loader: L) -> Result<Option<V>, LoadError<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        L: FnOnce() -> F,
        F: Future<Output = Result<Option<T>, E>> + Send + 'static,
        T: Into<Loaded<V>>,
        E: Send + Sync + 'static,
    {
        let loader = || {
            let load = loader();
            async { LoaderResult::Ok(load.await.map_err(forget)?.map(Into::into)) }
        };
        let found = match self.look(key) {
            Ok(value) => return Ok(Some(value)),
            Err(found) => found,
        };
        match self.cache.serve(key, loader, found, true, self.options.clone()) {
            Ok(value) => Ok(value),
            Err(miss) => self.cache.ask(key, miss).await,
        }
    }

    /// Returns the value under this key from a loader that can ask the source whether the value has
    /// changed, as [`CacheAside::get_or_refresh`] does, with the options of this view.
    ///
    /// # Errors
    /// As [`CacheAside::get_or_load`].
    ///
    /// # Cancel safety
    /// As [`CacheAside::get_or_load`].
    pub async fn get_or_refresh<Q, L, F, T, E>(&self, key: &Q, loader: L) -> Result<V, LoadError<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        L: FnOnce(Option<Stale<V>>) -> F,
        F: Future<Output = Result<T, E>> + Send + 'static,
        T: Into<Loaded<V>>,
        E: Send + Sync + 'static,
    {
        let found = match self.look(key) {
            Ok(value) => return Ok(value),
            Err(found) => found,
        };
        self.cache.value(key, || loader(self.cache.stale(key)), found, self.options.clone()).await
    }

    /// Returns the cache.
    pub const fn cache(&self) -> &CacheAside<K, V> {
        &self.cache
    }

    /// Returns the options.
    pub fn options(&self) -> &LoadOptions {
        &self.options
    }

    fn look<Q>(&self, key: &Q) -> Result<V, LocalLookup<V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if self.options.skip_local_read { Err(None) } else { self.cache.0.look(key) }
    }
}

impl<K: Hash + Eq, V> Clone for CacheView<K, V> {
    fn clone(&self) -> Self {
        Self { cache: self.cache.clone(), options: self.options.clone() }
    }
}

impl<K: Hash + Eq, V> fmt::Debug for CacheView<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheView").field("cache", &self.cache).field("options", &self.options).finish()
    }
}
