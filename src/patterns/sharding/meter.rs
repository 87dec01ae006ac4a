//! What is asked of which shard, and for which keys most.
use std::{collections::BTreeMap, fmt, sync::Arc};

use super::{
    map::ShardId,
    sketch::{HotKey, HotKeys},
};
use crate::sync::Mutex;

/// Counts routed calls by shard, and the heaviest keys. A clone is the same meter.
#[derive(Clone)]
pub struct ShardMeter(Arc<Mutex<Counts>>);

struct Counts {
    shards: BTreeMap<ShardId, u64>,
    keys: HotKeys,
}

/// What a meter has counted.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardLoad {
    /// Calls, by shard; a shard that had none is not listed.
    pub shards: Vec<(ShardId, u64)>,
    /// The heaviest keys' bytes, the first first.
    pub hottest: Vec<HotKey>,
}

impl ShardMeter {
    /// A meter that follows so many keys, at least one: the ten heaviest of a million need about a thousand.
    pub fn new(keys: usize) -> Self {
        Self(Arc::new(Mutex::new(Counts { shards: BTreeMap::new(), keys: HotKeys::new(keys) })))
    }

    /// Counts a call for this key at this shard.
    pub fn record(&self, shard: ShardId, key: &[u8]) {
        let mut counts = self.0.lock();
        *counts.shards.entry(shard).or_default() += 1;
        counts.keys.record(key);
    }

    /// What was counted so far, with so many of the heaviest keys.
    pub fn load(&self, hottest: usize) -> ShardLoad {
        let counts = self.0.lock();
        let shards = counts.shards.iter().map(|(shard, n)| (*shard, *n)).collect();
        ShardLoad { shards, hottest: counts.keys.heaviest(hottest) }
    }

    /// The same, and begins anew: for a reading a minute.
    pub fn take(&self, hottest: usize) -> ShardLoad {
        let mut counts = self.0.lock();
        let shards = std::mem::take(&mut counts.shards).into_iter().collect();
        let load = ShardLoad { shards, hottest: counts.keys.heaviest(hottest) };
        counts.keys.clear();
        load
    }
}

impl ShardLoad {
    /// The most loaded shard's calls in units of the mean over so many shards.
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
