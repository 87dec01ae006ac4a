//! A mover: copies rows from shard to shard over HTTP. It may be killed at any moment; the next mover continues.
use std::{
    collections::BTreeSet,
    fmt,
    io::{self, Write as _},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
};

use steadfast::{
    port::{BoxFuture, PortError, PortErrorKind},
    sharding::{Chunk, Move, Mover, ShardId, ShardMap},
};

use crate::{
    Result,
    engine::Engine,
    shard::Shared,
    wire::{Answer, Ask, Http, Order},
};

/// Line that it prints after it has stopped in the middle of a step.
pub const HOLDS: &str = "holds still";

/// Moves parts from shards with too many to shards with too few.
pub async fn rebalance(engine: &Engine, shards: &[ShardId], hold: Option<u32>) -> Result<()> {
    let map = Shared::open(engine).await?;
    let directory = map.directory().await?;
    let mover = OverHttp { http: Http::new(), map, hold, steps: AtomicU32::new(0) };
    // Finishes the move of an earlier mover first; the rest is planned again.
    if directory.resume(&mover).await? {
        say("the move that was under way has ended")?;
    }
    let plan = directory.map().plan(shards)?;
    directory.rebalance(&plan, &mover).await?;
    Ok(())
}

struct OverHttp {
    http: Http,
    map: Shared,
    hold: Option<u32>,
    steps: AtomicU32,
}

impl fmt::Debug for OverHttp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OverHttp").field("steps", &self.steps).finish_non_exhaustive()
    }
}

fn say(what: impl fmt::Display) -> Result<()> {
    Ok(writeln!(io::stdout().lock(), "{what}")?)
}

fn tell(work: &Move, rows: usize, what: &str) -> Result<()> {
    let slot = |bytes: &[u8]| u32::from_be_bytes(<[u8; 4]>::try_from(bytes).unwrap_or_default());
    let chunk = match &work.chunk {
        Chunk::Range { low, high } => format!("{}..{}", slot(low), high.as_deref().map_or(4_096, slot)),
        Chunk::Key(_) => "a tenant".to_owned(),
    };
    let step = format!("{:?}", work.step).to_lowercase();
    say(format_args!("{} → {}  {chunk:<11} {step:<9} {rows:>5} rows {what}", work.from, work.to))
}

impl OverHttp {
    async fn ask(&self, shard: ShardId, ask: &Ask) -> Result<Vec<Order>> {
        let at = self.map.address(shard).await?.ok_or("a shard that was not started")?;
        match self.http.ask(at, ask).await? {
            Answer::Orders(orders) => Ok(orders),
            Answer::Refused(refused) => Err(refused.into()),
            Answer::Done | Answer::Total { .. } => Ok(Vec::new()),
        }
    }

    async fn told(&self, shard: ShardId, map: &ShardMap) -> Result<()> {
        if let Some(work) = map.moving().filter(|work| work.from == shard)
            && self.hold == Some(self.steps.fetch_add(1, SeqCst) + 1)
        {
            // The step is recorded, and neither shard knows of it.
            say(format_args!("{} → {}  {HOLDS} at the step that begins: {:?}", work.from, work.to, work.step))?;
            std::future::pending::<()>().await;
        }
        self.ask(shard, &Ask::Install { version: map.version() }).await?;
        Ok(())
    }

    /// Makes the target's rows of the chunk those of the source; gives how many were not.
    async fn copied(&self, work: &Move) -> Result<usize> {
        let read = || Ask::Read { work: work.clone() };
        let wanted: BTreeSet<_> = self.ask(work.from, &read()).await?.into_iter().collect();
        let there: BTreeSet<_> = self.ask(work.to, &read()).await?.into_iter().collect();
        let rows: Vec<_> = wanted.difference(&there).copied().collect();
        let kept: BTreeSet<_> = wanted.iter().map(Order::row).collect();
        let gone: Vec<_> = there.into_iter().filter(|order| !kept.contains(&order.row())).collect();
        let changed = rows.len() + gone.len();
        self.ask(work.to, &Ask::Write { work: work.clone(), rows, gone }).await?;
        Ok(changed)
    }
}

fn failed(error: Box<dyn std::error::Error + Send + Sync>) -> PortError {
    PortError::new(PortErrorKind::Unavailable, error.to_string())
}

impl Mover for OverHttp {
    fn install<'a>(
        &'a self,
        shard: ShardId,
        map: &'a Arc<ShardMap>,
    ) -> BoxFuture<'a, std::result::Result<(), PortError>> {
        Box::pin(async move { self.told(shard, map).await.map_err(failed) })
    }

    fn copy<'a>(&'a self, work: &'a Move, _: &'a Arc<ShardMap>) -> BoxFuture<'a, std::result::Result<(), PortError>> {
        Box::pin(async move {
            let rows = self.copied(work).await.map_err(failed)?;
            tell(work, rows, "copied").map_err(failed)
        })
    }

    fn catch_up<'a>(
        &'a self,
        work: &'a Move,
        _: &'a Arc<ShardMap>,
    ) -> BoxFuture<'a, std::result::Result<(), PortError>> {
        Box::pin(async move {
            let rows = self.copied(work).await.map_err(failed)?;
            tell(work, rows, "had changed since, and were copied").map_err(failed)
        })
    }

    fn drop_rows<'a>(
        &'a self,
        shard: ShardId,
        work: &'a Move,
        _: &'a Arc<ShardMap>,
    ) -> BoxFuture<'a, std::result::Result<(), PortError>> {
        Box::pin(async move {
            let rows = self.ask(shard, &Ask::Drop { work: work.clone() }).await.map_err(failed)?;
            tell(work, rows.len(), "dropped at the source").map_err(failed)
        })
    }
}
