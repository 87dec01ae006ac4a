//! Moves of chunks between shards with a user-supplied mover. Each step is recorded before it is
//! carried out.
use std::{fmt, sync::Arc};

use super::{
    PlannedMove, ShardDirectory, ShardingError, ShardingEvent as Event,
    map::{ShardId, ShardMap},
    move_steps::{Move, Step},
};
use crate::port::{PortError, PortFuture};

/// Moves data, and installs maps at shards. All methods may be called again after a crash, and must
/// then be idempotent.
///
/// At both shards each piece of work holds a permit of the shard's own check,
/// [`ShardGuard::enter_move`](super::ShardGuard::enter_move). A mover that was paused and
/// superseded is refused there before it writes outdated rows.
pub trait Mover: Send + Sync + fmt::Debug {
    /// [Installs](super::ShardGuard::install) the map at this shard, and returns when that has
    /// returned: all permits of older maps were then dropped. A shard that is down, and reads the
    /// map when it starts, has installed it, too.
    fn install<'a>(&'a self, shard: ShardId, map: &'a Arc<ShardMap>) -> PortFuture<'a, ()>;

    /// Copies the rows of the chunk from the source to the target, while the source accepts writes.
    /// [`ShardMap::chunk_contains`] of `map` tells which keys belong to the chunk.
    fn copy<'a>(&'a self, work: &'a Move, map: &'a Arc<ShardMap>) -> PortFuture<'a, ()>;

    /// Copies the changes since, including deletions. The source accepts no writes to the chunk;
    /// the target equals it when this returns. For an offline move this is the only copy.
    fn catch_up<'a>(&'a self, work: &'a Move, map: &'a Arc<ShardMap>) -> PortFuture<'a, ()>;

    /// Deletes the rows of the chunk at this shard: the source after a move, the target after a
    /// rollback.
    fn drop_rows<'a>(&'a self, shard: ShardId, work: &'a Move, map: &'a Arc<ShardMap>) -> PortFuture<'a, ()>;
}

impl ShardDirectory {
    /// Finishes the current move, if there is one, then carries out each planned move in order.
    /// Returns the number of moves. Concurrent runs do no harm but duplicate work: run this under a
    /// lease or an election.
    ///
    /// # Errors
    /// Any error of the store, [`ShardingError::Mover`], or [`ShardingError::Change`] if the plan
    /// does not fit the map. The next run continues where this one ended. A planned move whose
    /// chunk is at its target is skipped.
    ///
    /// # Cancel safety
    /// Dropping the future has the effect of a crash: the next run continues from the recorded
    /// step.
    pub async fn rebalance(&self, plan: &[PlannedMove], mover: &dyn Mover) -> Result<usize, ShardingError> {
        let mut made = 0;
        for planned in plan {
            loop {
                made += usize::from(self.resume(mover).await?);
                if self.refresh().await?.owner_of(&planned.chunk) == Some(planned.to) {
                    break;
                }
                match self.begin(planned).await {
                    // Another run was faster: its move is finished first.
                    Err(ShardingError::Change(_)) if self.refresh().await?.moving().is_some() => {}
                    begun => drop(begun?),
                }
            }
        }
        Ok(made)
    }

    async fn begin(&self, planned: &PlannedMove) -> Result<Arc<ShardMap>, ShardingError> {
        let map = self
            .change(|map| {
                *map = map.begin(planned)?;
                Ok(())
            })
            .await?;
        if let Some(work) = map.moving() {
            self.recorded(work, Some(work.step));
        }
        Ok(map)
    }

    /// Finishes the current move. Returns `true` if there was one.
    ///
    /// # Errors
    /// Same as [`rebalance`](Self::rebalance).
    ///
    /// # Cancel safety
    /// Dropping the future has the effect of a crash: the next run continues from the recorded
    /// step.
    pub async fn resume(&self, mover: &dyn Mover) -> Result<bool, ShardingError> {
        let mut map = self.refresh().await?;
        let mut any = false;
        while let Some(work) = map.moving().cloned() {
            any = true;
            if let Err(error) = perform(&work, &map, mover).await {
                self.0.event(|| Event::MoverFailed { id: work.id, step: work.step });
                return Err(ShardingError::Mover(error));
            }
            map = self.step_on(&work).await?;
        }
        Ok(any)
    }

    /// Records that this step is done. If another run recorded it already, or rolled back the move,
    /// returns the map as that run left it.
    async fn step_on(&self, done: &Move) -> Result<Arc<ShardMap>, ShardingError> {
        loop {
            let (map, version) = self.0.read().await?;
            let Some(next) = map.advanced().filter(|_| map.moving() == Some(done)) else {
                return Ok(self.0.keep(map));
            };
            let step = next.moving().map(|work| work.step);
            if let Some(map) = self.0.put(next, version).await? {
                self.recorded(done, step);
                return Ok(map);
            }
        }
    }

    /// Rolls back the current move unless it has switched: deletes the target's rows. Returns
    /// `true` if there was such a move.
    ///
    /// # Errors
    /// Same as [`rebalance`](Self::rebalance).
    ///
    /// # Cancel safety
    /// Dropping the future has the effect of a crash: the next run continues from the recorded
    /// step.
    pub async fn roll_back(&self, mover: &dyn Mover) -> Result<bool, ShardingError> {
        loop {
            let (map, version) = self.0.read().await?;
            let Some(undoing) = map.rolled_back() else {
                self.0.keep(map);
                return Ok(false);
            };
            if let Some(map) = self.0.put(undoing, version).await? {
                if let Some(work) = map.moving() {
                    self.recorded(work, Some(work.step));
                }
                return self.resume(mover).await;
            }
        }
    }

    fn recorded(&self, work: &Move, step: Option<Step>) {
        let Move { id, from, to, .. } = *work;
        self.0.event(|| Event::StepRecorded { id, from, to, step });
    }
}

/// Carries out a recorded step. First both shards install its map; from then on they refuse
/// requests and work of earlier steps.
async fn perform(work: &Move, map: &Arc<ShardMap>, mover: &dyn Mover) -> Result<(), PortError> {
    // The source comes first: until it knows that it lost the chunk, the target must not accept
    // requests for it.
    mover.install(work.from, map).await?;
    mover.install(work.to, map).await?;
    match work.step {
        Step::Copying => mover.copy(work, map).await,
        Step::Frozen => mover.catch_up(work, map).await,
        Step::Closed => Ok(()),
        Step::Switched => mover.drop_rows(work.from, work, map).await,
        Step::Undoing => mover.drop_rows(work.to, work, map).await,
    }
}
