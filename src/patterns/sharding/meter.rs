//! Load of shards and hot keys.
use std::{collections::BTreeMap, fmt, sync::Arc};

use super::{
    map::ShardId,
    sketch::{HotKey, HotKeys},
};
use crate::sync::Mutex;

/// Counts routed calls by shard, and finds the hottest keys. A clone is the same meter.
#[derive(Clone)]
pub struct ShardMeter(Arc<Mutex<Counts>>);

struct Counts {
    shards: BTreeMap<ShardId, u64>,
    keys: HotKeys,
}

/// The counts of a meter.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ShardLoad {
    /// Number of calls by shard. A shard without calls is not listed.
    pub shards: Vec<(ShardId, u64)>,
    /// The hottest keys, the hottest first.
    pub hottest: Vec<HotKey>,
}

impl ShardMeter {
    /// Creates a meter that tracks `keys` keys, at least one. The ten hottest of a million need
    /// about a thousand.
    pub fn new(keys: usize) -> Self {
        Self(Arc::new(Mutex::new(Counts { shards: BTreeMap::new(), keys: HotKeys::new(keys) })))
    }

    /// Counts a call for this key at this shard.
    pub fn record(&self, shard: ShardId, key: &[u8]) {
        let mut counts = self.0.lock();
        *counts.shards.entry(shard).or_default() += 1;
        counts.keys.record(key);
    }

    /// Returns the counts so far, with up to `hottest` keys.
    pub fn load(&self, hottest: usize) -> ShardLoad {
        let counts = self.0.lock();
        let shards = counts.shards.iter().map(|(shard, n)| (*shard, *n)).collect();
        ShardLoad { shards, hottest: counts.keys.heaviest(hottest) }
    }

    /// Returns the counts and resets them, for example once a minute.
    pub fn take(&self, hottest: usize) -> ShardLoad {
        let mut counts = self.0.lock();
        let shards = std::mem::take(&mut counts.shards).into_iter().collect();
        let load = ShardLoad { shards, hottest: counts.keys.heaviest(hottest) };
        counts.keys.clear();
        load
    }
}

impl ShardLoad {
    /// Returns the number of calls of the busiest shard, divided by the mean over `shards` shards.
    pub fn skew(&self, shards: usize) -> f64 {
        let mut counts: Vec<u64> = self.shards.iter().map(|(_, n)| *n).collect();
        counts.resize(shards.max(counts.len()), 0);
        super::skew(&counts)
    }
}

impl fmt::Debug for ShardMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardMeter").field("load", &self.load(3)).finish()
    }
}
