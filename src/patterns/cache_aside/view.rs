//! A cache with options for its loads.
use std::{borrow::Borrow, fmt, future::Future, hash::Hash, sync::Arc};

use super::{CacheAside, LoadError, LoadOptions, Loaded, Stale, load::LoaderResult, read::forget, state::LocalLookup};

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
