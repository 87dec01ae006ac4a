//! The local tier: an eviction library's table, without its idea of time (it has none) and of loads.
//!
//! All writes of a key happen under the lock of the key's flights, see [`crate::flight`]: so no fill falls between an invalidation's two
//! halves. What leaves the table is handed out, to be dropped outside that lock: it is foreign code.
use std::{borrow::Borrow, hash::Hash, marker::PhantomData};

use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, Weighter, sync::Cache};

use super::entry::{Entry, Hot, Rest};

pub(super) struct Local<K, V>(Cache<K, Stored<V>, Weights, DefaultHashBuilder, Leaves<K, V>>);

/// Share of the capacity that one entry may weigh: the part of the table that is not on trial.
const MOST_OF_IT: f64 = 0.97;

/// Returns the greatest weight of an entry that a table of this capacity keeps.
pub(super) fn heaviest(capacity: u64) -> u64 {
    ((capacity as f64 * MOST_OF_IT) as u64).clamp(1, capacity)
}

/// An entry in the table, small, so that many are near. The library clones what it finds: a clone has what a plain hit needs, and no more.
/// Who needs all looks at it in place.
struct Stored<V>(Hot<V>, Option<Box<Rest>>);

impl<V: Clone> Clone for Stored<V> {
    #[inline]
    fn clone(&self) -> Self {
        Self(self.0.clone(), None)
    }
}

impl<V> From<Entry<V>> for Stored<V> {
    fn from(entry: Entry<V>) -> Self {
        Self(entry.hot, Some(Box::new(entry.rest)))
    }
}

/// The weight that an entry was stored with.
#[derive(Clone)]
struct Weights;

impl<K, V> Weighter<K, Stored<V>> for Weights {
    fn weight(&self, _: &K, entry: &Stored<V>) -> u64 {
        entry.1.as_ref().map_or(1, |rest| rest.weight)
    }
}

/// Has what is evicted, or replaced, outlive the table's lock.
struct Leaves<K, V>(PhantomData<fn() -> (K, V)>);

impl<K, V> Clone for Leaves<K, V> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

/// What left the table. Drop it outside all locks.
pub(super) struct Left<K, V> {
    first: Option<(K, Stored<V>)>,
    more: Vec<(K, Stored<V>)>,
    pub(super) evicted: u64,
}

impl<K, V> Default for Left<K, V> {
    fn default() -> Self {
        Self { first: None, more: Vec::new(), evicted: 0 }
    }
}

impl<K, V> Left<K, V> {
    fn add(&mut self, key: K, entry: Stored<V>) {
        if self.first.is_none() {
            self.first = Some((key, entry));
        } else {
            self.more.push((key, entry));
        }
    }
}

impl<K, V> Lifecycle<K, Stored<V>> for Leaves<K, V> {
    type RequestState = Left<K, V>;

    fn on_evict(&self, left: &mut Left<K, V>, key: K, entry: Stored<V>) {
        left.evicted += 1;
        left.add(key, entry);
    }
}

impl<K: Hash + Eq, V: Clone> Local<K, V> {
    /// An empty table for so many entries.
    pub(super) fn of_entries(capacity: u64) -> Self {
        let mut options = OptionsBuilder::new();
        options.weight_capacity(capacity).estimated_items_capacity(usize::try_from(capacity).unwrap_or(usize::MAX));
        Self::of(&options)
    }

    /// An empty table for so much weight. It has one part: the library keeps nothing that outweighs a part, of which it has four for each
    /// core otherwise.
    pub(super) fn of_weight(capacity: u64) -> Self {
        let mut options = OptionsBuilder::new();
        let entries = capacity.min(100_000);
        options.weight_capacity(capacity).estimated_items_capacity(usize::try_from(entries).unwrap_or(usize::MAX));
        options.shards(1).hot_allocation(MOST_OF_IT);
        Self::of(&options)
    }

    fn of(options: &OptionsBuilder) -> Self {
        #[expect(clippy::expect_used, reason = "both of its settings are set")]
        let options = options.build().expect("both settings are set");
        Self(Cache::with_options(options, Weights, DefaultHashBuilder::default(), Leaves(PhantomData)))
    }

    /// What a plain hit needs; counts as a use.
    #[inline]
    pub(super) fn get<Q>(&self, key: &Q) -> Option<Hot<V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.0.get(key).map(|stored| stored.0)
    }

    /// All of the entry, without counting as a use.
    pub(super) fn peek<Q>(&self, key: &Q) -> Option<Entry<V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut seen = None;
        // The library's one door to an entry in place: asked whether to remove it, say no.
        self.0.remove_if(key, |Stored(hot, rest)| {
            seen = rest.as_ref().map(|rest| Entry { hot: hot.clone(), rest: Rest::clone(rest) });
            false
        });
        seen
    }

    /// Stores it under the key, which is given twice: to keep, and to tell what it replaces from what it evicts.
    pub(super) fn insert<Q>(&self, key: K, same: &Q, entry: Entry<V>) -> Left<K, V>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut left = Left::default();
        self.0.insert_with_lifecycle(key, entry.into(), &mut left);
        let replaced = left.first.iter().chain(&left.more).filter(|(key, _)| key.borrow() == same).count();
        left.evicted = left.evicted.saturating_sub(replaced as u64);
        left
    }

    pub(super) fn remove<Q>(&self, key: &Q) -> Left<K, V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut left = Left::default();
        if let Some((key, entry)) = self.0.remove(key) {
            left.add(key, entry);
        }
        left
    }

    /// Whether this very entry is there, perhaps marked since.
    pub(super) fn holds<Q>(&self, key: &Q, entry: &Entry<V>) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.peek(key).is_some_and(|found| found.is_of(entry))
    }

    /// Puts a changed copy in the entry's place, without counting as a use.
    pub(super) fn mark(&self, key: K, entry: Entry<V>) -> Left<K, V> {
        let mut left = Left::default();
        if let Err((key, entry)) = self.0.replace_with_lifecycle(key, entry.into(), true, &mut left) {
            left.add(key, entry);
        }
        left.evicted = left.evicted.saturating_sub(1);
        left
    }

    pub(super) fn clear(&self) {
        // Collected first, so that what is foreign is dropped outside the table's locks.
        drop(self.0.drain().collect::<Vec<_>>());
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
