//! A sketch of the hottest keys of a stream, in limited memory.
use std::collections::{BTreeSet, HashMap};

/// The hottest keys of a stream, by Space-Saving (Metwally, Agrawal, El Abbadi 2005). With `n`
/// counters, a count is never too low, and too high by at most the stream's length divided by `n`.
#[derive(Debug, Clone)]
pub struct HotKeys {
    counters: Vec<Counter>,
    places: HashMap<Box<[u8]>, usize>,
    /// The count and the index of each counter, the lowest count first.
    order: BTreeSet<(u64, usize)>,
    capacity: usize,
}

#[derive(Debug, Clone)]
struct Counter {
    key: Box<[u8]>,
    count: u64,
    over: u64,
}

/// A key with its count.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HotKey {
    /// The key's bytes.
    pub key: Vec<u8>,
    /// Upper bound of the count.
    pub count: u64,
    /// Maximum error: the true count is at least `count - over`.
    pub over: u64,
}

impl HotKeys {
    /// Creates a sketch with `counters` counters, at least one.
    pub fn new(counters: usize) -> Self {
        Self { counters: Vec::new(), places: HashMap::new(), order: BTreeSet::new(), capacity: counters.max(1) }
    }

    /// Counts a key. It allocates only for a key that is not tracked yet.
    pub fn record(&mut self, key: &[u8]) {
        if let Some(at) = self.places.get(key).copied() {
            let count = &mut self.counters[at].count;
            self.order.remove(&(*count, at));
            *count += 1;
            self.order.insert((*count, at));
            return;
        }
        let at = self.counters.len();
        let (at, over) = if at < self.capacity {
            self.counters.push(Counter { key: key.into(), count: 1, over: 0 });
            (at, 0)
        } else if let Some((lowest, at)) = self.order.pop_first() {
            let counter = &mut self.counters[at];
            self.places.remove(&counter.key);
            *counter = Counter { key: key.into(), count: lowest + 1, over: lowest };
            (at, lowest)
        } else {
            return;
        };
        self.places.insert(key.into(), at);
        self.order.insert((over + 1, at));
    }

    /// Returns the `n` hottest keys, the hottest first.
    pub fn heaviest(&self, n: usize) -> Vec<HotKey> {
        let heaviest = self.order.iter().rev().take(n).map(|(_, at)| &self.counters[*at]);
        heaviest.map(|Counter { key, count, over }| HotKey { key: key.to_vec(), count: *count, over: *over }).collect()
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        (self.counters, self.places, self.order) = Default::default();
    }
}

/// Returns the imbalance of a load: the largest share divided by the mean. 1 is even; 1 for no
/// load.
#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub fn skew(counts: &[u64]) -> f64 {
    let all: u64 = counts.iter().sum();
    let largest = counts.iter().max().copied().unwrap_or(0);
    if all == 0 { 1.0 } else { largest as f64 * counts.len() as f64 / all as f64 }
}
