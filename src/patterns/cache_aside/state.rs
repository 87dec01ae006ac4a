//! The state that all clones of a cache share, and the operations on it that neither wait nor load.
use std::{borrow::Borrow, hash::Hash, sync::Arc, time::Duration};

use super::{
    CacheAsideConfig, CacheAsideEvent,
    local::entry::{Birth, Entry, Freshness, Hot},
    local::table::{Local, Removed, heaviest},
    local::tags::{Slot, Tags},
    remote::shared::Shared,
    report::Report,
};
use crate::{
    config::Live,
    entropy::Entropy,
    flight::{FlightResult, Flights},
    spawn::Spawner,
    time::Instant,
};

/// The outcome of a load or of a lookup in the remote tier.
pub(super) struct LoadOutcome<V> {
    pub(super) result: LoadResult<V>,
    /// Number of the tags' sequence when it began.
    pub(super) born: u64,
    pub(super) tags: Box<[Slot]>,
}

impl<V: Clone> FlightResult<LoadOutcome<V>> {
    /// Returns the result, cloned if other callers share it.
    pub(super) fn into_result(self) -> LoadResult<V> {
        match self {
            Self::Own(outcome) => outcome.result,
            Self::Shared(outcome) => outcome.result.clone(),
        }
    }
}

#[derive(Clone)]
pub(super) enum LoadResult<V> {
    Value(V),
    /// The source has nothing under the key.
    Absent,
    /// The loader failed. Only a caller with the same error type can read the error.
    Failed(Arc<dyn std::any::Any + Send + Sync>),
    /// The load took longer than this.
    TimedOut(Duration),
    /// The source was not asked.
    Nothing,
}

pub(super) struct Inner<K: Hash + Eq, V> {
    pub(super) config: Live<CacheAsideConfig>,
    pub(super) local: Local<K, V>,
    pub(super) flights: Flights<K, LoadOutcome<V>>,
    pub(super) tags: Tags,
    pub(super) report: Report,
    pub(super) entropy: Entropy,
    pub(super) spawner: Spawner,
    pub(super) weigher: Option<Weigher<K, V>>,
    pub(super) shared: Option<Shared<K, V>>,
}

/// A function that returns the weight of an entry.
pub(super) type Weigher<K, V> = Arc<dyn Fn(&K, &V) -> u64 + Send + Sync>;

/// The result of a lookup in the local tier: an entry that may be served, and its freshness.
pub(super) type LocalLookup<V> = Option<(Freshness, Entry<V>)>;

impl<K: Hash + Eq, V: Clone> Inner<K, V> {
    /// Returns the value of a plain hit, or else the entry and its freshness.
    #[inline]
    pub(super) fn look<Q>(&self, key: &Q) -> Result<V, LocalLookup<V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let Some(Hot { value, plain_until, born }) = self.local.get(key) else { return Err(None) };
        if self.report.now() < plain_until
            && self.tags.is_above_floor(born)
            && let Some(value) = value
        {
            self.report.stats.hits.increase();
            return Ok(value);
        }
        Err(self.look_again(key))
    }

    #[cold]
    #[inline(never)]
    fn look_again<Q>(&self, key: &Q) -> LocalLookup<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.assess(self.local.peek(key)?)
    }

    /// Returns an entry with its freshness, or `None` if it may not be served. Serving a fresh one
    /// is an access.
    fn assess(&self, entry: Entry<V>) -> LocalLookup<V> {
        if self.tags.invalidated_since(entry.hot.born, entry.tags()) {
            return None;
        }
        let above_floor = self.tags.is_above_floor(entry.hot.born);
        let now = self.report.now();
        let freshness = entry.freshness(now, above_floor, self.config.now().xfetch, &self.entropy)?;
        if matches!(freshness, Freshness::Fresh | Freshness::Due) {
            entry.touch(now);
        }
        Some((freshness, entry))
    }

    /// Returns a servable entry and whether it is stale, without counting as a use. It is called
    /// under the lock of the key's flights.
    pub(super) fn peek<Q>(&self, key: &Q) -> Option<(Entry<V>, bool)>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        match self.assess(self.local.peek(key)?)? {
            (Freshness::Fresh | Freshness::Due, entry) => Some((entry, false)),
            (Freshness::Throttled, entry) => Some((entry, true)),
            (Freshness::Expired, _) => None,
        }
    }

    /// Returns `true` if a caller that joined a flight may use its outcome: since it began, no tag
    /// of the value was invalidated and no notice was missed.
    pub(super) fn is_current(&self, outcome: &LoadOutcome<V>) -> bool {
        self.tags.is_above_floor(outcome.born) && !self.tags.invalidated_since(outcome.born, &outcome.tags)
    }

    /// Returns the maximum time in the local tier, if a remote tier keeps values longer.
    pub(super) fn local_ttl(&self) -> Option<Duration> {
        self.shared.as_ref()?.remote.as_ref()?;
        let config = self.config.now();
        Some(config.remote.local_ttl.unwrap_or(config.ttl / 10))
    }

    /// Creates an entry.
    pub(super) fn entry(&self, value: Option<V>, birth: Birth<'_>, now: Instant) -> Entry<V> {
        Entry::new(value, birth, &self.config.load(), now, &self.entropy)
    }

    /// Returns the weight of an entry, at least 1, because weightless entries would never be
    /// evicted. An entry that is too heavy to be kept is reported.
    pub(super) fn weight(&self, key: &K, value: Option<&V>) -> u64 {
        let (Some(weigh), Some(value)) = (&self.weigher, value) else { return 1 };
        let weight = weigh(key, value).clamp(1, u64::MAX >> 16);
        let most = heaviest(self.config.now().capacity);
        if weight > most {
            self.report.event(|| CacheAsideEvent::TooHeavy { weight, most });
        }
        weight
    }

    pub(super) fn slots(&self, tags: &[String]) -> Box<[Slot]> {
        if tags.is_empty() {
            return Box::default();
        }
        tags.iter().map(|tag| self.tags.slot(tag)).collect()
    }

    /// Counts evictions and drops removed entries, outside all locks.
    pub(super) fn clear_away(&self, left: Removed<K, V>) {
        if left.evicted > 0 {
            self.report.stats.evictions.fetch_add(left.evicted, std::sync::atomic::Ordering::Relaxed);
        }
        drop(left);
    }

    /// Invalidates a key in this process: once this has returned, no get gives a value that was
    /// read before. Returns the key's new epoch.
    pub(super) fn invalidate_here<Q>(&self, key: &Q) -> u64
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (epoch, left) = self.flights.supersede(key, || (self.next_epoch(key), self.local.remove(key)));
        self.clear_away(left);
        epoch
    }

    pub(super) fn next_epoch<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.epochs.next(key))
    }

    pub(super) fn clear_here(&self) {
        // Flights come first: a value stored before is cleared below, and none is stored afterwards.
        if let Some(shared) = &self.shared {
            shared.epochs.all();
        }
        self.flights.supersede_all();
        self.local.clear();
    }

    /// Returns the time at which the source may be asked again if a load has failed now.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.config.now().stale.map(|stale| self.report.now() + stale.throttle)
    }
}
