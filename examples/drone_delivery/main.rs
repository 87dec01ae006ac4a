//! The whole house at work: drone deliveries scheduled through five services that fail.
//!
//! Reads delivery requests, refuses what is none, and schedules each valid one by calling five services over HTTP, which it
//! starts itself on loopback. `--help` lists what can be made to go wrong; the last line is the result as JSON.
#![allow(missing_docs, unreachable_pub, reason = "a program has no readers from outside")]
mod args;
mod audit;
mod client;
mod dispatch;
mod faults;
mod figures;
mod input;
mod page;
mod pipelines;
mod plot;
mod record;
mod report;
mod request;
mod services;
mod workflow;

use std::{
    error::Error,
    fs::{self, File},
    io::{self, BufReader, Write},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

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
    input::{Intake, Line},
    pipelines::Protection,
    record::Record,
    report::Report,
    services::{Running, Service},
    workflow::{Job, Workflow},
};

#[tokio::main]
async fn main() -> ExitCode {
    match run(&Args::parse()).await {
        Ok(report) => {
            // Whoever closes the pipe early has read enough: the exit code says the rest.
            let _ = writeln!(io::stdout().lock(), "{report}\nsummary: {}", report.summary());
            if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            let _ = writeln!(io::stderr().lock(), "drone_delivery: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &Args) -> Result<Report, Box<dyn Error>> {
    let lines = lines(args)?;
    let wanted = args.requests.unwrap_or(lines.len());
    if lines.is_empty() && wanted > 0 {
        return Err("the input holds no line".into());
    }
    let mut intake = Intake::new(&lines, wanted);

    let plan = FaultPlan::new(args.faults, args.seed);
    let clock = Clock::tokio();
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
        if let Some(breaker) = &protection.breaker {
            let (record, events) = (record.clone(), breaker.events());
            followers.spawn(async move { record.follow(service, events).await });
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
        progress: progress(intake.requests.len()),
        protections,
        record: record.clone(),
        clock,
    });
    for request in intake.requests.drain(..) {
        let owner = request.owner.clone();
        workflow.dispatch.push(&owner, Job::new(request));
    }
    let mut workers = JoinSet::new();
    for _ in 0..args.concurrency {
        workers.spawn(workflow.clone().work());
    }
    while let Some(worker) = workers.join_next().await {
        worker?;
    }
    workflow.progress.finish_and_clear();
    let turned_away = Service::ALL.map(|service| workflow.protections[service as usize].turned_away());
    // With the last of the breakers their events end, and so do the followers, who have then read them all.
    drop(workflow);
    followers.join_all().await;

    let record = record.lock().clone();
    let report = Report::new(args, plan, wanted, intake, record, turned_away, &services);
    if let Some(path) = &args.plot {
        fs::write(path, plot::draw(&report)).map_err(|e| format!("--plot {}: {e}", path.display()))?;
    }
    Ok(report)
}

fn lines(args: &Args) -> Result<Vec<Line>, String> {
    match &args.input {
        Some(path) => File::open(path)
            .and_then(|file| input::read(BufReader::new(file)))
            .map_err(|e| format!("--input {}: {e}", path.display())),
        None => input::read(&include_bytes!("deliveries.jsonl")[..]).map_err(|e| e.to_string()),
    }
}

/// A bar where the output is a terminal, nothing elsewhere.
fn progress(requests: usize) -> indicatif::ProgressBar {
    let template = "{elapsed:>4} {bar:40.cyan/dim} {human_pos}/{human_len} {rate:>8} {msg:.dim}";
    let style = indicatif::ProgressStyle::with_template(template).map(|style| {
        style.with_key("rate", |state: &indicatif::ProgressState, out: &mut dyn std::fmt::Write| {
            // A bar that cannot be drawn is no reason to stop.
            let _ = write!(out, "{:.0}/s", state.per_sec());
        })
    });
    let bar = indicatif::ProgressBar::new(requests as u64);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
