//! The whole house at work: drone deliveries scheduled through five services that fail.
//!
//! Reads delivery requests, refuses what is none, and schedules each valid one by calling five services over HTTP, which it
//! starts itself on loopback. `--help` lists what can be made to go wrong; the last line is the result as JSON.
#![allow(clippy::print_stdout, reason = "a program prints")]
#![allow(missing_docs, unreachable_pub, reason = "a program has no readers from outside")]
mod args;
mod client;
mod dispatch;
mod faults;
mod pipelines;
mod plot;
mod record;
mod report;
mod request;
mod services;
mod workflow;

use std::{collections::HashSet, error::Error, fs::File, io::BufReader, process::ExitCode, sync::Arc, time::Duration};

use clap::Parser;
use steadfast::{
    entropy::Entropy,
    throttling::{Quota, RateLimiter},
    time::Clock,
};
use tokio::task::JoinSet;

use crate::{
    args::Args,
    client::Client,
    dispatch::Dispatch,
    faults::FaultPlan,
    pipelines::Protection,
    record::Record,
    report::Report,
    request::Request,
    services::{Running, Service},
    workflow::{Job, Workflow},
};

#[tokio::main]
async fn main() -> ExitCode {
    match run(&Args::parse()).await {
        Ok(report) => {
            print!("{report}");
            println!("summary: {}", report.summary());
            if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            println!("drone_delivery: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &Args) -> Result<Report, Box<dyn Error>> {
    let clock = Clock::tokio();
    let lines = match &args.input {
        Some(path) => {
            let file = File::open(path).map_err(|e| format!("--input {}: {e}", path.display()))?;
            request::lines(BufReader::new(file))?
        }
        None => request::lines(&include_bytes!("deliveries.jsonl")[..])?,
    };
    let wanted = args.requests.unwrap_or(lines.len());
    if lines.is_empty() && wanted > 0 {
        return Err("the input holds no line".into());
    }

    let plan = FaultPlan::new(args.faults, args.seed);
    let start = clock.now();
    let record = Arc::new(Record::new(&clock, start));
    let mut services = Vec::new();
    for service in Service::ALL {
        services.push(Running::start(service, &plan, &clock, start).await?);
    }
    let entropy = Entropy::from_seed(args.seed);
    let protections = Protection::all(args, &entropy)?;
    let mut followers = JoinSet::new();
    for (service, protection) in Service::ALL.into_iter().zip(protections.iter()) {
        if let Some(breaker) = protection.breaker.clone() {
            let record = record.clone();
            followers.spawn(async move { record.follow(service, breaker).await });
        }
    }
    let starts = match args.rate() {
        // A hundredth of a second's worth at once: evenly, but not one by one.
        Some(rate) => Some(RateLimiter::new(Quota::per_second(rate).burst((rate / 100).max(1)))?),
        None => None,
    };
    let workflow = Arc::new(Workflow {
        client: Client::new(),
        addresses: std::array::from_fn(|i| services[i].address),
        dispatch: Dispatch::new(&clock),
        starts,
        entropy,
        patience: (!args.unprotected).then(|| Duration::from_secs(args.patience)),
        progress: progress(),
        protections,
        record: record.clone(),
        clock: clock.clone(),
    });
    let duplicates = ingest(&lines, wanted, &workflow);
    let mut workers = JoinSet::new();
    for _ in 0..args.concurrency {
        workers.spawn(workflow.clone().work());
    }
    while let Some(worker) = workers.join_next().await {
        worker?;
    }
    workflow.progress.finish_and_clear();
    // The followers have what was sent before this: they only wait for more.
    tokio::task::yield_now().await;
    let report = Report::new(args, &plan, wanted, duplicates, &workflow, &services);
    followers.shutdown().await;
    if let Some(path) = &args.plot {
        std::fs::write(path, plot::draw(&report)).map_err(|e| format!("--plot {}: {e}", path.display()))?;
    }
    Ok(report)
}

/// Reads, refuses, recognises duplicates, and lines up the rest. Returns the number of duplicates.
fn ingest(lines: &[Vec<u8>], wanted: usize, workflow: &Workflow) -> usize {
    let mut seen = HashSet::new();
    let mut duplicates = 0;
    for n in 0..wanted {
        let line = n % lines.len();
        match Request::parse(&lines[line]) {
            Ok(request) => {
                let request = request.repeated((n / lines.len()) as u64);
                if seen.insert(request.id) {
                    workflow.progress.inc_length(1);
                    let owner = request.owner.clone();
                    workflow.dispatch.push(&owner, Job::new(request));
                } else {
                    duplicates += 1;
                }
            }
            Err(why) => {
                workflow.record.lock().dead_letters.entry(why.to_string()).or_default().push(line + 1);
            }
        }
    }
    duplicates
}

/// A bar where the output is a terminal, nothing elsewhere.
fn progress() -> indicatif::ProgressBar {
    let style =
        indicatif::ProgressStyle::with_template("{elapsed:>4} {bar:40.cyan/dim} {pos}/{len} {per_sec:>8} {msg:.dim}");
    let bar = indicatif::ProgressBar::new(0);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
