//! A fan-out that meets each row once, also while rows are moved.
use std::{future::Future, sync::Arc};

use super::{
    ShardDirectory, ShardingError,
    fan_out::{FanOut, FannedOut},
    map::{ShardId, ShardMap},
};
use crate::backoff::Backoff;

impl ShardDirectory {
    /// Asks all shards, and counts on it that nothing changed its owner meanwhile: else it asks them all again, until the
    /// [patience](super::ShardDirectoryConfig::patience) ends. Shards read the rows for which the map that they are given
    /// [names](ShardMap::shard_of) them, and pass the others over: while something is moved its rows lie at two shards.
    ///
    /// Each row that stands still is then met once: a source keeps all rows of a part until the map that names the target is recorded, and the
    /// target has them all from then on. For reads; what an operation writes it may write again.
    ///
    /// # Errors
    /// [`ShardingError::Moving`] where owners changed each time, and as [`refresh`](Self::refresh). Shards that fail are in what is given.
    ///
    /// # Cancel safety
    /// As the operations'.
    pub async fn ask_all<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        fan_out: &FanOut,
        mut operation: impl FnMut(ShardId, Arc<ShardMap>) -> F,
    ) -> Result<FannedOut<T, E>, ShardingError> {
        let mut map = self.refresh().await?;
        let until = self.0.clock.now() + self.0.config.patience;
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

/// The fewest changes after which a part can have gone and come back: it is closed, has switched, ended; begun again without a copy, closed,
/// switched.
const THERE_AND_BACK: u64 = 5;

impl ShardMap {
    /// Whether no key has changed its owner from this map to that later one, there and back neither.
    pub(super) fn has_owners_of(&self, later: &Self) -> bool {
        let soon = later.version().saturating_sub(self.version()) < THERE_AND_BACK;
        soon && self.ranges == later.ranges && self.pinned == later.pinned
    }
}
