//! Which keys are hot: the heaviest of a stream, in bounded memory.
use std::collections::{BTreeSet, HashMap};

/// The heaviest keys of a stream, by Space-Saving (Metwally, Agrawal, El Abbadi 2005): with `n` counters a count is too high by at most
/// the stream's length divided by `n`, and never too low.
#[derive(Debug, Clone)]
pub struct HotKeys {
    counters: Vec<Counter>,
    places: HashMap<Box<[u8]>, usize>,
    /// Each counter's count and place, the lowest first.
    order: BTreeSet<(u64, usize)>,
    capacity: usize,
}

#[derive(Debug, Clone)]
struct Counter {
    key: Box<[u8]>,
    count: u64,
    over: u64,
}

/// A key and how often it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotKey {
    /// The key's bytes.
    pub key: Vec<u8>,
    /// How often, at most.
    pub count: u64,
    /// By how much that may be too high.
    pub over: u64,
}

impl HotKeys {
    /// With so many counters, at least one.
    pub fn new(counters: usize) -> Self {
        Self { counters: Vec::new(), places: HashMap::new(), order: BTreeSet::new(), capacity: counters.max(1) }
    }

    /// Counts a key. Allocates only for a key that it did not follow before.
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

    /// The heaviest, first.
    pub fn heaviest(&self, n: usize) -> Vec<HotKey> {
        let heaviest = self.order.iter().rev().take(n).map(|(_, at)| &self.counters[*at]);
        heaviest.map(|Counter { key, count, over }| HotKey { key: key.to_vec(), count: *count, over: *over }).collect()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        (self.counters, self.places, self.order) = Default::default();
    }
}

/// How uneven a load is: the largest share in units of the mean. 1 is even; 1 where there is none.
#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub fn skew(counts: &[u64]) -> f64 {
    let all: u64 = counts.iter().sum();
    let largest = counts.iter().max().copied().unwrap_or(0);
    if all == 0 { 1.0 } else { largest as f64 * counts.len() as f64 / all as f64 }
}
