//! A fan-out that reads each row once, also while rows are moved.
use std::{future::Future, sync::Arc};

use super::{
    ShardDirectory, ShardingError,
    fan_out::{FanOut, FanOutResult},
    map::{ShardId, ShardMap},
};
use crate::backoff::Backoff;

impl ShardDirectory {
    /// Queries all shards, and checks that no key changed its owner meanwhile. If one did, queries
    /// them again, until the [retry time-out](super::ShardDirectoryConfig::retry_timeout). Each
    /// shard must return only the rows that [belong to it](ShardMap::shard_of) by the given map,
    /// because rows are at two shards during a move.
    ///
    /// Each unchanged row is then read once: the source keeps all rows of a chunk until the map
    /// that names the target is recorded, and the target has them all from then on. Use this for
    /// reads: an operation that writes may write twice.
    ///
    /// A new pin counts as a change of owner, also a pin to the key's own shard.
    ///
    /// # Errors
    /// [`ShardingError::Moving`] if owners changed each time, and those of
    /// [`refresh`](Self::refresh). Failures of shards are in the result.
    ///
    /// # Cancel safety
    /// That of the operations.
    pub async fn query_all<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        fan_out: &FanOut,
        mut operation: impl FnMut(ShardId, Arc<ShardMap>) -> F,
    ) -> Result<FanOutResult<T, E>, ShardingError> {
        let mut map = self.refresh().await?;
        let until = self.0.clock.now() + self.0.config.retry_timeout;
        let mut pauses = Backoff::checked(self.0.config.backoff, &self.0.entropy);
        loop {
            let out = fan_out.run(&map.shards(), |shard| operation(shard, map.clone())).await;
            let after = self.refresh().await?;
            if map.has_owners_of(&after) {
                return Ok(out);
            }
            let pause = pauses.next().unwrap_or_default();
            if self.0.clock.now() + pause > until {
                return Err(ShardingError::Moving);
            }
            self.0.clock.sleep(pause).await;
            map = self.refresh().await?;
        }
    }
}

/// Minimum number of changes in which a chunk can move away and back: closed, switched, ended;
/// begun again without a copy, closed, switched.
const MIN_CHANGES_THERE_AND_BACK: u64 = 5;

impl ShardMap {
    /// Returns `true` if no key changed its owner from this map to the later one, not even
    /// temporarily.
    pub(super) fn has_owners_of(&self, later: &Self) -> bool {
        let soon = later.version().saturating_sub(self.version()) < MIN_CHANGES_THERE_AND_BACK;
        soon && self.ranges == later.ranges && self.pinned == later.pinned
    }
}
