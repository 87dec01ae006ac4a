//! Refresh ahead: a hit on a value that is still valid, but due for a refresh, starts a load in the
//! background, at most once per value.
use std::{any::TypeId, borrow::Borrow, future::Future, hash::Hash, time::Duration};

use super::{
    CacheAside, CacheAsideConfig,
    load::{LoadPurpose, LoaderResult},
    local::entry::Entry,
    many::{BatchLoader, OneOf},
    many_load::ManyLoad,
    options::CallOptions,
    state::LoadOutcome,
};
use crate::{
    backoff::scaled,
    entropy::Entropy,
    flight::{JoinOrLead, Lead},
    time::Instant,
};

/// The times of an entry that decide when a hit starts a refresh.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct RefreshAhead {
    /// Time from which a hit starts a refresh.
    at: Instant,
    /// Duration of the load, for XFetch; zero for no refresh by chance.
    took: Duration,
}

impl RefreshAhead {
    /// Of a value that is never refreshed ahead, or no more: a refresh was started.
    pub(crate) const NEVER: Self = Self { at: Instant::FAR_FUTURE, took: Duration::ZERO };

    pub(crate) fn new(config: &CacheAsideConfig, now: Instant, ttl: Duration, age: Duration, took: Duration) -> Self {
        let at = |share| now + scaled(ttl, share).saturating_sub(age);
        Self {
            at: config.refresh_ahead.map_or(Self::NEVER.at, at),
            took: config.xfetch.map_or(Self::NEVER.took, |_| took),
        }
    }

    /// Returns the time before which no hit starts a refresh.
    pub(crate) fn impossible_until(self, fresh_until: Instant, xfetch: Option<f64>) -> Instant {
        let chance = xfetch.map_or(Duration::ZERO, |beta| xfetch_horizon(self.took, beta));
        fresh_until.min(self.at).min(fresh_until.saturating_sub(chance))
    }

    /// Returns `true` if a hit now, with so much of the time to live left, starts a refresh.
    pub(crate) fn is_due(self, now: Instant, left: Duration, xfetch: Option<f64>, entropy: &Entropy) -> bool {
        let by_chance = xfetch
            .is_some_and(|beta| !self.took.is_zero() && xfetch_refreshes(self.took, beta, 1.0 - entropy.unit(), left));
        now >= self.at || by_chance
    }

    /// Returns `true` if a refresh may still be started.
    fn is_possible(self) -> bool {
        self.at < Self::NEVER.at || !self.took.is_zero()
    }

    pub(crate) fn took(self) -> Duration {
        self.took
    }
}

/// Returns `true` if a hit should refresh a value that expires in `left` and took `took` to load;
/// `u` is drawn from `(0, 1]`.
///
/// Source: Vattani, Chierichetti, Lowenstein, "Optimal probabilistic cache stampede prevention",
/// VLDB 2015.
pub(crate) fn xfetch_refreshes(took: Duration, beta: f64, u: f64, left: Duration) -> bool {
    -took.as_secs_f64() * beta * u.ln() >= left.as_secs_f64()
}

/// Returns the time before expiry in which a refresh by chance is possible. `u` is a multiple of
/// 2^-53, so `-ln u` is at most 36.8.
fn xfetch_horizon(took: Duration, beta: f64) -> Duration {
    scaled(took, beta * 36.8)
}

/// Starts a load in the background for a value that is still valid, at most once per value.
pub(super) fn refresh<Q, K, V, L, F, O>(cache: &CacheAside<K, V>, key: &Q, entry: &Entry<V>, loader: L, options: O)
where
    K: Hash + Eq + Clone + Send + Sync + Borrow<Q> + 'static,
    V: Clone + Send + Sync + 'static,
    Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    L: FnOnce() -> F,
    F: Future<Output = LoaderResult<V>> + Send + 'static,
    O: CallOptions,
{
    if let Some(lead) = lead(cache, key, TypeId::of::<F>(), entry) {
        let load = cache.load(&lead);
        let purpose = LoadPurpose::Refresh(entry.rest.version);
        let seat = lead.start(Box::pin(load.run(purpose, loader(), options))).in_background();
        cache.0.spawner.spawn(async move { drop(seat.await) });
    }
}

/// Starts one load in the background for values that are still valid, at most once per value.
pub(super) fn refresh_many<Q, K, V, F, O>(
    cache: &CacheAside<K, V>,
    due: Vec<(&Q, Entry<V>)>,
    loader: &BatchLoader<K, V>,
    options: &O,
) where
    K: Hash + Eq + Clone + Send + Sync + Borrow<Q> + 'static,
    V: Clone + Send + Sync + 'static,
    Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    F: Send + 'static,
    O: CallOptions,
{
    let work_type = TypeId::of::<OneOf<F, V>>();
    let lead = |(key, entry): (&Q, Entry<V>)| {
        Some((lead(cache, key, work_type, &entry)?, LoadPurpose::Refresh(entry.rest.version)))
    };
    let leads: Vec<_> = due.into_iter().filter_map(lead).collect();
    if leads.is_empty() {
        return;
    }
    let seats = ManyLoad::start(cache, leads, loader, options).into_iter().map(|seat| seat.in_background());
    let seats: Vec<_> = seats.collect();
    cache.0.spawner.spawn(async move {
        for seat in seats {
            drop(seat.await);
        }
    });
}

/// Returns the right to refresh a value that is still valid, at most once per value.
fn lead<Q, K, V>(
    cache: &CacheAside<K, V>,
    key: &Q,
    work_type: TypeId,
    entry: &Entry<V>,
) -> Option<Lead<K, LoadOutcome<V>>>
where
    K: Hash + Eq + Clone + Send + Sync + Borrow<Q> + 'static,
    V: Clone + Send + Sync + 'static,
    Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
{
    let inner = &cache.0;
    if !inner.spawner.is_there() {
        return None;
    }
    let mut left = None;
    let joined = inner.flights.join_or_lead_unless(key, work_type, || {
        let found = inner.local.peek(key).filter(|found| found.is_of(entry) && found.rest.ahead.is_possible());
        let Some(found) = found else { return Some(()) };
        left = Some(inner.local.mark(key.to_owned(), found.refreshing()));
        None
    });
    drop(left);
    match joined {
        Ok(JoinOrLead::Leads(lead)) => Some(lead),
        _ => None,
    }
}
