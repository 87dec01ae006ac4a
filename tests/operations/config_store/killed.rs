//! `kill -9` of a process at each recorded step of a trial. Its local store is a file.
use std::{
    io::{BufRead, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use bytes::Bytes;
use steadfast::{
    backend::sqlite::{Sqlite, SqliteConfig},
    config_store::{ConfigStore, ConfigStoreConfig, Documents},
    entropy::Entropy,
    store::{Key, PutOptions, Store, StoreFuture, Version},
};

use super::{both, follow, load, now, publisher};
use crate::world::{S, World};

const CHILD: &str = "STEADFAST_CONFIG_CHILD";

/// Tells the parent. The name of the test has no line of its own.
fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\nCHILD {what}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// Stands still at its step, if it is this one, until it is killed.
fn stop_at(step: &str, stops: &str) {
    if step == stops {
        say("stands still");
        loop {
            std::thread::park();
        }
    }
}

/// A local store that stands still before or after one of its writes.
#[derive(Debug)]
struct Stops {
    store: Arc<dyn Store>,
    at: String,
    writes: AtomicUsize,
}

impl Store for Stops {
    forward_store! { store: capabilities, get, delete, scan, batch }

    fn put<'a>(&'a self, key: Key<'a>, value: Bytes, options: PutOptions) -> StoreFuture<'a, Version> {
        Box::pin(async move {
            let write = self.writes.fetch_add(1, SeqCst) + 1;
            stop_at(&format!("before {write}"), &self.at);
            let written = self.store.put(key, value, options).await;
            stop_at(&format!("after {write}"), &self.at);
            written
        })
    }
}

fn open(folder: &Path, name: &str, world: &World) -> Arc<dyn Store> {
    let sqlite = Sqlite::open_with_clock(SqliteConfig::at(folder.join(name)), &world.clock).unwrap();
    Arc::new(sqlite.store())
}

#[test]
fn child_that_reads_settings_until_it_is_killed() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let (stops, folder) = told.split_once(" in ").unwrap();
    let (world, folder) = (World::new(), Path::new(folder));
    let at = stops.to_owned();
    let load = move |documents: &Documents| {
        let settings = load(documents)?;
        say(&format!("parses {}", settings.org));
        if settings.org == 2 {
            stop_at("parse", &at);
        }
        Ok::<_, super::BoxError>(settings)
    };
    let local = Stops { store: open(folder, "local.db", &world), at: stops.to_owned(), writes: AtomicUsize::new(0) };
    let built = ConfigStore::builder(open(folder, "shared.db", &world), "shop", load, ConfigStoreConfig::default())
        .layers(["org", "billing"])
        .local(Arc::new(local))
        .clock(&world.clock)
        .entropy(&Entropy::from_seed(3));
    let settings = now(&world, built.build()).unwrap();
    let state = settings.state();
    let rejected = state.rejected.map(|(number, reason)| format!("{number} {}", reason.as_str())).unwrap_or_default();
    say(&format!("runs {}, on trial {:?}, rejected {rejected:?}", state.number, state.on_trial));
    follow(&world, &settings, S(70));
    say("lived");
}

/// Runs a life, which is killed at a step. Returns what it said.
fn life(folder: &Path, stops: &str) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "config_store::killed::child_that_reads_settings_until_it_is_killed", "--nocapture"])
        .env(CHILD, format!("{stops} in {}", folder.display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut said = Vec::new();
    for line in lines {
        let Some(line) = line.strip_prefix("CHILD ") else { continue };
        if line == "stands still" {
            child.kill().unwrap();
        }
        said.push(line.to_owned());
    }
    let has_lived = said.last().is_some_and(|last| last == "lived");
    assert_eq!(child.wait().unwrap().success(), has_lived, "{said:?}");
    assert_eq!(has_lived, stops == "nowhere", "{said:?}");
    said
}

/// Kills lives one after another, at these steps. Returns what the next one said when it ran, and how often 2 was parsed.
fn after(kills: &[&str]) -> (String, usize) {
    let folder = tempfile::tempdir().unwrap();
    let world = World::new();
    let shared = open(folder.path(), "shared.db", &world);
    now(&world, publisher(&world, &shared, 1).publish(both(1))).unwrap();
    life(folder.path(), "nowhere"); // 1 is good
    now(&world, publisher(&world, &shared, 2).publish(both(2))).unwrap();
    let mut said: Vec<String> = kills.iter().flat_map(|stops| life(folder.path(), stops)).collect();
    said.extend(life(folder.path(), "nowhere"));
    let runs = said.iter().rfind(|line| line.starts_with("runs")).unwrap().clone();
    (runs, said.iter().filter(|line| *line == "parses 2").count())
}

// Guarantee: config_store 5.
#[test]
fn a_process_killed_at_each_step_of_a_trial_starts_with_the_last_good_revision() {
    let on_trial = "runs 2, on trial Some(2), rejected \"\"";
    let quarantined = "runs 1, on trial None, rejected \"2 quarantined\"";
    let good = "runs 2, on trial None, rejected \"\"";
    for (kills, runs, parses) in [
        // Nothing was recorded, and nothing was parsed.
        (&["before 1", "before 1", "before 1"][..], on_trial, 1),
        // Recorded: each is a death.
        (&["after 1"], on_trial, 1),
        (&["after 1", "after 1"], quarantined, 0),
        (&["parse"], on_trial, 2),
        (&["parse", "parse"], quarantined, 2),
        (&["parse", "after 1"], quarantined, 1),
        // At the end of the trial, before that is recorded.
        (&["before 2"], on_trial, 2),
        (&["before 2", "parse"], quarantined, 2),
        (&["before 2", "before 2"], quarantined, 2),
        // And after that.
        (&["after 2"], good, 2),
        // While the quarantine is recorded.
        (&["parse", "parse", "before 1"], quarantined, 2),
        (&["parse", "parse", "after 1"], quarantined, 2),
        (&["parse", "parse", "before 1", "after 1"], quarantined, 2),
    ] {
        assert_eq!(after(kills), (runs.to_owned(), parses), "{kills:?}");
    }
}
