//! Values behind many locks, one of which is selected by a hash, so that two threads rarely wait
//! for each other.
use crate::sync::{Line, Mutex};

/// Number of shards: enough that two threads rarely meet in one; a power of two.
const SHARDS: usize = 64;

/// A value in each shard, usually a table of the keys whose hashes select it.
pub(crate) struct Sharded<T>(Box<[Line<Mutex<T>>]>);

impl<T> Sharded<T> {
    pub(crate) fn new(shard: impl Fn() -> T) -> Self {
        Self((0..SHARDS).map(|_| Line(Mutex::new(shard()))).collect())
    }

    /// Returns the shard of a hash.
    #[inline]
    pub(crate) fn of(&self, hash: u64) -> &Mutex<T> {
        // A hash table in the shard uses the low bits and the top seven, so these are independent.
        &self.0[(hash >> 48) as usize % SHARDS].0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Mutex<T>> {
        self.0.iter().map(|shard| &shard.0)
    }

    /// Returns the part of `total` that one shard may hold, rounded up.
    pub(crate) const fn share(&self, total: usize) -> usize {
        total.div_ceil(self.0.len())
    }
}
