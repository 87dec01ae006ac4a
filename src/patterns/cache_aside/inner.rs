//! What all clones of a cache share, and the steps on it that neither wait nor load.
use std::{borrow::Borrow, hash::Hash, sync::Arc, time::Duration};

use super::{
    CacheAsideConfig, CacheAsideEvent,
    entry::{Birth, Entry, Hot, Worth},
    local::{Left, Local, heaviest},
    report::Report,
    shared::Shared,
    spawner::Spawner,
    tags::{Slot, Tags},
};
use crate::{
    entropy::Entropy,
    flight::{Flights, Given},
    time::Instant,
};

/// What came of a load, or of a look into the remote tier.
pub(super) struct Landed<V> {
    pub(super) what: What<V>,
    /// The number of the sequence when it began.
    pub(super) born: u64,
    pub(super) tags: Box<[Slot]>,
}

impl<V: Clone> Given<Landed<V>> {
    /// Returns what came, copied where others have it too.
    pub(super) fn into_what(self) -> What<V> {
        match self {
            Self::Own(landed) => landed.what,
            Self::Shared(landed) => landed.what.clone(),
        }
    }
}

#[derive(Clone)]
pub(super) enum What<V> {
    Value(V),
    /// The source has nothing.
    Absent,
    /// The loader's error, of the type that its caller knows.
    Failed(Arc<dyn std::any::Any + Send + Sync>),
    TimedOut,
    /// Nobody asked the source.
    Nothing,
}

pub(super) struct Inner<K: Hash + Eq, V> {
    pub(super) config: CacheAsideConfig,
    pub(super) local: Local<K, V>,
    pub(super) flights: Flights<K, Landed<V>>,
    pub(super) tags: Tags,
    pub(super) report: Report,
    pub(super) entropy: Entropy,
    pub(super) spawner: Spawner,
    pub(super) weigher: Option<Weigher<K, V>>,
    pub(super) shared: Option<Shared<K, V>>,
}

/// What an entry weighs.
pub(super) type Weigher<K, V> = Arc<dyn Fn(&K, &V) -> u64 + Send + Sync>;

/// A local entry, and what it is worth.
pub(super) enum Seen<V> {
    /// Serve it.
    Fresh(Entry<V>),
    /// Serve it, and refresh it.
    Due(Entry<V>),
    /// Serve it, though it is expired.
    Throttled(Entry<V>),
    /// Serve it if a load fails.
    Expired(Entry<V>),
    Nothing,
}

impl<K: Hash + Eq, V: Clone> Inner<K, V> {
    /// The value of a hit that needs no second thought, or what else there is.
    #[inline]
    pub(super) fn look<Q>(&self, key: &Q) -> Result<V, Seen<V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let Some(Hot { value, plain_until, born }) = self.local.get(key) else { return Err(Seen::Nothing) };
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
    fn look_again<Q>(&self, key: &Q) -> Seen<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.local.peek(key).map_or(Seen::Nothing, |entry| self.weigh_up(entry))
    }

    pub(super) fn weigh_up(&self, entry: Entry<V>) -> Seen<V> {
        if self.tags.overtook(entry.hot.born, entry.tags()) {
            return Seen::Nothing;
        }
        let above_floor = self.tags.is_above_floor(entry.hot.born);
        let now = self.report.now();
        match entry.worth(now, above_floor, self.config.xfetch, &self.entropy) {
            Worth::Fresh => {
                entry.touch(now);
                Seen::Fresh(entry)
            }
            Worth::Due => {
                entry.touch(now);
                Seen::Due(entry)
            }
            Worth::Throttled => Seen::Throttled(entry),
            Worth::Expired => Seen::Expired(entry),
            Worth::Nothing => Seen::Nothing,
        }
    }

    /// An entry to serve, without counting as a use; with whether it is stale. For a second look, under the lock of the key's flights.
    pub(super) fn peek<Q>(&self, key: &Q) -> Option<(Entry<V>, bool)>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        match self.weigh_up(self.local.peek(key)?) {
            Seen::Fresh(entry) | Seen::Due(entry) => Some((entry, false)),
            Seen::Throttled(entry) => Some((entry, true)),
            Seen::Expired(_) | Seen::Nothing => None,
        }
    }

    /// Whether what a flight gave counts for who joined it: no tag of it was invalidated since it began, no notice missed.
    pub(super) fn is_current(&self, landed: &Landed<V>) -> bool {
        self.tags.is_above_floor(landed.born) && !self.tags.overtook(landed.born, &landed.tags)
    }

    /// How long the local tier keeps what the remote tier keeps longer.
    pub(super) fn local_ttl(&self) -> Option<Duration> {
        self.shared.as_ref()?.remote.as_ref()?;
        Some(self.config.remote.local_ttl.unwrap_or(self.config.ttl / 10))
    }

    /// An entry of this birth.
    pub(super) fn entry(&self, value: Option<V>, birth: Birth, now: Instant) -> Entry<V> {
        Entry::new(value, birth, &self.config, now, &self.entropy)
    }

    /// What it weighs: at least 1, for what weighs nothing is never evicted. What is too heavy to be kept is told.
    pub(super) fn weight(&self, key: &K, value: Option<&V>) -> u64 {
        let (Some(weigh), Some(value)) = (&self.weigher, value) else { return 1 };
        let weight = weigh(key, value).clamp(1, u64::MAX >> 16);
        let most = heaviest(self.config.capacity);
        if weight > most {
            self.report.tell(|| CacheAsideEvent::TooHeavy { weight, most });
        }
        weight
    }

    pub(super) fn slots(&self, tags: &[String]) -> Box<[Slot]> {
        if tags.is_empty() {
            return Box::default();
        }
        tags.iter().map(|tag| self.tags.slot(tag)).collect()
    }

    /// Counts and drops what left the table, outside all locks.
    pub(super) fn clear_away(&self, left: Left<K, V>) {
        if left.evicted > 0 {
            self.report.stats.evictions.fetch_add(left.evicted, std::sync::atomic::Ordering::Relaxed);
        }
        drop(left);
    }

    /// In this process: from when this returns no get gives what was read before. Gives the key's epoch.
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
        // The flights first: what one stores before it is cut off is cleared, what one would store afterwards is not stored.
        if let Some(shared) = &self.shared {
            shared.epochs.all();
        }
        self.flights.supersede_all();
        self.local.clear();
    }

    /// When the source may be asked again, after a load failed now.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.config.stale.map(|stale| self.report.now() + stale.throttle)
    }
}
