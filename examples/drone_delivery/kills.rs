//! Real kills: the job runs as a process of its own, is killed at chosen points of its progress, and is started again.
use std::{
    env,
    path::Path,
    process::{Child, Command, Stdio},
};

use clap::Parser;
use serde_json::Value;
use steadfast::{
    backend::sqlite::{Sqlite, SqliteConfig},
    store::{Scan, StoreExt},
};

use crate::{args::Args, ledger::State};

const ARGS: &str = "DRONE_DELIVERY_ARGS";

/// Not a test: what the processes below run.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by the tests of kills"]
async fn as_a_process() {
    let Ok(args) = env::var(ARGS) else { return };
    match crate::run(&Args::parse_from(args.split('\n'))).await {
        Ok(report) => println!("\nsummary: {}", report.summary()),
        Err(error) => println!("\nerror: {error}"),
    }
}

fn start(file: &Path, more: &[&str]) -> Child {
    let args = ["drone_delivery", "--store", &format!("sqlite:{}", file.display())].map(str::to_owned);
    let args: Vec<String> = args.into_iter().chain(more.iter().map(|arg| (*arg).to_owned())).collect();
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "kills::as_a_process", "--ignored", "--nocapture"])
        .env(ARGS, args.join("\n"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn output(child: Child, line: &str) -> String {
    let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    output.lines().find_map(|l| l.strip_prefix(line)).unwrap_or_else(|| panic!("no {line:?} in {output}")).to_owned()
}

/// How many requests the file says have come to their end by work.
async fn finished(sqlite: &Sqlite) -> usize {
    let rows = sqlite.store().scan_all(Scan::partition("requests").limit(1000)).await.unwrap();
    let ended = |value: &[u8]| matches!(serde_json::from_slice(value).unwrap(), State::Scheduled | State::Rejected);
    rows.iter().filter(|row| ended(&row.value)).count()
}

/// Kills the job when so many are finished, each time; then lets it come to its end, and holds the summary against the input's.
async fn killed_at(points: &[usize], more: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.db");
    let sqlite = Sqlite::open(SqliteConfig::at(&file)).unwrap();
    for point in points {
        let mut run = start(&file, more);
        while finished(&sqlite).await < *point {
            assert_eq!(run.try_wait().unwrap(), None, "it ended before it could be killed at {point}");
        }
        run.kill().unwrap(); // SIGKILL
        assert!(!run.wait().unwrap().success());
    }
    let before = finished(&sqlite).await;
    assert!(before >= *points.last().unwrap() && before < 1941, "{before}");
    // A call that was under way when its process was killed may have had its effect: it comes again, and has no second one.
    let summary: Value = serde_json::from_str(&output(start(&file, more), "summary: ")).unwrap();
    let figures = ["input", "scheduled", "rejected", "duplicates", "dead_lettered", "lost", "violations", "half_done"];
    assert_eq!(figures.map(|name| summary[name].as_u64().unwrap()), [2000, 1893, 48, 28, 31, 0, 0, 0], "{summary}");
    assert_eq!(summary["resumed"], before);
    assert_eq!(finished(&sqlite).await, 1941);
    // The books themselves, and not only the report on them: a drone for each scheduled request, once.
    let drones = sqlite.store().scan_all(Scan::partition("books of drone").limit(1000)).await.unwrap();
    let mut flown: Vec<_> = drones.iter().map(|row| row.value.clone()).collect();
    flown.sort();
    flown.dedup();
    assert_eq!((drones.len(), flown.len()), (1893, 1893));
}

#[tokio::test]
async fn a_job_that_is_killed_in_the_middle_is_finished_with_nothing_scheduled_twice() {
    killed_at(&[0, 1, 400, 900, 1500], &["--rate", "800"]).await;
}

#[tokio::test]
async fn so_is_one_that_is_killed_in_a_storm() {
    killed_at(&[150, 700], &["--faults", "storm"]).await;
}

#[tokio::test]
async fn a_file_of_another_job_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.db");
    output(start(&file, &["--requests", "20"]), "summary: ");
    for other in [["--requests", "21"].as_slice(), &["--requests", "20", "--seed", "2"]] {
        let error = output(start(&file, other), "error: ");
        assert!(error.contains("it belongs to another job: 20 requests"), "{error}");
    }
    let again: Value = serde_json::from_str(&output(start(&file, &["--requests", "20"]), "summary: ")).unwrap();
    assert_eq!((&again["resumed"], &again["calls"]), (&again["scheduled"], &0.into()));
}

#[tokio::test]
async fn a_damaged_file_is_an_error_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.db");
    std::fs::write(&file, "no database, but long enough to be taken for one").unwrap();
    let error = output(start(&file, &[]), "error: ");
    assert!(error.starts_with("--store: ") && error.contains("no database"), "{error}");
    assert!(std::fs::read(&file).unwrap().starts_with(b"no database"));
}

#[test]
fn where_to_keep_it_is_memory_or_a_file() {
    use crate::ledger::StoreAt;
    assert_eq!("memory".parse(), Ok(StoreAt::Memory));
    assert_eq!("sqlite:a:b.db".parse(), Ok(StoreAt::Sqlite("a:b.db".into())));
    for wrong in ["", "sqlite", "sqlite:", "memory:", "postgres:x"] {
        assert!(wrong.parse::<StoreAt>().is_err(), "{wrong}");
    }
}
