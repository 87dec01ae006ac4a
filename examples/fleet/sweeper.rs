//! The leader: sweeps the receipts, and moves the rows of one shard away and back.
use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use steadfast::{
    backend::Backend,
    leader_election::{LeaderElection, LeaderElectionConfig, Term},
    store::{DeleteOptions, Key, PutOptions, Scan, Store, StoreError},
    time::Clock,
};

use crate::{MS, Plant, Result, listener::RECEIPTS, log::Fact, mover, node::Node, shards};

pub const TERM: Duration = Duration::from_secs(2);
/// Duration of the leader's work between the check of its term and its write. Most pauses fall here.
const WORK: Duration = Duration::from_millis(150);
/// Receipts that are swept at a time.
const SWEEP: usize = 50;

/// Campaigns, and works while it leads.
pub async fn run(node: &Arc<Node>, backend: &Backend) -> Result<()> {
    let config = LeaderElectionConfig::of_term(TERM);
    let election = LeaderElection::builder(backend.lease(), node.engine.name("sweeper"), config)
        .candidate(format!("{}-{}", node.number, node.life))
        .notifier(backend.notifier())
        .build()?;
    node.watch("sweeper", &election);
    loop {
        let mut leadership = election.campaign().await?;
        let token = leadership.token().as_u64();
        node.log.say(Fact::Elected { token });
        // A task of its own, which ends by itself: a dropped one could not show its late write.
        let sweep = tokio::spawn(sweep(node.clone(), backend.store(), leadership.term()));
        let rebalance = tokio::spawn(rebalance(node.clone(), leadership.term()));
        let _ = leadership.lost().await;
        rebalance.abort();
        node.log.say(Fact::Deposed { token });
        sweep.await?;
    }
}

/// Checks the term, works, and writes. Anything may happen between the check and the write; the token guards it.
async fn sweep(node: Arc<Node>, store: Arc<dyn Store>, term: Term) {
    let (clock, receipts, mark) = (Clock::tokio(), node.engine.name(RECEIPTS), node.engine.name("sweeps"));
    let token = term.token();
    let fenced = PutOptions::new().fence(token);
    let ignores = node.has(Plant::Leader);
    let put = if ignores { PutOptions::new() } else { fenced };
    let mut deposed = 0;
    while term.is_leader() || ignores && deposed < 20 {
        deposed += usize::from(!term.is_leader());
        clock.sleep(WORK).await;
        // A write without an answer is seen here.
        if let Ok(Some(record)) = store.get(Key::new(&mark, "mark")).await
            && let Ok(token) = String::from_utf8_lossy(&record.value).parse()
        {
            node.log.say(Fact::Saw { token, version: record.version.as_u64() });
        }
        // Receipts that stay are swept at the next time.
        if let Ok(page) = store.scan(&Scan::partition(&receipts).limit(SWEEP)).await {
            let delete = |row: &String| {
                let (store, row, receipts) = (store.clone(), row.clone(), receipts.clone());
                async move { store.delete(Key::new(&receipts, &row), DeleteOptions::new()).await }
            };
            join_all(page.rows.iter().map(|row| delete(&row.row))).await;
        }
        let text = token.as_u64().to_string();
        match store.put(Key::new(&mark, "mark"), text.into(), put).await {
            Ok(version) => node.log.say(Fact::Wrote { token: token.as_u64(), version: version.as_u64() }),
            Err(StoreError::Fenced { .. }) => node.log.say(Fact::Refused { token: token.as_u64() }),
            Err(error) => node.log.say(Fact::Failed { part: "sweep".to_owned(), why: error.to_string() }),
        }
    }
}

/// Moves the rows of the last shard to the others and back, while orders are written.
async fn rebalance(node: Arc<Node>, term: Term) {
    let (clock, all) = (Clock::tokio(), shards(node.args.processes));
    let fewer = &all[..all.len() - 1];
    while term.is_leader() {
        for wanted in [fewer, &all[..]] {
            clock.sleep(MS(2_000)).await;
            // When the service has closed, the last moves end, and none begins.
            let wanted = if node.is_closed() { &all[..] } else { wanted };
            // What fails is continued later, by this leader or the next.
            let _ = mover::rebalance(&node.engine, wanted, None).await;
        }
    }
}
