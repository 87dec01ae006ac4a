//! Changes of leader over a lease on a server: no late write of an old leader is accepted.
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use steadfast::{
    leader_election::{LeaderElection, LeaderElectionConfig},
    port::{Capability, ErrorClass, Failure, FencingToken},
    store::{Key, Precondition, PutOptions, Scan, Store, StoreError, StoreExt, Write},
};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::sleep,
};

use super::{Engine, MS, PATIENCE, again, size};

const TERM: Duration = Duration::from_secs(1);
const NODES: usize = 3;
/// Number of writes of a leader before it is disturbed.
const WRITES: u32 = 5;

/// The latest accepted write, by its token and node.
#[derive(Debug, Clone, Copy, Default)]
struct Leads {
    token: u64,
    node: usize,
    /// Number of its writes under this token.
    writes: u32,
}

#[derive(Debug)]
struct Node {
    number: usize,
    /// A connection of its own, so that this node alone can be cut off.
    engine: Engine,
    resign: Notify,
    leads: watch::Sender<Leads>,
    refused: Arc<AtomicU64>,
}

impl Node {
    /// Campaigns, and writes while it leads.
    async fn run(self: Arc<Self>) {
        let backend = loop {
            match steadfast::backend::open(&self.engine.server.url_at(self.engine.proxy.port())).await {
                Ok(backend) => break backend,
                // The server may be down when a node starts.
                Err(_) => sleep(MS(50)).await,
            }
        };
        let (store, config) = (backend.store(), LeaderElectionConfig::of_term(TERM));
        let election = LeaderElection::builder(backend.lease(), "example", config);
        let election = election.candidate(format!("node {}", self.number)).build().unwrap();
        loop {
            let leadership = election.campaign().await.unwrap();
            let term = leadership.term();
            loop {
                if !term.is_leader() {
                    break;
                }
                tokio::select! {
                    () = self.resign.notified() => {
                        // Unanswered, it ends with its term.
                        let _ = leadership.resign().await;
                        sleep(TERM).await;
                        break;
                    }
                    () = sleep(MS(5)) => {}
                }
                match write(&*store, term.token(), self.number).await {
                    Ok(()) => self.leads.send_modify(|leads| {
                        // A late answer is no later write.
                        let token = term.token().as_u64();
                        if leads.token < token {
                            *leads = Leads { token, node: self.number, writes: 1 };
                        } else if leads.token == token {
                            leads.writes += 1;
                        }
                    }),
                    Err(StoreError::Conflict { .. }) => {}
                    Err(StoreError::Fenced { .. }) => {
                        self.refused.fetch_add(1, SeqCst);
                        break;
                    }
                    Err(error) => {
                        assert!(error.class() != ErrorClass::Permanent, "write: {error}");
                        sleep(MS(20)).await;
                    }
                }
            }
        }
    }
}

/// One write: the number grows, and the log names the token and the node, both or neither. Without batches, the record
/// has both.
async fn write(store: &dyn Store, token: FencingToken, node: usize) -> Result<(), StoreError> {
    let before = store.get(Key::new("resource", "number")).await?;
    let number = before.as_ref().map_or(0, |record| String::from_utf8_lossy(&record.value).parse::<u64>().unwrap()) + 1;
    let same = before.map_or(Precondition::Absent, |record| Precondition::Version(record.version));
    if !store.capabilities().has(Capability::AtomicBatch) {
        let put = PutOptions::new().when(same).fence(token);
        return store.put(Key::new("resource", "number"), number.to_string().into(), put).await.map(drop);
    }
    let writes = vec![
        Write::put("number", number.to_string(), PutOptions::new().when(same).fence(token)),
        Write::put(format!("log {number:08}"), format!("{token} {node}"), Precondition::Absent),
    ];
    store.batch("resource", writes).await.map(drop)
}

async fn next_leader(heard: &mut watch::Receiver<Leads>, above: u64) -> Leads {
    let next = heard.wait_for(|leads| leads.token > above && leads.writes >= WRITES);
    let next = tokio::time::timeout(PATIENCE, next).await;
    *next.unwrap_or_else(|_| panic!("no leader wrote above token {above} within {PATIENCE:?}")).unwrap()
}

/// Changes the leader again and again: it resigns, is killed, is cut off, or is killed together with the server.
async fn leaders(engine: Engine) {
    let changes = size("STEADFAST_CHANGES", 5);
    let began = Instant::now();
    let (leads, mut heard) = watch::channel(Leads::default());
    let refused = Arc::<AtomicU64>::default();
    let nodes: Vec<_> = (0..NODES)
        .map(|number| {
            let (engine, resign, leads, refused) = (engine.aside(), Notify::new(), leads.clone(), refused.clone());
            Arc::new(Node { number, engine, resign, leads, refused })
        })
        .collect();
    let mut running: Vec<JoinHandle<()>> = nodes.iter().map(|node| tokio::spawn(node.clone().run())).collect();
    let directly = engine.open_directly().await;
    let store = directly.store();

    let mut leader = next_leader(&mut heard, 0).await;
    let mut late = 0;
    for change in 0..changes {
        let node = &nodes[leader.node];
        match change % 4 {
            0 => node.resign.notify_one(),
            1 => running[leader.node].abort(),
            2 => node.engine.proxy.hold(),
            _ => {
                running[leader.node].abort();
                engine.act(|engine| engine.server.kill()).await;
                sleep(MS(100)).await;
                engine.act(|engine| engine.server.start_again()).await;
            }
        }
        let next = next_leader(&mut heard, leader.token).await;
        // The old leader writes late, past everything that would stop it.
        let token = FencingToken::new(leader.token);
        let put = async || {
            let put = PutOptions::new().fence(token);
            match store.put(Key::new("resource", "number"), "late".into(), put).await {
                Err(StoreError::Fenced { .. }) => Ok(()),
                Ok(version) => panic!("a late write of {leader:?} was accepted as {version:?} under {next:?}"),
                Err(error) => Err(error),
            }
        };
        again("late write", put).await;
        late += 1;
        // What was under way arrives now.
        node.engine.proxy.pass();
        if running[leader.node].is_finished() {
            let ended = (&mut running[leader.node]).await;
            assert!(ended.is_err_and(|error| error.is_cancelled()), "a node failed");
            running[leader.node] = tokio::spawn(node.clone().run());
        }
        leader = next;
    }
    running.iter().for_each(JoinHandle::abort);
    if !store.capabilities().has(Capability::AtomicBatch) {
        println!("{changes} changes, {late} late writes refused, {} more to nodes", refused.load(SeqCst));
        return;
    }

    let log = store.scan_all(Scan::partition("resource").prefix("log ").limit(1_000)).await.unwrap();
    let tokens: Vec<u64> =
        log.iter().map(|row| String::from_utf8_lossy(&row.value).split(' ').next().unwrap().parse().unwrap()).collect();
    assert!(tokens.is_sorted(), "a write of an old leader lies behind one of a later leader");
    let mut terms = tokens.clone();
    terms.dedup();
    assert!(terms.len() as u64 > changes, "{} terms have written, {changes} changes", terms.len());
    println!(
        "{} terms, {} accepted writes, {late} late ones refused, {} more refused to nodes; {:.1} s",
        terms.len(),
        log.len(),
        refused.load(SeqCst),
        began.elapsed().as_secs_f64()
    );
}

#[cfg(feature = "nats")]
#[test]
fn nats_accepts_no_late_write_of_an_old_leader() {
    super::run(leaders(Engine::new(crate::server::Nats::start())));
}

#[cfg(feature = "postgres")]
#[test]
fn postgres_accepts_no_late_write_of_an_old_leader() {
    super::run(leaders(Engine::new(crate::server::Postgres::start())));
}

#[cfg(feature = "redis")]
#[test]
fn redis_accepts_no_late_write_of_an_old_leader() {
    super::run(leaders(Engine::new(crate::server::Redis::durable())));
}
