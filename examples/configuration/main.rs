//! All policies of a service in one TOML file: loaded, explained, and replaced during 10,000 calls.
//!
//! The file is rewritten every few milliseconds, with valid and invalid documents. An invalid one is refused
//! with the name of the field, and changes nothing; one that a part fails to apply is undone in all parts. Every call
//! is answered. A breaker that was isolated before
//! stays isolated, and the calls of its host get a marked substitute. The last line is the result as JSON.
#![allow(missing_docs, unreachable_pub, reason = "a program has no readers from outside")]
#[path = "../common/mod.rs"]
mod common;
mod service;

use std::{
    collections::BTreeMap,
    error::Error as _,
    future::ready,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use clap::Parser;
use common::{Failure, Http, Result, answer, end, say, serve};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use service::{LOOK_EVERY, Service};
use steadfast::{
    CallError, Cause, Priority,
    call::{idempotent, with_priority},
    circuit_breaker::State,
    config_store::watch_file,
    reconfiguration::SubmitError,
    time::Clock,
};

const CALLS: u64 = 10_000;
const ANY_DAY: &str = include_str!("service.toml");
const BUSY_DAY: &str = include_str!("busy.toml");

/// Replaces a service's configuration during 10,000 calls; with a file, only checks and explains it.
#[derive(Parser)]
struct Args {
    /// A document to check and explain; no calls are made.
    #[arg(long)]
    check: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let Some(file) = args.check else { return end(show().await) };
    let checked = async {
        let service = Service::new(toml::from_str(&std::fs::read_to_string(file)?)?)?;
        say(service.pipeline("eu").explain().to_string());
        Result::Ok(())
    };
    match checked.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format!("refused: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// An invalid document, and the text that its error must contain.
fn bad_documents() -> [(String, &'static str); 7] {
    [
        (ANY_DAY.replace("max_attempts = 4", "max_attempts = 0"), "retry.max_attempts"),
        (ANY_DAY.replace("max_attempts = 4", "max_atempts = 4"), "max_atempts"),
        (BUSY_DAY.replace("max_open = 0.25", "max_open = 7.0"), "max_open"),
        (BUSY_DAY.replace("[chaos]", "[chaos"), "chaos"),
        // Valid, but no part would take it before the next start.
        (ANY_DAY.replace("term = \"15s\"", "term = \"30s\""), "goes beyond the parts"),
        // Valid, and then the last part fails.
        (BUSY_DAY.replace("level = \"warn\"", "level = \"trace\""), "part `log` failed"),
        (ANY_DAY.replace("level = \"info\"", "level = \"all\""), "level"),
    ]
}

async fn show() -> Result<(Value, bool)> {
    let service = Service::new(toml::from_str(ANY_DAY)?)?;
    say(format!("\nas on any other day,\n{}", service.pipeline("eu").explain()));
    let busy = Service::new(toml::from_str(BUSY_DAY)?)?;
    say(format!("and on a busy one,\n{}", busy.pipeline("eu").explain()));

    // One request in twenty fails, one in fifty is slow.
    let (asked, clock) = (Arc::new(AtomicU64::new(0)), Clock::tokio());
    let server = serve({
        let (asked, clock) = (asked.clone(), clock.clone());
        move |_| {
            let (n, clock) = (asked.fetch_add(1, SeqCst), clock.clone());
            async move {
                clock.sleep(Duration::from_millis(if n % 50 == 7 { 100 } else { 3 })).await;
                answer(if n % 20 == 3 { 503 } else { 200 }, n)
            }
        }
    })
    .await?;
    service.hosts.get(&"us".to_owned()).isolate();

    let folder = tempfile::tempdir()?;
    let file = folder.path().join("service.toml");
    let (called, done, kept) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(true));
    let writes = rewrite(&file, &done, &clock);
    let watches = async {
        let reloads = watch(&service, &file, &called, &kept, &clock).await;
        done.store(true, SeqCst);
        reloads
    };
    let calls = async {
        let answers = call_all(&service, server).await;
        called.store(true, SeqCst);
        answers
    };
    let background = service.run();
    let work = async { futures::join!(calls, writes, watches) };
    let (seen, written, reloads) = tokio::select! {
        all = work => all,
        () = background => return Err("the service has ended by itself".into()),
    };
    let reloads = reloads?;
    let reloads_hold = reloads.are_enough();
    let Reloads { loaded, refused, vetoed, rolled_back } = reloads;
    let written = written?;
    let lost = CALLS - seen.fresh - seen.degraded - seen.failed;
    let still = service.payments.circuit_breaker().is_some_and(|breaker| breaker.state() == State::Closed);
    say(format!(
        "{CALLS} calls: {} answered, {} by a substitute, {} failed, {lost} lost\nthe file was written {written} times: {loaded} documents loaded, \
         {refused} refused, each by the name of what is wrong: {vetoed} before any part had changed, {rolled_back} undone in all \
         parts\nthe isolated breaker stayed so: {}",
        seen.fresh,
        seen.degraded,
        seen.failed,
        kept.load(SeqCst),
    ));
    say("\ncauses of the substitutes");
    for (why, count) in &seen.instead_of {
        say(format!("  {count:>6}  {why}"));
    }
    let summary = json!({
        "calls": CALLS, "answered": seen.fresh, "degraded": seen.degraded, "failed": seen.failed, "lost": lost,
        "loaded": loaded, "refused": refused, "vetoed": vetoed, "rolled_back": rolled_back, "breaker_kept": kept.load(SeqCst),
    });
    let holds = lost == 0 && seen.failed == 0 && kept.load(SeqCst) && still && reloads_hold;
    // A tenth of the calls went to the isolated host; others may have failed by random faults.
    Ok((summary, holds && seen.degraded >= CALLS / 10 && seen.fresh > 0))
}

#[derive(Default)]
struct Seen {
    fresh: u64,
    degraded: u64,
    failed: u64,
    /// Causes of the substitutes.
    instead_of: BTreeMap<String, u64>,
}

fn why(error: Option<&CallError<Failure>>) -> String {
    match error.map(CallError::cause) {
        Some(Cause::Rejected(rejected)) => {
            format!("rejected by the {} `{}`", rejected.by(), rejected.name().unwrap_or_default())
        }
        Some(Cause::TimedOut(_)) => "timed out".to_owned(),
        _ => "answered by a failure".to_owned(),
    }
}

async fn call_all(service: &Service, server: std::net::SocketAddr) -> Seen {
    let http = Http::new();
    let (eu, us) = (service.pipeline("eu"), service.pipeline("us"));
    let calls = stream::iter(0..CALLS).map(|n| {
        let (http, eu, us) = (&http, &eu, &us);
        async move {
            let pipeline = if n % 10 == 0 { us } else { eu };
            let priority = if n % 3 == 0 { Priority::High } else { Priority::Normal };
            service.tenants.try_acquire(&format!("tenant-{}", n % 7)).map_err(|rejected| rejected.to_string())?;
            // The bank recognises a repeated charge by its key, so it may be sent twice, also at once.
            let path = format!("/charge?key={n}");
            let charge = idempotent(with_priority(priority, || http.get(server, &path)));
            let substitute = |_: steadfast::call::Failed<'_, _, _>| ready(Ok(answer(202, "later")));
            let answered = pipeline.call_or_marked(charge, substitute).await;
            answered.map(|answer| answer.is_degraded().then(|| why(answer.error()))).map_err(|e| e.to_string())
        }
    });
    let mut calls = calls.buffer_unordered(60);
    let mut seen = Seen::default();
    while let Some(answered) = calls.next().await {
        match answered {
            Ok(Some(why)) => {
                seen.degraded += 1;
                *seen.instead_of.entry(why).or_default() += 1;
            }
            Ok(None) => seen.fresh += 1,
            Err(error) => {
                if seen.failed < 3 {
                    say(format!("failed: {error}"));
                }
                seen.failed += 1;
            }
        }
    }
    seen
}

/// An editor of the file that makes mistakes.
async fn rewrite(file: &std::path::Path, done: &AtomicBool, clock: &Clock) -> Result<u64> {
    let bad = bad_documents();
    let mut written = 0;
    while !done.load(SeqCst) {
        let text = match written % 4 {
            0 => BUSY_DAY,
            2 => ANY_DAY,
            _ => &bad[(written / 2 % bad.len() as u64) as usize].0,
        };
        // Written beside the file and then renamed, so that no reader sees half a file.
        let beside = file.with_extension("new");
        std::fs::write(&beside, text)?;
        std::fs::rename(&beside, file)?;
        written += 1;
        clock.sleep(LOOK_EVERY * 3).await;
    }
    Ok(written)
}

/// Documents that were read, by their ends.
#[derive(Default)]
struct Reloads {
    loaded: u64,
    refused: u64,
    /// Refused by a part, or because no part takes the change.
    vetoed: u64,
    rolled_back: u64,
}

impl Reloads {
    /// Returns `true` if each kind of end was seen several times.
    fn are_enough(&self) -> bool {
        self.loaded >= 10 && self.refused >= 10 && self.vetoed >= 3 && self.rolled_back >= 2
    }
}

/// Follows the file, and applies each new document, until all calls were made and enough documents read.
async fn watch(
    service: &Service,
    file: &std::path::Path,
    called: &AtomicBool,
    kept: &AtomicBool,
    clock: &Clock,
) -> Result<Reloads> {
    let bad = bad_documents();
    let (mut file, mut reloads) = (watch_file(file, LOOK_EVERY), Reloads::default());
    while !(called.load(SeqCst) && reloads.are_enough()) {
        // The file is not there at first.
        let text = tokio::select! {
            text = file.changed() => text.unwrap_or_default(),
            () = clock.sleep(LOOK_EVERY * 20) => continue,
        };
        if text.is_empty() {
            continue;
        }
        let before = service.payments.config();
        let submitted = match toml::from_str(&text) {
            Ok(document) => service.reconfigure(document).await.map_err(|error| {
                match &error {
                    SubmitError::Failed { .. } => reloads.rolled_back += 1,
                    _ => reloads.vetoed += 1,
                }
                format!("{error}{}", error.source().map_or_else(String::new, |source| format!(": {source}")))
            }),
            Err(error) => Err(error.to_string()),
        };
        match submitted {
            Ok(_) => reloads.loaded += 1,
            Err(told) => {
                let named = bad.iter().any(|(bad, field)| *bad == text && told.contains(field));
                if !named || service.payments.config() != before {
                    return Err(format!("not refused as expected: {told}").into());
                }
                if reloads.refused < 7 {
                    say(format!("refused: {}", told.trim().replace('\n', "\n         ")));
                }
                reloads.refused += 1;
            }
        }
        let isolated = service.hosts.get(&"us".to_owned()).state() == State::Isolated;
        kept.fetch_and(isolated, SeqCst);
    }
    Ok(reloads)
}
