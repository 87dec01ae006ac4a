//! One process of the service: it runs all parts beside each other.
use std::{
    io::BufRead as _,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
};

use steadfast::{
    backend::Backend,
    metrics::{Measured, Metrics},
    sharding::ShardId,
    time::Clock,
};

use crate::{
    Args, MS, Plant, Result, cache,
    common::{Http, serve_metrics},
    engine::Engine,
    ingest, limits, listener,
    log::{Fact, Log},
    shard, shards, sweeper,
};

/// What the parts of a process share.
pub struct Node {
    pub number: usize,
    pub life: u32,
    pub args: Args,
    pub engine: Engine,
    pub world: SocketAddr,
    pub http: Http,
    pub log: Log,
    metrics: Option<Metrics>,
    is_closed: AtomicBool,
    orders: AtomicU32,
}

impl Node {
    /// Returns `true` when no more orders are accepted.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(SeqCst)
    }

    /// Returns `true` if this defect is planted.
    pub fn has(&self, plant: Plant) -> bool {
        self.args.plant.contains(&plant)
    }

    /// Watches a component under this name, if this process serves metrics. One that takes the place of another is not
    /// watched.
    pub fn watch(&self, name: &str, component: &impl Measured) {
        if let Some(metrics) = &self.metrics {
            let _ = metrics.watch(name, component);
        }
    }

    pub fn next_order(&self) -> u32 {
        self.orders.fetch_add(1, SeqCst)
    }
}

/// Runs until the input ends, or the process is killed.
pub async fn run(number: usize, world: SocketAddr, args: &Args, engine: Engine) -> Result<()> {
    let log = Log::open(args.logs.as_deref().ok_or("no folder for the log")?, number, args.life)?;
    let (is_closed, orders) = (AtomicBool::new(false), AtomicU32::new(0));
    let (life, args, http) = (args.life, args.clone(), Http::new());
    let metrics = match args.metrics {
        Some(first) => Some(serve_metrics(first + number as u16).await?),
        None => None,
    };
    let node = Arc::new(Node { number, life, args, engine, world, http, log, metrics, is_closed, orders });
    std::thread::spawn({
        let node = node.clone();
        move || obey(&node)
    });
    tokio::spawn(stalls(node.clone()));
    // The engine may be down at this moment.
    let backend = loop {
        match node.engine.open().await {
            Ok(backend) => break backend,
            Err(_) => Clock::tokio().sleep(MS(100)).await,
        }
    };
    node.log.say(Fact::Started);
    if number < shards(node.args.processes).len() {
        let owner = node.clone();
        tokio::spawn(again(node.clone(), "shard", move || {
            let owner = owner.clone();
            async move { shard::serve(&owner.engine, ShardId(number as u32)).await }
        }));
    }
    macro_rules! part {
        ($name:literal, $run:path) => {{
            let (of, backend) = (node.clone(), backend.clone());
            tokio::spawn(again(node.clone(), $name, move || {
                let (node, backend): (Arc<Node>, Backend) = (of.clone(), backend.clone());
                async move { $run(&node, &backend).await }
            }))
        }};
    }
    let cache = cache::open(&node, &backend)?;
    cache.watch(&node);
    tokio::spawn(cache::run(node.clone(), cache.clone()));
    let limits = limits::open(&node, &backend)?;
    limits.watch(&node);
    tokio::spawn(limits::flood(node.clone(), limits.clone()));
    part!("ingest", ingest::run);
    part!("sweeper", sweeper::run);
    let (of, ports) = (node.clone(), backend.clone());
    let listening = again(node.clone(), "listener", move || {
        let (node, backend, cache, limits) = (of.clone(), ports.clone(), cache.clone(), limits.clone());
        async move { listener::run(&node, &backend, &cache, &limits).await }
    });
    listening.await;
    Ok(())
}

/// Runs a part, and again if it fails.
async fn again<F: Future<Output = Result<()>>>(node: Arc<Node>, part: &'static str, run: impl Fn() -> F) {
    while let Err(error) = run().await {
        node.log.say(Fact::Failed { part: part.to_owned(), why: error.to_string() });
        Clock::tokio().sleep(MS(200)).await;
    }
}

/// Closes the service at the first line of the input, and ends this process with it.
fn obey(node: &Node) {
    for _ in std::io::stdin().lock().lines() {
        node.is_closed.store(true, SeqCst);
    }
    std::process::exit(0);
}

/// Records each time in which this process stood still.
async fn stalls(node: Arc<Node>) {
    let (clock, mut last) = (Clock::tokio(), node.log.now());
    loop {
        clock.sleep(MS(50)).await;
        let now = node.log.now();
        if now > last + 500 {
            node.log.say(Fact::Stalled { millis: now - last });
        }
        last = now;
    }
}
