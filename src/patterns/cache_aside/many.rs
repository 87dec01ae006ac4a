//! Gets of several keys at once.
use std::{
    any::{Any, TypeId},
    borrow::Borrow,
    collections::{HashMap, HashSet},
    future::Future,
    hash::Hash,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::{StreamExt, stream::FuturesUnordered};

use super::{
    CacheAside, CacheView, LoadError, Loaded,
    load::{LoadPurpose, LoaderResult},
    local::entry::{Entry, Freshness},
    many_load::ManyLoad,
    miss::{Answer, JoinedSeat, Miss},
    options::CallOptions,
    read::forget,
    refresh,
    stats::count,
};
use crate::{flight::JoinOrLead, port::BoxFuture, race::both};

/// A loader of several keys, with its types erased. Keys that its result lacks are absent.
pub(super) type BatchLoader<K, V> = Arc<dyn Fn(Vec<K>) -> BoxFuture<'static, BatchResult<K, V>> + Send + Sync>;

/// The result of a loader of several keys, with its error type erased.
pub(super) type BatchResult<K, V> = Result<HashMap<K, Loaded<V>>, Arc<dyn Any + Send + Sync>>;

/// A missing key, at its place among the misses, and its seat in a flight.
type Joined<'q, Q, K, V, L, O> = (usize, &'q Q, Miss<L, V, O>, JoinedSeat<K, V>);

/// The answer for one of the requested keys.
enum Place<V> {
    Known(Option<V>),
    /// Index among the misses.
    Missed(usize),
}

impl<K, V> CacheAside<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Returns the values under these keys, in their order, from the cache or else from `loader`. A
    /// key that the source does not have gives `None`, which is remembered for
    /// [`negative_ttl`](super::CacheAsideConfig::negative_ttl), if set.
    ///
    /// `loader` is called with all missing keys, in parts of at most
    /// [`max_batch`](super::CacheAsideConfig::max_batch) that run concurrently. It returns the
    /// values that the source has, for example in a `HashMap`; other keys that it returns are
    /// ignored. A key is loaded once, however often it is named. A key that another call loads
    /// already is not loaded again: this call waits for it. So does a later call for a key that
    /// this one loads.
    ///
    /// The missing keys are first looked up in the remote tier, up to 64 at a time, as a store has
    /// no read of several keys. A key that another process loads delays the loader by at most
    /// `remote.timeout`.
    ///
    /// ```
    /// use std::{collections::HashMap, convert::Infallible};
    /// use steadfast::cache_aside::{CacheAside, CacheAsideConfig};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let prices: CacheAside<String, usize> = CacheAside::new(CacheAsideConfig::default())?;
    /// // Asks the source once for all: select .. where currency in (..)
    /// let load = |keys: Vec<String>| async move {
    ///     let known = keys.into_iter().filter(|key| key != "xyz");
    ///     Ok::<HashMap<String, usize>, Infallible>(known.map(|key| (key, 117)).collect())
    /// };
    /// let found = prices.get_or_load_many(["eur", "xyz", "usd", "eur"], load).await?;
    /// assert_eq!(found, [Some(117), None, Some(117), Some(117)]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The error of the first key in order that has no value and no servable expired one: its
    /// loader's, or a time-out. Values of other keys are cached all the same.
    ///
    /// # Cancel safety
    /// If the future is dropped, other callers lose nothing: one of them continues the load, for
    /// all keys of this call. Without other callers it is dropped or finished, as
    /// [configured](super::CacheAsideConfig::unattended).
    pub async fn get_or_load_many<'q, Q, I, L, F, M, T, E>(
        &self,
        keys: I,
        loader: L,
    ) -> Result<Vec<Option<V>>, LoadError<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized + 'q,
        I: IntoIterator<Item = &'q Q>,
        L: Fn(Vec<K>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<M, E>> + Send + 'static,
        M: IntoIterator<Item = (K, T)>,
        T: Into<Loaded<V>>,
        E: Send + Sync + 'static,
    {
        let (places, missed) = self.look_many(keys, &());
        self.many::<_, F, E, _>(places, missed, erase(loader), ()).await
    }

    /// Looks all keys up in the local tier.
    fn look_many<'q, Q, I, O>(&self, keys: I, options: &O) -> (Vec<Place<V>>, LocalMisses<'q, Q, V>)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        I: IntoIterator<Item = &'q Q>,
        O: CallOptions,
    {
        let (inner, stats) = (&self.0, &self.0.report.stats);
        let mut misses = LocalMisses { missing: Vec::new(), due: Vec::new() };
        let (mut seen, mut due) = (HashMap::new(), HashSet::new());
        let reads = !options.is(|options| options.skip_local_read);
        let place = |key: &'q Q| {
            if let Some(at) = seen.get(key) {
                return Place::Missed(*at);
            }
            let stale = match if reads { inner.look(key) } else { Err(None) } {
                Ok(value) => return Place::Known(Some(value)),
                Err(Some((Freshness::Fresh, entry))) => {
                    stats.hits.increase();
                    return Place::Known(entry.hot.value);
                }
                Err(Some((Freshness::Due, entry))) => {
                    stats.hits.increase();
                    let value = entry.hot.value.clone();
                    if due.insert(key) {
                        misses.due.push((key, entry));
                    }
                    return Place::Known(value);
                }
                Err(Some((Freshness::Throttled, entry))) => {
                    count(&stats.stale_hits);
                    return Place::Known(entry.hot.value);
                }
                Err(Some((Freshness::Expired, entry))) => Some(Box::new(entry)),
                Err(None) => None,
            };
            stats.misses.increase();
            let at = misses.missing.len();
            seen.insert(key, at);
            misses.missing.push((key, stale));
            Place::Missed(at)
        };
        let places = keys.into_iter().map(place).collect();
        (places, misses)
    }

    /// Loads the missing keys, and returns the values in order.
    async fn many<Q, F, E, O>(
        &self,
        places: Vec<Place<V>>,
        missed: LocalMisses<'_, Q, V>,
        loader: BatchLoader<K, V>,
        options: O,
    ) -> Result<Vec<Option<V>>, LoadError<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        F: Send + 'static,
        E: Send + Sync + 'static,
        O: CallOptions,
    {
        refresh::refresh_many::<_, _, _, F, _>(self, missed.due, &loader, &options);
        let mut answers: Vec<Option<Answer<V, E>>> = missed.missing.iter().map(|_| None).collect();
        {
            let joined = self.join_many::<_, F, E, _>(missed.missing, &loader, &options, &mut answers);
            let (own, others): (Vec<_>, Vec<_>) = joined.into_iter().partition(|(.., (_, leads))| *leads);
            let began = self.0.report.now();
            let mut waits: FuturesUnordered<_> = others
                .into_iter()
                .map(|(at, key, miss, seat)| async move {
                    let wait = self.wait(&miss).since(began);
                    (at, self.get_slowly::<_, _, OneOf<F, V>, E, _>(key, miss, wait, Some(seat)).await)
                })
                .collect();
            // All are awaited, also after an error, so that the values of the other keys are stored.
            let others = async {
                let mut answers = Vec::with_capacity(waits.len());
                while let Some(answer) = waits.next().await {
                    answers.push(answer);
                }
                answers
            };
            // The flights of this call end together, with its load. They are awaited one after another,
            // because each step of the load would wake all that are polled.
            let own = async {
                let mut answers = Vec::with_capacity(own.len());
                for (at, key, miss, seat) in own {
                    let wait = self.wait(&miss).since(began);
                    let answer = self.get_slowly::<_, _, OneOf<F, V>, E, _>(key, miss, wait, Some(seat)).await;
                    answers.push((at, answer));
                }
                answers
            };
            let (own, others) = both(own, others).await;
            own.into_iter().chain(others).for_each(|(at, answer)| answers[at] = Some(answer));
        }
        let mut values = Vec::with_capacity(answers.len());
        for answer in answers {
            values.push(answer.unwrap_or(Err(LoadError::Panicked))?);
        }
        let value = |place| match place {
            Place::Known(value) => value,
            Place::Missed(at) => values[at].clone(),
        };
        Ok(places.into_iter().map(value).collect())
    }

    /// Joins the flights of the keys, or starts one load for all that have none.
    #[expect(clippy::type_complexity, reason = "the loader of a single key has no name")]
    fn join_many<'q, Q, F, E, O>(
        &self,
        missing: Vec<(&'q Q, Option<Box<Entry<V>>>)>,
        loader: &BatchLoader<K, V>,
        options: &O,
        answers: &mut [Option<Answer<V, E>>],
    ) -> Vec<Joined<'q, Q, K, V, impl FnOnce() -> OneOf<F, V> + use<'q, Q, K, V, F, E, O>, O>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        F: Send + 'static,
        E: Send + Sync + 'static,
        O: CallOptions,
    {
        let inner = &self.0;
        let (mut joined, mut leads, mut leading) = (Vec::new(), Vec::new(), Vec::new());
        let reads = !options.is(|options| options.skip_local_read);
        for (at, (key, stale)) in missing.into_iter().enumerate() {
            let loader = loader.clone();
            // For a key whose load, by another caller, gives no usable result.
            let alone = move || OneOf::new(key.to_owned(), &loader);
            let mut miss = Miss { loader: Some(alone), stale, may_be_absent: true, options: options.clone() };
            // A load may have ended between the first lookup and this one.
            match inner
                .flights
                .join_or_lead_unless(key, TypeId::of::<OneOf<F, V>>(), || inner.peek(key).filter(|_| reads))
            {
                Err((entry, is_stale)) => {
                    if is_stale {
                        count(&inner.report.stats.stale_hits);
                    }
                    answers[at] = Some(Ok(entry.hot.value));
                }
                Ok(JoinOrLead::Joined(seat)) => joined.push((at, key, miss, (seat, false))),
                Ok(JoinOrLead::Leads(lead)) => {
                    miss.loader = None;
                    leads.push((lead, LoadPurpose::Load));
                    leading.push((at, key, miss));
                }
            }
        }
        let seats = ManyLoad::start(self, leads, loader, options);
        joined.extend(leading.into_iter().zip(seats).map(|((at, key, miss), seat)| (at, key, miss, (seat, true))));
        joined
    }
}

impl<K, V> CacheView<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Returns the values under these keys, as [`CacheAside::get_or_load_many`] does, with the
    /// options of this view.
    ///
    /// # Errors
    /// As [`CacheAside::get_or_load_many`].
    ///
    /// # Cancel safety
    /// As [`CacheAside::get_or_load_many`].
    pub async fn get_or_load_many<'q, Q, I, L, F, M, T, E>(
        &self,
        keys: I,
        loader: L,
    ) -> Result<Vec<Option<V>>, LoadError<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized + 'q,
        I: IntoIterator<Item = &'q Q>,
        L: Fn(Vec<K>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<M, E>> + Send + 'static,
        M: IntoIterator<Item = (K, T)>,
        T: Into<Loaded<V>>,
        E: Send + Sync + 'static,
    {
        let (places, missed) = self.cache.look_many(keys, &self.options);
        self.cache.many::<_, F, E, _>(places, missed, erase(loader), self.options.clone()).await
    }
}

/// The keys that the local tier cannot answer.
struct LocalMisses<'q, Q: ?Sized, V> {
    /// Each with its expired value, if it may be served when the load fails.
    missing: Vec<(&'q Q, Option<Box<Entry<V>>>)>,
    /// Keys with a valid value that is due for a refresh.
    due: Vec<(&'q Q, Entry<V>)>,
}

/// Erases the types of a loader.
fn erase<K, V, L, F, M, T, E>(loader: L) -> BatchLoader<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    L: Fn(Vec<K>) -> F + Send + Sync + 'static,
    F: Future<Output = Result<M, E>> + Send + 'static,
    M: IntoIterator<Item = (K, T)>,
    T: Into<Loaded<V>>,
    E: Send + Sync + 'static,
{
    Arc::new(move |keys| {
        let load = loader(keys);
        Box::pin(async {
            let values = load.await.map_err(forget)?;
            Ok(values.into_iter().map(|(key, value)| (key, value.into())).collect())
        })
    })
}

/// The load of one key by a loader of several, whose future has the type `F`. Its own type tells
/// loaders apart.
pub(super) struct OneOf<F, V>(BoxFuture<'static, LoaderResult<V>>, PhantomData<fn() -> F>);

impl<F, V: Send + 'static> OneOf<F, V> {
    fn new<K: Hash + Eq + Clone + Send + Sync + 'static>(key: K, loader: &BatchLoader<K, V>) -> Self {
        let load = loader(vec![key.clone()]);
        Self(Box::pin(async move { Ok(load.await?.remove(&key)) }), PhantomData)
    }
}

impl<F, V> Future for OneOf<F, V> {
    type Output = LoaderResult<V>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LoaderResult<V>> {
        self.0.as_mut().poll(cx)
    }
}
