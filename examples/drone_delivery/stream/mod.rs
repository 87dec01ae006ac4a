//! The delivery service at its full rate: events are accepted into a partitioned topic, and processes that are killed and
//! come back schedule the deliveries of the partitions that they own.
mod audit;
mod chart;
mod load;
mod worker;
mod workers;

use std::{
    error::Error,
    io::{self, Write as _},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use serde::Serialize;
use steadfast::{
    Builder,
    cache_aside::CacheAside,
    entropy::Entropy,
    lease::Lease,
    queue::Queue,
    store::Store,
    stream::{Producer, ProducerConfig, StoreTopic, StreamProcessor, StreamProcessorConfig},
    time::Clock,
};

use crate::{
    args::Args,
    client::Client,
    dispatch::Dispatch,
    engine::{Engine, EngineAt},
    faults::FaultPlan,
    pipelines::{self, Protection},
    record::Record,
    request::Request,
    services::{Running, Service},
    workflow::{self, Calls},
};
use chart::Chart;
use load::{Accepted, Phase};
use workers::Workers;

pub use worker::{NAME, run as run_worker};

/// What the processes share.
struct Place {
    /// Records of sagas, checkpoints, and the services' books.
    store: Arc<dyn Store>,
    leases: Arc<dyn Lease>,
    letters: Arc<dyn Queue>,
    topic: StoreTopic,
}

impl Place {
    async fn open(engine: &Engine, args: &Args) -> Result<Self, Box<dyn Error>> {
        let backend = engine.open().await?;
        // In a file of its own: an append waits for no commit of a saga.
        let log = if engine.file().is_some() { engine.store_aside("log").await? } else { backend.store() };
        let topic = StoreTopic::open(log, engine.name("deliveries"), args.stream.ok_or("--stream is missing")?);
        Ok(Self {
            store: backend.store(),
            leases: backend.lease(),
            letters: backend.queue(&engine.name("dead-letters")).await?,
            topic: topic.await?,
        })
    }
}

/// Returns the calls of the services at these addresses.
fn calls(args: &Args, addresses: &str) -> Result<Arc<Calls>, Box<dyn Error>> {
    let addresses: Vec<_> = addresses.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let (clock, entropy) = (Clock::tokio(), Entropy::from_os());
    Ok(Arc::new(Calls {
        client: Client::new(),
        addresses: addresses.try_into().map_err(|_| "five services are expected")?,
        protections: Protection::all(args, &entropy)?,
        accounts: Some(CacheAside::builder(pipelines::accounts()).name("accounts").clock(&clock).build()?),
        turns: Dispatch::new(args.concurrency as usize),
        record: Arc::new(Record::new(&clock, clock.now(), None)),
        entropy,
        clock,
    }))
}

fn config() -> StreamProcessorConfig {
    // Deliveries wait for services: more at once would only wait longer.
    StreamProcessorConfig::default().max_in_flight(8)
}

fn processor(place: &Place) -> Builder<StreamProcessor> {
    StreamProcessor::builder(place.topic.clone(), "dispatch", place.leases.clone(), place.store.clone(), config())
}

/// Time that workers have to finish what they work on at the end.
const LAST: Duration = Duration::from_secs(15);

/// The result of a run.
#[derive(Debug, Serialize)]
struct Summary {
    input: u64,
    accepted: u64,
    refused: u64,
    accepted_p50_ms: f64,
    accepted_p99_ms: f64,
    accepted_max_ms: f64,
    scheduled: u64,
    rejected: u64,
    dead_lettered: u64,
    /// Accepted events that are not in the topic, and events that were passed without an end of their saga.
    lost: u64,
    /// Passed deliveries with some of their effects.
    half_done: u64,
    double_reservations: u64,
    left_reservations: u64,
    /// Accepted events that were not passed when the run ended: the topic keeps them.
    waiting: u64,
    resumed: u64,
    handovers: u64,
    kills: u32,
    violations: usize,
    partitions: u16,
    processes: u32,
    elapsed_ms: u64,
    scheduled_per_s: f64,
    backend: String,
}

/// Runs the services, the ingestion and the workers. Returns `true` if nothing was lost, doubled or left half done.
pub async fn run(args: &Args, requests: Vec<Request>) -> Result<bool, Box<dyn Error>> {
    let partitions = args.stream.ok_or("--stream is missing")?;
    let folder = tempfile::tempdir()?;
    let chosen = Some(&args.store).filter(|chosen| **chosen != EngineAt::Memory);
    let engine = EngineAt::start_shared(chosen, folder.path(), "stream.db")?;
    let place = Place::open(&engine, args).await?;
    let (clock, plan) = (Clock::tokio(), FaultPlan::new(args.faults, args.seed, 1));
    let start = clock.now();
    let mut services = Vec::new();
    for service in Service::ALL {
        services.push(Running::start(service, &plan, None, &clock, start, place.store.clone()).await?);
    }
    let addresses = services.iter().map(|service| service.address.to_string()).collect::<Vec<_>>().join(",");
    // A second of the peak may wait.
    let producer = Producer::new(place.topic.clone(), ProducerConfig::default().max_pending(50_000))?;
    let accepted = Accepted::new(partitions);
    let mut workers = Workers::start(args, &engine, &addresses)?;

    let (rate, seconds) = (u64::from(args.ingest_rate.unwrap_or(10_000)), u64::from(args.seconds));
    let spike = u64::from(args.spike_seconds.min(args.seconds));
    let before = (seconds - spike) / 2;
    let phase = |rate, seconds| Phase { rate, lasts: Duration::from_secs(seconds) };
    let phases = [
        phase(rate, before),
        phase(u64::from(args.spike_rate).max(rate), spike),
        phase(rate, seconds - spike - before),
    ];
    let mut chart = Chart::new(partitions);
    let watch = async {
        let entropy = Entropy::from_seed(args.seed);
        let mut next_kill = 0;
        loop {
            clock.sleep(Duration::from_secs(1)).await;
            let at = clock.now() - start;
            // Kills are spread over the time of the ingestion.
            let due = Duration::from_secs(seconds).mul_f64(f64::from(next_kill + 1) / f64::from(args.kills + 1));
            if next_kill < args.kills && at >= due {
                let victim = entropy.up_to(u64::from(args.processes) - 1) as usize;
                if let Err(error) = workers.kill(victim) {
                    accepted.violates(format!("a worker could not be killed: {error}"));
                }
                next_kill += 1;
            }
            if let Err(error) = workers.revive(clock.now()) {
                accepted.violates(format!("a worker does not start again: {error}"));
            }
            chart.look(at, &workers.states(), &workers.totals(), &accepted);
            let _ = write!(io::stderr().lock(), "{}", chart.progress());
        }
    };
    let ingest = async {
        // In a task of its own, as clients are.
        tokio::spawn(load::arrive(requests, phases.to_vec(), producer, accepted.clone())).await?;
        // What waits is scheduled for as long as the run may last.
        let until = clock.now() + Duration::from_secs(u64::from(args.drain));
        while clock.now() < until {
            clock.sleep(Duration::from_secs(1)).await;
            let waiting = audit::waiting(&processor(&place).build()?).await?;
            if waiting == 0 {
                break;
            }
        }
        Ok::<_, Box<dyn Error>>(())
    };
    tokio::select! {
        never = watch => never,
        ingested = ingest => ingested?,
    }
    let scheduling = clock.now() - start;
    workers.stop(LAST).await;
    let figures = workers.totals();
    let sagas = workflow::deliveries(&calls(args, &addresses)?, place.store.clone(), true)?;
    let audit = audit::audit(&place, &accepted, &services, (&processor(&place).build()?, &sagas)).await?;
    let mut violations = accepted.violations.lock().map(|violations| violations.clone()).unwrap_or_default();
    violations.extend(audit.violations);
    violations.extend(figures.halted.iter().map(|why| format!("a partition halted: {why}")));
    let millis = |share| accepted.quantile(share).as_secs_f64() * 1000.0;
    let summary = Summary {
        input: accepted.arrived.load(Relaxed),
        accepted: accepted.count.load(Relaxed),
        refused: accepted.full.load(Relaxed) + accepted.failed.load(Relaxed),
        accepted_p50_ms: millis(0.5),
        accepted_p99_ms: millis(0.99),
        accepted_max_ms: millis(1.0),
        scheduled: audit.scheduled,
        rejected: audit.rejected,
        dead_lettered: audit.dead_lettered,
        lost: audit.lost,
        half_done: audit.half_done,
        double_reservations: audit.double_reservations,
        left_reservations: audit.left_reservations,
        waiting: audit.waiting,
        resumed: figures.resumed,
        handovers: figures.claims.saturating_sub(u64::from(partitions)),
        kills: workers.kills,
        violations: violations.len(),
        partitions,
        processes: args.processes,
        elapsed_ms: (clock.now() - start).as_millis() as u64,
        scheduled_per_s: (figures.scheduled as f64 / scheduling.as_secs_f64() * 10.0).round() / 10.0,
        backend: engine.place().to_owned(),
    };
    let mut out = io::stdout().lock();
    write!(out, "{chart}")?;
    for violation in &violations {
        writeln!(out, "VIOLATION: {violation}")?;
    }
    writeln!(out, "summary: {}", serde_json::to_string(&summary)?)?;
    if let Some(path) = &args.lag {
        std::fs::write(path, chart.table()).map_err(|error| format!("--lag {}: {error}", path.display()))?;
    }
    let harm = summary.lost + summary.half_done + summary.double_reservations + summary.left_reservations;
    Ok(harm == 0 && violations.is_empty())
}
