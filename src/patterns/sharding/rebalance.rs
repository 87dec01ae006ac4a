//! Moves parts from shard to shard, by a mover that the user gives; each step is recorded before it is done.
use std::{fmt, sync::Arc};

use super::{
    Planned, ShardDirectory, ShardingError, ShardingEvent as Event,
    map::{ShardId, ShardMap},
    step::{Move, Step},
};
use crate::port::{BoxFuture, PortError};

/// Moves data, and tells shards of the map. Everything may be asked again after a crash, and must then do no harm.
///
/// At either end each piece of work goes through the shard's own check: [`ShardGuard::enter_move`](super::ShardGuard::enter_move), kept while
/// it lasts. There a mover that was paused for long, and has been overtaken, is stopped before it writes what is old by now.
pub trait Mover: Send + Sync + fmt::Debug {
    /// Has this shard [install](super::ShardGuard::install) the map, and returns when it has: whoever was let in by an older map
    /// has left by then. A shard that is down and reads the map when it starts has installed it, too.
    fn install<'a>(&'a self, shard: ShardId, map: &'a Arc<ShardMap>) -> BoxFuture<'a, Result<(), PortError>>;

    /// Copies the rows of the part from the source to the target, while the source takes writes. `map` says which keys
    /// are of the part: [`ShardMap::part_has`].
    fn copy<'a>(&'a self, work: &'a Move, map: &'a Arc<ShardMap>) -> BoxFuture<'a, Result<(), PortError>>;

    /// Copies what changed since, deletions too. The source takes no writes of the part; the target holds what it holds when this
    /// returns. Of a move that is offline this is the only copy.
    fn catch_up<'a>(&'a self, work: &'a Move, map: &'a Arc<ShardMap>) -> BoxFuture<'a, Result<(), PortError>>;

    /// Drops the rows of the part at this shard: the source, after a move; the target, of one that is given up.
    fn drop_rows<'a>(
        &'a self,
        shard: ShardId,
        work: &'a Move,
        map: &'a Arc<ShardMap>,
    ) -> BoxFuture<'a, Result<(), PortError>>;
}

impl ShardDirectory {
    /// Finishes the move under way, if there is one, then makes each of the plan in turn. Gives how many were made. Two that run at once do
    /// each other no harm, but the work is done twice: run it under a lease or an election.
    ///
    /// # Errors
    /// Any of the store's; [`ShardingError::Mover`]; [`ShardingError::Change`] where the plan does
    /// not fit the map, or not any more. The next run takes up where this one ended; a planned move
    /// whose part is at its target is passed over.
    ///
    /// # Cancel safety
    /// As a crash: the next run goes on from the step that was recorded.
    pub async fn rebalance(&self, plan: &[Planned], mover: &dyn Mover) -> Result<usize, ShardingError> {
        let mut made = 0;
        for planned in plan {
            loop {
                made += usize::from(self.resume(mover).await?);
                if self.refresh().await?.owner_of(&planned.part) == Some(planned.to) {
                    break;
                }
                match self.begin(planned).await {
                    // Another run was faster: its move is made first.
                    Err(ShardingError::Change(_)) if self.refresh().await?.moving().is_some() => {}
                    begun => drop(begun?),
                }
            }
        }
        Ok(made)
    }

    async fn begin(&self, planned: &Planned) -> Result<Arc<ShardMap>, ShardingError> {
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

    /// Finishes the move under way; says whether there was one.
    ///
    /// # Errors
    /// As [`rebalance`](Self::rebalance).
    ///
    /// # Cancel safety
    /// As a crash: the next run goes on from the step that was recorded.
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

    /// Records that this step is done. Where another has recorded it already, or gave the move up, the map is what they made of it.
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

    /// Gives up the move under way, unless it has switched already; the target's rows are dropped. Says whether it did.
    ///
    /// # Errors
    /// As [`rebalance`](Self::rebalance).
    ///
    /// # Cancel safety
    /// As a crash: the next run goes on from the step that was recorded.
    pub async fn give_up(&self, mover: &dyn Mover) -> Result<bool, ShardingError> {
        loop {
            let (map, version) = self.0.read().await?;
            let Some(undoing) = map.given_up() else {
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

/// Does what a recorded step asks for. First both shards learn of it: from then on they refuse what was let in by an earlier one.
async fn perform(work: &Move, map: &Arc<ShardMap>, mover: &dyn Mover) -> Result<(), PortError> {
    // The source first: where it learns that the part is gone, nobody else may answer for it yet.
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
