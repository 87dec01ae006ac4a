//! The local tier: the table of an eviction library. Its notions of time (it has none) and of loads
//! are not used.
//!
//! All writes of a key happen under the lock of the key's flights, see [`crate::flight`], so no
//! fill falls between the two parts of an invalidation. Removed entries are returned to the caller,
//! which drops them outside that lock, because dropping runs foreign code.
use std::{borrow::Borrow, hash::Hash, marker::PhantomData};

use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, Weighter, sync::Cache};

use super::super::local::entry::{Entry, Hot, Rest};
use crate::time::Instant;

pub(crate) struct Local<K, V>(Cache<K, Stored<V>, Weights, DefaultHashBuilder, EvictionHook<K, V>>);

/// Share of the capacity that one entry may weigh: the part of the table that is not on probation.
const MOST_OF_IT: f64 = 0.97;

/// Returns the greatest weight of an entry that a table of this capacity keeps.
pub(crate) fn heaviest(capacity: u64) -> u64 {
    ((capacity as f64 * MOST_OF_IT) as u64).clamp(1, capacity)
}

/// An entry in the table, small for the sake of locality. The library clones what it finds, and a
/// clone has only the part for a plain hit. Other readers look at the entry in place.
pub(crate) struct Stored<V>(Hot<V>, StoredRest);

/// The rest of an entry in the table.
enum StoredRest {
    /// None: of a clone.
    Cloned,
    /// One that follows from the hot part and the time at which the entry was stored. Most entries
    /// are like this, and need no allocation.
    Plain(Instant),
    Boxed(Box<Rest>),
}

impl<V: Clone> Clone for Stored<V> {
    #[inline]
    fn clone(&self) -> Self {
        Self(self.0.clone(), StoredRest::Cloned)
    }
}

impl<V> From<Entry<V>> for Stored<V> {
    fn from(entry: Entry<V>) -> Self {
        let rest = match entry.plain_since() {
            Some(stored) => StoredRest::Plain(stored),
            None => StoredRest::Boxed(Box::new(entry.rest)),
        };
        Self(entry.hot, rest)
    }
}

/// Weighs an entry by the weight that it was stored with.
#[derive(Clone)]
struct Weights;

impl<K, V> Weighter<K, Stored<V>> for Weights {
    fn weight(&self, _: &K, entry: &Stored<V>) -> u64 {
        match &entry.1 {
            StoredRest::Boxed(rest) => rest.weight,
            StoredRest::Plain(_) | StoredRest::Cloned => 1,
        }
    }
}

/// Collects evicted and replaced entries, so that they outlive the table's lock.
struct EvictionHook<K, V>(PhantomData<fn() -> (K, V)>);

impl<K, V> Clone for EvictionHook<K, V> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

/// Entries that were removed from the table. Drop it outside all locks.
pub(crate) struct Removed<K, V> {
    first: Option<(K, Stored<V>)>,
    more: Vec<(K, Stored<V>)>,
    pub(crate) evicted: u64,
}

impl<K, V> Default for Removed<K, V> {
    fn default() -> Self {
        Self { first: None, more: Vec::new(), evicted: 0 }
    }
}

impl<K, V> Removed<K, V> {
    fn add(&mut self, key: K, entry: Stored<V>) {
        if self.first.is_none() {
            self.first = Some((key, entry));
        } else {
            self.more.push((key, entry));
        }
    }
}

impl<K, V> Lifecycle<K, Stored<V>> for EvictionHook<K, V> {
    type RequestState = Removed<K, V>;

    fn on_evict(&self, left: &mut Removed<K, V>, key: K, entry: Stored<V>) {
        left.evicted += 1;
        left.add(key, entry);
    }
}

impl<K: Hash + Eq, V: Clone> Local<K, V> {
    /// Creates an empty table for this number of entries.
    pub(crate) fn of_entries(capacity: u64) -> Self {
        let mut options = OptionsBuilder::new();
        options.weight_capacity(capacity).estimated_items_capacity(usize::try_from(capacity).unwrap_or(usize::MAX));
        Self::of(&options)
    }

    /// Creates an empty table for this total weight. It has a single shard: the library keeps no
    /// entry heavier than a shard, and has four shards per core otherwise.
    pub(crate) fn of_weight(capacity: u64) -> Self {
        let mut options = OptionsBuilder::new();
        let entries = capacity.min(100_000);
        options.weight_capacity(capacity).estimated_items_capacity(usize::try_from(entries).unwrap_or(usize::MAX));
        options.shards(1).hot_allocation(MOST_OF_IT);
        Self::of(&options)
    }

    fn of(options: &OptionsBuilder) -> Self {
        #[expect(clippy::expect_used, reason = "both of its settings are set")]
        let options = options.build().expect("both settings are set");
        Self(Cache::with_options(options, Weights, DefaultHashBuilder::default(), EvictionHook(PhantomData)))
    }

    /// Returns the part for a plain hit. It counts as a use.
    #[inline]
    pub(crate) fn get<Q>(&self, key: &Q) -> Option<Hot<V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.0.get(key).map(|stored| stored.0)
    }

    /// Returns the whole entry. It does not count as a use.
    pub(crate) fn peek<Q>(&self, key: &Q) -> Option<Entry<V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut seen = None;
        // `remove_if` is the library's only access to an entry in place; returning `false` keeps the entry.
        self.0.remove_if(key, |Stored(hot, rest)| {
            let rest = match rest {
                StoredRest::Boxed(rest) => Some(Rest::clone(rest)),
                StoredRest::Plain(stored) => Some(Rest::plain(hot.plain_until, *stored)),
                StoredRest::Cloned => None,
            };
            seen = rest.map(|rest| Entry { hot: hot.clone(), rest });
            false
        });
        seen
    }

    /// Stores an entry. The key is given twice: once to keep, and once to tell a replaced entry
    /// from evicted ones.
    pub(crate) fn insert<Q>(&self, key: K, same: &Q, entry: impl Into<Stored<V>>) -> Removed<K, V>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut left = Removed::default();
        self.0.insert_with_lifecycle(key, entry.into(), &mut left);
        let replaced = left.first.iter().chain(&left.more).filter(|(key, _)| key.borrow() == same).count();
        left.evicted = left.evicted.saturating_sub(replaced as u64);
        left
    }

    pub(crate) fn remove<Q>(&self, key: &Q) -> Removed<K, V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut left = Removed::default();
        if let Some((key, entry)) = self.0.remove(key) {
            left.add(key, entry);
        }
        left
    }

    /// Returns `true` if this very entry is in the table, apart from marks that were set since.
    pub(crate) fn holds<Q>(&self, key: &Q, entry: &Entry<V>) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.peek(key).is_some_and(|found| found.is_of(entry))
    }

    /// Replaces an entry by a marked copy. It does not count as a use.
    pub(crate) fn mark(&self, key: K, entry: Entry<V>) -> Removed<K, V> {
        let mut left = Removed::default();
        if let Err((key, entry)) = self.0.replace_with_lifecycle(key, entry.into(), true, &mut left) {
            left.add(key, entry);
        }
        left.evicted = left.evicted.saturating_sub(1);
        left
    }

    /// Changes the capacity; evicts entries above it. It is rounded up to one entry for each shard.
    pub(crate) fn set_capacity(&self, capacity: u64) {
        self.0.set_capacity(capacity);
    }

    pub(crate) fn clear(&self) {
        // Collected first, so that foreign values are dropped outside the table's locks.
        drop(self.0.drain().collect::<Vec<_>>());
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
