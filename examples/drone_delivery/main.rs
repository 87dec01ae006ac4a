//! All patterns together: drone deliveries scheduled through five failing services.
//!
//! Reads delivery requests, refuses invalid ones, and schedules each valid one by calling five services over HTTP,
//! which it starts itself on loopback. `--help` lists the faults; the last line is the result as JSON.
#![allow(missing_docs, unreachable_pub, reason = "a program has no readers from outside")]
mod args;
mod audit;
mod client;
mod dispatch;
#[path = "../common/engine.rs"]
mod engine;
mod faults;
mod figures;
#[cfg(test)]
#[cfg(feature = "sqlite")]
mod hostile_tests;
mod ingest;
mod input;
mod interrupt;
#[cfg(test)]
#[cfg(feature = "sqlite")]
mod kills;
mod ledger;
mod mover;
mod page;
mod pipelines;
mod plot;
mod probes;
mod record;
mod report;
mod request;
mod services;
#[cfg(test)]
mod shard_tests;
mod shards;
mod stream;
mod turn;
mod workflow;

use std::{
    collections::BTreeMap,
    error::Error,
    fmt,
    fs::{self, File},
    io::{self, BufReader, Read, Write},
    mem::take,
    path::Path,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use clap::Parser;
use steadfast::{
    cache_aside::CacheAside,
    entropy::Entropy,
    port::PortFuture,
    sharding::ShardId,
    store::Store,
    testing::faults::{FaultConfig, FaultNetwork},
    throttling::{Quota, RateLimiter},
    time::Clock,
};
use tokio::{sync::oneshot, task::JoinSet};

use crate::{
    args::Args,
    client::Client,
    dispatch::Dispatch,
    faults::FaultPlan,
    figures::Quantiles,
    ingest::{Accepted, Arrivals, Reception},
    input::{Intake, Line},
    ledger::{Fingerprint, Fingerprinted, Identity, Ledger, State},
    mover::Growth,
    pipelines::Protection,
    probes::Probes,
    record::{Done, End, Record},
    report::{Report, Sharded},
    services::{Books, Running, Service},
    shards::{OpenShard, Shards},
    turn::Turn,
    workflow::{Calls, Workflow},
};

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    if args.stream.is_some() {
        return stream_of_deliveries(&args).await;
    }
    conclude(&args, run(&args).await).into()
}

/// Runs the service with a topic, or one of its processes.
async fn stream_of_deliveries(args: &Args) -> ExitCode {
    let ran = match std::env::var(stream::NAME) {
        Ok(name) => stream::run_worker(args, &name).await.map(|()| true),
        Err(_) => match lines(args) {
            Ok((lines, _)) => {
                let requests = Intake::new(&lines, lines.len()).requests;
                stream::run(args, requests.into_iter().map(|(_, request)| request).collect()).await
            }
            Err(error) => Err(error.into()),
        },
    };
    match ran {
        Ok(is_sound) => u8::from(!is_sound).into(),
        Err(error) => {
            let _ = writeln!(io::stderr().lock(), "drone_delivery: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the result of a run, draws it if requested, and returns the exit code. A picture that cannot
/// be written does not affect the result.
fn conclude(args: &Args, ran: Result<Report, Box<dyn Error>>) -> u8 {
    let complain = |error: &dyn fmt::Display| {
        let _ = writeln!(io::stderr().lock(), "drone_delivery: {error}");
        1
    };
    let report = match ran {
        Ok(report) => report,
        Err(error) => return complain(&error),
    };
    let mut code = match report.record.interrupted {
        Some(interrupt) => interrupt.code(),
        None => u8::from(!report.is_sound()),
    };
    match writeln!(io::stdout().lock(), "{report}\nsummary: {}", report.summary()) {
        Ok(()) => {}
        // A closed pipe is not an error: the exit code shows the result.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(error) => code = complain(&format!("the report: {error}")),
    }
    if let Some(path) = &args.plot
        && let Err(error) = fs::write(path, plot::draw(&report))
    {
        code = complain(&format!("--plot {}: {error}", path.display()));
    }
    code
}

/// Refuses an unwritable picture file before the run.
fn check_plot(path: &Path) -> io::Result<()> {
    let is_new = !path.try_exists()?;
    File::options().write(true).create(true).truncate(false).open(path)?;
    if is_new { fs::remove_file(path) } else { Ok(()) }
}

async fn run(args: &Args) -> Result<Report, Box<dyn Error>> {
    if let Some(path) = &args.plot {
        check_plot(path).map_err(|e| format!("--plot {}: {e}", path.display()))?;
    }
    let (lines, print) = lines(args)?;
    let wanted = args.requests.map_or(lines.len() + args.spike as usize, |wanted| wanted as usize);
    if lines.is_empty() && wanted > 0 {
        return Err("the input holds no line".into());
    }
    let mut intake = Intake::new(&lines, wanted);
    let _taken = args.store.take().map_err(|e| format!("--store: {e}"))?;
    let engine = Arc::new(args.store.start().map_err(|e| format!("--store: {e}"))?);
    let (store, queue) = args.store.open(&engine).await.map_err(|e| format!("--store: {e}"))?;
    let _held = Turn::take(&args.store, &engine).await.map_err(|e| format!("--store: {e}"))?;
    let (clock, entropy) = (Clock::tokio(), Entropy::from_seed(args.seed));
    let job = Identity { input: print.to_string(), requests: wanted, seed: args.seed, shards: args.shards };
    let (at, own, alone, servers) = (args.store.clone(), store.clone(), args.shards == 1, engine.clone());
    // One shard is the job's own store.
    let plan = FaultPlan::new(args.faults, args.seed, args.shards);
    let network = FaultNetwork::new(FaultConfig::default(), args.seed, &clock)?;
    let behind = plan.cut.is_some().then(|| network.clone());
    let shard = move |id: ShardId| -> PortFuture<'static, Arc<dyn Store>> {
        let (at, engine, own, behind) = (at.clone(), engine.clone(), own.clone(), behind.clone());
        Box::pin(async move {
            let store = if alone && id == ShardId(0) { own } else { at.shard(&engine, id).await? };
            Ok(behind.map_or(store.clone(), |network| network.client(&id.to_string()).store(store)))
        })
    };
    let patience = Duration::from_secs(args.patience);
    let opened = open(&job, &store, Box::new(shard), patience, &clock, &entropy).await;
    let (ledger, growth, moved) = opened.map_err(|e| format!("--store: {e}"))?;
    if moved {
        let _ = writeln!(io::stderr().lock(), "resumed: a move of records between shards");
    }
    let taken_up = ledger.take_up(take(&mut intake.states), patience).await;
    let mut entries = taken_up.map_err(|e| format!("--store: {e}"))?;

    let start = clock.now();
    let record = Arc::new(Record::new(&clock, start, args.suspend.as_ref().map(|suspend| suspend.owner.clone())));
    let mut services = Vec::new();
    for service in Service::ALL {
        services.push(Running::start(service, &plan, args.suspend.clone(), &clock, start, store.clone()).await?);
    }
    let protections = Protection::all(args, &entropy)?;
    let mut followers = JoinSet::new();
    for (service, protection) in Service::ALL.into_iter().zip(protections.iter()) {
        if let Some(breaker) = &protection.breaker {
            let (record, events) = (record.clone(), breaker.events());
            followers.spawn(async move { record.follow(service, events).await });
        }
    }
    let probes = Probes::start(&store, &protections, &clock).await?;
    let starts = match args.rate() {
        // A burst of a hundredth of a second: even, but not one by one.
        Some(rate) => Some(RateLimiter::new(Quota::per_second(rate).burst((rate / 100).max(1)))?),
        None => None,
    };
    let accounts = match args.unprotected {
        true => None,
        false => Some(CacheAside::builder(pipelines::accounts()).name("accounts").clock(&clock).build()?),
    };
    let calls = Arc::new(Calls {
        clock,
        client: Client::new(),
        addresses: std::array::from_fn(|i| services[i].address),
        protections,
        accounts: accounts.clone(),
        turns: Dispatch::new(args.concurrency as usize),
        record: record.clone(),
        entropy,
    });
    let defers = !args.unprotected && !patience.is_zero();
    let workflow = Arc::new(Workflow {
        sagas: workflow::deliveries(&calls, store.clone(), defers)?,
        calls,
        ledger,
        gate: Dispatch::new(1),
        starts,
        patience: defers.then_some(patience),
        shard_patience: patience,
        progress: progress(intake.requests.len()),
    });
    let (mut before, mut waiting) = (Vec::new(), BTreeMap::new());
    for (place, request) in intake.requests.drain(..) {
        let entry = entries.remove(&place).ok_or_else(|| format!("--store: request {place} is not in it"))?;
        let end = match entry.state {
            State::Scheduled => End::Scheduled,
            State::Rejected => End::Rejected,
            State::Received | State::Lost { .. } => {
                waiting.insert(place, (request, entry));
                continue;
            }
            state => return Err(format!("--store: request {place} is {state:?} there, and a request here").into()),
        };
        before.push(Done::new(request, Duration::ZERO, Duration::ZERO, end));
    }
    workflow.progress.inc(before.len() as u64);
    if !before.is_empty() {
        let _ = writeln!(io::stderr().lock(), "resumed: {} finished before", before.len());
    }
    // The queue of an earlier run is in the ledger, and sent again.
    queue.purge().await.map_err(|e| format!("--store: {e}"))?;
    let arrivals = Arrivals::new(waiting.keys().copied().collect(), args);
    let reception = Reception::new(queue.clone(), &workflow, waiting, args)?;
    let interrupted = interrupt::listen(&workflow.calls.clock, {
        let workflow = Arc::downgrade(&workflow);
        move || {
            if let Some(workflow) = workflow.upgrade() {
                workflow.gate.stop();
            }
        }
    })?;
    let deepest = Mutex::new(0);
    let arrive = async {
        tokio::select! {
            took = arrivals.send(&*queue, &workflow.calls.clock, &deepest) => took,
            () = workflow.gate.stopped() => Ok(Quantiles::default()),
        }
    };
    let (over, ended) = oneshot::channel::<()>();
    let all = async {
        let all = async { tokio::try_join!(arrive, reception.run()) };
        tokio::select! {
            all = all => {
                drop(over);
                all.map(|(took, ())| took)
            }
            never = plan.cut(&network, &growth.clock, start) => match never {},
            never = probes.follow(&workflow.gate) => match never {},
        }
    };
    // A shard is added during the work; a move in progress at the end is finished.
    let grow = async {
        let Some(add) = args.add_shard else { return Ok(None) };
        tokio::select! {
            _ = ended => Ok(None),
            () = workflow.gate.stopped() => Ok(None),
            () = growth.clock.sleep_until(start + add.at) => growth.add(ShardId(args.shards), start).await.map(Some),
        }
    };
    // A cluster of three has to do its work without the server that leads.
    let leaderless = async {
        if servers.lose_leader(Duration::from_secs(2)).await > 0 {
            let _ = writeln!(io::stderr().lock(), "the server that led the cluster was killed, and started again");
        }
        Ok(())
    };
    let again = |e| format!("--store: {e}; nothing is lost: start again on it");
    let (took, grown, ()) = tokio::try_join!(all, grow, leaderless).map_err(again)?;
    let accepted = Accepted {
        took,
        deepest: deepest.into_inner().unwrap_or_else(PoisonError::into_inner),
        requests: reception.listener.state().requests,
    };
    drop(reception);
    workflow.progress.finish_and_clear();
    if let Some((shard, ..)) = plan.cut {
        network.client(&shard.to_string()).heal();
    }
    let sharded = Sharded {
        tally: workflow.ledger.tally(patience).await.map_err(again)?,
        traffic: growth.shards.traffic(),
        grown,
        first: args.shards,
    };
    let turned_away = Service::ALL.map(|service| workflow.calls.protections[service as usize].turned_away());
    // Their checks hold the breakers.
    let probed = probes.end().await;
    // Dropping the breakers ends their events, and with them the tasks that record all events.
    drop(workflow);
    followers.join_all().await;

    let mut record = record.lock().clone();
    (record.accepted, record.probed, record.interrupted) = (accepted, probed, interrupted.get().copied());
    (record.before, record.looked_up) = (before, accounts.map(|accounts| accounts.stats()));
    let mut books: [Books; 5] = Default::default();
    for (books, service) in books.iter_mut().zip(&services) {
        *books = service.books().await.map_err(|e| format!("--store: {e}"))?;
    }
    let report = Report::new(args, plan, intake, record, sharded, turned_away, &books);
    Ok(report)
}

/// Opens the ledger in its shards, and the mover of its records. Finishes the move of a killed run first; returns
/// `true` if there was one.
async fn open(
    job: &Identity,
    store: &Arc<dyn Store>,
    opened: Box<OpenShard>,
    patience: Duration,
    clock: &Clock,
    entropy: &Entropy,
) -> Result<(Ledger, Growth, bool), String> {
    Ledger::open(store, job).await?;
    let shards = Shards::open(store, job.shards, opened, clock, entropy).await?;
    let directory = Shards::directory(store, clock, entropy).open().await.map_err(|e| e.to_string())?;
    let growth = Growth { shards: shards.clone(), directory, clock: clock.clone(), patience };
    let resumed = growth.resume().await?;
    Ok((Ledger::new(store.clone(), shards), growth, resumed))
}

/// Reads the input and its fingerprint.
fn lines(args: &Args) -> Result<(Vec<Line>, Fingerprint), String> {
    fn read(from: impl Read) -> io::Result<(Vec<Line>, Fingerprint)> {
        let mut from = Fingerprinted { from, print: Fingerprint::new() };
        let lines = input::read(BufReader::new(&mut from))?;
        Ok((lines, from.print))
    }
    match &args.input {
        Some(path) => File::open(path).and_then(read).map_err(|e| format!("--input {}: {e}", path.display())),
        None => read(&include_bytes!("deliveries.jsonl")[..]).map_err(|e| e.to_string()),
    }
}

/// Shows a progress bar on a terminal.
fn progress(requests: usize) -> indicatif::ProgressBar {
    let template = "{elapsed:>4} {bar:40.cyan/dim} {human_pos}/{human_len} {rate:>8} {msg:.dim}";
    let style = indicatif::ProgressStyle::with_template(template).map(|style| {
        style.with_key("rate", |state: &indicatif::ProgressState, out: &mut dyn std::fmt::Write| {
            // A failure to draw the bar is ignored.
            let _ = write!(out, "{:.0}/s", state.per_sec());
        })
    });
    let bar = indicatif::ProgressBar::new(requests as u64);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
